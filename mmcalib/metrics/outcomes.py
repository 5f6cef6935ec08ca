"""Outcomes: the confidence of each prediction, whether it is correct, and how wrong it is.

They are computed for a few predictions at a time, whose scores a cache holds, so that each score is
read from memory once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from mmcalib.errors import UserError
from mmcalib.metrics.bins import bin_index, bin_table
from mmcalib.metrics.ties import confidence_code
from mmcalib.predictions.contract import MANY_CLASSES
from mmcalib.predictions.image_predictions import ImagePredictions, class_columns
from mmcalib.tensors import at_least_single, check_softmax_logits, smallest_probability

# Inverse temperatures β; the temperature is from 16 to 1/16.
BETAS = tuple(2 ** (power / 4) for power in range(-16, 17))
BETAS_PER_DOUBLING = 4
# The scores of one piece: about as many as the cache of a core holds.
PIECE_BYTES = 1 << 21
GPU_PIECE_BYTES = 1 << 26


class Outcomes(NamedTuple):
    """The outcomes of M predictions, on the CPU; a statistic that is not required is None.

    Attributes:
        conf: ``(M,)`` probability of the predicted class.
        correct: ``(M,)`` booleans.
        predicted: ``(M,)`` int64 classes.
        nll: ``(M,)`` float64, in nats.
        conf_code: ``(M,)`` int32, see :func:`~mmcalib.metrics.ties.confidence_code`.
        brier: ``(M,)`` float64, the sum over classes of (probability - [is the true class])².
        class_bins: ``(3, K, B)`` bins of the probabilities of each class, with the number of its
            labels as the correct ones.
        nll_curve: ``(33,)`` float64, the sum of the NLL at each of ``BETAS``.
        ignored_conf: ``(I,)`` confidences of the predictions of a map that are not valid.
    """

    conf: Tensor
    correct: Tensor
    predicted: Tensor
    nll: Tensor
    conf_code: Tensor | None = None
    brier: Tensor | None = None
    class_bins: Tensor | None = None
    nll_curve: Tensor | None = None
    ignored_conf: Tensor | None = None


def compute_outcomes(
    predictions: ImagePredictions, *, num_bins: int = 15, required: Collection[str] = ()
) -> Outcomes:
    """Return the outcomes of the valid predictions of one map, or of rows.

    A constant added to all logits of a prediction changes nothing, however large it is.

    Args:
        predictions: One map, or rows, with labels.
        num_bins: B of the bins of all classes.
        required: Some of ``conf_code``, ``brier``, ``class_bins``, ``nll_curve`` and
            ``ignored_conf``.

    Raises:
        UserError: If logits are NaN or infinite, or not those of the predicted classes.
    """
    scores = predictions.scores
    num_scores = scores.shape[1]
    are_logits = predictions.probs is None and num_scores > 1
    if predictions.probs is None and num_scores == 1:
        # Both are computed, since 1 - p would have lost the digits of a p next to 1.
        logits = at_least_single(scores)
        scores = torch.cat([(-logits).sigmoid(), logits.sigmoid()], dim=1)
    lowest = lowest_probabilities(scores)
    columns = class_columns(scores)
    predicted = predictions.predicted.flatten()
    valid = predictions.valid.flatten()
    # The label of an ignored prediction does not matter, but has to be the index of a class.
    label = torch.where(valid, predictions.labels.flatten(), predicted)
    masks = [(valid, required)]
    if 'ignored_conf' in required:
        masks.append((~valid, ()))
    parts_by_mask: list[list[Outcomes]] = [[] for _ in masks]
    all_masks = [mask for mask, _ in masks]
    for piece, piece_predicted, piece_label, *piece_masks in pieces(
        columns, predicted, label, *all_masks
    ):
        for (_, statistics), mask, parts in zip(masks, piece_masks, parts_by_mask, strict=True):
            selected = select_columns(
                mask,
                piece,
                piece_predicted,
                piece_label,
                are_overwritten=are_logits or bool(statistics),
            )
            if are_logits:
                outcomes = outcomes_of_logits(*selected, num_bins, statistics)
            else:
                outcomes = outcomes_of_probabilities(*selected, num_bins, statistics, lowest)
            parts.append(outcomes)
    joined = [concatenate_outcomes(parts) for parts in parts_by_mask]
    if are_logits and not all(outcomes.nll.sum().isfinite() for outcomes in joined):
        check_predicted(columns, predicted, predictions.name, label)
    outcomes = joined[0]
    if 'ignored_conf' in required:
        outcomes = outcomes._replace(ignored_conf=joined[1].conf)
    return outcomes


def check_predicted(
    logits: Tensor, predicted: Tensor, name: str, labels: Tensor | None = None
) -> None:
    """Raise a UserError for logits ``(K, *)`` that are not finite, or not of these predictions.

    It prevents a wrong number: the logits of another prediction have another calibration.

    Args:
        logits: ``(K, *)``; for K = 1 the predicted classes are not checked.
        predicted: ``(*)`` predicted classes.
        name: Name of the image in the error.
        labels: ``(*)`` true classes, which may not be masked; None if they do not matter.
    """
    check_softmax_logits(logits, f'seg_logits of {name}', class_axis=0, labels=labels)
    if len(logits) == 1:
        return
    is_lower = logits.gather(0, predicted[None])[0] < logits.amax(dim=0)
    num_lower = int(is_lower.sum())
    if num_lower:
        raise UserError(
            f'pred_sem_seg of {name} is not the argmax of its seg_logits at {num_lower} pixels. '
            'Under test-time augmentation mmseg keeps only the logits of the last augmentation, '
            'which are not those of the prediction: test without it'
        )


def outcomes_of_logits(
    gaps: Tensor, predicted: Tensor, label: Tensor, num_bins: int, required: Collection[str]
) -> Outcomes:
    """Return the outcomes of ``(K, M)`` logits, which are overwritten.

    The NLL is NaN where another class has a higher logit than the predicted one.
    """
    predicted_logit = gaps.gather(0, predicted[None])[0]
    label_logit = gaps.gather(0, label[None])[0]
    gaps -= predicted_logit
    # In float64, since at 3e38 the difference of two logits is beyond float32.
    nll = predicted_logit.double() - label_logit.double()
    if gaps.numel() and gaps.amax() > 0:  # This is cheaper than a maximum of each prediction.
        nll *= torch.nan
    curve = nll_curve(gaps, label) if 'nll_curve' in required else None
    total = gaps.exp_().sum(dim=0)
    nll += total.double().log()
    ranking_scale = None
    if 'conf_code' in required:
        ranking_scale = gaps.sum(dim=0, dtype=torch.float64).reciprocal()
    outcomes = outcomes_of_scaled(
        gaps,
        total.reciprocal(),
        ranking_scale,
        torch.ones_like(predicted_logit),
        predicted,
        label,
        nll,
        num_bins,
        required,
    )
    return outcomes._replace(nll_curve=curve)


def outcomes_of_probabilities(
    probs: Tensor,
    predicted: Tensor,
    label: Tensor,
    num_bins: int,
    required: Collection[str],
    lowest: Tensor,
) -> Outcomes:
    """Return the outcomes of ``(K, M)`` probabilities; K = 1 becomes two.

    They are overwritten if a statistic is required.

    Args:
        probs: Probabilities, which may be a little above 1.
        predicted: ``(M,)`` predicted classes.
        label: ``(M,)`` true classes.
        num_bins: B of the bins of all classes.
        required: See :func:`compute_outcomes`.
        lowest: ``(K,)`` probability that replaces a lower one of each class in the NLL.
    """
    if len(probs) == 1:
        probs = torch.cat([1 - probs, probs])
    if required:
        probs = probs.clamp_(max=1)
    label_prob = probs.gather(0, label[None])[0].clamp_(max=1)
    nll = -label_prob.clamp(min=lowest[label]).log().double()
    curve = None
    if 'nll_curve' in required:
        logs = probs.clamp(min=lowest[:, None]).log()
        curve = nll_curve(logs - logs.amax(dim=0), label)
    conf = probs.gather(0, predicted[None])[0].clamp_(max=1)
    scale = torch.ones((), dtype=probs.dtype, device=probs.device)
    outcomes = outcomes_of_scaled(
        probs, scale, scale, conf, predicted, label, nll, num_bins, required
    )
    return outcomes._replace(nll_curve=curve)


def outcomes_of_scaled(
    values: Tensor,
    scale: Tensor,
    ranking_scale: Tensor | None,
    predicted_value: Tensor,
    predicted: Tensor,
    label: Tensor,
    nll: Tensor,
    num_bins: int,
    required: Collection[str],
) -> Outcomes:
    """Return the outcomes of ``(K, M)`` probabilities, which are `values` times a scale.

    The values are overwritten. Sums that rank predictions are float64, since those of float32
    depend on the order of the classes in their last bit, which would part what is tied.

    Args:
        values: ``(K, M)``.
        scale: ``(M,)``, or a number.
        ranking_scale: The scale, computed from a sum in float64; None if nothing is ranked.
        predicted_value: ``(M,)`` values of the predicted classes.
        predicted: ``(M,)`` predicted classes.
        label: ``(M,)`` true classes.
        nll: ``(M,)`` float64.
        num_bins: B of the bins of all classes.
        required: See :func:`compute_outcomes`.
    """
    conf = predicted_value * scale
    conf_code = None
    if 'conf_code' in required:
        values.scatter_(0, predicted[None], 0)
        sum_of_others = values.sum(dim=0, dtype=torch.float64) * ranking_scale
        ranking_conf = (predicted_value * ranking_scale).to(conf.dtype)
        conf_code = confidence_code(ranking_conf, sum_of_others)
        values.scatter_(0, predicted[None], predicted_value[None])
    class_bins = None
    brier = None
    if 'class_bins' in required or 'brier' in required:
        values *= scale
        if 'class_bins' in required:
            class_bins = bins_of_all_classes(values, label, num_bins)
        label_prob = values.gather(0, label[None])[0]
        brier = values.square_().sum(dim=0) - 2 * label_prob + 1
        brier = brier.clamp_(min=0).double()
    return Outcomes(
        conf=conf,
        correct=predicted == label,
        predicted=predicted,
        nll=nll,
        conf_code=conf_code,
        brier=brier,
        class_bins=class_bins,
    )


def lowest_probabilities(scores: Tensor) -> Tensor:
    """Return the least probability of each class in the NLL, by the type of float.

    A probability p of class 1 of two tells 1 - p with the precision of p near 1: in float32 there
    is no number between 1 - 2⁻²⁴ and 1. So the least probability of class 0 is a quarter of the
    type's resolution, and its NLL is at most 17 nats.
    """
    smallest = smallest_probability(scores.dtype)
    if scores.shape[1] > 1:
        values = [smallest] * scores.shape[1]
    else:
        values = [torch.finfo(scores.dtype).eps / 4, smallest]
    dtype = torch.float64 if scores.dtype == torch.float64 else torch.float32
    return torch.tensor(values, dtype=torch.float64, device=scores.device).to(dtype)


def pieces(values: Tensor, *columns: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Yield a few of the M columns of ``(K, M)`` values at a time, with the rest of each column."""
    piece_bytes = PIECE_BYTES if values.device.type == 'cpu' else GPU_PIECE_BYTES
    step = max(piece_bytes // (len(values) * values.element_size()) // 64 * 64, 64)
    parts = [tensor.split(step, dim=-1) for tensor in (values, *columns)]
    return zip(*parts, strict=True)


def concatenate_outcomes(parts: Sequence[Outcomes]) -> Outcomes:
    """Return the outcomes of all parts, on the CPU."""
    fields = {}
    for name, values in zip(Outcomes._fields, zip(*parts, strict=True), strict=True):
        if values[0] is None:
            fields[name] = None
        elif name in ('class_bins', 'nll_curve'):
            fields[name] = sum(values).cpu()
        else:
            fields[name] = torch.cat(values).cpu()
    return Outcomes(**fields)


def nll_curve(gaps: Tensor, label: Tensor) -> Tensor:
    r"""Return the sum of the NLL at each of :data:`BETAS`, ``(33,)``.

    .. math:: \sum_i \log \sum_k e^{\beta g_{ik}} - \beta g_{i y_i}

    Args:
        gaps: ``(K, M)`` logits, less the highest of each prediction.
        label: ``(M,)`` int64 true classes.
    """
    sum_of_label_gaps = gaps.gather(0, label[None]).sum(dtype=torch.float64)
    sums: list[Tensor | None] = [None] * len(BETAS)
    exps = torch.empty_like(gaps)
    for first in range(BETAS_PER_DOUBLING):
        torch.mul(gaps, BETAS[first], out=exps).exp_()
        for index in range(first, len(BETAS), BETAS_PER_DOUBLING):
            if index > first:
                exps.square_()  # This doubles β in a tenth of the time of another exponential.
            logs = exps.sum(dim=0).log().sum(dtype=torch.float64)
            sums[index] = logs - BETAS[index] * sum_of_label_gaps
    return torch.stack(sums)


def bins_of_all_classes(probs: Tensor, label: Tensor, num_bins: int) -> Tensor:
    """Return the ``(3, K, B)`` bins of the ``(K, M)`` probabilities of each class.

    One or two probabilities of a trained network's prediction lie above 1/B. Only the bins of these
    are looked up, and all others are in the first bin.
    """
    num_classes, count = probs.shape
    index = true_indices((probs > (1 - 1e-5) / num_bins).flatten())
    prob = probs.flatten().index_select(0, index)
    class_index = index.div(max(count, 1), rounding_mode='floor')
    is_label = label.index_select(0, index - class_index * count) == class_index
    position = class_index * num_bins + bin_index(prob, num_bins)
    table = bin_table(position, prob, is_label, num_classes, num_bins)
    label_count = torch.bincount(label, minlength=num_classes).double()
    whole = torch.stack(
        [
            label_count.new_full((num_classes,), count),
            label_count,
            probs.sum(dim=1, dtype=torch.float64),
        ]
    )
    table[:, :, 0] += (whole - table.sum(dim=2)).clamp(min=0)
    return table


def select_columns(
    mask: Tensor, scores: Tensor, predicted: Tensor, label: Tensor, *, are_overwritten: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the scores ``(K, M)`` in a mask, and their predicted and true classes.

    The scores are float32 or float64; those that will be overwritten are a copy.
    """
    if mask.all():  # Copying takes half as long as selecting.
        dtype = torch.float64 if scores.dtype == torch.float64 else torch.float32
        if scores.dtype == dtype and not are_overwritten:
            return scores, predicted, label
        if len(scores) >= MANY_CLASSES:  # Rows of these stay rows, which saves a fifth of the time.
            return scores.to(dtype, copy=True), predicted, label
        copy = torch.empty(scores.shape, dtype=dtype, device=scores.device).copy_(scores)
        return copy, predicted, label
    index = true_indices(mask)
    selected = at_least_single(scores.index_select(1, index))
    return selected, predicted.index_select(0, index), label.index_select(0, index)


def true_indices(mask: Tensor) -> Tensor:
    """Return the indices at which a ``(n,)`` mask is true.

    Selecting by index is several times as fast as selecting by mask.
    """
    if mask.device.type == 'cpu':  # It takes 0.2 ms for 375 x 500 pixels, where torch takes 1.0.
        return torch.from_numpy(np.flatnonzero(mask.numpy()))
    return mask.nonzero().squeeze(1)
