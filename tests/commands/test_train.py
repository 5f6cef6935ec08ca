"""Trainings and tests from the outside: resumed ones, smoke runs, and what is written down."""

import json
import os
import re
import shlex
import time
from pathlib import Path

import pytest
import torch
from commands import ROOT
from forked import run_forked

from mmcalib.reports.tested_runs import find_runs
from mmcalib.runs.record import Record, checkpoint_paths

KILLED = """
_base_ = 'mmcalib::ce/digits.py'
custom_imports = dict(imports=['mmcalib', 'kills'])
custom_hooks = [dict(type='KillBeforeSave', number={number})]
"""
KINDS = {
    'epochs': """
train_cfg = dict(max_epochs=4, val_interval=1)
train_dataloader = dict(dataset=dict(indices=128))
""",
    'iterations': """
train_cfg = dict(_delete_=True, by_epoch=False, max_iters=12, val_interval=3)
train_dataloader = dict(dataset=dict(indices=128), sampler=dict(type='InfiniteSampler'))
default_hooks = dict(checkpoint=dict(by_epoch=False, interval=3))
log_processor = dict(by_epoch=False)
""",
}


@pytest.mark.parametrize(('kind', 'number'), [('epochs', 9), ('iterations', 6)])
def test_train_killed_and_resumed_equals_uninterrupted(kind, number, run, tmp_path):
    """Killed where a best one is there, and the checkpoint of its step does not know of it yet."""

    def train(folder, *options, kill=0):
        Path('config.py').write_text(KILLED.format(number=kill) + KINDS[kind])
        command = ['train.py', 'config.py', '--work-dir', folder, *options]
        if kill:
            with pytest.raises(AssertionError):
                run_forked(*command, cwd=tmp_path)
            assert not Path(folder, 'results.json').exists()
            return None
        run(*command)
        metrics = Record.read(Path(folder, 'results.json')).metrics
        return [path.name for path in sorted(Path(folder).glob('best_*'))], metrics

    (best,), metrics = train('whole')
    train('run', kill=number)
    # Left where a kill came between the two writes and the removal of what they replace.
    Path('run', re.sub(r'\d+\.', '0.', best)).touch()
    Path('run/best_of_mine.pth').touch()
    assert train('run', '--resume') == (sorted([best, 'best_of_mine.pth']), metrics)


@pytest.mark.parametrize(
    ('name', 'options', 'checkpoint'),
    [
        ('digits', ['--no-validate'], 'epoch_2.pth'),  # of which the last weights are tested
        ('digit_scenes', [], 'best_*.pth'),
    ],
)
def test_train_with_ema_tests_averaged_weights(name, options, checkpoint, run, tmp_path):
    """mmpretrain's EMAHook is not mmengine's, which the scenes have."""
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
    trained = Record.read('trained/results.json').metrics
    run('test.py', 'mine.py', path, '--work-dir', 'tested')
    assert trained == Record.read('tested/results.json').metrics
    run('calibrate.py', 'mine.py', path, '--out', 'out.pth', '--test')
    calibration = torch.load('out.pth', weights_only=False)['meta']['calibration']
    before = calibration['tested']['before']['ECE']
    assert before == pytest.approx(trained['calibration/ECE'], abs=1e-4)


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
    """As one of mmseg that only writes predictions, by `format_only`."""
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
    said = run('train.py', 'mine.py', '--work-dir', 'trained')
    assert 'no values' in said and 'Files: trained' in said
    record = Record.read('trained/results.json')
    assert record.metrics == {}
    said = run('test.py', 'mine.py', *checkpoint_paths(record.model), '--work-dir', 'tested')
    assert 'no values' in said and Record.read('tested/results.json').metrics == {}
    other = ['mmcalib::mbls/digits.py', *checkpoint_paths(record.model), '--work-dir', 'other']
    run('test.py', *other, '--cfg-options', 'test_dataloader.dataset.indices=5')
    for folders in (['other', 'tested'], ['tested']):
        run('report.py', *folders, '--html', 'report.html')
        assert Path('report.html').is_file()


