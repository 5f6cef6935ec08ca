"""Which trainings are the same experiment."""

import json

import pytest
from commands import ROOT

from mmcalib.record import digest
from mmcalib.runs.config import load_config
from mmcalib.runs.parse_config_text import parse_config
from mmcalib.runs.training_fingerprint import trained_config


def trained(name='ce/digits', processes=1, **options):
    cfg = load_config(str(ROOT / f'configs/{name}.py'))
    cfg.merge_from_dict({key.replace('__', '.'): value for key, value in options.items()})
    return trained_config(cfg, processes=processes)


FLOOR = dict(type='AccuracyFloorCheckpointHook', save_best='accuracy/top1', accuracy='mIoU')
SCHEDULE = dict(type='LossScheduleHook', parameter='margin', values={0: 1.0})


@pytest.mark.parametrize(
    ('part', 'options'),
    [
        ('data', dict(train_dataloader__dataset__noise=0)),
        ('data', dict(train_dataloader__dataset__indices=16)),
        ('network', dict(model__backbone__depth=34)),
        ('network', dict(data_preprocessor__mean=[0.5])),
        ('augmentation', dict(model__train_cfg=dict(augments=dict(type='Mixup', alpha=0.2)))),
        ('augmentation', dict(train_dataloader__dataset__pipeline=[dict(type='PackOthers')])),
        ('batch_size', dict(train_dataloader__batch_size=32)),
        ('batch_size', dict(processes=2)),
        ('sampling', dict(train_dataloader__drop_last=True)),
        ('optimizer', dict(optim_wrapper__type='AmpOptimWrapper')),
        ('optimizer', dict(auto_scale_lr__enable=True)),
        ('learning_rates', dict(param_scheduler__T_max=3)),
        ('length', dict(train_cfg__max_epochs=2)),
        ('loss_schedules', dict(custom_hooks=[SCHEDULE])),
        ('hooks', dict(custom_hooks=[dict(type='EMAHook')])),
        ('hooks', dict(custom_hooks=[dict(type='mine.OwnHook')])),
        ('selection', dict(default_hooks__checkpoint__save_best='calibration/NLL')),
        ('selection', dict(val_dataloader__dataset__noise=0)),
        ('selection', dict(default_hooks__checkpoint=FLOOR)),
        ('selection', dict(default_hooks__checkpoint=FLOOR | dict(min_accuracy=0.9))),
        ('initial_weights', dict(load_from='https://a.b/weights.pth')),
    ],
)
def test_what_decides_about_figures_is_told_apart(part, options):
    plain, other = trained(), trained(**options)
    assert {key for key in plain if plain[key] != other[key]} == {part}
    assert digest(plain) != digest(other)


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
        dict(train_dataloader__batch_size=32, processes=2),
    ],
)
def test_what_does_not_is_not(options):
    assert digest(trained(**options)) == digest(trained())


def test_the_accuracy_floor_of_the_best_checkpoint_is_told_apart():
    hooks = [FLOOR, FLOOR | dict(min_accuracy=0.9), FLOOR | dict(accuracy='aAcc')]
    digests = {digest(trained(default_hooks__checkpoint=hook)) for hook in hooks}
    assert len(digests) == 3
    same = trained(default_hooks__checkpoint=FLOOR | dict(min_accuracy=0.98, interval=3))
    assert digest(same) in digests


def test_a_data_set_is_not_the_folder_it_lies_in():
    name, root = 'ce/resnet50_cifar10', 'train_dataloader__dataset__dataset__data_root'
    assert digest(trained(name, **{root: '/mnt/c10'})) == digest(trained(name))
    folder = dict(train_dataloader__dataset__dataset__type='CustomDataset')
    for path, kept in (('/mnt/photos/', 'photos'), ('data/photos/train', 'photos/train')):
        assert trained(name, **folder, **{root: path})['data']['data_root'] == kept


def test_other_losses_than_the_main_one_are_named():
    head = dict(type='FCNHead', loss_decode=dict(type='LabelSmoothingLoss', alpha=0.2))
    other = trained('mbls/digit_scenes', model__auxiliary_head=[head])['other_losses']
    expected = {'type': 'LabelSmoothingLoss', 'alpha': 0.2}
    assert other == {'model.auxiliary_head.0.loss_decode': expected}


def test_a_checkpoint_of_another_tool_says_what_it_can():
    cfg = load_config(str(ROOT / 'configs/ce/digits.py'))
    cfg.launcher = 'none'
    assert digest(trained_config(parse_config(cfg.pretty_text))) == digest(trained())
    cfg.launcher = 'pytorch'
    assert trained_config(parse_config(cfg.pretty_text))['batch_size'] == '64 per process'


def test_it_survives_json():
    parts = trained('mbls/deeplabv3_r50_voc', train_dataloader__dataset__scale=(float('inf'), 1.0))
    assert json.loads(json.dumps(parts, allow_nan=False)) == parts
