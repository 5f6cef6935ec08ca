"""Mistakes of users that tools/train.py refuses in one line, before hours are spent."""

import copy
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from forked import run_forked
from images import write_folders, write_voc
from mmengine.evaluator import BaseMetric
from mmengine.registry import METRICS
from PIL import Image
from tested import small_config
from tiny_models import fcn_head, segmentor

from mmcalib.cli.parser import ToolParser
from mmcalib.commands.train import train_and_test
from mmcalib.errors import UserError
from mmcalib.openmmlab.hooks.broken_samples_hook import trainable_labels

LOSS = "model = dict(head=dict(loss=dict(_delete_=True, type='{}', {})))"
DATA = '{}_dataloader = dict(dataset=dict({}))'
DATALOADER = '{}_dataloader = dict({})'
IMPORTS = "custom_imports = dict(imports=['mmcalib', '{}'])"
LABELS = (
    'model = dict(neck={}, head=dict('
    "_delete_=True, type='{}', in_channels=128, num_classes=10, loss=dict({})))"
)
POOL = "dict(type='GlobalAveragePooling')"
TERMS = "losses=[dict(type='CrossEntropyLoss', use_soft=True), dict(type='MDCALoss')]"
COMBINED = "type='CombinedLoss', losses=[dict(type='CrossEntropyLoss'{}), dict(type='MDCALoss')]"
MIXED = "model['train_cfg'] = dict(augments=dict(type='{}', alpha=1.0))"
LEARNS = "custom_hooks = [dict(type='LearnFromValidationHook')]"
CSRA = "CSRAClsHead', num_heads=1, lam=0.1, _scope_='mmpretrain"
SMOOTHED = "type='LabelSmoothLoss', label_smooth_val=0.1, mode='{}'"
FOCAL = "losses=[dict(type='DualFocalLoss')]"


class UnknownMetric(BaseMetric):
    """A metric of another package, whose keys are not known."""

    def process(self, data_batch, data_samples):
        pass

    def compute_metrics(self, results):
        return {}


