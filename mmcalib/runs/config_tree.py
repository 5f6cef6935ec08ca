"""A config as a tree: its parts, its losses, and what of it decides about figures."""

from __future__ import annotations

import ast
import inspect
import os
from collections.abc import Callable, Mapping

from mmengine.registry import MODELS, Registry

from mmcalib.openmmlab.datasets.download_sources import SOURCES
from mmcalib.runs.record import type_name, walk

# What decides about the figures of a training, by the config's own keys.
DECIDING = (
    *('train_dataloader', 'train_cfg', 'optim_wrapper', 'param_scheduler', 'custom_hooks'),
    'load_from',
)
# Options anywhere in it that change no figure, or that a registry takes.
NEUTRAL = frozenset((
    *('_scope_', '_delete_', 'num_workers', 'persistent_workers', 'pin_memory', 'prefetch_factor'),
    *('collate_fn', 'backend_args', 'file_client_args', 'lazy_init', 'serialize_data'),
    *('max_refetch', 'test_mode', 'download', 'compile', 'loss_name'),
))  # fmt: skip
# What is not listed, such as a user's own hook, is taken to change some figure.
OBSERVERS = (
    *('ConfidenceMapHook', 'EmptyCacheHook', 'LogitDistanceHook', 'MemoryProfilerHook'),
    *('ProfilerHook', 'ReliabilityDiagramHook', 'SameBuffersHook', 'SyncBuffersHook'),
)
SELECTION = ('type', 'save_best', 'rule')
SPLIT_FOLDERS = ('images', 'test', 'train', 'training', 'val', 'validation')
# Of a dataset: which it is.
DATASET_KEYS = ('type', 'split', 'part', 'ann_file', 'protocol')
# Said of every loss that has them, also where the config leaves them at their defaults.
NAMED_PARAMETERS = ('margin', 'alpha', 'gamma', 'avg_non_ignore')
# Of a loss: what its label does not say.
NOT_TOLD = NEUTRAL | {'type', 'num_classes'}
# What a text of code raises that is read as a config.
NO_CONFIG = (AttributeError, MemoryError, RecursionError, SyntaxError, TypeError, ValueError)
KNOWN_PACKAGES = ('mmcalib', 'mmengine', 'mmpretrain', 'mmseg')
TOOLBOXES = ('mmpretrain', 'mmseg')


def plain(
    node: object, left_out: Callable[[str, object], bool] = lambda key, item: key in NEUTRAL
) -> object:
    """Return a part in JSON's types, alike for configs that mean the same.

    Types lose their scope, paths and addresses all but their last part, and whole numbers are
    integers. A data set whose type says which it is has no folder.
    """
    if isinstance(node, Mapping):
        known = type_name(node.get('type')) in SOURCES
        return {
            str(key): type_name(item)
            if key == 'type'
            else _folder_name(item)
            if key == 'data_root' and isinstance(item, str)
            else plain(item, left_out)
            for key, item in node.items()
            if not left_out(str(key), item) and not (known and key == 'data_root')
        }
    if isinstance(node, (list, tuple)):
        return [plain(item, left_out) for item in node]
    if isinstance(node, str) and (os.path.isabs(node) or '://' in node):
        return os.path.basename(os.path.normpath(node))
    if isinstance(node, float):
        return int(node) if node.is_integer() else node if abs(node) < float('inf') else str(node)
    return node if isinstance(node, (str, int, bool, type(None))) else type_name(node)


def _folder_name(root: str) -> str:
    parts = os.path.normpath(root).split(os.sep)
    return '/'.join(parts[-2:] if parts[-1] in SPLIT_FOLDERS else parts[-1:])


def losses_of(model: object) -> dict[str, Mapping]:
    """Return the losses in a model's config and the terms of sums, by path; the main one first.

    mmpretrain's heads have a ``loss``, mmseg's a ``loss_decode``, either of which may be a list.
    """
    found = {
        path: part
        for path, part in walk(model, 'model')
        if 'type' in part and any(key.startswith('loss') for key in path.split('.'))
    }
    return dict(sorted(found.items(), key=lambda item: 'auxiliary' in item[0]))


def main_loss(cfg: Mapping) -> dict | None:
    """Return type and parameters of the loss of a model's head, None if it has none."""
    path, loss = next(iter(losses_of(cfg.get('model')).items()), ('auxiliary', None))
    return None if 'auxiliary' in path else describe_loss(loss, cfg.get('default_scope'))


def describe_loss(loss: Mapping, scope: str | None) -> dict:
    """Return type and parameters of a loss by its config.

    Parameters at their defaults are left out, but for :data:`NAMED_PARAMETERS`, and for those of a
    class outside of mmcalib and the toolboxes.
    """
    kind = class_of(loss, scope)  # None of a checkpoint from elsewhere, maybe
    known = parameters_of(kind).items()
    defaults = {name: p.default for name, p in known if p.default is not p.empty}
    shown = {*NAMED_PARAMETERS}
    if kind is not None and kind.__module__.split('.')[0] not in KNOWN_PACKAGES:
        shown |= {name for name, x in defaults.items() if isinstance(x, (bool, int, float, str))}
        shown -= {'reduction', 'loss_weight'}
    told = {
        name: value
        for name, value in {**defaults, **loss}.items()
        if name not in NOT_TOLD
        and (name in shown or name not in defaults or value != defaults[name])
    }
    return {'type': type_name(loss['type']), **plain(told)}


def class_of(part: Mapping, scope: str | None, registry: Registry = MODELS) -> Callable | None:
    """Return the class of a part of a config, None if no registry knows its type."""
    if not isinstance(part['type'], str):
        return part['type']
    with registry.switch_scope_and_registry(part.get('_scope_', scope)) as scoped:
        return scoped.get(part['type'])


