"""Checks of options: integers, numbers, choices and shares."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import wraps
from inspect import signature
from numbers import Integral, Real
from typing import Any, TypeVar

from mmcalib.errors import UserError, did_you_mean, suggestion

Function = TypeVar('Function', bound=Callable)


def suggests_arguments(function: Function) -> Function:
    """Return a function that says of an unknown keyword which argument is meant."""
    names = signature(function).parameters

    @wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        for name in options:
            if name not in names:
                known = did_you_mean(name, names.keys() - {'self'})
                call_name = function.__qualname__.removesuffix('.__init__')
                raise TypeError(f'{call_name}() got an unexpected keyword argument {name!r}{known}')
        return function(*args, **options)

    return call


def check_integer(name: str, value: int, *, least: float = 1) -> int:
    """Return an option that is an integer of at least `least`.

    Raises:
        TypeError: If it is no integer; a boolean is none.
        ValueError: If it is below `least`.
    """
    requirement = 'an integer'
    if least > -float('inf'):
        requirement = f'an integer of at least {least}'
    message = f'{name} must be {requirement}, got {value!r}'
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(message)
    if value < least:
        raise UserError(message)
    return value


def check_ignore_index(value: int) -> int:
    """Return the label of ignored predictions, an integer such as 255 or -1."""
    return check_integer('ignore_index', value, least=-float('inf'))


def check_number(
    name: str, value: float, *, least: float = 0.0, most: float = float('inf')
) -> float:
    """Return an option that is a finite number from `least` to `most`.

    Raises:
        TypeError: If it is no number; a boolean or a text is none.
        ValueError: If it is out of range, infinite or NaN.
    """
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f'{name} must be a number, got {value!r}')
    if not (least <= value <= most and abs(value) < float('inf')):
        requirement = f'in [{least:g}, {most:g}]'
        if least == -float('inf'):
            requirement = 'a finite number'
        elif most == float('inf'):
            requirement = f'a finite number of at least {least:g}'
        raise UserError(f'{name} must be {requirement}, got {value!r}')
    return value


def check_choice(name: str, value: str, choices: Collection[str]) -> str:
    """Return an option that has a few possible values, or raise a ValueError that names them."""
    if value not in choices:
        hint = suggestion(str(value), choices)
        raise UserError(f'{name} must be one of {tuple(choices)}, got {value!r}{hint}')
    return value


def check_choices(name: str, values: str | Collection[str], choices: Collection[str]) -> tuple:
    """Return an option that is one or more of a few values, each once, as a tuple."""
    names = [values] if isinstance(values, str) else list(dict.fromkeys(values))
    if not names:
        raise UserError(f'{name} must be some of {tuple(choices)}, got none')
    return tuple(check_choice(name, value, choices) for value in names)


def check_share(name: str, value: float) -> float:
    """Return an option that is a number between 0 and 1, both excluded.

    Raises:
        TypeError: If it is no number.
        ValueError: If it is out of range; a percentage is named as the share that may be meant.
    """
    check_number(name, value, least=-float('inf'))
    if 0 < value < 1:
        return value
    remedy = f': give {value / 100:g}' if 1 < value < 100 else ''
    raise UserError(f'{name} must be a share between 0 and 1, got {value!r}{remedy}')
