"""What README and docs print: examples run, configs build, commands parse, catalogues are whole.

Their links are Sphinx's to check, see .ci/docs.
"""

import contextlib
import doctest
import importlib
import inspect
import json
import pkgutil
import re
import runpy
import shlex
import sys
from argparse import _SubParsersAction
from functools import partial
from pathlib import Path
from types import ModuleType

import pytest
import torch
from commands import ROOT, call_here
from mmengine.evaluator import BaseMetric, Evaluator
from mmengine.registry import HOOKS, METRICS, MODELS, init_default_scope
from tool_parsers import parser_of

import mmcalib
from mmcalib import losses, measure
from mmcalib.losses import CalibrationLoss, CombinedLoss
from mmcalib.metrics import PROTOCOLS, definitions
from mmcalib.metrics.names import unit_and_better
from mmcalib.openmmlab.metrics import CalibrationMetric
from mmcalib.posthoc import SCALERS
from mmcalib.runs.config import load_config, use_evaluation

PAGES = [
    *(ROOT / name for name in ('README.md', 'CONTRIBUTING.md', 'configs/README.md')),
    *sorted((*ROOT.glob('docs/*.md'), *ROOT.glob('docs/[!_]*/*.md'))),
]
TEXTS = {str(page.relative_to(ROOT)): page.read_text(encoding='utf-8') for page in PAGES}
FENCE = re.compile(r'^( *)```(\w+)\n(.*?)^\1```', re.MULTILINE | re.DOTALL)


def blocks(page, *languages):
    found = FENCE.finditer(TEXTS[page])
    return [block[3] for block in found if block[2] in (languages or ['python'])]


def is_config(block):
    keys = r'(_base_|model|evaluations|\w+_hooks|\w+_evaluator|\w+_dataloader)'
    return re.search(rf"^({keys} = )?(dict\(|\[|')", block, re.MULTILINE)


