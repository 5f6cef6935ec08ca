"""Facts of a training, by which its checkpoints and records tell it from others."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from mmcalib.choices import SYMBOLS
from mmcalib.files import EARLY_STOP, RESULTS, VALIDATION_RESULTS
from mmcalib.openmmlab.heads import predicting_items
from mmcalib.runs.config_tree import (
    constructor_options,
    find_class,
    find_pipelines,
    type_name,
    walk,
)
from mmcalib.runs.record import Record, read_json
from mmcalib.runs.work_dir import checkpoint_hook

FACTS = 'facts'  # the key in `meta` of a checkpoint
# The sections of a config that decide about the figures of a training.
SECTIONS = (
    'train_dataloader', 'train_cfg', 'optim_wrapper', 'param_scheduler', 'custom_hooks',
    'load_from',
)  # fmt: skip
# Hooks that only look on. Any other one, such as a user's own, is taken to change some figure.
OBSERVING_HOOKS = (
    'ConfidenceMapHook', 'EmptyCacheHook', 'LogitDistanceHook', 'MemoryProfilerHook',
    'ProfilerHook', 'ReliabilityDiagramHook', 'SameBuffersHook', 'SyncBuffersHook',
)  # fmt: skip
# The collate_fn of either toolbox, which their samples are alike by; None is mmengine's default.
DEFAULT_COLLATIONS = ('default_collate', 'pseudo_collate', 'None')
# Options of the CheckpointHook that choose the best checkpoint.
SELECTION = ('type', 'save_best', 'rule')
# Options anywhere in a config that change no figure, or that a registry takes.
WITHOUT_EFFECT = frozenset((
    '_scope_', '_delete_', 'num_workers', 'persistent_workers', 'pin_memory', 'prefetch_factor',
    'collate_fn', 'backend_args', 'file_client_args', 'lazy_init', 'serialize_data', 'max_refetch',
    'test_mode', 'download', 'compile', 'loss_name',
))  # fmt: skip
# Data sets that are the same ones in any folder.
NAMED_DATASETS = ('CIFAR10', 'CUB', 'Newsgroups20', 'PascalVOCDataset', 'TinyImageNet')
# Folders whose name says nothing without that of the folder above.
SPLIT_FOLDERS = ('images', 'test', 'train', 'training', 'val', 'validation')
# Options that say which dataset it is; its others say how it is read.
DATASET_KEYS = ('type', 'split', 'part', 'ann_file', 'protocol')
# Options that a loss is described by also at their defaults: the parameters that its label shows,
# and whether ignored pixels count in its mean.
ALWAYS_DESCRIBED = (*SYMBOLS, 'avg_non_ignore')
# Options that a loss is never described by.
NOT_DESCRIBED = WITHOUT_EFFECT | {'type', 'num_classes'}
# Paths of a loss, or of an item of a list, where heads of both toolboxes have theirs.
LOSS_OF_HEAD = re.compile(r'\.loss(_decode)?(\.\d+)?$')
# Parts of a model that only its training needs.
TRAINING_PARTS = frozenset((
    'auxiliary_head', 'batch_augments', 'init_cfg', 'pretrained', 'train_cfg',
))  # fmt: skip


def config_facts(cfg: Mapping, *, processes: int | None = None) -> dict:
    """Return loss and training in a config, for the ``meta`` of checkpoints."""
    return {'loss': main_loss(cfg), 'training': describe_training(cfg, processes=processes)}


def training_facts(meta: Mapping, cfg: Mapping) -> dict:
    """Return loss and training behind a checkpoint, and who tells them.

    A checkpoint of ours has them in its ``meta``, where the training wrote them. For any other one
    they are those of the config that it is named with, as the record and reports say.
    """
    if FACTS in meta:
        return {**meta[FACTS], 'told_by': 'checkpoint'}
    return {**config_facts(cfg), 'told_by': 'config'}


def describe_training(cfg: Mapping, *, processes: int | None = None) -> dict:
    """Return what decides about the figures of a training, but for its seed and main loss.

    Args:
        cfg: Config of the training.
        processes: Number of its processes; None if unknown.

    Returns:
        For JSON: the config's own keys as :func:`plain` has them, ``selection``, by what and on
        which data the best checkpoint is chosen, ``processes`` and ``limit``, the samples of a
        smoke run.
    """
    model = {'data_preprocessor': cfg.get('data_preprocessor'), **(cfg.get('model') or {})}
    model.pop('test_cfg', None)
    description = {'model': plain(without_losses(model))}
    for section in SECTIONS:
        if cfg.get(section):
            description[section] = plain(cfg[section])
    hooks = description.pop('custom_hooks', [])
    deciding_hooks = [hook for hook in hooks if hook['type'] not in OBSERVING_HOOKS]
    if deciding_hooks:
        description['custom_hooks'] = deciding_hooks
    collate_fn = (cfg.get('train_dataloader') or {}).get('collate_fn')
    kind = collate_fn.get('type') if isinstance(collate_fn, Mapping) else collate_fn
    if type_name(kind) not in DEFAULT_COLLATIONS:
        description['train_dataloader']['collate_fn'] = plain(collate_fn)
    if cfg.get('sync_bn'):
        description['sync_bn'] = plain(cfg['sync_bn'])
    if cfg.get('resume'):  # A training that goes on started from elsewhere.
        description.pop('load_from', None)
    if (cfg.get('auto_scale_lr') or {}).get('enable'):
        description['auto_scale_lr'] = plain(cfg['auto_scale_lr'])
    other_losses = describe_other_losses(cfg)
    if other_losses:
        description['other_losses'] = other_losses
    description['selection'] = describe_selection(cfg)
    description['processes'] = processes
    description['limit'] = cfg.get('limit')
    return description


def describe_network(model: Mapping) -> dict:
    """Return what predicts, for JSON: a model's config without its losses and its training."""
    return plain(without_losses(model), TRAINING_PARTS | {'_scope_', '_delete_'})


