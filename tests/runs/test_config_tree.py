"""Which trainings are the same experiment, and the text of a config, read and not run."""

import json

import pytest
from commands import ROOT
from mmengine.config import Config

from mmcalib.runs.config import load_config
from mmcalib.runs.config_tree import losses_of, main_loss, parse_config, training_in
from mmcalib.runs.model import facts_of


def load(name, **options):
    options = {key.replace('__', '.'): value for key, value in options.items()}
    cfg = load_config(str(ROOT / f'configs/{name}.py'))
    cfg.merge_from_dict(options)
    return cfg


def trained(name='ce/digits', processes=1, **options):
    return training_in(load(name, **options), processes=processes)


SCHEDULE = dict(type='LossScheduleHook', parameter='margin', cap=float('inf'))


@pytest.mark.parametrize(
    ('part', 'options'),
    [
        ('train_dataloader', dict(train_dataloader__dataset__noise=0)),
        ('model', dict(model__backbone__depth=34)),
        ('model', dict(data_preprocessor__mean=[0.5])),
        ('model', dict(model__train_cfg=dict(augments=dict(type='Mixup', alpha=0.2)))),
        ('train_dataloader', dict(train_dataloader__batch_size=32)),
        ('processes', dict(processes=2)),
        ('optim_wrapper', dict(optim_wrapper__type='AmpOptimWrapper')),
        ('auto_scale_lr', dict(auto_scale_lr__enable=True)),
        ('param_scheduler', dict(param_scheduler__T_max=3)),
        ('train_cfg', dict(train_cfg__max_epochs=2)),
        ('custom_hooks', dict(custom_hooks=[SCHEDULE])),
        ('custom_hooks', dict(custom_hooks=[dict(type='mine.OwnHook')])),
        ('selection', dict(default_hooks__checkpoint__save_best='calibration/NLL')),
        ('selection', dict(val_dataloader__dataset__noise=0)),
        ('selection', dict(default_hooks__checkpoint__type='mine.OwnCheckpointHook')),
        ('load_from', dict(load_from='https://a.b/weights.pth')),
    ],
)
def test_what_decides_about_figures_is_told_apart(part, options):
    plain, other = trained(), trained(**options)
    changed = {key for key in {**plain, **other} if plain.get(key) != other.get(key)}
    assert changed == {part}
    assert json.loads(json.dumps(other, allow_nan=False)) == other


@pytest.mark.parametrize(
    'options',
    [
        dict(name='mbls/digits'),
        dict(randomness__seed=7),
        dict(work_dir='/elsewhere', log_level='WARNING', visualizer=None),
        dict(train_dataloader__num_workers=4, train_dataloader__pin_memory=True),
        dict(custom_hooks=[dict(type='LogitDistanceHook', interval=5)]),
        dict(default_hooks__logger__interval=1, default_hooks__reliability_diagram=None),
        dict(default_hooks__checkpoint__max_keep_ckpts=1),
        dict(model__head__type='mmpretrain.LinearClsHead'),
        dict(resume=True, load_from='epoch_3.pth'),
    ],
)
def test_what_does_not_is_not(options):
    assert trained(**options) == trained()


def test_a_data_set_is_not_the_folder_it_lies_in():
    name, root = 'ce/resnet50_cifar10', 'train_dataloader__dataset__dataset__data_root'
    assert trained(name, **{root: '/mnt/c10'}) == trained(name)
    folder = dict(train_dataloader__dataset__dataset__type='CustomDataset')
    for path, kept in (('/mnt/photos/', 'photos'), ('data/photos/train', 'photos/train')):
        found = trained(name, **folder, **{root: path})['train_dataloader']
        assert found['dataset']['dataset']['data_root'] == kept


NONE = dict(_delete_=True, type='NoSuch', b=2)
MBLS = dict(type='MarginLabelSmoothingLoss', alpha=1, class_reduction='sum')


