"""Hooks: each does one thing at certain points of a run."""

from mmcalib.openmmlab.hooks.drawing_hooks import ConfidenceMapHook, ReliabilityDiagramHook
from mmcalib.openmmlab.hooks.fused_upsampling_hook import FusedUpsamplingHook
from mmcalib.openmmlab.hooks.keep_logits_hook import KeepLogitsHook
from mmcalib.openmmlab.hooks.learn_from_validation_hook import LearnFromValidationHook
from mmcalib.openmmlab.hooks.logit_distance_hook import LogitDistanceHook
from mmcalib.openmmlab.hooks.loss_schedule_hook import LossScheduleHook
from mmcalib.openmmlab.hooks.same_buffers_hook import SameBuffersHook

__all__ = [
    'ConfidenceMapHook',
    'FusedUpsamplingHook',
    'KeepLogitsHook',
    'LearnFromValidationHook',
    'LogitDistanceHook',
    'LossScheduleHook',
    'ReliabilityDiagramHook',
    'SameBuffersHook',
]
