"""Choosing a parameter of the loss: with a stand-in for the training, and once for real."""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from commands import ROOT, call_here
from drawings import statistics, table

from mmcalib.commands.sweep.command import option_keys
from mmcalib.commands.sweep.jobs import environment, run_jobs
from mmcalib.commands.sweep.noise import may_be_best
from mmcalib.metrics.bins import bin_index
from mmcalib.metrics.calibration_errors import calibration_error
from mmcalib.runs.config import load_config
from mmcalib.runs.record import read_json

CONFIG = str(ROOT / 'configs/mbls/digits.py')
MDCA = str(ROOT / 'configs/mdca/digits.py')
OPTIONS = '--cfg-options'
# Does what train.py and test.py leave, with an ECE that is least at margin=6 on validation data
# and at margin=2 on test data. An empty file FAIL in the work dir makes it fail.
STAND_IN = """
import json, pathlib, sys
arguments = sys.argv[1:]
folder = pathlib.Path(arguments[arguments.index('--work-dir') + 1])
options = dict(item.split('=') for item in arguments[arguments.index('--cfg-options') + 1:])
margin = float(options['model.head.loss.margin'])
with open(folder / 'calls', 'a') as calls:
    calls.write(json.dumps(arguments) + chr(10))
if (folder / 'FAIL').exists():
    sys.exit('diverged')
split = 'val' if '--split' in arguments else 'test'
best, name = (6, 'results_val.json') if split == 'val' else (2, 'results.json')
seed = int(options.get('randomness.seed', 0))
metrics = {'accuracy/top1': 90 + seed, 'calibration/ECE': abs(margin - best) + seed}
if split == 'test':
    metrics['calibration/ECE_low'] = 0.0  # an end of an interval has no column
checkpoint = folder / 'best_accuracy_top1_epoch_1.pth'
checkpoint.touch()
training = {'train_cfg': {'max_epochs': options.get('train_cfg.max_epochs', 30)}, 'model': {}}
loss = {'type': 'MarginLabelSmoothingLoss', 'margin': margin}
member = dict(checkpoint=str(checkpoint), seed=seed, loss=loss, training=training)
member |= dict(digest=str(margin), network={}, epoch=1, finished=True, file=checkpoint.name)
member |= dict(calibration=None)
others = ('pipeline', 'views', 'mc_dropout', 'dropout_seed', 'calibration', 'temperature')
model = {'members': [member], **dict.fromkeys(others)}
content = dict(experiment='mbls/digits', split=split, model=model,
               evaluation={}, metrics=metrics)
(folder / name).write_text(json.dumps(content))
"""


@pytest.fixture
def swept(tmp_path, monkeypatch, capsys):
    """``swept('2,6', …)`` sweeps the margin in the folder `work`, by the stand-in."""
    monkeypatch.chdir(tmp_path)
    script = tmp_path / 'stand_in.py'
    script.write_text(STAND_IN)

    def popen(command, **options):
        if Path('KILL').exists():
            raise SystemExit('killed')
        if '-m' in command:
            assert command[1:4] == ['-m', 'torch.distributed.run', '--standalone']
            command = [sys.executable, *command[4:]]
        return subprocess.Popen([sys.executable, script, *command[1:]], **options)

    def call_tool(values, *options, config=CONFIG, fails=False):
        stands_in = SimpleNamespace(DEVNULL=subprocess.DEVNULL, Popen=popen)
        monkeypatch.setattr('mmcalib.commands.sweep.jobs.subprocess', stands_in)
        arguments = [config, '--param', f'margin={values}', '--work-dir', 'work', *options]
        code = ''
        try:
            call_here('sweep.py', *arguments, monkeypatch=monkeypatch)
        except SystemExit as end:
            code = end.code
        assert bool(code) == fails
        said = capsys.readouterr()
        return ' '.join(f'{said.err}{said.out}{code}'.split())

    return call_tool


def calls(value):
    path = Path(f'work/margin={value}/calls')
    return [json.loads(line) for line in path.read_text().splitlines()]


