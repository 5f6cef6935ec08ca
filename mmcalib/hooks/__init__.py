"""Hooks: each does one thing at certain points of a run."""

from mmcalib.hooks.accuracy_floor_hook import AccuracyFloorCheckpointHook
from mmcalib.hooks.checkpoint_meta_hook import CheckpointMeta
from mmcalib.hooks.confidence_map_hook import ConfidenceMapHook
from mmcalib.hooks.fused_upsampling_hook import FusedUpsamplingHook
from mmcalib.hooks.keep_logits_hook import KeepLogitsHook
from mmcalib.hooks.learn_from_validation_hook import LearnFromValidationHook
from mmcalib.hooks.load_members_hook import LoadMembersHook
from mmcalib.hooks.logit_distance_hook import LogitDistanceHook
from mmcalib.hooks.loss_schedule_hook import LossScheduleHook
from mmcalib.hooks.reliability_diagram_hook import ReliabilityDiagramHook
from mmcalib.hooks.require_complete_weights_hook import CompleteWeights
from mmcalib.hooks.require_same_classes_hook import SameClasses
from mmcalib.hooks.same_buffers_hook import SameBuffersHook
from mmcalib.hooks.word_vectors_hook import WordVectorsHook

__all__ = [
    'AccuracyFloorCheckpointHook',
    'CheckpointMeta',
    'CompleteWeights',
    'ConfidenceMapHook',
    'FusedUpsamplingHook',
    'KeepLogitsHook',
    'LearnFromValidationHook',
    'LoadMembersHook',
    'LogitDistanceHook',
    'LossScheduleHook',
    'ReliabilityDiagramHook',
    'SameBuffersHook',
    'SameClasses',
    'WordVectorsHook',
]
