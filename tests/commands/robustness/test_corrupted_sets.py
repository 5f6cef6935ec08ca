"""The place where images are corrupted, and stored sets in place of the clean data."""

import numpy as np
import pytest
import shifted
from commands import ROOT
from images import save, write_tiny_imagenet
from mmengine.registry import DATASETS

from mmcalib.commands.robustness.corrupted_sets import (
    find_places,
    stored_datasets,
    with_corruption,
)
from mmcalib.openmmlab.datasets import CIFARC
from mmcalib.runs.config import load_config

LABELS = np.repeat(np.arange(4), 3)  # The clean data have these.
PACK = dict(type='PackInputs')
LOAD = dict(type='LoadImageFromFile')


@pytest.fixture
def clean(tmp_path):
    """Config of the clean data of a classifier."""
    cfg = load_config(str(shifted.write_config(tmp_path, 'classifier')))
    cfg.test_dataloader.dataset.data_root = str(tmp_path / 'data')
    return cfg.test_dataloader.dataset


@pytest.mark.parametrize(
    ('pipeline', 'before', 'expected'),
    [
        ([LOAD, PACK], None, (1, 0, 'bgr')),
        ([LOAD, dict(type='mmcv.Resize', scale=(40, 40)), dict(type='Normalize'), PACK], None,
         (2, 0, 'bgr')),
        ([LOAD, dict(type='CleanCaption', keys=[]), dict(type='ResizeEdge', scale=40), PACK], None,
         (3, 0, 'bgr')),
        ([LOAD, dict(type='NumpyToPIL', to_rgb=True), dict(type='torchvision/Resize', size=40),
          dict(type='PILToNumpy'), PACK], None, (4, 0, 'rgb')),
        ([LOAD, dict(type='NumpyToPIL', to_rgb=True),
          dict(type='PILToNumpy', to_bgr=True), PACK], None, (3, 0, 'bgr')),
        ([LOAD, dict(type='Resize', scale=40), PACK], 'Resize', (1, 0, 'bgr')),
        ([LOAD], None, (1, 0, 'bgr')),
        ([], None, r'corruptions require 8-bit images, got .*NoneType'),
        ([LOAD, dict(type='NumpyToPIL')], None, r'8-bit images, got .*PIL'),
        ([dict(type='LoadImageFromFile', to_float32=True)], None, 'float32'),
        ([LOAD, PACK], 'Resize', 'name one of LoadImageFromFile, PackInputs'),
    ],
)  # fmt: skip
def test_find_places_pipeline_after_loading_and_resizing(pipeline, before, expected, clean):
    dataset = {**clean, 'pipeline': pipeline}
    if isinstance(expected, str):
        with pytest.raises(ValueError, match=expected):
            find_places(dataset, 'mmpretrain', before)
    else:
        (place,) = find_places(dataset, 'mmpretrain', before)
        assert (place.index, place.loader, place.channel_order) == expected


@pytest.mark.parametrize('name', ['digits', 'digit_scenes'])
def test_with_corruption_embedded_data_has_value_range(name, tmp_path):
    cfg = load_config(str(ROOT / f'configs/ce/{name}.py'))
    dataset = cfg.test_dataloader.dataset
    (place,) = find_places(dataset, cfg.default_scope)
    assert (place.index, place.loader) == (0, None)  # The data set itself has arrays.
    transform = with_corruption(dataset, [place], 'contrast', 1)['pipeline'][0]
    assert transform['type'] == 'Corrupt'
    assert transform['channel_order'] == 'rgb'
    assert transform['value_range'] == (-1.5, 2.5)
    with pytest.raises(ValueError, match='8-bit files in BGR, but the test pipeline'):
        stored_in_place(dataset, write_arrays(tmp_path / 'c', size=8))


def test_with_corruption_concatenated_parts_corrupted_once(tmp_path):
    cfg = load_config(str(shifted.write_config(tmp_path, 'segmentor')))
    dataset = cfg.test_dataloader.dataset
    dataset.data_root = str(tmp_path / 'data')
    both = dict(type='ConcatDataset', datasets=[dataset, dataset])
    places = find_places(both, 'mmseg')
    assert [(place.index, place.loader, place.shape) for place in places] == [(3, 0, (30, 40))] * 2
    for part in with_corruption(both, places, 'fog', 4, seed=3)['datasets']:
        transform = dict(type='Corrupt', corruption='fog', severity=4, seed=3, channel_order='bgr')
        assert part['pipeline'] == [*dataset.pipeline[:3], transform, *dataset.pipeline[3:]]
    assert len(dataset.pipeline) == 4  # The config itself does not change.


def write_arrays(root, *, labels=LABELS, size=32):
    """Write a set like CIFAR-10-C with one corruption, and return its folder."""
    root.mkdir(parents=True)
    shape = (5 * len(labels), size, size, 3)
    np.save(root / 'fog.npy', np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8))
    np.save(root / 'labels.npy', np.tile(labels, 5))
    return root