# Lines of a config, and what the error must name.
INVALID_CONFIGS = {
    'model = dict(head=dict(loss=dict(margn=8.0)))': (
        "MarginLabelSmoothingLoss: got an unexpected keyword argument 'margn'"
    ),
    "model = dict(head=dict(loss=dict(type='CrossEntropyLoss')))": (
        "unexpected keyword argument 'margin'"
    ),
    LOSS.format('CombinedLoss', "losses=[dict(type='MDCALoss', los_weight=2.0)]"): (
        "MDCALoss: got an unexpected keyword argument 'los_weight'"
    ),
    LOSS.format('NACLLoss', ''): r'NACLLoss .*maps \(N, K, H, W\)',
    LOSS.format('SVLSLoss', ''): r'SVLSLoss .*maps \(N, K, H, W\)',
    LOSS.format('CALSLoss', 'num_classes=10'): r"learns nothing .*\[dict\(type='LearnFromV",
    "custom_hooks = [dict(type='LossScheduleHook', parametre='margin')]": (
        "unexpected keyword argument 'parametre'"
    ),
    "custom_hooks = [dict(type='LossScheduleHook', parameter='margin', values={0: -1.0})]": (
        'error: margin must be'
    ),
    'model = dict(head=dict(num_classes=12))': 'train data have 10 classes, .* the model has 12. ',
    'model = dict(backbone=dict(depth=19))': r'the config cannot be built: .*depth 19.*\.log\)',
    "test_evaluator = [dict(type='ECE', bins=15)]": "unexpected keyword argument 'bins'",
    "test_evaluator = [dict(type='ECE', num_bins=0)]": 'metrics or test_cfg: num_bins .* 0',
    "test_evaluator = [dict(type='CalibrationMetrics')]": 'CalibrationMetrics is not in the ',
    "test_evaluator = [dict(type='OODMetric'), dict(type='Accuracy')]": 'but Accuracy would count',
    "val_evaluator = [dict(type='ECE'), dict(type='ECE', num_bins=9)]": '/ECE twice.*prefix=',
    "val_evaluator = [dict(type='Accuracy', topk=(1, 11))]": r'the head 10 .*topk=\(1,\)',
    'optim_wrapper = dict(optimizer=dict(lrr=0.1))': (
        "optim_wrapper: .*unexpected keyword argument 'lrr'"
    ),
    DATA.format('val', 'spilt=0'): "unexpected keyword argument 'spilt'",
    DATA.format('val', "metainfo=dict(classes=[*'abcdefghij'])"): (
        "the val set: class 0 is 'a', not '0'"
    ),
    DATA.format('test', 'metainfo=dict(classes=[*range(1, 11)])'): 'classes differ',
    DATA.format('val', "metainfo=dict(classes=('cows'))"): (
        "the val data: metainfo.classes is the text 'cows'.* followed by a comma"
    ),
    DATA.format('test', 'indices=[]'): 'the test data, .*: there are no samples',
    DATA.format('train', "_delete_=True, type='CUB', data_root='no'"): (
        r'train_dataloader\.dataset: there is no folder .*/no\. Unpack CUB.*dataset\.data_root='
    ),
    DATALOADER.format('val', 'drop_last=True'): (
        'val_dataloader: drop_last=True leaves out the last 4 of 4 samples.*drop_last=False'
    ),
    DATALOADER.format('val', "sampler=dict(type='InfiniteSampler')"): (
        'val_dataloader: an InfiniteSampler never ends'
    ),
    "custom_hooks = [dict(type='EMAHook', ema_type=lambda model: model)]": (
        'invalid.py: custom_hooks.0.ema_type has <function <lambda> '
    ),
    LOSS.format('mmcalib.FocalLoss', ''): (
        "invalid.py: model.head.loss.type is 'mmcalib.FocalLoss'.* name it 'FocalLoss'"
    ),
    "model = dict(_delete_=True, type='ImageToImageRetriever', image_encoder=[dict(type="
    f"'TinyFeatures')], prototype='none')\n{IMPORTS.format('tiny_models')}": (
        'val_evaluator: CalibrationMetric needs probabilities.*ImageToImageRetriever'
    ),
    IMPORTS.format('not_written'): 'Failed to import not_written: No .* beside the config',
    IMPORTS.format('it_fails'): 'Failed to import it_fails: No module named .nothing_like_it',
    'default_hooks = dict(checkpoint=dict(rule="less"))': 'would keep the worst checkpoint',
    # A softmax has one true class, where each of these classes is true or not.
    LABELS.format(POOL, 'MultiLabelLinearClsHead', "type='CrossEntropyLoss'"): (
        'MultiLabelLinearClsHead .* CrossEntropyLoss .*use_sigmoid=True'
    ),
    LABELS.format(POOL, 'MultiLabelLinearClsHead', SMOOTHED.format('original')): (
        'CrossEntropyLoss .*softmax.*use_sigmoid=True'
    ),
    LABELS.format(POOL, 'MultiLabelLinearClsHead', "type='MarginLabelSmoothingLoss'"): (
        'model.head: MultiLabelLinearClsHead .* MarginLabelSmoothingLoss'
    ),
    LABELS.format(None, CSRA, COMBINED.format(', use_sigmoid=True')): 'CSRAClsHead .* MDCALoss',
    # These losses need one label, and the labels are mixed.
    f'{LOSS.format("AdaFocalLoss", "")}\n{MIXED.format("Mixup")}\n{LEARNS}': (
        'AdaFocalLoss .*Mixup.*MarginLabelSmoothingLoss'
    ),
    f'{LOSS.format("DualFocalLoss", "")}\n{MIXED.format("CutMix")}': 'DualFocalLoss .*CutMix',
    f'{LOSS.format("CombinedLoss", FOCAL)}\n{MIXED.format("CutMix")}': 'DualFocalLoss .*CutMix',
    f'{LOSS.format("SeesawLoss", "num_classes=10")}\n{MIXED.format("Mixup")}': 'Seesaw.*Mixup',
}


