"""Lets a resumed training end as if it had not been broken off."""

from __future__ import annotations

import re
from pathlib import Path

from mmengine.dist import is_main_process
from mmengine.hooks import CheckpointHook, Hook
from mmengine.runner import EpochBasedTrainLoop, IterBasedTrainLoop, Runner

VALIDATED = 'validated_at'  # in mmengine's message hub, which checkpoints hold


class ResumeHook(Hook):
    """Validates what was only saved, and keeps one best checkpoint, in the run's own folder.

    mmengine saves a step before it validates it, and does not validate it after a resume: the best
    checkpoint would be another one, and a loss that learns from validations would miss one. A best
    checkpoint that a stop has left behind is removed when the training ends. The absolute paths in
    a checkpoint become those in the run's folder, which may be a copy.
    """

    # Behind CheckpointHook, which finds its folder before a training, and publishes after it.
    priority = 'LOWEST'

    def __init__(self) -> None:
        self._training = False

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        info = (checkpoint.get('message_hub') or {}).get('runtime_info') or {}
        for hook in _checkpoint_hooks(runner):
            folder = Path(hook.out_dir or runner.work_dir)
            if hook.out_dir and hook.out_dir != runner.work_dir:
                folder /= Path(runner.work_dir).name
            for key, value in [pair for pair in info.items() if pair[0].startswith('best_ckpt')]:
                path = value and folder / Path(value).name
                info[key] = str(path) if path and path.is_file() else None
                if info[key] is None:  # replaced by one that the stop has made the training forget
                    info.pop(key.replace('ckpt', 'score'), None)

    def before_train(self, runner: Runner) -> None:
        self._training, loop = True, runner.train_loop
        if runner.val_loop is None or not isinstance(
            loop, EpochBasedTrainLoop | IterBasedTrainLoop
        ):
            return
        step, end = _step_and_end(runner)
        loop._decide_current_val_interval()
        due = step >= loop.val_begin and (step % loop.val_interval == 0 or step == end)
        if step and due and runner.message_hub.get_info(VALIDATED) != step:
            runner.logger.info('The checkpoint was saved before its validation, which is made now')
            runner.val_loop.run()

    def before_val(self, runner: Runner) -> None:
        if self._training:
            runner.message_hub.update_info(VALIDATED, _step_and_end(runner)[0])

    def after_train(self, runner: Runner) -> None:
        self._training = False
        if not is_main_process():
            return
        for hook in _checkpoint_hooks(runner):
            kept = [getattr(hook, 'best_ckpt_path', None)]
            kept += getattr(hook, 'best_ckpt_path_dict', {}).values()
            for best in (Path(path) for path in kept if path and Path(path).is_file()):
                others = re.compile(re.escape(best.stem.rstrip('0123456789')) + r'\d+')
                for other in best.parent.glob(f'best_*{best.suffix}'):
                    if other != best and others.fullmatch(other.stem):
                        other.unlink()


def _checkpoint_hooks(runner: Runner) -> list[CheckpointHook]:
    return [hook for hook in runner.hooks if isinstance(hook, CheckpointHook)]


def _step_and_end(runner: Runner) -> tuple[int, int]:
    """Return the epochs trained and to train, or iterations where a training has no epochs."""
    loop = runner.train_loop
    if isinstance(loop, EpochBasedTrainLoop):
        return loop.epoch, loop.max_epochs
    return loop.iter, loop.max_iters
