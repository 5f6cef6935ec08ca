r"""Scores of the prediction for an image, its risk by the labels, and how scores order risks.

They are functions of the arrays of one image, numpy or torch. Every score is higher where the
prediction is to be trusted more. Scores need no labels, so they count all pixels; risks count the
labelled ones.

The expectations take the label of each pixel as an independent draw from its probabilities, so
that the number of pixels of a class is a sum of independent draws. Labels of neighbours are not
independent, which hardly changes the order of images, but makes the variance too small.
"""

from __future__ import annotations

from functools import partial
from itertools import combinations

import numpy as np
import torch
from torch import Tensor

from mmcalib.metrics.intervals import intervals
from mmcalib.metrics.ranking import augrc, aurc, auroc
from mmcalib.options import check_number, check_share
from mmcalib.predictions.arrays import (
    Array,
    as_floats,
    as_integers,
    as_tensors,
)
from mmcalib.predictions.contract import Contract
from mmcalib.tensors import at_least_single, check_probabilities, check_range

CLASSIFIER_SCORES = ('confidence', 'entropy')
SEGMENTOR_SCORES = (*CLASSIFIER_SCORES, 'foreground_confidence', 'soft_dice', 'expected_iou')
MEMBER_SCORES = ('pairwise_dice', 'mutual_information')  # They compare the members of an ensemble.
SCORES = (*SEGMENTOR_SCORES, *MEMBER_SCORES)
RISKS = ('IoU', 'Dice', 'error')
FIGURES = ('AURC', 'AUGRC', 'AUROC', 'Spearman')


def image_scores(
    probs: Array, predicted: Array | None = None, *, background: int | None = None
) -> dict[str, float]:
    r"""Return the scores that the probabilities of an image give.

    - ``confidence``: the mean probability of the predicted classes.
    - ``entropy``: the mean of :math:`\sum_k p_k \log p_k`, in nats; at most 0.
    - ``foreground_confidence``: the confidence over the pixels that are not predicted as
      background.
    - ``soft_dice``: the soft Dice confidence, the mean of :math:`2 a_k / (n_k + a_k + b_k)` over
      the predicted classes k, where :math:`n_k` pixels are predicted as k, and :math:`a_k` and
      :math:`b_k` are the sums of :math:`p_k` over these and over all other pixels.
    - ``expected_iou``: likewise :math:`\mathbb{E}[A / (n + B)]` for the numbers A and B of true
      pixels of class k inside and outside of the prediction, to second order in their variances.

    The last three leave the background out. Where nothing but background is predicted, they are the
    least probability of background in the image: an upper bound of the probability that there is
    no object.

    >>> probs = np.array([[0.9, 0.2, 0.4], [0.1, 0.8, 0.6]])
    >>> scores = image_scores(probs, background=0)
    >>> {name: round(value, 4) for name, value in scores.items() if name.endswith('e')}
    {'confidence': 0.7667, 'foreground_confidence': 0.7, 'soft_dice': 0.8}

    Source: Borges et al., Selective Prediction for Semantic Segmentation using Post-Hoc Confidence
    Estimation and Its Performance under Distribution Shift, 2024, for ``soft_dice``, here averaged
    over classes.

    Args:
        probs: ``(K, *)`` probabilities of K classes at each pixel, or ``(K,)`` of a classifier.
        predicted: ``(*)`` predicted classes; the most probable ones if None.
        background: The class that is no object; None if every class is one.

    Raises:
        TypeError: If an argument is no array of numbers.
        ValueError: For values that are no probabilities, an image without pixels, or classes out of
            range.
    """
    probs = at_least_single(as_floats('probs', probs))
    labels = probs.argmax(dim=0) if predicted is None else as_integers('predicted', predicted)
    contract = Contract('probs', takes_several_labels=False)
    rows = contract.read(probs[None], labels[None]).valid_rows()
    check_probabilities(rows.probs.T, 'probs')  # One class is here no class of two.
    return compute_image_scores(rows.probs.T, rows.labels, background=background)


