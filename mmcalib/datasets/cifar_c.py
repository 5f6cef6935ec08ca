"""CIFAR-10-C and CIFAR-100-C, read from their published arrays."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from mmengine.dataset import BaseDataset
from mmengine.registry import DATASETS

from mmcalib.checks import check_choice
from mmcalib.corruption_names import SEVERITIES

LABELS = 'labels.npy'


@DATASETS.register_module()
class CIFARC(BaseDataset):
    """One corruption of CIFAR-10-C or CIFAR-100-C at one severity: a fifth of its array.

    Args:
        data_root: The unpacked folder, with ``labels.npy`` and an array ``(5N, H, W, 3)`` of each
            corruption, severity after severity.
        corruption: The name of an array, such as ``'fog'``.
        severity: 1 to 5.
        channel_order: Channel order of the returned images: ``'rgb'``, like mmpretrain's CIFAR-10,
            or ``'bgr'``, like loaded files.
        pipeline: Transforms; each sample comes with ``img`` ``(H, W, 3)`` uint8 and ``gt_label``.
        **kwargs: Further arguments of mmengine's ``BaseDataset``, such as ``metainfo``.

    Raises:
        FileNotFoundError: If an array is not there.
        ValueError: If an option is out of range, or there are more images than labels, or fewer.
    """

    def __init__(
        self,
        data_root: str,
        corruption: str,
        severity: int,
        *,
        channel_order: str = 'rgb',
        pipeline=(),
        **kwargs,
    ) -> None:
        self.corruption = corruption
        self.severity = check_choice('severity', severity, SEVERITIES)
        self.channel_order = check_choice('channel_order', channel_order, ('rgb', 'bgr'))
        # The images are in one array already, which forked workers share.
        kwargs.setdefault('serialize_data', False)
        super().__init__(data_root=data_root, pipeline=list(pipeline), **kwargs)

    def load_data_list(self) -> list[dict]:
        images, labels = stored_arrays(self.data_root, self.corruption)
        flip = slice(None, None, -1 if self.channel_order == 'bgr' else 1)
        images = np.array_split(images, len(SEVERITIES))[self.severity - 1][..., flip]
        labels = np.array_split(labels, len(SEVERITIES))[self.severity - 1]
        images = np.array(images, order='C')  # whatever becomes of the file
        return [{'img': image, 'gt_label': int(k)} for image, k in zip(images, labels, strict=True)]


def stored_arrays(folder: str, corruption: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the images of a corruption, left on the disk, and their labels.

    Raises:
        FileNotFoundError: If one of the two is not there.
        ValueError: If their numbers differ, or do not fit five severities.
    """
    paths = Path(folder, f'{corruption}.npy'), Path(folder, LABELS)
    for path in paths:
        if not path.is_file():
            there = ', '.join(sorted(each.name for each in Path(folder).glob('*.npy'))) or 'none'
            raise FileNotFoundError(f'there is no {path}; arrays in its folder: {there}')
    images, labels = (np.load(path, mmap_mode='r') for path in paths)
    if len(images) != len(labels) or len(labels) % len(SEVERITIES):
        raise ValueError(
            f'{folder}: {len(images):,} images of {corruption} and {len(labels):,} labels, but '
            'CIFAR-10-C has one label for each image at each of 5 severities: unpack it again'
        )
    return images, labels
