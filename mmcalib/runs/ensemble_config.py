"""The config of an ensemble, out of a config and checkpoints."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from pathlib import Path

from mmengine.config import Config, ConfigDict
from torch import nn

from mmcalib.checks import check_integer
from mmcalib.ensembles import MeanProbabilityModel
from mmcalib.hooks.load_members_hook import check_members_differ
from mmcalib.record import view_count
from mmcalib.runs.checkpoint_io import read_meta
from mmcalib.runs.config_checks import as_list
from mmcalib.runs.loss_config import type_name
from mmcalib.runs.test_time_augmentation import add_views, views_of
from mmcalib.runs.tested_model import ENSEMBLE, describe_model, find_temperature, model_of
from mmcalib.runs.training_fingerprint import comparable, pipelines
from mmcalib.runs.training_record import facts_in

# Of a data_preprocessor: what changes the pixels that a network sees.
NORMALISATION = ('mean', 'std', 'bgr_to_rgb', 'rgb_to_bgr', 'to_rgb')


def load_member_configs(
    cfg: Config, members: Sequence[tuple[str, str]], prepare: Callable[[str], Config]
) -> list[Config]:
    """Return the config of each member: `cfg` of those that have that of the first.

    Args:
        cfg: That of the first member, as the run has it.
        members: Config and checkpoint of each.
        prepare: Loads another config, and makes it as `cfg` was made.
    """
    loaded = {members[0][0]: cfg}
    for path, _ in members:
        if path not in loaded:
            loaded[path] = prepare(path)
    return [loaded[path] for path, _ in members]


def average_predictions(
    cfg: Config,
    checkpoints: Sequence[str | Path],
    *,
    member_configs: Sequence[Config] | None = None,
    splits: Sequence[str] = ('test',),
    tta: bool = False,
    scales: Sequence[float] | None = None,
    mc_dropout: int = 0,
    seed: int = 0,
    temperature: str | None = None,
    disagreement: bool = False,
    one_at_a_time: bool = False,
) -> None:
    """Have a run predict the mean probability of several models, views and dropouts.

    The Runner that is built of the config loads the checkpoints itself, before it tests; a model
    without one is ``MODELS.build(cfg.model)``, and :func:`load_members` loads them.

    Args:
        cfg: Of the run: the data and metrics are its. As a test of its model would have it.
        checkpoints: One for each member.
        member_configs: Config of each checkpoint, where they are not all `cfg`. Only the model is
            theirs, and what it needs of the images must be the same.
        splits: Those that the run uses.
        tta: Whether to average over views of each image, see
            :func:`~mmcalib.runs.test_time_augmentation.add_views`.
        scales: Of these views.
        mc_dropout: How many passes with random dropout; 0 for none.
        seed: Seed of the dropout.
        temperature: The file that a calibration of this mean left.
        disagreement: Whether data samples get their mutual information.
        one_at_a_time: Whether members wait in the memory of the CPU for their turn.

    Raises:
        OSError: If a checkpoint cannot be read.
        ValueError: If members do not fit together, or as :func:`add_views` says.
    """
    checkpoints = list(map(str, checkpoints))
    configs = list(member_configs or [cfg] * len(checkpoints))
    check_integer('--mc-dropout', mc_dropout, least=0)
    for path, own in zip(checkpoints, configs, strict=True):
        _check_member(cfg, own, path, splits)
    first, *others = [model_of(own) for own in configs]
    loader = cfg[f'{splits[-1]}_dataloader']
    images = pipelines(loader.dataset)
    if tta:
        for split in splits:
            add_views(cfg, split, scales)
    model = describe_model(
        configs,
        checkpoints,
        pipelines=images,
        views=views_of(cfg, splits[-1]),
        mc_dropout=mc_dropout,
        dropout_seed=seed,
    )
    _check_trainings_differ(model['members'])
    if disagreement and len(checkpoints) * view_count(model) * max(mc_dropout, 1) == 1:
        raise ValueError(
            '--disagreement requires several predictions: name more checkpoints, or add --tta or '
            '--mc-dropout N'
        )
    if temperature is not None:
        model = find_temperature(temperature, model)
    cfg[ENSEMBLE] = dict(model=model, pipelines=images)
    cfg.model = ConfigDict(
        type='MeanProbabilityModel',
        module=first,
        others=others,
        mc_dropout=mc_dropout,
        # As many copies of an image as images are predicted at a time without dropout.
        passes_at_once=loader.get('batch_size') or 1,
        seed=seed,
        temperature=temperature,
        disagreement=disagreement,
        one_at_a_time=one_at_a_time,
    )
    hook = dict(type='LoadMembersHook', checkpoints=checkpoints)
    leave_out_averaging(cfg)  # it would copy the last member's weights into the first
    cfg.custom_hooks.append(hook)
    cfg.load_from = None


def measure_disagreement(cfg: Config, folder: str) -> None:
    """Have the test of an ensemble measure and write the disagreement of its predictions."""
    metric = dict(
        type='ImageScoreMetric',
        scores=['mutual_information'],
        prefix='disagreement',
        confidence_interval=None,
        out_file=os.path.join(folder, 'disagreement.csv'),
    )
    evaluator = cfg.test_evaluator
    if isinstance(evaluator, Mapping) and 'metrics' in evaluator:  # one that holds metrics
        evaluator.metrics = [*as_list(evaluator), metric]
    else:
        cfg.test_evaluator = [*as_list(evaluator), metric]


def folder_suffix(model: Mapping) -> str:
    """Return the folder suffix of an ensemble, e.g. ``x3_tta_temperature``."""
    members = len(model['members'])
    parts = [
        f'x{members}' if members > 1 else '',
        'tta' if model['views'] else '',
        f'mc{model["mc_dropout"]}' if model['mc_dropout'] else '',
        'temperature' if model['calibration'] else '',
    ]
    return '_'.join(part for part in parts if part) or 'mean'


def load_members(
    model: MeanProbabilityModel,
    checkpoints: Sequence[str | Path],
    load: Callable[[nn.Module, str | Path], object],
) -> None:
    """Load a checkpoint into each member of a ``MeanProbabilityModel``, without a Runner.

    Args:
        model: Built of ``cfg.model``.
        checkpoints: One for each member.
        load: Called with a member and its checkpoint.

    Raises:
        UserError: If two have the same weights.
    """
    for member, path in zip(model.members, checkpoints, strict=True):
        load(member, path)
    model.names = [str(path) for path in checkpoints]
    check_members_differ(model)


def leave_out_averaging(cfg: Config) -> None:
    """Have a run leave weights as a checkpoint has them, where they are averaged already."""

    def averages(hook: object) -> bool:
        return isinstance(hook, Mapping) and type_name(hook.get('type')).endswith('EMAHook')

    cfg.custom_hooks = [hook for hook in cfg.get('custom_hooks') or () if not averages(hook)]


def _check_member(cfg: Config, own: Config, path: str, splits: Sequence[str]) -> None:
    """Raise a ValueError if a member needs other images than the run has."""
    if own is not cfg and own.get('default_scope') != cfg.get('default_scope'):
        raise ValueError(
            f'{own.filename} is for {own.get("default_scope")}, but {cfg.filename} for '
            f'{cfg.get("default_scope")}: they cannot be averaged'
        )
    for split in splits if own is not cfg else ():
        here, theirs = (pipelines(each[f'{split}_dataloader'].dataset) for each in (cfg, own))
        if theirs != here:
            raise ValueError(
                f'{own.filename} prepares the images of {split} differently from {cfg.filename}, '
                f'whose images all members would get: {theirs} is not {here}. Only members of one '
                'pipeline can be averaged; put a normalisation in the data_preprocessor, since '
                'each member has its own'
            )
    wanted = _normalising(model_of(own).get('data_preprocessor'))
    trained = _trained_normalisation(path)
    if trained is not None and wanted != trained:
        raise ValueError(
            f'{path} was trained on images normalised by {trained}, but {own.filename} has '
            f'{wanted}: name it with the config that it was trained with, as CONFIG.py:{path}'
        )


def _check_trainings_differ(members: Sequence[Mapping]) -> None:
    """Raise a ValueError if two members are one checkpoint before and after a calibration.

    The mean would count it double, and their weights differ.
    """
    for one, other in combinations(members, 2):
        same = [one[key] == other[key] is not None for key in ('training', 'seed', 'epoch')]
        if all(same) and one['calibration'] != other['calibration']:
            raise ValueError(
                f'{one["checkpoint"]} and {other["checkpoint"]} are one checkpoint, calibrated '
                'differently: the mean would count it double. Name one of them'
            )


def _normalising(preprocessor: Mapping | None) -> dict:
    found = preprocessor or {}
    return comparable({key: found[key] for key in NORMALISATION if found.get(key)})


def _trained_normalisation(path: str) -> dict | None:
    """Return the normalisation that a checkpoint was trained with, None if it does not tell."""
    facts = facts_in(read_meta(path))
    return facts and _normalising(facts['parts']['network'].get('data_preprocessor'))
