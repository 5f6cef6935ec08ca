"""Configs: those of an experiment differ in the loss alone, and one of each trains for a step."""

import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from images import write_cifar10, write_cub, write_folders, write_tiny_imagenet, write_voc
from mmengine.evaluator import Evaluator
from mmengine.model import revert_sync_batchnorm
from mmengine.optim import build_optim_wrapper
from mmengine.registry import DATASETS, HOOKS, MODELS, init_default_scope
from posts import write_posts, write_vectors

from mmcalib.openmmlab.same_data import same_data
from mmcalib.reports.metric_columns import HEADLINE
from mmcalib.runs.checks import check_selection
from mmcalib.runs.config import load_config
from mmcalib.runs.config_tree import walk
from mmcalib.runs.run_config import DATALOADERS, use_evaluation

ROOT = Path(__file__).resolve().parents[1]
EXPERIMENTS = [path.stem for path in sorted((ROOT / 'configs/ce').glob('*.py'))]
# The paper's protocol chooses their checkpoint on the test images.
VALIDATED_ON_TEST = ('deeplabv3_r34_voc', 'deeplabv3_r50_voc', 'resnet101_cub')
# Losses that learn from validations bring the hook that lets them.
LEARNING = dict.fromkeys(('adafocal', 'cals'), 'LearnFromValidationHook')
SIZE = 64


@pytest.fixture(scope='module')
def tiny_data(tmp_path_factory):
    """Return a folder with tiny data where the configs look for the real ones."""
    folder = tmp_path_factory.mktemp('tiny')
    write_cifar10(folder / 'data/cifar10')
    for split in ('train', 'test'):
        write_folders(folder / 'data/cifar10_folder' / split)
    for split in ('train', 'val', 'test'):
        write_folders(folder / 'data/images' / split)
        write_folders(folder / 'data/tinyimagenet_folder' / split, classes=200, per_class=1)
    write_tiny_imagenet(folder / 'data/tiny-imagenet-200', classes=200, train=2, val=1)
    write_cub(folder / 'data/CUB_200_2011')
    write_voc(folder / 'data/VOCdevkit/VOC2012')
    write_posts(folder / 'data/20news')
    (folder / 'data/glove').mkdir()
    write_vectors(folder / 'data/glove/glove.6B.100d.txt')
    return folder


@pytest.fixture(autouse=True)
def _in_the_tiny_data(tiny_data, monkeypatch):
    from mmpretrain.datasets import CIFAR10

    monkeypatch.chdir(tiny_data)
    # The class compares md5 sums with those of the real files.
    monkeypatch.setattr(CIFAR10, '_check_integrity', lambda self: True)


@pytest.fixture
def _shallow(monkeypatch):
    """Give the ResNets one block per stage, whatever their depth."""
    from mmpretrain.models import ResNet as ClassifierResNet
    from mmseg.models import ResNet as SegmentorResNet

    for resnet in (ClassifierResNet, SegmentorResNet):
        for depth in (34, 50, 101):
            block, blocks = resnet.arch_settings[depth]
            monkeypatch.setitem(resnet.arch_settings, depth, (block, (1,) * len(blocks)))


def load(path):
    """Load a config for the tiny data, of which less is held out."""
    cfg = load_config(str(path))
    for _, part in list(walk(cfg._cfg_dict)):
        held_out = dict(held_out=2, held_out_per_class=1)
        part.update({size: held_out[size] for size in held_out if size in part})
        if part.get('type') == 'Newsgroups20':
            part.num_val = 9
    init_default_scope(cfg.get('default_scope', 'mmpretrain'))
    return cfg


