"""Transforms that neither toolbox has."""

from typing import TYPE_CHECKING

from mmcalib import late_names

__all__ = ['AtInputSize', 'Corrupt', 'LabelUntrainedClasses']

if TYPE_CHECKING:
    from mmcalib.transforms.corrupt import Corrupt
    from mmcalib.transforms.segmentation import AtInputSize, LabelUntrainedClasses
else:
    _MODULES = dict.fromkeys(__all__, f'{__name__}.segmentation')
    __getattr__ = late_names(__name__, _MODULES | {'Corrupt': f'{__name__}.corrupt'})
