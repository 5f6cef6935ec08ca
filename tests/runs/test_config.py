"""Configs and options that cannot be read, and options with the name that may be meant."""

import pytest
from commands import ROOT, call_here

from mmcalib.runs.config import load_config

DIGITS = str(ROOT / 'configs/mbls/digits.py')
SCENES = str(ROOT / 'configs/mbls/digit_scenes.py')


@pytest.mark.parametrize(
    ('key', 'meant'),
    [
        ('modl.head.loss.margin', 'model'),
        ('work_dri', 'work_dir'),
        ('train_cfg.max_epoch', 'max_epochs'),
        ('train_dataloader.batchsize', 'batch_size'),
        ('model.hed.loss.margin', 'head'),
        ('model.head.loss.margn', 'margin'),
        ('default_hooks.chekpoint.interval', 'checkpoint'),
        ('default_hooks.checkpoint.save_bset', 'save_best'),
        ('optim_wrapper.optimzer.lr', 'optimizer'),
        ('randomness.sed', 'seed'),
    ],
)
def test_what_was_meant_is_named(key, meant):
    with pytest.raises(ValueError, match=rf'--cfg-options {key}: did you mean {meant}\?'):
        load_config(DIGITS, {key: 1})


@pytest.mark.parametrize(
    ('options', 'new'),
    [
        ({'find_unused_parameters': True, 'train_dataloader.dataset.indices': 128}, 2),
        ({'custom_hooks': [dict(type='EMAHook')], 'randomness.deterministic': True}, 1),
        ({'model.train_cfg.augments': dict(type='Mixup', alpha=0.2)}, 1),
        ({'model.head.loss._delete_': True, 'model.head.loss.type': 'BrierLoss'}, 0),
        ({'model.backbone.ignore_index': 1, 'train_cfg.min_epochs': 1}, 2),
        ({'load_from': 'a.pth', 'resume': True}, 0),
    ],
)
def test_what_a_config_lacks_is_said_and_taken(options, new, recwarn):
    load_config(DIGITS, options)
    assert len([w for w in recwarn if 'had no such key' in str(w.message)]) == new


def test_lists_and_plain_values_are_named():
    with pytest.raises(ValueError, match=r'--cfg-options val_evaluator\.7\.num_bins: '):
        load_config(DIGITS, {'val_evaluator.7.num_bins': 10})
    load_config(SCENES, {'model.decode_head.norm_cfg.requires_grad': False})


def test_a_config_that_cannot_be_read_is_named(tmp_path):
    path = tmp_path / 'mine.py'
    for text in ("model = dict(head='a'", 'a = 1\nb = a.x', f"_base_ = ['{DIGITS}', '{SCENES}']"):
        path.write_text(text)
        with pytest.raises(ValueError, match=r'mine\.py cannot be read: \w+Error: '):
            load_config(str(path))
    # As of mmpretrain's RepLKNet-31B, whose base imports the toolbox.
    (tmp_path / 'base.py').write_text('from mmpretrain.models import build_classifier\n')
    path.write_text("_base_ = 'base.py'\n")
    with pytest.raises(ValueError, match=r'mine\.py cannot be read: \w+Error: .*inheritance'):
        load_config(str(path))


def test_a_metric_with_metrics_alone_is_an_evaluator(tmp_path):
    path = tmp_path / 'mine.py'
    metric = "dict(type='CalibrationMetric', metrics=['NLL'], _delete_=True)"
    path.write_text(f"_base_ = '{DIGITS}'\ntest_evaluator = {metric}\n")
    assert load_config(str(path)).test_evaluator == [
        dict(type='CalibrationMetric', metrics=['NLL'])
    ]


@pytest.mark.parametrize(
    ('options', 'message'),
    [
        ('model.head', 'takes KEY=VALUE'),
        ('=3', 'takes KEY=VALUE'),
        ('a=[1,(2]', 'Imbalanced brackets'),
        ("a=[dict(type='X',b=1)]", 'takes no dict'),
        ("a={'type':'X'}", 'takes no dict'),
    ],
)
def test_what_is_no_option_is_an_error_of_the_command_line(options, message, monkeypatch, capsys):
    with pytest.raises(SystemExit):
        call_here('train.py', DIGITS, '--cfg-options', options, monkeypatch=monkeypatch)
    assert f'argument --cfg-options: {message}' in capsys.readouterr().err
