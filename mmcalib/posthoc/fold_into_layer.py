"""Folding a scaling into the layer of a model that predicts, and proving by running that it fits.

No table of heads: the layer is the one whose weights and bias, halved, halve the logits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook

from mmcalib.checks import UserError
from mmcalib.posthoc.scaler import LogitScaler

# By how much what a calibrated model predicts may differ, relative to the largest if above 1.
TOLERANCE = 1e-4
# Runs a model, and returns the logits of some images.
Read = Callable[[nn.Module], list[Tensor]]
LINEAR = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


class NotFoldableError(UserError):
    """No layer of a model can absorb a scaling; the message says why."""


def layers_for(
    model: nn.Module, scaler: LogitScaler, read: Read, *, sigmoids: bool = False
) -> tuple[list[str], str | None]:
    """Return the layers that can absorb a scaling, or none and why, as found by running the model.

    Args:
        model: That is to be scaled.
        scaler: The method, not fitted.
        read: See :func:`find_predicting_layers`.
        sigmoids: Likewise.

    Raises:
        ValueError: If the method is not for such a head, or logits are NaN or infinite.
    """
    if not scaler.affine:
        scaler.check_head(read(model)[0][None])
        return [], f'{scaler.method} scaling is not one that layers absorb'
    try:
        options = dict(per_class=scaler.per_class, sigmoids=sigmoids)
        return find_predicting_layers(model, read, **options), None
    except NotFoldableError as error:
        return [], str(error)


def find_predicting_layers(
    model: nn.Module, read: Read, *, per_class: bool = False, sigmoids: bool = False
) -> list[str]:
    """Return the names of the layers to scale so that the logits scale: nearly always one.

    Layers that ran and have an output per class are tried from the last to run to the first, and
    then all of those in the head together, for heads that add two.

    Args:
        model: That is to be scaled.
        read: Runs a model on a batch, always the same, and returns the logits ``(K, *)`` of its
            images.
        per_class: Whether classes are to be scaled and shifted, which takes a bias, and which
            grouped convolutions cannot.
        sigmoids: Whether each logit is before a sigmoid of its own.

    Raises:
        NotFoldableError: If there is none.
    """

    def comparable(logits: Tensor, shift: Tensor | float = 0.0) -> Tensor:
        """Return logits ``(K, *)`` and a shift ``(K,)`` without what a softmax ignores."""
        shifted = (logits.movedim(0, -1) + shift).movedim(-1, 0)
        return shifted if sigmoids or len(logits) == 1 else shifted.log_softmax(dim=0)

    ran: list[nn.Module] = []
    with register_module_forward_hook(lambda module, *_: ran.append(module)):
        images = read(model)
    num_logits, last = len(images[0]), {module: place for place, module in enumerate(ran)}
    layers = [
        (last[layer], name)
        for name, layer in model.named_modules()
        if isinstance(layer, LINEAR) and layer in last and layer.weight.shape[0] == num_logits
        if not (per_class and (layer.bias is None or getattr(layer, 'groups', 1) > 1))
    ]
    candidates = [name for _, name in sorted(layers, reverse=True)]
    in_head = [name for name in candidates if 'head' in name.split('.')[0] or 'classif' in name]
    # Shifted too, if classes are to be: two layers that are added would shift twice.
    shift = torch.arange(num_logits, device=images[0].device) / 10 * per_class
    expected = [comparable(logits / 2, shift) for logits in images]
    for layers in [[name] for name in candidates] + [in_head] * (len(in_head) > 1):
        parameters = {k: p for k, p in model.named_parameters() if k.rpartition('.')[0] in layers}
        changed = {k: p / 2 + (shift if p.ndim == 1 else 0) for k, p in parameters.items()}
        with swapped_parameters(model, changed):
            found = [comparable(logits) for logits in read(model)]
        if largest_difference(expected, found) <= TOLERANCE:
            return layers
    kind = 'linear layer with a bias' if per_class else 'linear layer'
    why = f': halving {", ".join(candidates)} does not halve the logits' if candidates else ''
    if candidates and (dtype := next(model.parameters()).dtype) != torch.float32:
        why += f' in {dtype}'
    raise NotFoldableError(
        f'{type(model).__name__} has no {kind} that a scaling can be folded into{why}'
    )


def prove(
    original: Iterable[Tensor], calibrated: Iterable[Tensor], scaler: LogitScaler, then: str = ''
) -> float:
    """Return how far the probabilities of a calibrated model are from those of the scaled logits.

    Args:
        original: Logits ``(K, *)`` of images, of the model as it was.
        calibrated: Those of the calibrated one.
        scaler: Fitted.
        then: The end of an error.

    Raises:
        ValueError: If it is not near.
    """
    expected = [scaler.predict_proba(logits[None])[0] for logits in original]
    found = [scaler.probabilities(logits[None])[0] for logits in calibrated]
    difference = largest_difference(expected, found)
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
        own = {k: p.detach().cpu() for k, p in model.get_submodule(name).named_parameters()}
        new = zip(('weight', 'bias'), scaler.fold(own['weight'], own.get('bias')), strict=True)
        # A model may itself be the layer, whose name is empty.
        folded |= {f'{name}.{key}'.lstrip('.'): x for key, x in new if x is not None}
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
