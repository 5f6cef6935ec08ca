"""Which images of a data set are independent."""

from __future__ import annotations

import re
from collections.abc import Hashable

from torch import Tensor

from mmcalib.checks import UserError
from mmcalib.samples.from_loader import group_numbers


def groups_of_images(dataset: object, pattern: str | None = None) -> Tensor:
    """Return which group each image is of: frames of one video, scans of one patient.

    Images are of one group if the pattern finds the same in their file names; without a pattern,
    if their ``get_data_info`` has the same ``group``. So are the copies of a ``RepeatDataset``.

    Args:
        dataset: The images, in the order of the loader.
        pattern: A regular expression, searched in the path of each file. Its parentheses together,
            or all of it, name the group.

    Returns:
        ``(n,)`` int64, numbered in the order of the first images.

    Raises:
        UserError: If the pattern is none, or finds nothing in the name of an image.
    """
    names = []
    for index in range(len(dataset)):
        info = dataset.get_data_info(index) if hasattr(dataset, 'get_data_info') else {}
        path = info.get('img_path')
        group = info.get('group', (path, info.get('sample_idx', index)))
        if pattern is not None:
            group = _found(pattern, path)
        names.append(group)
    return group_numbers(names, len(names))


def _found(pattern: str, path: str | None) -> Hashable:
    """Return what a pattern finds in the path of an image."""
    if path is None:
        raise UserError(f'--groups {pattern}: the images have no file names: leave it out')
    try:
        found = re.search(pattern, path)
    except re.error as error:
        raise UserError(f'--groups {pattern} is no regular expression: {error}') from error
    if not found:
        raise UserError(
            f'--groups {pattern} finds nothing in {path}: give a pattern whose parenthesis is '
            'the name of the video, of the patient, …'
        )
    return found.groups() or found[0]
