"""Datasets that neither toolbox has."""

import mmcalib.needs_mmengine  # noqa: F401
from mmcalib.datasets.cifar_c import CIFARC
from mmcalib.datasets.digits import Digits, DigitScenes
from mmcalib.datasets.evenly_spaced_subset import EvenSubset
from mmcalib.datasets.imagenet_c import ImageNetC
from mmcalib.datasets.newsgroups import Newsgroups20
from mmcalib.datasets.seeded_split import seeded_split
from mmcalib.datasets.tiny_imagenet import TinyImageNet
from mmcalib.datasets.with_ood_sets import WithOODSets

__all__ = [
    'CIFARC',
    'DigitScenes',
    'Digits',
    'EvenSubset',
    'ImageNetC',
    'Newsgroups20',
    'TinyImageNet',
    'WithOODSets',
    'seeded_split',
]
