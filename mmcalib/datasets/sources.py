"""Where the data sets of the configs come from, for the messages about missing ones."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

SOURCES = {
    'CIFAR10': (
        'Unpack https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz there, so that it holds '
        'cifar-10-batches-py/'
    ),
    'TinyImageNet': (
        'Unpack http://cs231n.stanford.edu/tiny-imagenet-200.zip and point to its '
        'tiny-imagenet-200, which holds wnids.txt, words.txt, train/ and val/'
    ),
    'CUB': (
        'Unpack CUB_200_2011.tgz of https://data.caltech.edu/records/65de6-vp158 and point to its '
        'CUB_200_2011, which holds images.txt, image_class_labels.txt, train_test_split.txt and '
        'images/'
    ),
    'PascalVOCDataset': (
        'Unpack VOCtrainval_11-May-2012.tar of http://host.robots.ox.ac.uk/pascal/VOC/voc2012/ and '
        'point to its VOCdevkit/VOC2012, which holds JPEGImages/, SegmentationClass/ and '
        'ImageSets/Segmentation/'
    ),
    'Newsgroups20': (
        'Unpack 20news-bydate.tar.gz of http://qwone.com/~jason/20Newsgroups/ there, so that it '
        'holds 20news-bydate-train/ and 20news-bydate-test/, or the older 20news-19997.tar.gz, '
        'which holds 20_newsgroups/'
    ),
}


def missing_data_message(key: str, loader: Mapping | None) -> str | None:
    """Return what is missing of a dataloader's data and how to get it, None if all is there.

    Args:
        key: Name of the dataloader in the config.
        loader: Its config, or None.
    """
    for path, dataset in _datasets(f'{key}.dataset', (loader or {}).get('dataset')):
        root = dataset.get('data_root')
        if not root or '://' in root or os.path.isdir(os.path.expanduser(root)):
            continue
        source = SOURCES.get(dataset.get('type'), 'Put the data there')
        return (
            f'{path}.data_root: there is no folder {os.path.abspath(root)}. {source}; or set '
            f'--cfg-options {path}.data_root=…'
        )
    return None


def _datasets(path: str, node: object) -> Iterator[tuple[str, Mapping]]:
    """Walk a dataset's config down through wrappers such as RepeatDataset and ConcatDataset."""
    if isinstance(node, Mapping):
        yield path, node
        yield from _datasets(f'{path}.dataset', node.get('dataset'))
        yield from _datasets(f'{path}.datasets', node.get('datasets'))
    elif isinstance(node, (list, tuple)):
        for index, item in enumerate(node):
            yield from _datasets(f'{path}.{index}', item)
