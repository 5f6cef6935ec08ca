"""Hooks: each does one thing at certain points of a run."""

from mmcalib.hooks.accuracy_floor_hook import (
    AccuracyFloorCheckpointHook as AccuracyFloorCheckpointHook,
)
from mmcalib.hooks.drawing_hooks import ConfidenceMapHook as ConfidenceMapHook
from mmcalib.hooks.drawing_hooks import ReliabilityDiagramHook as ReliabilityDiagramHook
from mmcalib.hooks.fused_upsampling_hook import FusedUpsamplingHook as FusedUpsamplingHook
from mmcalib.hooks.keep_logits_hook import KeepLogitsHook as KeepLogitsHook
from mmcalib.hooks.learn_from_validation_hook import (
    LearnFromValidationHook as LearnFromValidationHook,
)
from mmcalib.hooks.logit_distance_hook import LogitDistanceHook as LogitDistanceHook
from mmcalib.hooks.loss_schedule_hook import LossScheduleHook as LossScheduleHook
from mmcalib.hooks.same_buffers_hook import SameBuffersHook as SameBuffersHook
from mmcalib.hooks.word_vectors_hook import WordVectorsHook as WordVectorsHook
