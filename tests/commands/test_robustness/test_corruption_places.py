"""Where images are corrupted, stored sets in place of the clean data, and what is refused."""

import numpy as np
import pytest
import shifted
from commands import ROOT
from images import save, write_tiny_imagenet
from mmengine.registry import DATASETS

from mmcalib.commands.test_robustness.corruption_places import corrupted, places_in, stored
from mmcalib.openmmlab.datasets import CIFARC
from mmcalib.runs.config import load_config

LABELS = np.repeat(np.arange(4), 3)  # those of the clean data
PACK = dict(type='PackInputs')
LOAD = dict(type='LoadImageFromFile')


@pytest.fixture
def clean(tmp_path):
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
def test_behind_what_loads_and_resizes(pipeline, before, expected, clean):
    dataset = {**clean, 'pipeline': pipeline}
    if isinstance(expected, str):
        with pytest.raises(ValueError, match=expected):
            places_in(dataset, 'mmpretrain', before)
    else:
        (place,) = places_in(dataset, 'mmpretrain', before)
        assert (place.index, place.loader, place.channel_order) == expected


@pytest.mark.parametrize('name', ['digits', 'digit_scenes'])
def test_the_embedded_data_say_their_range(name, tmp_path):
    cfg = load_config(str(ROOT / f'configs/ce/{name}.py'))
    dataset = cfg.test_dataloader.dataset
    (place,) = places_in(dataset, cfg.default_scope)
    assert (place.index, place.loader) == (0, None)  # the data set gives arrays itself
    transform = corrupted(dataset, [place], 'contrast', 1)['pipeline'][0]
    assert transform['type'] == 'Corrupt' and transform['channel_order'] == 'rgb'
    assert transform['value_range'] == (-1.5, 2.5)
    with pytest.raises(ValueError, match='8-bit files in BGR, but the test pipeline'):
        in_place(dataset, write_arrays(tmp_path / 'c', size=8))


def test_every_part_of_a_list_is_corrupted_once(tmp_path):
    cfg = load_config(str(shifted.write_config(tmp_path, 'segmentor')))
    dataset = cfg.test_dataloader.dataset
    dataset.data_root = str(tmp_path / 'data')
    both = dict(type='ConcatDataset', datasets=[dataset, dataset])
    places = places_in(both, 'mmseg')
    assert [(p.index, p.loader, p.shape) for p in places] == [(3, 0, (30, 40))] * 2
    for part in corrupted(both, places, 'fog', 4, seed=3)['datasets']:
        step = dict(type='Corrupt', corruption='fog', severity=4, seed=3, channel_order='bgr')
        assert part['pipeline'] == [*dataset.pipeline[:3], step, *dataset.pipeline[3:]]
    assert len(dataset.pipeline) == 4  # the config is left as it is


def write_arrays(root, *, labels=LABELS, size=32):
    root.mkdir(parents=True)
    shape = (5 * len(labels), size, size, 3)
    np.save(root / 'fog.npy', np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8))
    np.save(root / 'labels.npy', np.tile(labels, 5))
    return root


def write_tree(root, *, classes=('class_0', 'class_1', 'class_2', 'class_3'), size=(32, 32)):
    rng = np.random.default_rng(0)
    for severity, name, number in np.ndindex(5, len(classes), 3):
        save(root / f'fog/{severity + 1}/{classes[name]}/{number}.JPEG', size, rng)
    return root


def in_place(clean, root, *wanted):
    places = places_in(clean, 'mmpretrain')
    return list(stored(clean, places, 'mmpretrain', str(root), wanted or [('fog', 1)]))


def built(config):
    with DATASETS.switch_scope_and_registry('mmpretrain') as registry:
        dataset = registry.build(config)
        return dataset, dataset[5]


@pytest.mark.parametrize('write', [write_arrays, write_tree])
def test_stored_images_are_read_as_the_clean_ones(write, clean, tmp_path):
    root = write(tmp_path / 'c')
    (config,) = in_place(clean, root, ('fog', 3))
    _, sample = built(config)
    assert sample['inputs'].shape == (3, 32, 32) and sample['data_samples'].gt_label == 1
    if write is write_arrays:  # a severity is a fifth of them; as files are, in BGR
        images = np.load(root / 'fog.npy')
        expected = images[24 + 5][..., ::-1].transpose(2, 0, 1)
        np.testing.assert_array_equal(sample['inputs'].numpy(), expected)
        dataset = CIFARC(str(root), 'fog', 2)
        np.testing.assert_array_equal(dataset[11]['img'], images[12 + 11])
        assert len(dataset) == 12 and dataset[11]['gt_label'] == LABELS[11]


def test_folders_are_numbered_as_those_of_the_clean_data(tmp_path):
    root = write_tiny_imagenet(tmp_path / 'tiny', val=3)
    wnids = (root / 'wnids.txt').read_text().split()
    assert wnids != sorted(wnids)
    clean = dict(type='TinyImageNet', data_root=str(root), split='val', pipeline=[LOAD, PACK])
    (config,) = in_place(clean, write_tree(tmp_path / 'c', classes=wnids, size=(64, 64)))
    dataset, _ = built(config)
    for index in range(9):
        info = dataset.get_data_info(index)
        assert f'/{wnids[info["gt_label"]]}/' in info['img_path']


@pytest.mark.parametrize(
    ('write', 'options', 'wanted', 'message'),
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
def test_another_set_is_refused(write, options, wanted, message, clean, tmp_path):
    root = write(tmp_path / 'c', **options)
    with pytest.raises((FileNotFoundError, ValueError), match=message):
        in_place(clean, root, (wanted, 1))


def test_what_cannot_be_a_stored_set_is_said(clean, tmp_path):
    root = write_arrays(tmp_path / 'c')
    both = dict(type='ConcatDataset', datasets=[clean, clean])
    with pytest.raises(ValueError, match='replaces one data set, but the config has 2'):
        in_place(both, root)
    (tmp_path / 'data/list.txt').write_text('class_0/0.jpg 0\n')
    listed = {**clean, 'ann_file': 'list.txt', 'data_prefix': ''}
    with pytest.raises(ValueError, match='which folder is which class is not known'):
        in_place(listed, write_tree(tmp_path / 't'))
    with pytest.raises(ValueError, match='severity must be one of'):
        CIFARC(str(root), 'fog', 0)
    np.save(root / 'fog.npy', np.zeros((59, 32, 32, 3), np.uint8))
    with pytest.raises(ValueError, match='equal division'):
        CIFARC(str(root), 'fog', 1)