def reduce(cfg):
    """Make images smaller, texts shorter, a segmentor's head narrow, and ViT a single layer."""
    for _, part in list(walk(cfg._cfg_dict)):
        kind = part.get('type', '')
        if kind == 'Newsgroups20':
            part.length = SIZE
        elif kind == 'VisionTransformer':
            arch = dict(embed_dims=768, num_layers=1, num_heads=12, feedforward_channels=768)
            part.update(arch=arch, img_size=SIZE)
        elif 'ASPP' in kind:
            part.channels = 32
        elif kind == 'SegDataPreProcessor' and 'size' in part:
            part.size = (SIZE, SIZE)
        elif kind == 'Resize':
            part.scale = SIZE if isinstance(part.scale, int) else (SIZE, SIZE)
        elif kind in ('RandomCrop', 'CenterCrop'):
            size = part.crop_size
            part.crop_size = min(size, SIZE) if isinstance(size, int) else (SIZE, SIZE)


def build(cfg):
    """Build the model as the Runner does."""
    settings = cfg.model
    if settings.backbone.type.endswith('TIMMBackbone'):
        pytest.importorskip('timm')  # It comes with the extra `photos`.
    if 'data_preprocessor' in cfg:
        settings.data_preprocessor = dict(type='ClsDataPreprocessor', **cfg.data_preprocessor)
    return revert_sync_batchnorm(MODELS.build(settings))


def pop_loss(cfg):
    """Take the loss out of a config and return it."""
    head = cfg.model.get('decode_head') or cfg.model.head
    return head.pop('loss_decode', None) or head.pop('loss')


def build_batch(cfg, key):
    """Return two samples of a split, and its metainfo."""
    data = DATASETS.build(cfg[key].dataset)
    samples = [data[0], data[1]]
    return {key: [sample[key] for sample in samples] for key in samples[0]}, data.metainfo


def image_identity(info):
    """Return the path of an image, or its bytes where it has no file."""
    return info.get('img_path') or info.get('path') or info['img'].tobytes()


@pytest.mark.parametrize('name', EXPERIMENTS)
@pytest.mark.usefixtures('_shallow')
def test_experiment_trains_and_differs_in_loss_only(name):
    cfg = load(ROOT / f'configs/ce/{name}.py')
    evaluator = Evaluator(cfg.val_evaluator)
    hook = HOOKS.build(cfg.default_hooks.checkpoint)
    check_selection(SimpleNamespace(cfg=cfg, val_evaluator=evaluator, hooks=[hook]))
    head = cfg.model.get('decode_head') or cfg.model.head
    splits = []
    for key in DATALOADERS:
        data = DATASETS.build(cfg[key].dataset)
        assert len(data) > 0 and len(data.metainfo['classes']) == head.num_classes
        splits.append({image_identity(data.get_data_info(index)) for index in range(len(data))})
    train, val, test = splits
    assert not train & (val | test)
    assert (val == test) if name in VALIDATED_ON_TEST else not val & test

    baseline = load(ROOT / f'configs/ce/{name}.py')
    pop_loss(baseline)
    for path in (ROOT / 'configs').glob(f'*/{name}*.py'):
        if path.stem.removesuffix('_m0') != name or path.parent.name == 'ce':
            continue
        actual = load(path)
        expected = baseline.to_dict()
        assert MODELS.build(pop_loss(actual))
        if path.parent.name in LEARNING:
            assert actual.pop('custom_hooks') == [dict(type=LEARNING[path.parent.name])]
            assert actual.train_cfg.pop('val_interval') == 1
            expected['train_cfg'].pop('val_interval')
            assert not same_data(actual.val_dataloader, actual.test_dataloader)
        assert actual.to_dict() == expected, path
        if path.stem == name and (path.parent.name == 'mbls' or name.startswith('digit')):
            check_one_step(path)


