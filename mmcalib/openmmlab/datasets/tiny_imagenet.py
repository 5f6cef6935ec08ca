"""Tiny-ImageNet, read from the official folder."""

from __future__ import annotations

from pathlib import Path

from mmengine.dataset import BaseDataset
from mmengine.registry import DATASETS

from mmcalib.openmmlab.datasets.download_sources import SOURCES
from mmcalib.options import check_choice


@DATASETS.register_module()
class TinyImageNet(BaseDataset):
    """Tiny-ImageNet: 200 classes of 64×64 images, from the unpacked ``tiny-imagenet-200/``.

    Classes are numbered by the lines of ``wnids.txt`` and named by ``words.txt``. Training images
    come by class, then by name; validation images as in ``val_annotations.txt``.

    Args:
        data_root: The folder, which holds ``wnids.txt``, ``words.txt``, ``train/`` and ``val/``.
        split: ``'train'``, 100,000 images, or ``'val'``, 10,000, which the paper tests on. The
            official test images have no public labels.
        **kwargs: Further arguments of mmengine's ``BaseDataset``, such as ``pipeline``, to which
            each sample comes with ``img_path`` and ``gt_label``.

    Raises:
        ValueError: If the split is unknown.
        FileNotFoundError: If a file or a folder is not there.
    """

    def __init__(self, data_root: str, split: str, **kwargs) -> None:
        self.split = check_choice('split', split, ('train', 'val'))
        self.root = Path(data_root).expanduser()
        super().__init__(data_root=data_root, **kwargs)

    def load_data_list(self) -> list[dict]:
        wnids = [wnid for (wnid,) in self._read_rows('wnids.txt')]
        self.class_folders = wnids
        class_names = dict(self._read_rows('words.txt'))
        self._metainfo.setdefault('classes', tuple(class_names[wnid] for wnid in wnids))
        samples = []
        if self.split == 'train':
            for label, wnid in enumerate(wnids):
                folder = self._require(f'train/{wnid}/images')
                for path in sorted(folder.glob('*.JPEG')):
                    samples.append({'img_path': str(path), 'gt_label': label})
            return samples
        label_by_wnid = {wnid: label for label, wnid in enumerate(wnids)}
        for name, wnid, *_ in self._read_rows('val/val_annotations.txt'):
            path = self.root / 'val/images' / name
            samples.append({'img_path': str(path), 'gt_label': label_by_wnid[wnid]})
        return samples

    def _read_rows(self, name: str) -> list[list[str]]:
        """Return the fields of each line of a file."""
        lines = self._require(name).read_text(encoding='utf-8').splitlines()
        return [line.split('\t') for line in lines]

    def _require(self, name: str) -> Path:
        """Return the path of a file or folder; raise a FileNotFoundError if it is not there."""
        path = self.root / name
        if not path.exists():
            raise FileNotFoundError(f'there is no {path.absolute()}. {SOURCES["TinyImageNet"]}')
        return path
