"""What would end in an error or a wrong number hours later, found before a run starts."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping

import torch
from mmengine.config import Config
from mmengine.registry import METRICS

from mmcalib.datasets.data_sources import missing_data_message, missing_vectors_message
from mmcalib.metrics import CalibrationMetric

# Of the metrics in `CalibrationMetric`, those of which more is better, or that are no error.
NO_ERRORS = ('accuracy', 'confidence')


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
