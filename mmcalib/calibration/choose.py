"""Choosing a scaling by its cross-validated likelihood: the simplest that is as good as any."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from mmcalib.calibration.draw import DrawnPredictions
from mmcalib.calibration.folds import fit_folds
from mmcalib.errors import UserError
from mmcalib.metrics.image_scores import image_risks
from mmcalib.posthoc.fit_rows import group_sums
from mmcalib.posthoc.logits import with_other_class
from mmcalib.posthoc.methods import SCALERS
from mmcalib.posthoc.scaler import LogitScaler
from mmcalib.predictions.progress import progress

NONE = 'none'
# Methods to choose from, the simplest first.
OF_ALL = ('temperature', 'platt', 'vector', 'beta', 'ets')
OF_PIXELS = ('class-temperatures', 'class-conditional')
# Those with K² and K³ parameters are of no use where classes are many.
MOST_CLASSES = {'matrix': 100, 'class-conditional': 30}
# Of these, and not of all images, a choice between methods is learnt.
LEAST_GROUPS = 10
# A temperature so many of its standard errors from 1 is not told from 1.
INDISTINCT = 2.0
FEW_GROUPS = (
    'Of fewer than ten groups only a temperature is taken, and only if it is above 1 by two '
    'standard errors: they do not tell which other scaling would hold on further ones.'
)


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


def methods_for(num_logits: int, *, groups: int, pixels: bool) -> list[str]:
    """Return the methods that suit a head, the simplest first.

    Args:
        num_logits: K, 1 of a sigmoid.
        groups: How many groups of images are independent. Few do not tell what holds for others:
            then only the method of one parameter is left.
        pixels: Whether it predicts pixels.
    """
    if groups < LEAST_GROUPS:
        return ['temperature']
    head = 'sigmoid' if num_logits == 1 else 'softmax'
    return [
        name
        for name in (*OF_ALL, *(OF_PIXELS if pixels else ()), 'matrix')
        if head in SCALERS[name].heads and num_logits <= MOST_CLASSES.get(name, num_logits)
    ]


def choose_method(
    drawn: DrawnPredictions, fold_of: Tensor, methods: Sequence[str], *, pixels: bool
) -> tuple[str, list[dict]]:
    r"""Return the simplest method whose NLL is within a standard error of the lowest.

    Each prediction is scored by a scaling that was fitted without the fold of its image. The
    standard error is that of the difference to the best method, with images, or groups of them, as
    the observations:

    .. math:: \mathrm{SE} = \frac1N \sqrt{\sum_g \Big(\sum_{i \in g} (d_i - \bar d)\Big)^2}

    Source: Hastie, Tibshirani and Friedman, The Elements of Statistical Learning, 7.10, for the
    one-standard-error rule.

    Args:
        drawn: Predictions of the images, or of groups.
        fold_of: Of :func:`~mmcalib.calibration.folds.folds_of_groups`.
        methods: Candidates, the simplest first; that of no scaling comes before all.
        pixels: Whether predictions are pixels, so that their mean IoU is of interest.

    Returns:
        The method, ``'none'`` for no scaling, and of each, measured on images that its fit did not
        see: ``nll``, the mean of a prediction, NaN if it could not be fitted; ``above_best``, by
        how much it is above the lowest, and the ``standard_error`` of this; ``accuracy`` and
        ``miou`` in percent, the latter None of a classifier; ``seconds`` for a fit, on average;
        ``problem``, why it could not be fitted, None if it could.
    """
    nan = float('nan')
    unknown = dict(nll=nan, above_best=nan, standard_error=nan, accuracy=nan, miou=None)
    losses, candidates = {}, []
    for method in progress((NONE, *methods), 'Comparing methods'):
        candidate = {'method': method, **unknown, 'seconds': 0.0, 'problem': None}
        candidates.append(candidate)
        start = time.perf_counter()
        try:
            folds = [] if method == NONE else fit_folds(SCALERS[method](), drawn, fold_of)
        except UserError as error:
            candidate['problem'] = str(error)
            continue
        if folds:
            candidate['seconds'] = (time.perf_counter() - start) / len(folds)
        losses[method], predicted = _scored(folds, drawn, fold_of)
        candidate['nll'] = losses[method].mean().item()
        candidate['accuracy'] = 100 * (predicted == drawn.labels).double().mean().item()
        risks = image_risks(predicted, drawn.labels, ignore_index=None)
        candidate['miou'] = 100 * (1 - risks['IoU']) if pixels else None
    best = min(losses.values(), key=Tensor.mean)
    for candidate in candidates:
        if candidate['problem'] is None:
            more = losses[candidate['method']] - best
            candidate['above_best'] = more.mean().item()
            spread = group_sums(more - more.mean(), drawn.images).square().sum().sqrt()
            candidate['standard_error'] = (spread / len(more)).item()
    chosen = (c['method'] for c in candidates if c['above_best'] <= c['standard_error'])
    return next(chosen), candidates


def _scored(
    folds: Sequence[LogitScaler], drawn: DrawnPredictions, fold_of: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the NLL of each prediction and its class, under the scaling of its fold."""
    scaled, fold = drawn.logits.to(torch.float64, copy=True), fold_of[drawn.images]
    for number, scaler in enumerate(folds):
        scaled[fold == number] = scaler.transform(scaled[fold == number])
    scaled = with_other_class(scaled)
    return cross_entropy(scaled, drawn.labels, reduction='none'), scaled.argmax(dim=1)
