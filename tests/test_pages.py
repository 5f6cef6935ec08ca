"""README and docs: examples run, configs build, commands parse, and catalogues are complete.

Sphinx checks their links, see .ci/docs.
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
import subprocess
import sys
from argparse import _SubParsersAction
from functools import partial
from pathlib import Path
from types import ModuleType

import pytest
import torch
from commands import ROOT, run_in_process
from mmengine.evaluator import BaseMetric, Evaluator
from mmengine.registry import HOOKS, METRICS, MODELS, init_default_scope
from tool_parsers import parser_of

import mmcalib
from mmcalib import losses, measure
from mmcalib.losses import CalibrationLoss, CombinedLoss
from mmcalib.metrics import PROTOCOLS, definitions
from mmcalib.metrics.metric_text import unit_and_better
from mmcalib.openmmlab.metrics import CalibrationMetric
from mmcalib.posthoc import SCALERS
from mmcalib.runs.config import load_config
from mmcalib.runs.run_config import use_evaluation

PAGES = [
    *(ROOT / name for name in ('README.md', 'CONTRIBUTING.md', 'configs/README.md')),
    *sorted((*ROOT.glob('docs/*.md'), *ROOT.glob('docs/[!_]*/*.md'))),
]
TEXTS = {str(page.relative_to(ROOT)): page.read_text(encoding='utf-8') for page in PAGES}
FENCE = re.compile(r'^( *)```(\w+)\n(.*?)^\1```', re.MULTILINE | re.DOTALL)


def blocks(page, *languages):
    """Return the fenced blocks of a page in these languages, by default those of Python."""
    languages = languages or ('python',)
    return [block[3] for block in FENCE.finditer(TEXTS[page]) if block[2] in languages]


def is_config(block):
    """Return whether a block of Python is a config, which mmengine reads, and no program."""
    keys = r'(_base_|model|evaluations|\w+_hooks|\w+_evaluator|\w+_dataloader)'
    return re.search(rf"^({keys} = )?(dict\(|\[|')", block, re.MULTILINE)


def test_docstrings_examples_print_what_they_show(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    num_examples = 0
    for module in pkgutil.walk_packages(mmcalib.__path__, 'mmcalib.'):
        results = doctest.testmod(
            importlib.import_module(module.name), extraglobs=dict(torch=torch)
        )
        assert not results.failed, module.name
        num_examples += results.attempted
    assert num_examples > 30


# Their blocks that begin with ```python run one after the other; those with ```py are only shown.
EXECUTED = (
    'README.md', 'docs/concepts/averaging_models.md', 'docs/concepts/estimators.md',
    'docs/coming_from/netcal.md', 'docs/coming_from/scikit_learn.md',
    'docs/coming_from/torchmetrics.md', 'docs/faq.md', 'docs/howto/as_a_gate.md',
    'docs/howto/compare_runs.md', 'docs/howto/match_other_tools.md', 'docs/howto/measure.md',
    'docs/howto/two_classes.md', 'docs/start/torch_models.md',
)  # fmt: skip


@pytest.mark.parametrize('page', EXECUTED)
def test_page_python_blocks_run_one_after_the_other(page, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    scope = {}
    if torch.__version__ < '2.7' and 'manual_seed' in TEXTS[page]:
        pytest.skip('needs PyTorch 2.7, whose random numbers it prints')
    printed = ''
    printed_lines = []
    for _, language, block in FENCE.findall(TEXTS[page]):
        if language == 'text':
            check_shown_output(block, printed)
        elif language == 'python' and not is_config(block):
            exec(block, scope)
            printed = capsys.readouterr().out
            printed_lines += printed.splitlines()
    assert scope
    claimed = re.search(r'^prints (.+) and (.+) %\.', TEXTS[page], re.MULTILINE)
    if claimed:
        printed_values = [line.split()[1] for line in printed_lines]
        assert printed_values == [*claimed[1].split(', '), claimed[2]]


def check_shown_output(shown, printed):
    """Check that a page shows what its code prints, but for the last digits of numbers.

    White space does not count, and neither does what follows a line of an ellipsis. Another
    processor trains another network: a cross-fitted ECE of 3.83 ± 0.91 was 2.90 there.
    """
    start, ellipsis, _ = shown.partition('…')
    number = re.compile(r'\d+\.\d+(?:e-\d+)?')
    expected = number.sub('#', start).split()
    actual = number.sub('#', printed).split()
    if ellipsis:
        actual = actual[: len(expected)]
    assert actual == expected
    for text, other in zip(number.findall(start), number.findall(printed), strict=False):
        assert float(other) == pytest.approx(float(text), rel=0.3, abs=0.3), (text, other)


@pytest.mark.parametrize('page', TEXTS)
def test_page_imports_of_mmcalib_exist(page):
    for block in blocks(page, 'python', 'py'):
        for line in re.findall(r'^ *from mmcalib\S* import [^(\n]+$', block, re.MULTILINE):
            exec(line.strip(), {})


def test_quote_results_check_finds_pages_current():
    """If it fails, run ``python tools/maintenance/quote_results.py``."""
    run_in_process('maintenance/quote_results.py', '--check')


def test_quote_results_wrong_number_is_refused_and_mended(tmp_path):
    page = tmp_path / 'page.md'
    wrong = re.sub(r'(: CE -->.*?)\d+\.\d+ ± \d+\.\d+', r'\g<1>1.00 ± 9.99', TEXTS['README.md'])
    assert '1.00 ± 9.99' in wrong
    page.write_text(wrong)
    run_in_process('maintenance/quote_results.py', page, '--check', code=1)
    run_in_process('maintenance/quote_results.py', page)
    assert page.read_text() == TEXTS['README.md']


def test_quote_results_names_the_version_of_each_row(tmp_path):
    page = tmp_path / 'page.md'
    source = '<!-- file: {} --> 1.00 |'
    rows = [f'| {source.format(label)}' for label in ('new', 'old', 'older')]
    page.write_text('\n'.join(['| ECE |', '|---|', *rows, '', '<!-- versions -->', '?']))
    namespace = runpy.run_path(str(ROOT / 'tools/maintenance/quote_results.py'))

    def run(version):
        return {'version': version, 'metrics': {'calibration/ECE': 2.0}}

    labelled = {'new': '0.10.0', 'old': '0.9.0', 'older': '0.9.0'}
    rows = [{'label': label, 'runs': [run(version)]} for label, version in labelled.items()]
    quoted = namespace['quote_page'](page.read_text(), {'file': [{'rows': rows}]})
    assert quoted.endswith('Measured with 0.10.0 (new) and 0.9.0 (the others).')


def test_figure_ages_counts_changes_since_a_figure_was_drawn(tmp_path):
    def git(*arguments):
        author = ('-c', 'user.name=a', '-c', 'user.email=a@b.c')
        subprocess.run(['git', *author, *arguments], cwd=tmp_path, check=True)

    def commit(path, text):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
        git('add', '.')
        git('commit', '-q', '-m', 'Change')

    tool = tmp_path / 'tools/maintenance/figure_ages.py'

    def figure_ages(*arguments):
        return subprocess.check_output([sys.executable, tool, *arguments], text=True)

    git('init', '-q')
    tool.parent.mkdir(parents=True)
    tool.write_text((ROOT / 'tools/maintenance/figure_ages.py').read_text())
    commit('docs/figures/drawn.json', '{}')
    commit('docs/figures/old.png', 'a picture')
    commit('docs/figures/new.png', 'a picture')
    commit('docs/figures/by_hand.jpg', 'a picture')
    figure_ages('--drawn', 'old.png')
    commit('mmcalib/losses/my_loss.py', 'a change')
    commit('README.md', 'no change of the code')
    figure_ages('--drawn', 'new.png')
    ages = dict(re.findall(r'^(\S+)\s+(.+)$', figure_ages(), re.MULTILINE))
    assert ages['old.png'].endswith('1 changes since')
    assert ages['new.png'].endswith('as it is now')
    assert 'unknown' in ages['by_hand.jpg']


def test_figure_ages_knows_what_drew_each_figure():
    drawn = json.loads((ROOT / 'docs/figures/drawn.json').read_text())
    figures = [
        path.name for suffix in ('png', 'jpg') for path in ROOT.glob(f'docs/figures/*.{suffix}')
    ]
    assert sorted(drawn) == sorted(figures)


def test_contributing_names_what_exists():
    """Files are below the root or have this last name, other names are those of the code."""
    folders = ('mmcalib', 'tests', 'tools', 'docs/_ext', 'configs')
    paths = [path for folder in folders for path in (ROOT / folder).rglob('*.py')]
    words = set(re.findall(r'\w+', ' '.join(path.read_text('utf-8') for path in paths)))
    missing = []
    for name in INLINE.findall(
        re.sub(r'```.*?```', '', (ROOT / 'CONTRIBUTING.md').read_text(), flags=re.S)
    ):
        if name in {'mmcalib/losses/my_loss.py', '../ce/', 'toctree', *READERS_FILES}:
            continue
        if re.fullmatch(r'[\w./]+\.py|[\w./]+/', name):
            exists = (ROOT / name).exists() or any(f'/{name}' in path.as_posix() for path in paths)
        else:
            exists = not name.isidentifier() or name in words
        if not exists:
            missing.append(name)
    assert not missing


# Readers who follow the steps of CONTRIBUTING.md write this file.
READERS_FILES = {'configs/my/digits.py'}
TOOL = re.compile(
    r'(?:^| |\./)(?:tools/(?P<path>[\w/]+\.(py|sh))|mmcalib (?P<name>[a-z-]+))(?= |$)'
)
INLINE = re.compile(r'(?<!`)`([^`\n]+)`(?!`)')


def command_lines(page):
    """Yield each line of a page that may hold commands, and whether these are complete."""
    for block in blocks(page, 'bash', 'console'):
        for line in block.replace('\\\n', ' ').splitlines():
            yield line, True
    for line in INLINE.findall(TEXTS[page]):
        yield line, False


def commands():
    """Yield the tool, the arguments, and whether it is complete, of each command on a page."""
    for page in TEXTS:
        for line, complete in command_lines(page):
            for part in re.split(r' && | \|\|? |; | > ', line.partition(' #')[0]):
                tools = [*TOOL.finditer(part.removeprefix('$ '))]
                if tools:
                    tool = tools[-1]  # A launcher may stand before it.
                    path = tool['path'] or f'{tool["name"].replace("-", "_")}.py'
                    yield path, shlex.split(tool.string[tool.end() :]), complete


def with_subparsers(parser):
    """Return a parser and its subparsers."""
    parsers = [parser]
    for action in parser._actions:
        if isinstance(action, _SubParsersAction):
            parsers += action.choices.values()
    return parsers


def check_command(path, arguments, *, complete):
    """Parse a command, and raise an AssertionError that says what is wrong with it."""
    assert (ROOT / 'tools' / path).is_file(), path
    if path.startswith('dist_'):  # The number of processes stands behind the files.
        path = path[5:-3] + '.py'
        num_files = 1 if path == 'train.py' else 2
        del arguments[num_files : num_files + 1]
    elif path.endswith('.sh'):
        return
    parsers = with_subparsers(parser_of(f'tools/{path}'))
    options = {word.split('=')[0] for word in arguments if re.match('--[a-z]', word)}
    known = {option for parser in parsers for option in parser._option_string_actions}
    assert options <= known, (path, options - known)
    if not complete or re.search(r'[…{$]', ' '.join(arguments)):
        return
    for parser in parsers:
        parser.error = partial(_refuse, path)
    with contextlib.suppress(SystemExit):
        parsers[0].parse_args(arguments)
    for file in {*arguments} - READERS_FILES:
        assert not file.startswith('configs/') or (ROOT / file).exists() or '*' in file, file


def _refuse(path, message):
    # A name in capitals stands for a number of the reader's.
    assert re.search(r"invalid \w+ value: '[A-Z_]+'", message), (path, message)
    sys.exit()


def test_commands_on_pages_parse():
    tools = set()
    for path, arguments, complete in commands():
        # A text in a line may begin with the name of the package and be no command.
        if complete or (ROOT / 'tools' / path).is_file():
            check_command(path, arguments, complete=complete)
            tools.add(path)
    assert {'train.py', 'test.py', 'calibrate.py', 'report.py', 'dist_train.sh'} <= tools


@pytest.mark.parametrize('arguments', [['config.py', '--ressume'], []])
def test_check_command_wrong_arguments_raises(arguments):
    with pytest.raises(AssertionError):
        check_command('train.py', arguments, complete=True)


def test_command_lines_text_has_each_option_and_help():
    """If it fails, run ``python docs/_ext/command_lines_text.py``.

    White space does not count, because Python versions wrap a help in other ways.
    """
    text = (ROOT / 'docs/reference/command_lines.txt').read_text('utf-8')
    text_by_tool = {part.split()[0]: ''.join(part.split()) for part in text.split('== ')[1:]}
    assert len(text_by_tool) == 12
    for tool, written in text_by_tool.items():
        for parser in with_subparsers(parser_of(tool)):
            for action in parser._actions:
                help_text = parser._get_formatter()._expand_help(action) if action.help else ''
                for words in (*action.option_strings, help_text):
                    assert ''.join(words.split()) in written, (tool, words)


CONFIGS = [
    pytest.param(block, id=f'{page.removeprefix("docs/")}-{number}')
    for page in TEXTS
    for number, block in enumerate(filter(is_config, blocks(page)))
    if not block.startswith('dict')
]
SEGMENTATION = re.compile('IoUMetric|Seg|mIoU|confidence_map|EncoderDecoder|LabelUntrained')


@pytest.mark.parametrize('block', CONFIGS)
def test_page_config_builds_and_its_losses_have_gradients(block, tmp_path, monkeypatch):
    torch.manual_seed(0)
    for folder in ('configs', 'docs'):
        (tmp_path / folder).symlink_to(ROOT / folder)
    modules = re.findall(r"'(my_\w+)'", block)  # Another block of the page writes them.
    for name in modules:
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
    for hook in (*(cfg.get('custom_hooks') or ()), cfg.default_hooks.get('checkpoint')):
        HOOKS.build(hook)
    if 'evaluations' in block:
        cfg.work_dir = str(tmp_path)
        use_evaluation(cfg, 'paper')
    if modules:  # Their losses and metrics are not registered here.
        return
    for evaluator in (cfg.val_evaluator, cfg.test_evaluator):
        Evaluator(evaluator)
    for key in {'head', 'decode_head', 'auxiliary_head'} & {*cfg.model}:
        check_gradients(MODELS.build(cfg.model[key]))


def check_gradients(head):
    """Check that each loss of mmcalib in a head has a finite gradient that is not zero."""
    for loss in head.modules():
        if isinstance(loss, CalibrationLoss | CombinedLoss):
            logits = torch.randn(2, head.num_classes, 4, 4, requires_grad=True)
            loss(logits, torch.randint(head.num_classes, (2, 4, 4))).backward()
            assert logits.grad.isfinite().all() and logits.grad.abs().sum() > 0


@pytest.fixture
def write_files(tmp_path, monkeypatch):
    """Return a function that writes the blocks of a page which begin with the name of a file."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)

    def write(page):
        for block in blocks(page):
            if name := re.match(r'# ([\w.]+\.py)\n', block):
                (tmp_path / name[1]).write_text(block, encoding='utf-8')

    return write


