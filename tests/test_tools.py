"""The commands, run as a user runs them."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from commands import ROOT, call, call_here
from forked import call_forked

from mmcalib.metrics import CalibrationStatistics
from mmcalib.record import paths_of
from mmcalib.work_dir import locked

CONFIG = str(ROOT / 'configs/mbls/digits.py')
VOC = str(ROOT / 'configs/mbls/deeplabv3_r50_voc.py')
CIFAR10 = str(ROOT / 'configs/mbls/resnet50_cifar10.py')
SHORT = [
    '--cfg-options', 'train_cfg.val_interval=1', 'train_dataloader.dataset.indices=128',
    'optim_wrapper.paramwise_cfg.bias_lr_mult=1.0',
]  # fmt: skip


def results(folder):
    return json.loads((Path(folder) / 'results.json').read_text())


def log_of(folder):
    (file,) = Path(folder).glob('*/*.log')
    return file.read_text()


@pytest.fixture(scope='module')
def trained(tmp_path_factory):
    """A short training on one process: its folder and its log."""
    folder = tmp_path_factory.mktemp('trained')
    log = call('train.py', CONFIG, *SHORT, 'train_cfg.max_epochs=2', cwd=folder)
    work_dir = folder / 'work_dirs/mbls/digits'
    shutil.copy(*paths_of(results(work_dir)['model']), folder / 'best.pth')  # resuming replaces it
    return work_dir, log


def test_training_ends_with_a_test_of_the_best_checkpoint(trained):
    folder, _ = trained
    (best,) = folder.glob('best_accuracy_top1_epoch_*.pth')
    last = [line for line in log_of(folder).splitlines() if 'Epoch(test)' in line][-1]
    assert 'accuracy/top1' in last
    assert paths_of(results(folder)['model']) == [str(best)]
    metrics = results(folder)['metrics']
    assert f'calibration/ECE: {metrics["calibration/ECE"]:.4f}' in last
    assert f'calibration/AECE: {metrics["calibration/AECE"]:.4f}' in last
    statistics = CalibrationStatistics.load(folder / 'calibration.npz')
    assert statistics.metrics['ECE'] == pytest.approx(metrics['calibration/ECE'])
    assert statistics.num_predictions == len(statistics.image_bins) == 797


def test_the_screen_starts_with_ten_lines_and_ends_with_an_answer(trained):
    folder, log = trained
    lines = log.strip().splitlines()
    start = lines[: next(index for index, line in enumerate(lines) if 'Epoch(train)' in line)]
    assert len(start) <= 10, start
    for text in ('Samples: train on 128, validate on 200, test on 797',):
        assert any(line.endswith(text) for line in start)
    kept = log_of(folder)
    pages = ('System environment:', 'Config:', 'Hooks will be executed', 'paramwise_options -- ')
    assert not any(page in log for page in pages)
    assert all(page in kept for page in pages)
    (end,) = [number for number, line in enumerate(lines) if line.startswith('mbls/digits; MbLS')]
    table = lines[end:]
    (gap,) = [line for line in table if line.startswith('gap ')]
    assert '; interval ' in gap
    files = [line.split()[-1] for line in table if line.startswith(('check', 'results', 'diagram'))]
    assert len(files) == 3 and all(Path(path).is_file() for path in files)
    assert 'mean confidence' in kept


def test_the_screen_repeats_nothing_that_the_log_file_has(trained):
    folder, screen = trained
    kept = log_of(folder)
    assert kept.count('Saving checkpoint at') == 2 and 'Saving checkpoint at' not in screen
    assert screen.count('Epoch(val)') == 2


def test_resuming_goes_on_where_it_stopped(trained, tmp_path):
    folder, _ = trained
    log = call_forked(
        'train.py', CONFIG, '--work-dir', folder, '--no-test', '--resume', *SHORT,
        'train_cfg.max_epochs=3', cwd=tmp_path,
    )  # fmt: skip
    assert 'resumed epoch: 2, iter: 4' in log
    assert 'Epoch(train) [3]' in log and 'Epoch(train) [2]' not in log
    assert 'mean confidence' not in log  # of a test


def test_one_and_two_processes_test_alike(trained, tmp_path, free_port):
    checkpoint = trained[0].parents[2] / 'best.pth'
    call('test.py', CONFIG, checkpoint, '--work-dir', tmp_path / 'one', cwd=tmp_path)
    call_forked(
        'test.py', CONFIG, checkpoint, '--work-dir', tmp_path / 'two',
        cwd=tmp_path, ranks=2, port=free_port,
    )  # fmt: skip
    one, two = (results(tmp_path / name)['metrics'] for name in ('one', 'two'))
    assert one == pytest.approx(two, abs=1e-5)


def test_the_script_that_tests_calls_what_the_one_that_trains_does(tmp_path):
    """Which runs for real below."""
    (tmp_path / 'python').write_text('#!/bin/sh\nprintf "%s\\n" "$PYTHONPATH" "$@"\n')
    (tmp_path / 'python').chmod(0o755)

    def command(script, *arguments, **machines):
        path = f'{tmp_path}{os.pathsep}{os.environ["PATH"]}'
        called = subprocess.run(
            ['bash', ROOT / 'tools' / script, *arguments], capture_output=True, text=True,
            check=True, env=os.environ | {'PATH': path, 'PORT': '1234'} | machines,
        )  # fmt: skip
        return called.stdout.splitlines()

    for machines in ({}, dict(NNODES='2', NODE_RANK='1', MASTER_ADDR='there')):
        train = command('dist_train.sh', 'a config.py', '3', '--seed', '1', **machines)
        test = command(
            'dist_test.sh', 'a config.py', 'a.pth', '3', 'b.pth', '--out', 'o', **machines
        )
        *common, tool, config, launcher, name = train[:-2]
        assert '--nproc_per_node=3' in common and '--master_port=1234' in common
        assert (Path(tool).name, train[-2:]) == ('train.py', ['--seed', '1'])
        tool = str(Path(tool).with_name('test.py'))
        assert test == [*common, tool, config, 'a.pth', launcher, name, 'b.pth', '--out', 'o']
        calibrate = command(
            'dist_calibrate.sh', 'a config.py', 'a.pth', '3', '--out', 'o', **machines
        )
        tool = str(Path(tool).with_name('calibrate.py'))
        assert calibrate == [*common, tool, config, 'a.pth', launcher, name, '--out', 'o']


BY_EPOCH = """
_base_ = 'mmcalib::mbls/digits.py'
train_cfg = dict(max_epochs=2, val_interval=2)
train_dataloader = dict(dataset=dict(indices=256))
test_dataloader = dict(dataset=dict(split='val'))
"""

# mmengine saves before it validates, and only the best checkpoint again after that.
BY_ITERATION = """
_base_ = 'mmcalib::mbls/digit_scenes.py'
train_cfg = dict(type='IterBasedTrainLoop', max_iters=4, val_interval=4, _delete_=True)
param_scheduler = None
default_hooks = dict(
    checkpoint=dict(by_epoch=False, save_best=None, rule=None),
    confidence_map=dict(interval=0, worst=0),
)
train_dataloader = dict(sampler=dict(type='InfiniteSampler'))
val_dataloader = dict(dataset=dict(indices=11))
test_dataloader = dict(dataset=dict(split='val', indices=11))
"""


def dist_train(*arguments, cwd, port):
    """Train on two processes by the script."""
    config, *others = arguments
    return call('dist_train.sh', config, 2, *others, cwd=cwd, PORT=port)


def forked_train(*arguments, cwd, port):
    """Train on two processes as the script does, in half of its time."""
    return call_forked('train.py', *arguments, cwd=cwd, ranks=2, port=port)


@pytest.mark.parametrize(
    ('train', 'config', 'last', 'batch_size'),
    [(forked_train, BY_EPOCH, 'epoch_2', 64), (dist_train, BY_ITERATION, 'iter_4', 4)],
)
def test_two_processes_validate_the_model_that_is_saved(
    train, config, last, batch_size, tmp_path, free_port
):
    (tmp_path / 'mine.py').write_text(config)
    log = train('mine.py', '--auto-scale-lr', '--no-test', cwd=tmp_path, port=free_port)
    assert 'Scaling the original LR by 2.0' in log
    assert 'each process validates its own statistics' not in log
    folder = tmp_path / 'work_dirs/mine'
    (scalars,) = folder.glob('*/vis_data/scalars.json')
    validated = json.loads(scalars.read_text().splitlines()[-1])
    checkpoint = folder / f'{last}.pth'
    call_forked('test.py', 'mine.py', checkpoint, cwd=tmp_path, ranks=2, port=free_port)
    (tested,) = folder.glob(f'{last}-*')  # a folder of this model
    metrics = results(tested)['metrics']
    assert {key: validated[key] for key in metrics} == metrics
    assert {'calibration/ECE', 'calibration/AECE'} <= metrics.keys()
    (member,) = results(tested)['model']['members']
    assert member['training']['train_dataloader']['batch_size'] == batch_size
    assert member['training']['processes'] == 2


@pytest.mark.parametrize('name', ['digits', 'digit_scenes'])
def test_a_config_outside_that_inherits_ours_and_selects_by_ece(name, tmp_path):
    (tmp_path / 'mine.py').write_text(
        f"_base_ = 'mmcalib::mbls/{name}.py'\n"
        "default_hooks = dict(checkpoint=dict(save_best='calibration/ECE', rule='less'))\n"
        'train_cfg = dict(max_epochs=2, val_interval=1)\n'
        'train_dataloader = dict(dataset=dict(indices=16))\n'
        'val_dataloader = dict(dataset=dict(indices=8))\n'
        'test_dataloader = dict(dataset=dict(indices=3))\n'
    )
    call_forked('train.py', 'mine.py', cwd=tmp_path)
    assert 'calibration/ECE' in results(tmp_path / 'work_dirs/mine')['metrics']
    assert list((tmp_path / 'work_dirs/mine').glob('best_calibration_ECE_epoch_*.pth'))


MMPRETRAIN = """
_base_ = 'mmpretrain::resnet/resnet18_8xb16_cifar10.py'
custom_imports = dict(imports=['mmcalib'])
model = dict(head=dict(loss=dict(type='MarginLabelSmoothingLoss', margin=6.0, _delete_=True)))
val_evaluator = [dict(type='Accuracy'), dict(type='CalibrationMetric')]
test_evaluator = val_evaluator
data = dict(type='CustomDataset', data_root='data', with_label=True, _delete_=True, pipeline=[
    dict(type='LoadImageFromFile'), dict(type='PackInputs')])
