"""Trainings by tools/train.py: resumed ones, smoke runs, and the records that they leave."""

import json
import os
import re
import shlex
import shutil
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from commands import ROOT
from forked import run_forked
from images import save

from mmcalib.reports.reported_runs import find_runs
from mmcalib.runs.record import Record, checkpoint_paths


def read_metrics(folder):
    return Record.read(Path(folder, 'results.json')).metrics


def read_calibration(path):
    return torch.load(path, weights_only=False)['meta']['calibration']


# With the number 0 it is never killed.
KILLED = """
_base_ = 'mmcalib::ce/digits.py'
custom_imports = dict(imports=['mmcalib', 'kills'])
custom_hooks = [dict(type='KillBeforeSave', number={number})]
"""
FEW = 'test_dataloader = dict(dataset=dict(indices=50))'
LOOPS = {
    'epochs': f"""{FEW}
train_cfg = dict(max_epochs=4, val_interval=1)
train_dataloader = dict(dataset=dict(indices=128))
""",
    'iterations': f"""{FEW}
train_cfg = dict(_delete_=True, by_epoch=False, max_iters=12, val_interval=3)
train_dataloader = dict(dataset=dict(indices=128), sampler=dict(type='InfiniteSampler'))
default_hooks = dict(checkpoint=dict(by_epoch=False, interval=3))
log_processor = dict(by_epoch=False)
""",
}


@pytest.mark.parametrize(('loop', 'kill_before'), [('epochs', 9), ('iterations', 6)])
def test_train_killed_and_resumed_equals_uninterrupted(loop, kill_before, run, tmp_path):
    """A best checkpoint is there when it is killed, which the last checkpoint does not name yet."""
    Path('whole.py').write_text(KILLED.format(number=0) + LOOPS[loop])
    Path('killed.py').write_text(KILLED.format(number=kill_before) + LOOPS[loop])
    run('train.py', 'whole.py', '--work-dir', 'whole')
    (best,) = Path('whole').glob('best_*')

    with pytest.raises(AssertionError):
        run_forked('train.py', 'killed.py', '--work-dir', 'resumed', cwd=tmp_path)
    assert not Path('resumed/results.json').exists()
    # A kill between the write of the new best checkpoint and the removal of the former leaves this.
    Path('resumed', re.sub(r'\d+\.', '0.', best.name)).touch()
    Path('resumed/best_of_mine.pth').touch()
    run('train.py', 'whole.py', '--work-dir', 'resumed', '--resume')
    best_files = {path.name for path in Path('resumed').glob('best_*')}
    assert best_files == {best.name, 'best_of_mine.pth'}
    assert len(list(Path('resumed/earlier_1').iterdir())) == 1
    assert read_metrics('resumed') == read_metrics('whole')


@pytest.mark.parametrize(
    ('name', 'options', 'checkpoint'),
    [
        ('digits', ['--no-validate'], 'epoch_2.pth'),  # The last weights are tested.
        ('digit_scenes', [], 'best_*.pth'),
    ],
)
def test_train_with_ema_tests_averaged_weights(name, options, checkpoint, run, tmp_path):
    """The digits have mmpretrain's EMAHook, and the scenes that of mmengine."""
    Path('mine.py').write_text(
        f"_base_ = '{ROOT}/configs/ce/{name}.py'\n"
        "custom_hooks = [dict(type='EMAHook', momentum=0.05)]\n"
        'train_cfg = dict(max_epochs=2, val_interval=1)\n'
        'train_dataloader = dict(batch_size=8, dataset=dict(indices=32))\n'
        'val_dataloader = dict(dataset=dict(indices=60))\n'
        'test_dataloader = dict(dataset=dict(indices=20))\n'
    )
    run_forked('train.py', 'mine.py', '--work-dir', 'trained', *options, cwd=tmp_path)
    (path,) = Path('trained').glob(checkpoint)
    metrics = read_metrics('trained')
    run('test.py', 'mine.py', path, '--work-dir', 'tested')
    assert read_metrics('tested') == metrics
    run('calibrate.py', 'mine.py', path, '--out', 'out.pth', '--test')
    ece_before = read_calibration('out.pth')['tested']['before']['ECE']
    assert ece_before == pytest.approx(metrics['calibration/ECE'], abs=1e-4)


WITHOUT_VALUES = """
from mmengine.evaluator import BaseMetric
from mmengine.registry import METRICS

@METRICS.register_module(force=True)
class Written(BaseMetric):
    def process(self, data_batch, data_samples):
        self.results.append(1)

    def compute_metrics(self, results):
        return {}
"""