@pytest.mark.parametrize('name', ['own_classifier', 'own_segmentor'])
def test_own_config_page_trains_and_measures(write_files, name):
    write_files('docs/howto/own_config.md')
    runpy.run_path('make_data.py')
    run_in_process('train.py', f'{name}.py', '--limit', 2)
    (results,) = Path.cwd().rglob('results.json')
    metrics = json.loads(results.read_text())['metrics']
    assert {'calibration/ECE', 'calibration/AECE'} <= metrics.keys()


def test_own_loss_page_loss_equals_formula(write_files):
    page = 'docs/howto/own_loss_or_metric.md'
    write_files(page)
    import my_losses

    logits = torch.randn(6, 10, dtype=torch.float64)
    labels = torch.arange(6)
    cross_entropy = -logits.log_softmax(dim=1)[range(6), labels]
    expected = (cross_entropy + 2 * (1 - (-cross_entropy).exp())).mean()
    assert torch.isclose(my_losses.PolyLoss(epsilon=2.0)(logits, labels), expected)
    exec(blocks(page)[-1], {})


def test_own_metric_page_counts_confident_errors(write_files):
    write_files('docs/howto/own_loss_or_metric.md')
    import my_metrics

    scores = torch.tensor([[0.95, 0.05], [0.95, 0.05], [0.6, 0.4], [0.3, 0.7]])
    labels = torch.tensor([[0], [1], [1], [1]])
    samples = [
        dict(pred_score=score, gt_label=label) for score, label in zip(scores, labels, strict=True)
    ]
    metric = my_metrics.ConfidentErrors(threshold=0.9)
    metric.process({}, samples)
    assert metric.evaluate(size=4) == {'confident/errors': 25.0}


