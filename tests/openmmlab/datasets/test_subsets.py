"""Parts of data sets: evenly spaced samples, and a split that is drawn by a seed."""

import pickle

import numpy as np
import pytest
from mmengine.dataset import BaseDataset, RepeatDataset
from mmengine.registry import DATASETS
from torch.utils.data import DataLoader

from mmcalib.openmmlab.datasets import Digits, EvenSubset, seeded_split
from mmcalib.openmmlab.datasets.seeded_split import choose_indices, choose_indices_per_class

DIGITS = dict(type='Digits', split='train', lazy_init=True)
HELD_OUT = dict(type='SeededSplit', part='held_out')


def split(**options):
    return DATASETS.build(HELD_OUT | dict(dataset=DIGITS) | options)


@pytest.mark.parametrize(
    ('samples', 'expected'), [(1, [50]), (3, [16, 50, 83]), (99, None), (100, None), (500, None)]
)
def test_even_subset_indices_are_evenly_spaced(samples, expected):
    whole = Digits('train', indices=100)
    subset = EvenSubset(whole, samples)
    assert len(subset) == min(samples, 100) == len(set(subset.indices))
    assert max(subset.indices) < 100 and subset.indices == sorted(subset.indices)
    if expected is not None:
        assert subset.indices == expected
    for position, index in enumerate(subset.indices[:3]):
        assert subset[position]['sample_idx'] == index
        assert subset.get_data_info(position)['gt_label'] == whole[index]['gt_label']


def test_subsets_of_a_lazy_dataset_are_pickled():
    for options in (dict(type='EvenSubset', samples=4), HELD_OUT | dict(held_out=4)):
        part = DATASETS.build(dict(dataset=DIGITS, **options))
        loader = DataLoader(part, num_workers=1, collate_fn=list)
        labels = [sample['gt_label'] for (sample,) in loader]
        copied = pickle.loads(pickle.dumps(part))
        assert labels == [copied[index]['gt_label'] for index in range(4)] and len(copied) == 4
        assert copied.metainfo == part.metainfo
    assert len(EvenSubset(RepeatDataset(Digits('val'), times=2), 7)) == 7


@pytest.mark.parametrize(
    'options', [dict(held_out=100), dict(held_out=0.125), dict(held_out_per_class=7, seed=3)]
)
def test_seeded_split_parts_make_up_the_whole_in_order(options):
    whole = Digits('train')
    parts = [split(part=part, **options) for part in ('train', 'held_out')]
    held_out = parts[0].metainfo['held_out']
    assert held_out == parts[1].metainfo['held_out']
    assert held_out['seed'] == options.get('seed', 0)
    assert len(held_out['indices']) == (70 if 'seed' in options else 100)
    rest = [index for index in range(len(whole)) if index not in held_out['indices']]
    for part, indices in zip(parts, (rest, held_out['indices']), strict=True):
        images = [whole[index]['img'] for index in indices]
        assert isinstance(part, Digits)
        np.testing.assert_array_equal([sample['img'] for sample in part], images)
    assert len(whole) == 800 and 'held_out' not in whole.metainfo


def test_choose_indices_equals_earlier_versions():
    """A training with the split of a config must be repeatable with every later version."""
    cifar10 = choose_indices(50_000, 5000, seed=0)
    assert cifar10[:5].tolist() == [14, 22, 24, 28, 64] and cifar10.sum() == 126_459_119
    tiny = choose_indices_per_class(np.arange(100_000) // 500, 50, seed=0)
    assert tiny[:5].tolist() == [6, 17, 25, 26, 36] and tiny.sum() == 500_002_312
    assert np.array_equal(
        choose_indices(60, 8, seed=5), sorted(np.random.RandomState(5).permutation(60)[:8])
    )


def test_seeded_split_invalid_option_raises():
    for options, message in (
        (dict(part='val', held_out=1), r"part must be one of .*, got 'val'"),
        ({}, 'either held_out or held_out_per_class, got'),
        (dict(held_out=0), 'from 1 to 799 of 800 samples, got 0'),
        (dict(held_out=5000.0), 'from 1 to 799 of 800 samples, got 5000'),
        (dict(held_out_per_class=90), r'class has \d+ samples; got 90'),
    ):
        with pytest.raises(ValueError, match=message):
            split(**options)


def test_seeded_split_earlier_copies_are_forgotten():
    """mmengine 0.10.7 remembers copies by address; later versions do not."""
    dataset = DATASETS.build(DIGITS)
    (memo,) = BaseDataset._copy_without_annotation.__defaults__
    if memo is not None:
        memo[id(dataset.pipeline)] = 'copy of a dataset that is gone'
    assert not isinstance(seeded_split(dataset, 'train', held_out=2).pipeline, str)
