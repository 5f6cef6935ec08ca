"""Every tool, run as a user runs it, on the data that come with the package and configs outside."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from commands import ROOT, run_in_subprocess
from forked import ForkedCommand, run_forked
from full_disk import limited_file_size
from images import write_folders, write_voc
from PIL import Image
from shifted import needs_extra

from mmcalib.metrics import CalibrationStatistics
from mmcalib.reports.reported_runs import read_runs
from mmcalib.runs.record import checkpoint_paths, view_count

# The scenes also measure distances from boundaries, which visualize.py boundary draws.
CONFIGS = {
    'digits': ("_base_ = 'mmcalib::mbls/digits.py'\n", 'PackInputs', 8),
    'scenes': (
        "_base_ = 'mmcalib::mbls/digit_scenes.py'\n"
        "metric = dict(type='CalibrationMetric', metrics=['ECE', 'AECE'], per_distance=True)\n"
        "test_evaluator = [dict(type='IoUMetric', iou_metrics=['mIoU']), metric]\n",
        'PackSegInputs',
        40,
    ),
}
FEW = """
train_cfg = dict(max_epochs=2, val_interval=1)
train_dataloader = dict(dataset=dict(indices=16))
val_dataloader = dict(dataset=dict(indices=10))
test_dataloader = dict(dataset=dict(indices=10))
default_hooks = dict(checkpoint=dict(save_best='calibration/ECE', rule='less'))
optim_wrapper = dict(paramwise_cfg=dict(bias_lr_mult=1.0))
"""
COARSE = ['--dpi', '50']  # Coarse figures are drawn faster.
IMAGE_FILES = """
_base_ = 'mine.py'
test_dataloader = dict(dataset=dict(pipeline=[
    dict(type='LoadImageFromFile', color_type='grayscale'),
    dict(type='Normalize', mean=[95.625], std=[63.75], to_rgb=False),
    dict(type='{}')]))