@pytest.mark.parametrize('evaluator', ['[]', "[dict(type='Written')]"])
def test_train_test_without_values_leaves_record(evaluator, run):
    """A metric of mmseg with `format_only`, for example, only writes predictions."""
    Path('written.py').write_text(WITHOUT_VALUES)
    Path('mine.py').write_text(
        "_base_ = 'mmcalib::mbls/digits.py'\n"
        "custom_imports = dict(imports=['mmcalib', 'written'])\n"
        f'test_evaluator = {evaluator}\n'
        'default_hooks = dict(reliability_diagram=None)\n'
        'train_cfg = dict(max_epochs=1, val_interval=1)\n'
        'train_dataloader = dict(dataset=dict(indices=16))\n'
        'test_dataloader = dict(dataset=dict(indices=5))\n'
    )
    output = run('train.py', 'mine.py', '--work-dir', 'trained')
    assert 'no values' in output
    assert 'Files: trained' in output
    assert read_metrics('trained') == {}
    (checkpoint,) = checkpoint_paths(Record.read('trained/results.json').model)
    assert 'no values' in run('test.py', 'mine.py', checkpoint, '--work-dir', 'tested')
    assert read_metrics('tested') == {}
    run(
        'test.py', 'mmcalib::mbls/digits.py', checkpoint, '--work-dir', 'measured',
        '--cfg-options', 'test_dataloader.dataset.indices=5',
    )  # fmt: skip
    for folders in (['measured', 'tested'], ['tested']):
        run('report.py', *folders, '--html', 'report.html')
        assert Path('report.html').is_file()


@pytest.mark.parametrize('save_best', ["'accuracy/top1'", 'None'])
def test_train_with_ema_validating_original_tests_original(save_best, run, tmp_path):
    """EMAHook saves the average as `state_dict`, also where it validates the original weights."""
    Path('mine.py').write_text(
        f"_base_ = '{ROOT}/configs/ce/digits.py'\n"
        "hook = dict(type='EMAHook', momentum=0.001, evaluate_on_ema=False, "
        'evaluate_on_origin=True)\n'
        'custom_hooks = [hook]\n'
        f'default_hooks = dict(checkpoint=dict(save_best={save_best}))\n'
        'train_cfg = dict(max_epochs=2, val_interval=2)\n'
        'train_dataloader = dict(batch_size=8, dataset=dict(indices=200))\n'
        'val_dataloader = dict(dataset=dict(indices=50))\n'
        "test_dataloader = dict(dataset=dict(split='val', indices=50))\n"
    )
    output = run_forked('train.py', 'mine.py', '--work-dir', 'trained', cwd=tmp_path)
    (scalars,) = Path('trained').glob('*/vis_data/scalars.json')
    validated = json.loads(scalars.read_text().splitlines()[-1])
    metrics = read_metrics('trained')
    assert validated['accuracy/top1'] > 30  # The average has 10.
    assert metrics == {key: validated[key] for key in metrics}
    assert 'evaluate_on_ema=False' in output
    if save_best == 'None':
        path = Path('trained/epoch_2.pth')
    else:
        (path,) = Path('trained').glob('best_*')
    run('test.py', 'mine.py', path, '--work-dir', 'tested')
    assert read_metrics('tested') == metrics
    run('calibrate.py', 'mine.py', path, '--out', 'out.pth')
    ece_before = read_calibration('out.pth')['fitted']['before']['ECE']
    assert ece_before == pytest.approx(metrics['calibration/ECE'], abs=1e-4)
    run('test.py', 'mine.py', 'out.pth', '--work-dir', 'calibrated')
    calibrated_metrics = read_metrics('calibrated')
    assert calibrated_metrics['accuracy/top1'] == metrics['accuracy/top1']
    assert calibrated_metrics['calibration/ECE'] != metrics['calibration/ECE']