def without_losses(node: object) -> object:
    """Return a part of a model's config without the losses in it.

    mmpretrain's heads have a ``loss``, mmseg's a ``loss_decode``; either may be a list.
    """
    if isinstance(node, Mapping):
        return {key: without_losses(item) for key, item in node.items() if not is_loss(key, item)}
    if isinstance(node, (list, tuple)):
        return [without_losses(item) for item in node]
    return node


def is_loss(key: str, item: object) -> bool:
    """Return whether a part of a model's config is a loss, or several."""
    return key.startswith('loss') and isinstance(item, (Mapping, list, tuple))


def describe_selection(cfg: Mapping) -> dict:
    """Return by what, and on which data, the best checkpoint is chosen, for JSON."""
    hook = checkpoint_hook(cfg)
    options = {key: hook[key] for key in SELECTION if hook.get(key)}
    validation = (cfg.get('val_dataloader') or {}).get('dataset')
    return {**plain(options), 'on': describe_dataset(validation)}


def find_losses(model: object) -> dict[str, Mapping]:
    """Return the losses in a model's config and the terms of sums, by path, auxiliary ones last."""
    losses = {}
    auxiliary_losses = {}
    for path, part in walk(model, 'model'):
        if 'type' in part and any(key.startswith('loss') for key in path.split('.')):
            if 'auxiliary' in path:
                auxiliary_losses[path] = part
            else:
                losses[path] = part
    return losses | auxiliary_losses


def predicting_losses(cfg: Mapping) -> tuple[dict[str, Mapping], bool]:
    """Return the losses that train the logits of a model's prediction.

    A cascade predicts by its last head, and some heads have losses of other branches.

    Returns:
        The losses by path, without the terms of sums; and whether it is known that they are these:
        of an unknown head they are all.
    """
    model = cfg.get('model') or {}
    losses = {}
    for path, loss in find_losses(model).items():
        is_term = any(path.startswith(f'{outer_path}.') for outer_path in losses)
        if 'auxiliary' not in path and not is_term:
            losses[path] = loss
    head_path, head = _predicting_head(model)
    paths = [path for path in losses if path.startswith(f'{head_path}.')] or list(losses)
    paths = [path for path in paths if LOSS_OF_HEAD.search(path)] or paths
    is_known = len(paths) < 2
    if not is_known and 'type' in head:
        items = predicting_items(find_class(head, cfg.get('default_scope')), len(paths))
        if items is not None:
            is_known = True
            paths = [paths[item] for item in items]
    return {path: losses[path] for path in paths}, is_known


def _predicting_head(model: Mapping) -> tuple[str, Mapping]:
    """Return path and config of the head that predicts, or those of a model that names none."""
    for key in ('decode_head', 'head'):
        head = model.get(key)
        if isinstance(head, (list, tuple)):
            return f'model.{key}.{len(head) - 1}', head[-1]
        if isinstance(head, Mapping):
            return f'model.{key}', head
    return 'model', model


def main_loss(cfg: Mapping) -> dict | None:
    """Return type and options of what trains a model's prediction, None if it has no loss.

    Several losses are described as the :class:`~mmcalib.losses.CombinedLoss` that they are.
    """
    losses, _ = predicting_losses(cfg)
    terms = [describe_loss(loss, cfg.get('default_scope')) for loss in losses.values()]
    if len(terms) > 1:
        return {'type': 'CombinedLoss', 'losses': terms}
    return terms[0] if terms else None


def describe_other_losses(cfg: Mapping) -> dict[str, dict]:
    """Return type and options of the losses that are unlike the main one, by path."""
    main = main_loss(cfg)
    main_paths, _ = predicting_losses(cfg)
    others = {}
    for path, loss in find_losses(cfg.get('model')).items():
        description = describe_loss(loss, cfg.get('default_scope'))
        if path not in main_paths and description != main:
            others[path] = description
    return others


