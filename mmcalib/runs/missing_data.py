"""Messages about data sets that are not where a config says, with their sources."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

from mmengine.registry import DATASETS

from mmcalib.openmmlab.datasets.download_sources import (
    AUGMENTED,
    SOURCES,
    WITHOUT_AUGMENTED,
    WITHOUT_SECOND,
)
from mmcalib.runs.config_tree import TOOLBOXES, find_class, type_name, walk

# Data sets of mmpretrain whose lists have a file and the number of its class on each line.
LABELLED_LISTS = ('CustomDataset', 'ImageNet')


def missing_data_message(
    loaders: Mapping[str, Mapping | None], scope: str | None = None
) -> str | None:
    """Return a message that names dataloaders' missing data and their source, None if all is there.

    A line of a list that names no file, or has no label where each needs one, is a problem too.

    Args:
        loaders: Configs of the dataloaders, or None, by their names in the config.
        scope: Default scope of the config.
    """
    paths_by_problem: dict[str, list[str]] = {}
    for name, loader in loaders.items():
        for path, dataset in walk((loader or {}).get('dataset'), f'{name}.dataset'):
            root = dataset.get('data_root')
            if dataset.get('download') or not root or '://' in root:
                continue
            folder = os.path.abspath(os.path.expanduser(root))
            list_file = os.path.join(folder, os.path.expanduser(dataset.get('ann_file') or ''))
            if not os.path.isdir(folder):
                source = SOURCES.get(type_name(dataset.get('type')), 'Put the data there')
                problem = f'there is no folder {folder}. {source}'
                paths_by_problem.setdefault(problem, []).append(path)
            elif '://' not in list_file and not os.path.exists(list_file):
                hint = augmented_hint(loader) if os.path.basename(list_file) == 'aug.txt' else ''
                return f'{path}.ann_file: there is no file {list_file}.{hint}'
            elif problem := line_problem(list_file, dataset, find_class(dataset, scope, DATASETS)):
                return f'{path}.ann_file: {problem}'
    for problem, paths in paths_by_problem.items():
        settings = ' '.join(f'{path}.data_root=…' for path in paths)
        return f'{", ".join(paths)}: {problem}; or set --cfg-options {settings}'
    return None


def line_problem(list_file: str, dataset: Mapping, kind: Callable | None) -> str | None:
    """Return what the first wrong line in a list of a toolbox's data set lacks, None without."""
    if kind is None or kind.__module__.split('.')[0] not in TOOLBOXES:
        return None
    if not list_file.endswith('.txt') or not os.path.isfile(list_file):
        return None
    has_labels = kind.__name__ in LABELLED_LISTS and dataset.get('with_label', True)
    with open(list_file, encoding='utf-8', errors='replace') as lines:
        for number, line in enumerate(lines, start=1):
            words = line.split()
            if not words:
                return f'line {number} of {list_file} is blank: remove it'
            if has_labels and (len(words) < 2 or not words[-1].lstrip('-').isdigit()):
                return (
                    f'line {number} of {list_file} has no label: write the number of the class '
                    'behind the file, as in "cats/1.jpg 0"'
                )
    return None


def augmented_hint(loader: Mapping) -> str:
    """Return what to do without VOC's augmented list, which may stand beside the other one."""
    names = [os.path.basename(part.get('ann_file') or '') for _, part in walk(loader['dataset'])]
    return AUGMENTED + (WITHOUT_SECOND if 'train.txt' in names else WITHOUT_AUGMENTED)
