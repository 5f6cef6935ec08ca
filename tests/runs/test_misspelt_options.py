"""Options that nothing reads are found, with the nearest name."""

import pytest
from commands import ROOT, call_here
from mmengine.config import Config

from mmcalib.cli import parser
from mmcalib.runs.config import load_config
from mmcalib.runs.misspelt_options import check_constructors

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
        ('model.head.los', 'loss'),
        ('model.backbone.depht', 'depth'),
        ('val_evaluator.1.num_bin', 'num_bins'),
        ('test_dataloader.dataset.nois', 'noise'),
        ('test_dataloader.dataset.indexes', 'indices'),  # of its base class
        ('default_hooks.chekpoint.interval', 'checkpoint'),
        ('default_hooks.checkpoint.save_bset', 'save_best'),
        ('optim_wrapper.optimzer.lr', 'optimizer'),
        ('optim_wrapper.optimizer.betas_', 'betas'),
        ('randomness.sed', 'seed'),
        ('env_cfg.cudnn_benchmrk', 'cudnn_benchmark'),
    ],
)
def test_what_was_meant_is_named(key, meant):
    with pytest.raises(ValueError, match=rf'--cfg-options {key}: .*did you mean {meant}\?'):
        load_config(DIGITS, {key: 1})


@pytest.mark.parametrize(
    'options',
    [
        {'train_dataloader.dataset.indices': 128, 'train_dataloader.drop_last': True},
        {'find_unused_parameters': True, 'randomness.deterministic': True},
        {'custom_hooks': [dict(type='EMAHook')], 'param_scheduler.convert_to_iter_based': True},
        {'default_hooks.early_stopping.type': 'EarlyStoppingHook'},
        {'default_hooks.checkpoint.max_keep_ckpts': 1, 'default_hooks.checkpoint.priority': 'LOW'},
        {'model.train_cfg.augments': dict(type='Mixup', alpha=0.2)},
        {'model.backbone.init_cfg': None, 'optim_wrapper.clip_grad.max_norm': 2.0},
        {'optim_wrapper.paramwise_cfg.norm_decay_mult': 0.0},
        {'val_evaluator.1.confidence_interval': 0.95},
        # Of another loss, with what that one takes.
        {'model.head.loss._delete_': True, 'model.head.loss.type': 'SoftmaxFocalLoss',
         'model.head.loss.gamma': 2.0},
    ],
)  # fmt: skip
def test_what_something_reads_is_taken(options):
    cfg = load_config(DIGITS, options)
    check_constructors(cfg)


def test_a_term_of_a_sum_of_losses_has_its_own_options(tmp_path):
    terms = "dict(type='MDCALoss'), dict(type='CombinedLoss', losses=[dict(type='BrierLoss')])"
    loss = f"dict(_delete_=True, type='CombinedLoss', losses=[{terms}])"
    (tmp_path / 'sum.py').write_text(f"_base_ = '{DIGITS}'\nmodel = dict(head=dict(loss={loss}))\n")
    for place in ('0', '1.losses.0'):
        key = f'model.head.loss.losses.{place}.'
        check_constructors(load_config(str(tmp_path / 'sum.py'), {f'{key}loss_weight': 2.0}))
        with pytest.raises(ValueError, match=r'los_weight: .*did you mean loss_weight\?'):
            load_config(str(tmp_path / 'sum.py'), {f'{key}los_weight': 2.0})


def test_lists_and_plain_values_are_named():
    with pytest.raises(ValueError, match=r'--cfg-options val_evaluator\.7\.num_bins: '):
        load_config(DIGITS, {'val_evaluator.7.num_bins': 10})
    load_config(SCENES, {'model.decode_head.norm_cfg.requires_grad': False})


@pytest.mark.parametrize(
    ('part', 'message'),
    [
        (dict(model=dict(head=dict(loss=dict(type='MarginLabelSmoothingLoss', margn=8)))),
         r'model\.head\.loss\.margn: MarginLabelSmoothingLoss .*did you mean margin\?'),
        (dict(model=dict(head=dict(loss=dict(type='CombinedLoss', losses=[
            dict(type='SoftmaxFocalLoss'), dict(type='MDCALoss', los_weight=2.0)])))),
         r'head\.loss\.losses\.1\.los_weight: MDCALoss .*did you mean loss_weight\?'),
        (dict(test_evaluator=[dict(type='Accuracy'), dict(type='ECE', bins=15)]),
         r'test_evaluator\.1\.bins: ECE has no option bins; .*num_bins'),
        (dict(val_dataloader=dict(dataset=dict(type='RepeatDataset', times=2, dataset=dict(
            type='Digits', spilt='val')))),
         r'val_dataloader\.dataset\.dataset\.spilt: Digits .*did you mean split\?'),
        (dict(custom_hooks=[dict(type='LossScheduleHook', parametre='margin', priority=50)]),
         r'custom_hooks\.0\.parametre: LossScheduleHook .*did you mean parameter\?'),
        (dict(custom_hooks=[dict(type='LossScheduleHook', parameter='margin', factor=2.0)]),
         r'LossScheduleHook has no option factor; factor is gone since 0\.3\.0: use values='),
    ],
)  # fmt: skip
def test_a_config_that_cannot_be_built_is_refused(part, message):
    with pytest.raises(ValueError, match=message):
        check_constructors(Config(dict(default_scope='mmpretrain', **part)))


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


@pytest.mark.parametrize('arguments', [['nowhere.py'], [DIGITS, '--no-such-option']])
def test_the_first_process_says_at_once_what_is_wrong(arguments, monkeypatch, capsys):
    """The launcher then ends the others; one that it does not end says it, too."""
    waited = []
    monkeypatch.setattr(parser.time, 'sleep', waited.append)
    cases = (
        ('RANK', '0', 'pytorch', 0),
        ('RANK', '1', 'pytorch', 1),
        ('SLURM_PROCID', '1', 'none', 0),  # a task that trains by itself
        ('SLURM_PROCID', '1', 'slurm', 1),
    )
    for variable, rank, launcher, waits in cases:
        monkeypatch.setenv(variable, rank)
        waited.clear()
        with pytest.raises(SystemExit) as end:
            call_here('train.py', *arguments, '--launcher', launcher, monkeypatch=monkeypatch)
        assert end.value.code == 2 and waited == [parser.PATIENCE] * waits
        assert 'train.py: error: ' in capsys.readouterr().err
