"""The choice of a scaling by its cross-validated likelihood: the simplest as good as any."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from mmcalib.calibration.cross_fit import fit_folds
from mmcalib.calibration.data_checks import check_order
from mmcalib.calibration.held_out import HeldOut
from mmcalib.choices import AUTO
from mmcalib.errors import UserError
from mmcalib.metrics.image_scores import image_risks
from mmcalib.posthoc.affine import TemperatureScaler
from mmcalib.posthoc.binary import PlattScaler
from mmcalib.posthoc.fit_rows import group_sums
from mmcalib.posthoc.logits import with_other_class
from mmcalib.posthoc.methods import SCALERS
from mmcalib.posthoc.per_label import Scaler
from mmcalib.posthoc.scaler import LogitScaler
from mmcalib.predictions.image_predictions import ImagePredictions
from mmcalib.predictions.progress import progress

NONE = 'none'
# Methods to choose from, the simplest first.
METHODS_OF_ALL = ('temperature', 'platt', 'vector', 'beta', 'ets')
METHODS_OF_PIXELS = ('class-temperatures', 'class-conditional')
# Methods with K² and K³ parameters are of no use where classes are many.
MOST_CLASSES = {'matrix': 100, 'class-conditional': 30}
# Fewer groups do not tell which method holds for others.
LEAST_GROUPS = 10
# A temperature so many of its standard errors from 1 is not told from 1.
INDISTINCT = 2.0


def default_scaler(num_logits: int) -> LogitScaler:
    """Return a scaler of the default method: a temperature, and of two classes Platt's map.

    A temperature leaves the threshold of two classes where it is, which their weights move. Two
    logits are those of a sigmoid of their difference, so what holds for one sigmoid holds for them.
    In 100 or 200 draws each of 10 to 20,000 images of 18 networks, trained plainly and with
    `pos_weight`, the mean NLL after Platt's map was at most 0.003 nats above that after a
    temperature, and up to 0.47 nats below. The choice by a standard error stayed up to 0.13 nats
    above Platt's map, where positives are rare (``tools/benchmarks/two_classes.py``).
    """
    return PlattScaler() if num_logits <= 2 else TemperatureScaler()


def helps_few_groups(temperature: float, standard_error: float) -> bool:
    """Return whether a temperature of fewer than ten groups is better than none on other data.

    It is if it lies above 1 by two standard errors. One below 1 is not taken: few groups differ
    from others by more than their standard error tells, and to sharpen in vain costs more than to
    leave what is under-confident.

    8,100 fits to five runs of one simulated video: T ± 2 SE holds the best T of other videos in 20
    to 57 % of them. To take no T below 1 lowers the mean NLL of other videos by 0 to 0.019 nats
    where their best T is above 0.9, and raises it by 0 to 0.031 where that is 0.74 or 0.82.
    """
    return temperature > 1 and errors_from_one(temperature, standard_error) > INDISTINCT


def errors_from_one(temperature: float, standard_error: float) -> float:
    """Return how many standard errors a temperature is away from 1, of their logarithms."""
    return abs(math.log(temperature)) * temperature / standard_error


def methods_for(num_logits: int, *, num_groups: int, pixels: bool) -> list[str]:
    """Return the methods that suit a head, the simplest first.

    Args:
        num_logits: K, 1 for a sigmoid.
        num_groups: The number of independent groups of images. If they are few, the method of one
            parameter alone is left.
        pixels: Whether the head predicts pixels.
    """
    if num_groups < LEAST_GROUPS:
        return ['temperature']
    # Two logits are those of a sigmoid of their difference.
    heads = {1: {'sigmoid'}, 2: {'sigmoid', 'softmax'}}.get(num_logits, {'softmax'})
    names = [*METHODS_OF_ALL]
    if pixels:
        names += METHODS_OF_PIXELS
    names.append('matrix')
    methods = []
    for name in names:
        most_classes = MOST_CLASSES.get(name, num_logits)
        if heads & {*SCALERS[name].heads} and num_logits <= most_classes:
            methods.append(name)
    return methods


def scaler_for_head(
    method: str | LogitScaler | None, predictions: ImagePredictions
) -> LogitScaler | None:
    """Return a method, with its options, for a head; None if it is to be chosen.

    Args:
        method: See :func:`mmcalib.calibrate`.
        predictions: Some predictions of the head.

    Raises:
        UserError: If the method is not for such a head.
    """
    if method == AUTO:
        return None
    if method is None:
        scaler = default_scaler(predictions.logits.shape[1])
    elif isinstance(method, LogitScaler):
        scaler = method
    else:
        scaler = SCALERS[method]()
    scaler.check_head(predictions.logits)
    return scaler


def choose_method(data: HeldOut, methods: Sequence[str]) -> tuple[str, list[dict]]:
    r"""Return the simplest method whose NLL is within a standard error of the lowest.

    Each prediction is scored by a scaling that was fitted without the fold of its image. The
    standard error is that of the difference to the best method, with images, groups of them, or
    runs of neighbours as the observations:

    .. math:: \mathrm{SE} = \frac1N \sqrt{\sum_g \Big(\sum_{i \in g} (d_i - \bar d)\Big)^2}

    Source: Hastie, Tibshirani and Friedman, The Elements of Statistical Learning, 7.10, for the
    one-standard-error rule.

    Args:
        data: The predictions.
        methods: The candidates, the simplest first; that of no scaling comes before all.

    Returns:
        The method, ``'none'`` for no scaling, and a dict for each candidate, measured on images
        that its fit did not see: ``nll``, the mean of a prediction, NaN if it could not be fitted;
        ``above_best``, its difference to the lowest, and the ``standard_error`` of this;
        ``accuracy`` and ``miou`` in percent, the latter None but for pixels; ``seconds`` of a
        fit, on average; ``problem``, the reason why it could not be fitted, None if it could.
    """
    labels = data.pooled.labels
    losses: dict[str, Tensor] = {}
    candidates = []
    for method in progress((NONE, *methods), 'Comparing methods'):
        candidate = {
            'method': method,
            'nll': math.nan,
            'above_best': math.nan,
            'standard_error': math.nan,
            'accuracy': math.nan,
            'miou': None,
            'seconds': 0.0,
            'problem': None,
        }
        candidates.append(candidate)
        scalers: list[Scaler] = []
        if method != NONE:
            start = time.perf_counter()
            try:
                scaler = scaler_for_head(method, data.draw.rows)
                scalers = fit_folds(scaler, data)
                for fold_scaler in scalers:
                    check_order(fold_scaler, data)
            except UserError as error:
                candidate['problem'] = str(error)
                continue
            candidate['seconds'] = (time.perf_counter() - start) / len(scalers)
        scaled = cross_scaled_logits(scalers, data)
        scaled = with_other_class(scaled)
        losses[method] = cross_entropy(scaled, labels, reduction='none')
        predicted = scaled.argmax(dim=1)
        candidate['nll'] = losses[method].mean().item()
        candidate['accuracy'] = 100 * (predicted == labels).double().mean().item()
        if data.draw.pixels:
            risks = image_risks(predicted, labels, ignore_index=None)
            candidate['miou'] = 100 * (1 - risks['IoU'])
    group_index = data.pooled.images
    if data.groups.run_of_group is not None:
        group_index = data.groups.run_of_group[group_index]
    add_differences(candidates, losses, group_index)
    as_good = [entry for entry in candidates if entry['above_best'] <= entry['standard_error']]
    return as_good[0]['method'], candidates


def add_differences(
    candidates: Sequence[dict], losses: Mapping[str, Tensor], group_index: Tensor
) -> None:
    """Write into each candidate its difference to the best, and the standard error of this.

    Args:
        candidates: The candidates, see :func:`choose_method`.
        losses: ``(M,)`` NLL of the predictions by method; a method that was not fitted is left out.
        group_index: The independent group of each prediction, ``(M,)`` int64.
    """
    best = min(losses.values(), key=Tensor.mean)
    for candidate in candidates:
        if candidate['method'] not in losses:
            continue
        excess = losses[candidate['method']] - best
        candidate['above_best'] = excess.mean().item()
        spread = group_sums(excess - excess.mean(), group_index).square().sum().sqrt()
        candidate['standard_error'] = (spread / len(excess)).item()


def cross_scaled_logits(scalers: Sequence[Scaler], data: HeldOut) -> Tensor:
    """Return the logits of :attr:`HeldOut.pooled`, float64, each scaled by the scaler of its fold.

    Args:
        scalers: The scaler of each fold; none to leave the logits as they are.
        data: The predictions.
    """
    scaled = data.rows.logits.to(torch.float64, copy=True)
    fold = data.folds[data.rows.images]
    for number, scaler in enumerate(scalers):
        is_in_fold = fold == number
        scaled[is_in_fold] = scaler.transform(scaled[is_in_fold])
    return replace(data.rows, logits=scaled).pool_labels().logits
