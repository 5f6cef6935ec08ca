"""The model that predicts: members, views, passes with dropout and a temperature.

A single network is a mean of one.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from itertools import combinations
from pathlib import Path

from mmengine.config import Config, ConfigDict
from mmengine.logging import print_log
from mmengine.model import is_model_wrapper, revert_sync_batchnorm
from mmengine.registry import MODELS
from mmengine.runner import Runner
from torch import nn

from mmcalib.errors import UserError
from mmcalib.openmmlab.ensembles import MeanProbabilityModel
from mmcalib.options import check_integer, check_number
from mmcalib.runs import record
from mmcalib.runs.checkpoint import CALIBRATION, Checkpoint, check_classes, fill, read_checkpoint
from mmcalib.runs.config_tree import (
    find_pipelines,
    find_toolbox,
    plain,
    plain_pipelines,
    type_name,
    without_labels,
)
from mmcalib.runs.record import checkpoint_paths, differences, identity
from mmcalib.runs.training import describe_network, is_finished, training_facts

BEFORE_VIEWS = 'pipelines_before_views'  # in a config: of its images
# Of a data_preprocessor: what changes the pixels that a network sees.
NORMALISATION = ('mean', 'std', 'bgr_to_rgb', 'rgb_to_bgr', 'to_rgb')
# Relative to the size that the pipeline gives; a classifier's input has often to be of one size.
SEGMENTATION_SCALES = (1.0, 0.75, 1.25)
# They average probabilities, as ours does.
AVERAGING = ('AverageClsScoreTTA', 'SegTTAModel')


def members_of(
    cfg: Config,
    members: Sequence[tuple[str, str]],
    load: Callable[[str], Config],
) -> tuple[list[Config], list[Checkpoint]]:
    """Return config and checkpoint of each member, each file read once.

    Args:
        cfg: That of the first member, as the run has it.
        members: Config and checkpoint of each.
        load: Loads another config, and makes it as `cfg` was made.
    """
    loaded = {members[0][0]: cfg}
    for path, _ in members:
        if path not in loaded:
            loaded[path] = load(path)
    return [loaded[path] for path, _ in members], [read_checkpoint(path) for _, path in members]


def set_model(
    cfg: Config,
    configs: Sequence[Config],
    checkpoints: Sequence[Checkpoint],
    splits: Sequence[str] = ('test',),
    *,
    tta: bool = False,
    tta_scales: Sequence[float] | None = None,
    mc_dropout: int = 0,
    dropout_seed: int = 0,
    temperature: str | None = None,
    disagreement: bool = False,
    as_mean: bool = False,
) -> dict:
    """Have a config predict what is asked for, the mean of it if it is several, and describe it.

    Weights are loaded later, by :func:`load`.

    Args:
        cfg: Of the run: the data and metrics are its.
        configs: Of each member. Only the model is theirs, and what it needs of the images must be
            the same.
        checkpoints: Of each member.
        splits: Those that the run uses.
        tta: Whether to average over views of each image, see :func:`set_views`.
        tta_scales: Of these views.
        mc_dropout: How many passes with random dropout; 0 for none.
        dropout_seed: Seed of the dropout.
        temperature: The file that a calibration of this mean left.
        disagreement: Whether data samples get their mutual information.
        as_mean: Whether a single network is to be a mean of one.

    Returns:
        See :func:`describe`.

    Raises:
        UserError: If members do not fit together; if the temperature is another model's.
        ValueError: As :func:`set_views` says.
    """
    check_integer('--mc-dropout', mc_dropout, least=0)
    model, views = describe(configs, checkpoints, splits), []
    if tta or tta_scales is not None:
        cfg[BEFORE_VIEWS] = plain_pipelines(cfg, splits[-1])
        views = [set_views(cfg, split, tta_scales) for split in splits][-1]
    model |= dict(views=views, mc_dropout=mc_dropout)
    model['dropout_seed'] = dropout_seed if mc_dropout else None
    predictions = len(checkpoints) * record.view_count(model) * max(mc_dropout, 1)
    if disagreement and predictions == 1:
        raise UserError(
            '--disagreement requires several predictions: name more checkpoints, or add --tta or '
            '--mc-dropout N'
        )
    if temperature is not None:
        model = with_temperature(model, os.fspath(temperature))
    if as_mean or record.is_ensemble(model) or disagreement:
        first, *others = map(model_of, configs)
        cfg.model = ConfigDict(
            type='MeanProbabilityModel',
            module=first,
            others=others,
            mc_dropout=mc_dropout,
            # As many copies of an image as images are predicted at a time without dropout.
            passes_at_once=cfg[f'{splits[-1]}_dataloader'].get('batch_size') or 1,
            seed=dropout_seed,
            temperature=model['temperature'],
            disagreement=disagreement,
        )
    cfg.load_from, cfg.resume = None, False
    # It would copy weights that a checkpoint has averaged already.
    hooks = cfg.get('custom_hooks') or ()
    cfg.custom_hooks = [h for h in hooks if not type_name(h['type']).endswith('EMAHook')]
    return model


def describe(
    configs: Sequence[Config], checkpoints: Sequence[Checkpoint], splits: Sequence[str]
) -> dict:
    """Return all that a model's predictions depend on, and the trainings behind it.

    Args:
        configs: Of each member; the data are the first one's.
        checkpoints: Of each member.
        splits: Those that are predicted.

    Returns:
        For JSON: ``members``, each with its ``checkpoint``, the ``digest`` of its weights, its
        ``network`` (the config of what predicts), and, as far as it tells, ``seed``, ``epoch``,
        ``loss``, ``training`` (see :func:`~mmcalib.runs.training.describe_training`), who tells
        these (``told_by``), whether that is ``finished``, the ``file`` that it left, and the
        ``calibration`` since; the ``pipeline`` without labels, ``views``, ``mc_dropout``,
        ``dropout_seed``, ``temperature``, and the ``calibration`` of a mean.

    Raises:
        UserError: If two members have the same weights, or are one checkpoint before and after a
            calibration; if one needs other images than the first.
    """
    members = []
    for cfg, checkpoint in zip(configs, checkpoints, strict=True):
        meta = checkpoint.meta
        facts = training_facts(meta, cfg)
        calibration = _calibration_in(meta)
        members.append({
            'checkpoint': checkpoint.path,
            'digest': checkpoint.digest,
            'network': describe_network(model_of(cfg)),
            'seed': meta.get('seed'),
            'epoch': meta.get('epoch'),
            **facts,
            'finished': is_finished(checkpoint.path, facts['training'], calibration),
            'file': os.path.basename(calibration.get('checkpoint', checkpoint.path)),
            'calibration': describe_calibration(meta),
        })  # fmt: skip
        _check_member(configs[0], cfg, members[-1], splits, alone=len(configs) == 1)
    for one, other in combinations(members, 2):
        trained = all(one[key] == other[key] is not None for key in ('training', 'seed', 'epoch'))
        calibrated = trained and one['calibration'] != other['calibration']
        if calibrated or one['digest'] == other['digest']:
            how = 'are one checkpoint, calibrated differently' if calibrated else ''
            raise UserError(
                f'{one["checkpoint"]} and {other["checkpoint"]} {how or "have the same weights"}: '
                'the mean would count it double. Name one of them'
            )
    pipelines = plain_pipelines(configs[0], splits[-1])
    return {
        'members': members,
        'pipeline': without_labels(pipelines[0]) if pipelines else [],
        'views': [],
        'mc_dropout': 0,
        'dropout_seed': None,
        'calibration': None,
        'temperature': None,
    }


def model_of(cfg: Config) -> ConfigDict:
    """Return the model's config with the data_preprocessor that may stand beside it."""
    model = ConfigDict(cfg.model)
    if cfg.get('data_preprocessor') is not None:
        model.setdefault('data_preprocessor', cfg.data_preprocessor)
    return model


