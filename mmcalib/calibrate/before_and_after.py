"""A model on a split before and after its calibration: metrics, and the proof that it is right."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from mmengine.structures import BaseDataElement
from torch import Tensor, nn

from mmcalib.metrics import CalibrationMetric
from mmcalib.posthoc.fold_into_layer import largest_difference, swapped_parameters
from mmcalib.posthoc.full_precision import full_precision
from mmcalib.posthoc.logit_scaler import LogitScaler
from mmcalib.posthoc.model_logits import ImageLogits, predictor, progress
from mmcalib.samples.evaluated import read_labels, read_logits

COMPARED_METRICS = ('ECE', 'AECE', 'NLL', 'Brier', 'accuracy')


@dataclass
class BeforeAndAfter:
    """A model on a split, before and after it was calibrated.

    Attributes:
        before: Metrics by name, in percent but for NLL and Brier.
        after: The same afterwards.
        num_predictions: How many valid predictions there are.
        changed: Of how many of them the predicted class is another.
        difference: The largest difference of a written model's logit from a scaled one, relative
            to the largest scaled logit if that is above 1.
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
    """Run a model on a split as it is and folded, and hold all folded logits against scaled ones.

    With folds, the figures after are of each image under the scaling of its fold; the scaling to
    write is proven on all images as well.

    Args:
        model: See :func:`~mmcalib.posthoc.model_logits.predictor`.
        loader: Batches of the split.
        scaler: What was folded.
        tensors: The folded tensors by key.
        folds: The same for each fold of the images.
        fold_of: The fold of each image; None without folds.
        num_bins: Of ECE and AECE.
        ignore_index: Label of the pixels to leave out.
        text: What the progress bar says.
    """
    before, after = (
        CalibrationMetric(COMPARED_METRICS, num_bins=num_bins, ignore_index=ignore_index)
        for _ in range(2)
    )
    total = changed = images = 0
    difference = 0.0
    with predictor(model) as predict:
        for batch in progress(loader, text):
            ours = predict(batch)
            # Both runs write into the same data samples, so those of the first are read first.
            read = [_read(image, ignore_index) for image in ours]
            before.process(None, [image.sample for image in ours])
            last = len(folds)  # the scaling to write
            places = range(images, images + len(ours))
            scored_by = [last if fold_of is None else int(fold_of[place]) for place in places]
            images += len(ours)
            for number in sorted({last, *scored_by}):
                own, own_tensors = folds[number] if number < last else (scaler, tensors)
                with swapped_parameters(model, own_tensors):
                    folded = predict(batch)
                scored = [by == number for by in scored_by]
                after.process(
                    None, [image.sample for image, its in zip(folded, scored, strict=True) if its]
                )
                for (logits, predicted), image, its in zip(read, folded, scored, strict=True):
                    new_logits, new_predicted = _read(image, ignore_index)
                    if its:
                        total += len(predicted)
                        changed += int((predicted != new_predicted).sum())
                    if len(predicted):
                        scaled = own.transform(logits)
                        difference = max(difference, largest_difference([scaled], [new_logits]))
    values = [_evaluated(metric, images) for metric in (before, after)]
    return BeforeAndAfter(*values, num_predictions=total, changed=changed, difference=difference)


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
        model: See :func:`~mmcalib.posthoc.model_logits.predictor`.
        loader: Batches of the split.
        change: Called with the place of an image in the loader and its data sample, which it
            changes; returns the ``difference`` of the image.
        num_bins: Of ECE and AECE.
        ignore_index: Label of the pixels to leave out.
        text: What the progress bar says.
    """
    before, after = (
        CalibrationMetric(COMPARED_METRICS, num_bins=num_bins, ignore_index=ignore_index)
        for _ in range(2)
    )
    total = changed = images = 0
    difference = 0.0
    model.eval()
    with torch.no_grad(), full_precision():
        for batch in progress(loader, text):
            samples = model.val_step(batch)
            before.process(None, [sample.to_dict() for sample in samples])
            first = [_predicted(sample.to_dict(), ignore_index) for sample in samples]
            for place, sample in enumerate(samples, start=images):
                difference = max(difference, change(place, sample))
            after.process(None, [sample.to_dict() for sample in samples])
            for one, sample in zip(first, samples, strict=True):
                changed += int((one != _predicted(sample.to_dict(), ignore_index)).sum())
                total += len(one)
            images += len(samples)
    values = [_evaluated(metric, images) for metric in (before, after)]
    return BeforeAndAfter(*values, num_predictions=total, changed=changed, difference=difference)


def _evaluated(metric: CalibrationMetric, images: int) -> dict[str, float]:
    return {key.split('/')[-1]: value for key, value in metric.evaluate(images).items()}


def _predicted(sample: Mapping, ignore_index: int) -> Tensor:
    if 'pred_sem_seg' in sample:
        return read_labels(sample, ignore_index=ignore_index, name='a sample')[0]
    return sample['pred_label']


def _read(image: ImageLogits, ignore_index: int) -> tuple[Tensor, Tensor]:
    logits, _, predicted = read_logits(
        image.sample, image.logits, ignore_index=ignore_index, name=image.name
    )
    return logits, predicted
