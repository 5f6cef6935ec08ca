"""Datasets that neither toolbox has."""

from mmcalib.datasets.at_input_size import AtInputSize
from mmcalib.datasets.digits import Digits, DigitScenes
from mmcalib.datasets.newsgroups import Newsgroups20, PackText
from mmcalib.datasets.seeded_split import seeded_split
from mmcalib.datasets.tiny_imagenet import TinyImageNet

__all__ = [
    'AtInputSize',
    'DigitScenes',
    'Digits',
    'Newsgroups20',
    'PackText',
    'TinyImageNet',
    'seeded_split',
]
