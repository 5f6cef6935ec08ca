"""Stored corruptions: CIFAR-10-C and CIFAR-100-C of arrays, ImageNet-C and its like of folders."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from mmengine.dataset import BaseDataset
from mmengine.registry import DATASETS

from mmcalib.choices import SEVERITIES
from mmcalib.errors import UserError
from mmcalib.options import check_choice

LABELS = 'labels.npy'
IMAGE_SUFFIXES = ('.jpeg', '.jpg', '.png')


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
        return [
            {'img': image, 'gt_label': int(label)}
            for image, label in zip(images, labels, strict=True)
        ]

    def _load_severity(self, file: str) -> np.ndarray:
        """Return the part of an array that belongs to the severity."""
        array = np.load(Path(self.data_root, file), mmap_mode='r')
        return np.split(array, len(SEVERITIES))[self.severity - 1]


@DATASETS.register_module()
class ImageNetC(BaseDataset):
    """One corruption of ImageNet-C at one severity: ``corruption/severity/class/*.JPEG``.

    Unlike mmpretrain's ``CustomDataset``, it can number the classes as those of the clean data.

    Args:
        data_root: The folder that the archives were unpacked into.
        corruption: The name of a folder, such as ``'fog'``.
        severity: 1 to 5.
        class_folders: List of the names of the classes' folders, by label; by default in
            alphabetical order, as for ImageNet.
        **kwargs: Further arguments of mmengine's ``BaseDataset``, such as ``pipeline``, to which
            each sample comes with ``img_path`` and ``gt_label``.

    Raises:
        FileNotFoundError: If the folder is not there.
        ValueError: If the folder has other classes.
    """

    def __init__(
        self, data_root: str, corruption: str, severity: int, *, class_folders=None, **kwargs
    ) -> None:
        self.folder = Path(data_root, corruption, str(severity))
        self.class_folders = class_folders
        super().__init__(data_root=data_root, **kwargs)

    def load_data_list(self) -> list[dict]:
        folders = sorted(path.name for path in self.folder.iterdir() if path.is_dir())
        names = list(self.class_folders or folders)
        unmatched = sorted(set(folders) ^ set(names))
        if unmatched:
            raise UserError(
                f'{self.folder} has other classes than the model: {len(unmatched)} folders, such '
                f'as {unmatched[0]}, are in one of the two alone'
            )
        samples = []
        for label, name in enumerate(names):
            for path in sorted((self.folder / name).iterdir()):
                if path.suffix.lower() in IMAGE_SUFFIXES:
                    samples.append({'img_path': str(path), 'gt_label': label})
        return samples
