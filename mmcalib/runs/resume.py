"""All that lets a training go on after a stop as if there had been none.

- Start: :func:`resume_from` takes the newest checkpoint that is whole.
- Settings: :func:`check_settings` refuses those of another training; it may become longer.
- Schedules: :func:`lengthen_schedules` extends those that end with the training.
- Validation and best checkpoint: see :class:`~mmcalib.runs.training_hooks.ResumeHook`.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from copy import deepcopy
from pathlib import Path

from mmengine.config import Config
from mmengine.logging import print_log
from mmengine.optim import _ParamScheduler
from mmengine.registry import HOOKS
from mmengine.runner import Runner

from mmcalib.errors import UserError
from mmcalib.launchers import is_first_process
from mmcalib.runs.checkpoint import Checkpoint
from mmcalib.runs.config import KNOWN_PACKAGES
from mmcalib.runs.config_tree import find_class
from mmcalib.runs.facts import FACTS, find_losses, predicting_losses
from mmcalib.runs.record import CONTENT, described_data, differences
from mmcalib.runs.safe_loading import damage, existing_file
from mmcalib.runs.work_dir import checkpoint_folder, checkpoint_hook

# Starts of the differences that a resumed training may have: its length, and the weights that it
# still started from.
MAY_CHANGE = ('train_cfg.max_epochs ', 'train_cfg.max_iters ', 'load_from ')
OWN_HOOKS = 'own_hooks'  # the key of the custom_hooks of no known package, which may only log
# Attributes of a scheduler that change from step to step, or that a longer training changes.
CHANGING_STATE = ('_global_step', '_last_value', 'base_values', 'end', 'last_step', 'verbose')
SHOWN_DIFFERENCES = 6


def resume_from(cfg: Config, start: str) -> None:
    """Have a training go on from a checkpoint, or from the newest whole one of a work dir.

    mmengine's own search trusts a file that names the last one, which may have been cut off.

    Args:
        cfg: Config of the run.
        start: A checkpoint or a work dir; ``'auto'`` for the work dir of the run.

    Raises:
        UserError: If there has been a checkpoint in the run's work dir, and none is whole.
    """
    folder = Path(cfg.work_dir if start == 'auto' else start)
    hook = checkpoint_hook(cfg)
    newest = newest_checkpoint(folder, hook)
    if start == 'auto' and newest is None:
        if (folder / 'last_checkpoint').is_file():
            raise UserError(_no_whole_checkpoint_message(folder, hook))
        # This is a first start, with the weights that the config names.
        if is_first_process(cfg.get('launcher', 'none')):  # There is no log yet.
            print(f'There is no checkpoint in {folder}: the training starts anew.')
        return
    cfg.resume = True
    cfg.load_from = str(newest or start)
    existing_file(cfg.load_from)  # Before the work dir is made.


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
    numbers = {}
    folder = checkpoint_folder(work_dir, hook)
    for path in [*Path(work_dir).glob('*'), *folder.glob('*')]:
        for digits in re.findall(r'\d+', path.name):
            number = int(digits)
            is_named = path.name in [template.format(number) for template in templates]
            if is_named and path.is_file() and damage(path) is None:
                numbers[path] = number
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


def check_settings(
    checkpoint: Checkpoint, facts: Mapping, cfg: Mapping, ignored: Sequence[str] = ()
) -> None:
    """Refuse to resume a training by settings other than its own, but for its length.

    mmengine restores the optimizer and the schedule of the checkpoint, so new ones would be
    recorded and not used: a wrong number. Other data or another loss would mix two trainings. A
    checkpoint of a toolbox's own tool does not say its settings and is resumed as by the toolbox.

    Args:
        checkpoint: The checkpoint that the training is to be resumed from.
        facts: Result of :func:`~mmcalib.runs.facts.config_facts` for the config.
        cfg: Config of the run.
        ignored: Keys that are not compared, wherever they are.

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
    changes = []
    for change in differences(before, now, ignored=ignored):
        if change.startswith(OWN_HOOKS):
            warnings.warn(
                'the training is resumed with another hook of your own, '
                f'{change.replace(OWN_HOOKS, "custom_hooks", 1)}: the record will have the new one',
                stacklevel=2,
            )
        elif not change.startswith(MAY_CHANGE):
            changes.append(change)
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
    selection = training.pop('selection', {})
    own_hooks = []
    known_hooks = []
    for hook in training.pop('custom_hooks', []):
        if _is_known_hook(hook, cfg.get('default_scope')):
            known_hooks.append(hook)
        else:
            own_hooks.append(hook)
    return {
        '--limit': training.pop('limit', None),
        **_losses_by_path(facts['loss'], cfg),
        **training.pop('other_losses', {}),
        **training,
        'train_cfg': training.get('train_cfg') or {},
        'processes': training.get('processes'),
        'val_dataloader': {'dataset': selection.pop('on', None)},
        'default_hooks': {'checkpoint': selection},
        'custom_hooks': known_hooks or None,
        OWN_HOOKS: own_hooks,
    }


def _is_known_hook(hook: Mapping, scope: str | None) -> bool:
    """Return whether a hook is of no package of the user's, where it may only log."""
    kind = find_class({'type': hook['type']}, scope, HOOKS)
    return kind is None or kind.__module__.split('.')[0] in KNOWN_PACKAGES


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
