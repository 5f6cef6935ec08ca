"""A config as a tree: its parts, classes, datasets and pipelines."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence

from mmengine.registry import MODELS, Registry

TOOLBOXES = ('mmpretrain', 'mmseg')
# Parts of the names of transforms that an image without labels does not need: those that read
# labels, and the one that brings a prediction to their size.
LABEL_TRANSFORMS = ('Annotation', 'AtInputSize')


def walk_values(node: object, path: str = '') -> Iterator[tuple[str, object]]:
    """Yield path and value of every node of a config or another tree, outer ones first."""
    yield path, node
    items = ()
    if isinstance(node, Mapping):
        items = node.items()
    elif isinstance(node, (list, tuple)):
        items = enumerate(node)
    for key, item in items:
        yield from walk_values(item, f'{path}.{key}'.lstrip('.'))


def walk(node: object, path: str = '') -> Iterator[tuple[str, Mapping]]:
    """Yield path and dict of every part of a config or another tree, outer ones first."""
    for value_path, value in walk_values(node, path):
        if isinstance(value, Mapping):
            yield value_path, value


def type_name(kind: object) -> str:
    """Return the name of a class or function, given itself or by its name in any scope."""
    return getattr(kind, '__name__', str(kind)).split('.')[-1]


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


def find_pipelines(dataset: object) -> list[Mapping]:
    """Return the parts of a dataset's config that have a pipeline, the innermost first."""
    parts = [part for _, part in walk(dataset) if part.get('pipeline')]
    return parts[::-1]


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