def compute_image_scores(
    probs: Tensor, predicted: Tensor, *, background: int | None = None
) -> dict[str, float]:
    """Return :func:`image_scores` of checked ``(K, M)`` probabilities and ``(M,)`` classes."""
    conf = probs.gather(0, predicted[None])[0].double()
    entropy = torch.special.entr(probs).sum(dim=0, dtype=torch.float64)
    scores = {'confidence': conf.mean().item(), 'entropy': -entropy.mean().item()}
    count = torch.bincount(predicted, minlength=len(probs)).double()
    is_object = count > 0
    if background is not None:
        is_object[background] = False
    if not is_object.any():
        least_background = probs[background].min().item()
        for name in ('foreground_confidence', 'soft_dice', 'expected_iou'):
            scores[name] = least_background
        return scores
    # For each class, the number n of its predicted pixels, the expected numbers a and b of true
    # pixels inside and outside of them, and the variance of the number outside.
    n = count[is_object]
    object_probs = probs[is_object].double()
    a = torch.bincount(predicted, conf, len(probs))[is_object]
    b = (object_probs.sum(dim=1) - a).clamp(min=0)
    variance_inside = torch.bincount(predicted, conf - conf**2, len(probs))[is_object]
    variance = (object_probs - object_probs**2).sum(dim=1)
    variance_outside = (variance - variance_inside).clamp(min=0)
    iou = a / (n + b) * (1 + variance_outside / (n + b) ** 2)
    scores['foreground_confidence'] = (a.sum() / n.sum()).item()
    scores['soft_dice'] = (2 * a / (n + a + b)).mean().item()
    scores['expected_iou'] = iou.clamp(0, 1).mean().item()
    return scores


def pairwise_dice(predictions: Array, *, background: int | None = None) -> float:
    r"""Return the mean Dice score of all pairs of an ensemble's predictions for an image.

    .. math:: \frac{2}{N (N - 1)} \sum_{i < j} \operatorname{mean}_k
        \frac{2 |P_{ik} \cap P_{jk}|}{|P_{ik}| + |P_{jk}|}

    over the classes k that one of the two predicts, but for the background; 1 where neither
    predicts any, and NaN for a single prediction.

    >>> pairwise_dice(np.array([[0, 1, 1], [0, 0, 1]]), background=0)
    0.6666666666666666

    Source: Roy et al., Bayesian QuickNAT, NeuroImage 2019; Zenk et al., Comparative Benchmarking of
    Failure Detection Methods in Medical Image Segmentation, Medical Image Analysis 2025.

    Args:
        predictions: ``(N, *)`` predicted classes of N members.
        background: The class that is no object.
    """
    rows = as_integers('predictions', predictions)
    rows = rows.reshape(len(rows), -1)
    dice = []
    for first, second in combinations(rows, 2):
        risks = image_risks(first, second, background=background, ignore_index=None)
        dice.append(1 - risks['Dice'])
    return float(np.mean(dice)) if dice else float('nan')


