"""A part of a training set for validation, drawn by a seed."""

from __future__ import annotations

import numpy as np
from mmengine.dataset import BaseDataset
from mmengine.registry import DATASETS

from mmcalib.options import check_choice

PARTS = ('train', 'held_out')


@DATASETS.register_module('SeededSplit')
def seeded_split(
    dataset: dict | BaseDataset,
    part: str,
    *,
    held_out: int | float | None = None,
    held_out_per_class: int | None = None,
    seed: int = 0,
) -> BaseDataset:
    """Return the part of a dataset that a seed holds out for validation, or the rest, to train on.

    All samples are shuffled by ``numpy.random.RandomState(seed).permutation``, whose stream numpy
    has frozen; the first `held_out` of them, or the first `held_out_per_class` of every class, are
    held out. Both parts keep the order of the dataset. So the split depends on nothing but the
    order of the dataset and the seed, and is the same on every machine and in every process.

    It is written down too: ``metainfo['held_out']`` of both parts has the ``seed`` and the
    ``indices`` held out, ascending positions in the whole dataset. mmengine puts the metainfo of
    the training data into every checkpoint, as ``meta['dataset_meta']``.

    In a config it stands around a dataset that is the same for both parts but for its pipeline::

        dataset=dict(type='SeededSplit', part='train', held_out=5000, seed=0, dataset=dict(...))

    Args:
        dataset: The whole training set, or its config; it is not changed. The result has the same
            class, with all its data loaded.
        part: ``'train'`` or ``'held_out'``.
        held_out: Number of samples to hold out in all, or their share if below 1. Set either this
            or `held_out_per_class`.
        held_out_per_class: Number of samples to hold out of each class, by ``gt_label``.
        seed: Seed of the split, not of the training: it must be the same for both parts.

    Raises:
        KeyError: If a sample has no ``gt_label`` where they are to be held out per class.
        ValueError: If the part is unknown, not exactly one of the two sizes is given, or the
            dataset is too small for it.

    Source: the paper's sizes are 5,000 of CIFAR-10 and 50 per class of Tiny-ImageNet; its own draw
    is not published as lists, so the samples differ.
    """
    check_choice('part', part, PARTS)
    if isinstance(dataset, dict):
        dataset = DATASETS.build(dataset)
    dataset.full_init()
    size = len(dataset)
    if (held_out is None) == (held_out_per_class is None):
        raise ValueError(
            'give either held_out or held_out_per_class, got '
            f'{held_out!r} and {held_out_per_class!r}'
        )
    if held_out is not None:
        count = round(held_out * size) if held_out < 1 else int(held_out)
        held_out_indices = choose_indices(size, count, seed=seed)
    else:
        labels = np.array([dataset.get_data_info(index)['gt_label'] for index in range(size)])
        held_out_indices = choose_indices_per_class(labels, held_out_per_class, seed=seed)
    if part == 'held_out':
        indices = held_out_indices
    else:
        indices = np.setdiff1d(np.arange(size), held_out_indices)
    # mmengine 0.10.7 remembers the datasets that it has copied by address, and never forgets: a
    # transform at the address of a dataset that is gone would be replaced by that dataset's copy.
    (memo,) = BaseDataset._copy_without_annotation.__defaults__
    (memo or {}).clear()
    subset = dataset.get_subset(indices.tolist())
    subset._metainfo['held_out'] = {'seed': seed, 'indices': held_out_indices.tolist()}
    return subset


def choose_indices(size: int, count: int, *, seed: int) -> np.ndarray:
    """Return `count` of the indices below `size`, ascending.

    Raises:
        ValueError: If they would be none or all.
    """
    if not 0 < count < size:
        raise ValueError(f'held_out must be from 1 to {size - 1} of {size} samples, got {count!r}')
    return np.sort(np.random.RandomState(seed).permutation(size)[:count])


def choose_indices_per_class(labels: np.ndarray, count: int, *, seed: int) -> np.ndarray:
    """Return the indices of `count` samples of every class, ascending.

    Args:
        labels: ``(N,)`` int class of every sample.
        count: Number of samples of each class.
        seed: Seed of the shuffle.

    Raises:
        ValueError: If they would be none, or all of a class.
    """
    classes, sizes = np.unique(labels, return_counts=True)
    if not 0 < count < sizes.min():
        raise ValueError(
            f'held_out_per_class must be from 1 to {sizes.min() - 1}, since the smallest class '
            f'has {sizes.min()} samples; got {count!r}'
        )
    order = np.random.RandomState(seed).permutation(len(labels))
    indices = [order[labels[order] == label][:count] for label in classes]
    return np.sort(np.concatenate(indices))
