"""Every config builds; one per data set and network trains and evaluates for a step."""

import os
from pathlib import Path

import pytest
import torch
from images import write_cifar10, write_cub, write_folders, write_tiny_imagenet, write_voc
from mmengine.evaluator import Evaluator
from mmengine.model import revert_sync_batchnorm
from mmengine.optim import build_optim_wrapper
from mmengine.registry import DATASETS, MODELS, init_default_scope
from posts import write_posts, write_vectors

from mmcalib.datasets.same_data import same_data
from mmcalib.metrics.keys import HEADLINE
from mmcalib.runs.config import DATALOADERS, load_config, use_evaluation
from mmcalib.runs.config_checks import check_metrics
from mmcalib.runs.misspelt_options import check_constructors

ROOT = Path(__file__).resolve().parents[1]
CONFIGS = sorted(
    path for path in (ROOT / 'configs').glob('*/*.py') if not path.parent.name.startswith('_')
)
# Losses have tests of their own, so one of them will do for the networks that take long; and with
# one block per stage a ResNet-101 is a ResNet-50.
STEPS = [
    path
    for path in CONFIGS
    if 'digit' in path.name
    or (
        path.parent.name == 'mbls'
        and not path.stem.endswith('_m0')
        and not (
            'resnet101' in path.stem
            and path.with_name(path.name.replace('resnet101', 'resnet50')) in CONFIGS
        )
    )
]
SIZE = 64
EVALUATION = 'paper_evaluation'  # a folder of configs


@pytest.fixture(scope='module')
def tiny_data(tmp_path_factory):
    """A folder with tiny data where the configs look for the real ones."""
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
    # It checks md5 sums.
    monkeypatch.setattr(CIFAR10, '_check_integrity', lambda self: True)


@pytest.fixture
def _shallow(monkeypatch):
    """One block per stage for the ResNets, whatever their depth."""
    from mmpretrain.models import ResNet as ClassifierResNet
    from mmseg.models import ResNet as SegmentorResNet

    for resnet in (ClassifierResNet, SegmentorResNet):
        for depth in (34, 50, 101):
            block, blocks = resnet.arch_settings[depth]
            monkeypatch.setitem(resnet.arch_settings, depth, (block, (1,) * len(blocks)))


def load(path):
    """Load a config for the tiny data, of which less is held out."""
    cfg = load_config(str(path))
    for key in DATALOADERS:
        dataset = cfg[key].dataset
        for part in (dataset, dataset.get('dataset', {})):
            for size, count in (('held_out', 2), ('held_out_per_class', 1)):
                if size in part:
                    part[size] = count
        if dataset.type == 'Newsgroups20':
            dataset.num_val = 9
    init_default_scope(cfg.get('default_scope', 'mmpretrain'))
    return cfg


def reduce(cfg):
    """Make images smaller, texts shorter, a segmentor's head narrow, and ViT a single layer."""
    if cfg.model.backbone.type == 'GlobalPoolingCNN':
        for key in DATALOADERS:
            cfg[key].dataset.length = SIZE
    if cfg.model.backbone.type == 'VisionTransformer':
        arch = dict(embed_dims=768, num_layers=1, num_heads=12, feedforward_channels=768)
        cfg.model.backbone.update(arch=arch, img_size=SIZE)
    if cfg.default_scope == 'mmseg' and 'size' in cfg.model.data_preprocessor:
        cfg.model.data_preprocessor.size = (SIZE, SIZE)
    if 'ASPP' in cfg.model.get('decode_head', {}).get('type', ''):
        cfg.model.decode_head.channels = 32
    for key in DATALOADERS:
        dataset = cfg[key].dataset
        while 'dataset' in dataset:
            dataset = dataset.dataset
        for step in dataset.pipeline:
            if step.type == 'Resize':
                step.scale = SIZE if isinstance(step.scale, int) else (SIZE, SIZE)
            elif step.type in ('RandomCrop', 'CenterCrop'):
                size = step.crop_size
                step.crop_size = min(size, SIZE) if isinstance(size, int) else (SIZE, SIZE)


def build(cfg):
    """Build the model as the Runner does."""
    settings = cfg.model
    if settings.backbone.type.endswith('TIMMBackbone'):
        pytest.importorskip('timm')  # of the extra `photos`
    if 'data_preprocessor' in cfg:
        settings.data_preprocessor = dict(type='ClsDataPreprocessor', **cfg.data_preprocessor)
    return revert_sync_batchnorm(MODELS.build(settings))


BUILT = {}


