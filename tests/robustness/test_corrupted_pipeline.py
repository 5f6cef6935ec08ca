"""Where images are corrupted, in pipelines of any order."""

import numpy as np
import pytest
import shifted
from commands import ROOT
from images import write_cifar10
from mmengine.registry import TRANSFORMS
from PIL import Image

from mmcalib.robustness.corrupted_pipeline import (
    CorruptionPlace,
    corrupted,
    corruption_places,
    find_place,
)
from mmcalib.runs.config import load_config

RNG = np.random.default_rng(0)
FILE = RNG.integers(0, 256, (50, 60, 3), dtype=np.uint8)


def load(results):
    return {**results, 'img': FILE.copy()}


def resize(results):
    return {**results, 'img': results['img'][::2, ::2].copy()}


def crop(results):
    return {**results, 'img': results['img'][3:23, 4:24].copy()}


def flip_in_place(results):
    results['img'][:] = results['img'][:, ::-1].copy()
    return results


def annotate(results):
    return {**results, 'gt_seg_map': np.zeros((50, 60))}


def pad(results):
    padding = ((0, 14), (0, 4), (0, 0))
    return {**results, 'img': np.pad(results['img'], padding)}


def pad_around(results):
    return {**results, 'img': np.pad(results['img'], ((2, 3), (2, 3), (0, 0)))}


def normalise(results):
    return {**results, 'img': (results['img'] - np.float32(127)) / np.float32(60)}


def fit(results):
    """Resize to the size that the file has."""
    height, width = results['img'].shape[:2]
    rows, columns = np.arange(50) * height // 50, np.arange(60) * width // 60
    return {**results, 'img': results['img'][rows][:, columns]}


def to_pil(results):
    return {**results, 'img': Image.fromarray(results['img'][..., ::-1])}


def shrink_pil(results):
    return {**results, 'img': results['img'].resize((30, 25))}


def to_rgb_array(results):
    return {**results, 'img': np.array(results['img'])}


def to_bgr_array(results):
    return {**results, 'img': np.array(results['img'])[..., ::-1]}


def pack_pil(results):
    return {'inputs': np.array(results['img'])}


def refuses_other_sizes(results):
    if results['img'].shape != FILE.shape:
        raise RuntimeError
    return results


def pack(results):
    return {'inputs': results['img'].transpose(2, 0, 1), 'data_samples': None}


@pytest.mark.parametrize(
    ('transforms', 'index', 'loader', 'shape'),
    [
        ([load, pack], 1, 0, (50, 60)),
        ([load, resize, crop, pack], 3, 0, (20, 20)),
        ([load, resize, annotate, pack], 2, 0, (25, 30)),
        ([load, annotate, resize, pack], 3, 0, (25, 30)),
        ([annotate, load, resize, normalise, pack], 3, 1, (25, 30)),
        ([load, normalise, resize, pack], 1, 0, (50, 60)),
        ([load, resize, pad, pack], 2, 0, (25, 30)),
        ([load, pad_around, normalise], 1, 0, (50, 60)),
        ([load, flip_in_place, annotate, pack], 2, 0, (50, 60)),
        ([load, fit, pack], 2, 0, (50, 60)),  # as of another image it would be
        ([load, annotate, fit, pad, pack], 3, 0, (50, 60)),
        ([load, refuses_other_sizes, resize, pack], 3, 0, (25, 30)),
        ([load, to_pil, shrink_pil, to_bgr_array, pack], 4, 0, (25, 30)),
        ([load], 1, 0, (50, 60)),
    ],
)
def test_behind_what_loads_and_resizes(transforms, index, loader, shape):
    assert find_place(transforms, {}) == CorruptionPlace(index, loader, shape, (50, 60))
    assert find_place(transforms, {}).channel_order == 'bgr'


@pytest.mark.parametrize(
    ('transforms', 'index', 'shape'), [([pack], 0, (50, 60)), ([resize, pack], 1, (25, 30))]
)
def test_of_images_that_the_data_set_gives(transforms, index, shape):
    place = find_place(transforms, {'img': FILE})
    assert place == CorruptionPlace(index, None, shape, (50, 60)) and place.channel_order == 'rgb'


