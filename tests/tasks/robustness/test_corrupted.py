"""Where images are corrupted, stored sets in place of the clean data, and what is refused."""

import numpy as np
import pytest
import shifted
from commands import ROOT
from images import save, write_cifar10, write_tiny_imagenet
from mmengine.registry import DATASETS, TRANSFORMS

from mmcalib.datasets import CIFARC
from mmcalib.runs.config import load_config
from mmcalib.tasks.robustness.corrupted import corrupted, places_in, stored

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
    ],
)  # fmt: skip
def test_behind_what_loads_and_resizes(pipeline, before, expected, clean):
    (place,) = places_in({**clean, 'pipeline': pipeline}, 'mmpretrain', before)
    assert (place.index, place.loader, place.channel_order) == expected


@pytest.mark.parametrize(
    ('pipeline', 'message'),
    [
        ([], r'corruptions require 8-bit images, got .*NoneType'),
        ([LOAD, dict(type='NumpyToPIL')], r'8-bit images, got .*PIL'),
        ([dict(type='LoadImageFromFile', to_float32=True)], 'float32'),
    ],
)
def test_images_that_have_no_corruptions(pipeline, message, clean):
    with pytest.raises(ValueError, match=message):
        places_in({**clean, 'pipeline': pipeline}, 'mmpretrain')


@pytest.mark.parametrize('name', ['digits', 'digit_scenes'])
def test_the_embedded_data_say_their_range(name):
    cfg = load_config(str(ROOT / f'configs/ce/{name}.py'))
    dataset = cfg.test_dataloader.dataset
    (place,) = places_in(dataset, cfg.default_scope)
    transform = corrupted(dataset, [place], 'contrast', 1)['pipeline'][0]
    assert transform['type'] == 'Corrupt' and transform['value_range'] == (-1.5, 2.5)


def test_pipelines_of_the_toolboxes(tmp_path):
    cfg = load_config(str(shifted.write_config(tmp_path / 'seg', 'segmentor')))
    dataset = cfg.test_dataloader.dataset
    dataset.data_root = str(tmp_path / 'seg/data')
    (place,) = places_in(dataset, 'mmseg')
    assert (place.index, place.loader, place.shape) == (3, 0, (30, 40))
    both = dict(type='ConcatDataset', datasets=[dataset, dataset])
    changed = corrupted(both, places_in(both, 'mmseg'), 'fog', 4, seed=3)
    for part in changed['datasets']:
        assert [step['type'] for step in part['pipeline']] == [
            'LoadImageFromFile', 'Resize', 'LoadAnnotations', 'Corrupt', 'PackSegInputs'
        ]  # fmt: skip
        assert part['pipeline'][3] == dict(
            type='Corrupt', corruption='fog', severity=4, seed=3, channel_order='bgr'
        )
    assert len(dataset.pipeline) == 4  # the config is left as it is

    write_cifar10(tmp_path / 'cifar')
    cfg = load_config(str(ROOT / 'configs/ce/resnet50_cifar10.py'))
    dataset = cfg.test_dataloader.dataset
    dataset.data_root = str(tmp_path / 'cifar')
    dataset['_scope_'] = 'mmpretrain'
    with pytest.MonkeyPatch.context() as monkeypatch:
        import mmpretrain.datasets as datasets

        monkeypatch.setattr(datasets.CIFAR10, '_check_integrity', lambda self: True)
        (place,) = places_in(dataset, 'mmpretrain')
    assert (place.index, place.loader, place.shape) == (0, None, (32, 32))
    changed = corrupted(dataset, [place], 'fog', 1)
    assert changed['pipeline'][0]['channel_order'] == 'rgb'
    assert changed['pipeline'][1]['type'] == 'PackInputs'


@shifted.needs_extra
def test_the_colours_of_a_file_and_of_an_array_are_corrupted_alike():
    file = np.random.default_rng(0).integers(0, 256, (50, 60, 3), dtype=np.uint8)
    parts = [
        TRANSFORMS.build(dict(type='Corrupt', corruption='frost', severity=2, channel_order=order))
        for order in ('bgr', 'rgb')
    ]
    bgr, other = (
        parts[0]({'img': file.copy()})['img'],
        parts[1]({'img': file[..., ::-1].copy()})['img'],
    )
    np.testing.assert_array_equal(bgr, other[..., ::-1])


def write_arrays(root, *, labels=LABELS, size=32, names=('fog',)):
    root.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for name in names:
        images = rng.integers(0, 256, (5 * len(labels), size, size, 3), dtype=np.uint8)
        np.save(root / f'{name}.npy', images)
    np.save(root / 'labels.npy', np.tile(labels, 5))
    return root


def write_tree(root, *, classes=('class_0', 'class_1', 'class_2', 'class_3'), size=(32, 32)):
    rng = np.random.default_rng(0)
    for severity in range(1, 6):
        for name in classes:
            for number in range(3):
                save(root / 'fog' / str(severity) / name / f'{number}.JPEG', size, rng)
    return root


