"""Tiny-ImageNet, read from the official folder."""

from __future__ import annotations

import os

from mmengine.dataset import BaseDataset
from mmengine.registry import DATASETS

from mmcalib.datasets.tiny_imagenet_files import (
    read_names,
    read_wnids,
    train_images,
    val_images,
)

SPLITS = ('train', 'val')


@DATASETS.register_module()
class TinyImageNet(BaseDataset):
    """Tiny-ImageNet: 200 classes of 64×64 images, from the unpacked ``tiny-imagenet-200/``.

    Classes are numbered by the lines of ``wnids.txt`` and named by ``words.txt``. Training images
    come by class, then by name; validation images as in ``val_annotations.txt``.

    Args:
        data_root: The folder, which holds ``wnids.txt``, ``words.txt``, ``train/`` and ``val/``.
        split: ``'train'``, 100,000 images, or ``'val'``, 10,000, which the paper tests on. The
            official test images have no public labels.
        pipeline: Transforms; each sample comes with ``img_path`` and ``gt_label``.
        **kwargs: Further arguments of mmengine's ``BaseDataset``, such as ``indices``.

    Raises:
        ValueError: If the split is unknown.
        FileNotFoundError: If a file or a folder is not there.
    """

    def __init__(self, data_root: str, split: str, *, pipeline=(), **kwargs) -> None:
        if split not in SPLITS:
            raise ValueError(
                f'split must be one of {SPLITS}, got {split!r}; the official test images have no '
                'public labels'
            )
        self.split = split
        data_root = os.path.expanduser(data_root)
        super().__init__(data_root=data_root, pipeline=list(pipeline), **kwargs)

    def load_data_list(self) -> list[dict]:
        self.class_folders = wnids = read_wnids(self.data_root)
        self._metainfo.setdefault('classes', read_names(self.data_root, wnids))
        if self.split == 'train':
            pairs = (pair for wnid in wnids for pair in train_images(self.data_root, wnid))
        else:
            pairs = val_images(self.data_root)
        labels = {wnid: label for label, wnid in enumerate(wnids)}
        return [{'img_path': path, 'gt_label': labels[wnid]} for path, wnid in pairs]
