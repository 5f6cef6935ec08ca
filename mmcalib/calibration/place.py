"""Folding a scaling into the layer of a model that predicts, and proving by running that it fits.

No table of heads: the layer is the one whose weights and bias, halved, halve the logits.
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
from mmcalib.posthoc.scaler import LogitScaler
from mmcalib.predictions.kept_batches import KeptBatch, some_values

# By how much what a calibrated model predicts may differ, relative to the largest if above 1.
TOLERANCE = 1e-4
# Runs a model on a batch, and returns the logits (K, *) of its images.
Run = Callable[[nn.Module, Any], list[Tensor]]
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
        reason: Why it is attached; None if it is folded.
        difference: The largest difference of a probability from the scaled one.
    """

    layers: list[str] = field(default_factory=list)
    tensors: dict[str, Tensor] = field(default_factory=dict)
    reason: str | None = None
    difference: float = 0.0


class OriginalLogits:
    """The logits of a model on batches that were kept, which it must predict as in the pass.

    Those of the first batches are remembered, as long as they are few.

    Args:
        model: The model as it was given.
        batches: Batches of the pass.
        run: See :data:`Run`.
    """

    def __init__(self, model: nn.Module, batches: Iterable[KeptBatch], run: Run) -> None:
        self.model = model
        self.batches = list(batches)
        self.run = run
        self._remembered: dict[KeptBatch, list[Tensor]] = {}
        self._num_free = NUM_REMEMBERED

    def of(self, kept: KeptBatch) -> list[Tensor]:
        """Return the logits ``(K, *)`` of the images of a batch.

        Raises:
            ValueError: If they are not those of the pass.
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
        """Raise a ValueError if the model predicts otherwise than in the pass: a wrong number."""
        for kept in self.batches:
            self.of(kept)

    def _check_same(self, kept: KeptBatch, logits: Sequence[Tensor]) -> None:
        if kept.values is None:
            return
        parameter = next(self.model.parameters(), kept.values)
        # In half precision, a GPU may choose another algorithm the second time.
        tolerance = max(TOLERANCE, 4 * torch.finfo(parameter.dtype).eps)
        difference = largest_difference([kept.values], [some_values(logits)])
        if not difference <= tolerance:
            raise UserError(
                f'the model predicts otherwise when it runs on a batch again (by {difference:.1e}),'
                ' so no figure holds: take out what changes from call to call, such as a counter'
                " or NumPy's random numbers"
            )


def place(
    model: nn.Module,
    scaler: LogitScaler,
    batches: Iterable[KeptBatch],
    run: Run,
    *,
    sigmoids: bool = False,
) -> Placement:
    """Return where a fitted scaling goes in a model, which stays as it is.

    A fold is tried on all batches. A scaling that does not pass is attached.

    Args:
        model: The model to scale.
        scaler: A fitted scaler.
        batches: Batches of the pass that the scaler was fitted to.
        run: See :data:`Run`.
        sigmoids: Whether each logit is before a sigmoid of its own.

    Raises:
        ValueError: If the model predicts otherwise than in the pass; as :func:`layers_for`.
    """
    original = OriginalLogits(model, batches, run)
    original.check()
    layers, reason = layers_for(original, scaler, sigmoids=sigmoids)
    if reason is not None:
        return Placement(reason=reason)
    tensors = fold_layers(model, layers, scaler)

    def run_folded(batch: Any) -> list[Tensor]:
        with swapped_parameters(model, tensors):
            return run(model, batch)

    try:
        difference = prove(original, run_folded, scaler)
    except UserError as error:  # of half precision, or a cap on the logits
        dtype = model.get_parameter(next(iter(tensors))).dtype
        if torch.finfo(dtype).bits < 32:
            reason = f'{dtype} rounds the scaled weights of {layers[0]} by too much'
            return Placement(reason=reason)
        return Placement(reason=str(error))
    return Placement(layers, tensors, None, difference)


def layers_for(
    original: OriginalLogits, scaler: LogitScaler, *, sigmoids: bool = False
) -> tuple[list[str], str | None]:
    """Return the layers that can absorb a scaling, or none and why, as found by running the model.

    Args:
        original: The model to scale, with batches to run it on.
        scaler: The method, fitted or not.
        sigmoids: Whether each logit is before a sigmoid of its own.

    Raises:
        ValueError: If the method is not for such a head, or logits are NaN or infinite.
    """
    if not scaler.affine:
        scaler.check_head(original.of(original.batches[0])[0][None])
        return [], f'{scaler.method} scaling is not one that layers absorb'
    try:
        options = dict(per_class=scaler.per_class, sigmoids=sigmoids)
        return find_predicting_layers(original, **options), None
    except NotFoldableError as error:
        return [], str(error)


def find_predicting_layers(
    original: OriginalLogits, *, per_class: bool = False, sigmoids: bool = False
) -> list[str]:
    """Return the names of the layers to scale so that the logits scale: nearly always one.

    Layers that ran on the first batch and have an output per class are tried from the last to run
    to the first, and then all of those in the head together, for heads that add two.

    Args:
        original: The model to scale, with batches to run it on.
        per_class: Whether classes are to be scaled and shifted, which takes a bias, and which
            grouped convolutions cannot.
        sigmoids: Whether each logit is before a sigmoid of its own.

    Raises:
        NotFoldableError: If there is none that scales the logits of all batches.
    """
    model, first = original.model, original.batches[0]
    ran: list[nn.Module] = []
    with register_module_forward_hook(lambda module, *_: ran.append(module)):
        logits = original.run(model, first.batch)[0]
    last = {module: place for place, module in enumerate(ran)}
    parameters = dict(model.named_parameters())
    layers: list[tuple[int, str]] = []
    computed: list[str] = []
    for name, layer in model.named_modules():
        if layer not in last or not isinstance(layer, LINEAR):
            continue
        if num_outputs(layer) != len(logits) or cannot_scale(layer, per_class, sigmoids):
            continue
        if parameter_keys(name, layer) <= parameters.keys():
            layers.append((last[layer], name))
        else:
            computed.append(name)
    candidates = [name for _, name in sorted(layers, reverse=True)]
    in_head = [name for name in candidates if 'head' in name.split('.')[0] or 'classif' in name]
    # Shifted too, if classes are to be: two layers that are added would shift twice.
    shift = torch.arange(len(logits), device=logits.device) / 10
    if not per_class:
        shift = torch.zeros_like(shift)

    def halves_logits(names: Sequence[str]) -> bool:
        """Return whether halving layers halves the logits of all batches."""
        keys = set().union(*(parameter_keys(name, model.get_submodule(name)) for name in names))
        changed = {}
        for key in keys:
            changed[key] = parameters[key] / 2
            if key.rpartition('.')[2] == 'bias':
                changed[key] = changed[key] + shift.to(changed[key].device)
        for kept in original.batches:
            halves = [values / 2 for values in original.of(kept)]
            with swapped_parameters(model, changed):
                actual = original.run(model, kept.batch)
            expected = [comparable(values, shift, sigmoids) for values in halves]
            actual = [comparable(values, 0.0, sigmoids) for values in actual]
            if not largest_difference(expected, actual) <= TOLERANCE:
                return False
        return True

    for names in [[name] for name in candidates] + [in_head] * (len(in_head) > 1):
        if halves_logits(names):
            return names
    kind = 'linear layer with a bias' if per_class else 'linear layer'
    why = ''
    if candidates:
        why = f': halving {", ".join(candidates)} does not halve the logits of each batch'
        dtype = next(model.parameters()).dtype
        if dtype != torch.float32:
            why += f' in {dtype}'
    elif computed:
        why = (
            f': the weight of {", ".join(computed)} is shared, or computed from others, as '
            'weight_norm and prune do'
        )
    raise NotFoldableError(
        f'{type(model).__name__} has no {kind} that a scaling can be folded into{why}'
    )


def comparable(logits: Tensor, shift: Tensor | float, sigmoids: bool) -> Tensor:
    """Return logits ``(K, *)`` and a shift ``(K,)`` without what a softmax ignores."""
    shifted = (logits.movedim(0, -1) + shift).movedim(-1, 0)
    if sigmoids or len(logits) == 1:
        return shifted
    return shifted.log_softmax(dim=0)


def num_outputs(layer: nn.Module) -> int:
    """Return how many features a linear layer or a convolution has."""
    return layer.out_channels if isinstance(layer, TRANSPOSED) else len(layer.weight)


def cannot_scale(layer: nn.Module, per_class: bool, sigmoids: bool) -> bool:
    """Return whether a layer cannot scale or shift classes as a method does."""
    grouped = getattr(layer, 'groups', 1) > 1
    if per_class:
        return grouped or layer.bias is None
    # The weights of a grouped transposed convolution are not in the order of its outputs.
    return sigmoids and grouped and isinstance(layer, TRANSPOSED)


def parameter_keys(name: str, layer: nn.Module) -> set[str]:
    """Return the keys of the weight and the bias of a layer; a model may itself be the layer."""
    keys = ['weight'] if layer.bias is None else ['weight', 'bias']
    return {f'{name}.{key}'.lstrip('.') for key in keys}


def prove(
    original: OriginalLogits,
    run_calibrated: Callable[[Any], list[Tensor]],
    scaler: LogitScaler,
    then: str = '',
) -> float:
    """Return how far the probabilities of a calibrated model are from those of the scaled logits.

    Args:
        original: The model as it was, with batches to run both on.
        run_calibrated: Returns the logits ``(K, *)`` of the calibrated one for a batch.
        scaler: A fitted scaler.
        then: The end of an error.

    Raises:
        ValueError: If it is not near.
    """
    difference = 0.0
    for kept in original.batches:
        expected = [scaler.predict_proba(logits[None])[0] for logits in original.of(kept)]
        calibrated = run_calibrated(kept.batch)
        actual = [scaler.probabilities(logits[None])[0] for logits in calibrated]
        difference = max(difference, largest_difference(expected, actual))
    if not difference <= TOLERANCE:
        raise UserError(
            f'the predictions of the calibrated model differ from the scaled ones by '
            f'{difference:.1e}: the head changes them after its last layer, or they are too large '
            f'for single precision{then}'
        )
    return difference


def fold_layers(model: nn.Module, names: Sequence[str], scaler: LogitScaler) -> dict[str, Tensor]:
    """Return the new tensors of layers, float64 on the CPU, by their keys in the state dict."""
    folded = {}
    for name in names:
        layer = model.get_submodule(name)
        weight = layer.weight.detach().cpu()
        bias = None if layer.bias is None else layer.bias.detach().cpu()
        if isinstance(layer, TRANSPOSED):  # whose first axis is that of the inputs
            weight, bias = scaler.fold(weight.transpose(0, 1), bias)
            weight = weight.transpose(0, 1)
        else:
            weight, bias = scaler.fold(weight, bias)
        # A model may itself be the layer, whose name is empty.
        folded[f'{name}.weight'.lstrip('.')] = weight.contiguous()  # as safetensors wants it
        if bias is not None:
            folded[f'{name}.bias'.lstrip('.')] = bias
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
    """Return the largest difference, relative to the largest expected value if that is above 1."""
    largest = 0.0
    for a, b in zip(expected, found, strict=True):
        if not b.isfinite().all():
            return float('inf')
        largest = max(largest, ((a - b).abs().max() / a.abs().max().clamp(min=1)).item())
    return largest