def test_test_with_other_config_keeps_training_of_checkpoint(run, monkeypatch):
    options = [
        *('train_cfg.max_epochs=1', 'train_cfg.val_interval=1', 'randomness.seed=7'),
        *('train_dataloader.dataset.indices=16', 'val_dataloader.dataset.indices=20'),
        *('train_dataloader.dataset.noise=0.2', 'model.head.loss.margin=5'),
        'train_dataloader.batch_size=8',
    ]
    train = ['train.py', 'mmcalib::mbls/digits.py', '--work-dir', 'trained', '--split', 'val']
    with monkeypatch.context() as other_time_zone:
        other_time_zone.setenv('TZ', 'Etc/GMT-2')  # Two hours east.
        time.tzset()
        run(*train, '--cfg-options', *options)
    time.tzset()
    assert not Path('trained/results.json').exists()
    validated = Record.read('trained/results_val.json')
    (checkpoint,) = checkpoint_paths(validated.model)
    run(
        'test.py', 'mmcalib::ce/digits.py', checkpoint, '--work-dir', 'tested',
        '--cfg-options', 'test_dataloader.dataset.indices=30',
    )  # fmt: skip
    tested = Record.read('tested/results.json')
    content = validated.model['members'][0]['training']['selection']['on']['content_digest']
    assert content.startswith('20 samples, ')
    assert validated.evaluation == dict(
        content_digest=content,
        dataset=dict(type='Digits', split='val', samples=20), data_options=dict(indices=20),
        pipeline=[[dict(type='PackInputs')]], tta=False, limit=None, protocol='pooled',
        num_bins=15, ignore_index=255,
    )  # fmt: skip
    assert tested.evaluation['dataset'] == dict(type='Digits', split='test', samples=30)
    assert validated.date < tested.date
    assert tested.version
    assert validated.model['members'] == tested.model['members']
    (member,) = tested.model['members']
    assert member['seed'] == 7
    assert member['loss']['margin'] == 5
    assert member['epoch'] == 1
    assert member['finished']
    assert member['file'] == 'best_accuracy_top1_epoch_1.pth'
    assert member['training']['train_dataloader']['dataset']['noise'] == 0.2


def train_with_limit(run, name, evaluator):
    """Train and test on 11 images by a config that measures no calibration in the test.

    Returns:
        The work dir, its record, and the output.
    """
    Path('mine.py').write_text(
        f"_base_ = 'mmcalib::mbls/{name}.py'\n"
        f"test_evaluator = [dict(type='{evaluator}')]\n"
        'default_hooks = dict(reliability_diagram=None, confidence_map=None)\n'
    )
    output = run('train.py', 'mine.py', '--limit', 11)
    folder = 'work_dirs/mine/limit11'
    return folder, Record.read(f'{folder}/results.json'), output


@pytest.mark.parametrize(
    ('name', 'evaluator'), [('digits', 'Accuracy'), ('digit_scenes', 'IoUMetric')]
)
def test_train_with_limit_left_out_of_reports(name, evaluator, run):
    torch.set_num_threads(2)
    folder, record, output = train_with_limit(run, name, evaluator)
    assert torch.get_num_threads() == 1  # It is fastest for so small a network.
    assert record.evaluation['limit'] == 11
    assert record.evaluation['dataset']['samples'] == 11
    assert 'train on 11, validate on 11, test on 11; SMOKE RUN' in output
    (path,) = checkpoint_paths(record.model)
    assert f'tools/test.py mine.py {os.path.relpath(path)} --calibration' in output
    with pytest.raises(FileNotFoundError, match=f'smoke runs with --limit: {folder}'):
        find_runs(['.'])


def test_test_checkpoint_of_smoke_run_stays_one_on_all_images(run, tmp_path):
    """A config with a metric keeps it, and measures the calibration in addition."""
    _, record, _ = train_with_limit(run, 'digits', 'Accuracy')
    (path,) = checkpoint_paths(record.model)
    options = ['--calibration', '--objects', '--work-dir']
    output = run('test.py', 'mine.py', path, *options, 'added')
    assert 'the checkpoint of a SMOKE RUN' in output
    assert list(tmp_path.rglob('vis_image/reliability_diagram_test*'))
    added = Record.read('added/results.json')
    assert added.evaluation['dataset']['samples'] == 797
    assert len(added.strata['per_class']['calibration']['ECE']) == 10
    output = run('test.py', 'mmcalib::mbls/digits.py', path, *options, 'configured')
    metrics = read_metrics('configured')
    assert metrics == added.metrics
    assert 'calibration/ECE_low' in metrics
    (gap_line,) = [line for line in output.splitlines() if line.startswith('gap ')]
    low = metrics['calibration/gap_low']
    high = metrics['calibration/gap_high']
    assert f' {metrics["calibration/gap"]:+.2f} %' in gap_line
    assert f'{low:+.2f} to {high:+.2f} %' in gap_line
    if low > 0:
        assert 'over-confident' in gap_line
    elif high < 0:
        assert 'under-confident' in gap_line
    else:
        assert 'confident' not in gap_line