def check_one_step(path):
    """Train a reduced config for a step, then validate and test it."""
    cfg = load(path)
    reduce(cfg)
    torch.manual_seed(0)
    model = build(cfg)
    optimizer = build_optim_wrapper(model, cfg.optim_wrapper)
    model.train()
    data = model.data_preprocessor(build_batch(cfg, 'train_dataloader')[0], training=True)
    total, _ = model.parse_losses(model(**data, mode='loss'))
    optimizer.backward(total)
    gradients = [p.grad for p in model.parameters() if p.requires_grad]
    assert total.isfinite() and all(g is not None and g.isfinite().all() for g in gradients)
    assert any(g.abs().sum() > 0 for g in gradients)

    model.eval()
    for key in ('val', 'test'):
        evaluator = Evaluator(cfg[f'{key}_evaluator'])
        data, evaluator.dataset_meta = build_batch(cfg, f'{key}_dataloader')
        evaluator.process(model.test_step(data))
        values = evaluator.evaluate(2)
        assert cfg.default_hooks.checkpoint.save_best in values
        assert all(values[key] >= 0 for key in HEADLINE if key.startswith('calibration'))


@pytest.mark.usefixtures('_shallow')
def test_voc_paper_evaluation_measures_photographs_at_longest_side(tmp_path):
    cfg = load(ROOT / 'configs/mbls/deeplabv3_r34_voc.py')
    cfg.work_dir = str(tmp_path)
    use_evaluation(cfg, 'paper')
    assert cfg.work_dir == str(tmp_path / 'paper')
    reduce(cfg)
    cfg.model.data_preprocessor.test_cfg.size = (SIZE, SIZE)
    model = build(cfg).eval()
    evaluator = Evaluator(cfg.test_evaluator)
    data, evaluator.dataset_meta = build_batch(cfg, 'test_dataloader')
    samples = model.test_step(data)
    for sample in samples:
        assert max(sample.seg_logits.shape) == SIZE  # The padding is cut off.
        assert sample.gt_sem_seg.shape == sample.seg_logits.shape
    evaluator.process(samples)
    assert set(evaluator.evaluate(2)) == {'mIoU', 'calibration/ECE', 'calibration/AECE'}
    with pytest.raises(ValueError, match=r'--evaluation voc: .* there are mmseg, paper'):
        use_evaluation(cfg, 'voc')


MARGINS = {'cifar10': 6.0, 'tinyimagenet': 10.0, 'cub': 10.0, 'voc': 10.0, '20news': 6.0}
PAPER = {
    'ce': dict(type='CrossEntropyLoss'),
    'ecp': dict(type='ConfidencePenaltyLoss', alpha=0.1),
    'ls': dict(type='LabelSmoothingLoss', alpha=0.05),
    'fl': dict(type='SoftmaxFocalLoss', gamma=3.0),
    'flsd': dict(type='SampleDependentFocalLoss'),
    'mbls': dict(type='MarginLabelSmoothingLoss', alpha=0.1),
}


@pytest.mark.parametrize('folder', PAPER)
def test_paper_configs_have_the_papers_values(folder):
    for name in (
        'resnet50_cifar10', 'resnet101_cifar10', 'resnet50_tinyimagenet', 'resnet101_tinyimagenet',
        'resnet101_cub', 'deeplabv3_r34_voc', 'deeplabv3_r50_voc', 'vit_cifar10',
        'vit_tinyimagenet', 'gpool_cnn_20news',
    ):  # fmt: skip
        values = pop_loss(load(ROOT / f'configs/{folder}/{name}.py'))
        assert PAPER[folder] == {key: values[key] for key in PAPER[folder]}
        if folder == 'mbls':
            (margin,) = (margin for data, margin in MARGINS.items() if name.endswith(data))
            assert values.margin == margin
            without_margin = pop_loss(load(ROOT / f'configs/mbls/{name}_m0.py'))
            assert (without_margin.margin, without_margin.alpha) == (0.0, 0.05)


def test_newsgroups_config_of_page_splits_by_date(tmp_path):
    page = (ROOT / 'docs/results/newsgroups.md').read_text('utf-8')
    config = re.search(r'```python\n(_base_.*?)```', page, re.DOTALL)[1]
    (tmp_path / 'bydate.py').write_text(config, 'utf-8')
    cfg = load(tmp_path / 'bydate.py')
    sizes = [len(DATASETS.build(cfg[key].dataset)) for key in DATALOADERS]
    assert sizes == [71, 9, 40]