def rows():
    return read_json('work/sweep.json')['rows']


def chosen():
    return [row['value'] for row in rows() if row['chosen']]


def test_the_choice_is_made_on_validation_data_and_only_it_is_tested(swept):
    said = swept('2,6,10', '--jobs', '2')
    assert 'margin=6: val top-1 90.00, ECE 0.00' in said and 'Testing margin=6' in said
    assert chosen() == [6] and [len(row['test']) for row in rows()] == [0, 1, 0]
    train, test = calls(6)
    assert train[1:4] == [CONFIG, '--split', 'val'] and '--resume' not in train
    assert test[2].endswith('margin=6/best_accuracy_top1_epoch_1.pth')
    table = ' '.join(Path('work/sweep.md').read_text().split())
    assert table in said and '| 6 | 90.00 | 0.00 | 90.00 | 4.00 | chosen |' in table
    assert 'not used for selection' not in table

    # All of it is there, so nothing runs again but the tests that are wanted now.
    said = swept('2,6,10', '--test-all')
    assert len(calls(6)) == len(calls(2)) == 2
    assert chosen() == [6]  # whatever the ECE on test data
    assert '| 2 | 90.00 | 4.00 | 90.00 | 0.00 | test not used for selection |' in said


def test_further_values_and_seeds_join_and_are_averaged(swept):
    swept('8', '--seeds', '0', '1')
    assert '| 6 | 90.50 ± 0.71 | 0.50 ± 0.71 |' in swept('6', '--seeds', '0', '1')
    assert Path('work/margin=6/seed1/results.json').is_file()
    swept('6', '--seeds', '2')
    assert [len(row['val']) for row in rows()] == [3, 3]
    assert 'randomness.seed=2' in calls('8/seed2')[0]


def test_a_tie_is_said_and_a_choice_that_has_seen_the_test_data(swept):
    table = swept('5,7,10', OPTIONS, 'val_dataloader.dataset.split=test')
    assert '| chosen, the first of a tie with 7 |' in table
    assert 'validates on its test data' in table


def test_a_failure_loses_nothing_else_and_what_was_stopped_is_resumed(swept):
    for training, name in (('margin=6/seed1', 'FAIL'), ('margin=2/seed0', 'epoch_9.pth')):
        Path('work', training).mkdir(parents=True)
        torch.save({}, f'work/{training}/{name}')
    command = '2,6,10', '--seeds', '0', '1'
    said = swept(*command, fails=True)
    log = 'work/margin=6/seed1/sweep.log'
    assert f'margin=6/seed1: FAILED with status 1, see {log}: diverged' in said
    assert 'unfinished: margin=6/seed1' in said and 'FAILED: margin=6/seed1; the same' in said
    assert chosen() == [2]  # the other seed of 6 alone says too little
    assert '--resume' in calls('2/seed0')[0] and '--resume' not in calls('2/seed1')[0]
    Path('work/margin=6/seed1/FAIL').unlink()
    swept(*command)
    assert chosen() == [6] and len(calls('10/seed0')) == 1


def test_trainings_of_other_settings_need_another_folder(swept):
    swept('4,8', OPTIONS, 'train_cfg.max_epochs=5')
    for options in ([], [OPTIONS, 'train_cfg.max_epochs=1'], ['--limit', '8']):
        said = swept('4,8', *options, fails=True)
        assert 'holds trainings by other settings' in said and 'another --work-dir' in said
    swept('4,8', OPTIONS, 'train_cfg.max_epochs=5')
    # So do those that were measured otherwise.
    measured = read_json('work/margin=8/results_val.json')
    other = {**measured, 'evaluation': {'num_bins': 9}}
    for content in (other, measured):
        Path('work/margin=8/results_val.json').write_text(json.dumps(content))
        said = swept('4,8', OPTIONS, 'train_cfg.max_epochs=5', fails=content is other)
        assert ('num_bins None (here: 9)' in said) == (content is other)
    # And those that were trained elsewhere, of which there are no settings.
    Path('work/sweep.json').unlink()
    said = swept('10', OPTIONS, 'train_cfg.max_epochs=3', fails=True)
    assert 'train_cfg.max_epochs 5 (here: 3)' in said and 'another --work-dir' in said


