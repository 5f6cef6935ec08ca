"""Hooks of every training: its facts in checkpoints, its early end, and how it goes on."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from mmengine.dist import broadcast_object_list, is_main_process
from mmengine.hooks import CheckpointHook, Hook
from mmengine.runner import EpochBasedTrainLoop, IterBasedTrainLoop, Runner

from mmcalib.files import EARLY_STOP, write_json
from mmcalib.openmmlab.same_data import data_content
from mmcalib.runs.checkpoint import (
    check_classes,
    checkpoint_from_content,
    class_names,
    fill,
    read_checkpoint,
)
from mmcalib.runs.facts import FACTS
from mmcalib.runs.record import CONTENT, described_data
from mmcalib.runs.resume import check_settings, lengthen_schedules, scheduler_states
from mmcalib.runs.work_dir import checkpoint_folder, checkpoint_hook, move_aside

VALIDATED = 'validated_at'  # the key in mmengine's message hub, which checkpoints hold


class TrainingFactsHook(Hook):
    """Writes the facts of a training into the ``meta`` of each checkpoint, and lets it go on.

    Args:
        facts: Result of :func:`~mmcalib.runs.facts.config_facts`.

    Raises:
        UserError: For a resume with weights that do not fill the model, or on other classes.
    """

    def __init__(self, facts: dict) -> None:
        self.facts = facts
        self._built_states: list[dict] = []

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        if not runner._resume:
            return
        resumed = checkpoint_from_content(checkpoint, str(runner._load_from))
        # A training that is resumed still started from what it first started from.
        earlier_training = resumed.meta.get(FACTS, {}).get('training', {})
        if 'load_from' in earlier_training:
            self.facts['training']['load_from'] = earlier_training['load_from']
        classes = class_names(runner.train_dataloader.dataset)
        check_classes(resumed.classes, classes, f'{resumed.path} and the train set')
        fill(getattr(runner.model, 'module', runner.model), resumed, resumed=True)
        self._built_states = scheduler_states(runner)

    def before_train(self, runner: Runner) -> None:
        if self._built_states:
            lengthen_schedules(runner, self._built_states, self.facts)
        add_contents(self.facts, runner)
        if is_main_process():
            for file in early_stop_files(runner):
                file.unlink(missing_ok=True)

    def after_train(self, runner: Runner) -> None:
        stopped_at = early_stop(runner)
        if stopped_at is None or not is_main_process():
            return
        for file in early_stop_files(runner):
            if file.parent.is_dir():
                write_json(file, {'stopped_at': stopped_at})

    def before_save_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        checkpoint['meta'][FACTS] = self.facts


class ResumeHook(Hook):
    """Validates what was only saved, and keeps one best checkpoint, in the run's own folder.

    mmengine saves a step before it validates it, and does not validate it after a resume: the best
    checkpoint would be another one, and a loss that learns from validations would miss one. A best
    checkpoint that a stop has left behind is moved aside when the training ends. The absolute paths
    in a checkpoint become those in the run's folder, which may be a copy.
    """

    # Behind CheckpointHook, which finds its folder before a training, and publishes after it.
    priority = 'LOWEST'

    def __init__(self) -> None:
        self._is_training = False

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        info = (checkpoint.get('message_hub') or {}).get('runtime_info') or {}
        keys = [key for key in info if key.startswith('best_ckpt')]
        for hook in checkpoint_hooks(runner):
            folder = checkpoint_folder(runner.work_dir, {'out_dir': hook.out_dir})
            for key in keys:
                path = folder / Path(info[key]).name if info[key] else None
                if path is not None and path.is_file():
                    info[key] = str(path)
                else:  # A better one replaced it, which the stop has made the training forget.
                    info[key] = None
                    info.pop(key.replace('ckpt', 'score'), None)

    def before_train(self, runner: Runner) -> None:
        self._is_training = True
        loop = runner.train_loop
        if runner.val_loop is None or not isinstance(
            loop, EpochBasedTrainLoop | IterBasedTrainLoop
        ):
            return
        step, end = step_and_end(runner)
        loop._decide_current_val_interval()
        is_due = step >= loop.val_begin and (step % loop.val_interval == 0 or step == end)
        if step and is_due and runner.message_hub.get_info(VALIDATED) != step:
            runner.logger.info('The checkpoint was saved before its validation, which is made now')
            runner.val_loop.run()

    def before_val(self, runner: Runner) -> None:
        if self._is_training:
            step, _ = step_and_end(runner)
            runner.message_hub.update_info(VALIDATED, step)

    def after_train(self, runner: Runner) -> None:
        self._is_training = False
        if not is_main_process():
            return
        for hook in checkpoint_hooks(runner):
            for path in best_checkpoints(hook):
                _move_other_best(path)


def _move_other_best(best: Path) -> None:
    """Move the checkpoints aside that are named as the best one but for their epoch or iteration.

    Their names do not tell whether this training wrote them.
    """
    same_metric = re.compile(re.escape(best.stem.rstrip('0123456789')) + r'\d+')
    others = [
        path
        for path in best.parent.glob(f'best_*{best.suffix}')
        if path != best and same_metric.fullmatch(path.stem)
    ]
    if others:
        move_aside(best.parent, others)


def checkpoint_hooks(runner: Runner) -> list[CheckpointHook]:
    """Return the hooks of a Runner that write checkpoints."""
    return [hook for hook in runner.hooks if isinstance(hook, CheckpointHook)]


def best_checkpoints(hook: CheckpointHook) -> list[Path]:
    """Return the best checkpoints that a hook has kept, one for each metric of its save_best."""
    paths = [getattr(hook, 'best_ckpt_path', None)]
    paths += getattr(hook, 'best_ckpt_path_dict', {}).values()
    return [Path(path) for path in paths if path and Path(path).is_file()]


def step_and_end(runner: Runner) -> tuple[int, int]:
    """Return the epochs trained and to train, or iterations where a training has no epochs."""
    loop = runner.train_loop
    if isinstance(loop, EpochBasedTrainLoop):
        return loop.epoch, loop.max_epochs
    return loop.iter, loop.max_iters


def early_stop(runner: Runner) -> int | None:
    """Return the epoch or iteration at which a hook has ended a training early, None if none has.

    mmengine's EarlyStoppingHook does, by the loop's ``stop_training``.
    """
    if not getattr(runner.train_loop, 'stop_training', False):
        return None
    step, end = step_and_end(runner)
    return step if step < end else None


def early_stop_files(runner: Runner) -> set[Path]:
    """Return the files of an early end of a training, in its work dir and beside checkpoints."""
    folder = checkpoint_folder(runner.work_dir, checkpoint_hook(runner.cfg))
    return {Path(runner.work_dir, EARLY_STOP).absolute(), folder / EARLY_STOP}


def check_resumed_data(runner: Runner) -> None:
    """Refuse to resume a training on data that hold something else, once a Runner has built them.

    Raises:
        UserError: See :func:`~mmcalib.runs.resume.check_settings`.
    """
    (hook,) = [hook for hook in runner.hooks if isinstance(hook, TrainingFactsHook)]
    add_contents(hook.facts, runner)
    if runner._resume and runner._load_from:
        check_settings(read_checkpoint(runner._load_from), hook.facts, runner.cfg)


def add_contents(facts: Mapping, runner: Runner) -> None:
    """Add what the data of a Runner hold to the facts of its training, once.

    The main process looks into the data, and tells the others.
    """
    descriptions = described_data(facts['training'])
    if any(CONTENT in data for data in descriptions.values()):
        return
    contents = [None] * len(descriptions)
    if is_main_process():
        loops = [getattr(runner, f'{split}_loop') for split in descriptions]
        contents = [data_content(loop.dataloader.dataset) for loop in loops]
    broadcast_object_list(contents)
    for data, content in zip(descriptions.values(), contents, strict=True):
        if content is not None:
            data[CONTENT] = content