"""


def read_results(folder):
    return json.loads((Path(folder) / 'results.json').read_text())


@pytest.fixture(scope='module', params=list(CONFIGS))
def trained(request, tmp_path_factory):
    """A folder with a config, its trained model, and image files."""
    folder = tmp_path_factory.mktemp(request.param)
    config, pack, size = CONFIGS[request.param]
    (folder / 'mine.py').write_text(config + FEW)
    (folder / 'files.py').write_text(IMAGE_FILES.format(pack))
    (folder / 'images').mkdir()
    image = np.random.default_rng(0).integers(0, 256, (size, size), dtype=np.uint8)
    Image.fromarray(image).save(folder / 'images/a.png')
    # A process of its own takes 14 s more.
    train = run_in_subprocess if request.config.getoption('--real-toolboxes') else run_forked
    (folder / 'screen').write_text(train('train.py', 'mine.py', cwd=folder))
    shutil.copy(next(folder.glob('work_dirs/mine/best_*.pth')), folder / 'best.pth')
    return folder


@pytest.fixture
def run_folder(trained):
    return trained


def is_segmentation():
    return Path('work_dirs/mine/confidence_maps.npz').exists()


def read_log(folder):
    """Return the only log file of a training."""
    (path,) = folder.glob('*/*.log')
    return path.read_text()


def test_train_tests_best_checkpoint(trained):
    folder = trained / 'work_dirs/mine'
    record = read_results(folder)
    (best,) = folder.glob('best_calibration_ECE_epoch_*.pth')
    assert checkpoint_paths(record['model']) == [str(best)]
    *_, test_line = [line for line in read_log(folder).splitlines() if 'Epoch(test)' in line]
    for key in ('calibration/ECE', 'calibration/AECE'):
        assert f'{key}: {record["metrics"][key]:.4f}' in test_line
    statistics = CalibrationStatistics.load(folder / 'calibration.npz')
    assert statistics.metrics['ECE'] == pytest.approx(record['metrics']['calibration/ECE'])
    assert len(statistics.image_bins) == 10


@pytest.mark.parametrize(
    'text',
    [
        'System environment:',
        'Config:',
        'Hooks will be executed',
        'paramwise_options -- ',
        'Saving checkpoint at',
    ],
)
def test_train_long_texts_only_in_log_file(text, trained):
    assert text in read_log(trained / 'work_dirs/mine')
    assert text not in (trained / 'screen').read_text()


def test_train_screen_begins_and_ends_in_few_lines(trained):
    screen = (trained / 'screen').read_text()
    before_training = screen.partition('Epoch(train)')[0].splitlines()
    assert len(before_training) <= 11
    assert any('train on 16, validate on 10, test on 10' in line for line in before_training)
    assert screen.count('Epoch(val)') == 2
    summary = screen.partition('\nmine; MbLS')[2].splitlines()
    assert any(line.startswith('gap ') and 'interval' in line for line in summary)
    file_lines = [line for line in summary if line.startswith(('results', 'diagram'))]
    assert len(file_lines) == 2
    for line in file_lines:
        assert (trained / line.split()[-1]).is_file()
    assert summary[-1] == 'Files: work_dirs/mine'


def test_test_and_calibrate_leave_files(run):
    output = run('test.py', 'mine.py', 'best.pth', '--work-dir', 'tested')
    assert output.endswith('\nFiles: tested\n')
    assert read_results('work_dirs/mine')['metrics'] == read_results('tested')['metrics']
    # On all images, so short a training is not worth a calibration, which would be refused.
    smoke = ['--limit', 10]
    run('calibrate.py', 'mine.py', 'best.pth', '--out', 'calibrated.pth', '--test', *smoke)
    run('test.py', 'mine.py', 'calibrated.pth', '--work-dir', 'calibrated')
    run('calibrate.py', 'mine.py', 'best.pth', '--tta', '--out', 'temperature.json', *smoke)
    run('test.py', 'mine.py', 'best.pth', '--tta', '--temperature', 'temperature.json')
    (folder,) = Path('work_dirs/mine').glob('best_tta_temperature-*')
    assert view_count(read_results(folder)['model']) == (6 if is_segmentation() else 2)


def test_predict_folder_writes_row_of_image(run):
    run('predict.py', 'files.py', 'best.pth', 'images', '--out', 'predicted')
    assert len(Path('predicted/predictions.csv').read_text().splitlines()) == 2


def test_test_objects_counts_classes_and_objects(run):
    run('test.py', 'mine.py', 'best.pth', '--objects', '--work-dir', 'counted')
    statistics = CalibrationStatistics.load('counted/calibration.npz')
    assert statistics.class_bins is not None
    assert (statistics.objects is not None) == is_segmentation()


def test_sweep_leaves_summary(run, monkeypatch):
    monkeypatch.setattr('mmcalib.commands.sweep.jobs.subprocess.Popen', ForkedCommand)
    output = run('sweep.py', 'mine.py', '--param', 'margin=8')
    assert 'chosen' in output
    *_, file_line = output.splitlines()
    folder = Path(file_line.removeprefix('Files: ').partition(',')[0]).parent
    for suffix, num_bytes in (('json', 500), ('md', 100), ('png', 3000), ('pdf', 3000)):
        assert (folder / f'sweep.{suffix}').stat().st_size > num_bytes


@needs_extra
def test_test_robustness_and_its_figures(run):
    severities = [0, 1, 2, 3, 4, 5]
    num_corruptions = 5
    if is_segmentation():
        severities = [0, 3]
        num_corruptions = 15
    run(
        *('test_robustness.py', 'mine.py', 'best.pth', '--limit', 1, '--work-dir', 'shifted'),
        *('--severities', *severities),
    )
    (path,) = Path('shifted').glob('*/clean/results.json')
    (model,) = read_runs(path)
    assert len(model.tests) == 1 + num_corruptions * (len(severities) - 1)
    for figure in ('boxes', 'lines'):
        out = f'{figure}.png'
        run('visualize.py', 'robustness', 'shifted', '--figure', figure, '--out', out, *COARSE)
        assert Path(out).stat().st_size > 3000


def test_report_lists_run(run):
    assert 'MbLS m=8 α=0.1' in run('report.py', 'work_dirs')
    for kind in ('txt', 'md', 'csv', 'json', 'html'):
        run('report.py', 'work_dirs', '--out', f'table.{kind}')
        assert 'MbLS m=8' in Path(f'table.{kind}').read_text(encoding='utf-8')


def test_visualize_draws_each_kind(run):
    Path('images.py').write_text(
        "_base_ = 'mine.py'\n"
        'default_hooks = dict(reliability_diagram=None, confidence_map=None)\n'
        "test_evaluator = [dict(type='ImageScoreMetric', out_file='images.csv')]\n"
    )
    run('test.py', 'images.py', 'best.pth', '--work-dir', 'images')
    for kind in ('reliability', 'risk', 'boundary', 'maps', 'worst', 'images'):
        source = 'images.csv' if kind == 'images' else 'work_dirs/mine'
        draw = ['visualize.py', kind, source, '--out', f'{kind}.png', *COARSE]
        needs_maps = kind in ('boundary', 'maps', 'worst')
        if needs_maps and not is_segmentation():
            run(*draw, code=2)
        else:
            run(*draw)
            assert Path(f'{kind}.png').stat().st_size > 3000


@pytest.mark.parametrize(
    ('tool', 'arguments', 'out', 'num_bytes'),
    [
        ('calibrate.py', ['mine.py', 'best.pth', '--tta', '--overwrite', '--out'], 'a.json', 50000),
        ('test.py', ['mine.py', 'best.pth', '--work-dir'], 'full/results.json', 50000),
        ('export.py', ['mine.py', 'best.pth', '--overwrite', '--out'], 'a.onnx', 50000),
        ('report.py', ['work_dirs', '--html'], 'a.html', 500),
        ('visualize.py', ['reliability', 'work_dirs/mine', *COARSE, '--out'], 'a.png', 500),
    ],
)
def test_full_disk_keeps_old_files(tool, arguments, out, num_bytes, trained, run):
    old_file = trained / out
    old_file.parent.mkdir(exist_ok=True)
    old_file.write_text('old')
    with limited_file_size(num_bytes):
        *_, error = run(tool, *arguments, Path(out).parts[0], code=2).splitlines()
    assert error.startswith(f'{tool}: error: ')
    assert out in error
    assert 'File too large' in error
    assert old_file.read_text() == 'old'


BY_EPOCH = """
_base_ = 'mmcalib::mbls/digits.py'
train_cfg = dict(max_epochs=2, val_interval=2)
train_dataloader = dict(dataset=dict(indices=256))
test_dataloader = dict(dataset=dict(split='val'))
"""

# mmengine saves before it validates. After that it only saves the best checkpoint again.
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


@pytest.mark.parametrize(
    ('script', 'config', 'last', 'batch_size'),
    [(False, BY_EPOCH, 'epoch_2', 64), (True, BY_ITERATION, 'iter_4', 4)],
)
def test_train_two_processes_validate_saved_model(
    script, config, last, batch_size, tmp_path, free_port
):
    (tmp_path / 'mine.py').write_text(config)
    arguments = ['--auto-scale-lr', '--no-test']
    arguments += ['--cfg-options', 'randomness.deterministic=False']
    if script:
        log = run_in_subprocess(
            'dist_train.sh', 'mine.py', 2, *arguments, cwd=tmp_path, PORT=free_port
        )
    else:  # It takes half of the time of the script.
        log = run_forked('train.py', 'mine.py', *arguments, cwd=tmp_path, ranks=2, port=free_port)
    assert 'Scaling the original LR by 2.0' in log
    assert 'each process validates its own statistics' not in log
    warnings = [line for line in log.splitlines() if ' warning: ' in line]
    assert warnings and len(set(warnings)) == len(warnings)
    folder = tmp_path / 'work_dirs/mine'
    (scalars,) = folder.glob('*/vis_data/scalars.json')
    validated = json.loads(scalars.read_text().splitlines()[-1])
    checkpoint = folder / f'{last}.pth'
    run_forked('test.py', 'mine.py', checkpoint, cwd=tmp_path, ranks=2, port=free_port)
    (tested,) = folder.glob(f'{last}-*')
    record = read_results(tested)
    metrics = record['metrics']
    assert {key: validated[key] for key in metrics} == metrics
    assert {'calibration/ECE', 'calibration/AECE'} <= metrics.keys()
    (member,) = record['model']['members']
    assert member['training']['train_dataloader']['batch_size'] == batch_size
    assert member['training']['processes'] == 2


def test_train_interrupted_processes_say_how_to_go_on(tmp_path, free_port):
    """Ctrl-C goes to all processes of a terminal, and torchrun repeats it."""
    log = tmp_path / 'log'
    path = f'{Path(sys.executable).parent}:{os.environ["PATH"]}'
    with log.open('wb') as out:
        process = subprocess.Popen(
            ['bash', ROOT / 'tools/dist_train.sh', 'mmcalib::ce/digits.py', '2'],
            cwd=tmp_path, stdout=out, stderr=out, start_new_session=True,
            env=os.environ | dict(PATH=path, PORT=free_port, OMP_NUM_THREADS='1'),
            # A shell that runs the tests in the background has them ignore it.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )  # fmt: skip
    while 'Epoch(train)' not in log.read_text():
        assert process.poll() is None, log.read_text()
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(60) != 0
    output = log.read_text()
    assert 'Traceback' not in output
    assert 'signal' not in output.rpartition('Epoch(train)')[2]
    assert output.count('Stopped') == 1
    assert '--resume' in output.splitlines()[-1]


MMPRETRAIN = """
_base_ = 'mmpretrain::resnet/resnet18_8xb16_cifar10.py'
custom_imports = dict(imports=['mmcalib'])
model = dict(head=dict(loss=dict(type='MarginLabelSmoothingLoss', margin=6.0, _delete_=True)))
val_evaluator = [dict(type='Accuracy'), dict(type='CalibrationMetric')]
data = dict(type='CustomDataset', data_root='data', with_label=True, _delete_=True, pipeline=[
    dict(type='LoadImageFromFile'), dict(type='PackInputs')])
