"""Metrics before and after a scaling; each prediction is scaled by the scaling of its fold."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from mmcalib.calibration.cross_fit import Scalings
from mmcalib.metrics.class_rates import ClassRates, RateTally
from mmcalib.metrics.intervals import bootstrap_weights, metric_values
from mmcalib.metrics.measurement import DEFAULT_METRICS
from mmcalib.metrics.streaming import StreamingMetrics
from mmcalib.metrics.unit_tables import UnitTables
from mmcalib.posthoc.per_label import Scaler
from mmcalib.predictions.distributed import gather_one_process
from mmcalib.predictions.image_predictions import ImagePredictions

# The number of logits that are scaled and measured at a time.
MOST_LOGITS = 1_000_000
NUM_BOOTSTRAP = 200  # draws, which tell a standard error to 5 %


@dataclass
class Effect:
    """Metrics before and after a scaling; in percent but for NLL and Brier score.

    Attributes:
        before: Metrics of the predictions as they are, by name.
        after: Metrics of the scaled predictions, each scaled by the scaling of its fold.
        errors: Standard errors of both over independent groups, by ``'before'`` and ``'after'``
            and name. AECE, whose bins are not fixed, has none.
        num_predictions: The number of predictions that were measured.
        changed: The number of those whose predicted class is another after the scaling that was
            fitted to all, which is that of the calibrated model.
        rates: Mean probability and frequency of each class by ``'before'`` and ``'after'``; empty
            for too many images and classes.
        threshold: The probability above which a sigmoid predicts its class; None of a softmax.
        majority: The share of the most frequent class among the labels of the predictions, in
            percent; None of several labels.
        gap: Mean confidence less accuracy after the scaling, in points, and its standard error over
            independent groups; None of two classes and of several labels, and of one group.
    """

    before: dict[str, float]
    after: dict[str, float]
    errors: dict[str, dict[str, float]]
    num_predictions: int
    changed: int
    rates: dict[str, ClassRates] = field(default_factory=dict)
    threshold: float | None = None
    majority: float | None = None
    gap: tuple[float, float] | None = None


def measure_effect(
    batches: Iterable[ImagePredictions],
    scalings: Scalings,
    group_of_image: Tensor | None = None,
    *,
    returned_scaler: Scaler | None = None,
    threshold: float | None = 0.5,
    num_bins: int = 15,
    gather: Callable[[Any], list] = gather_one_process,
) -> Effect:
    """Measure predictions before and after a scaling, in one pass.

    Args:
        batches: The predictions that this process has read.
        scalings: The scalings that score the images.
        group_of_image: The group of each image by its index, ``(n,)`` int64; None if every image
            is a group.
        returned_scaler: The scaler that was fitted to all; None without folds.
        threshold: The probability above which a sigmoid predicts its class; None if the classes
            stay, as those of a head that predicts the labels of the highest scores.
        num_bins: The number of bins of ECE and AECE.
        gather: A function that returns a list of the values of all processes, which all have to
            call this; by default each process measures for itself.
    """
    before = _stream(num_bins, gather)
    after = _stream(num_bins, gather)
    are_of_sigmoids = False
    rates_before = RateTally()
    rates_after = RateTally()
    num_predictions = 0
    label_counts: Tensor | int = 0
    changed = 0
    for part, scaler in scored_parts(batches, scalings):
        are_of_sigmoids = part.are_of_sigmoid
        scaled = scale_predictions(part, scaler, threshold)
        num_predictions += int(part.valid.sum())
        if not part.several_labels:
            valid_labels = part.labels[part.valid].cpu()
            label_counts = label_counts + torch.bincount(valid_labels, minlength=part.num_classes)
        predicted = scaled.predicted
        if returned_scaler is not None and returned_scaler is not scaler:
            predicted = predict_scaled(part, returned_scaler, threshold)
        changed += int(((predicted != part.predicted) & part.valid).sum())
        before.add(part)
        after.add(scaled)
        rates_before.add(part)
        rates_after.add(scaled)
    shares = gather((num_predictions, changed, label_counts))
    values = {}
    errors = {}
    for name, stream in (('before', before), ('after', after)):
        values[name] = dict(stream.compute())
        tables = _tables_of_groups(stream, group_of_image)
        errors[name] = _standard_errors(values[name], tables)
    label_counts = sum(share[2] for share in shares)
    has_labels = torch.is_tensor(label_counts) and label_counts.sum() > 0
    rates = {
        'before': rates_before.rates(group_of_image, gather),
        'after': rates_after.rates(group_of_image, gather),
    }
    return Effect(
        before=values['before'],
        after=values['after'],
        errors=errors,
        num_predictions=sum(share[0] for share in shares),
        changed=sum(share[1] for share in shares),
        rates={name: of_classes for name, of_classes in rates.items() if of_classes is not None},
        threshold=threshold if any(gather(are_of_sigmoids)) else None,
        majority=_majority(label_counts) if has_labels else None,
        gap=_gap(tables) if has_labels and len(label_counts) > 2 else None,
    )


def scored_parts(
    batches: Iterable[ImagePredictions], scalings: Scalings
) -> Iterator[tuple[ImagePredictions, Scaler]]:
    """Yield a few predictions at a time, and the scaling that scores them."""
    for batch in batches:
        for part in split_entries(batch):
            if scalings.fold_of_image is None:
                yield part, scalings.scalers[0]
                continue
            folds = scalings.fold_of_image[part.images]
            for fold in folds.unique().tolist():
                yield part.select(folds == fold), scalings.scalers[fold]


def split_entries(predictions: ImagePredictions) -> Iterator[ImagePredictions]:
    """Yield a few entries at a time, as views, so that no copy of all logits is made."""
    logits_per_entry = max(predictions.logits[:1].numel(), 1)
    step = max(MOST_LOGITS // logits_per_entry, 1)
    for first in range(0, len(predictions), step):
        yield predictions.select(slice(first, first + step))


def scale_predictions(
    part: ImagePredictions, scaler: Scaler, threshold: float | None
) -> ImagePredictions:
    """Return predictions with scaled logits, and the classes that these predict.

    Args:
        part: The predictions, with logits.
        scaler: The fitted scaler.
        threshold: The probability above which a sigmoid predicts its class; None if the classes
            stay, as those of a head that predicts the labels of the highest scores.
    """
    logits = scaler.transform(part.logits)
    predicted = part.predicted
    if logits.shape[1] == 1:
        if threshold is not None:
            predicted = (logits[:, 0].sigmoid() > threshold).long()
    elif not scaler.keeps_argmax:
        predicted = logits.argmax(dim=1)
    return replace(part, logits=logits, probs=None, predicted=predicted)


def predict_scaled(part: ImagePredictions, scaler: Scaler, threshold: float | None) -> Tensor:
    """Return the classes of :func:`scale_predictions`, scaling only where they may change."""
    if part.logits.shape[1] > 1 and scaler.keeps_argmax:
        return part.predicted
    return scale_predictions(part, scaler, threshold).predicted


def _stream(num_bins: int, gather: Callable[[Any], list]) -> StreamingMetrics:
    """Return an empty stream that keeps bins and sums of each image."""
    return StreamingMetrics(
        DEFAULT_METRICS, num_bins=num_bins, keep_images=True, per_label=False, gather=gather
    )


def _tables_of_groups(stream: StreamingMetrics, group_of_image: Tensor | None) -> UnitTables:
    """Return the tables of each group; every image is one where no groups are known."""
    if group_of_image is None:
        return stream.image_tables()
    return stream.group_tables(group_of_image)


def _standard_errors(names: Iterable[str], tables: UnitTables) -> dict[str, float]:
    """Return the standard errors of metrics over groups, by a bootstrap. One group has none."""
    draws: dict[str, list[Tensor]] = {}
    if len(tables.bins) > 1:
        for weights in bootstrap_weights(len(tables.bins), num_bootstrap=NUM_BOOTSTRAP, seed=0):
            for name, values in metric_values(names, tables, weights).items():
                draws.setdefault(name, []).append(values)
    return {name: torch.cat(values).std().item() for name, values in draws.items()}


def _majority(label_counts: Tensor) -> float:
    """Return the share of the most frequent class, in percent."""
    return 100 * label_counts.max().item() / label_counts.sum().item()


def _gap(tables: UnitTables) -> tuple[float, float] | None:
    """Return mean confidence less accuracy in points, and its standard error over the units."""
    if len(tables.bins) < 2:
        return None
    count, correct, sum_of_conf = tables.bins.sum(dim=2).unbind(dim=1)
    excess = sum_of_conf - correct
    gap = excess.sum() / count.sum()
    num_units = len(count)
    squares = (excess - gap * count).square().sum() * num_units / (num_units - 1)
    return 100 * gap.item(), 100 * (squares.sqrt() / count.sum()).item()
