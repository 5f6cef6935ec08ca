"""Transforms that neither toolbox has."""

from typing import TYPE_CHECKING

from mmcalib import late_names

if TYPE_CHECKING:
    from mmcalib.transforms.corrupt import Corrupt
    from mmcalib.transforms.segmentation import AtInputSize, LabelUntrainedClasses
else:
    __getattr__ = late_names(
        __name__,
        {
            'Corrupt': 'mmcalib.transforms.corrupt',
            'AtInputSize': 'mmcalib.transforms.segmentation',
            'LabelUntrainedClasses': 'mmcalib.transforms.segmentation',
        },
    )

__all__ = ['AtInputSize', 'Corrupt', 'LabelUntrainedClasses']
