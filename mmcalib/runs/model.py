"""The model that predicts, from its configs and checkpoints to a description.

A model is one network or the mean of several predictions. It is prepared once: each config and each
checkpoint is read once, its description is made once and handed on.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path

from mmengine.config import Config, ConfigDict
from mmengine.logging import print_log

from mmcalib.errors import UserError
from mmcalib.members import Averaging, Member
from mmcalib.options import check_integer
from mmcalib.runs.checkpoint import Checkpoint, read_checkpoint, short_calibration
from mmcalib.runs.config_tree import without_labels
from mmcalib.runs.facts import (
    describe_end,
    describe_network,
    plain,
    plain_pipelines,
    training_facts,
)
from mmcalib.runs.record import (
    CONTENT,
    checkpoint_paths,
    differences,
    digest,
    identity,
    is_ensemble,
    read_json,
    view_count,
)
from mmcalib.runs.run_config import PIPELINES_BEFORE_VIEWS, remove_training_parts, set_views
from mmcalib.texts import command_text

# Options of a data_preprocessor that change the pixels that a network sees.
NORMALISATION = ('mean', 'std', 'bgr_to_rgb', 'rgb_to_bgr', 'to_rgb')


@dataclass(frozen=True)
class Network:
    """A member of a model: its config and its checkpoint."""

    config: Config
    checkpoint: Checkpoint


@dataclass(frozen=True)
class PredictingModel:
    """A model that predicts, with what records say of it.

    Attributes:
        checkpoints: Checkpoints of the members; a single one without an ensemble.
        description: Description of the model for records, see :func:`describe_model`.
        mean_calibration: Record of the temperature that was fitted for the mean of the networks.
    """

    checkpoints: Sequence[Checkpoint]
    description: dict
    mean_calibration: Mapping = field(default_factory=dict)

    @property
    def fitted_contents(self) -> set[str]:
        """Digests of the data that scalings of the model were fitted to, as far as they tell."""
        contents = set()
        records = [checkpoint.calibration for checkpoint in self.checkpoints]
        for record in [*records, self.mean_calibration]:
            while record:
                contents.add(record.get(CONTENT))
                record = record.get('earlier')
        return contents - {None}


def prepare_model(
    cfg: Config,
    networks: Sequence[Network],
    options: Averaging,
    splits: Sequence[str] = ('test',),
    *,
    disagreement: bool = False,
    always_mean: bool = False,
) -> PredictingModel:
    """Have a config predict what is asked for, the mean of it if it is several, and describe it.

    Weights are loaded later, by :func:`mmcalib.runs.runner.load_weights`.

    Args:
        cfg: Config of the run, whose data and metrics are used. Only the models are the members'.
        networks: Members of the model, see :func:`read_networks`.
        options: Views and passes that their predictions are averaged over.
        splits: Splits that are predicted.
        disagreement: Whether images get their mutual information.
        always_mean: Whether a single network is a mean of one.

    Raises:
        UserError: If members do not fit together; if the temperature is another model's.
    """
    check_integer('--mc-dropout', options.mc_dropout, least=0)
    description = describe_model(networks, splits)
    if options.mc_dropout:
        description['mc_dropout'] = options.mc_dropout
        description['dropout_seed'] = options.dropout_seed
    if options.has_views:
        cfg[PIPELINES_BEFORE_VIEWS] = plain_pipelines(cfg, splits[-1])
        for split in splits:
            description['views'] = set_views(cfg, split, options.tta_scales)
    predictions = len(networks) * view_count(description) * max(options.mc_dropout, 1)
    if disagreement and predictions == 1:
        raise UserError(
            '--disagreement requires several predictions: name more checkpoints, or add --tta or '
            '--mc-dropout N'
        )
    content = {}
    if options.temperature is not None:
        content = read_temperature(options.temperature)
        check_same_model(content.get('model'), description, options.temperature)
        description['temperature'] = content['temperature']
        description['calibration'] = short_calibration(content)
    if always_mean or disagreement or is_ensemble(description):
        module, *others = [model_config(network.config) for network in networks]
        cfg.model = ConfigDict(
            type='MeanProbabilityModel',
            module=module,
            others=others,
            mc_dropout=description['mc_dropout'],
            # As many copies of an image as images are predicted at a time without dropout.
            passes_at_once=cfg[f'{splits[-1]}_dataloader'].get('batch_size') or 1,
            seed=options.dropout_seed,
            temperature=description['temperature'],
            disagreement=disagreement,
        )
    cfg.load_from = None
    cfg.resume = False
    remove_training_parts(cfg)
    return PredictingModel([network.checkpoint for network in networks], description, content)


def read_temperature(file: str | Path) -> dict:
    """Return what a calibration of a mean has left in a file.

    Raises:
        OSError: If the file cannot be read.
        UserError: If it holds no temperature of an ensemble.
    """
    tool = command_text('calibrate')
    remedy = f'name the file that {tool} wrote for the same checkpoints and options'
    content = read_json(file, remedy)
    if 'temperature' not in content:
        raise UserError(f'{file} holds no temperature of an ensemble: {remedy}')
    return content


def read_networks(
    cfg: Config, members: Sequence[Member], load: Callable[[str], Config]
) -> list[Network]:
    """Return config and checkpoint of each member, each file read once.

    Args:
        cfg: Config of the first member, as the run has it.
        members: Paths of config and checkpoint of each member.
        load: Function that loads another config, and makes it as `cfg` was made.
    """
    configs = {members[0][0]: cfg}
    for path, _ in members:
        if path not in configs:
            configs[path] = load(path)
    return [Network(configs[path], read_checkpoint(checkpoint)) for path, checkpoint in members]


def describe_model(
    networks: Sequence[Network], splits: Sequence[str], *, end: Mapping | None = None
) -> dict:
    """Return all that a model's predictions depend on, and the trainings behind it.

    Args:
        networks: Members of the model.
        splits: Splits that are predicted.
        end: How the trainings came to their end, see
            :func:`~mmcalib.runs.facts.describe_end`; None to look for what they have left.

    Returns:
        For JSON: ``members``, each with its ``checkpoint``, the ``digest`` of its weights, its
        ``network`` (the config of what predicts), and, as far as it tells, ``seed``, ``epoch``,
        ``loss``, ``training`` (see :func:`~mmcalib.runs.facts.describe_training`), who tells
        these (``told_by``), whether that is ``finished``, where it was ``stopped_at`` early, the
        ``file`` that it left, and the ``calibration`` since; the ``pipeline`` without labels,
        ``views``, ``mc_dropout``, ``dropout_seed``, ``temperature``, and the ``calibration`` of a
        mean.

    Raises:
        UserError: If two members have the same weights, or are one checkpoint before and after a
            calibration; if one needs other images than the first.
    """
    members = [describe_member(network, end) for network in networks]
    check_pipelines(networks, splits)
    for network, member in zip(networks, members, strict=True):
        check_normalisation(network.config, member, is_alone=len(networks) == 1)
    check_counted_once(members)
    pipelines = plain_pipelines(networks[0].config, splits[-1])
    return {
        'members': members,
        'pipeline': without_labels(pipelines[0]) if pipelines else [],
        'views': [],
        'mc_dropout': 0,
        'dropout_seed': None,
        'calibration': None,
        'temperature': None,
    }


def describe_member(network: Network, end: Mapping | None) -> dict:
    """Return what a record says of a member, see :func:`describe_model`."""
    checkpoint = network.checkpoint
    calibration = checkpoint.calibration
    facts = training_facts(checkpoint.meta, network.config)
    if end is None:
        end = describe_end(checkpoint.path, facts['training'], calibration)
    return {
        'checkpoint': checkpoint.path,
        'digest': checkpoint.digest,
        'network': describe_network(model_config(network.config)),
        'seed': checkpoint.meta.get('seed'),
        'epoch': checkpoint.meta.get('epoch') or None,  # 0 where a training counts iterations
        'iteration': checkpoint.meta.get('iter'),
        **facts,
        **end,
        'file': os.path.basename(calibration.get('checkpoint', checkpoint.path)),
        'calibration': short_calibration(calibration),
    }


def model_config(cfg: Config) -> ConfigDict:
    """Return the model's config with the data_preprocessor that may stand beside it."""
    model = ConfigDict(cfg.model)
    if cfg.get('data_preprocessor') is not None:
        model.setdefault('data_preprocessor', cfg.data_preprocessor)
    return model


