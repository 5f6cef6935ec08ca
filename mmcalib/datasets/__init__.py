"""Datasets that neither toolbox has."""

from mmcalib.datasets.digits import Digits, DigitScenes
from mmcalib.datasets.newsgroups import Newsgroups20, PackText

__all__ = ['DigitScenes', 'Digits', 'Newsgroups20', 'PackText']
