"""Sources of the configs' data sets, for the messages about missing ones."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

from mmcalib.metric_keys import OOD_GROUPS

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
VECTORS_SOURCE = (
    'Unpack glove.6B.zip of https://nlp.stanford.edu/projects/glove/, which holds glove.6B.100d.txt'
)


def missing_data_message(loaders: Mapping[str, Mapping | None]) -> str | None:
    """Return a message that names dataloaders' missing data and their source, None if all is there.

    Args:
        loaders: Their configs, or None, by their names in the config.
    """
    missing: dict[str, list[str]] = {}
    source = ''
    for key, loader in loaders.items():
        for path, dataset in dataset_configs(f'{key}.dataset', (loader or {}).get('dataset')):
            root = dataset.get('data_root')
            if dataset.get('download') or not root or '://' in root:
                continue
            folder = os.path.abspath(os.path.expanduser(root))
            if not os.path.isdir(folder):
                source = source or SOURCES.get(dataset.get('type'), 'Put the data there')
                missing.setdefault(folder, []).append(f'{path}.data_root')
                continue
            lists = os.path.join(folder, os.path.expanduser(dataset.get('ann_file') or ''))
            if '://' not in lists and not os.path.exists(lists):
                return f'{path}.ann_file: there is no file {lists}.{_hint(lists)}'
    if not missing:
        return None
    folder, keys = next(iter(missing.items()))
    settings = ' '.join(f'{key}=…' for key in keys)
    return (
        f'{", ".join(keys)}: there is no folder {folder}. {source}; or set --cfg-options {settings}'
    )


def _hint(path: str) -> str:
    if os.path.basename(path) != 'aug.txt':
        return ''
    return (
        " It lists the augmented annotations (SBD), which mmseg's "
        'tools/dataset_converters/voc_aug.py adds to VOC 2012. Without them, use a dataset with '
        "ann_file='ImageSets/Segmentation/train.txt' alone, as in "
        'mmcalib::ce/deeplabv3_r50_voc.py'
    )


def missing_vectors_message(backbone: Mapping) -> str | None:
    """Return which file of word vectors a backbone's config needs and how to get it, None if none.

    With `embed_dims` beside them, a model can be built without the vectors, as for a test.
    """
    vectors = backbone.get('vectors')
    if not vectors or backbone.get('embed_dims'):
        return None
    for path in [vectors] if isinstance(vectors, str) else vectors:
        if not os.path.isfile(os.path.expanduser(path)):
            return missing_file_message(path)
    return None


def missing_file_message(path: str) -> str:
    """Return the remedy for a file of word vectors that is not there."""
    return (
        f'there is no file {os.path.abspath(path)} of word vectors. {VECTORS_SOURCE}; or set '
        '--cfg-options model.backbone.vectors=…. A checkpoint holds its own vectors: to test '
        'one, set vectors=None and its embed_dims'
    )


def ood_sets(dataset: Mapping) -> dict[str, Mapping[str, object]]:
    """Return the sets that a config of ``WithOODSets`` has, by group and name."""
    groups = {group: dataset.get(group) for group in OOD_GROUPS}
    return {group: sets for group, sets in groups.items() if isinstance(sets, Mapping)}


def dataset_configs(path: str, node: object) -> Iterator[tuple[str, Mapping]]:
    """Yield key and config of a dataset, and of those inside wrappers such as ConcatDataset."""
    if isinstance(node, Mapping):
        yield path, node
        yield from dataset_configs(f'{path}.dataset', node.get('dataset'))
        yield from dataset_configs(f'{path}.datasets', node.get('datasets'))
        for group, sets in ood_sets(node).items():
            for name, each in sets.items():
                yield from dataset_configs(f'{path}.{group}.{name}', each)
    elif isinstance(node, (list, tuple)):
        for index, item in enumerate(node):
            yield from dataset_configs(f'{path}.{index}', item)
