"""Groups of images in a data set, by its own names or by a pattern in the names of files."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable
from itertools import islice

from torch import Tensor

from mmcalib.errors import UserError
from mmcalib.openmmlab.same_data import sample_ids
from mmcalib.predictions.distributed import dataset_index
from mmcalib.predictions.group_names import check_workers, draw_indices, group_numbers


def groups_of_images(dataset: object, pattern: str | None = None) -> Tensor:
    """Return which group each image is of: frames of one video, scans of one patient.

    Images are of one group if the pattern finds the same in their file names; without a pattern,
    if their ``get_data_info`` has the same ``group``. So is an image that the data have twice, as
    those of a ``RepeatDataset`` and of overlapping parts of a ``ConcatDataset``.

    Args:
        dataset: The images, in the order of the loader.
        pattern: A regular expression, searched in the path of each file. Its parentheses together,
            or all of it, name the group.

    Returns:
        ``(n,)`` int64, numbered in the order of the first images.

    Raises:
        UserError: If the pattern is none, or finds nothing in the name of an image.
    """
    names: list[Hashable] = []
    for sample in sample_ids(dataset):
        if pattern is not None:
            names.append(_matched_name(pattern, sample.path))
        else:
            names.append(sample.key if sample.group is None else ('group', sample.group))
    return group_numbers(names, len(names))


def check_places(loader: Iterable, split: str) -> None:
    """Raise a UserError if a loader reads other images than those that groups are taken of.

    Args:
        loader: The loader of the split, on this process.
        split: The name of the split, for the error.
    """
    check_workers(loader)
    size = len(loader.dataset)
    for indices in draw_indices(loader):
        for position, index in enumerate(islice(indices, size)):
            expected_index = dataset_index(position)
            if expected_index < size and index != expected_index:
                raise UserError(
                    f'{split}_dataloader reads image {index} of the data at place '
                    f'{expected_index}, so no image is known to be of its group: set '
                    f'{split}_dataloader.sampler.shuffle=False, and take out a batch_sampler'
                )


def _matched_name(pattern: str, path: str | None) -> Hashable:
    """Return the text that a pattern matches in the path of an image."""
    if path is None:
        raise UserError(f'--groups {pattern}: the images have no file names: leave it out')
    try:
        match = re.search(pattern, path)
    except re.error as error:
        raise UserError(f'--groups {pattern} is no regular expression: {error}') from error
    if match is None:
        raise UserError(
            f'--groups {pattern} finds nothing in {path}: give a pattern whose parenthesis is '
            'the name of the video, of the patient, …'
        )
    return match.groups() or match[0]