def dataset(cfg, key):
    """Return the data set of a split, which is built once for the configs of all losses."""
    settings = cfg[key].dataset
    name = cfg.get('default_scope'), repr(settings)
    if name not in BUILT:
        BUILT[name] = DATASETS.build(settings)
    return BUILT[name]


def batch(cfg, key):
    """Return two samples of a split, and its metainfo."""
    data = dataset(cfg, key)
    samples = [data[0], data[1]]
    return {key: [sample[key] for sample in samples] for key in samples[0]}, data.metainfo


@pytest.mark.parametrize('path', CONFIGS, ids=lambda p: f'{p.parent.name}/{p.stem}')
def test_it_builds(path, monkeypatch):
    # Nobody looks at the weights, and ViT has 86 million.
    for name in (
        'kaiming_normal_', 'kaiming_uniform_', 'xavier_uniform_', 'trunc_normal_', 'uniform_',
    ):  # fmt: skip
        monkeypatch.setattr(torch.nn.init, name, lambda tensor, *args, **kwargs: tensor)
    cfg = load(path)
    model = build(cfg)
    head = model.decode_head if cfg.default_scope == 'mmseg' else model.head
    for key in DATALOADERS:
        data = dataset(cfg, key)
        assert len(data) > 0 and len(data.metainfo['classes']) == head.num_classes
    check_constructors(cfg)
    check_metrics(cfg)
    build_optim_wrapper(model, cfg.optim_wrapper)


@pytest.mark.parametrize('path', STEPS, ids=lambda p: f'{p.parent.name}/{p.stem}')
@pytest.mark.usefixtures('_shallow')
def test_a_training_and_an_evaluation_step(path):
    cfg = load(path)
    reduce(cfg)
    torch.manual_seed(0)
    model = build(cfg)
    optimizer = build_optim_wrapper(model, cfg.optim_wrapper)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}

    model.train()
    data = model.data_preprocessor(batch(cfg, 'train_dataloader')[0], training=True)
    total, log = model.parse_losses(model(**data, mode='loss'))
    optimizer.backward(total)
    gradients = [p.grad for p in model.parameters() if p.requires_grad]
    assert total.isfinite() and all(g is not None and g.isfinite().all() for g in gradients)
    assert any('loss' in key for key in log)
    optimizer.step()
    after = dict(model.named_parameters())
    assert all(p.isfinite().all() for p in after.values())
    assert any(not torch.equal(p, before[name]) for name, p in after.items())

    model.eval()
    for key in ('val', 'test'):
        evaluator = Evaluator(cfg[f'{key}_evaluator'])
        data, evaluator.dataset_meta = batch(cfg, f'{key}_dataloader')
        evaluator.process(model.test_step(data))
        values = evaluator.evaluate(2)
        assert cfg.default_hooks.checkpoint.save_best in values
        assert all(values[key] >= 0 for key in HEADLINE if key.startswith('calibration'))


@pytest.mark.usefixtures('_shallow')
def test_the_papers_evaluation_of_voc(tmp_path):
    cfg = load(ROOT / 'configs/mbls/deeplabv3_r34_voc.py')
    cfg.work_dir = str(tmp_path)
    use_evaluation(cfg, 'paper')
    assert cfg.work_dir == str(tmp_path / 'paper')
    reduce(cfg)
    cfg.model.data_preprocessor.test_cfg.size = (SIZE, SIZE)
    model = build(cfg).eval()
    evaluator = Evaluator(cfg.test_evaluator)
    data, evaluator.dataset_meta = batch(cfg, 'test_dataloader')
    samples = model.test_step(data)
    for sample in samples:
        assert max(sample.seg_logits.shape) == SIZE  # the longest side, without the padding
        assert sample.gt_sem_seg.shape == sample.seg_logits.shape
    evaluator.process(samples)
    assert set(evaluator.evaluate(2)) == {'mIoU', 'calibration/ECE', 'calibration/AECE'}
    with pytest.raises(ValueError, match=r'--evaluation voc: .* there are mmseg, paper'):
        use_evaluation(cfg, 'voc')


def test_the_model_index_lists_all_metafiles():
    index = (ROOT / 'model-index.yml').read_text()
    found = {os.path.relpath(path, ROOT) for path in ROOT.glob('configs/*/metafile.yml')}
    assert {line.split('- ')[1] for line in index.splitlines() if '- ' in line} == found


@pytest.mark.parametrize('depth', [34, 50])
def test_the_papers_evaluation_is_also_a_config(depth):
    name = f'deeplabv3_r{depth}_voc.py'
    named, written = load(ROOT / 'configs/ce' / name), load(ROOT / 'configs' / EVALUATION / name)
    named.work_dir = ''
    use_evaluation(named, 'paper')
    assert {**named.to_dict(), 'work_dir': None} == {**written.to_dict(), 'work_dir': None}


