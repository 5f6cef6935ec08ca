"""Predictions with the logits behind them: of a batch, and drawn at random from a split."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from mmengine.dist import all_gather_object
from mmengine.structures import BaseDataElement
from torch import Tensor, nn

from mmcalib.checks import UserError
from mmcalib.distributed import place_of
from mmcalib.models.predicting_head import head_of
from mmcalib.posthoc.attached import evaluated_sample, logits_behind
from mmcalib.posthoc.full_precision import full_precision
from mmcalib.posthoc.scaler import LogitScaler
from mmcalib.samples.from_loader import progress
from mmcalib.samples.reading import name_of, read_logits

# So many predictions determine a temperature to a fraction of a percent; of 21 classes they take
# 17 MB.
NUM_SAMPLES = 200_000


@dataclass
class ImageLogits:
    """One evaluated image.

    Attributes:
        predicted: Its data sample.
        sample: The same as metrics read it.
        logits: ``(K, *)``, behind it.
        name: What errors call it.
    """

    predicted: BaseDataElement
    sample: dict
    logits: Tensor
    name: str


@contextmanager
def predictor(
    model: nn.Module, *, of_samples: bool = False
) -> Iterator[Callable[[Any], list[ImageLogits]]]:
    """Give a function from a batch to the images' predictions, with the logits behind them.

    They are read from the data samples (:func:`~mmcalib.posthoc.attached.logits_behind`), up to
    what a softmax ignores. A head that draws at random, as SegNeXt's does, draws the same whenever
    a batch is predicted: so two predictions of a batch differ in nothing but the weights.

    Args:
        model: mmpretrain's or mmseg's, or one with the same methods.
        of_samples: Whether a binary segmentor's are of its samples too, whose sigmoid has lost the
            digits of logits above 17. By default they are those before the sigmoid, which a layer
            would scale.

    Raises:
        ValueError: If the model has no head.
    """
    if getattr(model, 'head', model) is None:
        raise UserError(f'{type(model).__name__} has no head, so it predicts no classes')
    exact: list[Tensor] = []
    watched = getattr(head_of(model), 'out_channels', None) == 1 and not of_samples
    calibrated = hasattr(model, 'calibration')
    count = itertools.count()

    def postprocess(seg_logits: Tensor, data_samples: list | None = None) -> list:
        original = type(model).postprocess_result
        # A second channel makes them logits of a softmax, which are left as they are.
        pair = torch.cat([torch.zeros_like(seg_logits), seg_logits], dim=1)
        exact.extend(s.seg_logits.data[1:] for s in original(model, pair, data_samples))
        return original(model, seg_logits, data_samples)

    def image_of(sample: BaseDataElement) -> ImageLogits:
        logits = exact.pop(0) if watched else logits_behind(model, sample, calibrated=calibrated)
        read = evaluated_sample(model, sample)
        return ImageLogits(sample, read, logits, name_of(sample, next(count)))

    def predict(batch: Any) -> list[ImageLogits]:
        device = next(model.parameters()).device
        with torch.no_grad(), torch.random.fork_rng([device] if device.type == 'cuda' else []):
            torch.manual_seed(0)
            return [image_of(sample) for sample in model.val_step(batch)]

    training = model.training
    model.eval()
    if watched:
        model.postprocess_result = postprocess
    try:
        with full_precision():
            yield predict
    finally:
        model.train(training)
        vars(model).pop('postprocess_result', None)


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


def predictions(
    model: nn.Module, loader: Iterable, text: str, *, of_samples: bool = False
) -> Iterator[tuple[int, ImageLogits]]:
    """Yield the images of a split that this process predicts, each with its place in the data set.

    Those beyond the data set only fill up the share of a process.

    Args:
        model: See :func:`predictor`.
        loader: Batches of the split, in a fixed order.
        text: What the progress bar says.
        of_samples: See :func:`predictor`.
    """
    with predictor(model, of_samples=of_samples) as predict:
        images = (image for batch in progress(loader, text) for image in predict(batch))
        for number, image in enumerate(images):
            yield place_of(number), image


def draw_predictions(
    model: nn.Module, loader: Iterable, *, of_samples: bool = False, **options: int
) -> DrawnPredictions:
    """Draw predictions with their logits from a split, in one pass.

    Args:
        model: See :func:`predictor`.
        loader: Batches of the split, in a fixed order.
        of_samples: See :func:`predictor`.
        options: Of :func:`draw`.

    Raises:
        ValueError: See :func:`draw`.
    """
    images = predictions(model, loader, 'Reading logits', of_samples=of_samples)
    return draw(images, len(loader.dataset), **options)


def draw(
    images: Iterable[tuple[int, ImageLogits]],
    size: int,
    *,
    num_samples: int = NUM_SAMPLES,
    seed: int = 0,
    ignore_index: int = 255,
) -> DrawnPredictions:
    """Draw from predictions.

    Every valid prediction gets a random priority and the `num_samples` least are kept, so each is
    as likely as any other, whatever the sizes of the images. The draw depends on the seed and the
    order of the images, neither on the batch size nor on the number of processes, each of which
    gets all of it. At most twice as many are in memory, and an image.

    Args:
        images: Of :func:`predictions`.
        size: Of the data set.
        num_samples: How many predictions to keep at most.
        seed: Of the draw.
        ignore_index: Label of the pixels to leave out.

    Raises:
        ValueError: If the split has no valid prediction, or one that
            :func:`~mmcalib.samples.reading.read_logits` refuses.
    """
    parts: list[tuple[Tensor, ...]] = []
    below, own_images, own_rows = 1.0, 0, 0
    for place, image in images:
        if place >= size:
            continue
        logits, labels, _ = read_logits(
            image.sample, image.logits, ignore_index=ignore_index, name=image.name
        )
        generator = torch.Generator().manual_seed(1_000_003 * seed + place)
        priority = torch.rand(len(labels), generator=generator, dtype=torch.float64)
        kept = (priority < below).nonzero().squeeze(1)
        rows = (x[kept.to(x.device)].cpu() for x in (priority, logits, labels))
        parts.append((*rows, torch.full((len(kept),), place)))
        own_rows += len(labels)
        own_images += 1
        if sum(len(part[0]) for part in parts) > 2 * num_samples:
            parts = [lowest(parts, num_samples)]
            below = parts[0][0].max().item()
    shares = all_gather_object((parts, own_rows, own_images))
    population, num_images = (sum(share[i] for share in shares) for i in (1, 2))
    if not population:
        raise UserError(f'no valid prediction in {num_images} images: there is nothing to fit')
    _, *columns = lowest([part for parts, _, _ in shares for part in parts], num_samples)
    order = columns[2].argsort(stable=True)  # of the images
    return DrawnPredictions(*(column[order] for column in columns), population, num_images)


def lowest(parts: Sequence[tuple[Tensor, ...]], limit: int) -> tuple[Tensor, ...]:
    """Return the columns of the rows whose first column is lowest, in the order they came in."""
    columns = [torch.cat(column) for column in zip(*parts, strict=True)]
    kept = columns[0].argsort()[:limit].sort().values
    return tuple(column[kept] for column in columns)