def image_risks(
    predicted: Array,
    labels: Array,
    *,
    background: int | None = None,
    ignore_index: int | None = 255,
) -> dict[str, float]:
    r"""Return three measures of the error of an image's prediction, in [0, 1].

    - ``IoU``: :math:`1 - \operatorname{mean}_k |P_k \cap G_k| / |P_k \cup G_k|` over the classes
      that are predicted or labelled in the image, but for the background.
    - ``Dice``: likewise of :math:`2 |P_k \cap G_k| / (|P_k| + |G_k|)`.
    - ``error``: the share of pixels whose class is wrong.

    Where neither the prediction nor the label has an object, the first two are 0: there is nothing
    to find, and nothing was predicted. All are NaN without a labelled pixel.

    >>> image_risks(np.array([0, 1, 1]), np.array([0, 0, 1]), background=0)['IoU']
    0.5

    Args:
        predicted: ``(*)`` predicted classes.
        labels: ``(*)`` true classes.
        background: The class that is no object; None if every class is one.
        ignore_index: Label of the pixels that are not valid; None for none.
    """
    predicted, labels, valid = as_tensors('predicted', predicted, labels)
    predicted = as_integers('predicted', predicted).flatten()
    labels = as_integers('labels', labels).flatten()
    if predicted.shape != labels.shape:
        raise ValueError(
            f'predicted and labels must be of one size, got {len(predicted)} and {len(labels)}'
        )
    is_valid = torch.ones_like(labels, dtype=torch.bool)
    if valid is not None:
        is_valid &= valid.flatten()
    if ignore_index is not None:
        is_valid &= labels != ignore_index
    predicted = predicted[is_valid]
    labels = labels[is_valid]
    if not len(labels):
        return dict.fromkeys(RISKS, float('nan'))
    num_classes = int(torch.stack([predicted.max(), labels.max()]).max()) + 1
    correct = predicted == labels
    intersection = torch.bincount(labels[correct], minlength=num_classes)
    num_predicted = torch.bincount(predicted, minlength=num_classes)
    num_labels = torch.bincount(labels, minlength=num_classes)
    is_object = num_predicted + num_labels > 0
    if background is not None and background < num_classes:
        is_object[background] = False
    error = 1 - correct.double().mean().item()
    if not is_object.any():
        return {'IoU': 0.0, 'Dice': 0.0, 'error': error}
    intersection = intersection[is_object].double()
    total = (num_predicted + num_labels)[is_object].double()
    iou = intersection / (total - intersection)
    dice = 2 * intersection / total
    return {'IoU': (1 - iou).mean().item(), 'Dice': (1 - dice).mean().item(), 'error': error}


def image_failure_figures(
    scores: Array,
    risks: Array,
    *,
    failure: float = 0.5,
    confidence_interval: float | None = None,
    num_bootstrap: int = 1000,
    seed: int = 0,
) -> dict[str, float]:
    r"""Return how well a score orders images by their risk.

    - ``AURC``, in percent: :math:`\frac1N \sum_i \frac1i \sum_{j \leq i} r_j` for the risks
      :math:`r_j` of the images in the order of their scores, the highest first.
    - ``AUGRC``, in percent: :math:`\frac1N \sum_i \frac1N \sum_{j \leq i} r_j`.
    - ``AUROC``, in percent: how often an image whose risk is at most `failure` has a higher score
      than one whose risk is above; NaN if all are of one kind.
    - ``Spearman``: the rank correlation of the score with the negative risk, from -1 to 1; NaN if
      all scores or all risks are equal.

    Tied images count in the mean over their orders. All are NaN without images. With
    `confidence_interval`, ``…_low`` and ``…_high`` are the ends of the interval over images, by
    :func:`~mmcalib.metrics.intervals.intervals`; NaN for one image.

    >>> scores, risks = np.array([0.9, 0.8, 0.7]), np.array([0.1, 0.6, 0.2])
    >>> {name: round(value, 4) for name, value in image_failure_figures(scores, risks).items()}
    {'AURC': 25.0, 'AUGRC': 18.8889, 'AUROC': 50.0, 'Spearman': 0.5}

    Source: Geifman et al., ICLR 2019, for AURC; Traub et al., NeurIPS 2024, for AUGRC; Zenk et al.,
    Medical Image Analysis 2025, for both over images with a risk of 1 - Dice.

    Args:
        scores: ``(N,)`` floats; higher is to be trusted more.
        risks: ``(N,)`` floats in [0, 1].
        failure: The largest risk of an image that is no failure.
        confidence_interval: Level of intervals, such as 0.95; None for none.
        num_bootstrap: Number of resamples of the images.
        seed: Seed of these resamples.

    Raises:
        TypeError: If an argument is no array of floats.
        ValueError: For arrays that do not fit each other, scores that are NaN or infinite, risks
            outside [0, 1], or options out of range.
    """
    scores = as_floats('scores', scores).double()
    risks = as_floats('risks', risks).double()
    if scores.ndim != 1 or risks.shape != scores.shape:
        shapes = f'{tuple(scores.shape)} and {tuple(risks.shape)}'
        raise ValueError(f'scores and risks must be (N,), got {shapes}')
    num_not_finite = int((~scores.isfinite()).sum())
    if num_not_finite:
        raise ValueError(
            f'{num_not_finite} of {len(scores)} scores are NaN or infinite, and their images '
            'cannot be ranked: leave them out'
        )
    check_range(risks, 'risks')
    check_number('failure', failure, most=1)
    if not len(scores):
        return dict.fromkeys(FIGURES, float('nan'))
    _, score_index = scores.unique(return_inverse=True)
    _, risk_index = risks.unique(return_inverse=True)
    estimate = partial(weighted_figures, score_index, risk_index, risks, failure)
    figures = {}
    for name, value in estimate(torch.ones_like(scores)[None]).items():
        figures[name] = value.item()
    if confidence_interval is not None:
        bounds = intervals(
            estimate,
            len(scores),
            level=check_share('confidence_interval', confidence_interval),
            num_bootstrap=num_bootstrap,
            seed=seed,
            limits={'Spearman': (-1.0, 1.0)},
        )
        for name, (low, high) in bounds.items():
            figures[f'{name}_low'] = low
            figures[f'{name}_high'] = high
    return figures


