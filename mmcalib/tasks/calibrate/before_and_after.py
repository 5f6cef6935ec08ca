"""A model on a split before and after its calibration: metrics, and the proof that it is right."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from mmengine.dist import all_gather_object
from mmengine.structures import BaseDataElement
from torch import Tensor, nn

from mmcalib.distributed import place_of
from mmcalib.metrics import CalibrationMetric
from mmcalib.posthoc.attached import evaluated_sample
from mmcalib.posthoc.draw import ImageLogits, predictor, progress
from mmcalib.posthoc.fold_into_layer import largest_difference, swapped_parameters
from mmcalib.posthoc.full_precision import full_precision
from mmcalib.posthoc.scaler import LogitScaler, with_other_class
from mmcalib.samples.reading import read_labels, read_logits

COMPARED_METRICS = ('ECE', 'AECE', 'NLL', 'Brier', 'accuracy')


@dataclass
class BeforeAndAfter:
    """A model on a split, before and after it was calibrated.

    Attributes:
        before: Metrics by name, in percent but for NLL and Brier.
        after: The same afterwards.
        num_predictions: How many valid predictions there are.
        changed: Of how many of them the predicted class is another.
        difference: The largest difference of a written model's probability from a scaled one; of
            an attached scaling, of a logit, relative to the largest if that is above 1.
    """

    before: dict[str, float]
    after: dict[str, float]
    num_predictions: int
    changed: int
    difference: float


def measure_before_and_after(
    model: nn.Module,
    loader: Iterable,
    scaler: LogitScaler,
    tensors: Mapping[str, Tensor],
    *,
    folds: Sequence[tuple[LogitScaler, Mapping[str, Tensor]]] = (),
    fold_of: Tensor | None = None,
    num_bins: int = 15,
    ignore_index: int = 255,
    text: str = 'Before and after',
) -> BeforeAndAfter:
    """Run a model on a split as it is and folded, and hold its probabilities against scaled ones.

    With folds, the figures after are of each image under the scaling of its fold; the scaling to
    write is proven on all images as well.

    Args:
        model: See :func:`~mmcalib.posthoc.draw.predictor`.
        loader: Batches of the split.
        scaler: What was folded.
        tensors: The folded tensors by key.
        folds: The same for each fold of the images.
        fold_of: The fold of each image; None without folds.
        num_bins: Of ECE and AECE.
        ignore_index: Label of the pixels to leave out.
        text: What the progress bar says.
    """
    count = _Count(len(loader.dataset), num_bins=num_bins, ignore_index=ignore_index)
    with predictor(model) as predict:
        for batch in progress(loader, text):
            ours = predict(batch)
            count.before.process(None, [image.sample for image in ours])
            read = [_read(image, ignore_index) for image in ours]
            last = len(folds)  # the scaling to write
            places = count.next_places(len(ours))
            scored_by = [
                last if fold_of is None else int(fold_of[place % len(fold_of)]) for place in places
            ]
            scored: dict[int, dict] = {}
            for number in sorted({last, *scored_by}):
                own, own_tensors = folds[number] if number < last else (scaler, tensors)
                with swapped_parameters(model, own_tensors):
                    folded = predict(batch)
                for index, image in enumerate(folded):
                    logits, predicted = read[index]
                    new_logits, new_predicted = _read(image, ignore_index)
                    if scored_by[index] == number:
                        scored[index] = image.sample
                        count.add(places[index], predicted, new_predicted)
                    if len(predicted):
                        expected = own.predict_proba(logits)
                        found = with_other_class(new_logits).softmax(dim=1)
                        count.difference = max(
                            count.difference, largest_difference([expected], [found])
                        )
            count.after.process(None, [scored[index] for index in range(len(ours))])
    return count.result()


def measure_changed_samples(
    model: nn.Module,
    loader: Iterable,
    change: Callable[[int, BaseDataElement], float],
    *,
    num_bins: int = 15,
    ignore_index: int = 255,
    text: str = 'Before and after',
) -> BeforeAndAfter:
    """Run a model on a split, and measure its predictions as they are and changed.

    Args:
        model: See :func:`~mmcalib.posthoc.draw.predictor`.
        loader: Batches of the split.
        change: Called with the place of an image in the loader and its data sample, which it
            changes; returns the ``difference`` of the image.
        num_bins: Of ECE and AECE.
        ignore_index: Label of the pixels to leave out.
        text: What the progress bar says.
    """
    count = _Count(len(loader.dataset), num_bins=num_bins, ignore_index=ignore_index)
    read = partial(evaluated_sample, model)
    model.eval()
    with torch.no_grad(), full_precision():
        for batch in progress(loader, text):
            samples = model.val_step(batch)
            count.before.process(None, [read(sample) for sample in samples])
            for place, sample in zip(count.next_places(len(samples)), samples, strict=True):
                was = _predicted(read(sample), ignore_index)
                difference = change(place % count.images, sample)
                count.difference = max(count.difference, difference)
                count.add(place, was, _predicted(read(sample), ignore_index))
            count.after.process(None, [read(sample) for sample in samples])
    return count.result()


class _Count:
    """The metrics before and after, and what is counted beside them, over all processes.

    Args:
        images: Number of images in the data set.
        options: Of the metrics.
    """

    def __init__(self, images: int, **options: int) -> None:
        self.images = images
        self.before, self.after = (CalibrationMetric(COMPARED_METRICS, **options) for _ in range(2))
        self.read = self.total = self.changed = 0
        self.difference = 0.0

    def next_places(self, size: int) -> list[int]:
        """Return the places of a batch's images in the data set."""
        places = [place_of(number) for number in range(self.read, self.read + size)]
        self.read += size
        return places

    def add(self, place: int, before: Tensor, after: Tensor) -> None:
        """Count an image's predictions, unless it only fills up the share of a process."""
        if place < self.images:
            self.total += len(before)
            self.changed += int((before != after).sum())

    def result(self) -> BeforeAndAfter:
        """Return the figures of all processes, in each."""
        figures = [
            {key.split('/')[-1]: value for key, value in metric.evaluate(self.images).items()}
            for metric in (self.before, self.after)
        ]
        shares = all_gather_object((self.total, self.changed, self.difference))
        total, changed, differences = zip(*shares, strict=True)
        return BeforeAndAfter(*figures, sum(total), sum(changed), max(differences))


def _predicted(sample: Mapping, ignore_index: int) -> Tensor:
    if 'pred_sem_seg' in sample:
        return read_labels(sample, ignore_index=ignore_index, name='a sample')[0]
    return sample['pred_label']


def _read(image: ImageLogits, ignore_index: int) -> tuple[Tensor, Tensor]:
    logits, _, predicted = read_logits(
        image.sample, image.logits, ignore_index=ignore_index, name=image.name
    )
    return logits, predicted
