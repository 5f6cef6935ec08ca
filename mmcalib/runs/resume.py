"""Resuming a training: its settings are those of its start, and it may become longer."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from copy import deepcopy

from mmengine.logging import print_log
from mmengine.optim import _ParamScheduler
from mmengine.registry import HOOKS
from mmengine.runner import Runner

from mmcalib.errors import UserError
from mmcalib.runs.checkpoint import Checkpoint
from mmcalib.runs.config_tree import KNOWN_PACKAGES, losses_of
from mmcalib.runs.model import facts_of
from mmcalib.runs.record import differences

# The keys of train_cfg that a resumed training may change.
LENGTH = ('max_epochs', 'max_iters')
# Attributes of a scheduler that change from step to step, or that a longer training changes.
NO_RULE = ('_global_step', '_last_value', 'base_values', 'end', 'last_step', 'verbose')
SHOWN = 6  # differences in an error


def check_settings(checkpoint: Checkpoint, facts: Mapping, cfg: Mapping) -> None:
    """Refuse to resume a training by settings other than its own, but for its length.

    mmengine restores the optimizer and the schedule of the checkpoint, so new ones would be
    recorded and not used: a wrong number. Other data or another loss would mix two trainings.

    Args:
        checkpoint: The checkpoint that the training is to be resumed from.
        facts: Result of :func:`~mmcalib.runs.model.facts_in` for the config.
        cfg: The config.

    Raises:
        UserError: For other settings, which it names by the keys of the config. Of hooks that are
            the user's own it warns.
    """
    earlier = facts_of(checkpoint.meta)
    if earlier is None:
        return
    loss_key = next(iter(losses_of(cfg.get('model'))), 'loss')
    before = _settings(earlier, loss_key)
    now = _settings(facts, loss_key)
    seed = (cfg.get('randomness') or {}).get('seed')
    if seed is not None and checkpoint.meta.get('seed') is not None:
        before['randomness'] = {'seed': checkpoint.meta['seed']}
        now['randomness'] = {'seed': seed}
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
    wrong = list(differences(before, now))
    if not wrong:
        return
    more = f'; and {len(wrong) - SHOWN} more' if len(wrong) > SHOWN else ''
    raise UserError(
        f'{checkpoint.path} is from another training, {"; ".join(wrong[:SHOWN])}{more}: resume it '
        'with its own settings, of which only the length (train_cfg.max_epochs or max_iters) may '
        'change, or start anew in another --work-dir, from its weights if you like (--cfg-options '
        f'load_from={checkpoint.path})'
    )


def _settings(facts: Mapping, loss_key: str) -> dict:
    """Return what decides about the figures of a training, by the keys of its config."""
    training = deepcopy(facts['training'])
    training.pop('load_from', None)  # A resumed training still started from there.
    selection = training.pop('selection', {})
    return {
        '--limit': training.pop('limit', None),
        loss_key: facts['loss'],
        **training.pop('other_losses', {}),
        **training,
        'processes': training.get('processes'),
        'val_dataloader': {'dataset': selection.pop('on', None)},
        'default_hooks': {'checkpoint': selection},
    }


def _take_own_hooks(settings: dict, cfg: Mapping) -> list:
    """Take the hooks out that are of no known package, and return them; they may only log."""
    own, known = [], []
    with HOOKS.switch_scope_and_registry(cfg.get('default_scope')) as registry:
        for hook in settings.pop('custom_hooks', []):
            kind = registry.get(hook['type'])
            is_known = kind is None or kind.__module__.split('.')[0] in KNOWN_PACKAGES
            if is_known:
                known.append(hook)
            else:
                own.append(hook)
    if known:
        settings['custom_hooks'] = known
    return own


def _complete_ends(before: Mapping, now: Mapping) -> None:
    """Make the ends of two schedules comparable; without one, a schedule ends with the training.

    Of a schedule that has no end in the config now, :func:`lengthen_schedules` decides about it.
    """
    pairs = zip(_schedulers(before), _schedulers(now), strict=False)
    for scheduler_before, scheduler_now in pairs:
        if 'end' not in scheduler_now:
            scheduler_before.pop('end', None)
        elif 'end' not in scheduler_before:
            key = 'max_epochs' if scheduler_before.get('by_epoch', True) else 'max_iters'
            scheduler_before['end'] = (before.get('train_cfg') or {}).get(key)


def _schedulers(training: Mapping) -> list[dict]:
    """Return the configs of the schedulers of a training with one optimizer."""
    schedulers = training.get('param_scheduler') or []
    if isinstance(schedulers, dict):
        schedulers = [schedulers]
    return [each for each in schedulers if isinstance(each, dict) and 'type' in each]


def scheduler_states(runner: Runner) -> list[dict]:
    """Return the states of the schedulers of a Runner; none if it has several optimizers."""
    schedulers = getattr(runner, 'param_schedulers', None)
    if not isinstance(schedulers, list):
        return []
    if not all(isinstance(each, _ParamScheduler) for each in schedulers):
        return []
    return [dict(each.state_dict()) for each in schedulers]


def lengthen_schedules(runner: Runner, built: list[dict], facts: dict) -> None:
    """Let schedules that end with the training go on in a longer one.

    mmengine restores the former end, so that StepLR, say, would change nothing after it. A schedule
    whose earlier values depend on its end, such as PolyLR, keeps it: the rest is trained with its
    last values, and the record says so.

    Args:
        runner: A resumed Runner before it trains.
        built: The states of its schedulers as the config has them, before the resume.
        facts: What will be recorded of the training.
    """
    restored = scheduler_states(runner)
    configs = _schedulers(facts['training'])
    if not len(built) == len(restored) == len(configs):
        return
    for number, (new, old, config) in enumerate(zip(built, restored, configs, strict=True)):
        if new['end'] == old['end']:
            continue
        scheduler = runner.param_schedulers[number]
        if any(old.get(key) != value for key, value in new.items() if key not in NO_RULE):
            converted = config.get('by_epoch', True) and not scheduler.by_epoch
            epoch_length = len(runner.train_dataloader) if converted else 1
            config['end'] = old['end'] // epoch_length
            print_log(
                f'param_scheduler {config["type"]} ends at {config["end"]}, as when the training '
                'began: from there on its last value stays.',
                logger='current',
            )
            continue
        scheduler.end = new['end']
        missed = max(old['_global_step'] - old['end'] + 1, 0)  # steps behind the former end
        scheduler._global_step -= missed
        for _ in range(missed):
            scheduler.step()