def weighted_figures(
    score_index: Tensor, risk_index: Tensor, risks: Tensor, failure: float, weights: Tensor
) -> dict[str, Tensor]:
    """Return the figures of N images with ``(R, N)`` weights, ``(R,)`` each.

    Args:
        score_index: ``(N,)`` position of each image's score among the distinct scores, ascending.
        risk_index: ``(N,)`` position of each image's risk among the distinct risks, ascending.
        risks: ``(N,)``.
        failure: The largest risk of an image that is no failure.
        weights: ``(R, N)``.
    """
    count = sum_by_index(weights, score_index)
    # A table of fine bins, in which an image is correct in part: by 1 - risk, or if it is good.
    zeros = torch.zeros_like(count)
    by_risk = torch.stack([count, sum_by_index(weights * (1 - risks), score_index), zeros], dim=1)
    is_good = (risks <= failure).double()
    by_failure = torch.stack([count, sum_by_index(weights * is_good, score_index), zeros], dim=1)
    score_rank = centred_ranks(weights, score_index)
    risk_rank = centred_ranks(weights, risk_index)
    score_variance = (weights * score_rank * score_rank).sum(dim=1)
    risk_variance = (weights * risk_rank * risk_rank).sum(dim=1)
    covariance = (weights * score_rank * risk_rank).sum(dim=1)
    return {
        'AURC': aurc(by_risk),
        'AUGRC': augrc(by_risk),
        'AUROC': auroc(by_failure),
        'Spearman': -covariance / (score_variance * risk_variance).sqrt(),
    }


def sum_by_index(values: Tensor, index: Tensor) -> Tensor:
    """Return the sums of ``(R, N)`` values with each index, ``(R, U)``."""
    sums = values.new_zeros(len(values), int(index.max()) + 1)
    return sums.index_add_(1, index, values)


def centred_ranks(weights: Tensor, index: Tensor) -> Tensor:
    """Return the weighted rank of each of N images, less the mean rank, ``(R, N)``.

    Args:
        weights: ``(R, N)``.
        index: ``(N,)`` position of each image's value among the distinct values; ties are equal.
    """
    count = sum_by_index(weights, index)
    rank = (count.cumsum(dim=1) - count / 2)[:, index]
    mean = (weights * rank).sum(dim=1) / weights.sum(dim=1)
    return rank - mean[:, None]
