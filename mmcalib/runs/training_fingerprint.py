"""Fingerprint of a training: the part of its config that decides about figures, to compare."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping

from mmcalib.datasets.download_sources import SOURCES, ood_sets
from mmcalib.hooks.accuracy_floor_hook import MIN_ACCURACY
from mmcalib.runs.loss_config import (
    describe_loss,
    loss_configs,
    main_loss_key,
    type_name,
    without_losses,
)

# They change no figure. What is not listed, such as a user's own hook, is taken to change some.
OBSERVING_HOOKS = (
    'ConfidenceMapHook',
    'DistSamplerSeedHook',
    'EmptyCacheHook',
    'IterTimerHook',
    'LoggerHook',
    'LogitDistanceHook',
    'MemoryProfilerHook',
    'NaiveVisualizationHook',
    'ParamSchedulerHook',
    'ProfilerHook',
    'ReliabilityDiagramHook',
    'RuntimeInfoHook',
    'SameBuffersHook',
    'SegVisualizationHook',
    'SyncBuffersHook',
    'VisualizationHook',
)
# Of a dataset: how it is read, or what has a place of its own.
LOADING_OPTIONS = (
    'backend_args',
    'download',
    'file_client_args',
    'lazy_init',
    'max_refetch',
    'pipeline',
    'serialize_data',
    'test_mode',
)
# Of the hook that keeps checkpoints, also of ours with a floor under the accuracy.
CHECKPOINT_HOOKS = ('CheckpointHook', 'AccuracyFloorCheckpointHook')
SELECTION_OPTIONS = ('save_best', 'rule', 'min_accuracy', 'accuracy')
SPLIT_FOLDERS = ('images', 'test', 'train', 'training', 'val', 'validation')
# mmpretrain's tools add one, mmengine takes the other by default.
PLAIN_COLLATE = (dict(type='default_collate'), dict(type='pseudo_collate'))
NOT_BUILT = ('_delete_', '_scope_')


def trained_config(cfg: Mapping, *, processes: int | None = None) -> dict:
    """Return the training in a config, in parts that runs of one experiment have in common.

    Left out are the seed, the main loss (see :func:`~mmcalib.runs.loss_config.main_loss`), hooks
    that change no figure, how data are loaded, and the folders of files; a data set that its type
    does not identify keeps the last folder's name.

    Args:
        cfg: Of the training.
        processes: On how many it ran; None if unknown.

    Returns:
        For JSON:

        - ``network``: the model without its losses, and what normalises its inputs;
        - ``data``: the training data set and its options;
        - ``augmentation``: its pipelines, and what the model does to batches;
        - ``batch_size``: over all processes, a text where their number is unknown;
        - ``sampling``: the other options of the dataloader;
        - ``optimizer``, ``learning_rates``, ``length``: as the config has them;
        - ``loss_schedules``: the options of each ``LossScheduleHook``;
        - ``other_losses``: those of auxiliary heads, and second losses of a head, by their keys;
        - ``hooks``: all others that may change a figure;
        - ``selection``: by what the best checkpoint is chosen, and on which data;
        - ``initial_weights``: the name of the file that a training started from.
    """
    model = dict(cfg.get('model') or {})
    # mmengine takes it from either place.
    model.setdefault('data_preprocessor', cfg.get('data_preprocessor') or {})
    on_batches = model.pop('train_cfg', None)
    model.pop('test_cfg', None)
    loader = cfg.get('train_dataloader') or {}
    hooks = list(_hooks(cfg))
    checkpoint = next((hook for hook in hooks if hook.get('type') in CHECKPOINT_HOOKS), {})
    if checkpoint.get('type') == 'AccuracyFloorCheckpointHook':
        checkpoint = {'min_accuracy': MIN_ACCURACY, **checkpoint}
    scaling = cfg.get('auto_scale_lr') or {}
    main = main_loss_key(cfg)
    parts = {
        'network': without_losses(model),
        'data': dataset_options(loader.get('dataset')),
        'augmentation': [*_pipelines(loader.get('dataset')), *([on_batches] if on_batches else [])],
        'batch_size': _batch_size(cfg, processes),
        'sampling': {
            key: loader[key]
            for key in ('sampler', 'batch_sampler', 'drop_last', 'collate_fn')
            if loader.get(key) and loader[key] not in PLAIN_COLLATE
        },
        'optimizer': {
            **(cfg.get('optim_wrapper') or {}),
            **({'auto_scale_lr': scaling} if scaling.get('enable') else {}),
        },
        'learning_rates': _as_list(cfg.get('param_scheduler')),
        'length': cfg.get('train_cfg') or {},
        'loss_schedules': [
            {key: value for key, value in hook.items() if key != 'type'}
            for hook in hooks
            if hook.get('type') == 'LossScheduleHook'
        ],
        'other_losses': {
            key: describe_loss(loss, cfg.get('default_scope'))
            for key, loss in loss_configs(cfg.get('model'))
            if key != main
        },
        'hooks': [
            hook
            for hook in hooks
            if hook.get('type') not in (*OBSERVING_HOOKS, *CHECKPOINT_HOOKS, 'LossScheduleHook')
        ],
        'selection': {
            **{key: checkpoint[key] for key in SELECTION_OPTIONS if checkpoint.get(key)},
            'data': dataset_options((cfg.get('val_dataloader') or {}).get('dataset')),
        },
        'initial_weights': None if cfg.get('resume') else cfg.get('load_from'),
    }
    return comparable(parts)


def comparable(node: object) -> object:
    """Return a config's node in JSON's types, alike for configs that mean the same.

    Types lose their scope, paths and addresses all but their last part, and whole numbers are
    integers.
    """
    if isinstance(node, Mapping):
        return {
            str(key): type_name(value) if key == 'type' else comparable(value)
            for key, value in sorted(node.items(), key=lambda item: str(item[0]))
            if key not in NOT_BUILT
        }
    if isinstance(node, (list, tuple)):
        return [comparable(item) for item in node]
    if isinstance(node, float) and node.is_integer():
        return int(node)
    if isinstance(node, float) and not math.isfinite(node):
        return str(node)
    if isinstance(node, str) and (os.path.isabs(node) or '://' in node):
        return os.path.basename(os.path.normpath(node))
    return node if isinstance(node, (str, int, float, bool, type(None))) else type_name(node)


def dataset_options(dataset: object) -> dict:
    """Return type and options of a dataset's config, its wrappers' among them.

    Of ``data_root`` the last folder is kept, and the one above it where that is a split's; nothing
    where the type says which data it is.
    """
    result = {}
    while isinstance(dataset, Mapping):  # the innermost has the type, wrappers may add to it
        options = {key: value for key, value in dataset.items() if key not in LOADING_OPTIONS}
        root = options.pop('data_root', None)
        if root and type_name(dataset.get('type')) not in SOURCES:
            options['data_root'] = _folder_name(root)
        if 'datasets' in options:
            options['datasets'] = [dataset_options(each) for each in _as_list(options['datasets'])]
        for group, sets in ood_sets(options).items():
            options[group] = {name: dataset_options(each) for name, each in sets.items()}
        dataset = options.pop('dataset', None)
        result.update(options)
    return comparable(result)


def _folder_name(root: str) -> str:
    parts = os.path.normpath(root).split(os.sep)
    return '/'.join(parts[-2:] if parts[-1] in SPLIT_FOLDERS else parts[-1:])


def pipelines(dataset: object) -> list:
    """Return the transforms of a dataset's config, its wrappers' last."""
    return comparable(list(_pipelines(dataset)))


def _pipelines(node: object) -> Iterator[list]:
    if isinstance(node, Mapping):
        yield from _pipelines(node.get('dataset'))
        yield from _pipelines(node.get('datasets'))
        yield from _pipelines([each for sets in ood_sets(node).values() for each in sets.values()])
        if node.get('pipeline'):
            yield node['pipeline']
    elif isinstance(node, (list, tuple)):
        for item in node:
            yield from _pipelines(item)


def _hooks(cfg: Mapping) -> Iterator[Mapping]:
    for hook in [*(cfg.get('default_hooks') or {}).values(), *_as_list(cfg.get('custom_hooks'))]:
        if isinstance(hook, Mapping):
            yield {**hook, 'type': type_name(hook.get('type'))}


def _batch_size(cfg: Mapping, processes: int | None) -> int | str | None:
    loader = cfg.get('train_dataloader') or {}
    size = loader.get('batch_size') or (loader.get('batch_sampler') or {}).get('batch_size')
    if processes is None and cfg.get('launcher', 'none') == 'none':
        processes = 1
    if size is None or processes is not None:
        return size and size * processes
    return f'{size} per process'


def _as_list(node: object) -> list:
    return list(node) if isinstance(node, (list, tuple)) else [node] if node else []
