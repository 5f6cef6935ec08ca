"""Datasets that neither toolbox has."""

from mmcalib.datasets.digits import Digits, DigitScenes

__all__ = ['DigitScenes', 'Digits']