def describe_loss(loss: Mapping, scope: str | None) -> dict:
    """Return type and options of a loss by its config.

    Options at their defaults are left out, but for :data:`ALWAYS_DESCRIBED`.
    """
    kind = find_class(loss, scope)  # None if no registry knows a loss from elsewhere
    defaults = {
        name: parameter.default
        for name, parameter in constructor_options(kind).items()
        if parameter.default is not parameter.empty
    }
    description = {}
    for name, value in {**defaults, **loss}.items():
        is_default = name in defaults and value == defaults[name]
        if name not in NOT_DESCRIBED and (name in ALWAYS_DESCRIBED or not is_default):
            description[name] = value
    return {'type': type_name(loss['type']), **plain(description)}


def describe_end(checkpoint: str | Path, training: Mapping, calibration: Mapping) -> dict:
    """Return whether, and where, the training of a checkpoint came to its end, for its record.

    Returns:
        ``finished``, see :func:`is_finished`, and ``stopped_at``, see :func:`early_stop`.
    """
    file = Path(checkpoint).with_name(EARLY_STOP)
    if file.is_file():
        return {'finished': True, 'stopped_at': read_json(file, 'remove it')['stopped_at']}
    return {
        'finished': is_finished(checkpoint, training, calibration),
        'stopped_at': calibration.get('stopped_at'),
    }


def is_finished(checkpoint: str | Path, training: Mapping, calibration: Mapping) -> bool | None:
    """Return whether the training of a checkpoint came to its end, None if unknown.

    Its results beside it tell, or the number of the last checkpoint; that of a calibrated
    checkpoint in another folder is told by its calibration.

    Args:
        checkpoint: Path of the checkpoint.
        training: Result of :func:`describe_training`.
        calibration: Record of a calibration in the checkpoint; empty without one.
    """
    folder = Path(checkpoint).parent
    for name in (RESULTS, VALIDATION_RESULTS):  # Early stopping ends it before its last epoch.
        with suppress(OSError, ValueError):
            members = Record.read(folder / name).model['members']
            if all(member['finished'] for member in members):
                return True
    train_cfg = training.get('train_cfg') or {}
    length = train_cfg.get('max_epochs') or train_cfg.get('max_iters')
    last = folder / 'last_checkpoint'
    if length and last.is_file():
        number = re.search(r'_(\d+)\.pth$', last.read_text().strip())
        if number:
            return int(number[1]) >= length
    return calibration.get('finished')


def plain(node: object, ignored_keys: frozenset[str] = WITHOUT_EFFECT) -> object:
    """Return a part of a config in JSON's types, alike for configs that mean the same.

    Types lose their scope, paths and addresses all but their last part, and whole numbers are
    integers. A dataset whose type says which one it is has no folder.

    Args:
        node: The part.
        ignored_keys: Keys that are left out, wherever they are.
    """
    if isinstance(node, Mapping):
        return _plain_dict(node, ignored_keys)
    if isinstance(node, (list, tuple)):
        return [plain(item, ignored_keys) for item in node]
    if isinstance(node, str):
        is_path = os.path.isabs(node) or '://' in node
        return os.path.basename(os.path.normpath(node)) if is_path else node
    if isinstance(node, float):
        if node.is_integer():
            return int(node)
        return node if abs(node) < float('inf') else str(node)
    if isinstance(node, (int, bool, type(None))):
        return node
    return type_name(node)


def _plain_dict(node: Mapping, ignored_keys: frozenset[str]) -> dict:
    """Return :func:`plain` of a dict."""
    is_named_dataset = type_name(node.get('type')) in NAMED_DATASETS
    result = {}
    for key, item in node.items():
        name = str(key)
        if name in ignored_keys or (name == 'data_root' and is_named_dataset):
            continue
        if name == 'type':
            result[name] = type_name(item)
        elif name == 'data_root' and isinstance(item, str):
            result[name] = _folder_name(item)
        else:
            result[name] = plain(item, ignored_keys)
    return result


def _folder_name(root: str) -> str:
    """Return the name of a folder, with that of the one above if it is a split's."""
    parts = os.path.normpath(root).split(os.sep)
    return '/'.join(parts[-2:]) if parts[-1] in SPLIT_FOLDERS else parts[-1]


def describe_dataset(dataset: object) -> dict:
    """Return type and options of a dataset's config, its wrappers' among them, without pipelines.

    The innermost dataset has the type; wrappers may add to it.
    """
    description = {}
    while isinstance(dataset, Mapping):
        options = {key: item for key, item in dataset.items() if key != 'dataset'}
        description |= plain(options, WITHOUT_EFFECT | {'pipeline'})
        dataset = dataset.get('dataset')
    return description


def plain_pipelines(cfg: Mapping, split: str) -> list[list]:
    """Return the transforms of a split's datasets, the innermost first, for JSON."""
    holders = find_pipelines(cfg[f'{split}_dataloader']['dataset'])
    return [plain(holder['pipeline']) for holder in holders]