def check_pipelines(networks: Sequence[Network], splits: Sequence[str]) -> None:
    """Refuse members that need other images than the first, whose figures would be wrong."""
    first = networks[0].config
    for network in networks:
        if network.config is first:
            continue
        for split in splits:
            pipelines = plain_pipelines(network.config, split)
            difference = next(differences(pipelines, plain_pipelines(first, split)), None)
            if difference is not None:
                raise UserError(
                    f'{network.config.filename} prepares the images of {split} differently from '
                    f'{first.filename}, whose images all members would get: {difference}. Put a '
                    'normalisation in the data_preprocessor, since each member has its own'
                )


def check_normalisation(cfg: Config, member: Mapping, *, is_alone: bool) -> None:
    """Refuse a member that was trained on images that are normalised otherwise.

    Its figures would be wrong. Without an ensemble it is only warned of, since the data may ask for
    it.
    """
    trained = normalisation(member['training']['model'])
    tested = normalisation(member['network'])
    if trained == tested:
        return
    text = (
        f'{member["checkpoint"]} was trained on images normalised by {trained}, but {cfg.filename} '
        f'has {tested}: name it with the config that it was trained with, as '
        f'CONFIG.py:{member["checkpoint"]}'
    )
    if not is_alone:
        raise UserError(text)
    print_log(text, 'current', logging.WARNING)


