"""The losses in a model's config: their places, names and parameters."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping

from mmengine.registry import MODELS

from mmcalib.checks import suggestion
from mmcalib.losses import CalibrationLoss
from mmcalib.runs.constructor_arguments import constructor_parameters, find_kind, known_types

# Said of every loss that has them, also where the config leaves them at their defaults.
NAMED_PARAMETERS = ('margin', 'alpha', 'gamma', 'avg_non_ignore')
KNOWN_PACKAGES = ('mmcalib', 'mmengine', 'mmpretrain', 'mmseg')
# They change no figure.
UNIMPORTANT = ('loss_name', 'compile', 'num_classes')


def loss_configs(node: object, key: str = 'model') -> Iterator[tuple[str, Mapping]]:
    """Yield the dotted key and the config of every loss in a model's config.

    mmpretrain's heads have a ``loss``, mmseg's a ``loss_decode``, either of which may be a list.
    """
    if isinstance(node, Mapping):
        for name, item in node.items():
            if _holds_losses(name, item):
                for index, loss in enumerate(item if not isinstance(item, Mapping) else [item]):
                    suffix = '' if isinstance(item, Mapping) else f'.{index}'
                    if isinstance(loss, Mapping) and 'type' in loss:
                        yield f'{key}.{name}{suffix}', loss
            else:
                yield from loss_configs(item, f'{key}.{name}')
    elif isinstance(node, (list, tuple)):
        for index, item in enumerate(node):
            yield from loss_configs(item, f'{key}.{index}')


def loss_and_term_configs(node: object, key: str = 'model') -> Iterator[tuple[str, Mapping]]:
    """Yield :func:`loss_configs`, and after a ``CombinedLoss`` its terms."""
    for name, loss in loss_configs(node, key):
        yield name, loss
        yield from loss_and_term_configs(loss, name)


def without_losses(node: object) -> object:
    """Return a model's config without the losses that :func:`loss_configs` finds in it."""
    if isinstance(node, Mapping):
        return {
            name: without_losses(item)
            for name, item in node.items()
            if not _holds_losses(name, item)
        }
    if isinstance(node, (list, tuple)):
        return [without_losses(item) for item in node]
    return node


def _holds_losses(name: object, item: object) -> bool:
    return str(name).startswith('loss') and isinstance(item, (Mapping, list, tuple))


def main_loss(cfg: Mapping) -> dict | None:
    """Return type and parameters of the loss of a model's head, None if it has none."""
    key = main_loss_key(cfg)
    if key is None:
        return None
    return describe_loss(dict(loss_configs(cfg.get('model')))[key], cfg.get('default_scope'))


def main_loss_key(cfg: Mapping) -> str | None:
    """Return the dotted key of the first loss that is no auxiliary head's, None without one."""
    keys = (key for key, _ in loss_configs(cfg.get('model')))
    return next((key for key in keys if 'auxiliary' not in key), None)


def describe_loss(loss: Mapping, scope: str | None) -> dict:
    """Return type and parameters of a loss by its config.

    Parameters at their defaults are left out, but for :data:`NAMED_PARAMETERS`, and for those of a
    class outside of mmcalib and the toolboxes that our losses do not all have.
    """
    try:
        parameters = loss_parameters(loss, scope)
    except ValueError:  # a checkpoint's own loss need not be known here
        parameters = {}
    defaults = {
        name: parameter.default
        for name, parameter in parameters.items()
        if parameter.default is not inspect.Parameter.empty
    }
    said = {*NAMED_PARAMETERS} | _own_parameters(loss, defaults, scope)
    named = {name: default for name, default in defaults.items() if name in said}
    given = {
        name: value
        for name, value in loss.items()
        if name not in UNIMPORTANT and (name not in defaults or value != defaults[name])
    }
    options = {
        name: float(value) if isinstance(value, int) and not isinstance(value, bool) else value
        for name, value in {**named, **given}.items()
    }
    return {**options, 'type': type_name(loss['type'])}


def _own_parameters(loss: Mapping, defaults: Mapping, scope: str | None) -> set[str]:
    """Return the parameters to say of a class that nobody but its author knows."""
    kind = find_kind(loss, MODELS, scope)
    if kind is None or kind.__module__.split('.')[0] in KNOWN_PACKAGES:
        return set()
    common = constructor_parameters(CalibrationLoss)[0]
    return {
        name
        for name, default in defaults.items()
        if name not in common and isinstance(default, (bool, int, float, str))
    }


def type_name(kind: object) -> str:
    """Return the name of a class or function, given itself or by its name in any scope."""
    if inspect.isclass(kind) or inspect.isroutine(kind):
        return kind.__name__
    return str(kind).split('.')[-1]


def loss_parameters(loss: Mapping, scope: str | None) -> dict[str, inspect.Parameter]:
    """Return the constructor parameters of a loss by its config, those of its base class included.

    Raises:
        ValueError: If no registry knows its type.
    """
    kind = find_kind(loss, MODELS, scope)
    if kind is None:
        near = suggestion(type_name(loss['type']), known_types(MODELS))
        raise ValueError(f'no loss is registered as {loss["type"]!r}{near}')
    return constructor_parameters(kind)[0]