def test_colours_may_have_been_exchanged():
    place = find_place([load, to_pil, shrink_pil, to_rgb_array, pack], {})
    assert place == CorruptionPlace(4, 0, (25, 30), (50, 60), flipped=True)
    assert place.channel_order == 'rgb'
    given = find_place([to_pil, to_rgb_array, pack], {'img': FILE})
    assert (given.index, given.channel_order) == (2, 'bgr')


def test_pil_images_that_are_packed_as_they_are_have_no_place():
    with pytest.raises(ValueError, match=r'put dict.*PILToNumpy'):
        find_place([load, to_pil, shrink_pil, pack_pil], {})


@pytest.mark.parametrize(
    ('image', 'message'),
    [
        (None, 'no image to corrupt'),
        (FILE.astype(np.uint16), 'uint16'),
        (FILE[..., :2], 'three colours'),
        (FILE / 255, 'float64'),
    ],
)
def test_images_that_have_no_corruptions(image, message):
    with pytest.raises(ValueError, match=message):
        find_place([annotate], {'img': image} if image is not None else {})


def test_grey_images_and_values_of_a_range():
    assert find_place([], {'img': FILE[..., 0]}) == CorruptionPlace(0, None, (50, 60), (50, 60))
    grey = {'img': FILE[..., 0] / np.float32(255)}
    # They are floats before and behind what normalises.
    place = find_place([resize, normalise, pack_pil], grey, (0, 1))
    assert place == CorruptionPlace(1, None, (25, 30), (50, 60), value_range=(0, 1))
    assert find_place([pack], {'img': FILE}, (0, 1)).value_range is None


@pytest.mark.parametrize('name', ['digits', 'digit_scenes'])
def test_the_embedded_data_say_their_range(name):
    cfg = load_config(str(ROOT / f'configs/ce/{name}.py'))
    dataset = cfg.test_dataloader.dataset
    (place,) = corruption_places(dataset, cfg.default_scope)
    transform = corrupted(dataset, [place], 'contrast', 1)['pipeline'][0]
    assert transform['type'] == 'Corrupt' and transform['value_range'] == (-1.5, 2.5)


def test_pipelines_of_the_toolboxes(tmp_path):
    cfg = load_config(str(shifted.write_config(tmp_path / 'seg', 'segmentor')))
    dataset = cfg.test_dataloader.dataset
    dataset.data_root = str(tmp_path / 'seg/data')
    (place,) = corruption_places(dataset, 'mmseg')
    assert place == CorruptionPlace(2, 0, (30, 40), (60, 80))
    both = dict(type='ConcatDataset', datasets=[dataset, dataset])
    changed = corrupted(both, corruption_places(both, 'mmseg'), 'fog', 4, seed=3)
    for part in changed['datasets']:
        assert [step['type'] for step in part['pipeline']] == [
            'LoadImageFromFile', 'Resize', 'Corrupt', 'LoadAnnotations', 'PackSegInputs'
        ]  # fmt: skip
        assert part['pipeline'][2] == dict(
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
        (place,) = corruption_places(dataset, 'mmpretrain')
    assert (place.index, place.loader, place.shape) == (0, None, (32, 32))
    changed = corrupted(dataset, [place], 'fog', 1)
    assert changed['pipeline'][0]['channel_order'] == 'rgb'
    assert changed['pipeline'][1]['type'] == 'PackInputs'


@shifted.needs_extra
def test_the_colours_of_a_file_and_of_an_array_are_corrupted_alike():
    rgb = FILE[..., ::-1]
    parts = [
        TRANSFORMS.build(dict(type='Corrupt', corruption='frost', severity=2, channel_order=order))
        for order in ('bgr', 'rgb')
    ]
    bgr, other = parts[0]({'img': FILE.copy()})['img'], parts[1]({'img': rgb.copy()})['img']
    np.testing.assert_array_equal(bgr, other[..., ::-1])
