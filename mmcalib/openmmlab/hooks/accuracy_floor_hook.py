"""The checkpoint of the least calibration error among those that have learnt enough."""

from __future__ import annotations

from mmengine.hooks import CheckpointHook
from mmengine.registry import HOOKS
from mmengine.runner import Runner

from mmcalib.errors import UserError
from mmcalib.options import check_number

HIGHEST, OF_BEST = 'highest_accuracy', 'accuracy_of_best'  # in the hub, which checkpoints hold
MIN_ACCURACY = 0.98


@HOOKS.register_module()
class AccuracyFloorCheckpointHook(CheckpointHook):
    """mmengine's ``CheckpointHook`` with a minimum accuracy for the best checkpoint.

    Networks that have learnt little are unsure and rightly so: chosen by a calibration error alone,
    the best checkpoint is often one of the first. Here only one whose accuracy is at least
    `min_accuracy` times the highest so far may be the best, and the best is given up for the next
    such one when that floor rises above its accuracy.

    Args:
        accuracy: Key of the accuracy, such as ``'accuracy/top1'`` or ``'mIoU'``.
        min_accuracy: Share of the highest accuracy that a checkpoint must reach, from 0 to 1.
        **options: Of ``CheckpointHook``; `save_best` must be one key.

    Raises:
        TypeError: If `min_accuracy` is no number.
        ValueError: If it is outside [0, 1], or `save_best` is not one key.
    """

    def __init__(self, *, accuracy: str, min_accuracy: float = MIN_ACCURACY, **options) -> None:
        super().__init__(**options)
        self.accuracy = accuracy
        self.min_accuracy = check_number('min_accuracy', min_accuracy, most=1.0)
        if len(self.save_best or ()) != 1:
            raise UserError(
                'AccuracyFloorCheckpointHook needs one key as save_best, such as '
                f"'calibration/ECE'; got {options.get('save_best')!r}"
            )

    def _save_best_checkpoint(self, runner: Runner, metrics: dict) -> None:
        hub, accuracy = runner.message_hub, float(metrics[self.accuracy])
        highest = max(hub.get_info(HIGHEST, 0.0), accuracy)
        hub.update_info(HIGHEST, highest)
        floor = self.min_accuracy * highest
        if hub.get_info(OF_BEST, floor) < floor:
            hub.pop_info('best_score', None)
        if accuracy >= floor:
            best, of_best = self.best_ckpt_path, hub.get_info(OF_BEST, accuracy)
            hub.update_info(OF_BEST, accuracy)  # first, since the checkpoint is to hold it
            super()._save_best_checkpoint(runner, metrics)
            if self.best_ckpt_path == best:
                hub.update_info(OF_BEST, of_best)
