"""The trainings of a sweep over a parameter of the loss, and checks before the first."""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mmengine.config import Config
from mmengine.registry import MODELS

from mmcalib import losses
from mmcalib.checks import suggestion
from mmcalib.datasets.same_data import same_data
from mmcalib.record import loss_label
from mmcalib.runs.config_checks import as_list, calibration_configs
from mmcalib.runs.constructor_arguments import constructor_parameters
from mmcalib.runs.loss_config import (
    loss_and_term_configs,
    loss_configs,
    loss_parameters,
    main_loss,
    main_loss_key,
)
from mmcalib.tasks.sweep.summary import Value, value_text
from mmcalib.work_dir import RESULTS, VALIDATION_RESULTS, experiment_name

# Of several losses that have a parameter, one of these is taken.
BEST_KNOWN = (losses.MarginLabelSmoothingLoss, losses.SoftmaxFocalLoss, losses.LabelSmoothingLoss)


@dataclass
class SweepPlan:
    """The arguments of a sweep.

    Attributes:
        config: The config file.
        parameter: Constructor parameter of the loss.
        values: Its values.
        tools: The folder with train.py and test.py.
        work_dir: The folder for all results.
        seeds: Seeds to average over, each in a folder of its own; None for the config's.
        options: ``KEY=VALUE`` for the config.
        arguments: Further arguments for train.py and test.py.
        train_arguments: Further arguments for train.py.
        gpus: Processes of each training, by dist_train.sh; None for a single one without it.
        jobs: Trainings at a time.
        test_all: Whether to test every value.
    """

    config: str
    parameter: str
    values: list[Value]
    tools: Path
    work_dir: Path
    seeds: list[int] | None = None
    options: list[str] = field(default_factory=list)
    arguments: list[str] = field(default_factory=list)
    train_arguments: list[str] = field(default_factory=list)
    gpus: int | None = None
    jobs: int = 1
    test_all: bool = False


@dataclass
class SweepTraining:
    """One training of a sweep: a value, a seed, and the folder for both."""

    name: str
    value: Value
    seed: int | None
    folder: Path

    def results(self, split: str) -> dict | None:
        """Return the results of the training on a split, None if there are none yet."""
        path = self.folder / (VALIDATION_RESULTS if split == 'val' else RESULTS)
        try:
            return json.loads(path.read_text(encoding='utf-8'))
        except FileNotFoundError:
            return None


def parse_parameter(text: str) -> tuple[str, list[Value]]:
    """Read ``margin=0,2,4``, each value once.

    Raises:
        ValueError: If it is not of that form.
    """
    name, _, listed = text.partition('=')
    values = list(dict.fromkeys(_value(part.strip()) for part in listed.split(',')))
    if not name.isidentifier() or '' in values:
        raise ValueError(f'--param takes NAME=VALUE,VALUE,…, such as margin=0,2,4; got {text!r}')
    return name, values


def _value(text: str) -> Value:
    try:
        return float(text)
    except ValueError:
        return text


def default_work_dir(config: str, parameter: str, *, limit: int | None = None) -> Path:
    """Return ``work_dirs/sweeps/<loss>/<experiment>/<parameter>``, below it with a limit."""
    folder = Path('work_dirs/sweeps', experiment_name(config), parameter)
    return folder if limit is None else folder / f'limit{limit}'


def option_keys(cfg: Config, parameter: str) -> list[str]:
    """Return the dotted keys of a parameter in the losses of a model that have it.

    Raises:
        ValueError: If none has it; the message names what they have.
    """
    keys, known = [], {}
    for key, loss in loss_and_term_configs(cfg.get('model')):
        names = loss_parameters(loss, cfg.get('default_scope'))
        known[f'{key} ({loss["type"]})'] = sorted(names)
        if parameter in names:
            keys.append(f'{key}.{parameter}')
    if not keys:
        has = '; '.join(f'{loss} has {", ".join(names)}' for loss, names in known.items())
        near = suggestion(parameter, {name for names in known.values() for name in names})
        raise ValueError(
            f'no loss of the model has a parameter {parameter!r}: {has or "no loss"}{near}'
        )
    return keys