def find_toolbox(cfg: Mapping) -> str | None:
    """Return the scope of the toolbox that a config's model is of, None if it is of none.

    Configs of mmengine's new style have no default scope, since their types are classes.
    """
    scope = cfg.get('default_scope')
    if scope not in (None, 'mmengine'):
        return scope
    model = cfg.get('model')
    while isinstance(model, Mapping) and 'module' in model:  # a mean of networks, or of views
        model = model['module']
    if not isinstance(model, Mapping) or 'type' not in model:
        return None
    kind = class_of({**model, 'type': model.get('calibrates', model['type'])}, scope)
    packages = [base.__module__.split('.')[0] for base in inspect.getmro(kind)] if kind else []
    return next((package for package in packages if package in TOOLBOXES), None)


def parameters_of(kind: Callable | None) -> dict[str, inspect.Parameter]:
    """Return the options of a function or of a class, those of its base classes included."""
    if kind is None:
        return {}
    if isinstance(kind, type) and '__signature__' not in vars(kind):
        kinds = kind.__mro__[-2::-1]
    else:
        kinds = [kind]
    found = {k: p for each in kinds for k, p in inspect.signature(each).parameters.items()}
    return {k: p for k, p in found.items() if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)}


def training_in(cfg: Mapping, *, processes: int | None = None) -> dict:
    """Return what decides about the figures of a training, but for its seed and main loss.

    Args:
        cfg: Of the training.
        processes: On how many it ran; None if unknown.

    Returns:
        For JSON: the config's own keys as :func:`plain` has them, ``selection``, by what and on
        which data the best checkpoint is chosen, ``processes`` and ``limit``, the samples of a
        smoke run.
    """
    kept = {key: cfg[key] for key in DECIDING if cfg.get(key)}
    if cfg.get('resume'):
        kept.pop('load_from', None)
    if (cfg.get('auto_scale_lr') or {}).get('enable'):
        kept['auto_scale_lr'] = cfg['auto_scale_lr']
    hooks = [h for h in kept.pop('custom_hooks', ()) if type_name(h['type']) not in OBSERVERS]
    saving = (cfg.get('default_hooks') or {}).get('checkpoint') or {}
    validation = data_of((cfg.get('val_dataloader') or {}).get('dataset'))
    scope, main = cfg.get('default_scope'), main_loss(cfg)
    model = {'data_preprocessor': cfg.get('data_preprocessor'), **(cfg.get('model') or {})}
    model.pop('test_cfg', None)
    others = {
        path: found
        for path, loss in losses_of(cfg.get('model')).items()
        if (found := describe_loss(loss, scope)) != main
    }
    if processes is None and cfg.get('launcher', 'none') == 'none':
        processes = 1
    return {
        'model': plain(model, lambda key, item: key in NEUTRAL or is_loss(key, item)),
        **plain(kept),
        **({'custom_hooks': plain(hooks)} if hooks else {}),
        **({'other_losses': others} if others else {}),
        'selection': plain(
            {**{k: saving[k] for k in SELECTION if saving.get(k)}, 'on': validation}
        ),
        'processes': processes,
        'limit': cfg.get('limit'),
    }


def is_loss(key: str, item: object) -> bool:
    """Return whether a part of a model's config is a loss, or several."""
    return key.startswith('loss') and isinstance(item, (Mapping, list, tuple))


def data_of(dataset: object) -> dict:
    """Return type and options of a dataset's config, its wrappers' among them, without pipelines.

    The innermost has the type, wrappers may add to it.
    """
    result = {}
    while isinstance(dataset, Mapping):
        inner = dataset.get('dataset')
        own = {key: item for key, item in dataset.items() if key != 'dataset'}
        result |= plain(own, lambda key, _: key == 'pipeline' or key in NEUTRAL)
        dataset = inner
    return result


def pipelines_of(dataset: object) -> list[Mapping]:
    """Return the parts of a dataset's config that have transforms, the innermost first."""
    return [part for _, part in walk(dataset) if part.get('pipeline')][::-1]


def pipelines_in(cfg: Mapping, split: str) -> list[list]:
    """Return the transforms of a split's datasets, the innermost first, for JSON."""
    holders = pipelines_of(cfg[f'{split}_dataloader']['dataset'])
    return [plain(holder['pipeline']) for holder in holders]


class _Literals(ast.NodeTransformer):
    """Makes dicts of ``dict(a=1)`` and ``dict({'a': 1})``, and texts of the names of classes."""

    def visit_Call(self, node: ast.Call) -> ast.AST:
        if ast.unparse(node.func) != 'dict':
            return node
        found = ast.Dict([], [])
        pairs = [(None, each) for each in node.args] + [(k.arg, k.value) for k in node.keywords]
        for key, value in pairs:
            value = self.visit(value)
            found.keys += value.keys if key is None else [ast.Constant(key)]
            found.values += value.values if key is None else [value]
        return found

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return ast.Constant(float(node.id) if node.id in ('inf', 'nan') else node.id)

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        named = isinstance(node.value, (ast.Name, ast.Attribute))
        return ast.Constant(ast.unparse(node)) if named else node


def parse_config(text: str) -> dict:
    """Return the values in a text of ``key = value`` lines, as checkpoints of mmengine hold it.

    Values are literals, ``dict(…)`` of them, and names of classes, which become texts. No part of
    it is executed, since a checkpoint may be anyone's.

    Raises:
        ValueError: If the text holds anything else.
    """
    found = {}
    try:
        for line in ast.parse(text).body:
            (target,) = line.targets
            found[target.id] = ast.literal_eval(_Literals().visit(line.value))
    except NO_CONFIG as error:
        raise ValueError(f'it is not a config: {error}') from error
    return found
