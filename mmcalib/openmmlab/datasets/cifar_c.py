"""CIFAR-10-C and CIFAR-100-C, read from their published arrays."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from mmengine.dataset import BaseDataset
from mmengine.registry import DATASETS

from mmcalib.choices import SEVERITIES
from mmcalib.options import check_choice

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
        **kwargs: Further arguments of mmengine's ``BaseDataset``, such as ``pipeline``, to which
            each sample comes with ``img`` ``(H, W, 3)`` uint8 and ``gt_label``.

    Raises:
        FileNotFoundError: If an array is not there.
        ValueError: If an option is out of range, or images and labels do not fit.
    """

    def __init__(
        self, data_root: str, corruption: str, severity: int, *, channel_order='rgb', **kwargs
    ) -> None:
        self.corruption = corruption
        self.severity = check_choice('severity', severity, SEVERITIES)
        self.channel_order = check_choice('channel_order', channel_order, ('rgb', 'bgr'))
        # The images are in one array already, which forked workers share.
        kwargs.setdefault('serialize_data', False)
        super().__init__(data_root=data_root, **kwargs)

    def load_data_list(self) -> list[dict]:
        images = self._load_severity(f'{self.corruption}.npy')
        labels = self._load_severity(LABELS)
        if self.channel_order == 'bgr':
            images = images[..., ::-1]
        images = np.array(images, order='C')  # A copy stays when the file goes.
        samples = []
        for image, label in zip(images, labels, strict=True):
            samples.append({'img': image, 'gt_label': int(label)})
        return samples

    def _load_severity(self, file: str) -> np.ndarray:
        """Return the part of an array that belongs to the severity."""
        array = np.load(Path(self.data_root, file), mmap_mode='r')
        return np.split(array, len(SEVERITIES))[self.severity - 1]
