"""A copy of a model that shares nothing with it, or an error that names the part without a copy."""

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
# These attributes of modules have submodules and leaf tensors, which are looked at by themselves.
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
    """Return a memo for ``deepcopy``, which fails for tensors that are computed from others."""
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
        forward = getattr(type(module), 'forward', None)  # A scripted module has none.
        if isinstance(forward, FunctionType) and refers_to(forward, parts, seen):
            raise_refers(f'the class {type(module).__name__}')
        for key, value in vars(module).items():
            if key in REGISTERED:
                continue
            for item in walk(value):
                function = item.func if isinstance(item, partial) else item
                if isinstance(function, FunctionType) and refers_to(function, parts, seen):
                    name = 'a hook' if 'hook' in key else key
                    raise_refers(f'{name} of {prefix or "the model"}')


def raise_refers(function: str) -> None:
    """Raise the error for a function, described in words, that refers to the given model."""
    raise UserError(
        f'{function} refers to the given model, so that a copy would run or change it: have it use '
        f'the module that it is called with, or {IN_PLACE}'
    )


def refers_to(function: FunctionType, parts: set[int], seen: set[int]) -> bool:
    """Return whether a function refers to a part of a model, itself or by another function.

    Args:
        function: The function.
        parts: The ids of the parts.
        seen: The ids of the functions that were looked at; this function is added to them.
    """
    if id(function) in seen:
        return False
    seen.add(id(function))
    for value in referred_values(function):
        for item in walk(value, depth=1):
            target = item.__self__ if isinstance(item, MethodType) else item
            if isinstance(target, partial):
                target = target.func
            if id(target) in parts:
                return True
            if isinstance(target, FunctionType) and refers_to(target, parts, seen):
                return True
    return False


def referred_values(function: FunctionType) -> Iterator[Any]:
    """Yield the values that a function closes over, its defaults, and globals that it names.

    A global function is yielded if it is of the same file.
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
        is_foreign = isinstance(value, FunctionType) and value.__module__ != function.__module__
        if not is_foreign:
            yield value


def global_names(code: CodeType) -> set[str]:
    """Return the names of globals in code, and in functions inside of it."""
    names = set()
    for instruction in dis.get_instructions(code):
        if instruction.opname == 'LOAD_GLOBAL':
            names.add(str(instruction.argval))
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names |= global_names(constant)
    return names


def walk(value: Any, depth: int = 3) -> Iterator[Any]:
    """Yield a value, and the values in it if it is a list or a dict, a few levels deep."""
    yield value
    if depth == 0:
        return
    items: Iterable[Any] = ()
    if isinstance(value, Mapping):
        items = list(value.values())
    elif isinstance(value, (list, tuple, set)) and not isinstance(value, torch.Size):
        items = value
    for item in items:
        yield from walk(item, depth - 1)
