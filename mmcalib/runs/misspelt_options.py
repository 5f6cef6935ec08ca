"""Options that no part of a config takes, and the nearest ones that exist."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping

from mmengine.config import Config
from mmengine.registry import (
    DATASETS,
    HOOKS,
    METRICS,
    MODELS,
    OPTIM_WRAPPERS,
    OPTIMIZERS,
    PARAM_SCHEDULERS,
    VISUALIZERS,
    Registry,
)
from mmengine.runner import EpochBasedTrainLoop, IterBasedTrainLoop, Runner
from torch.utils.data import DataLoader

from mmcalib.checks import did_you_mean, nearest
from mmcalib.datasets.download_sources import dataset_configs
from mmcalib.runs.constructor_arguments import constructor_parameters, find_kind
from mmcalib.runs.loss_config import loss_and_term_configs

REGISTRIES = (
    MODELS, DATASETS, METRICS, HOOKS, OPTIMIZERS, OPTIM_WRAPPERS, PARAM_SCHEDULERS, VISUALIZERS,
)  # fmt: skip
# What mmengine or the toolboxes take out of a dict before they build a class of the rest.
TAKEN_OUT = {'type', '_scope_', '_delete_', 'priority'}


def _names(*functions: Callable) -> set[str]:
    return {name for function in functions for name in inspect.signature(function).parameters}


# Parts of a config that have no type, and what mmengine reads of them.
DATALOADER = _names(DataLoader.__init__) | {
    'dataset', 'sampler', 'batch_sampler', 'collate_fn', 'worker_init_fn', 'num_batch_per_epoch',
    'disable_subprocess_warning',
}  # fmt: skip
PLAIN_PARTS = {
    '': _names(Runner.__init__) | {
        'activation_checkpointing', 'compile', 'efficient_conv_bn_eval', 'evaluations',
        'find_unused_parameters', 'model_wrapper_cfg', 'num_threads', 'runner_type',
        'tta_model', 'tta_pipeline',
    },
    'train_dataloader': DATALOADER,
    'val_dataloader': DATALOADER,
    'test_dataloader': DATALOADER,
    'train_cfg': _names(EpochBasedTrainLoop.__init__, IterBasedTrainLoop.__init__)
    | {'type', 'by_epoch'},
    'randomness': _names(Runner.set_randomness),
    'env_cfg': {'cudnn_benchmark', 'mp_cfg', 'dist_cfg', 'resource_limit'},
    'auto_scale_lr': {'enable', 'base_batch_size'},
}  # fmt: skip
ADDED = {'optim_wrapper': {'constructor', 'paramwise_cfg'}}


def check_option_keys(before: Config, after: Config, options: Mapping) -> None:
    """Raise a ValueError for an option that nothing reads, naming the nearest that exists.

    mmengine puts any key into a config, and runs without it.

    Args:
        before: The config as its file has it.
        after: The same with the options.
        options: By dotted keys.
    """
    for key in options:
        old, new, path = before._cfg_dict, after._cfg_dict, []
        for part in key.split('.'):
            place = '.'.join(path)
            if isinstance(old, Mapping) and part not in old:
                _check_new_key(key, place, part, old, new, before.get('default_scope'))
                break
            if not isinstance(old, (Mapping, list, tuple)):
                break  # replaced as a whole
            index = int(part) if isinstance(old, (list, tuple)) else part
            old, new = old[index], new[index]
            path.append(part)


def _check_new_key(
    key: str, place: str, part: str, old: Mapping, new: Mapping, scope: str | None
) -> None:
    known = {str(name) for name in old} | PLAIN_PARTS.get(place, set()) | ADDED.get(place, set())
    closed = place in PLAIN_PARTS
    if isinstance(new, Mapping) and 'type' in new:
        for registry in REGISTRIES:
            kind = find_kind(new, registry, scope)
            if kind is not None:
                known |= constructor_parameters(kind)[0].keys()
                if kind is not find_kind(old, registry, scope):  # the old one's are gone
                    known -= old.keys() - constructor_parameters(kind)[0].keys()
                break
    if part in known or part in TAKEN_OUT:
        return
    if closed or nearest(part, known):
        where = f'{place} has no {part}' if place else f'a config has no {part}'
        raise ValueError(f'--cfg-options {key}: {where}{did_you_mean(part, known)}')


def check_constructors(cfg: Config) -> None:
    """Raise a ValueError for an option that a loss, metric, dataset or hook does not take.

    mmengine says so too, at the end of a traceback, and for tests only after a training.
    """
    scope = cfg.get('default_scope')
    for key, node, registry in _constructed(cfg):
        kind = find_kind(node, registry, scope)
        if kind is None:
            continue
        known, others = constructor_parameters(kind)
        unknown = [name for name in node if name not in known and name not in TAKEN_OUT]
        if unknown and not others:
            raise ValueError(
                f'{key}.{unknown[0]}: {kind.__name__} has no option {unknown[0]}'
                f'{did_you_mean(unknown[0], known, of=kind.__name__)}. If the _base_ has set it, '
                'add _delete_=True beside the new type'
            )


def _constructed(cfg: Config) -> Iterator[tuple[str, Mapping, Registry]]:
    """Yield key, config and registry of the parts whose class gets all that their config says."""
    for key, node in loss_and_term_configs(cfg.get('model')):
        yield key, node, MODELS
    for split in ('train', 'val', 'test'):
        yield from _typed(f'{split}_evaluator', cfg.get(f'{split}_evaluator'), METRICS)
        loader = cfg.get(f'{split}_dataloader') or {}
        for key, node in dataset_configs(f'{split}_dataloader.dataset', loader.get('dataset')):
            yield from _typed(key, node, DATASETS)
    for name, node in (cfg.get('default_hooks') or {}).items():
        yield from _typed(f'default_hooks.{name}', node, HOOKS)
    yield from _typed('custom_hooks', cfg.get('custom_hooks'), HOOKS)


def _typed(key: str, node: object, registry: Registry) -> Iterator[tuple[str, Mapping, Registry]]:
    if isinstance(node, (list, tuple)):
        for index, item in enumerate(node):
            yield from _typed(f'{key}.{index}', item, registry)
    elif isinstance(node, Mapping) and 'type' in node:
        yield key, node, registry