@pytest.mark.parametrize(
    ('options', 'named'),
    [
        ([OPTIONS, 'optim_wrapper.optimizer.lr=0.1'], 'optim_wrapper.optimizer.lr 0.005'),
        ([OPTIONS, 'train_dataloader.batch_size=7'], 'train_dataloader.batch_size'),
        ([OPTIONS, 'randomness.seed=7'], 'randomness.seed 0 (here: 7)'),
        (['--amp'], 'amp False (here: True)'),
    ],
)
def test_sweep_killed_in_its_first_training_refuses_other_settings(options, named, swept):
    plain = Path('plain.py')
    plain.write_text("_base_ = 'mmcalib::ce/digits.py'\n")  # of which the sweep writes its own
    Path('KILL').touch()
    assert 'killed' in swept('2,6', config=plain, fails=True)
    before = Path('work/plain.py').read_text()
    Path('KILL').unlink()
    said = swept('2,6', *options, config=plain, fails=True)
    assert named in said and 'another --work-dir' in said
    assert Path('work/plain.py').read_text() == before and not list(Path('work').glob('*/calls'))
    swept('2,6', config=plain)
    assert chosen() == [6]


def test_trainings_have_the_processes_and_arguments_that_were_asked_for(swept):
    swept('6.1234567', '--gpus', '2', '--amp', '--auto-scale-lr', '--limit', '5')
    train, test = calls(6.1234567)  # as exact as it was named
    assert train[0] == test[0] == '--nproc_per_node=2' and train[1].endswith('tools/train.py')
    for command in (train, test):
        assert {'--launcher', 'pytorch', '--amp', '--limit', '5'} <= set(command)
    assert '--auto-scale-lr' in train and '--auto-scale-lr' not in test


def test_all_losses_that_have_a_parameter_get_its_value():
    cfg = load_config(str(ROOT / 'configs/mbls/digit_scenes.py'))
    key = 'model.decode_head.loss_decode'
    assert option_keys(cfg, 'margin') == [f'{key}.margin']
    cfg.model.decode_head.loss_decode = [cfg.model.decode_head.loss_decode] * 2
    assert option_keys(cfg, 'margin') == [f'{key}.{index}.margin' for index in range(2)]


def test_a_plain_config_is_given_what_a_sweep_needs(swept, tmp_path):
    plain = tmp_path / 'plain.py'
    plain.write_text(
        "_base_ = 'mmcalib::ce/digits.py'\n"
        "val_evaluator = [dict(type='Accuracy')]\n"
        "test_evaluator = [dict(type='Accuracy'), dict(type='ECE')]\n"
    )
    said = swept('2,6', config=plain)
    assert 'MarginLabelSmoothingLoss for model.head.loss, the ECE for val_evaluator' in said
    assert calls(6)[0][1] == 'work/plain.py'
    cfg = load_config('work/plain.py')
    assert cfg.model.head.loss == dict(type='MarginLabelSmoothingLoss', loss_weight=1.0)
    assert [each.type for each in cfg.val_evaluator] == ['Accuracy', 'CalibrationMetric']
    assert [each.type for each in cfg.test_evaluator] == ['Accuracy', 'ECE']  # once
    swept('2,6', config=plain)  # and goes on from there
    assert len(calls(6)) == 2


def test_jobs_share_the_machine(monkeypatch):
    monkeypatch.delenv('OMP_NUM_THREADS', raising=False)
    monkeypatch.setattr('mmcalib.commands.sweep.jobs.cpu_count', lambda: 8)
    monkeypatch.setenv('CUDA_VISIBLE_DEVICES', '4,5,6,7')
    places = [environment(slot, 2, 2) for slot in range(2)]
    assert [place['CUDA_VISIBLE_DEVICES'] for place in places] == ['4,5', '6,7']
    assert [place['OMP_NUM_THREADS'] for place in places] == ['2', '2']


