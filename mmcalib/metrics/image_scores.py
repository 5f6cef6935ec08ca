r"""Scores of the prediction for an image, its risk by the labels, and how scores order risks.

Functions of the arrays of one image, numpy or torch. Every score is higher where the prediction is
to be trusted more. They need no labels, so they are of all pixels; risks are of labelled ones.

The expectations take the label of each pixel as an independent draw from its probabilities, for
which the number of pixels of a class is a sum of independent draws. Labels of neighbours are not
independent: the order of images survives that, the variance does not.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from mmcalib.metrics.intervals import intervals
from mmcalib.metrics.ranking import augrc, aurc, auroc
from mmcalib.options import check_number, check_share
from mmcalib.predictions.arrays import (
    Array,
    floats_of,
    integers_of,
    labelled_rows,
    mark_masked,
    valid_labels,
)
from mmcalib.tensors import at_least_single, check_probabilities, check_range

CLASSIFIER_SCORES = ('confidence', 'entropy')
SEGMENTOR_SCORES = (*CLASSIFIER_SCORES, 'foreground_confidence', 'soft_dice', 'expected_iou')
MEMBER_SCORES = ('pairwise_dice', 'mutual_information')  # of the predictions of a mean
SCORES = (*SEGMENTOR_SCORES, *MEMBER_SCORES)
RISKS = ('IoU', 'Dice', 'error')
FIGURES = ('AURC', 'AUGRC', 'AUROC', 'Spearman')


def image_scores(
    probs: Array, predicted: Array | None = None, *, background: int | None = None
) -> dict[str, float]:
    r"""Return the scores of an image that follow from its probabilities.

    - ``confidence``: the mean probability of the predicted classes.
    - ``entropy``: the mean of :math:`\sum_k p_k \log p_k`, in nats; at most 0.
    - ``foreground_confidence``: the confidence over the pixels that are not predicted as
      background.
    - ``soft_dice``: the soft Dice confidence,
      :math:`2 a_k / (n_k + a_k + b_k)`, the mean over the predicted classes k, where
      :math:`n_k` pixels are predicted as k, :math:`a_k` is the sum of :math:`p_k` over them, and
      :math:`b_k` over all others.
    - ``expected_iou``: likewise :math:`\mathbb{E}[A / (n + B)]` for the numbers A and B of true
      pixels of class k inside and outside of the prediction, to second order in their variances.

    The last three leave the background out. Where nothing but background is predicted, they are the
    least probability of it in the image: an upper bound of the probability that there is no object.

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
        TypeError: For what is no array of numbers.
        ValueError: For values that are no probabilities, an image without pixels, or classes out of
            range.
    """
    probs = at_least_single(floats_of('probs', probs))
    labels = probs.argmax(dim=0) if predicted is None else integers_of('predicted', predicted)
    probs, labels = labelled_rows('probs', probs[None], labels[None], None)
    check_probabilities(probs.T, 'probs')
    return compute_image_scores(probs.T, labels, background=background)


def compute_image_scores(
    probs: Tensor, predicted: Tensor, *, background: int | None = None
) -> dict[str, float]:
    """Return :func:`image_scores` of ``(K, M)`` probabilities and ``(M,)`` classes."""
    conf = probs.gather(0, predicted[None])[0].double()
    entropy = torch.special.entr(probs).sum(dim=0, dtype=torch.float64)
    found = {'confidence': conf.mean().item(), 'entropy': -entropy.mean().item()}
    count = torch.bincount(predicted, minlength=len(probs)).double()
    objects = count > 0
    if background is not None:
        objects[background] = False
    if not objects.any():
        return found | dict.fromkeys(SEGMENTOR_SCORES[2:], probs[background].min().item())
    # Of the true pixels of each class: how many are within the prediction, how many outside, and
    # the variance of the latter.
    n, planes = count[objects], probs[objects].double()
    a, spread = (torch.bincount(predicted, x, len(probs))[objects] for x in (conf, conf - conf**2))
    b = (planes.sum(dim=1) - a).clamp(min=0)
    spread = ((planes - planes**2).sum(dim=1) - spread).clamp(min=0)
    values = {
        'foreground_confidence': a.sum() / n.sum(),
        'soft_dice': (2 * a / (n + a + b)).mean(),
        'expected_iou': (a / (n + b) * (1 + spread / (n + b) ** 2)).clamp(0, 1).mean(),
    }
    return found | {name: value.item() for name, value in values.items()}


def pairwise_dice(predictions: Array, *, background: int | None = None) -> float:
    r"""Return the mean Dice score of all pairs of an ensemble's predictions for an image.

    .. math:: \frac{2}{N (N - 1)} \sum_{i < j} \operatorname{mean}_k
        \frac{2 |P_{ik} \cap P_{jk}|}{|P_{ik}| + |P_{jk}|}

    over the classes k that one of the two predicts, but for the background; 1 where neither
    predicts any, and NaN of a single prediction.

    >>> pairwise_dice(np.array([[0, 1, 1], [0, 0, 1]]), background=0)
    0.6666666666666666

    Source: Roy et al., Bayesian QuickNAT, NeuroImage 2019; Zenk et al., Comparative Benchmarking of
    Failure Detection Methods in Medical Image Segmentation, Medical Image Analysis 2025.

    Args:
        predictions: ``(N, *)`` predicted classes of N members.
        background: The class that is no object.
    """
    rows = integers_of('predictions', predictions)
    rows = rows.reshape(len(rows), -1)
    found = [
        1 - image_risks(rows[i], rows[j], background=background, ignore_index=None)['Dice']
        for i in range(len(rows))
        for j in range(i)
    ]
    return float(np.mean(found)) if found else float('nan')


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
    to find, and nothing was found. All are NaN without a labelled pixel.

    >>> image_risks(np.array([0, 1, 1]), np.array([0, 0, 1]), background=0)['IoU']
    0.5

    Args:
        predicted: ``(*)`` predicted classes.
        labels: ``(*)`` true classes.
        background: The class that is no object; None if every class is one.
        ignore_index: Label of the pixels to leave out, None for none.
    """
    predicted, labels = mark_masked(predicted, labels)
    predicted = integers_of('predicted', predicted).flatten()
    labels = integers_of('labels', labels).flatten()
    if predicted.shape != labels.shape:
        raise ValueError(
            f'predicted and labels must be of one size, got {len(predicted)} and {len(labels)}'
        )
    kept = valid_labels(labels, ignore_index)
    predicted, labels = predicted[kept], labels[kept]
    if not len(labels):
        return dict.fromkeys(RISKS, float('nan'))
    size = int(torch.stack([predicted.max(), labels.max()]).max()) + 1
    right = predicted == labels
    both = torch.bincount(labels[right], minlength=size).double()
    total = torch.bincount(predicted, minlength=size) + torch.bincount(labels, minlength=size)
    objects = total > 0
    if background is not None and background < size:
        objects[background] = False
    both, total = both[objects], total[objects].double()
    iou, dice = both / (total - both), 2 * both / total
    values = [(1 - x).mean().item() if len(both) else 0.0 for x in (iou, dice)]
    return dict(zip(RISKS, [*values, 1 - right.double().mean().item()], strict=True))


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

    Tied images count in the mean over their orders. All are NaN of no images. With
    `confidence_interval`, ``…_low`` and ``…_high`` are the ends of the interval over images, by
    :func:`~mmcalib.metrics.intervals.intervals`; NaN of one image.

    >>> scores, risks = np.array([0.9, 0.8, 0.7]), np.array([0.1, 0.6, 0.2])
    >>> {name: round(value, 4) for name, value in image_failure_figures(scores, risks).items()}
    {'AURC': 25.0, 'AUGRC': 18.8889, 'AUROC': 50.0, 'Spearman': 0.5}

    Source: Geifman et al., ICLR 2019, for AURC; Traub et al., NeurIPS 2024, for AUGRC; Zenk et al.,
    Medical Image Analysis 2025, for both over images with a risk of 1 - Dice.

    Args:
        scores: ``(N,)`` floats; higher is to be trusted more.
        risks: ``(N,)`` floats in [0, 1].
        failure: Above which risk an image is a failure.
        confidence_interval: Coverage of intervals, such as 0.95; None for none.
        num_bootstrap: Number of resamples of the images.
        seed: Seed of these resamples.

    Raises:
        TypeError: For what is no array of floats.
        ValueError: For arrays that do not fit each other, scores that are NaN or infinite, risks
            outside [0, 1], or options out of range.
    """
    scores, risks = floats_of('scores', scores).double(), floats_of('risks', risks).double()
    if scores.ndim != 1 or risks.shape != scores.shape:
        shapes = f'{tuple(scores.shape)} and {tuple(risks.shape)}'
        raise ValueError(f'scores and risks must be (N,), got {shapes}')
    if wrong := int((~scores.isfinite()).sum()):
        found = f'{wrong} of {len(scores)} scores are NaN or infinite'
        raise ValueError(f'{found}, and their images cannot be ranked: leave them out')
    check_range(risks, 'risks')
    check_number('failure', failure, most=1)
    if not len(scores):
        return dict.fromkeys(FIGURES, float('nan'))
    estimate = _figures_of(scores, risks, failure)
    found = {k: v.item() for k, v in estimate(torch.ones_like(scores)[None]).items()}
    if confidence_interval is not None:
        coverage = check_share('confidence_interval', confidence_interval)
        options = dict(coverage=coverage, num_bootstrap=num_bootstrap, seed=seed)
        limits = {'Spearman': (-1.0, 1.0)}
        for name, ends in intervals(estimate, len(scores), limits=limits, **options).items():
            found[f'{name}_low'], found[f'{name}_high'] = ends
    return found


def _figures_of(scores: Tensor, risks: Tensor, failure: float) -> Callable[[Tensor], dict]:
    """Return a function from ``(R, N)`` weights of the images to the ``(R,)`` figures."""
    groups = [values.unique(return_inverse=True)[1] for values in (scores, risks)]
    right = torch.stack([torch.ones_like(risks), 1 - risks, (risks <= failure).double()])

    def total(values: Tensor, group: Tensor) -> Tensor:
        sums = values.new_zeros(*values.shape[:-1], int(group.max()) + 1)
        return sums.index_add_(-1, group, values)

    def centred_ranks(weights: Tensor, group: Tensor) -> Tensor:
        count = total(weights, group)
        rank = (count.cumsum(dim=1) - count / 2)[:, group]
        mean = (weights * rank).sum(dim=1) / weights.sum(dim=1)
        return rank - mean[:, None]

    def figures(weights: Tensor) -> dict[str, Tensor]:
        count, by_risk, good = total(weights * right[:, None], groups[0])
        x, y = (centred_ranks(weights, group) for group in groups)
        spread = (weights * x * x).sum(dim=1) * (weights * y * y).sum(dim=1)
        risky, failed = (torch.stack([count, own, 0 * count], dim=1) for own in (by_risk, good))
        spearman = -(weights * x * y).sum(dim=1) / spread.sqrt()
        found = aurc(risky), augrc(risky), auroc(failed), spearman
        return dict(zip(FIGURES, found, strict=True))

    return figures
