"""Metrics and checkpoints in a config, as dicts."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping

from mmengine.config import Config
from mmengine.registry import METRICS

from mmcalib.metrics import CalibrationMetric


def checkpoint_hook(cfg: Config) -> Mapping:
    """Return a config's hook that keeps checkpoints, an empty one where it keeps none."""
    return (cfg.get('default_hooks') or {}).get('checkpoint') or {}


def calibration_configs(evaluator: object) -> Iterator[tuple[Mapping, tuple[str, ...]]]:
    """Yield the config of each calibration metric in an evaluator, and its names."""
    for metric in as_list(evaluator):
        kind = metric_class(metric)
        if not issubclass(kind, CalibrationMetric):
            continue
        default = (kind.__name__,)
        if 'metrics' in inspect.signature(kind.__init__).parameters:
            default = inspect.signature(kind.__init__).parameters['metrics'].default
        names = metric.get('metrics', default)
        yield metric, (names,) if isinstance(names, str) else tuple(names)


def metric_class(metric: Mapping) -> type:
    """Return the class of a metric by its config, ``object`` where it is none of ours."""
    kind = metric.get('type')
    return kind if inspect.isclass(kind) else METRICS.module_dict.get(kind, object)


def as_list(evaluator: object) -> list[Mapping]:
    """Return the configs of the metrics of an evaluator, which may be a single one."""
    if isinstance(evaluator, Mapping) and evaluator.get('type', 'Evaluator') == 'Evaluator':
        evaluator = evaluator.get('metrics')
    if isinstance(evaluator, Mapping):
        return [evaluator]
    return [metric for metric in evaluator or () if isinstance(metric, Mapping)]
