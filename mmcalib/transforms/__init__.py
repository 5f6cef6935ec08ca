"""Transforms that neither toolbox has."""

import mmcalib.needs_mmengine  # noqa: F401
from mmcalib.transforms.corrupt import Corrupt as Corrupt
from mmcalib.transforms.evaluate_at_input_size import AtInputSize as AtInputSize
from mmcalib.transforms.label_untrained_classes import (
    LabelUntrainedClasses as LabelUntrainedClasses,
)
