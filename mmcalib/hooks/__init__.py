"""What happens when, in a run."""

from mmcalib.hooks.loss_schedule import LossScheduleHook

__all__ = ['LossScheduleHook']
