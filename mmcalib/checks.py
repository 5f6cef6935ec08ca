"""What would end in an error or a wrong number hours later, found before a run starts."""

from __future__ import annotations

import inspect
import os
import zipfile
from collections.abc import Iterable, Iterator, Mapping

import torch
from mmengine.config import Config
from mmengine.hooks import Hook
from mmengine.model import BaseTTAModel, is_model_wrapper
from mmengine.registry import METRICS
from mmengine.runner import Runner
from torch import nn

from mmcalib.datasets.sources import missing_data_message, missing_vectors_message
from mmcalib.metrics import CalibrationMetric

# Of the metrics in `CalibrationMetric`, those of which more is better, or that are no error.
NO_ERRORS = ('accuracy', 'confidence')


class CheckpointError(ValueError):
    """A checkpoint is not one of the model that is to be tested."""


def check_checkpoint(path: str) -> None:
    """Raise an error if a local checkpoint is not there, or is something else."""
    if '://' in path:
        return
    if not os.path.isfile(path):
        raise FileNotFoundError(f'there is no checkpoint {path!r} in {os.getcwd()}')
    with open(path, 'rb') as file:
        start = file.read(2)
    # Of a zip file, whose index comes last; before PyTorch 1.6 it was a bare pickle.
    if not zipfile.is_zipfile(path) and start[:1] != b'\x80':
        why = 'it was not written to its end' if start == b'PK' else 'it is another kind of file'
        raise ValueError(f'{path!r} is no checkpoint: {why}')


def check_amp() -> None:
    """Raise a ValueError where mixed precision cannot run."""
    if not torch.cuda.is_available():
        raise ValueError('--amp needs a CUDA device, and none is available: leave it out')


def check_data(cfg: Config, keys: Iterable[str]) -> None:
    """Raise a FileNotFoundError that names the first data folder or file that is not there.

    Args:
        cfg: Of the run.
        keys: Of the dataloaders that it needs.
    """
    message = missing_data_message({key: cfg.get(key) for key in keys})
    if message:
        raise FileNotFoundError(message)
    message = missing_vectors_message(cfg.get('model', {}).get('backbone', {}))
    if message:
        raise FileNotFoundError(f'model.backbone.vectors: {message}')


def check_metrics(cfg: Config) -> None:
    """Raise a ValueError for metrics that would overwrite each other, or keep the worst checkpoint.

    mmengine finds the first out at the end of an evaluation, and never the second.
    """
    for evaluator in ('val_evaluator', 'test_evaluator'):
        seen = set()
        for metric, names in calibration_configs(cfg.get(evaluator)):
            prefix = metric.get('prefix') or CalibrationMetric.default_prefix
            twice = sorted(seen & {f'{prefix}/{name}' for name in names})
            if twice:
                raise ValueError(
                    f'{evaluator} measures {", ".join(twice)} twice: give one of the two metrics '
                    "another prefix, such as dict(type='ECE', num_bins=25, prefix='ece25')"
                )
            seen |= {f'{prefix}/{name}' for name in names}

    errors = {
        f'{metric.get("prefix") or CalibrationMetric.default_prefix}/{name}'
        for metric, names in calibration_configs(cfg.get('val_evaluator'))
        for name in names
        if name not in NO_ERRORS
    }
    hook = cfg.get('default_hooks', {}).get('checkpoint') or {}
    kept, rules = hook.get('save_best'), hook.get('rule')
    kept = [kept] if isinstance(kept, str) else kept or []
    rules = [rules] * len(kept) if rules is None or isinstance(rules, str) else rules
    for key, rule in zip(kept, rules):  # noqa: B905, mmengine says what is wrong with the lengths
        if key in errors and rule == 'greater':
            raise ValueError(
                f"default_hooks.checkpoint.save_best={key!r} with rule='greater' would keep the "
                "worst checkpoint, and our own configs bring that rule along: set rule='less'"
            )


def calibration_configs(evaluator: object) -> Iterator[tuple[Mapping, tuple[str, ...]]]:
    """Yield the config of each calibration metric of an evaluator's, and what it measures."""
    for metric in evaluator if isinstance(evaluator, (list, tuple)) else [evaluator or {}]:
        kind = metric.get('type')
        kind = kind if inspect.isclass(kind) else METRICS.module_dict.get(kind, object)
        if not issubclass(kind, CalibrationMetric):
            continue
        default = (kind.__name__,)
        if 'metrics' in inspect.signature(kind.__init__).parameters:
            default = inspect.signature(kind.__init__).parameters['metrics'].default
        names = metric.get('metrics', default)
        yield metric, (names,) if isinstance(names, str) else tuple(names)


class CompleteWeights(Hook):
    """Refuses to load a checkpoint that leaves a part of the model as it was initialised.

    mmengine warns in the middle of its log, and the numbers of random weights look like others.
    Auxiliary heads may lack weights, since they predict nothing.

    Raises:
        CheckpointError: If parameters are missing, or have another shape.
    """

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        model = runner.model
        while is_model_wrapper(model) or isinstance(model, BaseTTAModel):
            model = model.module
        problem = _misfit(model, checkpoint.get('state_dict', checkpoint))
        if problem:
            raise CheckpointError(
                f'the checkpoint is not of the model of this config: {problem}. Take the config '
                'that it was trained with'
            )


def _misfit(model: nn.Module, state: Mapping) -> str | None:
    """Load weights as mmengine will, and return how they do not fit."""
    state = {key.removeprefix('module.'): value for key, value in state.items()}
    try:
        missing = set(model.load_state_dict(state, strict=False).missing_keys)
    except RuntimeError as error:
        sizes = [line.strip() for line in str(error).splitlines() if 'size mismatch' in line]
        return sizes[0] if sizes else str(error)
    parameters = [name for name, _ in model.named_parameters() if 'auxiliary' not in name]
    lacking = [name for name in parameters if name in missing]
    if not lacking:
        return None
    return f'it lacks {len(lacking)} of {len(parameters)} parameters, such as {lacking[0]}'
