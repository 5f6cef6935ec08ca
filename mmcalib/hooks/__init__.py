"""What happens when, in a run."""

from mmcalib.hooks.loss_schedule import LossScheduleHook
from mmcalib.hooks.vocabulary import VocabularyHook, fit_vocabulary

__all__ = ['LossScheduleHook', 'VocabularyHook', 'fit_vocabulary']
