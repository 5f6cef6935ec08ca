"""Hooks: each does one thing at certain points of a run."""

from mmcalib.hooks.accuracy_floor_hook import AccuracyFloorCheckpointHook
from mmcalib.hooks.drawing_hooks import ConfidenceMapHook, ReliabilityDiagramHook
from mmcalib.hooks.fused_upsampling_hook import FusedUpsamplingHook
from mmcalib.hooks.keep_logits_hook import KeepLogitsHook
from mmcalib.hooks.learn_from_validation_hook import LearnFromValidationHook
from mmcalib.hooks.logit_distance_hook import LogitDistanceHook
from mmcalib.hooks.loss_schedule_hook import LossScheduleHook
from mmcalib.hooks.same_buffers_hook import SameBuffersHook
from mmcalib.hooks.word_vectors_hook import WordVectorsHook

__all__ = [
    'AccuracyFloorCheckpointHook',
    'ConfidenceMapHook',
    'FusedUpsamplingHook',
    'KeepLogitsHook',
    'LearnFromValidationHook',
    'LogitDistanceHook',
    'LossScheduleHook',
    'ReliabilityDiagramHook',
    'SameBuffersHook',
    'WordVectorsHook',
]
