"""Folding a scaling into the layer of a model that predicts, and proving by running that it fits.

It needs no list of head types: the layer is the one whose weights and bias, halved, halve the
logits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook

from mmcalib.errors import UserError
from mmcalib.posthoc.logits import MASKED
from mmcalib.posthoc.per_label import Scaler
from mmcalib.predictions.kept_batches import KeptBatch, some_values

# Predictions of a calibrated model may differ by this much, relative to the largest if above 1.
TOLERANCE = 1e-4
# A function that runs a model on a batch, and returns the logits (K, *) of its images.
Run = Callable[[nn.Module, Any], list[Tensor]]
# A function that returns a list of the values of all processes.
Gather = Callable[[Any], list]
TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
LINEAR = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, *TRANSPOSED)
# Logits of kept batches that are remembered: 80 MB. Beyond, the model runs again.
NUM_REMEMBERED = 20_000_000


class NotFoldableError(UserError):
    """No layer of a model can absorb a scaling; the message says why."""


@dataclass
class Placement:
    """Where a scaling goes.

    Attributes:
        layers: The names of the layers that absorb it; none if it is attached.
        tensors: Their new weights by the keys of the state dict, float64 on the CPU.
        reason: The reason why it is attached; None if it is folded.
        difference: The largest difference of a probability of the calibrated model from the scaled
            one, on the kept batches and images.
        num_images: The number of the images that it was proven on, by all processes.
    """

    layers: list[str] = field(default_factory=list)
    tensors: dict[str, Tensor] = field(default_factory=dict)
    reason: str | None = None
    difference: float = 0.0
    num_images: int = 0


class OriginalLogits:
    """The logits of a model on kept batches, which must be those of the pass that was fitted to.

    Those of the first batches are remembered, as long as they are few.

    Args:
        model: The model as it was given.
        batches: A few batches of the pass, and single images.
        run: A function that returns the logits of a model on a batch, see :data:`Run`.
    """

    def __init__(self, model: nn.Module, batches: Iterable[KeptBatch], run: Run) -> None:
        self.model = model
        self.batches = list(batches)
        self.run = run
        self._remembered: dict[KeptBatch, list[Tensor]] = {}
        self._num_free = NUM_REMEMBERED

    def logits_on(self, kept: KeptBatch) -> list[Tensor]:
        """Return the logits ``(K, *)`` of the images of a batch.

        Raises:
            UserError: If they are not those of the pass.
        """
        if kept in self._remembered:
            return self._remembered[kept]
        logits = self.run(self.model, kept.batch)
        self._check_same(kept, logits)
        size = sum(values.numel() for values in logits)
        if size <= self._num_free:
            self._num_free -= size
            self._remembered[kept] = logits
        return logits

    def check(self) -> None:
        """Leave out single images that the model predicts otherwise than in their batch.

        Raises:
            UserError: If it predicts a whole batch otherwise than in the pass: a wrong number.
        """
        repeated = []
        for kept in self.batches:
            try:
                self.logits_on(kept)
            except Exception:  # A model that takes no single image may fail in any way.
                if not kept.is_cut:
                    raise
            else:
                repeated.append(kept)
        self.batches = repeated

    @property
    def num_images(self) -> int:
        """The number of images of the batches."""
        return sum(len(kept.images) for kept in self.batches)

    def _check_same(self, kept: KeptBatch, logits: Sequence[Tensor]) -> None:
        if kept.values is None:
            return
        parameter = next(self.model.parameters(), kept.values)
        # In half precision, a GPU may choose another algorithm the second time.
        tolerance = max(TOLERANCE, 4 * torch.finfo(parameter.dtype).eps)
        difference = largest_difference([kept.values], [some_values(logits)])
        if not difference <= tolerance:  # This refuses NaN too.
            raise UserError(
                f'the model predicts otherwise when it runs on a batch again (by {difference:.1e}),'
                ' so no figure holds: take out what changes from call to call, such as a counter'
                " or NumPy's random numbers"
            )


def place(original: OriginalLogits, scaler: Scaler, *, sigmoids: bool = False) -> Placement:
    """Return where a fitted scaling goes in a model, which stays as it is.

    A fold is tried on all batches. A scaling that does not pass is attached.

    Args:
        original: The model to scale, with batches of the pass that the scaler was fitted to.
        scaler: A fitted scaler.
        sigmoids: Whether each logit is before a sigmoid of its own.

    Raises:
        UserError: If the model predicts otherwise than in the pass; as :func:`layers_for`.
    """
    model = original.model
    original.check()
    layers, reason = layers_for(original, scaler, sigmoids=sigmoids)
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
    return Placement(layers, tensors, None, difference)


def place_on_all_processes(compute: Callable[[], Placement], gather: Gather) -> Placement:
    """Return the one placement that all processes can take.

    Args:
        compute: A function that returns the placement by the batches of this process.
        gather: A function that returns a list of the values of all processes.

    Raises:
        UserError: On all processes if it is raised on one.
    """
    placements = compute_on_all_processes(compute, gather)
    for placement in placements:
        if placement.reason is not None:
            return placement
    layers = sorted({name for placement in placements for name in placement.layers})
    if len(layers) > len(placements[0].layers):
        return Placement(reason=f'{layer_text(layers)} each predict some of the images')
    return placements[0]


def compute_on_all_processes(compute: Callable[[], Any], gather: Gather) -> list:
    """Return what each process computes.

    An error of one process is raised on all: hours are lost where the others wait for it.
    """
    result = None
    problem = None
    try:
        result = compute()
    except UserError as error:
        problem = str(error)
    results = []
    for other_result, other_problem in gather((result, problem)):
        if other_problem is not None:
            raise UserError(other_problem)
        results.append(other_result)
    return results


def layers_for(
    original: OriginalLogits, scaler: Scaler, *, sigmoids: bool = False
) -> tuple[list[str], str | None]:
    """Return the layers that can absorb a scaling, or none and why, as found by running the model.

    Args:
        original: The model to scale, with batches to run it on.
        scaler: The method, fitted or not.
        sigmoids: Whether each logit is before a sigmoid of its own.

    Raises:
        UserError: If the method is not for such a head, or logits are NaN or infinite.
    """
    if not scaler.affine:
        scaler.check_head(original.logits_on(original.batches[0])[0][None])
        return [], f'{scaler.method} scaling is not one that layers absorb'
    try:
        layers = find_predicting_layers(original, per_class=scaler.per_class, sigmoids=sigmoids)
    except NotFoldableError as error:
        return [], str(error)
    return layers, None


def find_predicting_layers(
    original: OriginalLogits, *, per_class: bool = False, sigmoids: bool = False
) -> list[str]:
    """Return the names of the layers to scale so that the logits scale: nearly always one.

    Layers that ran on the first batch and have an output per class are tried from the last to run
    to the first, and then those that change the logits together, for models that add several.

    Args:
        original: The model to scale, with batches to run it on.
        per_class: Whether classes are to be scaled and shifted, which takes a bias, and which
            grouped convolutions cannot.
        sigmoids: Whether each logit is before a sigmoid of its own.

    Raises:
        NotFoldableError: If there is none that scales the logits of all batches.
    """
    model = original.model
    logits, last_call = run_noting_calls(original)
    names, computed_names = candidate_layers(
        model, last_call, len(logits), per_class=per_class, sigmoids=sigmoids
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
            return [name]
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
            return layers
    kind = 'linear layer with a bias' if per_class else 'linear layer'
    reason = ''
    if names:
        tried = layer_text(names)
        if names in trials:
            tried += ', alone or together,'
        elif trials:
            tried += f', alone, or {layer_text(changing_names)} together,'
        elif len(names) > 1:
            tried += ', each alone,'
        reason = f': halving {tried} does not halve the logits of each batch'
        dtype = next(model.parameters()).dtype
        if dtype != torch.float32:
            reason += f' in {dtype}'
    elif computed_names:
        reason = (
            f': the weight of {layer_text(computed_names)} is shared, quantized, or computed from '
            'others, as weight_norm and prune do'
        )
    raise NotFoldableError(
        f'{type(model).__name__} has no {kind} that a scaling can be folded into{reason}'
    )


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
        weights = [parameters.get(key) for key in parameter_keys(name, layer)]
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
        for key in parameter_keys(name, model.get_submodule(name)):
            halved[key] = parameters[key] / 2
            if key.rpartition('.')[2] == 'bias':
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


def parameter_keys(name: str, layer: nn.Module) -> set[str]:
    """Return the keys of the weight and the bias of a layer; a model may itself be the layer."""
    keys = ['weight'] if layer.bias is None else ['weight', 'bias']
    return {f'{name}.{key}'.lstrip('.') for key in keys}


def prove(
    original: OriginalLogits,
    run_calibrated: Callable[[Any], list[Tensor]],
    scaler: Scaler,
    ending: str = '',
) -> float:
    """Return how far the probabilities of a calibrated model are from those of the scaled logits.

    Args:
        original: The model as it was, with batches to run both on.
        run_calibrated: A function that returns the logits of the calibrated one for a batch.
        scaler: A fitted scaler.
        ending: The end of the text of an error.

    Raises:
        UserError: If they differ by more than the tolerance.
    """
    difference = 0.0
    for kept in original.batches:
        expected = [scaler.predict_kept(logits[None])[0] for logits in original.logits_on(kept)]
        calibrated = run_calibrated(kept.batch)
        actual = [scaler.probabilities(logits[None])[0] for logits in calibrated]
        difference = max(difference, largest_difference(expected, actual))
    if not difference <= TOLERANCE:
        raise UserError(
            f'the predictions of the calibrated model differ from the scaled ones by '
            f'{difference:.1e}: the head changes them after its last layer, or they are too large '
            f'for single precision{ending}'
        )
    return difference


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
        # A model may itself be the layer, whose name is empty.
        folded[f'{name}.weight'.lstrip('.')] = weight.contiguous()  # Safetensors needs it.
        if bias is not None:
            folded[f'{name}.bias'.lstrip('.')] = bias
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


def largest_difference(expected: Iterable[Tensor], actual: Iterable[Tensor]) -> float:
    """Return the largest difference, relative to the largest expected value if that is above 1.

    It is infinite if a value is not finite. Logits that are masked in both are equal.
    """
    largest = 0.0
    for expected_values, actual_values in zip(expected, actual, strict=True):
        is_masked = (expected_values < MASKED) & (actual_values < MASKED)
        expected_values = expected_values.masked_fill(is_masked, 0)
        difference = (expected_values - actual_values.masked_fill(is_masked, 0)).abs().max()
        if not difference.isfinite():
            return float('inf')
        scale = expected_values.abs().max().clamp(min=1)
        largest = max(largest, (difference / scale).item())
    return largest