CALS = LOSS.format('CALSLoss', 'num_classes=10')
ADA = LOSS.format('AdaFocalLoss', '')
BY_ITERATION = "train_cfg = dict(_delete_=True, type='IterBasedTrainLoop', max_iters=8)"
# Configs without a validation before the last step, and what the error must name.
NO_LEARNING = {
    f'{CALS}\ntrain_cfg = dict(max_epochs=2, val_interval=5)': (
        'CALSLoss .* before the last .*: val_interval=5, val_begin=1, max_epochs=2. Set the '
    ),
    f'{CALS}\ntrain_cfg = dict(max_epochs=2, val_interval=1, val_begin=100)': 'val_begin=100',
    f'{CALS}\ntrain_cfg = dict(max_epochs=1, val_interval=1)': 'max_epochs=1',
    f'{CALS}\ntrain_cfg = dict(max_epochs=9, val_interval=1, dynamic_intervals=[(0, 9)])': (
        r'dynamic_intervals=\[\(0, 9\)\]'
    ),
    f'{ADA}\n{BY_ITERATION}': 'AdaFocalLoss .*: val_interval=1000, val_begin=1, max_iters=8. ',
    f'{ADA}\nval_dataloader = val_evaluator = val_cfg = None': (
        'AdaFocalLoss .*this training has none: set val_cfg.*no-validate'
    ),
}


@pytest.mark.parametrize('text', NO_LEARNING)
def test_train_loss_without_a_validation_to_learn_from_refused(text, run, tmp_path):
    Path('invalid.py').write_text(f"_base_ = 'mmcalib::mbls/digits.py'\n{LEARNS}\n{text}\n")
    *_, last_line = run('train.py', 'invalid.py', code=2).splitlines()
    assert re.search(NO_LEARNING[text], last_line)
    assert not list(tmp_path.rglob('*.pth'))


@pytest.mark.parametrize('text', INVALID_CONFIGS)
def test_train_invalid_config_refused(text, run, tmp_path):
    Path('invalid.py').write_text(f"_base_ = 'mmcalib::mbls/digits.py'\n{text}\n")
    Path('it_fails.py').write_text('import nothing_like_it')
    limit = [] if 'indices' in text else ['--limit', 4]
    *_, last_line = run('train.py', 'invalid.py', *limit, code=2).splitlines()
    assert re.search(INVALID_CONFIGS[text], last_line)
    assert not list(tmp_path.rglob('*.pth'))
    if '.log' in INVALID_CONFIGS[text]:
        (log,) = tmp_path.rglob('*.log')
        assert 'Traceback' in log.read_text()
        assert str(log.relative_to(tmp_path)) in last_line


@pytest.mark.parametrize(
    'text',
    [
        LABELS.format(POOL, 'MultiLabelLinearClsHead', "type='CrossEntropyLoss', use_sigmoid=True"),
        LABELS.format(POOL, 'MultiLabelLinearClsHead', "type='AsymmetricLoss'"),
        LABELS.format(None, CSRA, SMOOTHED.format('multi_label')),
        f'{LOSS.format("MarginLabelSmoothingLoss", "")}\n{MIXED.format("Mixup")}',
        f'{LOSS.format("CombinedLoss", TERMS)}\n{MIXED.format("CutMix")}',
    ],
)
def test_train_loss_for_its_targets_runs(text, run):
    Path('valid.py').write_text(
        f"_base_ = 'mmcalib::mbls/digits.py'\n{text}\n"
        "val_evaluator = [dict(type='UnknownMetric')]\n"
        'default_hooks = dict(checkpoint=dict(save_best=None, rule=None))\n'
    )
    METRICS.register_module('UnknownMetric', module=UnknownMetric, force=True)
    run('train.py', 'valid.py', '--limit', 12, '--no-test')
    assert list(Path().rglob('epoch_1.pth'))


USER_LOSS = """
from mmengine.registry import MODELS
from torch import nn

@MODELS.register_module(force=True)
class MyLoss(nn.Module):
    def __init__(self, q=1.5, kind='plain', reduction='mean', loss_weight=1.0):
        super().__init__()

    def forward(self, pred, target, **_):
        return nn.functional.cross_entropy(pred, target)
"""


def test_train_loss_of_own_module_is_labelled(run):
    Path('project').mkdir()
    Path('project/a_loss_of_mine.py').write_text(USER_LOSS)
    Path('project/mine.py').write_text(
        "_base_ = 'mmcalib::ce/digits.py'\n"
        f'{IMPORTS.format("a_loss_of_mine")}\n'
        f'{LOSS.format("MyLoss", "q=2.5")}\n'
        'train_cfg = dict(max_epochs=1)\n'
        'train_dataloader = dict(dataset=dict(indices=16))\n'
        'test_dataloader = dict(dataset=dict(indices=5))\n'
    )
    run('train.py', 'project/mine.py')
    assert list(Path().glob('work_dirs/mine/best_*.pth'))
    assert 'MyLoss q=2.5' in run('report.py', 'work_dirs')


