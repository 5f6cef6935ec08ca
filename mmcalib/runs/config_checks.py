"""Checks of a config for mistakes that would end in an error or a wrong number hours later."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import torch
from mmengine.config import Config
from mmengine.evaluator import BaseMetric
from mmengine.registry import METRICS

from mmcalib.checks import did_you_mean, nearest
from mmcalib.datasets.download_sources import missing_data_message
from mmcalib.learning_losses import LEARNS_BY
from mmcalib.metrics import CalibrationMetric, ForegroundIoU
from mmcalib.metrics.keys import AACC, INTERVAL, MIOU, OF_IOU_METRICS, better_rule
from mmcalib.runs.constructor_arguments import quiet_imports
from mmcalib.runs.loss_config import type_name
from mmcalib.runs.misspelt_options import check_constructors
from mmcalib.work_dir import RESULTS, check_writable

EVALUATORS = ('val_evaluator', 'test_evaluator')


def check_amp() -> None:
    """Raise a ValueError where mixed precision cannot run."""
    if not torch.cuda.is_available():
        raise ValueError('--amp needs a CUDA device, and none is available: leave it out')


def check_auto_scale_lr(cfg: Config) -> None:
    """Raise a ValueError where the batch size that the learning rate is for is not known."""
    if 'base_batch_size' not in (cfg.get('auto_scale_lr') or {}):
        raise ValueError('--auto-scale-lr needs auto_scale_lr.base_batch_size in the config')


def check_config(cfg: Config, loaders: Iterable[str]) -> None:
    """Raise an error for anything in a config that a run cannot do.

    That is options that do not exist, evaluators that cannot be built or overwrite each other's
    numbers, a checkpoint chosen by what is not measured or by the worst, and missing data.

    Args:
        cfg: Of the run.
        loaders: Keys of the dataloaders that it needs.

    Raises:
        OSError: For missing data, or a work dir that cannot be written to.
        ValueError: For the others.
    """
    check_writable(Path(cfg.work_dir, RESULTS))
    check_constructors(cfg)
    check_metrics(cfg)
    check_accuracy_floor(cfg)
    check_data(cfg, loaders)


def check_learning(cfg: Config) -> None:
    """Raise a ValueError for a training whose loss, or attached calibration, could not learn."""
    if 'CalibratedModel' in _types(cfg.get('model')):
        raise ValueError(
            'the config has a calibration attached, which would not follow the training: train '
            'with the config that was calibrated, load this checkpoint with load_from, and '
            'calibrate again'
        )
    hooks = set(_types(cfg.get('custom_hooks')))
    for loss in LEARNS_BY.keys() & set(_types(cfg.get('model'))):
        hook = LEARNS_BY[loss]
        if hook not in hooks:
            raise ValueError(
                f"{loss} learns nothing without its hook: add custom_hooks=[dict(type='{hook}')]"
            )
        if cfg.get('val_cfg') is None:
            raise ValueError(
                f'{loss} learns from validations, but this training has none: set val_cfg, '
                'val_dataloader and val_evaluator, and leave out --no-validate'
            )


def _types(node: object) -> Iterator[str]:
    """Yield the types that a config names anywhere in it."""
    if isinstance(node, Mapping):
        yield from (type_name(value) for key, value in node.items() if key == 'type')
        node = list(node.values())
    if isinstance(node, (list, tuple)):
        for item in node:
            yield from _types(item)


def check_data(cfg: Config, keys: Iterable[str]) -> None:
    """Raise a FileNotFoundError that names the first data folder or file that is not there.

    Args:
        cfg: Of the run.
        keys: Of the dataloaders that it needs.
    """
    loaders = {key: cfg.get(key) for key in keys}
    if cfg.get('limit'):  # which put a dataset around each; options are of what is inside
        loaders = {
            key: {**each, 'dataset': each.dataset.dataset} for key, each in loaders.items() if each
        }
    message = missing_data_message(loaders)
    if message:
        raise FileNotFoundError(message)


def check_metrics(cfg: Config) -> None:
    """Raise a ValueError for metrics that cannot be built or overwrite each other's numbers.

    So for a checkpoint that is to be chosen by what they do not measure, or by the worst. mmengine
    finds the first three out at the end of an evaluation, and never the last.
    """
    for evaluator in EVALUATORS:
        for number, node in enumerate(as_list(cfg.get(evaluator))):
            _build(f'{evaluator}.{number}', node, cfg.get('default_scope'))
        seen = set()
        for metric, names in calibration_configs(cfg.get(evaluator)):
            keys = {f'{_prefix(metric)}/{name}' for name in names}
            if seen & keys:
                raise ValueError(
                    f'{evaluator} measures {", ".join(sorted(seen & keys))} twice: give one of the '
                    "two metrics another prefix, such as dict(type='ECE', num_bins=25, "
                    "prefix='ece25')"
                )
            seen |= keys

    ours = calibration_keys(cfg)
    measured, all_known = measured_keys(cfg)
    for key, rule in kept_checkpoints(cfg):
        like = nearest(key, measured)
        if key not in measured and key != 'auto' and measured and (all_known or like):
            raise ValueError(
                f'default_hooks.checkpoint.save_best={key!r}: val_evaluator does not measure '
                f'it{did_you_mean(key, measured)}'
            )
        better = better_rule(key) if key in ours else None
        if rule is None and better == 'greater' and 'acc' in key:  # by which mmengine goes
            continue
        if better is not None and rule != better:
            what = f'rule={rule!r} would keep the worst checkpoint'
            if rule == 'greater':
                what += ', and our own configs bring it'
            raise ValueError(
                f'default_hooks.checkpoint.save_best={key!r}: set rule={better!r}; '
                f'{what if rule else "without a rule mmengine cannot know which way is better"}'
            )


def check_accuracy_floor(cfg: Config) -> None:
    """Raise a ValueError if the accuracy of an ``AccuracyFloorCheckpointHook`` is not measured."""
    hook = checkpoint_hook(cfg)
    measured, all_known = measured_keys(cfg)
    if hook.get('type') != 'AccuracyFloorCheckpointHook' or not all_known:
        return
    if hook.get('accuracy') not in measured:
        raise ValueError(
            f'default_hooks.checkpoint.accuracy={hook.get("accuracy")!r}: val_evaluator does not '
            f'measure it, only {", ".join(sorted(measured))}'
        )


def checkpoint_hook(cfg: Config) -> Mapping:
    """Return a config's hook that keeps checkpoints, an empty one where it keeps none."""
    return (cfg.get('default_hooks') or {}).get('checkpoint') or {}


