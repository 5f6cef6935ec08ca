"""Which trainings are the same experiment."""

import json

import pytest
from commands import ROOT

from mmcalib.runs.config import load_config
from mmcalib.runs.config_tree import parse_config, training_in


def trained(name='ce/digits', processes=1, **options):
    cfg = load_config(str(ROOT / f'configs/{name}.py'))
    cfg.merge_from_dict({key.replace('__', '.'): value for key, value in options.items()})
    return training_in(cfg, processes=processes)


FLOOR = dict(type='AccuracyFloorCheckpointHook', save_best='accuracy/top1')
SCHEDULE = dict(type='LossScheduleHook', parameter='margin', factor=-1.0)


@pytest.mark.parametrize(
    ('part', 'options'),
    [
        ('train_dataloader', dict(train_dataloader__dataset__noise=0)),
        ('model', dict(model__backbone__depth=34)),
        ('model', dict(data_preprocessor__mean=[0.5])),
        ('model', dict(model__train_cfg=dict(augments=dict(type='Mixup', alpha=0.2)))),
        ('train_dataloader', dict(train_dataloader__batch_size=32)),
        ('processes', dict(processes=2)),
        ('train_dataloader', dict(train_dataloader__drop_last=True)),
        ('optim_wrapper', dict(optim_wrapper__type='AmpOptimWrapper')),
        ('auto_scale_lr', dict(auto_scale_lr__enable=True)),
        ('param_scheduler', dict(param_scheduler__T_max=3)),
        ('train_cfg', dict(train_cfg__max_epochs=2)),
        ('custom_hooks', dict(custom_hooks=[SCHEDULE])),
        ('custom_hooks', dict(custom_hooks=[dict(type='mine.OwnHook')])),
        ('selection', dict(default_hooks__checkpoint__save_best='calibration/NLL')),
        ('selection', dict(val_dataloader__dataset__noise=0)),
        ('selection', dict(default_hooks__checkpoint=FLOOR | dict(min_accuracy=0.9))),
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


def test_other_losses_than_the_main_one_are_named():
    head = dict(type='FCNHead', loss_decode=dict(type='LabelSmoothingLoss', alpha=0.2))
    other = trained('mbls/digit_scenes', model__auxiliary_head=[head])['other_losses']
    expected = {'type': 'LabelSmoothingLoss', 'alpha': 0.2}
    assert other == {'model.auxiliary_head.0.loss_decode': expected}


@pytest.mark.parametrize(('launcher', 'processes'), [('none', 1), ('pytorch', None)])
def test_a_checkpoint_of_another_tool_says_what_it_can(launcher, processes):
    cfg = load_config(str(ROOT / 'configs/ce/digits.py'))
    cfg.launcher = launcher
    assert training_in(parse_config(cfg.pretty_text)) == trained() | dict(processes=processes)
