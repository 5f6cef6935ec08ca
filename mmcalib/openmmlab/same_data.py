"""Comparison of the data that two dataloaders read: of their configs, and of each sample."""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Hashable, Mapping
from copy import deepcopy
from functools import cache
from hashlib import blake2b
from typing import NamedTuple

import numpy as np
import torch
from mmengine.logging import print_log
from mmengine.registry import DATASETS


def same_data(one: Mapping | None, other: Mapping | None) -> bool:
    """Return whether two dataloaders' configs read the same data, whatever their pipelines."""
    if one is None or other is None:
        return False
    return _without_pipeline(one['dataset']) == _without_pipeline(other['dataset'])


def _without_pipeline(node: object) -> object:
    """Return a part of a dataset's config without what does not decide which data it reads."""
    if isinstance(node, Mapping):
        skipped = ['pipeline', 'lazy_init', 'serialize_data']
        if 'dataset' not in node:  # Of a KFoldDataset, it chooses the part.
            skipped.append('test_mode')
        return {key: _without_pipeline(value) for key, value in node.items() if key not in skipped}
    if isinstance(node, (list, tuple)):
        return [_without_pipeline(item) for item in node]
    if isinstance(node, str) and '/' in node:
        return os.path.normpath(node)
    return node


class SampleId(NamedTuple):
    """The identity of a sample.

    Attributes:
        key: Key that is equal for the same sample of any data set: its file, or a digest of its
            content.
        path: Path of its file; None if it has no file.
        group: ``group`` that its data set names; None if it names none.
    """

    key: Hashable
    path: str | None
    group: Hashable | None


def sample_ids(dataset: object) -> list[SampleId]:
    """Return the identity of each sample of a dataset, in its order, through all wrappers.

    A sample without a file and without content, such as one that a dataset makes, is known by its
    index in the dataset object that makes it.
    """
    size = len(dataset)
    attributes = vars(dataset)  # Some wrappers have the attributes of what they wrap.
    parts = attributes.get('datasets')
    inner = attributes.get('dataset')
    if isinstance(parts, (list, tuple)):
        samples = []
        for part in parts:
            samples += sample_ids(part)
    elif inner is None:
        samples = _unwrapped_sample_ids(dataset)
    elif 'indices' in attributes:
        inner_samples = sample_ids(inner)
        samples = [inner_samples[index] for index in attributes['indices']]
    elif '_ori_indices' in attributes:  # A KFoldDataset holds its part alone.
        samples = sample_ids(inner)
    elif hasattr(dataset, '_get_ori_dataset_idx'):  # mmengine's wrappers have it.
        inner_samples = sample_ids(inner)
        indices = [dataset._get_ori_dataset_idx(index) for index in range(size)]
        samples = [inner_samples[index] for index in indices]
    elif len(inner) == size:
        samples = sample_ids(inner)
    else:
        samples = _unwrapped_sample_ids(dataset)
    if len(samples) != size:  # The wrapper is not known.
        return [SampleId((id(dataset), index), None, None) for index in range(size)]
    return samples


def _unwrapped_sample_ids(dataset: object) -> list[SampleId]:
    """Return the identities of the samples of a dataset that wraps no other."""
    samples = []
    for index in range(len(dataset)):
        info = dataset.get_data_info(index) if hasattr(dataset, 'get_data_info') else {}
        path = info.get('img_path')
        key = _real_path(path) if path else _content_digest(info)
        if key is None:
            key = (id(dataset), index)
        samples.append(SampleId(key, path, info.get('group')))
    count_by_key = Counter(sample.key for sample in samples)
    for index, sample in enumerate(samples):
        if count_by_key[sample.key] > 1:  # A file may hold several, such as the pages of a scan.
            samples[index] = sample._replace(key=(sample.key, index))
    return samples


def _real_path(path: str) -> str:
    """Return the path of a file without links; one with ``://`` does not change."""
    if '://' in path:
        return path
    folder, name = os.path.split(path)
    path = os.path.join(_real_folder(folder), name)
    return os.path.realpath(path) if os.path.islink(path) else path


@cache
def _real_folder(folder: str) -> str:
    """Return the path of a folder without links, which is looked up once."""
    return os.path.realpath(folder)


def _content_digest(info: Mapping) -> bytes | None:
    """Return a digest of the arrays of a sample; None if it has none."""
    digest = blake2b(digest_size=16)
    has_content = False
    for name in sorted(info):
        value = info[name]
        if torch.is_tensor(value):
            value = value.numpy()
        if isinstance(value, (np.ndarray, bytes)):
            has_content = True
            digest.update(name.encode())
            digest.update(value.tobytes() if isinstance(value, np.ndarray) else value)
    return digest.digest() if has_content else None


def build_if_there(cfg: Mapping, split: str) -> object | None:
    """Return the data of a split; None, with a warning, if they are not on this machine."""
    loader = cfg.get(f'{split}_dataloader')
    if not loader:
        return None
    try:
        dataset = DATASETS.build(deepcopy(loader.dataset))
        len(dataset)  # This reads the list of a lazy data set.
    except Exception as error:  # Data sets of a user raise anything.
        print_log(
            f'The {split} data cannot be read ({error}), so nothing tells whether the images of '
            'the fit are among them.',
            'current',
            logging.WARNING,
        )
        return None
    return dataset
