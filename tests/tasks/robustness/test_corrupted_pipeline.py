"""Where images are corrupted, in pipelines of any order."""

import numpy as np
import pytest
import shifted
from commands import ROOT
from images import write_cifar10
from mmengine.registry import TRANSFORMS

from mmcalib.runs.config import load_config
from mmcalib.tasks.robustness.corrupted_pipeline import (
    CorruptionPlace,
    corrupted,
    corruption_places,
    find_place,
)

FILE = np.random.default_rng(0).integers(0, 256, (50, 60, 3), dtype=np.uint8)


def steps(text):
    """Return the config of a pipeline, from names such as ``NumpyToPIL:to_rgb``."""
    pairs = [name.partition(':') for name in text.split()]
    return [dict(type=name, **({option: True} if option else {})) for name, _, option in pairs]


@pytest.mark.parametrize(
    ('pipeline', 'expected'),
    [
        # Of the toolboxes' configs, and of ours.
        ('PackInputs', (0, None)),
        ('Resize PackInputs', (1, None)),
        ('LoadImageFromFile PackInputs', (1, 0)),
        ('LoadImageFromFile ResizeEdge CenterCrop PackInputs', (3, 0)),
        ('LoadImageFromFile EfficientNetCenterCrop PackInputs', (2, 0)),
        ('LoadImageFromFile Resize CleanCaption PackInputs', (2, 0)),
        ('LoadImageFromFile Resize LoadAnnotations PackSegInputs', (2, 0)),
        ('LoadImageFromFile LoadAnnotations Resize AtInputSize PackSegInputs', (3, 0)),
        ('LoadImageFromFile Resize LabelUntrainedClasses LoadAnnotations PackSegInputs', (2, 0)),
        ('LoadImageFromFile Resize ResizeToMultiple LoadAnnotations PackSegInputs', (3, 0)),
        ('LoadImageFromFile ResizeShortestEdge LoadAnnotations PackSegInputs', (2, 0)),
        # And of others.
        ('LoadAnnotations LoadImageFromFile mmcv.Resize Pad Normalize PackSegInputs', (3, 1)),
        ('LoadImageFromFile Normalize Resize PackInputs', (1, 0)),
        ('LoadImageFromFile NumpyToPIL torchvision/Resize PILToNumpy PackInputs', (4, 0)),
        ('LoadImageFromFile PackInputs Mine', (1, 0)),
        ('LoadImageFromFile', (1, 0)),
    ],
)
def test_behind_what_loads_and_resizes(pipeline, expected):
    assert find_place(steps(pipeline)) == (*expected, False)


def test_colours_may_have_been_exchanged():
    pipeline = 'LoadImageFromFile NumpyToPIL:to_rgb Resize PILToNumpy PackInputs'
    assert CorruptionPlace(*find_place(steps(pipeline))).channel_order == 'rgb'
    pipeline = pipeline.replace('PILToNumpy', 'PILToNumpy:to_bgr')
    assert CorruptionPlace(*find_place(steps(pipeline))).channel_order == 'bgr'
    pipeline = 'NumpyToPIL:to_rgb PILToNumpy PackInputs'
    assert CorruptionPlace(*find_place(steps(pipeline))).channel_order == 'bgr'


def test_the_user_says_where_transforms_are_unknown():
    pipeline = steps('LoadImageFromFile Letterbox Resize PackInputs')
    with pytest.raises(
        ValueError, match=r'Letterbox may belong before or after .*: set --corrupt-before to one'
    ):
        find_place(pipeline)
    assert find_place(pipeline, 'Letterbox') == (1, 0, False)
    assert find_place(pipeline, 'PackInputs') == (3, 0, False)
    with pytest.raises(ValueError, match=r'--corrupt-before Pad: name one of LoadImageFromF'):
        find_place(pipeline, 'Pad')


@pytest.mark.parametrize(
    ('pipeline', 'message'),
    [
        ([], r'corruptions require 8-bit images, got .*NoneType'),
        (steps('LoadImageFromFile NumpyToPIL'), r'8-bit images, got .*PIL'),
        ([dict(type='LoadImageFromFile', to_float32=True)], 'float32'),
    ],
)
def test_images_that_have_no_corruptions(pipeline, message, tmp_path):
    cfg = load_config(str(shifted.write_config(tmp_path, 'classifier')))
    dataset = {**cfg.test_dataloader.dataset, 'data_root': str(tmp_path / 'data')}
    with pytest.raises(ValueError, match=message):
        corruption_places({**dataset, 'pipeline': pipeline}, 'mmpretrain')


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
    assert place == CorruptionPlace(2, 0, shape=(30, 40))
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
