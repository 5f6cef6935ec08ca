"""Digests by which a test recognises the data of an earlier one, wherever their folder lies."""

from __future__ import annotations

import os
from hashlib import blake2b
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np

from mmcalib.datasets.cifar_c import LABELS
from mmcalib.hooks.name_broken_samples_hook import sample_files


def data_fingerprint(dataset: object) -> str:
    """Return a digest of a data set's samples, without reading their files.

    It has their number, labels and arrays, and of each file the path below the folder that all of
    them share, its size and when it was changed: a second of CPU time for 50,000 images.
    """
    digest = blake2b(str(len(dataset)).encode(), digest_size=16)
    if not hasattr(dataset, 'get_data_info'):
        return digest.hexdigest()
    rows = []
    for index in range(len(dataset)):
        info = dataset.get_data_info(index)
        for value in info.values():
            if isinstance(value, np.ndarray):
                digest.update(np.ascontiguousarray(value))
        files = [os.path.abspath(path) for path in sample_files(info).values()]
        rows.append((str(info.get('gt_label')), files))
    folders = {os.path.dirname(path) for _, files in rows for path in files}
    root = os.path.commonpath(folders) if folders else ''
    for label, files in rows:
        found = [(path[len(root) :], *_state(path)) for path in files]
        digest.update(f'{label} {found}'.encode())
    return digest.hexdigest()


def stored_fingerprint(root: str, corruption: str, severity: int) -> str:
    """Return a digest of a stored corruption: of its arrays, or of the folders of its classes.

    Of 75 times 50,000 files, each would be too many to ask for.
    """
    if Path(root, LABELS).is_file():
        paths = [Path(root, name) for name in (f'{corruption}.npy', LABELS)]
    else:
        paths = sorted(Path(root, corruption, str(severity)).iterdir())
    found = [(path.name, *_state(path)) for path in paths]
    return blake2b(str(found).encode(), digest_size=16).hexdigest()


def corruption_version() -> str:
    """Return the version of the package that corrupts, nothing if it is no installed one."""
    try:
        return version('imagecorruptions-imaug')
    except PackageNotFoundError:  # as where its folder is on the path alone
        return ''


def _state(path: str | Path) -> tuple[int, int] | tuple[()]:
    """Return size and time of change of a file or folder, nothing if it is not there."""
    try:
        state = os.stat(path)
    except OSError:  # which a test names, with what to do
        return ()
    return state.st_size, state.st_mtime_ns
