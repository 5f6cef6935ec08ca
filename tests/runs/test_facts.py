"""Descriptions of trainings and losses, by which experiments are told apart."""

import json

import pytest
from commands import ROOT

from mmcalib.openmmlab.datasets.download_sources import SOURCES
from mmcalib.runs.config import load_config
from mmcalib.runs.facts import (
    NAMED_DATASETS,
    config_facts,
    describe_training,
    find_losses,
    main_loss,
    training_facts,
)
from mmcalib.runs.labels import loss_label


def load(name, **options):
    options = {key.replace('__', '.'): value for key, value in options.items()}
    cfg = load_config(str(ROOT / f'configs/{name}.py'))
    cfg.merge_from_dict(options)
    return cfg


def trained(name='ce/digits', processes=1, **options):
    return describe_training(load(name, **options), processes=processes)


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
def test_training_changed_option_told_apart(part, options):
    plain = trained()
    other = trained(**options)
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
def test_training_option_without_effect_not_told_apart(options):
    assert trained(**options) == trained()


def test_training_moved_data_set_not_told_apart():
    name = 'ce/resnet50_cifar10'
    root = 'train_dataloader__dataset__dataset__data_root'
    assert trained(name, **{root: '/mnt/c10'}) == trained(name)
    for path, expected in (('/mnt/photos/', 'photos'), ('data/photos/train', 'photos/train')):
        options = {'train_dataloader__dataset__dataset__type': 'CustomDataset', root: path}
        dataset = trained(name, **options)['train_dataloader']['dataset']['dataset']
        assert dataset['data_root'] == expected


def test_training_data_sets_of_any_folder_have_a_source():
    """A source for another data set must not change what tells its trainings apart."""
    assert set(NAMED_DATASETS) <= set(SOURCES)


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
def test_main_loss_has_type_and_chosen_options(name, options, loss):
    loss = {key: value for key, value in loss.items() if value is not None}
    assert main_loss(load(name, **options)) == loss


def test_main_loss_is_not_auxiliary():
    head = dict(type='FCNHead', loss_decode=dict(type='LabelSmoothingLoss', alpha=0.2))
    cfg = load('mbls/digit_scenes')
    cfg.model = dict(auxiliary_head=[head], **cfg.model)
    path = 'model.auxiliary_head.0.loss_decode'
    assert list(find_losses(cfg.model))[-1] == path
    assert main_loss(cfg)['type'] == 'MarginLabelSmoothingLoss'
    expected = {path: {'type': 'LabelSmoothingLoss', 'alpha': 0.2}}
    assert describe_training(cfg)['other_losses'] == expected


def scenes_config(head_type, losses):
    """Return a config whose segmentor has a head of a type, or a cascade of them, and losses."""
    cfg = load('ce/digit_scenes')
    heads = []
    for kind, loss in zip(head_type, losses, strict=True):
        heads.append(dict(cfg.model.decode_head, type=kind, loss_decode=loss))
    cfg.model.decode_head = heads[0] if len(heads) == 1 else heads
    return cfg


MARGIN = dict(type='MarginLabelSmoothingLoss', margin=8.0, alpha=0.1)
DICE = dict(type='DiceLoss', loss_weight=3.0)
BOUNDARY = dict(type='BoundaryLoss')
CE = dict(type='CrossEntropyLoss', loss_weight=0.4)


@pytest.mark.parametrize(
    ('head_type', 'losses', 'label'),
    [
        (['FCNHead'], [[DICE, MARGIN]], 'DiceLoss loss_weight=3 + MbLS m=8 α=0.1'),
        (['FCNHead', 'OCRHead'], [CE, MARGIN], 'MbLS m=8 α=0.1'),
        (['FCNHead', 'PointHead'], [CE, [MARGIN]], 'MbLS m=8 α=0.1'),
        (['DDRHead'], [[MARGIN, CE]], 'MbLS m=8 α=0.1'),
        (['PIDHead'], [[CE, MARGIN, BOUNDARY, MARGIN]], 'MbLS m=8 α=0.1 + MbLS m=8 α=0.1'),
        # Which logits the losses of an unknown head take is not known.
        (['NoSuchHead'], [[MARGIN, DICE]], 'MbLS m=8 α=0.1 + DiceLoss loss_weight=3'),
    ],
)
def test_main_loss_several_losses_names_those_of_the_prediction(head_type, losses, label):
    cfg = scenes_config(head_type, losses)
    assert loss_label(main_loss(cfg)) == label


def test_main_loss_several_losses_other_ones_told_apart():
    cfg = scenes_config(['FCNHead', 'OCRHead'], [CE, [DICE, MARGIN]])
    described_ce = dict(CE, avg_non_ignore=False)
    expected = {'model.decode_head.0.loss_decode': described_ce}
    assert describe_training(cfg)['other_losses'] == expected


def test_training_facts_of_other_tool_are_of_config():
    cfg = load('ce/digits')
    facts = training_facts({'cfg': load('mbls/digits').pretty_text}, cfg)
    assert facts == {**config_facts(cfg), 'told_by': 'config'}
    facts = training_facts({'facts': config_facts(cfg)}, load('mbls/digits'))
    assert facts == {**config_facts(cfg), 'told_by': 'checkpoint'}
