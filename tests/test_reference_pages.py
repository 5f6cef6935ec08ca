"""The catalogues of losses and scalings are complete, and hold what the code does."""

import inspect
import re

import pytest
import torch
from commands import ROOT
from mmengine.registry import MODELS

from mmcalib import losses
from mmcalib.losses import BatchLoss, CalibrationLoss
from mmcalib.posthoc import SCALERS


def page(name):
    return (ROOT / 'docs/reference' / name).read_text('utf-8')


def sections(text):
    """What is below each heading of the second level."""
    parts = re.split(r'^## (.+)$', text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def code_blocks(section):
    return re.findall(r'```python\n(.*?)```', section, flags=re.DOTALL)


def defaults(function, leave_out=()):
    parameters = inspect.signature(function).parameters.values()
    own = (p for p in parameters if p.kind is not p.VAR_KEYWORD and p.name not in leave_out)
    return {p.name: p.default for p in own}


LOSSES = page('losses.md')
OF_LOSSES = sections(LOSSES)
BASES = (CalibrationLoss, BatchLoss)
CLASSES = {
    name: value
    for name, value in vars(losses).items()
    if inspect.isclass(value) and value not in BASES
}
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
def test_example_of_a_loss(name):
    section, soft = section_of(name), f'| `{name}` | ✓ |' in LOSSES
    scope = {}
    exec(code_blocks(section)[0], scope)
    assert scope['loss']['type'] == name
    loss = MODELS.build(scope['loss'])
    if name != 'CombinedLoss':
        own = defaults(CLASSES[name], inspect.signature(CalibrationLoss).parameters)
        own |= dict(num_classes=10) if 'num_classes' in own else {}
        assert scope['loss'] == dict(type=name, **own)
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


def test_parameters_of_every_loss():
    (common,) = code_blocks(OF_LOSSES['Parameters of every loss'])[:1]
    named = defaults(CalibrationLoss, ['loss_name'])
    assert eval(common) == named


def test_every_scaling_has_a_section_and_a_row():
    assert list(OF_SCALINGS) == list(SCALERS)
    rows = [line.split('|')[1:-1] for line in SCALINGS.split('\n') if line.startswith('| [')]
    assert [re.search(r'`([\w-]+)`', row[0]).group(1) for row in rows] == list(SCALERS)
    for row, kind in zip(rows, SCALERS.values(), strict=True):
        _, _, keeps, folds, classes = [cell.strip() for cell in row]
        assert (keeps == '✓') == kind.keeps_argmax, row
        assert (folds == '✓') == kind.affine, row
        assert (classes == 'two') == (kind.heads == ('sigmoid',)), row


def test_examples_of_scalings(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    scope = {}
    for block in code_blocks(SCALINGS):
        exec(block, scope)
    assert (tmp_path / 'ets.json').is_file()
    for name, section in OF_SCALINGS.items():
        example = code_blocks(section)[0]
        assert SCALERS[name].__name__ in example and re.search(r'^\$\$', section, re.MULTILINE)
        own = defaults(SCALERS[name])
        assert all(f'{key}={value!r}' in example for key, value in own.items())