def test_test_on_training_data_warns(run):
    _, record, _ = train_with_limit(run, 'digits', 'Accuracy')
    (path,) = checkpoint_paths(record.model)
    test = ['test.py', 'mine.py', path, '--limit', 11, '--work-dir', 'tested', '--cfg-options']
    warning = 'The test data are the training data of the config'
    assert warning in run(*test, 'test_dataloader.dataset.split=train')
    assert warning not in run(*test, 'test_dataloader.dataset.split=val')


def test_train_without_best_checkpoint_names_last(run):
    """Most configs of the toolboxes keep no best checkpoint."""
    Path('mine.py').write_text(
        "_base_ = 'mmcalib::mbls/digits.py'\n"
        "test_evaluator = [dict(type='Accuracy')]\n"
        'default_hooks = dict(reliability_diagram=None, checkpoint=dict(save_best=None))\n'
        'train_cfg = dict(max_epochs=2, val_interval=2)\n'
        'train_dataloader = dict(dataset=dict(indices=16))\n'
        'test_dataloader = dict(dataset=dict(indices=50))\n'
    )
    output = run('train.py', 'mine.py', '--work-dir', 'my run')
    (line,) = [line for line in output.splitlines() if line.startswith('checkpoint')]
    assert Path(line.removeprefix('checkpoint').strip()).samefile('my run/epoch_2.pth')
    trained = Record.read('my run/results.json')
    assert [Path(path).name for path in checkpoint_paths(trained.model)] == ['epoch_2.pth']
    # The command that measures the calibration can be copied from the output.
    command = re.search(r'tools/(test\.py .* --calibration)', output)[1]
    run(*shlex.split(command), '--work-dir', 'tested')
    tested = Record.read('tested/results.json')
    assert 'calibration/ECE' in tested.metrics
    assert tested.metrics['accuracy/top1'] == trained.metrics['accuracy/top1']
    assert tested.model['members'][0]['digest'] == trained.model['members'][0]['digest']


OF_LISTS = """
_base_ = 'mmcalib::ce/digits.py'
pipeline = [
    dict(type='LoadImageFromFile', color_type='grayscale'),
    dict(type='Resize', scale=8),
    dict(type='PackInputs'),
]


def loader(name):
    dataset = dict(_delete_=True, type='CustomDataset', pipeline=pipeline)
    dataset |= dict(data_root='{folder}', ann_file=name, data_prefix='images')
    return dict(batch_size=4, dataset=dataset)


train_dataloader = loader('train.txt')
val_dataloader = loader('val.txt')
test_dataloader = loader('val.txt')
del loader
train_cfg = dict(max_epochs=1, val_interval=1)
"""


def write_lists(folder, names):
    """Write images, and the config of a training on some of them, which is returned."""
    for number, name in enumerate('abcdefgh'):
        save(folder / 'images' / f'{name}.jpg', (8, 8), np.random.default_rng(number))
    for split, listed in (('train', names), ('val', 'efgh')):
        lines = [f'{name}.jpg {ord(name) % 3}\n' for name in listed]
        (folder / f'{split}.txt').write_text(''.join(lines))
    config = folder / 'lists.py'
    config.write_text(OF_LISTS.replace('{folder}', str(folder)))
    return config


def test_train_data_of_one_name_resumed_and_reported_by_their_content(tmp_path, run):
    first = write_lists(tmp_path / '1/data', 'abcd')
    other = write_lists(tmp_path / '2/data', 'abce')
    moved = write_lists(tmp_path / '3/elsewhere', 'abcd')
    run('train.py', first, '--work-dir', 'runs/0')
    resume = ['--work-dir', 'resumed', '--resume', 'runs/0']
    two_epochs = ['--cfg-options', 'train_cfg.max_epochs=2']
    error = run('train.py', other, *resume, *two_epochs, code=2)
    assert 'is from another training, train_dataloader.dataset.content_digest 4 samples, ' in error
    run('train.py', moved, *resume, *two_epochs)
    for seed, config in ((1, other), (2, moved), (3, first)):
        seeds = ['--cfg-options', f'randomness.seed={seed}']
        run('train.py', config, '--work-dir', f'runs/{seed}', *seeds)
    results = Path('runs/3/results.json')
    record = json.loads(results.read_text())
    (member,) = record['model']['members']
    training = member['training']
    described = [training['train_dataloader']['dataset'], training['selection']['on']]
    for description in (*described, record['evaluation']):
        del description['content_digest']  # 0.4 did not record it, and goes by names.
    results.write_text(json.dumps(record))

    run('report.py', 'runs', '--out', 'report.json')
    (table,) = json.loads(Path('report.json').read_text())
    rows = [[test['seed'] for test in row['runs']] for row in table['rows']]
    assert sorted(rows) == [[0, 2], [1], [3]]
    assert 'dataset.content_digest=4 samples, ' in table['rows'][0]['label']

    shutil.rmtree('runs/1')
    run('report.py', 'runs', '--out', 'report.json')
    (table,) = json.loads(Path('report.json').read_text())
    (row,) = table['rows']
    assert [test['seed'] for test in row['runs']] == [0, 2, 3]
    assert 'digest' not in json.dumps(table)
    run('report.py', 'runs/0', 'runs/2', '--compare')