train_dataloader = dict(dataset=data, num_workers=0, persistent_workers=False)
val_dataloader = dict(dataset=data, num_workers=0, persistent_workers=False)
test_dataloader = dict(dataset=data, num_workers=0, persistent_workers=False)
train_cfg = dict(max_epochs=1)
"""

MMSEG = """
_base_ = 'mmseg::fcn/fcn_r50-d8_4xb4-20k_voc12aug-512x512.py'
custom_imports = dict(imports=['mmcalib'])
loss = dict(type='MarginLabelSmoothingLoss', margin=10.0, _delete_=True)
small = dict(num_classes=11, channels=16, loss_decode=loss)
model = dict(pretrained=None, data_preprocessor=dict(size=(32, 32)), backbone=dict(depth=18),
             decode_head=dict(in_channels=512, **small),
             auxiliary_head=dict(in_channels=256, **small))
val_evaluator = [dict(type='IoUMetric', iou_metrics=['mIoU']), dict(type='CalibrationMetric')]
test_evaluator = val_evaluator
data = dict(type='DigitScenes', split='val', _delete_=True, indices=3, pipeline=[
    dict(type='ToRGB'), dict(type='PackSegInputs')])
train_dataloader = dict(dataset=data, num_workers=0, persistent_workers=False, batch_size=2)
val_dataloader = dict(dataset=data, num_workers=0, persistent_workers=False)
test_dataloader = dict(dataset=data, num_workers=0, persistent_workers=False)
train_cfg = dict(max_iters=2, val_interval=2)
"""

TO_RGB = """
from mmcv.transforms import BaseTransform
from mmengine.registry import TRANSFORMS

