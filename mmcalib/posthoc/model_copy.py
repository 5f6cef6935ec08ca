"""A copy of a model that shares nothing with it, or an error that names the part without a copy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook

from mmcalib.errors import UserError

IN_PLACE = 'give copy=False, which calibrates the given model itself'


def copy_model(model: nn.Module) -> nn.Module:
    """Return a copy of a model.

    Tensors with a history, such as features that it keeps or a weight that weight_norm computes,
    are copied without it, since ``deepcopy`` fails for them.

    Raises:
        UserError: If a part cannot be copied.
    """
    memo: dict[int, Any] = {}
    try:
        for module in model.modules():
            for tensor in tensors_in(vars(module)):
                if not tensor.is_leaf:
                    memo[id(tensor)] = tensor.detach().clone()
        return deepcopy(model, dict(memo))
    except Exception as error:  # A model holds objects of any kind, which may raise anything.
        part = part_without_copy(model, memo)
        raise UserError(
            f'the model cannot be copied, because of {part} ({type(error).__name__}: {error}): '
            f'take it out, or {IN_PLACE}'
        ) from error


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Yield the tensors of nested lists and dicts."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from tensors_in(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_in(item)


def part_without_copy(model: nn.Module, memo: Mapping[int, Any]) -> str:
    """Return the name of the attribute that cannot be copied."""
    for prefix, module in model.named_modules():
        for key, value in vars(module).items():
            if key == '_modules':  # They are looked at by themselves.
                continue
            try:
                deepcopy(value, dict(memo))
            except Exception:  # See copy_model.
                return f'{prefix}.{key}'.lstrip('.')
    return type(model).__name__


@contextmanager
def refused_calls(model: nn.Module, copied: nn.Module) -> Iterator[None]:
    """Refuse that a copy calls its original, whose weights and mode are others: a wrong number.

    Functions are not copied, such as a hook or a ``forward`` that refers to the original.

    Raises:
        UserError: Before a module of the original runs.
    """
    originals = set(model.modules()) - set(copied.modules())

    def refuse(module: nn.Module, inputs: Any) -> None:
        if module in originals:
            raise UserError(
                'a hook, a forward, unpack= or logits= calls the given model, so that its copy '
                f'would run that one: have it use the module that it is called with, or {IN_PLACE}'
            )

    with register_module_forward_pre_hook(refuse):
        yield
