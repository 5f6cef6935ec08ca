"""Predictions drawn at random from those of all images, each as likely as any other."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from mmcalib.calibration.source import Source
from mmcalib.choices import NUM_SAMPLES
from mmcalib.errors import UserError
from mmcalib.predictions.image_predictions import ImagePredictions, concatenate

# A prime above the number of images, so that those of two seeds seldom meet.
SEED_FACTOR = 1_000_003


@dataclass(frozen=True)
class Draw:
    """Predictions that were drawn from all of a source.

    Attributes:
        rows: The drawn predictions on the CPU; ``(M, K)`` logits, or ``(M, 1, L)`` of L labels.
        population: The number of valid predictions that there were to draw from.
        num_images: The number of images that were read.
        images: Sorted indices of the images that have a valid prediction, ``(n,)`` int64.
        pixels: Whether they are pixels of maps.
        unlabelled: Classes without a valid label in the population; None of several labels.
    """

    rows: ImagePredictions
    population: int
    num_images: int
    images: Tensor
    pixels: bool = False
    unlabelled: list[int] | None = None

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def logits(self) -> Tensor:
        """Logits as a fit takes them, ``(M, K)``; of several labels ``(M, L)``."""
        return self.rows.logits.flatten(1)

    @property
    def labels(self) -> Tensor:
        """Labels as a fit takes them, ``(M,)`` int64; of several labels ``(M, L)``."""
        return self.rows.labels


def draw_predictions(
    batches: Iterable[ImagePredictions],
    source: Source,
    *,
    num_samples: float | None = None,
    seed: int = 0,
) -> Draw:
    """Draw from predictions.

    Every valid prediction gets a random priority and the `num_samples` lowest are kept, so each is
    as likely as any other, whatever the sizes of the images. What is drawn depends on the seeds,
    neither on the batch size nor on the number of processes. At most twice `num_samples`
    predictions are in memory, and a batch.

    Args:
        batches: The predictions that this process has read.
        source: The source that they come from, which knows a seed for each image.
        num_samples: The number of predictions to keep at most; None for 200,000 pixels, or all
            classified images.
        seed: The seed of the draw.

    Raises:
        UserError: If there is no valid prediction.
    """
    kept: list[tuple[Tensor, ImagePredictions]] = []
    priority_limit = 1.0
    population = 0
    num_images = 0
    images: set[int] = set()
    labelled: set[int] = set()
    several_labels = False
    pixels = False
    num_classes = 0
    for batch in batches:
        num_images += len(batch)
        several_labels = batch.several_labels
        pixels = batch.are_maps
        if num_samples is None:
            num_samples = NUM_SAMPLES if pixels else math.inf
        num_classes = max(num_classes, batch.num_classes)
        for part in batch.split_maps():
            population += int(part.valid.sum())
            images.update(part.images[part.has_valid.cpu()].tolist())
            if not several_labels:
                labelled.update(part.labels[part.valid].unique().tolist())
            priority, rows = _rows_below(part, source, priority_limit, num_samples, seed)
            kept.append((priority, rows))
        if sum(len(priority) for priority, _ in kept) > 2 * num_samples:
            kept = [_lowest(kept, num_samples)]
            priority_limit = kept[0][0].max().item()
    shares = source.gather((kept, population, num_images, images, labelled, num_classes))
    population = sum(share[1] for share in shares)
    num_images = sum(share[2] for share in shares)
    images = set().union(*(share[3] for share in shares))
    labelled = set().union(*(share[4] for share in shares))
    num_classes = max(share[5] for share in shares)
    if not population:
        raise UserError(f'no valid prediction in {num_images} images: there is nothing to fit')
    _, rows = _lowest([part for share in shares for part in share[0]], num_samples)
    return Draw(
        rows=sort_rows(rows, rows.images),
        population=population,
        num_images=num_images,
        images=torch.tensor(sorted(images), device='cpu'),
        pixels=pixels,
        unlabelled=None if several_labels else sorted(set(range(num_classes)) - labelled),
    )


def sort_rows(rows: ImagePredictions, key: Tensor) -> ImagePredictions:
    """Return rows in the order of integers ``(M,)``; without a copy if they are in that order."""
    if (key.diff() >= 0).all():
        return rows
    return rows.select(key.argsort(stable=True))


def _rows_below(
    part: ImagePredictions, source: Source, priority_limit: float, num_samples: float, seed: int
) -> tuple[Tensor, ImagePredictions]:
    """Return the priorities and the rows, on the CPU, of the predictions below a limit."""
    is_valid = part.valid.flatten() if part.are_maps else part.has_valid
    index = is_valid.nonzero()[:, 0].cpu()
    if num_samples == math.inf:
        # All are kept, whatever their priority.
        priority = torch.zeros(len(index), dtype=torch.float64, device='cpu')
    elif part.are_maps:
        (image_seed,) = source.image_seeds(part)
        priority = _random_numbers(seed, image_seed, len(index))
    else:
        seeds = source.image_seeds(part.select(index))
        priority = torch.zeros(len(index), dtype=torch.float64, device='cpu')
        for row, image_seed in enumerate(seeds):
            priority[row] = _random_numbers(seed, image_seed, 1)
    is_below = priority < priority_limit
    rows = part.rows_at(index[is_below])
    return priority[is_below], rows.cpu()


def _random_numbers(seed: int, image_seed: int, size: int) -> Tensor:
    """Return random numbers from 0 to 1, ``(size,)`` float64, which the two seeds decide."""
    generator = torch.Generator().manual_seed(SEED_FACTOR * seed + image_seed)
    return torch.rand(size, generator=generator, dtype=torch.float64, device='cpu')


def _lowest(
    parts: list[tuple[Tensor, ImagePredictions]], limit: float
) -> tuple[Tensor, ImagePredictions]:
    """Return the rows of the lowest priorities, in the order they came in."""
    priority = torch.cat([values for values, _ in parts])
    rows = concatenate([rows for _, rows in parts])
    if len(priority) <= limit:
        return priority, rows
    kept = priority.argsort()[: int(limit)].sort().values
    return priority[kept], rows.select(kept)
