"""A copy of a model that shares nothing with it, or an error that says what stands against one."""

from __future__ import annotations

import dis
from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from functools import partial
from types import CodeType, FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor, nn

from mmcalib.errors import UserError

IN_PLACE = 'give copy=False, which calibrates the given model itself'
# Where modules keep what is copied by itself: submodules, and leaf tensors.
REGISTERED = ('_modules', '_parameters')


def copy_model(model: nn.Module) -> nn.Module:
    """Return a copy of a model.

    Tensors with a history, such as features that it keeps or a weight that weight_norm computes,
    are copied without it.

    Raises:
        ValueError: If a part cannot be copied; or if a hook or ``forward`` refers to the given
            model, so that the copy would run and change that one: a wrong number.
    """
    check_no_function_refers_to(model)
    try:
        return deepcopy(model, detached_tensors(model))
    except Exception as error:  # A model holds objects of any kind, which may raise anything.
        part = part_without_copy(model)
        raise UserError(
            f'the model cannot be copied, because of {part} ({type(error).__name__}: {error}): '
            f'take it out, or {IN_PLACE}'
        ) from error


def detached_tensors(model: nn.Module) -> dict[int, Any]:
    """Return a memo for ``deepcopy``, which refuses tensors that are results of others."""
    memo: dict[int, Any] = {}
    for module in model.modules():
        for key, value in vars(module).items():
            if key in REGISTERED:
                continue
            for item in walk(value):
                if isinstance(item, Tensor) and not item.is_leaf:
                    memo[id(item)] = item.detach().clone()
    return memo


def part_without_copy(model: nn.Module) -> str:
    """Return the name of the attribute that cannot be copied."""
    memo = detached_tensors(model)
    for prefix, module in model.named_modules():
        for key, value in vars(module).items():
            if key in REGISTERED:
                continue
            try:
                deepcopy(value, dict(memo))
            except Exception:  # See copy_model.
                return f'{prefix}.{key}'.lstrip('.')
    return type(model).__name__


def check_no_function_refers_to(model: nn.Module) -> None:
    """Raise a ValueError if a function that a model keeps refers to the model or a part of it.

    Functions are not copied. Bound methods and ``functools.partial`` are, with what they refer to.
    """
    parts = {id(module) for module in model.modules()}
    parts |= {id(tensor) for tensor in model.parameters()}
    parts |= {id(tensor) for tensor in model.buffers()}
    seen: set[int] = set()
    for prefix, module in model.named_modules():
        forward = type(module).forward
        if isinstance(forward, FunctionType) and refers_to(forward, parts, seen):
            raise_refers(f'the class {type(module).__name__}')
        for key, value in vars(module).items():
            if key in REGISTERED:
                continue
            for item in walk(value):
                if isinstance(item, partial):
                    item = item.func
                if isinstance(item, FunctionType) and refers_to(item, parts, seen):
                    name = 'a hook' if 'hook' in key else key
                    raise_refers(f'{name} of {prefix or "the model"}')


def raise_refers(what: str) -> None:
    """Raise the error for a function that refers to the given model."""
    raise UserError(
        f'{what} refers to the given model, so that a copy would run or change it: have it use '
        f'the module that it is called with, or {IN_PLACE}'
    )


def refers_to(function: FunctionType, parts: set[int], seen: set[int]) -> bool:
    """Return whether a function refers to one of some objects, given by their ids.

    Args:
        function: The function.
        parts: The ids.
        seen: The ids of functions that were looked at, to which it is added.
    """
    if id(function) in seen:
        return False
    seen.add(id(function))
    for value in referred(function):
        for item in walk(value, depth=1):
            if isinstance(item, MethodType):
                item = item.__self__
            if isinstance(item, partial):
                item = item.func
            if id(item) in parts:
                return True
            if isinstance(item, FunctionType) and refers_to(item, parts, seen):
                return True
    return False


def referred(function: FunctionType) -> Iterator[Any]:
    """Yield the values that a function closes over, its defaults, and globals that it names.

    Of functions among the globals, those of the same file.
    """
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # The variable has no value yet.
            continue
    yield from function.__defaults__ or ()
    yield from (function.__kwdefaults__ or {}).values()
    for name in global_names(function.__code__):
        value = function.__globals__.get(name)
        foreign = isinstance(value, FunctionType) and value.__module__ != function.__module__
        if not foreign:
            yield value


def global_names(code: CodeType) -> set[str]:
    """Return the names of globals in code, and in functions inside of it."""
    instructions = dis.get_instructions(code)
    names = {str(each.argval) for each in instructions if each.opname == 'LOAD_GLOBAL'}
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names |= global_names(constant)
    return names


def walk(value: Any, depth: int = 3) -> Iterator[Any]:
    """Yield a value, and what it contains if it is a list or a dict, some storeys deep."""
    yield value
    items: Iterable[Any] = ()
    if isinstance(value, Mapping) and depth:
        items = list(value.values())
    elif isinstance(value, (list, tuple, set)) and depth and not isinstance(value, torch.Size):
        items = value
    for item in items:
        yield from walk(item, depth - 1)
