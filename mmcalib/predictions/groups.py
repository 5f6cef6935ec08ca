"""Groups of images that are not independent, such as the frames of a video."""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Iterable, Iterator, Sequence

import torch
from torch import Tensor

from mmcalib.errors import UserError
from mmcalib.tensors import unchanged_randomness

RANDOM_SAMPLERS = (
    torch.utils.data.RandomSampler,
    torch.utils.data.SubsetRandomSampler,
    torch.utils.data.WeightedRandomSampler,
)


def group_numbers(groups: Sequence[Hashable], count: int, loader: object = None) -> Tensor:
    """Return the index of each image's group, ``(n,)`` int64, in the order of their first images.

    Args:
        groups: A name of each image's group, such as its video, patient or flight.
        count: The number of images.
        loader: The loader that they came from.

    Raises:
        TypeError: For rows in place of names.
        ValueError: For another number of groups than of images, for NaN in place of a name, or a
            loader that :func:`check_order` refuses.
    """
    check_order(loader)
    names = groups.tolist() if hasattr(groups, 'tolist') else list(groups)
    # Two tensors with the same number are not the same name.
    names = [name.item() if torch.is_tensor(name) and not name.ndim else name for name in names]
    if len(names) != count:
        raise UserError(f'groups must name the group of each of {count} images, got {len(names)}')
    if not all(isinstance(name, Hashable) for name in names):
        raise TypeError(
            'groups must be one name for each image, such as a number or a text, got rows'
        )
    num_missing = sum(isinstance(name, float) and math.isnan(name) for name in names)
    if num_missing:
        raise UserError(
            f'{num_missing} of {count} groups are NaN, which says not whether they are one group: '
            'give these images the names of their groups, such as a number of its own for each'
        )
    index_by_name: dict[Hashable, int] = {}
    group_index = [index_by_name.setdefault(name, len(index_by_name)) for name in names]
    return torch.tensor(group_index, device='cpu')


def check_order(loader: object) -> None:
    """Refuse a loader that does not read its images in their order, so that no group is another's.

    A random sampler is refused, whatever order it draws. Any other one is asked for its indices,
    which have to ascend. A loader without a sampler, such as a list of batches, is in order.

    Raises:
        ValueError: If an index is not above the one before it, or the sampler can be read once.
    """
    if isinstance(getattr(loader, 'dataset', None), torch.utils.data.IterableDataset):
        return  # Its sampler yields None for each image.
    sampler = getattr(loader, 'sampler', None)
    batches = getattr(loader, 'batch_sampler', None)
    if batches is not None:
        sampler = getattr(batches, 'sampler', None)
    elif sampler is not None:
        batches = ([index] for index in sampler)
    else:
        return
    # The indices of two images that are drawn at random ascend every second time.
    is_random = isinstance(sampler, RANDOM_SAMPLERS)
    can_be_read_once = isinstance(sampler, Iterator)
    if is_random or can_be_read_once or not _ascend(batches):
        raise UserError(
            'groups are in the order of the images, and the sampler of the loader has another '
            f'({type(sampler or batches).__name__}): give a loader with shuffle=False, and no '
            'sampler'
        )


def _ascend(batches: Iterable[Iterable]) -> bool:
    """Return whether each index of a sampler is above the one before it."""
    with unchanged_randomness():
        indices = itertools.chain.from_iterable(batches)
        return all(index < following for index, following in itertools.pairwise(indices))
