"""The checkpoint of the least calibration error among those that have learnt enough."""

from __future__ import annotations

import math

from mmengine.dist import is_main_process
from mmengine.hooks import CheckpointHook
from mmengine.registry import HOOKS
from mmengine.runner import Runner

from mmcalib.checks import check_number
from mmcalib.metrics.keys import AACC, ECE, QUALITIES

CANDIDATES = 'accuracy_floor_candidates'  # in mmengine's message hub, which checkpoints hold
ACCURACY_KEYS = (*QUALITIES, AACC)
MIN_ACCURACY = 0.98


@HOOKS.register_module()
class AccuracyFloorCheckpointHook(CheckpointHook):
    """mmengine's ``CheckpointHook`` with a minimum accuracy for the best checkpoint.

    Networks that have learnt little are unsure and rightly so: chosen by a calibration error alone,
    the best checkpoint is often one of the first. Here it has the best `save_best` of all whose
    accuracy is at least `min_accuracy` times the highest of any validation. Since later ones may
    raise that floor, every checkpoint that may yet be the best is kept until the training ends:
    those that no other surpasses in both.

    Args:
        min_accuracy: Share of the highest accuracy that a checkpoint must reach, from 0 to 1.
        accuracy: Key of the accuracy; by default the first of ``accuracy/top1``, ``mIoU`` and
            ``aAcc`` that the validation measures.
        **options: Of ``CheckpointHook``; `save_best` must be one key.

    Raises:
        TypeError: If `min_accuracy` is no number.
        ValueError: If it is outside [0, 1] or `save_best` is not one key; after a validation, if it
            has not measured both.
    """

    def __init__(
        self, *, min_accuracy: float = MIN_ACCURACY, accuracy: str | None = None, **options
    ) -> None:
        super().__init__(**options)
        self.min_accuracy = check_number('min_accuracy', min_accuracy, most=1.0)
        self.accuracy = accuracy
        if not self.save_best or len(self.save_best) != 1 or self.save_best == ['auto']:
            raise ValueError(
                f'AccuracyFloorCheckpointHook needs one key as save_best, such as {ECE!r}; '
                f'got {options.get("save_best")!r}'
            )

    def _save_best_checkpoint(self, runner: Runner, metrics: dict) -> None:
        """Keep the checkpoint if it may be the best, and remove those that no longer may."""
        (key,), (rule,) = self.key_indicators, self.rules
        step = runner.epoch if self.by_epoch else runner.iter
        name = f'best_{key}_{self.filename_tmpl.format(step)}'.replace('/', '_')
        sign = 1 if rule == 'less' else -1
        mine = {
            'path': self.file_backend.join_path(self.out_dir, name),
            'accuracy': float(self._read(metrics, self._accuracy_key(metrics))),
            'error': sign * float(self._read(metrics, key)),
        }
        hub = runner.message_hub
        before = hub.get_info(CANDIDATES) or []
        kept = candidates([*before, mine], self.min_accuracy)
        best = min(kept, key=lambda each: each['error'], default=None)
        hub.update_info(CANDIDATES, kept)
        if best is None:
            return
        self.best_ckpt_path = best['path']
        hub.update_info('best_ckpt', best['path'])
        hub.update_info('best_score', sign * best['error'])
        if mine in kept:
            runner.save_checkpoint(
                self.out_dir,
                filename=name,
                file_client_args=self.file_client_args,
                save_optimizer=False,
                save_param_scheduler=False,
                meta={'epoch': runner.epoch, 'iter': runner.iter},
                by_epoch=False,
                backend_args=self.backend_args,
            )
        for gone in [each for each in before if each not in kept]:
            self._remove(gone['path'])
        is_mine = 'this one' if best is mine else best['path']
        runner.logger.info(
            f'Best {key} with an accuracy of at least {self.min_accuracy:g} of the highest: '
            f'{sign * best["error"]:.4f}, {is_mine}; {len(kept)} checkpoints may yet be the best'
        )
        if self.last_ckpt is not None:  # so that it knows the candidates when it is resumed
            meta = {'epoch': runner.epoch, 'iter': runner.iter}
            self._save_checkpoint_with_step(runner, step, meta=meta)

    def after_train(self, runner: Runner) -> None:
        """Remove all candidates but the best."""
        for each in runner.message_hub.get_info(CANDIDATES) or []:
            if each['path'] != self.best_ckpt_path:
                self._remove(each['path'])
        super().after_train(runner)

    def _remove(self, path: str) -> None:
        if is_main_process() and self.file_backend.isfile(path):
            self.file_backend.remove(path)

    def _accuracy_key(self, metrics: dict) -> str:
        known = [self.accuracy] if self.accuracy else ACCURACY_KEYS
        return next((key for key in known if key in metrics), known[0])

    def _read(self, metrics: dict, key: str) -> float:
        if key not in metrics:
            raise ValueError(f'the validation has not measured {key!r}, only {", ".join(metrics)}')
        return metrics[key]


def candidates(checkpoints: list[dict], min_accuracy: float) -> list[dict]:
    """Return the checkpoints above the floor that no other surpasses in accuracy and error.

    Of those that are equal in both, the first.
    """
    checkpoints = [each for each in checkpoints if math.isfinite(each['error'] + each['accuracy'])]
    floor = min_accuracy * max((each['accuracy'] for each in checkpoints), default=0.0)
    kept = []
    # With falling accuracy, only those of lower error than all before.
    for each in sorted(checkpoints, key=lambda each: (-each['accuracy'], each['error'])):
        if each['accuracy'] >= floor and (not kept or each['error'] < kept[-1]['error']):
            kept.append(each)
    return [each for each in checkpoints if each in kept]
