"""Every config builds, and takes a training and an evaluation step."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from mmengine.evaluator import Evaluator
from mmengine.registry import DATASETS, MODELS, init_default_scope
from PIL import Image
from posts import write_posts, write_vectors

from mmcalib import launch
from mmcalib.hooks import fit_vocabulary
from mmcalib.report import COLUMNS

ROOT = Path(__file__).resolve().parents[1]
CONFIGS = sorted(
    path for path in (ROOT / 'configs').glob('*/*.py') if not path.parent.name.startswith('_')
)
SIZE = 64
CLASSES = {'voc': 21, '20news': 20}


@pytest.fixture
def voc(tmp_path):
    """Four tiny image and mask pairs, laid out like VOC 2012."""
    rng = np.random.default_rng(0)
    for folder in ('JPEGImages', 'SegmentationClass', 'ImageSets/Segmentation'):
        (tmp_path / folder).mkdir(parents=True)
    for name in 'abcd':
        image = rng.integers(0, 256, (60, 80, 3), dtype=np.uint8)
        mask = rng.choice([0, 1, 20, 255], (60, 80)).astype(np.uint8)
        Image.fromarray(image).save(tmp_path / 'JPEGImages' / f'{name}.jpg')
        Image.fromarray(mask).save(tmp_path / 'SegmentationClass' / f'{name}.png')
    for split in ('train', 'val'):
        (tmp_path / 'ImageSets/Segmentation' / f'{split}.txt').write_text('a\nb\nc\nd\n')
    return tmp_path


@pytest.fixture
def news(tmp_path):
    """Tiny posts laid out like 20 Newsgroups, and vectors of some of their words."""
    write_vectors(tmp_path / 'glove.txt')
    return write_posts(tmp_path)


def load(path, voc, news):
    """Load a config without weights to download, at a reduced size, on the tiny data."""
    cfg = launch.load_config(str(path))
    cfg.model.backbone.init_cfg = None
    if 'voc' in path.name:
        cfg.model.data_preprocessor.size = (SIZE, SIZE)
        for key in launch.DATALOADERS:
            dataset = cfg[key].dataset
            dataset.data_root = str(voc)
            for step in dataset.pipeline:
                if step.type == 'Resize':
                    step.scale = (SIZE, SIZE)
                elif step.type == 'RandomCrop':
                    step.crop_size = (SIZE, SIZE)
    if '20news' in path.name:
        cfg.model.data_preprocessor.length = SIZE
        cfg.model.backbone.vectors = str(news / 'glove.txt')
        for key in launch.DATALOADERS:
            cfg[key].dataset.update(data_root=str(news), num_val=9)
    return cfg


def batch(cfg, key):
    """Return two samples of a split; CIFAR-10 checks md5 sums, so its are made up here."""
    dataset = cfg[key].dataset
    if dataset.type == 'CIFAR10':
        from mmpretrain.structures import DataSample

        return dict(
            inputs=[torch.randint(256, (3, 32, 32), dtype=torch.uint8) for _ in range(2)],
            data_samples=[DataSample().set_gt_label(label) for label in (3, 9)],
        )
    data = DATASETS.build(dataset)
    samples = [data[0], data[1]]
    return {key: [sample[key] for sample in samples] for key in samples[0]}


@pytest.mark.parametrize('path', CONFIGS, ids=lambda p: f'{p.parent.name}/{p.stem}')
def test_a_training_and_an_evaluation_step(path, voc, news):
    cfg = load(path, voc, news)
    init_default_scope(cfg.default_scope)
    torch.manual_seed(0)
    settings = cfg.model
    if 'data_preprocessor' in cfg:
        settings.data_preprocessor = dict(type='ClsDataPreprocessor', **cfg.data_preprocessor)
    model = launch.revert_sync_batchnorm(MODELS.build(settings))
    if any(hook.type == 'VocabularyHook' for hook in cfg.get('custom_hooks', [])):
        fit_vocabulary(model, DATASETS.build(cfg.train_dataloader.dataset))

    model.train()
    data = model.data_preprocessor(batch(cfg, 'train_dataloader'), training=True)
    total, log = model.parse_losses(model(**data, mode='loss'))
    total.backward()
    gradients = [p.grad for p in model.parameters() if p.requires_grad]
    assert total.isfinite() and all(g is not None and g.isfinite().all() for g in gradients)
    assert any('loss' in key for key in log)

    model.eval()
    evaluator = Evaluator(cfg.test_evaluator)
    classes = next((k for name, k in CLASSES.items() if name in path.name), 11)
    evaluator.dataset_meta = dict(classes=[str(k) for k in range(classes)])
    evaluator.process(model.test_step(batch(cfg, 'test_dataloader')))
    values = evaluator.evaluate(2)
    assert cfg.default_hooks.checkpoint.save_best in values
    assert all(values[key] >= 0 for key in COLUMNS if key.startswith('calibration'))


@pytest.mark.parametrize('path', CONFIGS, ids=lambda p: f'{p.parent.name}/{p.stem}')
def test_the_model_index_lists_it(path):
    meta = (path.parent / 'metafile.yml').read_text()
    assert f'Config: {path.relative_to(ROOT).as_posix()}' in meta
    assert (
        f'{os.path.relpath(path.parent, ROOT)}/metafile.yml'
        in (ROOT / 'model-index.yml').read_text()
    )


@pytest.mark.parametrize('path', CONFIGS, ids=lambda p: f'{p.parent.name}/{p.stem}')
def test_losses_differ_only_in_the_loss(path, voc, news):
    name = path.name.replace('_m0', '')
    mine, baseline = load(path, voc, news), load(ROOT / 'configs' / 'ce' / name, voc, news)
    for cfg in (mine, baseline):
        head = cfg.model.get('head') or cfg.model.decode_head
        head.pop('loss', None)
        head.pop('loss_decode', None)
    assert mine.to_dict() == baseline.to_dict()


def test_the_bydate_posts_are_a_base_of_their_own(news):
    cfg = launch.load_config(str(ROOT / 'configs/_base_/datasets/20news_bydate.py'))
    sizes = []
    for key in launch.DATALOADERS:
        cfg[key].dataset.update(data_root=str(news), num_val=9)
        sizes.append(len(DATASETS.build(cfg[key].dataset)))
    assert sizes == [71, 9, 40]
