"""The proof by running that a calibrated model predicts the scaled probabilities."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

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
# Logits of kept batches that are remembered: 80 MB. Beyond, the model runs again.
NUM_REMEMBERED = 20_000_000


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
        if kept.images and len(logits) != len(kept.images):
            raise UserError(f'the model returns {len(logits)} logits for {len(kept.images)} images')
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
        difference = max(difference, probability_difference(original, kept, run_calibrated, scaler))
    if not difference <= TOLERANCE:
        raise UserError(
            f'the predictions of the calibrated model differ from the scaled ones by '
            f'{difference:.1e}: the head changes them after its last layer, or they are too large '
            f'for single precision{ending}'
        )
    return difference


def probability_difference(
    original: OriginalLogits,
    kept: KeptBatch,
    run_calibrated: Callable[[Any], list[Tensor]],
    scaler: Scaler,
) -> float:
    """Return the largest difference of a probability on one batch from that of scaled logits."""
    expected = map(scaler.predict_kept, as_batches(original.logits_on(kept)))
    actual = map(scaler.probabilities, as_batches(run_calibrated(kept.batch)))
    return largest_difference(expected, actual)


def as_batches(images: Sequence[Tensor]) -> list[Tensor]:
    """Return logits ``(K,)`` of images as one batch, and maps as one each, which are large."""
    if images and images[0].ndim == 1:
        return [torch.stack(tuple(images))]
    return [logits[None] for logits in images]


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
