"""What ``results.json`` says of the mean of several predictions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from mmcalib.hooks.load_members_hook import LoadMembersHook
from mmcalib.runs.training_fingerprint import digest

# In a config: of which predictions a run tests the mean.
AVERAGED = 'averaged'


def members_of(checkpoint: str | Path | Sequence[str]) -> list[str]:
    """Return the paths of what ``results.json`` names: a checkpoint, or those of a mean."""
    return [str(checkpoint)] if isinstance(checkpoint, (str, Path)) else list(checkpoint)


def common_training(members: Sequence[Mapping]) -> dict:
    """Return what ``training_of`` says of several members, None where they differ.

    The digest is that of all digests; of the other parts, the first member's stand for all.
    """
    first = members[0]
    digests = sorted({member['trained']['digest'] for member in members})
    finished = [member['training']['finished'] for member in members]
    which = {member['training']['checkpoint'] for member in members}
    worst = next((value for value in (False, None) if value in finished), True)
    return {
        **{
            key: first[key] if all(member[key] == first[key] for member in members) else None
            for key in ('seed', 'loss', 'calibration')
        },
        'trained': first['trained'] | ({'digest': digest(digests)} if digests[1:] else {}),
        'limit': next((member['limit'] for member in members if member['limit']), None),
        'training': {
            **first['training'],
            'finished': worst,
            'checkpoint': None if None in which else ' & '.join(sorted(which)),
        },
    }


def describe_mean(cfg: Mapping, loading: LoadMembersHook, members: Sequence[Mapping]) -> dict:
    """Return of which predictions a mean was tested.

    Returns:
        ``members``, ``views`` of an image and passes with ``mc_dropout``, how many of each; the
        ``transforms`` in which views differ; ``dropout_seed``, None without dropout; ``mean_of``,
        which tells it from other means;
        ``calibration`` of the mean, with the keys of a checkpoint's, and its ``temperature``;
        ``checkpoints``, ``seeds`` and, where they differ, ``losses`` of the members.
    """
    averaged = cfg.get(AVERAGED) or {}
    losses = [member['loss'] for member in members if member['loss']]
    return {
        'members': len(members),
        'views': averaged.get('views', 1),
        'mc_dropout': averaged.get('mc_dropout', 0),
        'transforms': averaged.get('transforms', []),
        'dropout_seed': averaged.get('dropout_seed'),
        'mean_of': averaged.get('mean_of'),
        'calibration': averaged.get('calibration'),
        'temperature': averaged.get('temperature'),
        'checkpoints': loading.checkpoints,
        'seeds': [member['seed'] for member in members],
        **({'losses': losses} if any(loss != losses[0] for loss in losses) else {}),
    }
