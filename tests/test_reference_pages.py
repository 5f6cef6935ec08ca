"""The catalogues of losses and scalings are complete, and hold what the code does."""

import inspect
import re

import pytest
import torch
from mmengine.registry import MODELS
from reference_pages import (
    check_values,
    code_blocks,
    defaults,
    page,
    parameter_rows,
    sections,
    value_cases,
)

from mmcalib import losses
from mmcalib.losses import BatchLoss, CalibrationLoss, CombinedLoss
from mmcalib.posthoc import SCALERS

LOSSES = page('losses.md')
OF_LOSSES = sections(LOSSES)
BASES = (CalibrationLoss, BatchLoss)
CLASSES = {
    name: value
    for name, value in vars(losses).items()
    if inspect.isclass(value) and value not in BASES
}
COMMON = OF_LOSSES['Parameters of every loss']
SCALINGS = page('scalings.md')
OF_SCALINGS = {
    re.search(r'`([\w-]+)`', text).group(1): text
    for title, text in sections(SCALINGS).items()
    if text.lstrip().startswith('`')
}


def section_of(name):
    """Return the section whose first line begins with the type of a loss alone."""
    (found,) = (text for text in OF_LOSSES.values() if re.match(rf'\s*`{name}` · ', text))
    return found


def test_every_loss_has_a_section_and_a_row():
    assert set(CLASSES) == {name for name in dir(losses) if name.endswith('Loss')} - {
        base.__name__ for base in BASES
    }
    for name in CLASSES:
        assert MODELS.get(name) is CLASSES[name]
        assert section_of(name)
    rows = re.findall(r'^\| \[.+?\]\(#([\w-]+)\) \| `(\w+)`', LOSSES, flags=re.MULTILINE)
    assert {name for _, name in rows} == set(CLASSES)
    anchors = {re.sub(r'[^\w -]', '', title).lower().replace(' ', '-') for title in OF_LOSSES}
    assert {anchor for anchor, _ in rows} <= anchors


@pytest.mark.parametrize('name', CLASSES)
def test_parameters_of_a_loss(name):
    kind, section = CLASSES[name], section_of(name)
    named = {key: row[0] for key, row in parameter_rows(section).items()}
    common = () if kind is CombinedLoss else inspect.signature(CalibrationLoss).parameters
    expected = defaults(kind, leave_out=common)
    assert named == expected
    required = dict(num_classes=10) if name == 'CALSLoss' else {}
    if any(key in kind.__dict__.get('ranges', {}) for key in named):
        assert check_values(kind, section, required) > 0
    else:
        check_values(kind, section, required)


def test_parameters_of_every_loss():
    named = {key: row[0] for key, row in parameter_rows(COMMON).items()}
    named['loss_name'] = "`'loss_brier'`"  # each has one of its own
    assert named == defaults(losses.BrierLoss)
    assert check_values(losses.BrierLoss, COMMON, {}) >= 3


@pytest.mark.parametrize('name', CLASSES)
def test_example_of_a_loss(name):
    section, soft = section_of(name), f'| `{name}` | ✓ | ✓ |' in LOSSES
    scope = {}
    exec(code_blocks(section)[0], scope)
    assert scope['loss']['type'] == name
    loss = MODELS.build(scope['loss'])
    torch.manual_seed(0)
    logits, labels = torch.randn(2, 10, 4, 4), torch.randint(10, (2, 4, 4))
    assert loss(logits, labels).isfinite()
    shares = torch.rand(2, 10, 4, 4).softmax(dim=1)
    if soft:
        assert loss(logits, shares).isfinite()
    else:
        with pytest.raises(ValueError, match='not probabilities'):
            loss(logits, shares)
    if name != 'CombinedLoss':
        assert re.search(r'^\$\$', section, re.MULTILINE)
        assert 'https://' in section or name == 'BrierLoss'
        assert 'configs/' in section


def test_a_wrong_page_is_noticed():
    section = section_of('LabelSmoothingLoss')
    with pytest.raises(AssertionError, match=r'alpha=2\.0'):
        check_values(losses.MarginLabelSmoothingLoss, section, {})
    with pytest.raises(ValueError, match='alpha'):
        check_values(losses.LabelSmoothingLoss, section.replace('[0, 1]', '[0, 2]'), {})
    assert value_cases("`'mean'`, `'sum'`", 'mean') == (['mean', 'sum'], ['none of these'])


def test_every_scaling_has_a_section_and_a_row():
    assert list(OF_SCALINGS) == list(SCALERS)
    rows = [line.split('|')[1:-1] for line in SCALINGS.split('\n') if line.startswith('| [')]
    assert [re.search(r'`([\w-]+)`', row[0]).group(1) for row in rows] == list(SCALERS)
    for row, kind in zip(rows, SCALERS.values(), strict=True):
        _, _, keeps, folds, classes = [cell.strip() for cell in row]
        assert (keeps == '✓') == kind.keeps_argmax, row
        assert (folds == '✓') == kind.affine, row
        assert (classes == 'two') == (kind.heads == ('sigmoid',)), row


@pytest.mark.parametrize('name', SCALERS)
def test_parameters_of_a_scaling(name):
    kind, section = SCALERS[name], OF_SCALINGS[name]
    named = {key: row[0] for key, row in parameter_rows(section).items()}
    assert named == defaults(kind)
    assert f'`{kind.__name__}`' in section and re.search(r'^\$\$', section, re.MULTILINE)
    assert check_values(kind, section, {}) >= len(named)
    if not named:
        assert 'It has no options.' in ' '.join(section.split())


def test_examples_of_scalings(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    scope = {}
    for block in code_blocks(SCALINGS):
        exec(block, scope)
    assert (tmp_path / 'ets.json').is_file()
    for name, section in OF_SCALINGS.items():
        assert SCALERS[name].__name__ in code_blocks(section)[0]
