"""What a run is told at its start, and how one ends that cannot be built."""

from pathlib import Path

import pytest
from commands import ROOT, call_here
from mmengine.config import Config

from mmcalib.runs.config import load_config
from mmcalib.runs.runner import build_runner
from mmcalib.runs.terminal_output import notes

DIGITS = ROOT / 'configs/ce/digits.py'


def config(hook, **options):
    return Config(
        dict(
            val_evaluator=[
                dict(type='CalibrationMetric', metrics=['ECE', 'NLL', 'refinement_NLL', 'accuracy'])
            ],
            default_hooks=dict(checkpoint=dict(type=hook, **options)),
            auto_scale_lr=dict(base_batch_size=8, enable=False),
        )
    )


@pytest.mark.parametrize(
    ('hook', 'kept', 'warned'),
    [
        ('CheckpointHook', 'calibration/ECE', True),
        ('CheckpointHook', ['accuracy/top1', 'calibration/ECE'], True),
        ('CheckpointHook', 'calibration/NLL', False),
        ('CheckpointHook', 'calibration/refinement_NLL', False),
        ('CheckpointHook', 'calibration/accuracy', False),
        ('AccuracyFloorCheckpointHook', 'calibration/ECE', False),
    ],
)
def test_a_checkpoint_chosen_by_its_calibration_alone(hook, kept, warned):
    said = notes(config(hook, save_best=kept, rule='less'), 8)
    assert [("save_best='calibration/ECE'" in note, 'NLL' in note) for note in said] == (
        [(True, True)] if warned else []
    )


def test_a_batch_that_is_not_the_learning_rates():
    cfg = config('CheckpointHook')
    assert notes(cfg, 8) == []
    (note,) = notes(cfg, 2)
    assert note.startswith('A step has 2 samples, and the learning rate is for 8: add --auto-scale')
    cfg.auto_scale_lr.enable = True
    assert notes(cfg, 2) == []


def test_what_cannot_be_built_is_one_line_and_its_traceback_in_the_log(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    arguments = [DIGITS, '--cfg-options', 'model.backbone.depth=19']
    with pytest.raises(SystemExit):
        call_here('train.py', *arguments, monkeypatch=monkeypatch)
    said = capsys.readouterr().err
    assert 'the config cannot be built: ' in said and 'depth 19' in said
    assert 'Traceback' not in said
    (log,) = Path('work_dirs/ce/digits').glob('*/*.log')
    assert 'Traceback' in log.read_text() and str(log) in said


@pytest.mark.parametrize(
    ('options', 'message'),
    [
        (
            "custom_hooks = [dict(type='LossScheduleHook', parameter='margin', values={0: -1.0})]",
            'margin must be',
        ),
    ],
)
def test_what_a_hook_refuses_is_one_line_before_the_first_step(
    options, message, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    Path('mine.py').write_text(f"_base_ = 'mmcalib::mbls/digits.py'\n{options}\n")
    with pytest.raises(SystemExit) as end:
        call_here('train.py', 'mine.py', monkeypatch=monkeypatch)
    said = capsys.readouterr()
    assert end.value.code == 2 and f'error: {message}' in said.err
    assert 'Traceback' not in said.err + said.out and 'Epoch(train)' not in said.err + said.out


def test_warnings_and_errors_are_shown_each_time(tmp_path, capsys):
    cfg = load_config(str(DIGITS))
    cfg.work_dir, cfg.launcher = str(tmp_path), 'none'
    logger = build_runner(cfg).logger
    line = 'CalibrationMetric: 15 bins'
    for number in range(2):
        logger.info(line)
        logger.info('Epoch(test) [4/4]    accuracy/top1: 75.9')
        logger.info('Epoch(test) [2/4]  eta: 0:00:01  time: 0.3')
        logger.warning(f'{line}, {number}')  # mmengine itself drops the same warning
        logger.error(line)
    shown = [line.partition('mmengine - ')[2] for line in capsys.readouterr().out.splitlines()]
    shown = [text.partition(' - ')[0] for text in shown if line in text or 'Epoch' in text]
    assert shown == ['INFO', 'INFO', 'WARNING', 'ERROR', 'INFO', 'WARNING', 'ERROR']
