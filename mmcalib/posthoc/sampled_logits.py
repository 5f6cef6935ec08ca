"""Predictions drawn at random with their logits, in memory that no data set outgrows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from mmengine.dist import all_gather_object
from torch import Tensor, nn

from mmcalib.distributed import place_of
from mmcalib.posthoc.model_logits import predictor, progress
from mmcalib.posthoc.scaler import LogitScaler
from mmcalib.samples.reading import read_logits

# So many predictions determine a temperature to a fraction of a percent; of 21 classes they take
# 17 MB.
NUM_SAMPLES = 200_000


@dataclass
class DrawnPredictions:
    """Predictions drawn from all of a split, each as likely as any other.

    Attributes:
        logits: ``(M, K)`` float32 or float64, on the CPU.
        labels: ``(M,)`` int64.
        images: ``(M,)`` int64, which image of the loader each is of.
        population: How many valid predictions there were to draw from.
        num_images: How many images there were.
    """

    logits: Tensor
    labels: Tensor
    images: Tensor
    population: int
    num_images: int

    def fit(self, scaler: LogitScaler, kept: Tensor | None = None) -> LogitScaler:
        """Fit a scaler to the predictions of all images, or of those that a mask ``(n,)`` keeps."""
        rows = slice(None) if kept is None else kept[self.images]
        return scaler.fit(self.logits[rows], self.labels[rows], self.images[rows])


def draw_predictions(
    model: nn.Module,
    loader: Iterable,
    *,
    num_samples: int = NUM_SAMPLES,
    seed: int = 0,
    ignore_index: int = 255,
    of_samples: bool = False,
    text: str = 'Reading logits',
) -> DrawnPredictions:
    """Draw predictions with their logits from a split, in one pass.

    Every valid prediction gets a random priority and the `num_samples` least are kept, so each is
    as likely as any other, whatever the sizes of the images. The draw depends on the seed and the
    order of the loader, neither on its batch size nor on the number of processes, each of which
    gets all of it. At most twice as many are in memory, and an image.

    Args:
        model: See :func:`~mmcalib.posthoc.model_logits.predictor`.
        loader: Batches of the split, in a fixed order.
        num_samples: How many predictions to keep at most.
        seed: Of the draw.
        ignore_index: Label of the pixels to leave out.
        of_samples: See :func:`~mmcalib.posthoc.model_logits.predictor`.
        text: What the progress bar says.

    Raises:
        ValueError: If the split has no valid prediction, or one that
            :func:`~mmcalib.samples.reading.read_logits` refuses.
    """
    kept = LowestPriorities(num_samples)
    own_images = own_rows = 0
    with predictor(model, of_samples=of_samples) as predict:
        images = (image for batch in progress(loader, text) for image in predict(batch))
        for number, image in enumerate(images):
            place = place_of(number)
            if place >= len(loader.dataset):
                continue
            logits, labels, _ = read_logits(
                image.sample, image.logits, ignore_index=ignore_index, name=image.name
            )
            generator = torch.Generator().manual_seed(1_000_003 * seed + place)
            priority = torch.rand(len(labels), generator=generator, dtype=torch.float64)
            kept.add(priority, logits, labels, place)
            own_rows += len(labels)
            own_images += 1
    shares = all_gather_object((kept.parts, own_images, own_rows))
    if len(shares) > 1:
        kept.parts = [part for parts, _, _ in shares for part in parts]
    num_images, population = (sum(share[i] for share in shares) for i in (1, 2))
    if not population:
        raise ValueError(f'no valid prediction in {num_images} images: there is nothing to fit')
    return DrawnPredictions(*kept.result(), population=population, num_images=num_images)


class LowestPriorities:
    """The rows of the lowest priorities: at most twice as many as the limit, and an image."""

    def __init__(self, limit: int) -> None:
        self.limit, self.below = limit, 1.0
        self.parts: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []

    def add(self, priority: Tensor, logits: Tensor, labels: Tensor, image: int) -> None:
        index = (priority < self.below).nonzero().squeeze(1)
        rows = logits[index.to(logits.device)].cpu(), labels[index.to(labels.device)].cpu()
        self.parts.append((priority[index], *rows, torch.full((len(index),), image)))
        if sum(len(part[0]) for part in self.parts) > 2 * self.limit:
            self.shrink()

    def shrink(self) -> None:
        columns = [torch.cat(column) for column in zip(*self.parts, strict=True)]
        if len(columns[0]) > self.limit:
            self.below = columns[0].kthvalue(self.limit + 1).values.item()
            columns = [column[columns[0] < self.below] for column in columns]
        self.parts = [tuple(columns)]

    def result(self) -> tuple[Tensor, ...]:
        """Return logits, labels and images, in the order of the images."""
        self.shrink()
        order = self.parts[0][3].argsort(stable=True)
        return tuple(column[order] for column in self.parts[0][1:])