@pytest.mark.parametrize('save_best', ["'accuracy/top1'", 'None'])
def test_train_with_ema_validating_original_tests_original(save_best, run, tmp_path):
    """A checkpoint's `state_dict` is the average, whichever of the two EMAHook has validated."""
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
    said = run_forked('train.py', 'mine.py', '--work-dir', 'trained', cwd=tmp_path)
    (scalars,) = Path('trained').glob('*/vis_data/scalars.json')
    validated = json.loads(scalars.read_text().splitlines()[-1])
    trained = Record.read('trained/results.json').metrics
    assert validated['accuracy/top1'] > 30  # 10 of the average
    assert trained == {key: validated[key] for key in trained}
    assert 'evaluate_on_ema=False' in said
    path = 'trained/epoch_2.pth' if save_best == 'None' else next(Path('trained').glob('best_*'))
    run('test.py', 'mine.py', path, '--work-dir', 'tested')
    assert Record.read('tested/results.json').metrics == trained
    run('calibrate.py', 'mine.py', path, '--out', 'out.pth')
    calibration = torch.load('out.pth', weights_only=False)['meta']['calibration']
    before = calibration['fitted']['before']['ECE']
    assert before == pytest.approx(trained['calibration/ECE'], abs=1e-4)
    run('test.py', 'mine.py', 'out.pth', '--work-dir', 'calibrated')
    calibrated = Record.read('calibrated/results.json').metrics
    assert calibrated['accuracy/top1'] == trained['accuracy/top1']
    assert calibrated['calibration/ECE'] != trained['calibration/ECE']


def test_test_with_other_config_keeps_training_of_checkpoint(run, monkeypatch):
    options = [
        *('train_cfg.max_epochs=1', 'train_cfg.val_interval=1', 'randomness.seed=7'),
        *('train_dataloader.dataset.indices=16', 'val_dataloader.dataset.indices=20'),
        *('train_dataloader.dataset.noise=0.2', 'model.head.loss.margin=5'),
        'train_dataloader.batch_size=8',
    ]
    a = ['mmcalib::mbls/digits.py', '--work-dir', 'a', '--split', 'val']
    with monkeypatch.context() as elsewhere:  # two hours east
        elsewhere.setenv('TZ', 'Etc/GMT-2')
        time.tzset()
        run('train.py', *a, '--cfg-options', *options)
    time.tzset()
    assert not Path('a/results.json').exists()
    validated = Record.read('a/results_val.json')
    b = ['mmcalib::ce/digits.py', *checkpoint_paths(validated.model), '--work-dir', 'b']
    run('test.py', *b, '--cfg-options', 'test_dataloader.dataset.indices=30')
    tested = Record.read('b/results.json')
    assert validated.evaluation == dict(
        dataset=dict(type='Digits', split='val', samples=20), data_options=dict(indices=20),
        pipeline=[[dict(type='PackInputs')]], tta=False, limit=None, protocol='pooled',
        num_bins=15, ignore_index=255,
    )  # fmt: skip
    assert tested.evaluation['dataset'] == dict(type='Digits', split='test', samples=30)
    assert validated.date < tested.date and tested.version
    assert validated.model['members'] == tested.model['members']
    (found,) = tested.model['members']
    assert found['seed'] == 7 and found['loss']['margin'] == 5 and found['epoch'] == 1
    assert found['finished'] and found['file'] == 'best_accuracy_top1_epoch_1.pth'
    assert found['training']['train_dataloader']['dataset']['noise'] == 0.2