def kept_checkpoints(cfg: Config) -> list[tuple[str, str | None]]:
    """Return the metrics by which a config keeps checkpoints, with their rules."""
    hook = checkpoint_hook(cfg)
    kept, rules = hook.get('save_best'), hook.get('rule')
    kept = [kept] if isinstance(kept, str) else kept or []
    rules = [rules] * len(kept) if rules is None or isinstance(rules, str) else rules
    return list(zip(kept, rules))  # noqa: B905, mmengine says what is wrong with the lengths


def calibration_keys(cfg: Config) -> set[str]:
    """Return the keys of the validation that calibration metrics measure."""
    return {
        f'{_prefix(metric)}/{name}'
        for metric, names in calibration_configs(cfg.get('val_evaluator'))
        for name in names
    }


def measured_keys(cfg: Config) -> tuple[set[str], bool]:
    """Return the keys that a validation measures, and whether these are all of them."""
    keys, all_known = set(), True
    for node in as_list(cfg.get('val_evaluator')):
        metric = _build('val_evaluator', node, cfg.get('default_scope'))
        names = _names_of(metric)
        all_known = all_known and names is not None
        prefix = f'{metric.prefix}/' if metric.prefix else ''
        keys |= {f'{prefix}{name}' for name in names or ()}
    return keys, all_known


def _names_of(metric: BaseMetric) -> tuple[str, ...] | None:
    """Return the names that a metric measures, None for an unknown metric."""
    if isinstance(metric, CalibrationMetric):
        names = metric.metrics
        if metric.confidence_interval is None:
            return names
        return names + tuple(f'{name}{end}' for name in metric.metrics for end in INTERVAL)
    if isinstance(metric, ForegroundIoU):
        return (MIOU,)
    kind = type(metric).__name__
    if kind == 'Accuracy' and len(getattr(metric, 'thrs', ())) == 1:
        return tuple(f'top{k}' for k in metric.topk)
    if kind == 'IoUMetric':
        wanted = [name for name in metric.metrics if name in OF_IOU_METRICS]
        return (AACC, *(key for name in wanted for key in OF_IOU_METRICS[name]))
    return None


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


def _prefix(metric: Mapping) -> str:
    return metric.get('prefix') or CalibrationMetric.default_prefix


def _build(key: str, node: Mapping, scope: str | None) -> BaseMetric:
    """Build a metric as a run will, to raise its errors now, with the key of its config."""
    with quiet_imports(), METRICS.switch_scope_and_registry(scope) as registry:
        try:
            return registry.build(dict(node))
        except (AssertionError, AttributeError, KeyError, TypeError, ValueError) as error:
            reason = error.args[0] if error.args else repr(error)
            raise ValueError(f'{key}: {reason}') from error