LOAD = [dict(type='LoadImageFromFile'), dict(type='mmpretrain.PackInputs')]


@pytest.mark.parametrize(('index', 'num_workers'), [(0, 0), (7, 0), (7, 1)])
def test_train_broken_image_is_named(index, num_workers, tmp_path):
    """The first image is read before the training, and others in its first step."""
    root = write_folders(tmp_path / 'images', per_class=1)
    path = root / f'class_{index}/0.jpg'
    path.write_bytes(b'')
    cfg = small_config(tmp_path / 'run')
    dataset = dict(type='CustomDataset', data_root=str(root), pipeline=LOAD)
    cfg.train_dataloader.dataset = dataset
    cfg.val_dataloader.dataset = dataset
    cfg.train_dataloader.num_workers = num_workers
    with pytest.raises(UserError) as error:
        train_and_test(cfg, test=False)
    assert f'cannot load {path}' in error.value.reason
    assert '(0 bytes)' in error.value.reason
    assert ('the val data' in error.value.reason) == (index == 0)


@pytest.mark.parametrize('toolbox', ['mmpretrain', 'mmseg'])
def test_train_blank_line_in_list_is_named(toolbox, tmp_path):
    """A segmentor would miss the file at the end of its first validation."""
    if toolbox == 'mmseg':
        cfg = config_with_label(tmp_path, 'CrossEntropyLoss', 0)
        dataset = cfg.train_dataloader.dataset
        list_file = tmp_path / 'VOC2012' / dataset.ann_file
        list_file.write_text(list_file.read_text() + '\n')
    else:
        cfg = small_config(tmp_path / 'run')
        list_file = tmp_path / 'list.txt'
        list_file.write_text('a.png 0\nb.png 1\n\n')
        cfg.train_dataloader.dataset = dict(
            type='CustomDataset', data_root=str(tmp_path), ann_file='list.txt', pipeline=LOAD
        )
    number = len(list_file.read_text().splitlines())
    with pytest.raises(
        UserError, match=rf'dataset.ann_file: line {number} of {list_file} is blank'
    ):
        train_and_test(cfg, test=False)


@pytest.mark.parametrize('line', ['b.png', 'b.png cat'])
def test_train_line_without_label_is_named(line, tmp_path):
    cfg = small_config(tmp_path / 'run')
    list_file = tmp_path / 'list.txt'
    list_file.write_text(f'a b.png 0\n{line}\n')
    cfg.train_dataloader.dataset = dict(
        type='CustomDataset', data_root=str(tmp_path), ann_file='list.txt', pipeline=LOAD
    )
    message = rf'dataset.ann_file: line 2 of {list_file} has no label: .* behind the file'
    with pytest.raises(UserError, match=message):
        train_and_test(cfg, test=False)


@pytest.mark.parametrize('split', ['train', 'val'])
@pytest.mark.parametrize('folder', ['JPEGImages', 'SegmentationClass'])
def test_train_listed_file_that_is_missing_is_named(split, folder, tmp_path):
    """The end of a list is read after hours, that of a validation after the first epoch."""
    cfg = config_with_label(tmp_path, 'CrossEntropyLoss', 0)
    if split == 'val':
        validate(cfg)
    names = (tmp_path / f'VOC2012/ImageSets/Segmentation/{split}.txt').read_text().split()
    (last,) = (tmp_path / 'VOC2012' / folder).glob(f'{names[-1]}.*')
    last.unlink()
    expected = (
        f'the {split} data: 1 of the samples that .*{split}.txt lists cannot be used, the first '
        f'since there is no file {last}'
    )
    with pytest.raises(UserError, match=expected):
        train_and_test(cfg, test=False)


def listed(root, name, last_label):
    """Return the data of a list of ten images, of which the last has a given label."""
    labels = [*range(9), last_label]
    lines = [f'class_{index}/0.jpg {label}' for index, label in enumerate(labels)]
    (root / name).write_text('\n'.join(lines) + '\n')
    steps = [LOAD[0], dict(type='Resize', scale=(8, 8)), LOAD[1]]
    return dict(
        type='CustomDataset', data_root=str(root), ann_file=name, pipeline=steps,
        metainfo=dict(classes=[str(digit) for digit in range(10)]),
    )  # fmt: skip


