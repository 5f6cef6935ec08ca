"""Groups of images that are not independent, such as the frames of a video."""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from mmcalib.errors import UserError
from mmcalib.predictions.distributed import unwrapped_loader
from mmcalib.tensors import unchanged_randomness

RANDOM_SAMPLERS = (
    torch.utils.data.RandomSampler,
    torch.utils.data.SubsetRandomSampler,
    torch.utils.data.WeightedRandomSampler,
)

# A sampler that shuffles two batches has ten draws all in order once in a thousand times.
NUM_DRAWS = 10


def group_numbers(groups: Sequence[Hashable], count: int, loader: object = None) -> Tensor:
    """Return the index of each image's group, ``(n,)`` int64, in the order of their first images.

    Args:
        groups: A name of each image's group, such as its video, patient or flight.
        count: The number of images.
        loader: The loader that they came from.

    Raises:
        TypeError: For rows in place of names.
        ValueError: For another number of groups than of images, for NaN, None or an empty text in
            place of a name, for an iterator, whose order nothing tells, or a loader that
            :func:`check_order` refuses.
    """
    if isinstance(unwrapped_loader(loader), Iterator):
        raise UserError(
            'groups are in the order of the images, and nothing tells that of '
            f'a {type(loader).__name__}: give the loader itself, or a list of its batches'
        )
    check_order(loader)
    if isinstance(groups, str):  # Its letters would be names.
        raise TypeError(f'groups must be a list of the name of each group, got the text {groups!r}')
    names = groups.tolist() if hasattr(groups, 'tolist') else list(groups)
    # Two tensors with the same number are not the same name.
    names = [name.item() if torch.is_tensor(name) and not name.ndim else name for name in names]
    if len(names) != count:
        raise UserError(f'groups must name the group of each of {count} images, got {len(names)}')
    if not all(isinstance(name, Hashable) for name in names):
        raise TypeError(
            'groups must be one name for each image, such as a number or a text, got rows'
        )
    missing = []
    for name in names:
        if name is None or name == '' or (isinstance(name, float) and math.isnan(name)):
            missing.append(name)
    if missing:
        kind = {None: 'None', '': 'empty'}.get(missing[0], 'NaN')
        raise UserError(
            f'{len(missing)} of {count} groups are {kind}, which says not whether they are one '
            'group: give these images the names of their groups, such as a number of its own for '
            'each'
        )
    index_by_name: dict[Hashable, int] = {}
    group_index = [index_by_name.setdefault(name, len(index_by_name)) for name in names]
    return torch.tensor(group_index, device='cpu')


def check_order(loader: object) -> None:
    """Refuse a loader that may not give its images in their order, so that no group is another's.

    A loader without a sampler, such as a list of batches, gives them as they come. A random sampler
    is refused, whatever order it draws. Any other one is asked for its indices, which must ascend.

    Raises:
        ValueError: If an index is not above the one before it, or the sampler can be read once; and
            as :func:`check_workers`.
    """
    loader = unwrapped_loader(loader)
    check_workers(loader)
    if isinstance(getattr(loader, 'dataset', None), torch.utils.data.IterableDataset):
        return  # Its sampler yields None for each image.
    batches = getattr(loader, 'batch_sampler', None)
    sampler = getattr(loader if batches is None else batches, 'sampler', None)
    samplers = [values for values in (batches, sampler) if values is not None]
    if not samplers:
        return
    is_random = isinstance(sampler, RANDOM_SAMPLERS)
    can_be_read_once = any(iter(values) is iter(values) for values in samplers)
    if is_random or can_be_read_once or not _ascend(loader):
        raise UserError(
            'groups are in the order of the images, and that of the sampler of the loader, '
            f'{type(samplers[0]).__name__}, is another or unknown: give a loader with '
            'shuffle=False, and no sampler'
        )


def check_workers(loader: object) -> None:
    """Refuse workers that give images in no known order.

    Raises:
        ValueError: If several give them as they are ready, or take turns with those of a stream.
    """
    if getattr(loader, 'num_workers', 0) < 2:
        return
    if not getattr(loader, 'in_order', True):
        raise UserError(
            'groups are in the order of the images, and a loader with in_order=False gives them as '
            'they are ready: give one with in_order=True'
        )
    if isinstance(loader.dataset, torch.utils.data.IterableDataset):
        raise UserError(
            f'groups are in the order of the images, and {loader.num_workers} workers of an '
            'IterableDataset take turns: give a loader with num_workers=1'
        )


def draw_indices(loader: Any) -> Iterator[Iterator[int]]:
    """Yield the indices that a loader reads, several times, since its sampler may shuffle."""
    with unchanged_randomness():
        for _ in range(NUM_DRAWS):
            if loader.batch_sampler is None:
                yield iter(loader.sampler)
            else:
                yield itertools.chain.from_iterable(loader.batch_sampler)


def _ascend(loader: object) -> bool:
    """Return whether each index of a sampler is above the one before it, however often it draws."""
    for indices in draw_indices(loader):
        if not all(index < following for index, following in itertools.pairwise(indices)):
            return False
    return True