def sections(page):
    """Return the text below each heading of the second level, by the type that it begins with."""
    _, *texts = re.split(r'^## .+$', TEXTS[f'docs/reference/{page}.md'], flags=re.MULTILINE)
    text_by_type = {}
    for text in texts:
        if name := re.match(r'\s*`([\w-]+)` · ', text):
            text_by_type[name[1]] = text
    return text_by_type


def table_rows(page, start):
    """Return the cells of the rows of all tables whose heading starts so."""
    tables = re.findall(
        rf'^\| {start}.*\n.*\n((?:\|.*\n)+)', TEXTS[f'docs/reference/{page}.md'], re.M
    )
    lines = ''.join(tables).splitlines()
    return [[cell.strip(' |') for cell in re.split(r' \|(?= |$)', line)] for line in lines]


def example(section):
    """Return the first block of Python of a section."""
    return re.search(r'```python\n(.*?)```', section, re.DOTALL)[1]


def defaults(function, excluded=()):
    """Return the defaults of the named parameters of a function, but for those excluded."""
    parameters = inspect.signature(function).parameters.values()
    return {
        parameter.name: parameter.default
        for parameter in parameters
        if parameter.kind is not parameter.VAR_KEYWORD and parameter.name not in excluded
    }


LOSSES = {name for name in dir(losses) if name.endswith('Loss')} - {'CalibrationLoss', 'BatchLoss'}