@pytest.mark.parametrize('split', ['train', 'val', 'test'])
def test_train_label_of_no_class_in_a_list_is_named(split, tmp_path):
    """That of the test is read after hours."""
    root = write_folders(tmp_path / 'images', per_class=1)
    cfg = small_config(tmp_path / 'run')
    cfg[f'{split}_dataloader'].dataset = listed(root, 'bad.txt', 77)
    message = rf'the {split} data: 1 of .*bad.txt lists .*class_9/0.jpg has the label 77, of 10 '
    with pytest.raises(UserError, match=message):
        train_and_test(cfg)


def test_train_evaluated_images_that_are_trained_on_are_counted(tmp_path):
    root = write_folders(tmp_path / 'images', per_class=1)
    cfg = small_config(tmp_path / 'run')
    cfg.model.data_preprocessor = dict(mean=[0], std=[255])
    cfg.model.backbone.in_channels = 3
    cfg.train_dataloader.dataset = cfg.val_dataloader.dataset = listed(root, 'all.txt', 9)
    train_and_test(cfg, test=False)
    (log,) = (tmp_path / 'run').rglob('*.log')
    (line,) = lines_with(log.read_text(), 'are training images too')
    assert '10 of the 10 val images' in line


@pytest.mark.parametrize(
    ('names', 'refused'),
    [(['class_0', 'class_1'], False), (['cat', 'dog'], False), (['class_1', 'class_0'], True)],
)
def test_train_names_of_folders_in_other_order_refused(names, refused, tmp_path):
    """A label is the place of its folder, so each prediction would have another class's name."""
    root = write_folders(tmp_path / 'images', classes=2, per_class=1)
    cfg = small_config(tmp_path / 'run')
    dataset = dict(
        type='CustomDataset', data_root=str(root), pipeline=LOAD, metainfo=dict(classes=names)
    )
    cfg.train_dataloader.dataset = dict(type='RepeatDataset', dataset=dataset, times=2)
    cfg.val_dataloader = cfg.val_cfg = cfg.val_evaluator = None
    message = r"class 0 of metainfo.classes is 'class_1', but the images .* have the label 1: list"
    if not refused:  # The head has ten classes.
        message = 'the train data have 2 classes, but the head'
    with pytest.raises(UserError, match=message):
        train_and_test(cfg, test=False)


def config_with_label(folder, loss, label, name='b', **options):
    """Return a config that trains on Pascal VOC, where a mask, a to d, has a label in a corner."""
    root = write_voc(folder / 'VOC2012')
    path = root / f'SegmentationClass/{name}.png'
    mask = np.asarray(Image.open(path)).copy()
    mask[:6, :6] = label
    Image.fromarray(mask).save(path)
    cfg = small_config(folder / 'run', 'mbls/digit_scenes', **options)
    load = [dict(type='LoadImageFromFile', color_type='grayscale'), dict(type='LoadAnnotations')]
    steps = [*load, dict(type='Resize', scale=(40, 40)), dict(type='PackSegInputs')]
    cfg.train_dataloader.dataset = dict(
        type='PascalVOCDataset', data_root=str(root), ann_file='ImageSets/Segmentation/train.txt',
        data_prefix=dict(img_path='JPEGImages', seg_map_path='SegmentationClass'), pipeline=steps,
    )  # fmt: skip
    cfg.val_cfg = cfg.val_dataloader = cfg.val_evaluator = None
    cfg.model.decode_head.num_classes = 21
    cfg.model.decode_head.loss_decode = dict(type=loss)
    return cfg


def validate(cfg):
    """Give a config of `config_with_label` a validation."""
    loader = copy.deepcopy(cfg.train_dataloader)
    loader.dataset.ann_file = 'ImageSets/Segmentation/val.txt'
    loader.sampler = dict(type='DefaultSampler', shuffle=False)
    cfg.val_dataloader = loader
    cfg.val_cfg = dict()
    cfg.val_evaluator = [dict(type='CalibrationMetric', prefix='calibration')]


IGNORES_77 = dict(model__decode_head__ignore_index=77, model__data_preprocessor__seg_pad_val=77)


