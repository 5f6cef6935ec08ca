"""Folding a scaling into the layer of a model that predicts, and proving by running that it fits.

No table of heads: the layer is the one whose weights and bias, halved, halve the logits.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from mmcalib.posthoc.logit_scaler import LogitScaler
from mmcalib.posthoc.model_logits import predictor

# By how much folded logits may differ from scaled ones, relative to the largest if that is above 1.
TOLERANCE = 1e-4
LINEAR = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


class NotFoldableError(ValueError):
    """No layer of a model can absorb a scaling; the message says why."""


def find_predicting_layers(
    model: nn.Module, batch: Any, *, mixes_classes: bool = False
) -> list[str]:
    """Return the names of the layers to scale so that the logits scale: nearly always one.

    Layers that ran and have an output per class are tried from the last to run to the first, and
    then all of those in the head together, for heads that average two.

    Args:
        model: See :func:`~mmcalib.posthoc.model_logits.predictor`.
        batch: To run it on.
        mixes_classes: Whether a matrix is to be folded, which grouped convolutions cannot take.

    Raises:
        NotFoldableError: If there is none, saying why.
        ValueError: If logits are NaN or infinite.
    """
    ran: dict[str, nn.Module] = {}

    def note(name: str):
        def hook(module: nn.Module, inputs: tuple, output: Any) -> None:
            ran.pop(name, None)
            ran[name] = module

        return hook

    handles = [
        module.register_forward_hook(note(name))
        for name, module in model.named_modules()
        if isinstance(module, LINEAR)
    ]
    try:
        with predictor(model) as predict:
            images = predict(batch)
    finally:
        for handle in handles:
            handle.remove()
    for image in images:
        if not image.logits.isfinite().all():
            raise ValueError(
                f'logits of {image.name} are NaN or infinite: the model has diverged, or its input '
                'is broken'
            )
    logits = [image.logits for image in images]
    num_classes = len(logits[0])
    candidates = [
        name
        for name, module in reversed(ran.items())
        if module.weight.shape[0] == num_classes
        and not (mixes_classes and getattr(module, 'groups', 1) > 1)
    ]
    in_head = [name for name in candidates if 'head' in name.split('.')[0]]
    trials = [[name] for name in candidates] + ([in_head] if len(in_head) > 1 else [])
    effects = []
    for names in trials:
        state = dict(model.named_parameters())
        halved = {key: state[key] / 2 for key in _keys(model, names) if key in state}
        if len(halved) < len(_keys(model, names)):
            effects.append(f'{_list(names)} computes its weight from other parameters')
            continue
        with swapped_parameters(model, halved), predictor(model) as predict:
            found = [image.logits for image in predict(batch)]
        if largest_difference([z / 2 for z in logits], found) <= TOLERANCE:
            return names
        unchanged = all(torch.equal(a, b) for a, b in zip(logits, found, strict=True))
        effects.append(
            f'{_list(names)} ({type(ran[names[0]]).__name__}) '
            + (
                'has no effect, so its output is normalised or it does not predict'
                if unchanged
                else 'does not halve the logits, so they are changed afterwards'
            )
        )
    tried = '; halving '.join(effects) if effects else ''
    raise NotFoldableError(
        f'{type(model).__name__} has no linear layer that a scaling can be folded into'
        + (f': halving {tried}' if tried else f', since none with {num_classes} outputs ran')
    )


def keys_in_checkpoint(
    state: Mapping[str, Tensor], model: nn.Module, names: Sequence[str]
) -> dict[str, str]:
    """Return the checkpoint's key of each parameter of the layers.

    Raises:
        ValueError: If it has none, or another value than the model that was loaded from it.
    """
    keys = {}
    for name in names:
        for kind, value in model.get_submodule(name).named_parameters():
            own = f'{name}.{kind}'
            key = next((key for key in (own, f'module.{own}') if key in state), None)
            if key is None or not torch.equal(state[key].to(value), value.detach()):
                what = 'does not hold' if key is None else 'is loaded with another value of'
                raise ValueError(
                    f'the checkpoint {what} {own}, the layer that predicts: is it a checkpoint of '
                    'this config?'
                )
            keys[own] = key
    return keys


def check_bias(model: nn.Module, names: Sequence[str]) -> None:
    """Raise a NotFoldableError if a layer has no bias, which shifts of the classes go into."""
    for name in names:
        if model.get_submodule(name).bias is None:
            raise NotFoldableError(f'{name} has no bias to absorb the shift of the classes')


def fold_layers(model: nn.Module, names: Sequence[str], scaler: LogitScaler) -> dict[str, Tensor]:
    """Return the new tensors of layers, float64 on the CPU, by their keys in the state dict."""
    folded = {}
    for name in names:
        layer = model.get_submodule(name)
        bias = None if layer.bias is None else layer.bias.detach().cpu()
        weight, bias = scaler.fold(layer.weight.detach().cpu(), bias)
        folded[f'{name}.weight'] = weight
        if bias is not None:
            folded[f'{name}.bias'] = bias
    return folded


@contextmanager
def swapped_parameters(model: nn.Module, tensors: Mapping[str, Tensor]) -> Iterator[None]:
    """Run a model with other values of some parameters, and then its own again."""
    parameters = dict(model.named_parameters())
    kept = {key: parameters[key].data for key in tensors}
    try:
        for key, value in tensors.items():
            parameters[key].data = value.to(kept[key])
        yield
    finally:
        for key, value in kept.items():
            parameters[key].data = value


def largest_difference(expected: Iterable[Tensor], found: Iterable[Tensor]) -> float:
    """Return the largest difference of logits, relative to the largest expected one if above 1."""
    largest = 0.0
    for a, b in zip(expected, found, strict=True):
        if not (a - b).isfinite().all():
            return float('inf')
        scale = max(1.0, a.abs().max().item())
        largest = max(largest, (a - b).abs().max().item() / scale)
    return largest


def _keys(model: nn.Module, names: Sequence[str]) -> list[str]:
    keys = []
    for name in names:
        keys.append(f'{name}.weight')
        if model.get_submodule(name).bias is not None:
            keys.append(f'{name}.bias')
    return keys


def _list(names: Sequence[str]) -> str:
    return ' and '.join(names)