train_cfg = dict(max_epochs=1)
"""
MMSEG = """
_base_ = 'mmseg::fcn/fcn_r50-d8_4xb4-20k_voc12aug-512x512.py'
custom_imports = dict(imports=['mmcalib'])
loss = dict(type='MarginLabelSmoothingLoss', margin=10.0, _delete_=True)
small = dict(channels=16, loss_decode=loss)
model = dict(pretrained=None, data_preprocessor=dict(size=(60, 80)), backbone=dict(depth=18),
             decode_head=dict(in_channels=512, **small),
             auxiliary_head=dict(in_channels=256, **small))
val_evaluator = [dict(type='IoUMetric', iou_metrics=['mIoU']), dict(type='CalibrationMetric')]
data = dict(type='PascalVOCDataset', data_root='data', _delete_=True,
            data_prefix=dict(img_path='JPEGImages', seg_map_path='SegmentationClass'),
            ann_file='ImageSets/Segmentation/train.txt', pipeline=[
    dict(type='LoadImageFromFile'), dict(type='LoadAnnotations'),
    dict(type='PackSegInputs')])
train_cfg = dict(max_iters=2, val_interval=2)
"""
LOADERS = """
test_evaluator = val_evaluator
train_dataloader = dict(dataset=data, num_workers=0, persistent_workers=False, batch_size=4)
val_dataloader = dict(dataset=data, num_workers=0, persistent_workers=False)
test_dataloader = dict(dataset=data, num_workers=0, persistent_workers=False)
"""


@pytest.mark.parametrize(
    ('config', 'write', 'quality'),
    [(MMPRETRAIN, write_folders, 'accuracy/top1'), (MMSEG, write_voc, 'mIoU')],
    ids=['mmpretrain', 'mmseg'],
)
def test_train_config_of_toolbox_elsewhere(config, write, quality, tmp_path):
    write(tmp_path / 'data')
    (tmp_path / 'mine.py').write_text(config + LOADERS)
    log = run_forked('train.py', 'mine.py', cwd=tmp_path)
    record = read_results(tmp_path / 'work_dirs/mine')
    assert {quality, 'calibration/ECE'} <= record['metrics'].keys()
    (member,) = record['model']['members']
    assert member['loss']['type'] == 'MarginLabelSmoothingLoss'
    if config is MMPRETRAIN:  # The toolbox's own tool trains the same file.
        assert 'testing the last weights' in log.lower()
        mmpretrain = pytest.importorskip('mmpretrain')
        tools = os.path.relpath(Path(mmpretrain.__file__).parent / '.mim/tools', ROOT / 'tools')
        log = run_forked(f'{tools}/train.py', 'mine.py', '--work-dir', 'own', cwd=tmp_path)
        assert 'calibration/AECE' in log.strip().splitlines()[-1]


@pytest.mark.parametrize(
    ('end', 'status', 'has_report'), [('sys.exit(2)', 2, False), ('raise KeyError', 1, True)]
)
def test_torchrun_refusal_is_one_line_and_bug_has_report(
    end, status, has_report, tmp_path, free_port
):
    """The second process waits until it is ended."""
    (tmp_path / 'tool.py').write_text(
        'import os, sys, time\n'
        "if os.environ['RANK'] == '1':\n"
        '    time.sleep(60)\n'
        "print('tool.py: error: no such config', file=sys.stderr)\n"
        f'{end}\n'
    )
    command = [sys.executable, str(ROOT / 'tools/torchrun.py'), '--nproc_per_node=2']
    result = subprocess.run(
        [*command, f'--master_port={free_port}', 'tool.py'], cwd=tmp_path, capture_output=True,
        env=os.environ | {'OMP_NUM_THREADS': '1'}, text=True, check=False,
    )  # fmt: skip
    assert result.returncode == status
    assert result.stderr.startswith('tool.py: error: no such config\n')
    assert ('ChildFailedError' in result.stderr) is has_report
    assert (len(result.stderr.splitlines()) > 1) is has_report