@pytest.mark.parametrize(
    ('loss', 'label', 'options', 'message'),
    [
        ('MarginLabelSmoothingLoss', 77, {'train_dataloader__num_workers': 1}, '77. .* 21 .* 255:'),
        ('DiceLoss', 77, {}, '77. The model has 21 classes and ignores 255: check the file'),
        ('CrossEntropyLoss', 77, IGNORES_77, '255. .* ignores 77:'),
        ('DiceLoss', 77, IGNORES_77, '255. .* ignores 77:'),
        ('CrossEntropyLoss', 21, {}, '21. '),
    ],
)
def test_train_label_out_of_range_names_mask(loss, label, options, message, tmp_path):
    with pytest.raises(UserError) as error:
        train_and_test(config_with_label(tmp_path, loss, label, **options), test=False)
    reason = error.value.reason
    masks, _, labels = reason.partition(' labels outside [0, 21): ')
    assert masks.startswith(f'{tmp_path}/VOC2012/SegmentationClass/')
    assert re.match(message, labels)
    assert '\n' not in reason


@pytest.mark.parametrize('channels', [3, 4])
@pytest.mark.parametrize('split', ['train', 'val'])
def test_train_mask_in_colours_is_named(split, channels, tmp_path):
    cfg = config_with_label(tmp_path, 'CrossEntropyLoss', 0)
    root = tmp_path / 'VOC2012/SegmentationClass'
    colours = np.zeros((40, 40, channels), np.uint8)
    if split == 'train':
        Image.fromarray(colours).save(root / 'b.png')
    else:
        validate(cfg)
        for path in root.glob('[efg].png'):
            Image.fromarray(colours).save(path)
    with pytest.raises(UserError) as error:
        train_and_test(cfg, test=False)
    reason = error.value.reason
    assert str(root) in reason
    assert 'grey PNG' in reason
    assert f', {channels})' in reason
    assert '\n' not in reason


@pytest.mark.parametrize('cropped', [False, True])
def test_train_mask_of_other_size_is_named(cropped, tmp_path):
    """A crop would take another part of the mask; without one, a metric fails after the epoch."""
    cfg = config_with_label(tmp_path, 'CrossEntropyLoss', 0)
    path = tmp_path / 'VOC2012/SegmentationClass/b.png'
    mask = Image.open(path)
    mask.resize((2 * mask.width, 2 * mask.height), Image.Resampling.NEAREST).save(path)
    steps = cfg.train_dataloader.dataset.pipeline
    steps[2] = (
        dict(type='RandomCrop', crop_size=(20, 20))
        if cropped
        else dict(type='RandomFlip', prob=0.5)
    )
    cfg.model.data_preprocessor.size = (40, 40)
    cfg.train_dataloader.sampler.shuffle = False
    with pytest.raises(UserError) as error:
        train_and_test(cfg, test=False)
    height, width = mask.height, mask.width
    expected = f'has the size {(2 * height, 2 * width)}, and its image {(height, width)}: give'
    assert str(path) in error.value.reason
    assert expected in error.value.reason
    assert '\n' not in error.value.reason


@pytest.mark.parametrize('kind', ['0 and 255', 'all', 'all but 3'])
def test_train_classes_without_labels_are_named(kind, tmp_path):
    """A head of 21 classes that sees one alone is right everywhere, and learns nothing."""
    cfg = config_with_label(tmp_path, 'CrossEntropyLoss', 0)
    for path in tmp_path.glob('VOC2012/SegmentationClass/*.png'):
        mask = np.arange(40 * 40).reshape(40, 40) % 21
        if kind == '0 and 255':
            mask = np.where(mask > 0, 255, 0)
        elif kind == 'all but 3':
            mask[mask == 3] = 255
        Image.fromarray(mask.astype(np.uint8)).save(path)
    cfg.train_dataloader.dataset.pipeline[2] = dict(type='Resize', scale=(40, 40))
    for path in tmp_path.glob('VOC2012/JPEGImages/*.jpg'):
        Image.open(path).resize((40, 40)).save(path)
    train_and_test(cfg, test=False)
    (log,) = (tmp_path / 'run').rglob('*.log')
    lines = lines_with(log.read_text(), 'training images, repeats included: No label is of class')
    if kind == 'all':
        assert lines == []
        return
    (line,) = lines
    assert 'WARNING' in line
    if kind == 'all but 3':
        assert 'class bird: ' in line
        assert 'only one of these is a class' not in line
    else:
        assert 'classes aeroplane, bicycle, bird, boat, bottle and 15 more' in line
        assert 'The masks hold 0, 255, and only one of these is a class: write 0 to 20' in line