def normalisation(network: Mapping) -> dict:
    """Return how a model's config normalises images, for JSON."""
    preprocessor = network.get('data_preprocessor') or {}
    return plain({key: preprocessor[key] for key in NORMALISATION if preprocessor.get(key)})


def check_counted_once(members: Sequence[Mapping]) -> None:
    """Refuse the same weights twice, and a checkpoint beside its own calibration.

    Their mean would be a wrong number.
    """
    for one, other in combinations(members, 2):
        same_training = all(one[key] == other[key] is not None for key in ('training', 'seed'))
        step, other_step = ((member['epoch'], member['iteration']) for member in (one, other))
        is_same_step = step == other_step != (None, None)
        if one['digest'] == other['digest']:
            reason = 'have the same weights'
        elif same_training and is_same_step and one['calibration'] != other['calibration']:
            reason = 'are one checkpoint, calibrated differently'
        else:
            continue
        raise UserError(
            f'{one["checkpoint"]} and {other["checkpoint"]} {reason}: the mean would count it '
            'double. Name one of them'
        )


def check_same_model(recorded: Mapping | None, current: Mapping, file: str | Path) -> None:
    """Refuse a file that was made with another model, whose figures would be mistaken for its own.

    Args:
        recorded: Description of the model in the file, None if it has none.
        current: Description of the model that predicts.
        file: Path of the file.
    """
    try:
        difference = next(differences(identity(recorded), identity(current)), None)
        if len(recorded['members']) != len(current['members']):
            difference = (
                f'it has {len(recorded["members"])} members, and not {len(current["members"])}'
            )
    except (KeyError, TypeError):
        difference = 'the file does not name its model'
    if difference is not None:
        raise UserError(
            f'{file} was made with another model than {", ".join(checkpoint_paths(current))}: '
            f'{difference}. Make it again with these checkpoints and options'
        )


def model_folder_name(description: Mapping) -> str:
    """Return a folder's name that no other model has, such as ``best_epoch_3-1a2b3c4d``."""
    stems = [Path(path).stem for path in checkpoint_paths(description)]
    parts = [stems[0] if len(stems) == 1 else f'x{len(stems)}']
    if description['views']:
        parts.append('tta')
    if description['mc_dropout']:
        parts.append(f'mc{description["mc_dropout"]}')
    if description['calibration']:
        parts.append('temperature')
    name = '_'.join(parts).replace(' ', '_')
    return f'{name}-{digest(identity(description))[:8]}'
