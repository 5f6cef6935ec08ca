"""Messages about data sets that are not where a config says, with their sources."""

from __future__ import annotations

import os
from collections.abc import Mapping

from mmcalib.openmmlab.datasets.download_sources import (
    AUGMENTED,
    SOURCES,
    WITHOUT_AUGMENTED,
    WITHOUT_SECOND,
)
from mmcalib.runs.config_tree import type_name, walk


def missing_data_message(loaders: Mapping[str, Mapping | None]) -> str | None:
    """Return a message that names dataloaders' missing data and their source, None if all is there.

    Args:
        loaders: Their configs, or None, by their names in the config.
    """
    missing: dict[str, list[str]] = {}
    for key, loader in loaders.items():
        for path, dataset in walk((loader or {}).get('dataset'), f'{key}.dataset'):
            root = dataset.get('data_root')
            if dataset.get('download') or not root or '://' in root:
                continue
            folder = os.path.abspath(os.path.expanduser(root))
            lists = os.path.join(folder, os.path.expanduser(dataset.get('ann_file') or ''))
            if not os.path.isdir(folder):
                source = SOURCES.get(type_name(dataset.get('type')), 'Put the data there')
                missing.setdefault(f'there is no folder {folder}. {source}', []).append(path)
            elif '://' not in lists and not os.path.exists(lists):
                hint = _augmented_hint(loader) if os.path.basename(lists) == 'aug.txt' else ''
                return f'{path}.ann_file: there is no file {lists}.{hint}'
    for problem, paths in missing.items():
        settings = ' '.join(f'{path}.data_root=…' for path in paths)
        return f'{", ".join(paths)}: {problem}; or set --cfg-options {settings}'
    return None


def _augmented_hint(loader: Mapping) -> str:
    """Return what to do without VOC's augmented list, which may stand beside the other one."""
    lists = [part.get('ann_file') or '' for _, part in walk(loader['dataset'])]
    has_training_list = any(os.path.basename(path) == 'train.txt' for path in lists)
    return AUGMENTED + (WITHOUT_SECOND if has_training_list else WITHOUT_AUGMENTED)