ONE_VALUE = (
    'model = dict(neck=dict(type="GlobalAveragePooling"), head=dict(_delete_=True,\n'
    '    type="StackedLinearClsHead", in_channels=128, mid_channels=[8], num_classes=10,\n'
    '    norm_cfg=dict(type="BN1d"), loss=dict(type="CrossEntropyLoss")))'
)


@pytest.mark.parametrize(
    ('num_images', 'loader', 'message'),
    [
        (9, 'batch_size=4', 'the last batch .* one image, of 9 in batches of 4: set .*drop_last='),
        (9, 'batch_size=4, drop_last=True', None),
        (8, 'batch_size=4', None),
        (8, 'batch_size=1', 'batches have one image: set .*batch_size to 2 or more'),
        (1, 'batch_size=4', 'each process has one image: take more images'),
    ],
)
def test_train_batch_of_one_image_for_batch_norm_refused(num_images, loader, message, run):
    Path('one.py').write_text(
        f"_base_ = 'mmcalib::ce/digits.py'\n{ONE_VALUE}\n"
        f'train_dataloader = dict({loader}, dataset=dict(indices={num_images}))\n'
    )
    arguments = ['one.py', '--no-test', '--no-validate', '--cfg-options', 'train_cfg.max_epochs=1']
    if message is None:
        run('train.py', *arguments)
        return
    *_, line = run('train.py', *arguments, code=2).splitlines()
    assert re.search(f'model.head.layers.0.norm normalises one value .*, and {message}', line)


def test_train_batch_of_one_image_without_such_a_layer_runs(run):
    Path('one.py').write_text(
        "_base_ = 'mmcalib::ce/digits.py'\n"
        'train_dataloader = dict(batch_size=4, dataset=dict(indices=9))\n'
    )
    run('train.py', 'one.py', '--no-test', '--cfg-options', 'train_cfg.max_epochs=1')


@pytest.mark.parametrize('loss', ['CrossEntropyLoss', 'MarginLabelSmoothingLoss', 'DiceLoss'])
@pytest.mark.parametrize(
    ('label', 'ignore_index', 'refused'),
    [(255, 11, True), (11, 255, True), (-1, 255, True), (255, 255, False), (0, 255, False)],
)
def test_train_unknown_padding_label_refused(loss, label, ignore_index, refused, tmp_path):
    """Images of another size are padded in some later step, where torch raises an IndexError."""
    cfg = small_config(
        tmp_path,
        'mbls/digit_scenes',
        model__decode_head__ignore_index=ignore_index,
        model__data_preprocessor__seg_pad_val=label,
        model__data_preprocessor__size=(48, 48),
    )
    cfg.model.decode_head.loss_decode = dict(type=loss)
    if not refused:
        train_and_test(cfg, test=False)
        return
    with pytest.raises(UserError, match=rf'seg_pad_val={label}\b.*seg_pad_val={ignore_index}\b'):
        train_and_test(cfg, test=False)
    assert not list(tmp_path.glob('*.pth'))


def lines_with(output, text):
    return [line for line in output.splitlines() if text in line]


@pytest.mark.parametrize('name', ['a', 'b'], ids=['first', 'second'])
def test_train_two_processes_error_names_image_once(name, tmp_path, free_port):
    """Each process reads the image of its rank in the first step, where the other one waits."""
    cfg = config_with_label(
        tmp_path,
        'CrossEntropyLoss',
        77,
        name,
        train_dataloader__batch_size=1,
        train_dataloader__sampler__shuffle=False,
    )
    cfg.dump(tmp_path / 'masks.py')
    output = run_forked(
        'train.py', tmp_path / 'masks.py', '--work-dir', 'run', '--no-test',
        '--cfg-options', 'randomness.deterministic=False',
        cwd=tmp_path, ranks=2, port=free_port, check=False,
    )  # fmt: skip
    (error,) = lines_with(output, 'error:')
    assert f'SegmentationClass/{name}.png' in error
    assert 'outside [0, 21): 77' in error
    assert 'Traceback' not in output
    # A warning is one line, which does not quote the source that warns.
    assert 'train.py: warning: --cfg-options randomness.deterministic: ' in output
    assert 'warnings.warn' not in output


