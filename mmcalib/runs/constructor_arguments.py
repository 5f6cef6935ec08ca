"""The classes that the parts of a config are built of, and their options."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from io import StringIO

from mmengine.registry import Registry


def constructor_parameters(kind: Callable) -> tuple[dict[str, inspect.Parameter], bool]:
    """Return the parameters of a class, with those of its base classes that it passes on.

    The second value says whether it takes any other name too.
    """
    if '__signature__' in vars(kind):  # a loss has the options of its formula
        return dict(inspect.signature(kind).parameters), False
    parameters = {}
    steps = [a.__init__ for a in kind.__mro__[:-1]] if inspect.isclass(kind) else [kind]
    for step in steps:
        own = inspect.signature(step).parameters
        for name, parameter in own.items():
            if name != 'self' and parameter.kind not in (
                parameter.VAR_KEYWORD,
                parameter.VAR_POSITIONAL,
            ):
                parameters.setdefault(name, parameter)
        if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in own.values()):
            return parameters, False
    return parameters, True


def find_kind(node: Mapping, registry: Registry, scope: str | None) -> Callable | None:
    """Return the class that a registry has for a dict with a type, None if it has none."""
    kind = node.get('type')
    if not isinstance(kind, str):
        return kind
    scope = node.get('_scope_', scope)
    with quiet_imports(), registry.switch_scope_and_registry(scope) as found:
        try:
            return found.get(kind)
        except RuntimeError:
            return None


def known_types(root: Registry) -> set[str]:
    """Return the names in a root registry and in those of the toolboxes that are loaded."""
    return set(root.module_dict).union(*(child.module_dict for child in root.children.values()))


@contextmanager
def quiet_imports() -> Iterator[None]:
    """Silence the lines about optional operators and packages that importing a toolbox prints."""
    with warnings.catch_warnings(), redirect_stdout(StringIO()):
        warnings.filterwarnings('ignore', message='Fail to import')
        yield