def _calibration_in(meta: Mapping) -> Mapping:
    """Return what ``tools/calibrate.py`` has written into a checkpoint, nothing without it."""
    found = meta.get(CALIBRATION)
    return found if isinstance(found, Mapping) and 'method' in found else {}  # another tool's word


def describe_calibration(meta: Mapping) -> dict | None:
    """Return the calibrations of a checkpoint after its training, None without any."""
    if not (found := _calibration_in(meta)):
        return None
    told = {key: found[key] for key in ('options', 'split', 'forced')}
    if found.get('limit'):
        told['limit'] = found['limit']
    return {'methods': found.get('methods', [found['method']]), **told}


def _check_member(
    cfg: Config, own: Config, member: Mapping, splits: Sequence[str], *, alone: bool
) -> None:
    """Raise a UserError if a member needs other images than the run has."""
    for split in splits if own is not cfg else ():
        if wrong := next(
            differences(plain_pipelines(own, split), plain_pipelines(cfg, split)), None
        ):
            raise UserError(
                f'{own.filename} prepares the images of {split} differently from {cfg.filename}, '
                f'whose images all members would get: {wrong}. Put a normalisation in the '
                'data_preprocessor, since each member has its own'
            )
    trained, wanted = (
        plain({key: found[key] for key in NORMALISATION if found.get(key)})
        for found in (
            network.get('data_preprocessor') or {}
            for network in (member['training']['model'], member['network'])
        )
    )
    if trained != wanted:
        text = (
            f'{member["checkpoint"]} was trained on images normalised by {trained}, but '
            f'{own.filename} has {wanted}: name it with the config that it was trained with, as '
            f'CONFIG.py:{member["checkpoint"]}'
        )
        if not alone:
            raise UserError(text)
        print_log(text, 'current', logging.WARNING)