def test_examples_of_docstrings(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    attempted = 0
    for module in pkgutil.walk_packages(mmcalib.__path__, 'mmcalib.'):
        found = doctest.testmod(importlib.import_module(module.name), extraglobs=dict(torch=torch))
        assert not found.failed, module.name
        attempted += found.attempted
    assert attempted > 30


EXECUTED = (
    'concepts/averaging_models', 'concepts/estimators', 'coming_from/netcal',
    'coming_from/scikit_learn', 'coming_from/torch_models', 'coming_from/torchmetrics',
    'faq', 'howto/compare_runs', 'howto/match_other_tools', 'howto/measure',
)  # fmt: skip


@pytest.mark.parametrize('name', EXECUTED)
def test_examples_of_a_page_run_one_after_the_other(name, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page, scope = f'docs/{name}.md', {}
    if torch.__version__ < '2.7' and 'manual_seed' in TEXTS[page]:
        pytest.skip('needs PyTorch 2.7, whose random numbers it prints')
    for block in blocks(page):
        if not is_config(block):
            exec(block, scope)
    assert scope
    claimed = re.search(r'^prints (.+) and (.+) %\.', TEXTS[page], re.MULTILINE)
    if claimed:
        printed = [line.split()[1] for line in capsys.readouterr().out.splitlines()]
        assert printed == [*claimed[1].split(', '), claimed[2]]


def test_numbers_of_pages_are_those_that_were_measured(tmp_path, monkeypatch, capsys):
    """If not: python tools/maintenance/quote_results.py."""
    wrong = tmp_path / 'page.md'
    text = re.sub(r'(: CE -->.*?)\d+\.\d+ ± \d+\.\d+', r'\g<1>1.00 ± 9.99', TEXTS['README.md'])
    wrong.write_text(text)
    for arguments, code in (['--check'], 0), ([wrong, '--check'], 1), ([wrong], 0):
        with pytest.raises(SystemExit) as end:
            call_here('maintenance/quote_results.py', *arguments, monkeypatch=monkeypatch)
        assert end.value.code == code, capsys.readouterr()
    assert '1.00 ± 9.99' in text and wrong.read_text() == TEXTS['README.md']


# To be written by whoever follows the steps of CONTRIBUTING.md.
OWN = {'configs/my/digits.py'}
TOOL = re.compile(
    r'(?:^| |\./)(?:tools/(?P<path>[\w/]+\.(py|sh))|mmcalib (?P<name>[a-z-]+))(?= |$)'
)
INLINE = re.compile(r'(?<!`)`([^`\n]+)`(?!`)')


def commands():
    """Tool and arguments of each command of ours on a page, and whether it is whole."""
    for page, text in TEXTS.items():
        joined = (block.replace('\\\n', ' ') for block in blocks(page, 'bash', 'console'))
        lines = [(line, True) for block in joined for line in block.splitlines()]
        for line, whole in (*lines, *((line, False) for line in INLINE.findall(text))):
            for part in re.split(r' && | \|\|? |; | > ', line.partition(' #')[0]):
                *_, tool = None, *TOOL.finditer(part.removeprefix('$ '))
                if tool:
                    path = tool['path'] or f'{tool["name"].replace("-", "_")}.py'
                    yield path, shlex.split(tool.string[tool.end() :]), whole


def parsers_of(parser):
    """A parser and its subparsers."""
    commands = (each for each in parser._actions if isinstance(each, _SubParsersAction))
    return [parser, *(one for each in commands for one in each.choices.values())]


def check(path, arguments, *, whole):
    """Parse a command; raise an AssertionError that says what is wrong with it."""
    assert (ROOT / 'tools' / path).is_file(), path
    if path.startswith('dist_'):  # with the number of processes behind its files
        path = path[5:-3] + '.py'
        place = 1 if path == 'train.py' else 2
        arguments[place : place + 1] = []
    elif path.endswith('.sh'):
        return
    parser = parser_of(f'tools/{path}')
    options = {word.split('=')[0] for word in arguments if re.match('--[a-z]', word)}
    known = {option for each in parsers_of(parser) for option in each._option_string_actions}
    assert options <= known, (path, options - known)
    if not whole or re.search(r'[…{$]', ' '.join(arguments)):
        return
    for each in parsers_of(parser):
        each.error = partial(_refuse, path)
    with contextlib.suppress(SystemExit):
        parser.parse_args(arguments)
    for file in {*arguments} - OWN:
        assert not file.startswith('configs/') or (ROOT / file).exists() or '*' in file, file


def _refuse(path, message):
    # A name in capitals stands for a number of the reader's.
    assert re.search(r"invalid \w+ value: '[A-Z_]+'", message), (path, message)
    sys.exit()


def test_commands_of_pages_have_their_arguments():
    tools = set()
    for path, arguments, whole in commands():
        if whole or (ROOT / 'tools' / path).is_file():  # a text may begin with the package
            check(path, arguments, whole=whole)
            tools.add(path)
    assert {'train.py', 'test.py', 'calibrate.py', 'report.py', 'dist_train.sh'} <= tools
    for arguments in ['config.py', '--ressume'], []:
        with pytest.raises(AssertionError):
            check('train.py', arguments, whole=True)


def test_the_text_of_the_command_lines_is_current():
    """If not: python docs/_ext/command_lines_text.py. Python versions wrap it in other ways."""
    text = (ROOT / 'docs/reference/command_lines.txt').read_text('utf-8')
    told = {part.split()[0]: ''.join(part.split()) for part in text.split('== ')[1:]}
    for tool, said in told.items():
        for parser in parsers_of(parser_of(tool)):
            for action in parser._actions:
                meant = parser._get_formatter()._expand_help(action) if action.help else ''
                for words in (*action.option_strings, meant):
                    assert ''.join(words.split()) in said, (tool, words)
    assert len(told) == 10


CONFIGS = [
    pytest.param(block, id=f'{page.removeprefix("docs/")}-{number}')
    for page in TEXTS
    for number, block in enumerate(filter(is_config, blocks(page)))
    if not block.startswith('dict')
]
SEGMENTATION = re.compile('IoUMetric|Seg|mIoU|confidence_map|EncoderDecoder|LabelUntrained')


@pytest.mark.parametrize('block', CONFIGS)
def test_a_config_of_a_page_is_built_and_has_a_gradient(block, tmp_path, monkeypatch):
    torch.manual_seed(0)
    for folder in ('configs', 'docs'):
        (tmp_path / folder).symlink_to(ROOT / folder)
    own = re.findall(r"'(my_\w+)'", block)  # which another block of the page writes
    for name in own:
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    if base := re.search(r'read_base\(\):\n    from \.(\w+) import', block):
        load_config(f'mmpretrain::resnet/{base[1]}.py').dump(tmp_path / f'{base[1]}.py')
    elif '_base_ =' not in block and 'dataset_type' not in block:
        name = 'digit_scenes' if SEGMENTATION.search(block) else 'digits'
        block = f"_base_ = 'mmcalib::mbls/{name}.py'\n{block}"
    (tmp_path / 'own.py').write_text(block, encoding='utf-8')
    cfg = load_config(str(tmp_path / 'own.py'))
    init_default_scope(cfg.default_scope)
    if cfg.model.type == 'CalibratedModel':
        MODELS.build({**cfg.model, 'data_preprocessor': None})
    for key in {'head', 'decode_head', 'auxiliary_head'} & {*cfg.model} if not own else ():
        head = MODELS.build(cfg.model[key])
        for loss in head.modules():
            if isinstance(loss, CalibrationLoss | CombinedLoss):
                logits = torch.randn(2, head.num_classes, 4, 4, requires_grad=True)
                loss(logits, torch.randint(head.num_classes, (2, 4, 4))).backward()
                assert logits.grad.isfinite().all() and logits.grad.abs().sum() > 0
    for hook in (*(cfg.get('custom_hooks') or ()), cfg.default_hooks.get('checkpoint')):
        HOOKS.build(hook)
    if 'evaluations' in block:
        cfg.work_dir = str(tmp_path)
        use_evaluation(cfg, 'paper')
    for evaluator in (cfg.val_evaluator, cfg.test_evaluator) if not own else ():
        Evaluator(evaluator)


@pytest.fixture
def written(tmp_path, monkeypatch):
    """Write the blocks of a page that begin with the name of a file, in the working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)

    def write(page):
        for block in blocks(page):
            if name := re.match(r'# ([\w.]+\.py)\n', block):
                (tmp_path / name[1]).write_text(block, encoding='utf-8')

    return write


@pytest.mark.parametrize('name', ['own_classifier', 'own_segmentor'])
def test_a_config_of_ones_own(written, name, monkeypatch):
    written('docs/howto/own_config.md')
    runpy.run_path('make_data.py')
    call_here('train.py', f'{name}.py', '--limit', 2, monkeypatch=monkeypatch)
    (results,) = Path.cwd().rglob('results.json')
    assert {'calibration/ECE', 'calibration/AECE'} <= json.loads(results.read_text())[
        'metrics'
    ].keys()


def test_a_loss_and_a_metric_of_ones_own(written):
    page = 'docs/howto/own_loss_or_metric.md'
    written(page)
    import my_losses
    import my_metrics

    logits, labels = torch.randn(6, 10, dtype=torch.float64), torch.arange(6)
    rows = -logits.log_softmax(dim=1)[range(6), labels]
    loss = my_losses.PolyLoss(epsilon=2.0)(logits, labels)
    assert torch.isclose(loss, (rows + 2 * (1 - (-rows).exp())).mean())
    exec(blocks(page)[-1], {})
    scores = torch.tensor([[0.95, 0.05], [0.95, 0.05], [0.6, 0.4], [0.3, 0.7]])
    metric = my_metrics.ConfidentErrors(threshold=0.9)
    metric.process(
        {}, [dict(pred_score=s, gt_label=torch.tensor([k > 0])) for k, s in enumerate(scores)]
    )
    assert metric.evaluate(size=4) == {'confident/errors': 25.0}


def sections(page):
    """What is below each heading of the second level, by the type that it begins with."""
    _, *parts = re.split(r'^## .+$', TEXTS[f'docs/reference/{page}.md'], flags=re.MULTILINE)
    found = ((re.match(r'\s*`([\w-]+)` · ', text), text) for text in parts)
    return {name[1]: text for name, text in found if name}


def rows_of(page, start):
    """The cells of the rows of all tables with this start of their heading."""
    tables = re.findall(
        rf'^\| {start}.*\n.*\n((?:\|.*\n)+)', TEXTS[f'docs/reference/{page}.md'], re.M
    )
    lines = ''.join(tables).splitlines()
    return [[cell.strip(' |') for cell in re.split(r' \|(?= |$)', line)] for line in lines]


def code_of(section):
    return re.search(r'```python\n(.*?)```', section, re.DOTALL)[1]


def defaults(function, leave_out=()):
    own = inspect.signature(function).parameters.values()
    own = (p for p in own if p.kind is not p.VAR_KEYWORD and p.name not in leave_out)
    return {p.name: p.default for p in own}


LOSSES = {name for name in dir(losses) if name.endswith('Loss')} - {'CalibrationLoss', 'BatchLoss'}


def test_the_catalogue_of_losses_is_whole():
    parts = sections('losses')
    assert parts.keys() >= LOSSES
    rows = {row[1].strip('`'): row for row in rows_of('losses', 'loss')}
    assert rows.keys() >= LOSSES
    torch.manual_seed(0)
    logits, labels = torch.randn(2, 10, 4, 4), torch.randint(10, (2, 4, 4))
    for name in LOSSES:
        scope = {}
        exec(code_of(parts[name]), scope)
        loss, soft = MODELS.build(scope['loss']), rows[name][2] == '✓'
        if name != 'CombinedLoss':
            own = defaults(getattr(losses, name), inspect.signature(CalibrationLoss).parameters)
            own |= dict(num_classes=10) if 'num_classes' in own else {}
            assert scope['loss'] == dict(type=name, **own)
        assert loss(logits, labels).isfinite()
        try:
            assert loss(logits, logits.softmax(dim=1)).isfinite() and soft, name
        except ValueError as error:
            assert 'not probabilities' in str(error) and not soft, name
    common = eval(next(block for block in blocks('docs/reference/losses.md')))
    assert common == defaults(CalibrationLoss, ['loss_name'])


def test_the_catalogue_of_scalings_is_whole(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    parts = sections('scalings')
    assert list(parts) == list(SCALERS)
    rows = rows_of('scalings', 'method')
    assert [re.search(r'`([\w-]+)`', row[0])[1] for row in rows] == list(SCALERS)
    for (_, _, keeps, folds, classes, _), kind in zip(rows, SCALERS.values(), strict=True):
        assert (keeps == '✓') == kind.keeps_argmax, kind
        assert (folds == '✓') == kind.affine, kind
        assert (classes == 'two') == (kind.heads == ('sigmoid',)), kind
    scope = {}
    for block in blocks('docs/reference/scalings.md'):
        exec(block, scope)
    assert (tmp_path / 'ets.json').is_file()
    for name, kind in SCALERS.items():
        example = code_of(parts[name])
        assert kind.__name__ in example
        assert all(f'{key}={value!r}' in example for key, value in defaults(kind).items())


BEST = {'less': ['0'], 'greater': ['100', '0.25'], None: ['0', '1', '–']}


def test_the_catalogue_of_metrics_is_whole():
    page, scope = 'docs/reference/metrics.md', {}
    (data,) = (block for block in blocks(page) if 'import numpy' in block)
    exec(data, scope)
    rows = {row[0].strip('`'): row for row in rows_of('metrics', 'key')}
    names = {re.sub(r'_0\.\d+$', '', key) for key in rows}
    assert names == {*definitions.METRICS, *definitions.WITH_LEVEL}
    for key, (_, _, _, unit, example, extra, _) in rows.items():
        value = measure(scope['probs'], scope['labels'], key)
        assert float(example) == pytest.approx(value, abs=0.00051), key
        measured_in, better = unit_and_better(key)
        unit, best = unit.split(', ')
        assert unit.removesuffix(' points') == (measured_in or 'none'), key
        assert best in BEST[better], key
        assert (extra == 'interval') == bool(definitions.find_metric(key).bin_formula), key
    (example,) = (block for block in blocks(page) if block.startswith('dict('))
    options = defaults(CalibrationMetric) | defaults(BaseMetric)
    assert eval(example) == dict(type='CalibrationMetric', **options)
    assert [row[0] for row in rows_of('metrics', '`protocol`')] == [f'`{p!r}`' for p in PROTOCOLS]
    for name, kind in METRICS.module_dict.items():
        if 'mmcalib.metrics' in kind.__module__:
            assert re.search(rf"[`']{name}[`']", TEXTS[page]), name
