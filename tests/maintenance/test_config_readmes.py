"""The READMEs and metafiles of the configs say what there is and what was measured."""

import runpy

import mmengine
import pytest
from commands import ROOT, call_here
from config_readmes import Experiment, in_words, with_models, with_results

FOLDERS = sorted(path.parent for path in ROOT.glob('configs/*/metafile.yml'))
TOOL = runpy.run_path(str(ROOT / 'tools/maintenance/write_config_readmes.py'))
MBLS = dict(type='MarginLabelSmoothingLoss', margin=6.0, alpha=0.1)
EXPERIMENTS = [
    Experiment('resnet50_cifar10', 'mmpretrain', MBLS),
    Experiment('resnet50_cifar10_m0', 'mmpretrain', MBLS | dict(margin=0.0, alpha=0.05)),
]
PAGE = '# Title\n\n| |\n|-|\n| stale |\n\nThe end.\n'
METAFILE = 'Collections:\n- Name: MbLS\n  Paper: {Title: T}\nModels:\n- Name: stale\n'


def measured(*labels):
    """Of a seed each, on CIFAR-10 with ResNet-50."""
    runs = [{'metrics': {'accuracy/top1': 95.125, 'calibration/ECE': 1.5, 'calibration/AECE': 2.0}}]
    return {'resnet50_cifar10': {label: {'label': label, 'runs': runs} for label in labels}}


@pytest.fixture(scope='module')
def all_measured():
    return TOOL['read_measured'](ROOT / 'docs/results')


@pytest.mark.parametrize('folder', FOLDERS, ids=lambda folder: folder.name)
def test_pages_are_up_to_date(folder, all_measured):
    """If not: python tools/maintenance/write_config_readmes.py."""
    for path, text in TOOL['pages_of'](folder, all_measured).items():
        assert path.read_text(encoding='utf-8') == text
    readme = (folder / 'README.md').read_text(encoding='utf-8')
    for config in folder.glob('*.py'):
        assert config.name in readme
    names = [model['Name'] for model in mmengine.load(folder / 'metafile.yml')['Models']]
    assert names == sorted(names)


def test_every_folder_has_both():
    with_configs = {path.parent for path in ROOT.glob('configs/[!_]*/*.py')}
    assert with_configs == set(FOLDERS) == {p.parent for p in ROOT.glob('configs/*/README.md')}


def test_a_row_has_what_was_measured_and_what_was_published():
    page = with_results(PAGE, EXPERIMENTS, measured('MbLS m=6 α=0.1'))
    assert page.startswith('# Title\n\n| config |') and page.endswith('|\n\nThe end.\n')
    first, second = page.split('\n')[4:6]
    assert first == (
        '| [`resnet50_cifar10.py`](resnet50_cifar10.py) | CIFAR-10 | ResNet-50 | MbLS m=6 α=0.1 '
        '<!-- resnet50_cifar10: MbLS m=6 α=0.1 --> | 95.12 | 1.50 | 2.00 | 95.25 | 1.16 | 3.18 |'
    )
    assert second.endswith('| MbLS m=0 α=0.05 | – | – | – | 94.76 | 3.72 | 4.29 |')


def test_what_was_measured_with_other_parameters_has_a_row_without_published_figures():
    page = with_results(PAGE, EXPERIMENTS, measured('MbLS m=4 α=0.1', 'LS α=0.05'))
    rows = page.split('\n')[4:7]
    assert [row.count('| 95.12 |') for row in rows] == [0, 1, 0]
    assert rows[1].startswith('|  | CIFAR-10 | ResNet-50 | MbLS m=4 α=0.1 <!--')
    assert rows[1].endswith('| – | – | – |') and 'LS α=0.05' not in page


def test_a_page_without_a_table_stays():
    assert with_results('# Title\n', EXPERIMENTS, {}) == '# Title\n'


def test_a_metafile_has_the_metrics_that_were_measured():
    text = with_models(METAFILE, 'mbls', EXPERIMENTS, measured('MbLS m=6 α=0.1'))
    assert 'stale' not in text and 'Title: T' in text
    first, second = (line for line in text.split('- Name: mbls_')[1:])
    assert 'Top 1 Accuracy: 95.12' in first and ' ECE: 1.5\n' in first and 'AECE: 2.0' in first
    assert 'Config: configs/mbls/resnet50_cifar10.py\n' in first
    assert 'Task: Image Classification\n    Dataset: CIFAR-10\n' in first
    assert 'Metrics' not in second


def test_what_is_not_known_is_said():
    with pytest.raises(ValueError, match='resnet7_mnist: add its data and network to'):
        in_words(Experiment('resnet7_mnist', 'mmpretrain', MBLS))


def test_the_tool_brings_pages_in_line(tmp_path, monkeypatch, capsys):
    folder = tmp_path / 'configs/mbls'
    folder.mkdir(parents=True)
    (folder / 'README.md').write_text(PAGE)
    (folder / 'metafile.yml').write_text(METAFILE)
    digits = ROOT / 'configs/mbls/digits.py'
    (folder / 'digits.py').write_text(f"_base_ = '{digits}'\n")
    call = ['maintenance/write_config_readmes.py', '--configs', tmp_path / 'configs']
    for printed in (f'{folder / "README.md"}\n{folder / "metafile.yml"}\n', ''):
        call_here(*call, monkeypatch=monkeypatch)
        assert capsys.readouterr().out == printed
    assert '(digits.py)' in (folder / 'README.md').read_text()
    (folder / 'mystery.py').write_text(f"_base_ = '{digits}'\n")
    with pytest.raises(SystemExit):
        call_here(*call, monkeypatch=monkeypatch)
    assert 'mystery: add its data' in capsys.readouterr().err
