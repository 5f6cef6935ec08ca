"""Raw logits out of a toolbox's model while it predicts, in memory that no data set outgrows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from torch import Tensor, nn

from mmcalib.metrics.data_samples import read_logits

# So many predictions determine a temperature to a fraction of a percent; of 21 classes they take
# 17 MB.
NUM_SAMPLES = 200_000


@dataclass
class Sample:
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

    @property
    def is_everything(self) -> bool:
        """Whether no prediction was left out."""
        return len(self.labels) == self.population


@dataclass
class ImageLogits:
    """One evaluated image: its data sample as a dict, and the ``(K, …)`` logits behind it."""

    sample: dict
    logits: Tensor
    name: str


@contextmanager
def predictor(model: nn.Module) -> Iterator[Callable[[Any], list[ImageLogits]]]:
    """Give a function from a batch to the images' predictions, with the logits behind them.

    A classifier's logits are what its head returns; a segmentor's those that it would return as
    ``seg_logits``, also where a sigmoid comes in between, at the images' original size.

    Args:
        model: mmpretrain's or mmseg's, or one with the same methods.

    Raises:
        TypeError: If it is neither.
        ValueError: While predicting, if a head returns anything but one tensor of logits.
    """
    captured: list[Tensor] = []
    if hasattr(model, 'postprocess_result'):
        watching = _watch_segmentor(model, captured)
    elif isinstance(getattr(model, 'head', None), nn.Module):
        watching = _watch_classifier(model.head, captured)
    else:
        raise TypeError(
            f'{type(model).__name__} is neither an mmpretrain classifier with a head nor an mmseg '
            'segmentor, so its logits are unknown'
        )
    count = 0

    def predict(batch: Any) -> list[ImageLogits]:
        nonlocal count
        captured.clear()
        with torch.no_grad():
            samples = model.val_step(batch)
        if len(captured) != len(samples):
            raise ValueError(
                f'{type(model).__name__} predicted {len(samples)} images out of {len(captured)} '
                'rows of logits: test-time augmentation, or a head called more than once'
            )
        images = []
        for sample, logits in zip(samples, captured, strict=True):
            name = sample.get('img_path') or f'sample {count}'
            images.append(ImageLogits(sample.to_dict(), logits, str(name)))
            count += 1
        return images

    training = model.training
    model.eval()
    try:
        with watching, full_precision():
            yield predict
    finally:
        model.train(training)


@contextmanager
def _watch_segmentor(model: nn.Module, captured: list[Tensor]) -> Iterator[None]:
    original = model.postprocess_result

    def postprocess(seg_logits: Tensor, data_samples: list | None = None) -> list:
        binary = seg_logits.shape[1] == 1
        if binary:
            # Of one channel only its sigmoid comes out, whose logit has lost digits; a second one
            # makes them logits of a softmax, which are left as they are.
            pair = torch.cat([torch.zeros_like(seg_logits), seg_logits], dim=1)
            captured.extend(s.seg_logits.data[1:] for s in original(pair, data_samples))
        samples = original(seg_logits, data_samples)
        if not binary:
            captured.extend(s.seg_logits.data for s in samples)
        return samples

    model.postprocess_result = postprocess
    try:
        yield
    finally:
        del model.postprocess_result


@contextmanager
def _watch_classifier(head: nn.Module, captured: list[Tensor]) -> Iterator[None]:
    def keep(module: nn.Module, inputs: tuple, output: Any) -> None:
        if not torch.is_tensor(output) or output.ndim != 2:
            what = tuple(output.shape) if torch.is_tensor(output) else type(output).__name__
            raise ValueError(
                f'{type(head).__name__} returns {what}, not (N, K) logits, so what it predicts is '
                'not one linear layer'
            )
        captured.extend(output.detach())

    handle = head.register_forward_hook(keep)
    try:
        yield
    finally:
        handle.remove()


@contextmanager
def full_precision() -> Iterator[None]:
    """Turn TF32 off: its 10 bits would hide whether two layers compute the same."""
    backends = (torch.backends.cudnn, torch.backends.cuda.matmul)
    before = [backend.allow_tf32 for backend in backends]
    for backend in backends:
        backend.allow_tf32 = False
    try:
        yield
    finally:
        for backend, value in zip(backends, before, strict=True):
            backend.allow_tf32 = value


def progress(loader: Iterable, text: str) -> Iterable:
    """Show a progress bar of batches on stderr."""
    return track(loader, text, total=len(loader), console=Console(stderr=True))


def gather(
    model: nn.Module,
    loader: Iterable,
    *,
    num_samples: int = NUM_SAMPLES,
    seed: int = 0,
    ignore_index: int = 255,
    text: str = 'Reading logits',
) -> Sample:
    """Draw predictions with their logits from a split, in one pass.

    Every valid prediction gets a random priority and the `num_samples` least are kept, so each is
    as likely as any other, whatever the sizes of the images. The draw depends on the seed and the
    order of the loader, not on its batch size. At most twice as many are in memory, and an image.

    Args:
        model: See :func:`predictor`.
        loader: Batches of the split, in a fixed order.
        num_samples: How many predictions to keep at most.
        seed: Of the draw.
        ignore_index: Label of the pixels to leave out.
        text: What the progress bar says.

    Raises:
        ValueError: If the split has no valid prediction, or one that
            :func:`~mmcalib.metrics.data_samples.read_logits` refuses.
    """
    kept = _Lowest(num_samples)
    num_images = population = 0
    with predictor(model) as predict:
        for batch in progress(loader, text):
            for image in predict(batch):
                logits, labels, _ = read_logits(
                    image.sample, image.logits, ignore_index=ignore_index, name=image.name
                )
                generator = torch.Generator().manual_seed(1_000_003 * seed + num_images)
                priority = torch.rand(len(labels), generator=generator, dtype=torch.float64)
                kept.add(priority, logits, labels, num_images)
                population += len(labels)
                num_images += 1
    if not population:
        raise ValueError(f'no valid prediction in {num_images} images: there is nothing to fit')
    return Sample(*kept.result(), population=population, num_images=num_images)


def passes(
    model: nn.Module, loader: Iterable, *, ignore_index: int = 255
) -> Callable[[], Iterator[tuple[Tensor, Tensor]]]:
    """Return what reads all logits and labels of a split anew at each call, image by image."""
    number = 0

    def read() -> Iterator[tuple[Tensor, Tensor]]:
        nonlocal number
        number += 1
        with predictor(model) as predict:
            for batch in progress(loader, f'All predictions, pass {number}'):
                for image in predict(batch):
                    logits, labels, _ = read_logits(
                        image.sample, image.logits, ignore_index=ignore_index, name=image.name
                    )
                    yield logits, labels

    return read


class _Lowest:
    """The rows of the lowest priorities, in the order in which they came."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.below = 1.0
        self.parts: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []
        self.count = 0

    def add(self, priority: Tensor, logits: Tensor, labels: Tensor, image: int) -> None:
        index = (priority < self.below).nonzero().squeeze(1)
        here = index.to(logits.device)
        images = torch.full((len(index),), image)
        self.parts.append((priority[index], logits[here].cpu(), labels[here].cpu(), images))
        self.count += len(index)
        if self.count > 2 * self.limit:
            self._shrink()

    def _shrink(self) -> None:
        columns = [torch.cat(column) for column in zip(*self.parts, strict=True)]
        if self.count > self.limit:
            self.below = columns[0].kthvalue(self.limit + 1).values.item()
            index = (columns[0] < self.below).nonzero().squeeze(1)
            columns = [column[index] for column in columns]
        self.parts = [tuple(columns)]
        self.count = len(columns[0])

    def result(self) -> tuple[Tensor, Tensor, Tensor]:
        self._shrink()
        return self.parts[0][1:]