def set_views(cfg: Config, split: str, scales: Sequence[float] | None = None) -> list[list]:
    """Have a split's data come in several views of each image, for a ``MeanProbabilityModel``.

    They are those of the config's ``tta_pipeline``. Without one, or with scales, the last transform
    of the pipeline is applied to the image and its mirror image, for segmentation at the scales 1,
    0.75 and 1.25 each.

    Args:
        cfg: Of the run.
        split: ``'val'`` or ``'test'``.
        scales: Relative to the size that the pipeline gives, in any order.

    Returns:
        The alternatives of each step in which the views differ, for JSON.

    Raises:
        UserError: If the config's ``tta_model`` merges predictions in a way of its own, scales are
            none above 0 or lack 1 for a segmentation, or the data have no pipeline.
    """
    kind = type_name((cfg.get('tta_model') or {}).get('type', AVERAGING[0]))
    if kind not in AVERAGING:
        raise UserError(
            f'--tta: the tta_model {kind} of the config merges predictions in its own way, and '
            'only the mean of probabilities can be measured: remove it (tta_model=None)'
        )
    segments = find_toolbox(cfg) == 'mmseg'
    own = cfg.get('tta_pipeline')
    if scales is None:
        scales = SEGMENTATION_SCALES if segments else (1.0,)
    else:
        own = None
    for scale in scales:
        check_number('--tta-scales', scale, least=0.01)
    if segments and 1 not in scales:
        raise UserError(
            f'--tta-scales {" ".join(map(str, scales))}: labels are those of the view at scale 1, '
            'since other scales resize them too: add 1'
        )
    holders = find_pipelines(cfg[f'{split}_dataloader'].dataset)
    if not holders:
        raise UserError(f'--tta: {split}_dataloader.dataset has no pipeline to add views to')
    # The first view is the image as it would be without the others.
    scales = sorted(scales, key=lambda scale: scale != 1)
    sizes = [dict(type='Resize', scale_factor=scale, keep_ratio=True) for scale in scales]
    flips = [dict(type='RandomFlip', prob=prob) for prob in (0.0, 1.0)]
    views = [flips] if scales == [1] else [sizes, flips]
    for holder in holders:
        *before, last = holder.pipeline
        added = dict(type='TestTimeAug', transforms=[*views, [last]])
        holder.pipeline = deepcopy(own) if own else [*before, added]
    steps = [step for step in holders[0].pipeline if type_name(step['type']) == 'TestTimeAug']
    return plain([list(each) for step in steps for each in step['transforms'] if len(each) > 1])


