"""ImageNet-C, and other sets that are stored in the same folders."""

from __future__ import annotations

from pathlib import Path

from mmengine.dataset import BaseDataset
from mmengine.registry import DATASETS

from mmcalib.errors import UserError

IMAGE_SUFFIXES = ('.jpeg', '.jpg', '.png')


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