def write_tree(root, *, classes=('class_0', 'class_1', 'class_2', 'class_3'), size=(32, 32)):
    """Write a set like ImageNet-C with one corruption, and return its folder."""
    rng = np.random.default_rng(0)
    for severity in range(1, 6):
        for name in classes:
            for index in range(3):
                save(root / f'fog/{severity}/{name}/{index}.JPEG', size, rng)
    return root


def stored_in_place(clean, root, *corruptions):
    """Return the configs of stored corruptions, by default of one, in place of the clean data."""
    places = find_places(clean, 'mmpretrain')
    corruptions = corruptions or [('fog', 1)]
    return list(stored_datasets(clean, places, 'mmpretrain', str(root), corruptions))


def build_dataset(config):
    with DATASETS.switch_scope_and_registry('mmpretrain') as registry:
        return registry.build(config)


@pytest.mark.parametrize('write', [write_arrays, write_tree])
def test_stored_datasets_images_read_as_clean_ones(write, clean, tmp_path):
    root = write(tmp_path / 'c')
    (config,) = stored_in_place(clean, root, ('fog', 3))
    sample = build_dataset(config)[5]
    assert sample['inputs'].shape == (3, 32, 32)
    assert sample['data_samples'].gt_label == 1


def test_stored_datasets_arrays_are_fifths_in_bgr(clean, tmp_path):
    root = write_arrays(tmp_path / 'c')
    (config,) = stored_in_place(clean, root, ('fog', 3))
    actual = build_dataset(config)[5]['inputs'].numpy()
    images = np.load(root / 'fog.npy')
    expected = images[24 + 5][..., ::-1].transpose(2, 0, 1)
    np.testing.assert_array_equal(actual, expected)
    dataset = CIFARC(str(root), 'fog', 2)
    assert len(dataset) == 12
    np.testing.assert_array_equal(dataset[11]['img'], images[12 + 11])
    assert dataset[11]['gt_label'] == LABELS[11]


def test_stored_datasets_folders_numbered_as_clean_ones(tmp_path):
    root = write_tiny_imagenet(tmp_path / 'tiny', val=3)
    class_folders = (root / 'wnids.txt').read_text().split()
    assert class_folders != sorted(class_folders)
    clean = dict(type='TinyImageNet', data_root=str(root), split='val', pipeline=[LOAD, PACK])
    stored_root = write_tree(tmp_path / 'c', classes=class_folders, size=(64, 64))
    (config,) = stored_in_place(clean, stored_root)
    dataset = build_dataset(config)
    for index in range(9):
        info = dataset.get_data_info(index)
        assert f'/{class_folders[info["gt_label"]]}/' in info['img_path']


@pytest.mark.parametrize(
    ('write', 'options', 'corruption', 'message'),
    [
        (write_arrays, dict(labels=LABELS[:8]), 'fog', '8 images in 3 classes, the clean data 12 '),
        (write_arrays, dict(labels=np.repeat(range(4), 2)), 'fog', 'in 4 .*, or classes of other'),
        (write_arrays, dict(size=40), 'fog', 'images of 40×40 pixels, clean ones are 32×32'),
        (write_tree, dict(size=(48, 32)), 'fog', 'images of 32×48 pixels, clean ones are 32×32'),
        (write_tree, dict(classes=['class_0', 'x', 'class_2', 'class_3']), 'fog',
         'other classes than the model: 2 folders, such as class_1'),
        (write_arrays, {}, 'snow', 'snow.npy'),
        (write_tree, {}, 'snow', 'nor snow/1/'),
    ],
)  # fmt: skip
def test_stored_datasets_other_images_refused(write, options, corruption, message, clean, tmp_path):
    root = write(tmp_path / 'c', **options)
    with pytest.raises((FileNotFoundError, ValueError), match=message):
        stored_in_place(clean, root, (corruption, 1))


def test_stored_datasets_several_clean_data_refused(clean, tmp_path):
    both = dict(type='ConcatDataset', datasets=[clean, clean])
    with pytest.raises(ValueError, match='replaces one data set, but the config has 2'):
        stored_in_place(both, write_arrays(tmp_path / 'c'))


def test_stored_datasets_unknown_class_folders_refused(clean, tmp_path):
    (tmp_path / 'data/list.txt').write_text('class_0/0.jpg 0\n')
    listed = {**clean, 'ann_file': 'list.txt', 'data_prefix': ''}
    with pytest.raises(ValueError, match='which folder is which class is not known'):
        stored_in_place(listed, write_tree(tmp_path / 't'))


def test_cifarc_severity_or_array_invalid_raises(tmp_path):
    root = write_arrays(tmp_path / 'c')
    with pytest.raises(ValueError, match='severity must be one of'):
        CIFARC(str(root), 'fog', 0)
    np.save(root / 'fog.npy', np.zeros((59, 32, 32, 3), np.uint8))
    with pytest.raises(ValueError, match='equal division'):
        CIFARC(str(root), 'fog', 1)
