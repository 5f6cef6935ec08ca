"""The layer of a model that predicts, into which a scaling is folded.

It needs no list of head types: the layer is the one whose weights and bias, halved, halve the
logits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook

from mmcalib.calibration.held_out import HeldOut
from mmcalib.calibration.prove import (
    TOLERANCE,
    OriginalLogits,
    Placement,
    compute_on_all_processes,
    largest_difference,
    probability_difference,
    prove,
)
from mmcalib.calibration.source import Source
from mmcalib.errors import UserError
from mmcalib.posthoc.per_label import Scaler, ScalerPerLabel

TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
LINEAR = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, *TRANSPOSED)


def find_place(
    model: nn.Module,
    scaler: Scaler | None,
    data: HeldOut,
    source: Source,
    given_model: nn.Module | None = None,
) -> Placement | None:
    """Return where a scaling goes in a model, which stays as it is; the same on all processes.

    Args:
        model: The model.
        scaler: The fitted scaler; None for no scaling, which has no place.
        data: The predictions that it was fitted to.
        source: The source of these, with batches to prove it on.
        given_model: The model that it is a copy of; None if it is no copy.

    Raises:
        UserError: As :func:`place`, on all processes if it is raised on one.
    """
    if scaler is None:
        return None
    original = OriginalLogits(model, source.kept, source.run)
    find = partial(place, original, scaler, given_model)
    placement = common_placement(compute_on_all_processes(find, source.gather))
    source.kept = original.batches
    num_proven = sum(source.gather(sum(len(kept.images) for kept in original.batches)))
    # A sampler may repeat images to fill up the share of a process.
    placement.num_images = min(num_proven, data.draw.num_images)
    return placement


def common_placement(placements: Sequence[Placement]) -> Placement:
    """Return the placement that all processes can take, of those that each has found."""
    for placement in placements:
        if placement.reason is not None:
            return placement
    layers = sorted({name for placement in placements for name in placement.layers})
    if len(layers) > len(placements[0].layers):
        return Placement(reason=f'{layer_text(layers)} each predict some of the images')
    return placements[0]


def place(
    original: OriginalLogits, scaler: Scaler, given_model: nn.Module | None = None
) -> Placement:
    """Return where a fitted scaling goes in a model, which stays as it is.

    A fold is tried on all batches. A scaling that does not pass is attached.

    Args:
        original: The model to scale, with batches of the pass that the scaler was fitted to.
        scaler: A fitted scaler.
        given_model: The model that it is a copy of; None if it is no copy.

    Raises:
        UserError: If the model predicts otherwise than in the pass; as :func:`layers_for`.
    """
    model = original.model
    original.check()
    layers, reason = layers_for(original, scaler)
    if reason is not None:
        return Placement(reason=reason)
    tensors = fold_layers(model, layers, scaler)

    def run_folded(batch: Any) -> list[Tensor]:
        with swapped_parameters(model, tensors):
            return original.run(model, batch)

    try:
        difference = prove(original, run_folded, scaler)
    except UserError as error:  # Known causes are weights in half precision, and capped logits.
        dtype = model.get_parameter(next(iter(tensors))).dtype
        if torch.finfo(dtype).bits < 32:
            reason = f'{dtype} rounds the scaled weights of {layer_text(layers)} by too much'
            return Placement(reason=reason)
        return Placement(reason=str(error))
    if given_model is not None and reads_weights(original, given_model, tensors, scaler):
        reason = (
            f'its code, such as a hook, reads weights of the given model, of {layer_text(layers)}, '
            'which a fold would change in the copy alone'
        )
        return Placement(reason=reason)
    return Placement(layers, tensors, None, difference)


def reads_weights(
    original: OriginalLogits,
    given_model: nn.Module,
    tensors: Mapping[str, Tensor],
    scaler: Scaler,
) -> bool:
    """Return whether a folded copy predicts otherwise while the given model is folded as well.

    Functions are not copied, such as a hook that reads weights. In a model that is loaded with the
    copy's weights, such a hook reads the folded ones.
    """
    model = original.model

    def run_folded(batch: Any) -> list[Tensor]:
        with swapped_parameters(model, tensors), swapped_parameters(given_model, tensors):
            return original.run(model, batch)

    for kept in original.batches:
        if kept.is_cut:  # The proof alone runs on single images, which take long.
            continue
        if not probability_difference(original, kept, run_folded, scaler) <= TOLERANCE:
            return True
    return False


def layers_for(original: OriginalLogits, scaler: Scaler) -> tuple[list[str], str | None]:
    """Return the layers that can absorb a scaling, nearly always one, or none and why.

    Layers that ran on the first batch and have an output per class are tried from the last to run
    to the first, and then those that change the logits together, for models that add several.

    Args:
        original: The model to scale, with batches to run it on.
        scaler: The method, fitted or not.

    Raises:
        UserError: If the method is not for such a head, or logits are NaN or infinite.
    """
    if not scaler.affine:
        scaler.check_head(original.logits_on(original.batches[0])[0][None])
        return [], f'{scaler.method} scaling is not one that layers absorb'
    logits, last_call = run_noting_calls(original)
    # Shifts take a bias, and classes that all see the same features.
    per_class = scaler.per_class
    sigmoids = isinstance(scaler, ScalerPerLabel)
    names, computed_names = candidate_layers(
        original.model, last_call, len(logits), per_class=per_class, sigmoids=sigmoids
    )
    # For a method with shifts, the trial shifts the biases too: the sum of two layers would shift
    # twice, and fails.
    shift = torch.zeros(len(logits), device=logits.device)
    if per_class:
        shift = torch.arange(1, len(logits) + 1, device=logits.device) / 10
    changing_names: list[str] = []
    for name in names:
        halves, changes = try_halving(original, [name], shift, sigmoids=sigmoids)
        if halves:
            return [name], None
        if changes:
            changing_names.append(name)
    trials = []
    if len(changing_names) > 1:
        trials.append(changing_names)
    if len(changing_names) > 2:  # A layer before those that are added may have K outputs too.
        trials.append(changing_names[:2])
    for layers in trials:
        halves, _ = try_halving(original, layers, shift, sigmoids=sigmoids)
        if halves:
            return layers, None
    kind = 'linear layer with a bias' if per_class else 'linear layer'
    reason = f'{type(original.model).__name__} has no {kind} that a scaling can be folded into'
    if names:
        dtype = next(original.model.parameters()).dtype
        reason += f': halving the weights of {trials_text(names, trials)} does not halve its logits'
        if dtype == torch.float32:
            reason += ', to which something else adds, or which a function bounds'
        else:
            reason += f' in {dtype}'
    elif computed_names:
        reason += (
            f': the weight of {layer_text(computed_names)} is shared, quantized, or computed from '
            'others, as weight_norm and prune do'
        )
    return [], reason


def trials_text(names: Sequence[str], together: Sequence[Sequence[str]]) -> str:
    """Return the layers that were tried, each alone and some together, for an error."""
    text = layer_text(names)
    if names in together:
        return f'{text}, alone or together,'
    if together:
        return f'{text}, alone, or {layer_text(together[0])} together,'
    return f'{text}, each alone,' if len(names) > 1 else text


def run_noting_calls(original: OriginalLogits) -> tuple[Tensor, dict[nn.Module, int]]:
    """Return the logits of the first image, and the number of the last call of each module."""
    called: list[nn.Module] = []
    with register_module_forward_hook(lambda module, *_: called.append(module)):
        logits = original.run(original.model, original.batches[0].batch)[0]
    return logits, {module: call for call, module in enumerate(called)}


def candidate_layers(
    model: nn.Module,
    last_call: Mapping[nn.Module, int],
    num_logits: int,
    *,
    per_class: bool,
    sigmoids: bool,
) -> tuple[list[str], list[str]]:
    """Return the names of layers with an output per class, the last one to run first.

    Layers whose weight cannot be changed, since it is no parameter of their own or of a quantized
    type, come in a list of their own.
    """
    parameters = dict(model.named_parameters())
    candidates: list[tuple[int, str]] = []
    computed_names: list[str] = []
    for name, layer in model.named_modules():
        if layer not in last_call or not isinstance(layer, LINEAR):
            continue
        if num_outputs(layer) != num_logits or not can_scale(layer, per_class, sigmoids):
            continue
        weights = [parameters.get(key) for key in parameter_keys(name, layer).values()]
        # The tensors of a library that quantizes weights are of a subclass, without division.
        if all(weight is not None and type(weight.data) is Tensor for weight in weights):
            candidates.append((last_call[layer], name))
        else:
            computed_names.append(name)
    return [name for _, name in sorted(candidates, reverse=True)], computed_names


def try_halving(
    original: OriginalLogits, layers: Sequence[str], shift: Tensor, *, sigmoids: bool
) -> tuple[bool, bool]:
    """Halve layers and shift their biases; return whether that does the same to the logits.

    The second value is whether it changes the logits at all. The trial ends with the first batch
    whose logits are not halved.

    Args:
        original: The model, with batches to run it on.
        layers: The names of the layers.
        shift: The shift of each class, ``(K,)``.
        sigmoids: Whether each logit is before a sigmoid of its own.
    """
    model = original.model
    parameters = dict(model.named_parameters())
    halved = {}
    for name in layers:
        for kind, key in parameter_keys(name, model.get_submodule(name)).items():
            halved[key] = parameters[key] / 2
            if kind == 'bias':
                halved[key] = halved[key] + shift.to(halved[key].device)
    for kept in original.batches:
        if kept.is_cut:  # The proof alone runs on single images, which take long.
            continue
        expected = [comparable(values / 2, shift, sigmoids) for values in original.logits_on(kept)]
        with swapped_parameters(model, halved):
            logits = original.run(model, kept.batch)
        actual = [comparable(values, 0.0, sigmoids) for values in logits]
        if not largest_difference(expected, actual) <= TOLERANCE:
            unchanged = [comparable(values, 0.0, sigmoids) for values in original.logits_on(kept)]
            return False, not largest_difference(unchanged, actual) <= TOLERANCE
    return True, True


def comparable(logits: Tensor, shift: Tensor | float, sigmoids: bool) -> Tensor:
    """Return logits ``(K, *)`` and a shift ``(K,)`` without what a softmax ignores."""
    shifted = (logits.movedim(0, -1) + shift).movedim(-1, 0)
    if sigmoids or len(logits) == 1:
        return shifted
    return shifted.log_softmax(dim=0)


def num_outputs(layer: nn.Module) -> int:
    """Return the number of output features of a linear layer or a convolution."""
    return layer.out_channels if isinstance(layer, TRANSPOSED) else len(layer.weight)


def layer_text(names: Sequence[str]) -> str:
    """Return ``layer 'fc'``, or ``layers '0' and '2'``; a model that is itself a layer is named."""
    if not all(names):
        return 'the model'
    text = ' and '.join(repr(name) for name in names)
    return f'layer {text}' if len(names) == 1 else f'layers {text}'


def can_scale(layer: nn.Module, per_class: bool, sigmoids: bool) -> bool:
    """Return whether a layer can scale or shift classes as a method does."""
    is_grouped = getattr(layer, 'groups', 1) > 1
    if per_class:
        return layer.bias is not None and not is_grouped
    # The weights of a grouped transposed convolution are not in the order of its outputs.
    return not (sigmoids and is_grouped and isinstance(layer, TRANSPOSED))


def parameter_keys(name: str, layer: nn.Module) -> dict[str, str]:
    """Return the keys of the weight and the bias of a layer; a model may itself be the layer."""
    kinds = ['weight'] if layer.bias is None else ['weight', 'bias']
    return {kind: f'{name}.{kind}'.lstrip('.') for kind in kinds}


def fold_layers(model: nn.Module, names: Sequence[str], scaler: Scaler) -> dict[str, Tensor]:
    """Return the new tensors of layers, float64 on the CPU, by their keys in the state dict."""
    folded = {}
    for name in names:
        layer = model.get_submodule(name)
        weight = layer.weight.detach().cpu()
        bias = None if layer.bias is None else layer.bias.detach().cpu()
        if isinstance(layer, TRANSPOSED):  # Its first axis is that of the inputs.
            weight, bias = scaler.fold(weight.transpose(0, 1), bias)
            weight = weight.transpose(0, 1)
        else:
            weight, bias = scaler.fold(weight, bias)
        keys = parameter_keys(name, layer)
        folded[keys['weight']] = weight.contiguous()  # Safetensors needs it.
        if bias is not None:
            folded[keys['bias']] = bias
    return folded


@contextmanager
def swapped_parameters(model: nn.Module, tensors: Mapping[str, Tensor]) -> Iterator[None]:
    """Give some parameters of a model other values for a while."""
    parameters = dict(model.named_parameters())
    original = {key: parameters[key].data for key in tensors}
    try:
        for key, value in tensors.items():
            parameters[key].data = value.to(original[key])
        yield
    finally:
        for key, value in original.items():
            parameters[key].data = value
