"""Predictions with the logits behind them, drawn at random from those of all images."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mmcalib.errors import UserError
from mmcalib.posthoc.scaler import LogitScaler
from mmcalib.posthoc.temperature_search import information
from mmcalib.predictions.image_predictions import ImagePredictions

# So many predictions determine a temperature to a fraction of a percent; of 21 classes they take
# 17 MB.
NUM_SAMPLES = 200_000


class LogitRows(NamedTuple):
    """Valid predictions of an image, or of several.

    Attributes:
        logits: ``(M, K)`` float32 or float64.
        labels: ``(M,)`` int64; ``(M, K)`` of 0 and 1 where each logit is of a label of its own.
        places: ``(M,)`` int64, on the CPU: which image of the data each is of.
        predicted: As labels, the classes that the model predicts; None for those of the logits.
        shown: ``(M, K)`` logits that metrics read, where these are others.
    """

    logits: Tensor
    labels: Tensor
    places: Tensor
    predicted: Tensor | None = None
    shown: Tensor | None = None

    def only(self, kept: Tensor) -> LogitRows:
        """Return the rows of a mask ``(M,)``."""
        return LogitRows(*(x if x is None else x[kept.to(x.device)] for x in self))


def joined(images: Iterable[LogitRows]) -> list[LogitRows]:
    """Return the predictions of all images in one, or nothing of none."""
    columns = zip(*(rows[:4] for rows in images), strict=True)
    columns = [torch.cat(column) for column in columns]
    return [LogitRows(*columns)] if columns else []


@dataclass
class DrawnPredictions:
    """Predictions drawn from all of a split, each as likely as any other.

    Attributes:
        logits: ``(M, K)`` float32 or float64, on the CPU.
        labels: ``(M,)`` int64.
        images: ``(M,)`` int64, which image of the loader each is of.
        population: How many valid predictions there were to draw from.
        num_images: How many images there were.
        unlabelled: Classes of which none of the population is; None where it is not known.
    """

    logits: Tensor
    labels: Tensor
    images: Tensor
    population: int
    num_images: int
    unlabelled: list[int] | None = None

    def fit(self, scaler: LogitScaler, kept: Tensor | None = None) -> LogitScaler:
        """Fit a scaler to the predictions of all images, or of those that a mask ``(n,)`` keeps."""
        rows = slice(None) if kept is None else kept[self.images]
        return scaler.fit(self.logits[rows], self.labels[rows], self.images[rows])

    @property
    def information(self) -> float:
        """What :func:`~mmcalib.posthoc.temperature_search.information` of their logits is."""
        rows = ImagePredictions(
            predicted=self.labels, logits=self.logits, labels=self.labels, images=self.images
        )
        return information(rows)


def alone(value: Any) -> list:
    """Return what a single process has gathered from all."""
    return [value]


def draw(
    images: Iterable[LogitRows],
    *,
    num_samples: float = NUM_SAMPLES,
    seed: int = 0,
    seed_of: Callable[[LogitRows], int] = lambda rows: int(rows.places[0]),
    gather: Callable[[Any], list] = alone,
) -> DrawnPredictions:
    """Draw from predictions.

    Every valid prediction gets a random priority and the `num_samples` least are kept, so each is
    as likely as any other, whatever the sizes of the images. The draw depends on the seeds and the
    order of the images, neither on the batch size nor on the number of processes. At most twice as
    many are in memory, and an image.

    Args:
        images: Predictions of one image each, perhaps none.
        num_samples: How many predictions to keep at most.
        seed: Of the draw.
        seed_of: From the predictions of an image to its own seed.
        gather: Returns the shares of all processes, each of which gets all that is drawn.

    Raises:
        ValueError: If there is no valid prediction.
    """
    parts: list[tuple[Tensor, ...]] = []
    below, own_images, own_rows = 1.0, 0, 0
    labelled: set[int] = set()
    for rows in images:
        own_images += 1
        if not len(rows.labels):
            continue
        generator = torch.Generator().manual_seed(1_000_003 * seed + seed_of(rows))
        priority = torch.rand(
            len(rows.labels), generator=generator, dtype=torch.float64, device='cpu'
        )
        kept = (priority < below).nonzero().squeeze(1)
        columns = priority, rows.logits, rows.labels, rows.places
        parts.append(tuple(x[kept.to(x.device)].cpu() for x in columns))
        own_rows += len(rows.labels)
        if rows.labels.ndim == 1:
            labelled.update(rows.labels.bincount().nonzero().flatten().tolist())
        if sum(len(part[0]) for part in parts) > 2 * num_samples:
            parts = [lowest(parts, num_samples)]
            below = parts[0][0].max().item()
    shares = gather((parts, own_rows, own_images, labelled))
    population, num_images = (sum(share[i] for share in shares) for i in (1, 2))
    labelled = set().union(*(share[3] for share in shares))
    if not population:
        raise UserError(f'no valid prediction in {num_images} images: there is nothing to fit')
    _, *columns = lowest([part for parts, *_ in shares for part in parts], num_samples)
    order = columns[2].argsort(stable=True)  # of the images
    logits, labels, images = (column[order] for column in columns)
    unlabelled = None
    if labels.ndim == 1:  # of one label each
        unlabelled = sorted(set(range(max(logits.shape[1], 2))) - labelled)
    return DrawnPredictions(logits, labels, images, population, num_images, unlabelled)


def lowest(parts: Sequence[tuple[Tensor, ...]], limit: float) -> tuple[Tensor, ...]:
    """Return the columns of the rows whose first column is lowest, in the order they came in."""
    columns = [torch.cat(column) for column in zip(*parts, strict=True)]
    if len(columns[0]) <= limit:
        return tuple(columns)
    kept = columns[0].argsort()[:limit].sort().values
    return tuple(column[kept] for column in columns)