def test_jobs_run_at_once(tmp_path):
    script = f'touch {tmp_path}/$0; while [ ! -e {tmp_path}/$1 ]; do sleep 0.05; done'
    pairs = [('a', 'b'), ('b', 'a'), ('c', 'a')]
    jobs = {
        tmp_path / f'{one}.log': ['timeout', '20', 'bash', '-c', script, one, other]
        for one, other in pairs
    }
    assert dict(run_jobs(jobs, 2)) == dict.fromkeys(jobs, 0)


def _run_until_interrupted(folder):
    os.setpgrp()  # as a shell gives each of its jobs a group, to which Ctrl-C goes
    # A shell that starts the tests in the background has them ignore SIGINT, as children do.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    script = f'(echo $BASHPID > {folder}/child; exec sleep 60); true'
    try:
        list(run_jobs({folder / name: ['bash', '-c', script] for name in 'ab'}, 1))
    except KeyboardInterrupt:
        (folder / 'interrupted').touch()


def test_an_interruption_ends_all_processes(tmp_path):
    forked = multiprocessing.get_context('forkserver')
    process = forked.Process(target=_run_until_interrupted, args=(tmp_path,))
    process.start()
    child = tmp_path / 'child'
    while not (child.is_file() and child.read_text().strip()):
        assert process.is_alive()
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGINT)
    process.join(30)
    assert process.exitcode == 0 and (tmp_path / 'interrupted').exists()
    state = Path(f'/proc/{child.read_text().strip()}/stat')
    assert not state.exists() or state.read_text().split()[2] == 'Z'


def test_the_bar_of_its_figure_is_the_interval_over_images(swept):
    swept('6')
    images = torch.stack([table(n=50, seed=seed) for seed in range(20)])
    kept = statistics(image_bins=images)
    kept.save('work/margin=6/calibration_val.npz')
    swept('6')
    (row,) = rows()
    low, high = (row['val'][0][f'calibration/ECE_{end}'] for end in ('low', 'high'))
    assert 0 < low < calibration_error(kept.bins(10)).item() < high
    assert all(Path(f'work/sweep.{kind}').stat().st_size > 1000 for kind in ('png', 'pdf'))


def leave_images(value, confidence, *, num_images=200, seed=''):
    """Leave what a validation counts of each image; they are right in two of three cases."""
    correct = torch.arange(num_images) % 3 > 0
    conf = torch.full((num_images,), confidence, dtype=torch.float64)
    images = torch.zeros(num_images, 3, 10, dtype=torch.float64)
    cell = bin_index(conf, 10)
    rows = torch.arange(num_images)
    images[rows, 0, cell], images[rows, 1, cell], images[rows, 2, cell] = 1, correct.double(), conf
    folder = Path(f'work/margin={value}', seed)
    statistics(image_bins=images).save(folder / 'calibration_val.npz')
    path = folder / 'results_val.json'
    record = read_json(path)
    record['metrics']['calibration/ECE'] = 100 * abs(correct.double().mean().item() - confidence)
    path.write_text(json.dumps(record))


def near():
    return {row['value']: row.get('within_noise') for row in rows()}


def test_sweep_differences_within_the_noise_of_the_images_are_said(swept):
    """Of 200 images whose ECE is that of their mean confidence, 0.667 being calibrated."""
    swept('4,6,12')
    for value, confidence in ((4, 0.72), (6, 0.71), (12, 0.95)):
        leave_images(value, confidence)
    said = swept('4,6,12')
    # Of the same images, each has the same noise, so any difference is one.
    assert chosen() == [6] and near() == {4: False, 6: True, 12: False}
    assert 'Within noise of the chosen ECE (95 %, 200 validation images): none.' in said
    # 0.71 is as far above as 0.63 below: what images do to the one they undo to the other.
    leave_images(4, 0.62)
    said = swept('4,6,12')
    assert chosen() == [6] and near() == {4: True, 6: True, 12: False}
    assert '(95 %, 200 validation images): 4.' in said and '--seeds' in said
    assert '| within noise of the chosen |' in said
    assert said.count('within noise of the chosen |') == 1
    for value, confidence in ((4, 0.58), (6, 0.71), (12, 0.95)):
        leave_images(value, confidence, num_images=4000)
    swept('4,6,12')
    assert near() == {4: False, 6: True, 12: False}