def in_place(clean, root, *wanted):
    places = places_in(clean, 'mmpretrain')
    return list(stored(clean, places, 'mmpretrain', str(root), wanted or [('fog', 1)]))


def test_a_severity_is_a_fifth_of_an_array(tmp_path):
    root = write_arrays(tmp_path / 'c')
    dataset = DATASETS.build(dict(type='CIFARC', data_root=str(root), corruption='fog', severity=2))
    images = np.load(root / 'fog.npy')
    assert len(dataset) == 12
    for index in (0, 11):
        sample = dataset[index]
        np.testing.assert_array_equal(sample['img'], images[12 + index])
        assert sample['gt_label'] == LABELS[index]
    bgr = CIFARC(str(root), 'fog', 2, channel_order='bgr')
    np.testing.assert_array_equal(bgr[3]['img'], images[15][..., ::-1])


@pytest.mark.parametrize('write', [write_arrays, write_tree])
def test_stored_images_are_read_as_the_clean_ones(write, clean, tmp_path):
    root = write(tmp_path / 'c')
    (config,) = in_place(clean, root, ('fog', 3))
    with DATASETS.switch_scope_and_registry('mmpretrain') as registry:
        dataset = registry.build(config)
        sample = dataset[5]
    assert sample['inputs'].shape == (3, 32, 32) and sample['data_samples'].gt_label == 1
    if write is write_arrays:  # as files are, in BGR
        image = np.load(root / 'fog.npy')[24 + 5][..., ::-1]
        np.testing.assert_array_equal(sample['inputs'].numpy(), image.transpose(2, 0, 1))


def test_folders_are_numbered_as_those_of_the_clean_data(tmp_path):
    root = write_tiny_imagenet(tmp_path / 'tiny', val=3)
    wnids = (root / 'wnids.txt').read_text().split()
    assert wnids != sorted(wnids)
    pipeline = [dict(type='LoadImageFromFile'), dict(type='PackInputs')]
    clean = dict(type='TinyImageNet', data_root=str(root), split='val', pipeline=pipeline)
    (config,) = in_place(clean, write_tree(tmp_path / 'c', classes=wnids, size=(64, 64)))
    with DATASETS.switch_scope_and_registry('mmpretrain') as registry:
        dataset = registry.build(config)
        dataset.full_init()
    for index in range(9):
        info = dataset.get_data_info(index)
        assert f'/{wnids[info["gt_label"]]}/' in info['img_path']


def test_folders_without_names_are_refused(clean, tmp_path):
    (tmp_path / 'data/list.txt').write_text('class_0/0.jpg 0\n')
    listed = {**clean, 'ann_file': 'list.txt', 'data_prefix': ''}
    with pytest.raises(ValueError, match='which folder is which class is not known'):
        in_place(listed, write_tree(tmp_path / 'c'))


@pytest.mark.parametrize(
    ('write', 'options', 'message'),
    [
        (write_arrays, dict(labels=LABELS[:8]), '8 images in 3 classes, the clean data 12 '),
        (write_arrays, dict(labels=np.repeat(range(4), 2)), 'in 4 .*, or classes of other sizes'),
        (write_arrays, dict(size=40), 'images of 40×40 pixels, clean ones are 32×32'),
        (write_tree, dict(size=(48, 32)), 'images of 32×48 pixels, clean ones are 32×32'),
        (write_tree, dict(classes=['class_0', 'x', 'class_2', 'class_3']),
         'other classes than the model: 2 folders, such as class_1'),
    ],
)  # fmt: skip
def test_another_set_is_refused(write, options, message, clean, tmp_path):
    with pytest.raises(ValueError, match=message):
        in_place(clean, write(tmp_path / 'c', **options))


def test_values_of_a_range_are_none_that_are_stored(tmp_path):
    dataset = load_config(str(shifted.ROOT / 'configs/ce/digits.py')).test_dataloader.dataset
    with pytest.raises(ValueError, match='8-bit files in BGR, but the test pipeline'):
        in_place(dataset, write_arrays(tmp_path / 'c', size=8))


def test_what_is_not_there_is_named(clean, tmp_path):
    arrays, tree = write_arrays(tmp_path / 'a'), write_tree(tmp_path / 't')
    for root, name in ((arrays, 'snow.npy'), (tree, r'nor snow/1/')):
        with pytest.raises((FileNotFoundError, ValueError), match=name):
            in_place(clean, root, ('snow', 1))
    with pytest.raises(ValueError, match='severity must be one of'):
        CIFARC(str(arrays), 'fog', 0)
    np.save(arrays / 'snow.npy', np.zeros((59, 32, 32, 3), np.uint8))
    with pytest.raises(ValueError, match='equal division'):
        CIFARC(str(arrays), 'snow', 1)
    both = dict(type='ConcatDataset', datasets=[clean, clean])
    with pytest.raises(ValueError, match='replaces one data set, but the config has 2'):
        in_place(both, arrays)
