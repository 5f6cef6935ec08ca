"""Transforms that neither toolbox has."""

from typing import TYPE_CHECKING

from mmcalib import late_names

if TYPE_CHECKING:
    from mmcalib.transforms.corrupt import Corrupt
    from mmcalib.transforms.evaluate_at_input_size import AtInputSize
    from mmcalib.transforms.label_untrained_classes import LabelUntrainedClasses
else:
    __getattr__ = late_names(
        __name__,
        {
            'Corrupt': 'mmcalib.transforms.corrupt',
            'AtInputSize': 'mmcalib.transforms.evaluate_at_input_size',
            'LabelUntrainedClasses': 'mmcalib.transforms.label_untrained_classes',
        },
    )

__all__ = ['AtInputSize', 'Corrupt', 'LabelUntrainedClasses']