def test_losses_page_has_each_loss_with_its_defaults():
    text_by_type = sections('losses')
    assert text_by_type.keys() >= LOSSES
    rows = {row[1].strip('`'): row for row in table_rows('losses', 'loss')}
    assert rows.keys() >= LOSSES
    torch.manual_seed(0)
    logits = torch.randn(2, 10, 4, 4)
    labels = torch.randint(10, (2, 4, 4))
    common = inspect.signature(CalibrationLoss).parameters
    for name in LOSSES:
        scope = {}
        exec(example(text_by_type[name]), scope)
        if name != 'CombinedLoss':
            options = defaults(getattr(losses, name), common)
            if 'num_classes' in options:
                options['num_classes'] = 10
            assert scope['loss'] == dict(type=name, **options)
        loss = MODELS.build(scope['loss'])
        assert loss(logits, labels).isfinite()
        if rows[name][2] == '✓':
            assert loss(logits, logits.softmax(dim=1)).isfinite(), name
        else:
            with pytest.raises(ValueError, match='not probabilities'):
                loss(logits, logits.softmax(dim=1))
    expected = eval(blocks('docs/reference/losses.md')[0])
    assert expected == defaults(CalibrationLoss, ['loss_name'])


def test_scalings_page_has_each_method_with_its_defaults(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text_by_method = sections('scalings')
    assert list(text_by_method) == list(SCALERS)
    rows = table_rows('scalings', 'method')
    assert [re.search(r'`([\w-]+)`', row[0])[1] for row in rows] == list(SCALERS)
    for (_, _, keeps_class, folds, classes, _), scaler in zip(rows, SCALERS.values(), strict=True):
        assert (keeps_class == '✓') == scaler.keeps_argmax, scaler
        assert (folds == '✓') == scaler.affine, scaler
        assert (classes == 'two') == (scaler.heads == ('sigmoid',)), scaler
    scope = {}
    for block in blocks('docs/reference/scalings.md'):
        exec(block, scope)
    assert (tmp_path / 'ets.json').is_file()
    for name, scaler in SCALERS.items():
        code = example(text_by_method[name])
        assert scaler.__name__ in code
        for option, default in defaults(scaler).items():
            assert f'{option}={default!r}' in code


BEST = {'less': ['0'], 'greater': ['100', '0.25'], None: ['0', '1', '–']}


def test_metrics_page_has_each_metric_with_its_value():
    page = 'docs/reference/metrics.md'
    scope = {}
    (data,) = (block for block in blocks(page) if 'import numpy' in block)
    exec(data, scope)
    rows = {row[0].strip('`'): row for row in table_rows('metrics', 'key')}
    names = {re.sub(r'_0\.\d+$', '', key) for key in rows}
    assert names == {*definitions.METRICS, *definitions.WITH_LEVEL}
    for key, (_, _, _, unit_and_best, value, extra, _) in rows.items():
        expected = measure(scope['probs'], scope['labels'], key)
        assert float(value) == pytest.approx(expected, abs=0.00051), key
        unit, best = unit_and_best.split(', ')
        expected_unit, better = unit_and_better(key)
        assert unit.removesuffix(' points') == (expected_unit or 'none'), key
        assert best in BEST[better], key
        assert (extra == 'interval') == bool(definitions.find_metric(key).bin_formula), key


def test_metrics_page_has_each_option_and_class():
    page = 'docs/reference/metrics.md'
    (options,) = (block for block in blocks(page) if block.startswith('dict('))
    expected = defaults(CalibrationMetric) | defaults(BaseMetric)
    assert eval(options) == dict(type='CalibrationMetric', **expected)
    protocols = [row[0] for row in table_rows('metrics', '`protocol`')]
    assert protocols == [f'`{name!r}`' for name in PROTOCOLS]
    for name, metric in METRICS.module_dict.items():
        if 'mmcalib.openmmlab.metrics' in metric.__module__:
            assert re.search(rf"[`']{name}[`']", TEXTS[page]), name
