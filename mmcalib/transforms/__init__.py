"""Transforms that neither toolbox has."""

import mmcalib.needs_mmengine  # noqa: F401
from mmcalib.transforms.corrupt import Corrupt
from mmcalib.transforms.evaluate_at_input_size import AtInputSize
from mmcalib.transforms.label_untrained_classes import LabelUntrainedClasses
from mmcalib.transforms.pack_text import PackText

__all__ = ['AtInputSize', 'Corrupt', 'LabelUntrainedClasses', 'PackText']
