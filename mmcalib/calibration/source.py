"""The source of the predictions of a calibration, the one difference between its doors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

from torch import Tensor, nn

from mmcalib.predictions.image_predictions import ImagePredictions
from mmcalib.predictions.kept_batches import KeptBatch


class Source(Protocol):
    """Held-out images with labels: a loader for any torch model, or a split of a Runner.

    Attributes:
        in_order: Whether the images come in the order of the data, so that neighbours are known.
        threshold: The probability above which a sigmoid predicts its class; None if the scaling
            leaves the predicted classes as they are.
        gather: A function that returns a list of the values of all processes.
        kept: A few batches and images of the first pass, on which a placement is proven.
    """

    in_order: bool
    threshold: float | None
    gather: Callable[[Any], list]
    kept: Iterable[KeptBatch]

    def read(self, model: nn.Module, text: str) -> Iterator[ImagePredictions]:
        """Yield the predictions of a pass, with logits, labels and the indices of their images.

        Args:
            model: The model, which predicts as in evaluation.
            text: The text of the progress bar.
        """

    def run(self, model: nn.Module, batch: Any) -> list[Tensor]:
        """Return the logits ``(K, *)`` of the images of a batch, the same each time."""

    def image_seeds(self, part: ImagePredictions) -> list[int]:
        """Return the seed of each entry, which decides what is drawn of it."""

    def image_numbers(self, rows: ImagePredictions) -> Tensor | None:
        """Return which image each row is of, ``(M,)`` int64 from 0 on, the same in every run.

        None if the order of the data is the same in every run. Folds are drawn of these numbers.
        """
