"""All that lets a training go on after a stop as if there had been none.

- Start: :func:`resume_from` takes the newest checkpoint that is whole.
- Settings: :func:`check_settings` refuses those of another training; it may become longer.
- Schedules: :func:`lengthen_schedules` extends those that end with the training.
- Validation: :class:`ResumeHook` makes up for the one that the stop prevented.
- Best checkpoint: :class:`ResumeHook` keeps a single one, in the work dir of the run.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path

from mmengine.config import Config
from mmengine.dist import is_main_process
from mmengine.hooks import CheckpointHook, Hook
from mmengine.logging import print_log
from mmengine.optim import _ParamScheduler
from mmengine.registry import HOOKS
from mmengine.runner import EpochBasedTrainLoop, IterBasedTrainLoop, Runner

from mmcalib.errors import UserError
from mmcalib.launchers import is_first_process
from mmcalib.runs.checkpoint import (
    Checkpoint,
    check_classes,
    checkpoint_from_content,
    class_names,
    fill,
    read_checkpoint,
)
from mmcalib.runs.config import KNOWN_PACKAGES
from mmcalib.runs.record import CONTENT, described_data, differences
from mmcalib.runs.safe_loading import damage
from mmcalib.runs.training import (
    FACTS,
    add_contents,
    config_facts,
    find_losses,
    predicting_losses,
    step_and_end,
)
from mmcalib.runs.work_dir import checkpoint_folder, checkpoint_hook, move_aside

# The keys of train_cfg that a resumed training may change.
LENGTH = ('max_epochs', 'max_iters')
# Attributes of a scheduler that change from step to step, or that a longer training changes.
CHANGING_STATE = ('_global_step', '_last_value', 'base_values', 'end', 'last_step', 'verbose')
SHOWN_DIFFERENCES = 6
VALIDATED = 'validated_at'  # the key in mmengine's message hub, which checkpoints hold


def resume_from(cfg: Config, start: str) -> None:
    """Have a training go on from a checkpoint, or from the newest whole one of a work dir.

    mmengine's own search trusts a file that names the last one, which may have been cut off.

    Args:
        cfg: Config of the run.
        start: A checkpoint or a work dir; ``'auto'`` for the work dir of the run.

    Raises:
        UserError: If there has been a checkpoint in the run's work dir, and none is whole; if the
            settings are others than those of the checkpoint, see :func:`check_settings`.
    """
    folder = Path(cfg.work_dir if start == 'auto' else start)
    hook = checkpoint_hook(cfg)
    newest = newest_checkpoint(folder, hook) if folder.is_dir() else None
    if start == 'auto' and newest is None:
        if (folder / 'last_checkpoint').is_file():
            raise UserError(_no_whole_checkpoint_message(folder, hook))
        # This is a first start, with the weights that the config names.
        if is_first_process(cfg.get('launcher', 'none')):  # There is no log yet.
            print(f'There is no checkpoint in {folder}: the training starts anew.')
        return
    cfg.resume = True
    cfg.load_from = str(newest or start)
    # The errors of the checkpoint are raised before the data are listed.
    processes = 1 if cfg.get('launcher', 'none') == 'none' else None
    facts = config_facts(cfg, processes=processes)
    checkpoint = read_checkpoint(cfg.load_from)
    # Where the data lie does not matter if they are the same, as check_resumed finds out.
    earlier_training = checkpoint.meta.get(FACTS, {}).get('training', {})
    earlier_data = described_data(earlier_training)
    for split, data in described_data(facts['training']).items():
        if CONTENT in earlier_data.get(split, {}):
            data[CONTENT] = earlier_data[split][CONTENT]
    check_settings(checkpoint, facts, cfg)


def check_resumed(runner: Runner) -> None:
    """Refuse to resume the training of a Runner, whose data are built, by other settings or data.

    Raises:
        UserError: See :func:`check_settings`.
    """
    (hook,) = [hook for hook in runner.hooks if isinstance(hook, SameTrainingHook)]
    add_contents(hook.facts, runner)
    if runner._resume and runner._load_from:
        check_settings(read_checkpoint(runner._load_from), hook.facts, runner.cfg)


def _no_whole_checkpoint_message(folder: Path, hook: Mapping) -> str:
    last = (folder / 'last_checkpoint').read_text().strip()
    message = (
        f'--resume: the last checkpoint, {last}, is missing or damaged, as after a stop while it '
        'was written. Resume from another with --resume PATH'
    )
    paths = []
    for searched in dict.fromkeys([folder, checkpoint_folder(folder, hook)]):
        paths += sorted(searched.glob('best_*'))
    best = ', '.join(map(str, paths))
    return f'{message}, such as {best}, which has no state of the optimizer' if best else message


def newest_checkpoint(work_dir: str | Path, hook: Mapping) -> Path | None:
    """Return the whole checkpoint of the highest epoch or iteration of a run.

    Without any by the names of the hook, it is the one that mmengine noted as the last.

    Args:
        work_dir: Work dir of the run.
        hook: Config of its CheckpointHook.
    """
    templates = ['epoch_{}.pth', 'iter_{}.pth', hook.get('filename_tmpl') or 'epoch_{}.pth']
    names = []
    for template in templates:
        texts = re.split(r'\{.*?\}', template)
        names.append(r'(\d+)'.join(map(re.escape, texts)))
    numbers = {}
    folder = checkpoint_folder(work_dir, hook)
    for path in [*Path(work_dir).glob('*'), *folder.glob('*')]:
        match = next(filter(None, (re.fullmatch(name, path.name) for name in names)), None)
        if match and path.is_file() and damage(path) is None:
            numbers[path] = int(match[1])
    last = Path(work_dir, 'last_checkpoint')
    if not numbers and last.is_file():
        path = last.with_name(Path(last.read_text().strip()).name)
        if path.is_file() and damage(path) is None:
            return path
    return max(numbers, key=numbers.get, default=None)


def continues_in_work_dir(cfg: Config) -> bool:
    """Return whether a training is resumed from a checkpoint of its own work dir."""
    start = cfg.get('load_from') if cfg.get('resume') else None
    folders = [Path(cfg.work_dir), checkpoint_folder(cfg.work_dir, checkpoint_hook(cfg))]
    return bool(start) and Path(start).resolve().parent in [path.resolve() for path in folders]


def check_settings(checkpoint: Checkpoint, facts: Mapping, cfg: Mapping) -> None:
    """Refuse to resume a training by settings other than its own, but for its length.

    mmengine restores the optimizer and the schedule of the checkpoint, so new ones would be
    recorded and not used: a wrong number. Other data or another loss would mix two trainings. A
    checkpoint of a toolbox's own tool does not say its settings and is resumed as by the toolbox.

    Args:
        checkpoint: The checkpoint that the training is to be resumed from.
        facts: Result of :func:`~mmcalib.runs.training.config_facts` for the config.
        cfg: Config of the run.

    Raises:
        UserError: For other settings, which it names by the keys of the config. For hooks that are
            the user's own it warns.
    """
    earlier_facts = checkpoint.meta.get(FACTS)
    if earlier_facts is None:
        return
    before = _settings(earlier_facts, cfg)
    now = _settings(facts, cfg)
    seed = (cfg.get('randomness') or {}).get('seed')
    if seed is not None and checkpoint.meta.get('seed') is not None:
        before['randomness'] = {'seed': checkpoint.meta['seed']}
        now['randomness'] = {'seed': seed}
    if not any(CONTENT in data for data in described_data(earlier_facts['training']).values()):
        for settings in (before, now):  # It is of 0.4, or of data that cannot be told.
            settings.pop('sync_bn', None)
            settings.get('train_dataloader', {}).pop('collate_fn', None)
    if None in (before['processes'], now['processes']):
        before['processes'] = now['processes']
    _complete_ends(before, now)
    own_before = {'custom_hooks': _take_own_hooks(before, cfg)}
    own_now = {'custom_hooks': _take_own_hooks(now, cfg)}
    if changed := next(differences(own_before, own_now), None):
        warnings.warn(
            f'the training is resumed with another hook of your own, {changed}: the record will '
            'have the new one',
            stacklevel=2,
        )
    for settings in (before, now):
        train_cfg = settings.get('train_cfg') or {}
        settings['train_cfg'] = {k: v for k, v in train_cfg.items() if k not in LENGTH}
    changes = list(differences(before, now))
    if not changes:
        return
    shown = '; '.join(changes[:SHOWN_DIFFERENCES])
    if len(changes) > SHOWN_DIFFERENCES:
        shown = f'{shown}; and {len(changes) - SHOWN_DIFFERENCES} more'
    raise UserError(
        f'{checkpoint.path} is from another training, {shown}: resume it with its own settings, of '
        'which only the length (train_cfg.max_epochs or max_iters) may change, or start anew in '
        'another --work-dir, from its weights if you like (--cfg-options '
        f'load_from={checkpoint.path})'
    )


def _settings(facts: Mapping, cfg: Mapping) -> dict:
    """Return what decides about the figures of a training, by the keys of its config."""
    training = deepcopy(facts['training'])
    training.pop('load_from', None)  # A resumed training still started from there.
    selection = training.pop('selection', {})
    return {
        '--limit': training.pop('limit', None),
        **_losses_by_path(facts['loss'], cfg),
        **training.pop('other_losses', {}),
        **training,
        'processes': training.get('processes'),
        'val_dataloader': {'dataset': selection.pop('on', None)},
        'default_hooks': {'checkpoint': selection},
    }


def _losses_by_path(main: Mapping | None, cfg: Mapping) -> dict[str, Mapping | None]:
    """Return the losses of a config by path, as far as the main loss in a checkpoint tells them.

    Facts name each loss that is unlike the main one. So the others equal it, also where 0.4 took
    another one for the main one, such as the first of a cascade.
    """
    losses = dict.fromkeys(find_losses(cfg.get('model')), main)
    paths = list(predicting_losses(cfg)[0])
    terms = (main or {}).get('losses', ())
    if len(paths) > 1 and len(paths) == len(terms):
        losses.update(zip(paths, terms, strict=True))
    return losses or {'loss': main}


def _take_own_hooks(settings: dict, cfg: Mapping) -> list:
    """Take the hooks out that are of no known package, and return them; they may only log."""
    own_hooks = []
    known_hooks = []
    with HOOKS.switch_scope_and_registry(cfg.get('default_scope')) as registry:
        for hook in settings.pop('custom_hooks', []):
            kind = registry.get(hook['type'])
            if kind is None or kind.__module__.split('.')[0] in KNOWN_PACKAGES:
                known_hooks.append(hook)
            else:
                own_hooks.append(hook)
    if known_hooks:
        settings['custom_hooks'] = known_hooks
    return own_hooks


def _complete_ends(before: Mapping, now: Mapping) -> None:
    """Make the ends of two schedules comparable; without one, a schedule ends with the training.

    Where a schedule has no end in the config now, :func:`lengthen_schedules` decides about it.
    """
    pairs = zip(_scheduler_configs(before), _scheduler_configs(now), strict=False)
    for scheduler_before, scheduler_now in pairs:
        if 'end' not in scheduler_now:
            scheduler_before.pop('end', None)
        elif 'end' not in scheduler_before:
            key = 'max_epochs' if scheduler_before.get('by_epoch', True) else 'max_iters'
            scheduler_before['end'] = (before.get('train_cfg') or {}).get(key)


def _scheduler_configs(training: Mapping) -> list[dict]:
    """Return the configs of the schedulers of a training with one optimizer."""
    schedulers = training.get('param_scheduler') or []
    if isinstance(schedulers, dict):
        schedulers = [schedulers]
    return [config for config in schedulers if isinstance(config, dict) and 'type' in config]


def scheduler_states(runner: Runner) -> list[dict]:
    """Return the states of the schedulers of a Runner; none if it has several optimizers."""
    schedulers = getattr(runner, 'param_schedulers', None)
    if not isinstance(schedulers, list):
        return []
    if not all(isinstance(scheduler, _ParamScheduler) for scheduler in schedulers):
        return []
    return [dict(scheduler.state_dict()) for scheduler in schedulers]


def lengthen_schedules(runner: Runner, built_states: list[dict], facts: dict) -> None:
    """Let schedules that end with the training go on in a longer one.

    mmengine restores the former end, so that StepLR, say, would change nothing after it. A schedule
    whose earlier values depend on its end, such as PolyLR, keeps it: the rest is trained with its
    last values, and the record says so.

    Args:
        runner: A resumed Runner before it trains.
        built_states: States of its schedulers as the config has them, before the resume.
        facts: Facts that the record will have of the training.
    """
    restored_states = scheduler_states(runner)
    configs = _scheduler_configs(facts['training'])
    if not len(built_states) == len(restored_states) == len(configs):
        return
    for index, config in enumerate(configs):
        built = built_states[index]
        restored = restored_states[index]
        if built['end'] == restored['end']:
            continue
        scheduler = runner.param_schedulers[index]
        has_other_rule = any(
            restored.get(key) != value for key, value in built.items() if key not in CHANGING_STATE
        )
        if has_other_rule:
            is_converted = config.get('by_epoch', True) and not scheduler.by_epoch
            epoch_length = len(runner.train_dataloader) if is_converted else 1
            config['end'] = restored['end'] // epoch_length
            print_log(
                f'param_scheduler {config["type"]} ends at {config["end"]}, as when the training '
                'began: from there on its last value stays.',
                logger='current',
            )
        else:
            scheduler.end = built['end']
            missed_steps = max(restored['_global_step'] - restored['end'] + 1, 0)
            scheduler._global_step -= missed_steps
            for _ in range(missed_steps):
                scheduler.step()


class SameTrainingHook(Hook):
    """Refuses to resume another training, and lets a longer one go on.

    Args:
        facts: Facts that are recorded of the training, see
            :func:`~mmcalib.runs.training.config_facts`.

    Raises:
        UserError: For a resume by other settings, whose result would be recorded as theirs; with
            weights that do not fill the model; on other classes.
    """

    def __init__(self, facts: dict) -> None:
        self.facts = facts
        self._built_states: list[dict] = []

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        if not runner._resume:
            return
        resumed = checkpoint_from_content(checkpoint, str(runner._load_from))
        add_contents(self.facts, runner)
        check_settings(resumed, self.facts, runner.cfg)
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
        for hook in _checkpoint_hooks(runner):
            folder = Path(hook.out_dir or runner.work_dir)
            if hook.out_dir and hook.out_dir != runner.work_dir:
                folder /= Path(runner.work_dir).name
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
        for hook in _checkpoint_hooks(runner):
            kept = [getattr(hook, 'best_ckpt_path', None)]
            kept += getattr(hook, 'best_ckpt_path_dict', {}).values()
            for path in kept:
                if path and Path(path).is_file():
                    _move_other_best(Path(path))


def _move_other_best(best: Path) -> None:
    """Move the checkpoints aside that are named as the best one but for their epoch or iteration.

    Their names do not tell whether this training wrote them.
    """
    same_metric = re.compile(re.escape(best.stem.rstrip('0123456789')) + r'\d+')
    others = []
    for path in best.parent.glob(f'best_*{best.suffix}'):
        if path != best and same_metric.fullmatch(path.stem):
            others.append(path)
    if others:
        move_aside(best.parent, others)


def _checkpoint_hooks(runner: Runner) -> list[CheckpointHook]:
    return [hook for hook in runner.hooks if isinstance(hook, CheckpointHook)]