@pytest.mark.parametrize('name', ['digits', 'digit_scenes'])
def test_train_with_limit_left_out_of_reports(name, run, tmp_path):
    evaluator = {'digits': 'Accuracy', 'digit_scenes': 'IoUMetric'}[name]
    Path('mine.py').write_text(
        f"_base_ = 'mmcalib::mbls/{name}.py'\n"
        f"test_evaluator = [dict(type='{evaluator}')]\n"
        'default_hooks = dict(reliability_diagram=None, confidence_map=None)\n'
    )
    torch.set_num_threads(2)
    said = run('train.py', 'mine.py', '--limit', 11)
    assert torch.get_num_threads() == 1  # which such a small network is fastest with
    folder = 'work_dirs/mine/limit11'
    record = Record.read(f'{folder}/results.json')
    assert record.evaluation['limit'] == 11 == record.evaluation['dataset']['samples']
    assert 'Samples: train on 11, validate on 11, test on 11; SMOKE RUN with --limit 11' in said
    (path,) = checkpoint_paths(record.model)
    command = f'tools/test.py mine.py {os.path.relpath(path)} --calibration'
    assert f'not measured; {command} measures it' in said
    with pytest.raises(FileNotFoundError, match=f'smoke runs with --limit: {folder}'):
        find_runs(['.'])
    if name == 'digit_scenes':
        return

    # The checkpoint of a smoke run stays one, whatever it is tested on. A config with a metric of
    # its own keeps it, and has what it lacks beside it.
    def test(config, folder):
        options = ['--calibration', '--objects', '--work-dir', folder]
        said = run('test.py', config, *checkpoint_paths(record.model), *options)
        assert 'the checkpoint of a SMOKE RUN with --limit 11' in said
        return json.loads(Path(folder, 'results.json').read_text()), said.splitlines()

    tested, _ = test('mine.py', 'full')
    assert tested['evaluation']['dataset']['samples'] == 797
    assert len(tested['strata']['per_class']['calibration']['ECE']) == 10
    assert list(tmp_path.rglob('vis_image/reliability_diagram_test*'))
    content, said = test('mmcalib::mbls/digits.py', 'own')
    own = content['metrics']
    assert own == tested['metrics'] and 'calibration/ECE_low' in own
    (gap,) = [line for line in said if line.startswith('gap ')]
    low, high = (own[f'calibration/gap_{end}'] for end in ('low', 'high'))
    judged = 'over-confident' if low > 0 else 'under-confident' if high < 0 else 'not told'
    assert f' {own["calibration/gap"]:+.2f} % ' in gap and f' {judged}' in gap
    assert gap.endswith(f'; interval {low:+.2f} to {high:+.2f} %')


def test_train_without_best_checkpoint_names_last(run):
    """As most configs of the toolboxes, which keep no best one."""
    Path('mine.py').write_text(
        "_base_ = 'mmcalib::mbls/digits.py'\n"
        "test_evaluator = [dict(type='Accuracy')]\n"
        'default_hooks = dict(reliability_diagram=None, checkpoint=dict(save_best=None))\n'
        'train_cfg = dict(max_epochs=2, val_interval=2)\n'
        'train_dataloader = dict(dataset=dict(indices=16))\n'
        'test_dataloader = dict(dataset=dict(indices=50))\n'
    )
    said = run('train.py', 'mine.py', '--work-dir', 'my run')
    (line,) = [line for line in said.splitlines() if line.startswith('checkpoint')]
    assert Path(line.removeprefix('checkpoint').strip()).samefile('my run/epoch_2.pth')
    trained = Record.read('my run/results.json')
    assert [Path(path).name for path in checkpoint_paths(trained.model)] == ['epoch_2.pth']
    # The command that measures the calibration can be copied.
    command = re.search(r'tools/(test\.py .* --calibration) measures it', said)[1]
    run(*shlex.split(command), '--work-dir', 'tested')
    tested = Record.read('tested/results.json')
    assert 'calibration/ECE' in tested.metrics
    assert tested.metrics['accuracy/top1'] == trained.metrics['accuracy/top1']
    assert tested.model['members'][0]['digest'] == trained.model['members'][0]['digest']
