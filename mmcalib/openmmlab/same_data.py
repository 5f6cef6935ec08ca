"""Comparison of the data that two dataloaders read: of their configs, and of each sample."""

from __future__ import annotations

import heapq
import json
import logging
import os
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping
from copy import deepcopy
from functools import cache, partial
from hashlib import blake2b
from typing import NamedTuple

import numpy as np
import torch
from mmengine.logging import print_log
from mmengine.registry import DATASETS
from torch import Tensor

from mmcalib.predictions.group_names import group_numbers

# A digest of data looks into so many of their samples, and reads so many bytes of each file.
MOST_OPENED = 256
FILE_START = 65_536


def same_data(one: Mapping | None, other: Mapping | None) -> bool:
    """Return whether two dataloaders' configs read the same data, whatever their pipelines."""
    if one is None or other is None:
        return False
    return _without_pipeline(one['dataset']) == _without_pipeline(other['dataset'])


def _without_pipeline(node: object) -> object:
    """Return a part of a dataset's config without what does not decide which data it reads."""
    if isinstance(node, Mapping):
        skipped = ['pipeline', 'lazy_init', 'serialize_data']
        if 'dataset' not in node:  # It chooses the part of a KFoldDataset.
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


def sample_ids(dataset: object, *, follow_links: bool = True) -> list[SampleId]:
    """Return the identity of each sample of a dataset, in its order, through all wrappers.

    A file that a list names twice is one image, unless the samples differ in more than their labels
    and paths, such as in the number of a page or of a frame. A sample without a file and without
    content, such as one that a dataset makes, is known by its index in the dataset object that
    makes it. Links cost a look at each file.
    """
    leaf = partial(_unwrapped_sample_ids, follow_links=follow_links)
    return _through_wrappers(dataset, leaf, _unknown_sample_ids)


def copy_groups(dataset: object) -> Tensor | None:
    """Return the index of the image of each sample, None if each is another one.

    It opens no file and follows no link, so that a test may ask for any number of samples.

    Returns:
        ``(n,)`` int64, numbered in the order of the first samples; or None.
    """
    samples = sample_ids(dataset, follow_links=False)
    groups = group_numbers([sample.key for sample in samples], len(samples))
    return None if len(groups.unique()) == len(groups) else groups


def data_content(dataset: object) -> str | None:
    """Return the number of a dataset's samples and a digest of them, None if they are not known.

    The digest is of the names of their files below the folder that all share, of their labels and
    arrays, and of the beginnings of some files. So it does not depend on where the files lie, nor
    on the order of the samples.
    """
    digests = _through_wrappers(dataset, _unwrapped_digests, _unknown_digests)
    if not digests or None in digests:
        return None
    total = sum(digests) % 2**32
    return f'{len(digests):,} samples, {total:08x}'


def _through_wrappers(dataset: object, leaf: Callable, unknown: Callable) -> list:
    """Return a value for each sample of a dataset, in its order, through all wrappers.

    Args:
        dataset: The dataset, or a wrapper.
        leaf: Function that returns the values of a dataset that wraps no other.
        unknown: Function that returns those of a wrapper whose order is not known.
    """
    size = len(dataset)
    attributes = getattr(
        dataset, '__dict__', {}
    )  # Some wrappers have the attributes of what they wrap.
    parts = attributes.get('datasets')
    inner = attributes.get('dataset')
    if isinstance(parts, (list, tuple)):
        values = []
        for part in parts:
            values += _through_wrappers(part, leaf, unknown)
    elif inner is None:
        values = leaf(dataset)
    elif 'indices' in attributes:
        inner_values = _through_wrappers(inner, leaf, unknown)
        values = [inner_values[index] for index in attributes['indices']]
    elif '_ori_indices' in attributes:  # A KFoldDataset holds its part alone.
        values = _through_wrappers(inner, leaf, unknown)
    elif hasattr(dataset, '_get_ori_dataset_idx'):  # mmengine's wrappers have it.
        inner_values = _through_wrappers(inner, leaf, unknown)
        indices = [dataset._get_ori_dataset_idx(index) for index in range(size)]
        values = [inner_values[index] for index in indices]
    elif len(inner) == size:
        values = _through_wrappers(inner, leaf, unknown)
    else:
        values = leaf(dataset)
    return values if len(values) == size else unknown(dataset)


def _unknown_sample_ids(dataset: object) -> list[SampleId]:
    return [SampleId((id(dataset), index), None, None) for index in range(len(dataset))]


def _unknown_digests(dataset: object) -> list[None]:
    return [None] * len(dataset)


def _unwrapped_sample_ids(dataset: object, *, follow_links: bool = True) -> list[SampleId]:
    """Return the identities of the samples of a dataset that wraps no other."""
    samples = []
    for index, info in enumerate(_infos(dataset)):
        path = info.get('img_path')
        key = path or _content_digest(info)
        if path and follow_links:
            key = _real_path(path)
        if key is None:
            key = (id(dataset), index)
        samples.append(SampleId(key, path, info.get('group')))
    count_by_key = Counter(sample.key for sample in samples)
    # The frame of each sample whose file holds several, by the index of the sample.
    frames = {}
    frames_by_key = defaultdict(set)
    for index, sample in enumerate(samples):
        if sample.path and count_by_key[sample.key] > 1:
            frames[index] = _frame(dataset.get_data_info(index))
            frames_by_key[sample.key].add(frames[index])
    for index, frame in frames.items():
        sample = samples[index]
        if len(frames_by_key[sample.key]) > 1:
            samples[index] = sample._replace(key=(sample.key, frame))
    return samples