@pytest.mark.parametrize(
    ('name', 'options', 'loss'),
    [
        ('mbls/digits', {}, dict(type='MarginLabelSmoothingLoss', margin=8.0, alpha=0.1)),
        ('mbls/digit_scenes_m0', {}, dict(MBLS, margin=0.0, alpha=0.05, class_reduction=None)),
        ('flsd/digits', {}, dict(type='SampleDependentFocalLoss')),
        ('ce/digits', {}, dict(type='CrossEntropyLoss')),
        ('ce/digit_scenes', {}, dict(type='CrossEntropyLoss', avg_non_ignore=True)),
        ('ce/digits', dict(model__head__loss=dict(_delete_=True, **MBLS)), dict(MBLS, margin=10.0)),
        ('ce/digits', dict(model__head__loss=NONE), dict(type='NoSuch', b=2)),
    ],
)
def test_a_loss_is_its_type_and_what_is_not_the_default(name, options, loss):
    loss = {key: value for key, value in loss.items() if value is not None}
    assert main_loss(load(name, **options)) == loss


def test_the_auxiliary_head_is_not_the_main_one():
    head = dict(type='FCNHead', loss_decode=dict(type='LabelSmoothingLoss', alpha=0.2))
    cfg = load('mbls/digit_scenes')
    cfg.model = dict(auxiliary_head=[head], **cfg.model)
    path = 'model.auxiliary_head.0.loss_decode'
    assert list(losses_of(cfg.model))[-1] == path
    assert main_loss(cfg)['type'] == 'MarginLabelSmoothingLoss'
    expected = {path: {'type': 'LabelSmoothingLoss', 'alpha': 0.2}}
    assert training_in(cfg)['other_losses'] == expected


@pytest.mark.parametrize(('launcher', 'processes'), [('none', 1), ('pytorch', None)])
def test_a_checkpoint_of_another_tool_says_what_it_can(launcher, processes):
    cfg = load('ce/digits')
    cfg.launcher = launcher
    assert training_in(parse_config(cfg.pretty_text)) == trained() | dict(processes=processes)


@pytest.mark.parametrize('name', ['mbls/digits', 'flsd/digit_scenes', 'ce/deeplabv3_r50_voc'])
def test_what_mmengine_writes_is_read(name):
    text = load(name).pretty_text
    assert parse_config(text) == Config.fromstring(text, '.py').to_dict()


def test_all_that_a_config_may_hold_is_read():
    cfg = Config(
        dict(
            a={'x.y': -1.5, 'z': float('inf'), 'type': 'Config'},
            b=[(1, 'two'), {'n': None, '2': True}, []],
        )
    )
    assert parse_config(cfg.pretty_text) == cfg.to_dict()
    assert parse_config("x = dict(**{'a b': 1}, c={2})") == {'x': {'a b': 1, 'c': {2}}}
    # Of classes mmengine 0.10.7 writes what is no Python, and later ones this.
    text = 'a = dict(type=mmengine.config.config.Config)\nb = [int]'
    assert parse_config(text) == dict(a=dict(type='mmengine.config.config.Config'), b=['int'])


OPEN = "open('{path}', 'w')"


@pytest.mark.parametrize(
    'text',
    [
        'import os',
        f'x = {OPEN}',
        f'x = dict(**{OPEN})',
        f'x = dict({OPEN})',
        f"x = [{OPEN} for _ in 'a']",
        f'x = (lambda: {OPEN})()',
        "x = f'{{open({path!r}, 1)}}'",
        "dict = open\nx = dict('{path}', 'w')",
        "x = '{path}'.upper",
        'x: int = 1',
        'x = y = 1',
        'x = 1 +',
        'x = ' + '(' * 10_000,
        f'x = {{{{{OPEN}: 1}}}}',
    ],
)
def test_nothing_of_it_is_executed(text, tmp_path):
    text = text.format(path=tmp_path / 'written')
    with pytest.raises(ValueError, match='not a config'):
        parse_config(text)
    assert facts_of({'cfg': text}) is None and not (tmp_path / 'written').exists()
