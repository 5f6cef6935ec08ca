"""What happens when, in a run."""

from mmcalib.hooks.accuracy_floor import AccuracyFloorCheckpointHook
from mmcalib.hooks.checkpoint_meta import CheckpointMeta
from mmcalib.hooks.complete_weights import CompleteWeights
from mmcalib.hooks.confidence_map import ConfidenceMapHook
from mmcalib.hooks.logit_distance import LogitDistanceHook
from mmcalib.hooks.loss_schedule import LossScheduleHook
from mmcalib.hooks.reliability_diagram import ReliabilityDiagramHook
from mmcalib.hooks.same_buffers import SameBuffersHook
from mmcalib.hooks.same_classes import SameClasses
from mmcalib.hooks.vocabulary import VocabularyHook, fit_vocabulary

__all__ = [
    'AccuracyFloorCheckpointHook',
    'CheckpointMeta',
    'CompleteWeights',
    'ConfidenceMapHook',
    'LogitDistanceHook',
    'LossScheduleHook',
    'ReliabilityDiagramHook',
    'SameBuffersHook',
    'SameClasses',
    'VocabularyHook',
    'fit_vocabulary',
]
