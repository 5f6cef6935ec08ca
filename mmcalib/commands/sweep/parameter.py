"""The parameter of a loss that a sweep varies, its values, and the config that has it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from inspect import isclass

from mmengine.config import Config
from mmengine.evaluator import Evaluator
from mmengine.registry import METRICS, MODELS

from mmcalib import losses
from mmcalib.cli.shared import parse_options
from mmcalib.errors import UserError, suggestion
from mmcalib.metrics import PROTOCOLS
from mmcalib.metrics.metric_text import PREFIX
from mmcalib.openmmlab.metrics import CalibrationMetric
from mmcalib.runs.checks import building
from mmcalib.runs.config_tree import constructor_options, find_class, type_name
from mmcalib.runs.facts import find_losses, predicting_losses

Value = float | str
# These are taken before other losses that have a parameter.
PREFERRED_LOSSES = (
    losses.MarginLabelSmoothingLoss,
    losses.SoftmaxFocalLoss,
    losses.LabelSmoothingLoss,
)
# A name, or the dotted key of one of several losses.
PARAMETER = re.compile(r'([^\W\d]\w*\.(\d+\.)*)*[^\W\d]\w*')


@dataclass(frozen=True)
class Parameter:
    """A parameter of a loss with the values of a sweep, each once."""

    name: str
    values: tuple[Value, ...]


def parse_parameter(texts: Sequence[str]) -> Parameter:
    """Return the parameter and the values of a text like ``margin=0,2,4``.

    Raises:
        UserError: If it is not of that form, or there are several.
    """
    name, _, listed_values = texts[0].partition('=')
    values = tuple(dict.fromkeys(parse_value(text.strip()) for text in listed_values.split(',')))
    if len(texts) > 1 or not PARAMETER.fullmatch(name) or '' in values:
        raise UserError(
            'a sweep is over one parameter, --param NAME=VALUE,VALUE,…, such as margin=0,2,4; got '
            f'{" and ".join(texts)}'
        )
    return Parameter(name, values)


def parse_value(text: str) -> Value:
    """Return the number of a text, or the text if it is none."""
    try:
        return float(text)
    except ValueError:
        return text


def value_text(value: Value) -> str:
    """Return the name of a value in folders and tables."""
    return repr(value).removesuffix('.0') if isinstance(value, float) else value


def config_options(keys: Sequence[str], value: Value) -> list[str]:
    """Return the ``--cfg-options`` that give a value to the parameter at some keys of a config."""
    return [f'{key}={value_text(value)}' for key in keys]


def parameters_by_loss(cfg: Config) -> dict[str, list[str]]:
    """Return the parameters of each loss of a model, by its dotted key."""
    parameters = {}
    for key, loss in find_losses(cfg.get('model')).items():
        loss_class = find_class(loss, cfg.get('default_scope'))
        parameters[key] = sorted(constructor_options(loss_class))
    return parameters


def predicting_parameters(cfg: Config) -> dict[str, list[str]]:
    """Return the parameters of each loss that trains the prediction, and of its terms, by key."""
    losses_by_key, _ = predicting_losses(cfg)
    starts = tuple(f'{key}.' for key in losses_by_key)
    parameters = parameters_by_loss(cfg)
    return {key: names for key, names in parameters.items() if f'{key}.'.startswith(starts)}


def option_keys(cfg: Config, parameter: str) -> list[str]:
    """Return the dotted keys of a parameter in the losses of a model that have it.

    Args:
        cfg: Config of the trainings.
        parameter: Name of the parameter, or its dotted key.

    Raises:
        UserError: If no loss of the prediction has it; the message names what they have. If several
            have it, and which of them train the prediction is not known.
    """
    parameters = parameters_by_loss(cfg)
    loss_key, _, name = parameter.rpartition('.')
    if name in parameters.get(loss_key, ()):
        return [parameter]
    keys = [f'{key}.{parameter}' for key, names in parameters.items() if parameter in names]
    choices = f'--param {"=… or --param ".join(keys)}=…'
    of_prediction = predicting_parameters(cfg)
    num_losses = sum(parameter in names for names in of_prediction.values())
    if not num_losses:
        lists = [f'{key} has {", ".join(names)}' for key, names in of_prediction.items()]
        known = {name for names in of_prediction.values() for name in names}
        remedy = f'; other losses have it: {choices}' if keys else suggestion(parameter, known)
        raise UserError(
            f'no loss of the prediction has a parameter {parameter!r}: '
            f'{"; ".join(lists) or "no loss"}{remedy}'
        )
    if num_losses > 1 and not predicting_losses(cfg)[1]:
        raise UserError(
            f'{num_losses} losses have a {parameter}, and which of them train the prediction is '
            f'not known: name one, {choices}'
        )
    return keys


def check_values(cfg: Config, keys: Sequence[str], values: Sequence[Value]) -> None:
    """Raise a UserError for a value that no training can have, hours before its turn."""
    swept_losses = {key.rpartition('.')[0] for key in keys}
    for value in values:
        options = config_options(keys, value)
        changed = deepcopy(cfg)
        changed.merge_from_dict(parse_options(options))
        in_scope = MODELS.switch_scope_and_registry(cfg.get('default_scope'))
        with building(f'leave out {value_text(value)}, {options[0]}: '), in_scope as models:
            for key, loss in find_losses(changed.model).items():
                if key in swept_losses:
                    models.build(loss)


def complete_config(cfg: Config, parameter: str, criterion: str) -> list[str]:
    """Give a config what a sweep needs, and return what was added, in words.

    Args:
        cfg: Config of the trainings.
        parameter: Name of the parameter, which its loss gets.
        criterion: Metric that is chosen by, which is measured beside the ECE.
    """
    return [
        *replace_cross_entropy(cfg, parameter),
        *add_metrics(cfg, list(dict.fromkeys(['ECE', criterion]))),
        *add_seed(cfg),
    ]


def replace_cross_entropy(cfg: Config, parameter: str) -> list[str]:
    """Replace a cross-entropy by a loss that has the parameter; return this in words.

    The cross-entropy stays if the parameter is its own, or like one of its own.
    """
    known = {name for names in predicting_parameters(cfg).values() for name in names}
    replaceable = [
        (key, loss)
        for key, loss in predicting_losses(cfg)[0].items()
        if type_name(loss.get('type')) == 'CrossEntropyLoss' and not loss.get('use_sigmoid')
    ]
    if len(replaceable) != 1 or parameter in known or suggestion(parameter, known):
        return []
    ((key, loss),) = replaceable
    candidates = [*PREFERRED_LOSSES, *filter(isclass, vars(losses).values())]
    names = [kind.__name__ for kind in candidates if parameter in constructor_options(kind)]
    if not names:
        return []
    kept_options = {name: loss[name] for name in ('class_weight', 'loss_weight') if name in loss}
    loss.clear()
    loss.update(type=names[0], **kept_options)
    return [f'{names[0]} for {key}']


def add_metrics(cfg: Config, names: Sequence[str]) -> list[str]:
    """Add metrics to the evaluators that neither measure them nor keep the tables that give them.

    A CalibrationMetric of the evaluator measures them besides, by its own options.

    Returns:
        What was added, in words.
    """
    additions = []
    for split in ('val', 'test'):
        evaluator_key = f'{split}_evaluator'
        configs = cfg.get(evaluator_key) or []
        in_scope = METRICS.switch_scope_and_registry(cfg.get('default_scope'))
        with building(f'{evaluator_key}: '), in_scope:
            metrics = Evaluator(configs).metrics
        configs = [configs] if isinstance(configs, Mapping) else list(configs)
        missing = list(names)
        main_index = None
        for index, metric in enumerate(metrics):
            if not isinstance(metric, CalibrationMetric) or f'{metric.prefix}/' != PREFIX:
                continue
            missing = [name for name in missing if name not in metric.metrics]
            if main_index is None:
                main_index = index
                if PROTOCOLS[metric.protocol].images_per_unit is None:
                    missing = []  # They are computed of the tables of each image.
        if not missing or not cfg.get(f'{split}_dataloader'):
            continue
        if main_index is None:
            configs.append(dict(type='CalibrationMetric', metrics=missing))
        else:
            completed_names = [*metrics[main_index].metrics, *missing]
            completed = dict(type='CalibrationMetric', metrics=completed_names)
            configs[main_index] = {**configs[main_index], **completed}
        cfg[evaluator_key] = configs
        additions.append(f'the {" and the ".join(missing)} for {evaluator_key}')
    return additions


def add_seed(cfg: Config) -> list[str]:
    """Add a seed to a config without one; return this in words.

    mmengine would draw another one for each training, and the values would differ by it too.
    """
    if (cfg.get('randomness') or {}).get('seed') is not None:
        return []
    cfg.randomness = {**(cfg.get('randomness') or {}), 'seed': 0}
    return ['a seed, which is 0 for all values']
