"""Help, mistyped arguments, and the console command, before torch is imported."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from commands import ROOT, call_here
from mmengine.registry import MODELS

from mmcalib import __version__
from mmcalib.checks import UserError, check_choice
from mmcalib.cli import names
from mmcalib.cli.arguments import SPLITS
from mmcalib.cli.files import find_checkpoint, find_config, split_members
from mmcalib.metrics import CalibrationMetric, protocols
from mmcalib.posthoc import SCALERS, affine, draw
from mmcalib.reports import figures
from mmcalib.runs.checks import building
from mmcalib.runs.config import load_config, use_evaluation
from mmcalib.tasks.sweep.sweep import option_keys
from mmcalib.transforms import corruption_names

TOOLS = sorted(path.name for path in (ROOT / 'tools').glob('*.py') if path.stem != 'torchrun')
HELP = """
import runpy, sys
sys.argv = [{tool!r}, '--help']
try:
    runpy.run_path({tool!r}, run_name='__main__')
finally:
    heavy = {{'torch', 'mmengine', 'mmcv', 'matplotlib'}} & sys.modules.keys()
    print('imported:', *sorted(heavy))
"""
CE = str(ROOT / 'configs/ce/digits.py')


def run_python(*arguments, cwd=None, path=ROOT):
    environment = os.environ | {'PYTHONPATH': str(path)}
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=cwd, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.parametrize('tool', TOOLS)
def test_a_help_has_an_example_and_imports_nothing_heavy(tool, tmp_path):
    result = run_python('-c', HELP.format(tool=str(ROOT / 'tools' / tool)), cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    text, _, imported = result.stdout.partition('imported:')
    assert not imported.strip()
    assert re.search(rf'\nexamples?:\n  python tools/{tool} \S', text)


def test_defaults_and_evaluations_are_in_the_help(monkeypatch, capsys):
    for tool, expected in (
        ('calibrate.py', '(default: 200000)'),
        ('test_robustness.py', 'configs have paper, regions, mmseg, unseen'),
    ):
        monkeypatch.setenv('COLUMNS', '300')
        with pytest.raises(SystemExit):
            call_here(tool, '--help', monkeypatch=monkeypatch)
        assert expected in capsys.readouterr().out


def test_the_names_of_the_helps_are_those_of_the_package():
    assert tuple(SCALERS) == names.METHODS
    assert names.CRITERIA == affine.CRITERIA
    assert names.NUM_SAMPLES == draw.NUM_SAMPLES
    assert tuple(sorted(protocols.PROTOCOLS)) == names.PROTOCOLS
    assert (*figures.SHIFT_FIGURES,) == names.ROBUSTNESS_FIGURES
    found = {
        name
        for path in (ROOT / 'configs/_base_/datasets').glob('*.py')
        for name in load_config(path).get('evaluations', ())
    }
    assert set(names.EVALUATIONS) == found


@pytest.mark.parametrize(
    ('tool', 'arguments', 'meant'),
    [
        ('calibrate.py', ['c.py', 'a.pth', '--out', 'b', '--method', 'temprature'], 'temperature'),
        ('train.py', ['c.py', '--wrok-dir', 'w'], '--work-dir'),
        ('test.py', ['c.py', 'a.pth', '--calibraton'], '--calibration'),
        ('visualize.py', ['reliabilty', 'w', '--out', 'a.png'], 'reliability'),
    ],
)
def test_a_mistyped_argument_has_its_nearest_in_the_error(
    tool, arguments, meant, monkeypatch, capsys
):
    with pytest.raises(SystemExit) as end:
        call_here(tool, *arguments, monkeypatch=monkeypatch)
    assert end.value.code == 2
    assert capsys.readouterr().err.endswith(f'; did you mean {meant}?\n')


def test_a_name_like_no_other_has_no_suggestion(monkeypatch, capsys):
    with pytest.raises(SystemExit):
        call_here('train.py', 'c.py', '--zzz', monkeypatch=monkeypatch)
    assert 'did you mean' not in capsys.readouterr().err


def test_configs_beside_and_shipped_ones_are_suggested(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / 'mine.py').touch()
    for text, meant in (
        ('mien.py', 'mine.py'),
        ('mbls/digit.py', 'mmcalib::mbls/digits.py'),
        ('configs/mbsl/digits.py', 'mmcalib::mbls/digits.py'),
        ('mmcalib::mbls/digit.py', 'mmcalib::mbls/digits.py'),
    ):
        with pytest.raises(UserError, match=f'there is no config .*mean {meant}\\?$'):
            find_config(text)
    with pytest.raises(UserError, match=r"no config 'z\.txt' in \S+$"):
        find_config('z.txt')
    monkeypatch.chdir(ROOT)
    with pytest.raises(UserError, match=r'mean configs/mbls/digits.py\?'):
        find_config('configs/mbsl/digits.py')


def test_a_shipped_config_is_read_by_its_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert load_config('mmcalib::mbls/digits.py').model.head.loss.margin == 8
    with pytest.raises(UserError, match="no package 'nowhere' with configs"):
        load_config('nowhere::a.py')


def test_a_work_dir_stands_for_its_best_checkpoint(tmp_path):
    folder = str(tmp_path)
    with pytest.raises(ValueError, match=r'has no checkpoint: name one, a \.pth file'):
        find_checkpoint(folder)
    (tmp_path / 'epoch_1.pth').touch()
    with pytest.raises(ValueError, match=r'has no best checkpoint: name one of \S+epoch_1.pth$'):
        find_checkpoint(folder)
    best = tmp_path / 'best_top1_epoch_1.pth'
    best.touch()
    assert split_members('c.py', [folder]) == [('c.py', str(best))]
    with pytest.raises(ValueError, match='named twice'):
        split_members('c.py', [folder, str(best)])
    (tmp_path / 'best_ECE_epoch_1.pth').touch()
    with pytest.raises(ValueError, match=r'several best checkpoints: name one of .*, .*, '):
        find_checkpoint(folder)


def test_checkpoints_beside_a_missing_one_are_named(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name in ('epoch_1.pth', 'best_top1_epoch_1.pth'):
        (tmp_path / name).touch()
    for given, end in (
        ('epoch_2.pth', 'did you mean epoch_1.pth?'),
        ('x.pth', 'there are best_top1_epoch_1.pth, epoch_1.pth'),
    ):
        with pytest.raises(SystemExit):
            call_here('test.py', CE, given, monkeypatch=monkeypatch)
        assert capsys.readouterr().err.endswith(f'; {end}\n')


@pytest.mark.parametrize(
    ('change', 'meant'),
    [
        ({'model.head.loss.type': 'MarginLabelSmothingLoss'}, 'MarginLabelSmoothingLoss'),
        ({'model.backbone.type': 'ResNet_CIFARR'}, 'ResNet_CIFAR'),
    ],
)
def test_an_unknown_type_has_its_nearest_in_the_error(change, meant):
    cfg = load_config(CE, change)
    with (
        pytest.raises(UserError, match=rf'there is no model of type=.*; did you mean {meant}\?'),
        building(''),
        MODELS.switch_scope_and_registry('mmpretrain') as registry,
    ):
        registry.build(cfg.model)


def test_a_training_with_an_unknown_loss_is_refused_with_the_nearest(tmp_path, monkeypatch, capsys):
    option = 'model.head.loss.type=MarginLabelSmothingLoss'
    with pytest.raises(SystemExit):
        call_here(
            'train.py', CE, '--work-dir', tmp_path, '--cfg-options', option, monkeypatch=monkeypatch
        )
    error = capsys.readouterr().err
    assert 'did you mean MarginLabelSmoothingLoss? A class of your own' in error


@pytest.mark.parametrize('error', [TypeError, ValueError])
@pytest.mark.parametrize(
    ('place', 'arguments'),
    [
        ('runs.train.configure', ['train.py', CE]),
        ('runs.test.prepare', ['test.py', CE, 'a.pth']),
        ('tasks.calibrate.calibrate.make_scaler', ['calibrate.py', CE, 'a.pth', '--out', 'c.pth']),
        ('tasks.sweep.sweep.parse_parameter', ['sweep.py', CE, '--param', 'margin=8']),
        ('tasks.robustness.robustness.prepare', ['test_robustness.py', CE, 'a.pth']),
        ('tasks.predict.predict.find_images', ['predict.py', CE, 'a.pth', 'a.png', '--out', 'p']),
        ('tasks.export.export_onnx.find_checkpoint', ['export.py', CE, 'a.pth', '--out', 'm.onnx']),
        ('reports.runs.find_runs', ['report.py', 'w']),
        ('reports.figures.draw', ['visualize.py', 'reliability', '--out', 'a.png', 'w']),
        ('models.efficientnet_lite.find_weights', ['convert_efficientnet_lite.py']),
    ],
)
def test_an_error_of_ours_keeps_its_traceback(error, place, arguments, tmp_path, monkeypatch):
    def fail(*_, **__):
        raise error('of ours')

    monkeypatch.setattr(f'mmcalib.{place}', fail)
    monkeypatch.setattr('mmcalib.reports.figures.load', lambda kind, run: None)
    monkeypatch.chdir(tmp_path)
    torch.save({}, 'a.pth')
    with pytest.raises(error, match='of ours'):
        call_here(*arguments, monkeypatch=monkeypatch)


def test_what_a_user_mistakes_in_numbers_and_formats_is_said_in_a_line(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    torch.save({}, 'a.pth')
    Path('sweep.json').write_text('{')
    Path('bad.py').write_text("raise ValueError('by the config')")
    Path('base.py').write_text("_base_ = 'no/such.py'")
    Path('text.pth').write_text('no checkpoint')
    for error, tool, *arguments in (
        ('--limit must be', 'train.py', CE, '--limit', '0'),
        ('--limit must be', 'test.py', CE, 'a.pth', '--limit', '-1'),
        ('--mc-dropout must be', 'test.py', CE, 'a.pth', '--mc-dropout', '-1'),
        ('--samples must be', 'calibrate.py', CE, 'a.pth', '--out', 'c.pth', '--samples', '0'),
        ('--jobs must be', 'sweep.py', CE, '--param', 'margin=8', '--jobs', '0'),
        ('--severities must be', 'test_robustness.py', CE, 'a.pth', '--severities', '-1'),
        ('probability must be', 'predict.py', CE, 'a.pth', 'a.png', '--out', 'p', '--prob', '2'),
        ('--tolerance must be', 'export.py', CE, 'a.pth', '--out', 'm.onnx', '--toler', '-1'),
        ('--dpi must be', 'visualize.py', 'reliability', 'w', '--out', 'a.png', '--dpi', '0'),
        ('sweep.json cannot be read', 'sweep.py', '--plot', '.', '--out', 'a.png'),
        ('by the config', 'train.py', 'bad.py'),
        ('base.py cannot be read', 'train.py', 'base.py'),
        ("'text.pth' is no config", 'test.py', 'text.pth', CE),
        ('is no readable checkpoint: it is another kind', 'test.py', CE, 'text.pth'),
    ):
        with pytest.raises(SystemExit) as end:
            call_here(tool, *arguments, monkeypatch=monkeypatch)
        said = capsys.readouterr().err.splitlines()[-1]
        assert end.value.code == 2 and error in said, said


def test_names_in_a_config_have_their_nearest_in_the_error():
    with pytest.raises(ValueError, match=r"got 'EEC'; did you mean ECE\?"):
        CalibrationMetric(metrics=['EEC'])
    with pytest.raises(ValueError, match=r"got 'poled'; did you mean pooled\?"):
        CalibrationMetric(protocol='poled')
    with pytest.raises(ValueError, match=r'did you mean gaussian_noise\?'):
        corruption_names.corruptions_of(['gausian_noise'])
    with pytest.raises(ValueError, match=r'did you mean unseen\?'):
        use_evaluation(load_config(CE), 'unsen')
    with pytest.raises(ValueError, match=r"got 'zzz'$"):
        check_choice('split', 'zzz', SPLITS)


@pytest.mark.parametrize(
    ('config', 'parameter', 'remedy'),
    [
        (str(ROOT / 'configs/mbls/digits.py'), 'margn', r'; did you mean margin\?$'),
        (CE, 'zzz', 'use_soft$'),
    ],
)
def test_a_sweep_names_the_parameters_that_a_loss_has(config, parameter, remedy):
    with pytest.raises(ValueError, match=remedy):
        option_keys(load_config(config), parameter)


def test_the_console_command_lists_all_tools_and_runs_them(tmp_path):
    result = run_python('-m', 'mmcalib', '--help', cwd=tmp_path)
    for line in (
        'train                     Train a model, then test its best checkpoint.',
        'robustness                Test checkpoints on corrupted images',
        'calibrate                 Calibrate a trained model',
    ):
        assert f'\n  {line}' in result.stdout
    assert len(re.findall(r'^  \w', result.stdout, re.M)) == len(TOOLS)
    result = run_python('-m', 'mmcalib', 'report', '--help', cwd=tmp_path)
    assert result.stdout.startswith('usage: mmcalib report')
    assert '\n  mmcalib report work_dirs\n' in result.stdout
    result = run_python('-m', 'mmcalib', 'test_robustness', '--help', cwd=tmp_path)
    assert result.stdout.startswith('usage: mmcalib robustness')
    result = run_python('-m', 'mmcalib', '--version', cwd=tmp_path)
    assert result.stdout == f'mmcalib {__version__}\n'
    result = run_python('-m', 'mmcalib', 'trian', cwd=tmp_path)
    assert result.returncode == 2 and 'did you mean train?' in result.stderr
    result = run_python('-m', 'mmcalib', 'report', 'nowhere', cwd=tmp_path)
    assert result.returncode == 2 and result.stderr.startswith('mmcalib report: error: ')