# Losses that learn from validations bring the hook that lets them.
LEARNING = {'adafocal': 'AdaFocalHook', 'cals': 'CALSHook'}
LOSS_CONFIGS = [path for path in CONFIGS if path.parent.name != EVALUATION]


@pytest.mark.parametrize('path', LOSS_CONFIGS, ids=lambda p: f'{p.parent.name}/{p.stem}')
def test_losses_differ_only_in_the_loss(path):
    name = path.name.replace('_m0', '')
    mine, baseline = load(path), load(ROOT / 'configs' / 'ce' / name)
    for cfg in (mine, baseline):
        head = cfg.model.get('head') or cfg.model.decode_head
        head.pop('loss', None)
        head.pop('loss_decode', None)
    if path.parent.name in LEARNING:
        assert mine.pop('custom_hooks') == [dict(type=LEARNING[path.parent.name])]
        assert mine.train_cfg.pop('val_interval') == 1
        baseline.train_cfg.pop('val_interval')
    assert mine.to_dict() == baseline.to_dict()


NETWORKS = (
    'resnet50_cifar10', 'resnet101_cifar10', 'resnet50_tinyimagenet', 'resnet101_tinyimagenet',
    'resnet101_cub', 'deeplabv3_r34_voc', 'deeplabv3_r50_voc', 'vit_cifar10', 'vit_tinyimagenet',
    'gpool_cnn_20news',
)  # fmt: skip
MARGINS = {'cifar10': 6.0, 'tinyimagenet': 10.0, 'cub': 10.0, 'voc': 10.0, '20news': 6.0}
LOSSES = {
    'ce': dict(type='CrossEntropyLoss'),
    'ecp': dict(type='ConfidencePenaltyLoss', alpha=0.1),
    'ls': dict(type='LabelSmoothingLoss', alpha=0.05),
    'fl': dict(type='SoftmaxFocalLoss', gamma=3.0),
    'flsd': dict(type='SampleDependentFocalLoss'),
    'mbls': dict(type='MarginLabelSmoothingLoss', alpha=0.1),
}


@pytest.mark.parametrize('folder', LOSSES)
@pytest.mark.parametrize('name', NETWORKS)
def test_the_paper_has_it_with_these_values(folder, name):
    def loss(path):
        model = load(path).model
        return model.head.loss if 'head' in model else model.decode_head.loss_decode

    values = loss(ROOT / 'configs' / folder / f'{name}.py')
    assert LOSSES[folder] == {key: values[key] for key in LOSSES[folder]}
    if folder == 'mbls':
        (margin,) = (margin for data, margin in MARGINS.items() if name.endswith(data))
        assert values.margin == margin
        without = loss(ROOT / 'configs' / folder / f'{name}_m0.py')
        assert (without.margin, without.alpha) == (0.0, 0.05)


@pytest.mark.parametrize(
    'path',
    [path for folder in ('cals', 'adafocal') for path in (ROOT / 'configs' / folder).glob('*.py')],
    ids=str,
)
def test_no_loss_learns_from_the_test_split(path):
    cfg = load(path)
    assert not same_data(cfg.val_dataloader, cfg.test_dataloader)


@pytest.mark.parametrize(
    'name',
    [
        'resnet50_cifar10',
        'resnet50_tinyimagenet',
        'resnet101_cub_heldout',
        'deeplabv3_r50_voc_heldout',
        'deeplabv3plus_efflite0_people_animals',
        'efflite0_cifar10_finetune',
        'efflite0_tinyimagenet_finetune',
        'efflite0_image_folder',
        'gpool_cnn_20news',
    ],
)
def test_no_sample_is_in_two_splits(name):
    cfg = load(ROOT / 'configs/ce' / f'{name}.py')
    samples = []
    for key in DATALOADERS:
        data = DATASETS.build(cfg[key].dataset)
        infos = [data.get_data_info(index) for index in range(len(data))]
        samples += [
            info.get('img_path') or info.get('path') or info['img'].tobytes() for info in infos
        ]
    assert len(samples) == len(set(samples))


def test_the_bydate_posts_are_a_base_of_their_own():
    cfg = load(ROOT / 'configs/_base_/datasets/20news_bydate.py')
    sizes = [len(DATASETS.build(cfg[key].dataset)) for key in DATALOADERS]
    assert sizes == [71, 9, 40]