def test_train_two_processes_download_refused_once(tmp_path, free_port):
    init = "init_cfg=dict(type='Pretrained', checkpoint='http://127.0.0.1:9/resnet.pth')"
    (tmp_path / 'mine.py').write_text(
        f"_base_ = 'mmcalib::mbls/digits.py'\nmodel = dict(backbone=dict({init}))\n"
    )
    output = run_forked('train.py', 'mine.py', cwd=tmp_path, ranks=2, port=free_port, check=False)
    (error,) = lines_with(output, 'error:')
    assert 'http://127.0.0.1:9/resnet.pth cannot be downloaded' in error
    assert 'model.backbone.init_cfg=None' in error
    assert 'model.backbone.init_cfg.checkpoint=FILE' in error


def test_train_two_processes_unknown_option_refused_once(tmp_path, free_port):
    output = run_forked(
        'train.py', 'mine.py', '--lmit', 3, cwd=tmp_path, ranks=2, port=free_port, check=False
    )
    assert output.count('usage: ') == 1
    assert output.count('error: ') == 1
    assert output.count('--limit?') == 1


@pytest.mark.parametrize(
    ('part', 'key'),
    [
        (
            "backbone=dict(init_cfg=dict(type='Pretrained', checkpoint='none.pth'))",
            'model.backbone.init_cfg',
        ),
        ("pretrained='none.pth'", 'model.pretrained'),
    ],
)
def test_train_missing_pretrained_file_names_key(part, key, run):
    Path('invalid.py').write_text(f"_base_ = 'mmcalib::mbls/digits.py'\nmodel = dict({part})\n")
    error = run('train.py', 'invalid.py', '--limit', 4, code=2)
    assert "'none.pth'" in error
    assert f'{key}=None' in error


@pytest.mark.parametrize(
    'error',
    [
        'Connection closed by peer [127.0.0.1]:9',
        'Read error [127.0.0.1]:9: Connection reset by peer',
        'writev [127.0.0.1]:9: Broken pipe',
    ],
)
def test_parser_error_of_ended_peer_is_one_line(error):
    """These are errors of gloo, one of them where the peer has not read its messages."""
    with pytest.raises(SystemExit, match='another process'), ToolParser().ending_with_errors():
        raise RuntimeError(f'[pair.cc:545] {error}. This is typically caused by a remote worker')


def test_parser_other_runtime_error_has_traceback():
    with pytest.raises(RuntimeError, match='a bug'), ToolParser().ending_with_errors():
        raise RuntimeError('a bug')


@pytest.mark.parametrize(('num_logits', 'expected'), [(1, 2), (4, 4)])
def test_trainable_labels_head_of_one_logit_has_two_classes(num_logits, expected):
    model = segmentor(fcn_head(num_classes=num_logits, ignore_index=7))
    num_classes, ignored_labels = trainable_labels(model)
    assert num_classes == expected
    assert 7 in ignored_labels


TRACKED = """
_base_ = 'mmcalib::mbls/digits.py'
test_dataloader = dict(dataset=dict(indices=20))
visualizer = dict(vis_backends=[dict(type='LocalVisBackend'), dict(type='WandbVisBackend')])
custom_hooks = [dict(type='EarlyStoppingHook', monitor='accuracy/top1')]
default_hooks = dict(stopping=dict(type='EarlyStoppingHook', monitor='accuracy/top1'))
"""
ELSEWHERE = "dict(_delete_=True, type='CustomDataset', data_root='nowhere')"


def test_train_tracker_that_is_not_installed_is_named(run, monkeypatch):
    monkeypatch.setitem(sys.modules, 'wandb', None)
    Path('tracked.py').write_text(TRACKED)
    *_, last_line = run('train.py', 'tracked.py', '--limit', 4, code=2).splitlines()
    assert 'wandb' in last_line


@pytest.mark.parametrize(
    'training',
    [
        f'train_dataloader = dict(dataset={ELSEWHERE})',
        'train_cfg = train_dataloader = optim_wrapper = param_scheduler = None',
    ],
)
def test_test_needs_no_tracker_and_no_training(training, run, monkeypatch):
    monkeypatch.setitem(sys.modules, 'wandb', None)
    train_and_test(small_config('run'), test=False)
    Path('tracked.py').write_text(f'{TRACKED}\n{training}\n')
    assert 'accuracy/top1' in run('test.py', 'tracked.py', 'run/epoch_1.pth')
