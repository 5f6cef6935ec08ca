"""Choosing a parameter of the loss: with a stand-in for the training, and once for real."""

import json
import multiprocessing
import os
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest
from commands import ROOT, call_here
from forked import forked_call

from mmcalib.checks import UserError
from mmcalib.record import paths_of
from mmcalib.runs.config import load_config
from mmcalib.runs.progress import progress_of
from mmcalib.tasks.sweep.execute_sweep import _command, run_sweep
from mmcalib.tasks.sweep.parallel_trainings import Job, environment, run_jobs
from mmcalib.tasks.sweep.summary import read_sweep, sweep_table, write_sweep
from mmcalib.tasks.sweep.sweep_plan import (
    SweepPlan,
    SweepTraining,
    option_keys,
    parse_parameter,
    shared_settings,
)
from mmcalib.work_dir import locked

CONFIG = str(ROOT / 'configs/mbls/digits.py')
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
best, name = (6, 'results_val.json') if '--split' in arguments else (2, 'results.json')
seed = int(options.get('randomness.seed', 0))
metrics = {'accuracy/top1': 90 + seed, 'calibration/ECE': abs(margin - best) + seed}
checkpoint = folder / 'best_accuracy_top1_epoch_1.pth'
checkpoint.touch()
model = {'members': [{'checkpoint': str(checkpoint)}]}
content = {'model': model, 'metrics': metrics}
(folder / name).write_text(json.dumps(content))
"""


@pytest.fixture
def make(tmp_path):
    """A sweep whose training is the stand-in."""
    tools = tmp_path / 'tools'
    tools.mkdir()
    for name in ('train.py', 'test.py'):
        (tools / name).write_text(STAND_IN)

    def make(values=(2.0, 6.0, 10.0), **options):
        return SweepPlan(
            CONFIG, 'margin', list(values), tools=tools, work_dir=tmp_path / 'work', **options
        )

    return make


def calls(folder):
    path = folder / 'calls'
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []


def test_the_choice_is_made_on_validation_data_and_only_it_is_tested(make):
    made = make(jobs=2)
    summary, failed = run_sweep(made)
    assert not failed and summary == read_sweep(made.work_dir)
    assert [row['chosen'] for row in summary['rows']] == [False, True, False]
    assert [len(row['test']) for row in summary['rows']] == [0, 1, 0]
    train, test = calls(made.work_dir / 'margin=6')
    assert train[:3] == [CONFIG, '--work-dir', str(made.work_dir / 'margin=6')]
    assert test[1].endswith('margin=6/best_accuracy_top1_epoch_1.pth')
    table = (made.work_dir / 'sweep.md').read_text()
    assert '| 6 | 90.00 | 0.00 | 90.00 | 4.00 | **chosen** |' in table
    assert 'not used for selection' not in table

    # All of it is there, so nothing runs again but the tests that are wanted now.
    summary, _ = run_sweep(make(test_all=True))
    assert len(calls(made.work_dir / 'margin=6')) == 2
    assert len(calls(made.work_dir / 'margin=2')) == 2
    # The least ECE on test data changes nothing.
    assert [row['chosen'] for row in summary['rows']] == [False, True, False]
    assert '| 2 | 90.00 | 4.00 | 90.00 | 0.00 | test not used for selection |' in (
        sweep_table(summary)
    )


def test_further_values_join_those_that_are_there(make):
    run_sweep(make(values=(10.0, 2.0)))
    summary, _ = run_sweep(make(values=(6.0,)))
    assert [row['value'] for row in summary['rows']] == [2.0, 6.0, 10.0]
    assert [row['chosen'] for row in summary['rows']] == [False, True, False]
    assert '| 2 |' in sweep_table(summary)


@pytest.mark.parametrize(('split', 'expected'), [('val', True), ('test', False)])
def test_data_are_the_same_whatever_their_pipeline(split, expected, make):
    cfg = load_config(str(ROOT / 'configs/ce/digits.py'))
    pipeline = [*cfg.val_dataloader.dataset.pipeline, dict(type='mine.Resize')]
    cfg.test_dataloader.dataset = cfg[f'{split}_dataloader'].dataset | dict(pipeline=pipeline)
    assert shared_settings(make(), cfg)['validates_on_test_data'] is expected


def test_terms_of_a_sum_have_parameters_too(make):
    cfg = load_config(str(ROOT / 'configs/mdca/digits.py'))
    assert option_keys(cfg, 'gamma') == ['model.head.loss.losses.1.gamma']
    plan = make(values=(-1.0,))
    plan.config, plan.parameter = cfg.filename, 'gamma'
    assert shared_settings(plan, cfg)['loss'] == 'MDCA loss_weight=1 + FL'
    with pytest.raises(ValueError, match='--param gamma=-1: gamma must be'):
        run_sweep(plan)


def test_a_tie_is_said(make):
    summary, _ = run_sweep(make(values=(5.0, 7.0, 10.0)))
    assert '| **chosen**, the first of a tie with 7 |' in sweep_table(summary)


def test_a_failure_is_named_and_loses_nothing_else(make, capsys):
    made = make()
    (made.work_dir / 'margin=6').mkdir(parents=True)
    (made.work_dir / 'margin=6/FAIL').touch()
    summary, failed = run_sweep(made)
    assert failed == ['margin=6']
    said = f'margin=6: FAILED with status 1, see {made.work_dir / "margin=6/sweep.log"}: diverged'
    assert said in capsys.readouterr().out
    assert [row['chosen'] for row in summary['rows']] == [True, False, False]
    assert 'unfinished: margin=6' in sweep_table(summary)

    (made.work_dir / 'margin=6/FAIL').unlink()
    summary, failed = run_sweep(make())
    assert not failed and [row['chosen'] for row in summary['rows']] == [False, True, False]
    assert len(calls(made.work_dir / 'margin=10')) == 1


def test_seeds_are_averaged(make):
    summary, _ = run_sweep(make(values=(6.0, 8.0), seeds=[0, 1]))
    assert (make().work_dir / 'margin=6/seed1/results.json').is_file()
    assert '| 6 | 90.50 ± 0.71 | 0.50 ± 0.71 |' in sweep_table(summary)
    summary, _ = run_sweep(make(values=(6.0,), seeds=[2]))
    assert summary['seeds'] == [0, 1, 2] and len(summary['rows'][0]['val']) == 3


def test_it_resumes_from_the_newest_whole_checkpoint(make):
    import torch

    made = make(values=(6.0,))
    folder = made.work_dir / 'margin=6'
    folder.mkdir(parents=True)
    torch.save({}, folder / 'epoch_9.pth')
    (folder / 'epoch_10.pth').write_bytes((folder / 'epoch_9.pth').read_bytes()[:100])
    run_sweep(made)
    train = calls(folder)[0]
    assert train[train.index('--resume') + 1] == str(folder / 'epoch_9.pth')


def test_other_settings_need_another_folder(make):
    run_sweep(make(values=(6.0,)))
    with pytest.raises(ValueError, match='sweep with other settings: options'):
        run_sweep(make(options=['train_cfg.max_epochs=3']))


def test_training_has_the_processes_and_arguments_that_were_asked_for(make):
    made = make(gpus=2, arguments=['--amp'], train_arguments=['--auto-scale-lr'])
    cfg = load_config(CONFIG)
    run = SweepTraining('margin=6', 6.0, None, made.work_dir / 'margin=6')
    command = _command(made, cfg, ['model.head.loss.margin'], run, 'val')
    assert command[:5] == ['bash', str(made.tools / 'dist_train.sh'), CONFIG, '2', '--amp']
    assert '--auto-scale-lr' in command and command[-1] == 'model.head.loss.margin=6'


def test_a_parameter_that_the_loss_lacks_is_refused(make):
    cfg = load_config(CONFIG)
    assert option_keys(cfg, 'loss_weight') == ['model.head.loss.loss_weight']
    with pytest.raises(ValueError, match=r"no parameter|'temperature'.*has .*alpha.*margin"):
        option_keys(cfg, 'temperature')
    cfg = load_config(str(ROOT / 'configs/mbls/digit_scenes.py'))
    assert option_keys(cfg, 'margin') == ['model.decode_head.loss_decode.margin']
    cfg.model.decode_head.loss_decode = [cfg.model.decode_head.loss_decode] * 2
    assert option_keys(cfg, 'margin') == [
        f'model.decode_head.loss_decode.{index}.margin' for index in range(2)
    ]


def test_a_value_that_the_loss_refuses_is_named_before_training(make):
    for value, message in ((-1.0, 'margin=-1: margin must be'), ('a', "margin=a: .*'a'")):
        made = make(values=(6.0, value))
        with pytest.raises(ValueError, match=message):
            run_sweep(made)
        assert not made.work_dir.exists()


def test_a_plain_config_is_given_what_a_sweep_needs(make, tmp_path, capsys):
    plain = tmp_path / 'plain.py'
    plain.write_text(
        "_base_ = 'mmcalib::ce/digits.py'\n"
        "val_evaluator = [dict(type='Accuracy')]\ntest_evaluator = val_evaluator\n"
    )
    made = replace(make(), config=str(plain))
    _, failed = run_sweep(made)
    assert not failed
    said = capsys.readouterr().out
    assert 'MarginLabelSmoothingLoss for model.head.loss, the ECE for val_evaluator' in said
    used = made.work_dir / 'plain.py'
    assert calls(made.work_dir / 'margin=6')[0][0] == str(used)
    cfg = load_config(used)
    assert cfg.model.head.loss == dict(type='MarginLabelSmoothingLoss', loss_weight=1.0)
    assert cfg.val_evaluator == cfg.test_evaluator
    assert [each.type for each in cfg.val_evaluator] == ['Accuracy', 'CalibrationMetric']
    assert not run_sweep(made)[1]  # and goes on from there


@pytest.mark.parametrize(
    ('options', 'message'),
    [
        (['test_evaluator.1.metrics=[EEC]'], r"the test data .* metrics must be .* 'EEC'"),
        (['test_dataloader.dataset.indices=0'], 'the test data .*: there are no samples'),
        (
            ['model.head.num_classes=7'],
            'train data have 10 classes, but the head of the model has 7',
        ),
        (['model.backbone.depth=19'], 'the config cannot be built: .*19'),
    ],
)
def test_what_each_training_would_refuse_is_said_before_the_first(options, message, make):
    made = make(values=(6.0,), options=options)
    with pytest.raises(ValueError, match=message):
        run_sweep(made)
    assert not (made.work_dir / 'sweep.json').exists()


def test_an_option_that_a_config_file_misspells_is_said_before_the_first_training(make, tmp_path):
    made = make(values=(6.0,))
    made.config = str(tmp_path / 'mine.py')
    text = "custom_hooks = [dict(type='LossScheduleHook', parametre='margin')]"
    Path(made.config).write_text(f"_base_ = '{CONFIG}'\n{text}\n")
    with pytest.raises(ValueError, match=r'parametre; did you mean parameter\?'):
        run_sweep(made)
    assert not (made.work_dir / 'sweep.json').exists()


@pytest.mark.parametrize('file', ['sweep.json', 'sweep.md'])
def test_a_stop_while_the_summary_is_written_leaves_the_older(file, make, monkeypatch):
    made = make(values=(6.0,))
    summary, _ = run_sweep(made)
    before, write = (made.work_dir / file).read_text(), Path.write_text

    def write_or_stop(path, text, **options):
        if path.suffix != Path(file).suffix:
            return write(path, text, **options)
        write(path, text[:9])
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, 'write_text', write_or_stop)
    with pytest.raises(KeyboardInterrupt):
        write_sweep(made.work_dir, summary)
    assert (made.work_dir / file).read_text() == before


@pytest.mark.parametrize('folder', ['file', 'file/below'])
def test_a_work_dir_that_cannot_be_written_to_is_said(folder, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / 'file').touch()
    with pytest.raises(SystemExit):
        call_here(
            'sweep.py', CONFIG, '--param', 'margin=1', '--work-dir', folder, monkeypatch=monkeypatch
        )
    said = {'file': "the work dir 'file' is a file", 'file/below': 'below/results.json cannot be'}
    assert said[folder] in capsys.readouterr().err


def test_what_was_measured_is_in_the_table(make):
    summary, _ = run_sweep(make(values=(6.0,)))
    for metrics in (*summary['rows'][0]['val'], *summary['rows'][0]['test']):
        metrics |= {'accuracy/top5': 99.0, 'calibration/NLL': 0.25, 'calibration/ECE_low': 1.0}
    table = sweep_table(summary)
    assert 'val top-5 (%) | val NLL (nats) | test top-1 (%)' in table
    assert '| 6 | 90.00 | 0.00 | 99.00 | 0.2500 | 90.00 |' in table


def test_a_summary_that_was_cut_off_is_named_with_its_remedy(make):
    plan = make(values=(6.0,))
    run_sweep(plan)
    path = plan.work_dir / 'sweep.json'
    path.write_text(path.read_text()[:99])
    with pytest.raises(ValueError, match=r'sweep\.json cannot be read .*: remove it and run'):
        run_sweep(plan)
    path.unlink()
    assert read_sweep(run_sweep(plan) and plan.work_dir)['rows'][0]['chosen']
    assert len(calls(plan.work_dir / 'margin=6')) == 2  # nothing ran again


@pytest.mark.parametrize('terminal', ['0', '1'])
def test_lines_say_how_long_it_will_take(terminal, monkeypatch, capsys):
    monkeypatch.setenv('TTY_COMPATIBLE', terminal)
    with progress_of('Training', 2) as say:
        for name in 'ab':
            say(f'[bold]{name}: done')
    shown = capsys.readouterr().out
    assert '[bold]a: done (1 of 2, about 0:00:00 left)' in shown
    assert '[bold]b: done (2 of 2)' in shown and ('100%' in shown) == (terminal == '1')


@pytest.mark.parametrize('text', ['margin', 'margin=', 'margin=1,,2', '=1'])
def test_malformed_parameters_are_refused(text):
    with pytest.raises(ValueError, match='--param'):
        parse_parameter(text)
    assert parse_parameter('reduction=sum,mean') == ('reduction', ['sum', 'mean'])
    assert parse_parameter('margin=1,2,1.0') == ('margin', [1.0, 2.0])


def test_a_folder_is_for_one_at_a_time(tmp_path):
    with (
        locked(tmp_path),
        pytest.raises(UserError, match='is in use'),
        locked(tmp_path),
    ):
        pass
    with locked(tmp_path):
        pass


def test_jobs_share_the_machine(monkeypatch):
    monkeypatch.delenv('OMP_NUM_THREADS', raising=False)
    monkeypatch.setattr('mmcalib.tasks.sweep.parallel_trainings.cpu_count', lambda: 8)
    monkeypatch.setenv('CUDA_VISIBLE_DEVICES', '4,5,6,7')
    places = [environment(slot, 2, 2) for slot in range(2)]
    assert [place['CUDA_VISIBLE_DEVICES'] for place in places] == ['4,5', '6,7']
    assert [place['OMP_NUM_THREADS'] for place in places] == ['2', '2']
    assert places[0]['PORT'] != places[1]['PORT']


def _run_until_interrupted(folder):
    os.setpgrp()  # as a shell gives each of its jobs a group, to which Ctrl-C goes
    # A shell that starts the tests in the background has them ignore SIGINT, as children do.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    script = f'(echo $BASHPID > {folder}/child; exec sleep 60); true'
    jobs = [Job(str(n), ['bash', '-c', script], folder / 'log') for n in range(2)]
    try:
        run_jobs(jobs, 1, done=print)
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


def test_jobs_run_at_once(tmp_path):
    script = f'touch {tmp_path}/$0; while [ ! -e {tmp_path}/$1 ]; do sleep 0.05; done'
    pairs = [('a', 'b'), ('b', 'a'), ('c', 'a')]
    jobs = [Job(one, ['timeout', '20', 'bash', '-c', script, one, other], tmp_path / 'log')
            for one, other in pairs]  # fmt: skip
    ended = []
    run_jobs(jobs, 2, done=lambda job, status: ended.append((job.name, status)))
    assert sorted(ended) == [('a', 0), ('b', 0), ('c', 0)]


def test_the_command_trains_chooses_tests_and_draws(tmp_path, monkeypatch, capsys):
    """With the real tools; the stand-in above has more than one value to choose from."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr('mmcalib.tasks.sweep.parallel_trainings.subprocess.call', forked_call)
    call_here(
        'sweep.py', CONFIG, '--param', 'margin=8', '--jobs', '2', '--work-dir', 'work',
        '--cfg-options', 'train_cfg.max_epochs=1', 'train_cfg.val_interval=1',
        'train_dataloader.dataset.indices=64', monkeypatch=monkeypatch,
    )  # fmt: skip
    output = capsys.readouterr().out
    assert output.count('**chosen**') == 1 and 'Testing margin=8' in output
    (row,) = read_sweep(tmp_path / 'work')['rows']
    folder = tmp_path / 'work/margin=8'
    validated = json.loads((folder / 'results_val.json').read_text())
    assert validated['split'] == 'val' and validated['loss']['margin'] == row['value'] == 8
    assert validated['evaluation']['dataset']['split'] == 'val'
    ece, low, high = (row['val'][0].pop(f'calibration/ECE{end}') for end in ('', '_low', '_high'))
    assert low <= ece <= high  # the bar of its figure
    assert row['val'] == [{k: v for k, v in validated['metrics'].items() if k != 'calibration/ECE'}]
    tested = json.loads((folder / 'results.json').read_text())
    paths = [Path(*paths_of(record['model'])).name for record in (tested, validated)]
    assert paths[0] == paths[1]
    assert tested['training'] == {
        'epochs': 1,
        'finished': True,
        'epoch': 1,
        'checkpoint': 'best',
    }
    assert (tmp_path / 'work/sweep.png').stat().st_size > 1000
    assert (tmp_path / 'work/sweep.pdf').is_file()


@pytest.mark.parametrize(
    ('arguments', 'message'),
    [
        ([CONFIG], 'give a config and --param'),
        ([CONFIG, '--param', 'margin=1', '--param', 'alpha=1'], 'over one parameter'),
        ([CONFIG, '--param', 'margin=1', '--jobs', '0'], '--jobs must be an integer of at least 1'),
        (['--plot', '.', '--out', 'x.png'], 'no sweep.json'),
    ],
)
def test_what_cannot_run_is_said(arguments, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        call_here('sweep.py', *arguments, monkeypatch=monkeypatch)
    assert message in capsys.readouterr().err
