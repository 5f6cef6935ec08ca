"""The training that left a checkpoint, as the checkpoint and the files beside it tell it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from mmengine.logging import print_log

from mmcalib.hooks.checkpoint_meta_hook import TRAINING
from mmcalib.record import digest, read_record
from mmcalib.runs.checkpoint_choice import which_checkpoint
from mmcalib.runs.loss_config import main_loss
from mmcalib.runs.parse_config_text import parse_config
from mmcalib.runs.training_fingerprint import trained_config
from mmcalib.work_dir import RESULTS, VALIDATION_RESULTS

# Where `meta` of a checkpoint says that it was calibrated.
CALIBRATION = 'calibration'


def training_facts(cfg: Mapping, *, processes: int | None = None) -> dict:
    """Return the facts about a config's training, for JSON.

    Args:
        cfg: Of the training.
        processes: On how many it ran; None if unknown.

    Returns:
        ``loss``, type and parameters of the main loss; ``length``, its epochs or iterations;
        ``limit``, the samples of a smoke run; ``parts``, the rest, of
        :func:`~mmcalib.runs.training_fingerprint.trained_config`.
    """
    return {
        'loss': main_loss(cfg),
        'length': length(cfg),
        'limit': cfg.get('limit'),
        'parts': trained_config(cfg, processes=processes),
    }


def facts_in(meta: Mapping) -> dict | None:
    """Return the :func:`training_facts` that a checkpoint tells, None if it tells none.

    A checkpoint of another tool has its config as text alone.
    """
    if TRAINING in meta:
        return meta[TRAINING]
    cfg = config_in(meta)
    return cfg and training_facts(cfg)


def training_digest(meta: Mapping) -> str | None:
    """Return the digest of a checkpoint's training, None if it does not tell."""
    facts = facts_in(meta)
    return facts and digest(facts['parts'])


def training_of(
    meta: Mapping, path: str, cfg: Mapping, *, seed: int | None, finished: bool | None = None
) -> dict:
    """Return the part of a record that describes the training of a checkpoint.

    A checkpoint knows its own seed and config: those count, since it may be tested under a config
    of another loss, or without the options it was trained with.

    Args:
        meta: What the checkpoint says of itself.
        path: Its path.
        cfg: The config that it is tested with.
        seed: The seed of the run that tests.
        finished: Whether the training came to its end; None to find out from the files beside the
            checkpoint.
    """
    model = cfg.get('model') or {}
    facts = facts_in(meta) or training_facts({**cfg, 'model': model.get('module', model)})
    schedule = facts['length']
    if finished is None:
        finished = finished_of(meta, path, schedule)
    return {
        'seed': meta.get('seed', seed),
        'loss': facts['loss'],
        'trained': {'digest': digest(facts['parts']), 'config': facts['parts']},
        'calibration': describe_calibration(meta),
        'limit': cfg.get('limit') or facts['limit'],
        'training': {
            **schedule,
            'finished': finished,
            'epoch': meta.get('epoch'),
            'checkpoint': which_checkpoint(_uncalibrated(meta, path), schedule),
        },
    }


def common_training(members: Sequence[Mapping]) -> dict:
    """Return :func:`training_of` for several members at once, None where they differ.

    The digest is that of all digests; of the other parts, the first member's stand for all.
    """
    first = members[0]
    digests = sorted({member['trained']['digest'] for member in members})
    finished = [member['training']['finished'] for member in members]
    which = {member['training']['checkpoint'] for member in members}
    worst = next((value for value in (False, None) if value in finished), True)
    losses = [member['loss'] for member in members if member['loss']]
    return {
        **{
            key: first[key] if all(member[key] == first[key] for member in members) else None
            for key in ('seed', 'loss', 'calibration')
        },
        **({'losses': losses} if any(loss != losses[0] for loss in losses) else {}),
        'trained': first['trained'] | ({'digest': digest(digests)} if digests[1:] else {}),
        'limit': next((member['limit'] for member in members if member['limit']), None),
        'training': {
            **first['training'],
            'finished': worst,
            'checkpoint': None if None in which else ' & '.join(sorted(which)),
        },
    }


def _uncalibrated(meta: Mapping, checkpoint: str) -> str:
    """Return the name under which the training left a checkpoint that was calibrated since."""
    found = meta.get(CALIBRATION)
    while isinstance(found, Mapping) and 'checkpoint' in found:
        checkpoint, found = found['checkpoint'], found.get('earlier')
    return checkpoint


def _of_calibration(meta: Mapping) -> Mapping:
    """Return what a checkpoint says of its calibration, nothing of another tool's word."""
    found = meta.get(CALIBRATION)
    return found if isinstance(found, Mapping) and 'method' in found else {}


def describe_calibration(meta: Mapping) -> dict | None:
    """Return the calibrations of a checkpoint after its training, None without any.

    See :mod:`mmcalib.tasks.calibrate.calibrate` for what a calibration leaves in `meta`.
    """
    found = _of_calibration(meta)
    if not found:
        return None
    methods, earlier = [found['method']], found.get('earlier')
    while earlier:
        methods.insert(0, earlier['method'])
        earlier = earlier.get('earlier')
    return {'methods': methods, **{key: found[key] for key in ('options', 'split', 'forced')}}


def length(cfg: Mapping) -> dict:
    """Return ``{'epochs': n}`` or ``{'iterations': n}`` of a config's training, ``{}`` of none."""
    train = cfg.get('train_cfg') or {}
    if train.get('max_epochs'):
        return {'epochs': train['max_epochs']}
    return {'iterations': train['max_iters']} if train.get('max_iters') else {}


def finished_of(meta: Mapping, path: str, schedule: Mapping | None = None) -> bool | None:
    """Return whether the training of a checkpoint is over, None if unknown.

    The files beside it tell, or, of a calibrated one in another folder, its calibration.

    Args:
        meta: What the checkpoint says of itself.
        path: Its path.
        schedule: The length of the training; None for what the checkpoint says.
    """
    if schedule is None:
        schedule = (facts_in(meta) or {}).get('length', {})
    found = training_finished(path, schedule)
    return _of_calibration(meta).get('finished') if found is None else found


def training_finished(checkpoint: str, schedule: Mapping) -> bool | None:
    """Return whether the training that left a checkpoint is over, None if its folder cannot say."""
    folder = Path(checkpoint).parent
    for name in (RESULTS, VALIDATION_RESULTS):  # early stopping ends it before its last epoch
        try:
            if read_record(folder / name, 'training')['training']['finished']:
                return True
        except (OSError, ValueError):
            continue
    last = folder / 'last_checkpoint'
    number = re.search(r'_(\d+)\.pth$', last.read_text().strip()) if last.is_file() else None
    return int(number[1]) >= min(schedule.values()) if number and schedule else None


def config_in(meta: Mapping) -> dict | None:
    """Return the config that a checkpoint was trained with, None if it carries none to read."""
    text = meta.get('cfg')
    if not isinstance(text, str):
        return None
    try:
        cfg = parse_config(text)
    except ValueError as error:
        print_log(f"The checkpoint's own config cannot be read ({error}): using yours.", 'current')
        return None
    return cfg if 'model' in cfg else None
