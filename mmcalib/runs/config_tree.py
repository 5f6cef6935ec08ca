"""A config as a tree: its parts, classes, datasets and pipelines."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterator, Mapping, Sequence

from mmengine.registry import MODELS, Registry

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
TOOLBOXES = ('mmpretrain', 'mmseg')
# Parts of the names of transforms that an image without labels does not need: those that read
# labels, and the one that brings a prediction to their size.
LABEL_TRANSFORMS = ('Annotation', 'AtInputSize')


def walk(node: object, path: str = '') -> Iterator[tuple[str, Mapping]]:
    """Yield path and dict of every part of a config or another tree, outer ones first."""
    items = ()
    if isinstance(node, Mapping):
        yield path, node
        items = node.items()
    elif isinstance(node, (list, tuple)):
        items = enumerate(node)
    for key, item in items:
        yield from walk(item, f'{path}.{key}'.lstrip('.'))


def type_name(kind: object) -> str:
    """Return the name of a class or function, given itself or by its name in any scope."""
    return getattr(kind, '__name__', str(kind)).split('.')[-1]


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


def find_class(part: Mapping, scope: str | None, registry: Registry = MODELS) -> Callable | None:
    """Return the class of a part of a config, None if no registry knows its type."""
    if not isinstance(part['type'], str):
        return part['type']
    with registry.switch_scope_and_registry(part.get('_scope_', scope)) as scoped:
        return scoped.get(part['type'])


def constructor_options(kind: Callable | None) -> dict[str, inspect.Parameter]:
    """Return the options of a function or of a class, those of its base classes included."""
    if kind is None:
        return {}
    if isinstance(kind, type) and '__signature__' not in vars(kind):
        kinds = kind.__mro__[-2::-1]  # from the outermost base class, without `object`
    else:
        kinds = [kind]
    options = {}
    for base in kinds:
        options |= inspect.signature(base).parameters
    return {
        name: parameter
        for name, parameter in options.items()
        if parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
    }


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
    kind = find_class({**model, 'type': model.get('calibrates', model['type'])}, scope)
    for base in inspect.getmro(kind) if kind else ():
        package = base.__module__.split('.')[0]
        if package in TOOLBOXES:
            return package
    return None


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


def find_pipelines(dataset: object) -> list[Mapping]:
    """Return the parts of a dataset's config that have a pipeline, the innermost first."""
    parts = [part for _, part in walk(dataset) if part.get('pipeline')]
    return parts[::-1]


def plain_pipelines(cfg: Mapping, split: str) -> list[list]:
    """Return the transforms of a split's datasets, the innermost first, for JSON."""
    holders = find_pipelines(cfg[f'{split}_dataloader']['dataset'])
    return [plain(holder['pipeline']) for holder in holders]


def without_labels(pipeline: Sequence[Mapping]) -> list[Mapping]:
    """Return the transforms of a test pipeline that an image without labels needs.

    This includes the views of a ``TestTimeAug``: a step with no other alternative is left out.
    """
    transforms = []
    for transform in pipeline:
        name = type_name(transform['type'])
        if any(word in name for word in LABEL_TRANSFORMS):
            continue
        if name == 'TestTimeAug':
            steps = [without_labels(alternatives) for alternatives in transform['transforms']]
            transform = {**transform, 'transforms': [step for step in steps if step]}
        transforms.append(transform)
    return transforms