def test_train_list_that_repeats_lines_names_each_image_once(tmp_path, run):
    """The copies of an image are no evidence, and do not hide that the training has it."""
    config = write_lists(tmp_path / 'data', 'efgh' * 3)
    run('train.py', config, '--work-dir', 'run')
    (checkpoint,) = Path('run').glob('best_*')
    error = run('calibrate.py', config, checkpoint, '--out', 'out.pth', code=2)
    assert '4 of the 4 val images are training images too' in error
    intervals = []
    for name in ('val.txt', 'train.txt'):
        options = ['--work-dir', name, '--cfg-options', f'test_dataloader.dataset.ann_file={name}']
        run('test.py', config, checkpoint, '--calibration', *options)
        metrics = read_metrics(name)
        intervals.append([metrics[f'calibration/gap_{end}'] for end in ('low', 'high')])
    assert intervals[0] == pytest.approx(intervals[1], abs=1e-6)
    run('report.py', 'train.txt', 'train.txt', '--compare', '--out', 'comparison.md')
    assert 'paired over 4 images' in Path('comparison.md').read_text()


EARLY_STOP = dict(type='EarlyStoppingHook', monitor='accuracy/top1', min_delta=200, patience=1)


@pytest.mark.parametrize(('loop', 'end', 'resumed_end'), [
    ('epochs', 'epoch 2 of 4', 3),
    ('iterations', 'iteration 6 of 12', None),
])  # fmt: skip
def test_train_stopped_early_is_finished_and_reported(loop, end, resumed_end, run, no_pause):
    """The hook stops at its second validation, also when the training is resumed.

    Resumed at an iteration, this is the last one, so that the training has its full length.
    """
    Path('mine.py').write_text(
        f"_base_ = 'mmcalib::ce/digits.py'\n{LOOPS[loop]}\ncustom_hooks = [{EARLY_STOP}]"
    )
    run('train.py', 'mine.py', '--work-dir', 'run', '--no-test')
    error = run('report.py', 'run', code=2)
    assert f'stopped early and not tested ({ROOT}/tools/test.py CONFIG CHECKPOINT): run.' in error
    (best,) = Path('run').glob('best_*.pth')
    run('test.py', 'mine.py', best, '--work-dir', 'tested')
    (member,) = Record.read('tested/results.json').model['members']
    assert member['finished'] is True
    assert f'Stopped early by a hook: tested at {end}.' in run('report.py', 'tested')
    # A calibrated copy tells it too.
    run('calibrate.py', 'mine.py', best, '--out', 'copy/calibrated.pth')
    run('test.py', 'mine.py', 'copy/calibrated.pth', '--work-dir', 'copy')
    assert f'Stopped early by a hook: copy at {end}.' in run('report.py', 'copy')
    run('train.py', 'mine.py', '--work-dir', 'run', '--resume')
    (member,) = Record.read('run/results.json').model['members']
    assert member['finished'] is True
    assert member['stopped_at'] == resumed_end
    assert Path('run/early_stop.json').exists() == (resumed_end is not None)


def test_train_stopped_early_with_out_dir_is_reported(run):
    Path('mine.py').write_text(
        f"_base_ = 'mmcalib::ce/digits.py'\n{LOOPS['epochs']}\ncustom_hooks = [{EARLY_STOP}]\n"
        "default_hooks = dict(checkpoint=dict(out_dir='disk'))"
    )
    run('train.py', 'mine.py', '--work-dir', 'run', '--no-test')
    assert 'stopped early and not tested' in run('report.py', 'run', code=2)
    run('train.py', 'mine.py', '--work-dir', 'other')
    assert 'Stopped early by a hook: other at epoch 2 of 4.' in run('report.py', 'other')
