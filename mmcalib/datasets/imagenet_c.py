"""ImageNet-C, and other sets that are stored in folders as it is."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from mmengine.dataset import BaseDataset
from mmengine.registry import DATASETS

from mmcalib.checks import check_choice
from mmcalib.corruption_names import SEVERITIES

IMAGES = ('.jpeg', '.jpg', '.png')


@DATASETS.register_module()
class ImageNetC(BaseDataset):
    """One corruption of ImageNet-C at one severity: ``corruption/severity/class/*.JPEG``.

    Args:
        data_root: The folder that the archives were unpacked into.
        corruption: The name of a folder, such as ``'fog'``.
        severity: 1 to 5.
        class_folders: Names of the folders of the classes, by label; by default in alphabetical
            order, as for ImageNet.
        pipeline: Transforms; each sample comes with ``img_path`` and ``gt_label``.
        **kwargs: Further arguments of mmengine's ``BaseDataset``, such as ``metainfo``.

    Raises:
        FileNotFoundError: If the folder is not there.
        ValueError: If an option is out of range, or the folder has other classes.
    """

    def __init__(
        self,
        data_root: str,
        corruption: str,
        severity: int,
        *,
        class_folders: Sequence[str] | None = None,
        pipeline=(),
        **kwargs,
    ) -> None:
        self.corruption = corruption
        self.severity = check_choice('severity', severity, SEVERITIES)
        self.class_folders = class_folders
        super().__init__(data_root=data_root, pipeline=list(pipeline), **kwargs)

    def load_data_list(self) -> list[dict]:
        found = stored_files(self.data_root, self.corruption, self.severity, self.class_folders)
        folder = Path(self.data_root, self.corruption, str(self.severity))
        return [
            {'img_path': str(folder / name / file), 'gt_label': label}
            for label, (name, files) in enumerate(found.items())
            for file in files
        ]


def stored_files(
    root: str, corruption: str, severity: int, class_folders: Sequence[str] | None = None
) -> dict[str, list[str]]:
    """Return the names of the images in each class's folder, by label.

    Raises:
        FileNotFoundError: If there is no folder of the corruption at that severity.
        ValueError: If it has other classes.
    """
    folder = Path(root, corruption, str(severity))
    if not folder.is_dir():
        raise FileNotFoundError(f'there is no folder {folder}: unpack ImageNet-C there')
    found = sorted(path.name for path in folder.iterdir() if path.is_dir())
    names = list(class_folders or found)
    if sorted(names) != found:
        missing, more = sorted({*names} - {*found}), sorted({*found} - {*names})
        raise ValueError(
            f'{folder} has other classes: {len(missing)} are missing ({_few(missing)}), and '
            f'{len(more)} are not classes of the model ({_few(more)})'
        )
    return {
        name: sorted(n for n in os.listdir(folder / name) if n.lower().endswith(IMAGES))
        for name in names
    }


def _few(names: list[str]) -> str:
    return ', '.join(names[:3]) + (', …' if len(names) > 3 else '') if names else 'none'