def test_sweep_noise_of_seeds_is_that_of_their_variance(swept):
    swept('6,7,30', '--seeds', '0', '1', '2')  # whose ECE is theirs and the seed's number
    said = swept('6,7,30', '--seeds', '0')
    assert near() == {6: True, 7: True, 30: False}
    assert 'Within noise of the chosen ECE (95 %, 3 seeds): 7.' in said


def test_sweep_noise_that_is_not_known_is_said(swept):
    said = swept('6,8')
    assert near() == {6: None, 8: None}
    assert 'noise is not known: average over seeds, such as --seeds 0 1 2.' in said
    said = swept('6', '--work-dir', 'alone')
    assert 'noise' not in said


def test_sweep_a_value_whose_error_is_not_a_number_is_said(swept):
    swept('4,6')
    path = Path('work/margin=6/results_val.json')
    record = read_json(path)
    record['metrics']['calibration/ECE'] = float('nan')
    path.write_text(json.dumps(record))
    assert '| nan | 90.00 | 4.00 | no finite ECE' in swept('4,6') and chosen() == [4]


def test_noise_of_a_sweep_holds_the_best_value_as_often_as_it_says():
    """Four values of one ECE, on images that one difficulty makes right or wrong for all."""
    generator = torch.Generator().manual_seed(0)
    trials, num_images, kept, all_kept = 60, 100, 0, 0
    for trial in range(trials):
        shared = torch.rand(num_images, generator=generator)
        tables = []
        for _ in range(4):
            own = torch.rand(num_images, generator=generator)
            conf = 0.5 + 0.5 * torch.rand(num_images, generator=generator, dtype=torch.float64)
            correct = torch.where(own < 0.3, own / 0.3, shared) < conf - 0.1
            cell = bin_index(conf, 15)
            places = torch.arange(num_images)
            table = torch.zeros(num_images, 3, 15, dtype=torch.float64)
            table[places, 0, cell], table[places, 1, cell] = 1, correct.double()
            table[places, 2, cell] = conf
            tables.append([table])
        errors = [[calibration_error(each[0].sum(dim=0)).item()] for each in tables]
        marks = may_be_best(errors, tables, seed=trial)
        assert marks[min(range(4), key=lambda value: errors[value])]
        kept += marks[0]
        all_kept += all(marks)
    assert kept >= 52 and all_kept >= 44  # 57 of 60; the fewest that chance gives in one of 100


@pytest.mark.parametrize(
    ('arguments', 'message'),
    [
        ([CONFIG], 'give a config and --param'),
        ([CONFIG, '--param', 'margin=1', '--param', 'alpha=1'], 'over one parameter'),
        ([CONFIG, '--param', 'margin'], '--param NAME=VALUE'),
        ([CONFIG, '--param', 'margin=1,,2'], '--param NAME=VALUE'),
        # And what fails in a training, before the first one starts.
        ([CONFIG, '--param', 'margin=1,a'], "margin=a: margin must be a number, got 'a'"),
        ([CONFIG, '--param', 'margin=0,-1'], 'leave out -1, model.head.loss.margin=-1: margin'),
        ([MDCA, '--param', 'gamma=2,-3'], 'losses.1.gamma=-3: gamma must be'),
        ([CONFIG, '--param', 'class_reduction=mean,mode'], 'class_reduction=mode: class_reduction'),
        ([CONFIG, '--param', 'margin=1', '--work-dir', 'file'], 'file/results.json cannot be'),
    ],
)
def test_what_cannot_run_is_said(arguments, message, tmp_path, run):
    (tmp_path / 'file').touch()
    assert message in ' '.join(run('sweep.py', *arguments, code=2).split())
    assert not (tmp_path / 'work_dirs').exists()