def with_temperature(model: dict, file: str) -> dict:
    """Return a model with the temperature that was fitted for it.

    Raises:
        OSError: If the file cannot be read.
        UserError: If it holds no temperature of an ensemble, or another model's.
    """
    remedy = 'name the file that tools/calibrate.py wrote for the same checkpoints and options'
    content = record.read_json(file, remedy)
    if 'temperature' not in content:
        raise UserError(f'{file} holds no temperature of an ensemble: {remedy}')
    refuse_other_model(content.get('model'), model, file)
    calibration = describe_calibration({CALIBRATION: content})
    return model | {'temperature': content['temperature'], 'calibration': calibration}


def refuse_other_model(there: Mapping | None, here: Mapping, file: str | Path) -> None:
    """Raise a UserError if what lies in a file was made with another model."""
    try:
        wrong = next(differences(identity(there), identity(here)), None)
    except (KeyError, TypeError):  # of an earlier version
        wrong = 'the file does not name its model'
    if wrong:
        raise UserError(
            f'{file} was made with another model than {", ".join(checkpoint_paths(here))}: '
            f'{wrong}. Make it again with these checkpoints and options'
        )


def load(model: nn.Module, checkpoints: Sequence[Checkpoint], classes: Sequence[str] = ()) -> None:
    """Fill a model, or each member of a mean, with weights of the same classes as the data.

    Args:
        model: As a config of :func:`set_model` builds it.
        checkpoints: Of each member.
        classes: Of the data; those that the first checkpoint was trained on if there are none.

    Raises:
        UserError: If a checkpoint does not fill its model, or is of other classes.
    """
    model = model.module if is_model_wrapper(model) else model
    members = [model]
    if isinstance(model, MeanProbabilityModel):
        members, model.names = model.members, [each.path for each in checkpoints]
    classes = classes or checkpoints[0].classes
    for member, checkpoint in zip(members, checkpoints, strict=True):
        fill(member, checkpoint)
        check_classes(checkpoint.classes, classes, f'{checkpoint.path} and these data')


def tell_hooks(runner: Runner, checkpoints: Sequence[Checkpoint]) -> None:
    """Call the hooks that look at loaded checkpoints, as a Runner does that loads one itself."""
    for checkpoint in checkpoints:
        content = {'state_dict': checkpoint.weights, 'meta': dict(checkpoint.meta)}
        runner.call_hook('after_load_checkpoint', checkpoint=content)


def build(cfg: Config, checkpoints: Sequence[Checkpoint]) -> nn.Module:
    """Return a config's model with its weights, in evaluation, without a Runner."""
    model = MODELS.build(model_of(cfg))
    load(model, checkpoints)
    return revert_sync_batchnorm(model).eval()


def folder_of(model: Mapping) -> str:
    """Return a folder's name that no other model has, such as ``best_epoch_3-1a2b3c4d``."""
    names = [Path(path).stem for path in checkpoint_paths(model)]
    parts = [names[0] if len(names) == 1 else f'x{len(names)}']
    parts += ['tta'] if model['views'] else []
    parts += [f'mc{model["mc_dropout"]}'] if model['mc_dropout'] else []
    parts += ['temperature'] if model['calibration'] else []
    return f'{"_".join(parts).replace(" ", "_")}-{record.digest(identity(model))[:8]}'