def _frame(info: Mapping) -> str:
    """Return what tells a sample from others of its file, such as its page, as JSON."""
    values = {}
    for key, value in info.items():
        name = str(key)
        is_label = name.startswith('gt_') or name.endswith('path')
        if not is_label and name not in ('sample_idx', 'group'):
            values[name] = value
    return json.dumps(values, sort_keys=True, default=_json_value, skipkeys=True)


def _infos(dataset: object) -> Iterator[Mapping]:
    """Yield what a dataset knows of each sample before it loads it."""
    for index in range(len(dataset)):
        info = dataset.get_data_info(index) if hasattr(dataset, 'get_data_info') else None
        yield info if isinstance(info, Mapping) else {}


def _unwrapped_digests(dataset: object) -> list[int | None]:
    """Return a digest of each sample of a dataset that wraps no other, None if it is not known."""
    folders = _common_folders(dataset)
    encoder = json.JSONEncoder(default=_json_value, skipkeys=True)
    digests = []
    for info in _infos(dataset):
        digest = _content_digest(info)
        if digest is None and not any(key in folders for key in info):
            return _unknown_digests(dataset)
        parts = [] if digest is None else [digest.hex()]
        for key in sorted(info.keys() - {'sample_idx'}, key=str):
            value = info[key]
            is_path = key in folders and isinstance(value, str)
            parts += [key, value[len(folders[key]) :] if is_path else value]
        digests.append(_digest(encoder.encode(parts).encode()))
    # Files of one name may be others: another version of the images, or of the masks.
    looked_into = set(heapq.nsmallest(MOST_OPENED, set(digests)))
    for index, digest in enumerate(digests):
        if digest in looked_into:
            info = dataset.get_data_info(index)
            paths = [info.get(key) for key in sorted(folders)]
            starts = [_file_start(path) for path in paths if isinstance(path, str)]
            digests[index] += _digest(b''.join(starts))
    return digests


def _common_folders(dataset: object) -> dict[str, str]:
    """Return the folder that all files of a kind share, by the key of their paths."""
    first = {}
    last = {}
    for info in _infos(dataset):
        for key, value in info.items():
            if isinstance(value, str) and re.search('(^|_)path$', str(key)):
                first[key] = min(first.get(key, value), value)
                last[key] = max(last.get(key, value), value)
    folders = {}
    for key in first:  # All names share what the first and the last in the alphabet share.
        shared = os.path.commonprefix([first[key], last[key]])  # noqa: RUF071 (characters, to the last /)
        folders[key] = shared.rpartition('/')[0]
    return folders


def _file_start(path: str) -> bytes:
    """Return size and beginning of a file, nothing if it cannot be read here."""
    try:
        with open(path, 'rb') as file:
            return os.fstat(file.fileno()).st_size.to_bytes(8, 'big') + file.read(FILE_START)
    except OSError:
        return b''


def _json_value(value: object) -> object:
    """Return a value that JSON does not have as a number, or by the name of its type."""
    return value.item() if isinstance(value, np.generic) else type(value).__name__


def _digest(content: bytes) -> int:
    """Return a number that is equal for equal content."""
    return int.from_bytes(blake2b(content, digest_size=8).digest(), 'big')


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


def split_images(cfg: Mapping, split: str, datasets: Mapping[str, object]) -> set[Hashable] | None:
    """Return the keys of the different images of a split, by which others may have them too.

    Args:
        cfg: Config with the dataloaders of the splits.
        split: Name of the split.
        datasets: Data sets that are built, by their split. One of the same config is taken, and the
            keys of a copy in another folder are those of the first.

    Returns:
        The keys of :func:`sample_ids`; None if the config lacks the split, or, with a warning, if
        its data are not on this machine.
    """
    loader = cfg.get(f'{split}_dataloader')
    if not loader:
        return None
    dataset = None
    for built_split, built in datasets.items():
        if same_data(loader, cfg[f'{built_split}_dataloader']):
            dataset = built
    if dataset is None:
        dataset = _build_if_there(cfg, split)
    if dataset is None:
        return None
    for built in datasets.values():
        if built is dataset or _is_copy(dataset, built):
            dataset = built
            break
    return {sample.key for sample in sample_ids(dataset)}


def _build_if_there(cfg: Mapping, split: str) -> object | None:
    """Return the data of a split; None, with a warning, if they are not on this machine."""
    loader = cfg[f'{split}_dataloader']
    try:
        with DATASETS.switch_scope_and_registry(cfg.get('default_scope')) as registry:
            dataset = registry.build(deepcopy(loader['dataset']))
        len(dataset)  # This reads the list of a lazy data set.
    except Exception as error:  # Data sets of a user raise anything.
        print_log(
            f'The {split} data cannot be read ({error}), so nothing tells which of their images '
            'other splits have too.',
            'current',
            logging.WARNING,
        )
        return None
    return dataset


def _is_copy(dataset: object, other: object) -> bool:
    """Return whether two data sets have the same images and labels, wherever their files lie."""
    if len(dataset) != len(other):
        return False
    content = data_content(dataset)
    return content is not None and content == data_content(other)


def validates_on_test_images(cfg: Mapping) -> bool:
    """Return whether validation and test have the same images; equal configs are not read."""
    loader = cfg.get('val_dataloader')
    test_loader = cfg.get('test_dataloader')
    if not loader or not test_loader:
        return False
    if same_data(loader, test_loader):
        return True
    dataset = _build_if_there(cfg, 'val')
    if dataset is None:
        return False
    datasets = {'val': dataset}
    return split_images(cfg, 'val', datasets) == split_images(cfg, 'test', datasets)