@TRANSFORMS.register_module()
class ToRGB(BaseTransform):
    def transform(self, results):
        results['img'] = results['img'][..., None].repeat(3, axis=-1)
        return results
"""


def test_a_config_outside_that_inherits_mmpretrain(tmp_path):
    image = pytest.importorskip('PIL.Image')
    for label in range(10):
        (tmp_path / 'data' / str(label)).mkdir(parents=True)
        for number in range(2):
            image.new('RGB', (32, 32), (25 * label, 99 * number, 0)).save(
                tmp_path / 'data' / str(label) / f'{number}.png'
            )
    (tmp_path / 'mine.py').write_text(MMPRETRAIN)
    log = call_forked('train.py', 'mine.py', cwd=tmp_path)
    assert 'calibration/ECE' in results(tmp_path / 'work_dirs/mine')['metrics']
    assert 'testing the last weights' in log.lower()

    # mmpretrain's own tool trains the same file.
    mmpretrain = pytest.importorskip('mmpretrain')
    tool = Path(mmpretrain.__file__).parent / '.mim/tools/train.py'
    log = call(os.path.relpath(tool, ROOT / 'tools'), 'mine.py', '--work-dir', 'own', cwd=tmp_path)
    assert 'calibration/AECE' in log.strip().splitlines()[-1]


def test_a_config_outside_that_inherits_mmseg(tmp_path, monkeypatch):
    (tmp_path / 'to_rgb.py').write_text(TO_RGB)
    (tmp_path / 'mine.py').write_text(MMSEG.replace("['mmcalib']", "['mmcalib', 'to_rgb']"))
    monkeypatch.syspath_prepend(tmp_path)  # which a forked process has as well
    call_forked('train.py', 'mine.py', cwd=tmp_path)
    written = results(tmp_path / 'work_dirs/mine')
    (member,) = written['model']['members']
    assert member['loss']['type'] == 'MarginLabelSmoothingLoss'
    assert {'mIoU', 'calibration/ECE'} <= written['metrics'].keys()


@pytest.mark.parametrize(
    ('arguments', 'message'),
    [
        (['train.py', CONFIG, '--amp'], '--amp needs a CUDA device'),
        (['train.py', 'nowhere.py'], "there is no config 'nowhere.py'"),
        (['train.py', CONFIG, '--resume', 'none.pth'], "there is no checkpoint 'none.pth'"),
        (['test.py', CONFIG, 'none.pth'], "there is no checkpoint 'none.pth'"),
        (['calibrate.py', CONFIG, 'none.pth', '--out', 'o.pth'], "no checkpoint 'none.pth'"),
        (['predict.py', CONFIG, 'none.pth', str(ROOT), '--out', 'o'], 'reads no image files'),
        (['test_robustness.py', CONFIG, 'none.pth', '--severities', '1'], "no checkpoint 'none"),
        (['sweep.py', CONFIG, '--parameter', 'margn', '--values', '1'], 'margn'),
        (['report.py', 'nowhere'], 'nowhere'),
        (['visualize.py', 'reliability', 'nowhere', '--out', 'a.png'], 'nowhere'),
        (['train.py', VOC], 'VOCtrainval_11-May-2012.tar'),
        (['train.py', CIFAR10], 'cifar-10-python.tar.gz'),
    ],
)
def test_what_cannot_run_is_said_before_it_starts(
    arguments, message, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.cuda, 'is_available', lambda: False)
    with pytest.raises(SystemExit) as end:
        call_here(*arguments, monkeypatch=monkeypatch)
    assert end.value.code == 2
    said = capsys.readouterr().err
    assert message in said and 'error: ' in said and 'Traceback' not in said
    assert not (tmp_path / 'work_dirs').exists()


@pytest.mark.parametrize(
    ('end', 'status', 'reported'), [('sys.exit(2)', 2, False), ('raise KeyError', 1, True)]
)
def test_several_processes_add_nothing_to_what_a_tool_refuses(
    end, status, reported, tmp_path, free_port
):
    """But all to what it did not foresee. The second process waits to be ended."""
    (tmp_path / 'tool.py').write_text(
        'import os, sys, time\n'
        "if os.environ['RANK'] == '1':\n"
        '    time.sleep(60)\n'
        "print('tool.py: error: no such config', file=sys.stderr)\n"
        f'{end}\n'
    )
    command = [sys.executable, str(ROOT / 'tools/torchrun.py'), '--nproc_per_node=2']
    command += [f'--master_port={free_port}', 'tool.py']
    result = subprocess.run(
        command, cwd=tmp_path, env=os.environ | {'OMP_NUM_THREADS': '1'}, capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    assert result.returncode == status
    assert result.stderr.startswith('tool.py: error: no such config\n')
    assert ('ChildFailedError' in result.stderr) is reported
    assert (len(result.stderr.splitlines()) > 1) is reported


def test_a_test_in_a_work_dir_in_use_is_refused(trained, tmp_path):
    best = trained[0].parents[2] / 'best.pth'
    with (
        locked(tmp_path / 'W'),
        pytest.raises(AssertionError, match='W is in use: a training, a test or a sweep'),
    ):
        call_forked('test.py', CONFIG, best, '--work-dir', 'W', cwd=tmp_path)
    assert not (tmp_path / 'W/results.json').exists()


def test_reports_leave_out_what_was_set_aside(trained, tmp_path):
    for folder in (tmp_path, tmp_path / 'earlier_1'):
        folder.mkdir(exist_ok=True)
        for file in ('results.json', 'calibration.npz'):
            shutil.copy(trained[0] / file, folder)
    log = call_forked('report.py', tmp_path, '--format', 'csv', cwd=tmp_path)
    assert log.count(',MbLS m=8 α=0.1,') == 1
