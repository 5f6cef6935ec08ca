"""Transforms that neither toolbox has."""

from mmcalib.openmmlab.transforms.corrupt import Corrupt as Corrupt
from mmcalib.openmmlab.transforms.segmentation import (
    AtInputSize as AtInputSize,
    LabelUntrainedClasses as LabelUntrainedClasses,
)