def complete(cfg: Config, parameter: str) -> list[str]:
    """Give a config a loss that has the parameter, and the ECE, and return what it was given."""
    given, key = [], main_loss_key(cfg)
    loss = dict(loss_configs(cfg.get('model'))).get(key, {})
    kind = _loss_with(cfg, loss, parameter)
    if kind is not None:
        kept = {key: loss[key] for key in ('class_weight', 'loss_weight') if key in loss}
        loss.clear()
        loss.update(type=kind, **kept)
        given.append(f'{kind} for {key}')
    for split in ('val', 'test'):
        key = f'{split}_evaluator'
        measured = calibration_configs(cfg.get(key))
        if cfg.get(f'{split}_dataloader') is None or any(
            not metric.get('prefix') and 'ECE' in names for metric, names in measured
        ):
            continue
        cfg[key] = [*as_list(cfg.get(key)), dict(type='CalibrationMetric', metrics=['ECE'])]
        given.append(f'the ECE for {key}')
    return given


def _loss_with(cfg: Config, loss: Mapping, parameter: str) -> str | None:
    """Return a loss for the place of a cross-entropy without the parameter, None of others."""
    scope = cfg.get('default_scope')
    known = {
        name
        for _, each in loss_and_term_configs(cfg.get('model'))
        for name in loss_parameters(each, scope)
    }
    if suggestion(parameter, known) or parameter in known:
        return None
    if loss.get('type') != 'CrossEntropyLoss' or loss.get('use_sigmoid'):
        return None
    kinds = [*BEST_KNOWN, *(kind for kind in vars(losses).values() if inspect.isclass(kind))]
    kinds = [kind for kind in kinds if parameter in constructor_parameters(kind)[0]]
    return kinds[0].__name__ if kinds else None


def check_values(cfg: Config, keys: Sequence[str], values: Sequence[Value]) -> None:
    """Raise a ValueError for a value that a loss refuses, before others are trained."""
    for key in keys:
        path, _, parameter = key.rpartition('.')
        loss = dict(loss_and_term_configs(cfg.model))[path]
        for value in values:
            with MODELS.switch_scope_and_registry(cfg.get('default_scope')) as registry:
                try:
                    registry.build({**loss, parameter: value})
                except (TypeError, ValueError) as error:
                    raise ValueError(f'--param {parameter}={value_text(value)}: {error}') from error


def shared_settings(plan: SweepPlan, cfg: Config) -> dict:
    """Return the settings that all values of a sweep must share."""
    base = json.dumps(cfg.to_dict(), sort_keys=True, default=str)
    loss = _without(plan.parameter, main_loss(cfg))
    return {
        'experiment': experiment_name(plan.config),
        'parameter': plan.parameter,
        'loss': loss_label(loss),
        'options': plan.options,
        'arguments': [*plan.arguments, *plan.train_arguments],
        'config_digest': hashlib.sha256(base.encode()).hexdigest()[:16],
        'validates_on_test_data': same_data(cfg.get('val_dataloader'), cfg.get('test_dataloader')),
    }


def _without(parameter: str, node: object) -> object:
    if isinstance(node, Mapping):
        return {key: _without(parameter, item) for key, item in node.items() if key != parameter}
    return [_without(parameter, item) for item in node] if isinstance(node, list) else node


def trainings_of(
    plan: SweepPlan, values: Sequence[Value], seeds: Sequence[int]
) -> list[SweepTraining]:
    """Return a training for each value and seed."""
    trainings = []
    for value in values:
        for seed in seeds or [None]:
            name = f'{plan.parameter}={value_text(value)}'
            name += '' if seed is None else f'/seed{seed}'
            trainings.append(SweepTraining(name, value, seed, plan.work_dir / name))
    return trainings
