"""Marginal L1 average calibration error (mL1-ACE) as a loss."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from mmcalib.losses.batch_loss import BatchLoss, divide
from mmcalib.losses.cross_entropy import target_probabilities


def l1_ace(
    logits: Tensor,
    target: Tensor,
    *,
    weight: Tensor,
    over_ranks: Callable[[Tensor], Tensor],
    num_bins: int = 20,
    binning: str = 'hard',
    per_image: bool = True,
) -> Tensor:
    r"""Average calibration error of the probability of each class, to add to a loss.

    .. math:: \frac{1}{K} \sum_k \frac{1}{|B_k|} \sum_{b \in B_k}
        \left| \bar p_{kb} - \bar y_{kb} \right|

    over the non-empty bins :math:`B_k` of :math:`p_k`, [lo, hi) of equal width, all of which count
    alike; :math:`\bar p, \bar y` are means over the rows of a bin. It is computed for each image
    and averaged over the images that have a valid pixel. With ``binning='soft'`` a row belongs to
    the two bins whose centres are next to its probability, in proportion to its nearness, so that
    the bins have a gradient too; a bin with less than one row in it then counts by that part.

    Source: Barfoot et al., "Average Calibration Error: A Differentiable Loss for Improved
    Reliability in Image Segmentation", MICCAI 2024; hard bins are those of its published code, but
    for a probability on an edge, which there is of the bin below. It has no ignored pixels. Soft
    bins are of its successor of 2025, whose code gives an empty bin a small weight; here it counts
    for nothing.

    Args:
        logits: ``(N, K, *)``, finite.
        target: ``(N, *)`` int64 labels or ``(N, K, *)`` probabilities.
        weight: ``(N, *)``, 0 where a row does not count.
        over_ranks: See :class:`BatchLoss`.
        num_bins: B.
        binning: ``'hard'`` or ``'soft'``.
        per_image: Whether to average the errors of single images. Otherwise, and always for logits
            of shape ``(N, K)``, there is one error of all rows, which ranks may share.

    Returns:
        A scalar; 0 where no row counts.
    """
    if logits.ndim > 2:
        logits = logits.flatten(2)
        weight = weight.flatten(1)
        target = target.flatten(2 if target.is_floating_point() else 1)
    probs = F.softmax(logits, dim=1)
    weight = weight.unsqueeze(1).expand_as(probs)
    gaps = (probs - target_probabilities(target, probs)) * weight
    bins = _sum_by_bin(probs, gaps, weight, num_bins, binning)
    if not per_image:
        bins = bins.sum(dim=1, keepdim=True)
    gap, count = over_ranks(bins)
    filled = (count > 0).to(gap.dtype)
    # An image without a valid row has no bins, and no part in the mean.
    has_rows = filled.amax(dim=(1, 2))
    if binning == 'soft':
        filled = count.clamp(max=1)
    errors = divide((divide(gap, count).abs() * filled).sum(dim=2), filled.sum(dim=2))
    return divide((errors.mean(dim=1) * has_rows).sum(), has_rows.sum())


def _sum_by_bin(probs: Tensor, gaps: Tensor, weight: Tensor, num_bins: int, binning: str) -> Tensor:
    """Return the sums of gaps and of weights in each bin, ``(2, N, K, B)``; N is 1 for rows.

    Args:
        probs: ``(N, K)`` of rows, ``(N, K, P)`` of images.
        gaps: Weighted differences of probability and target, in the shape of `probs`.
        weight: Weights, in the shape of `probs`.
        num_bins: B.
        binning: ``'hard'`` or ``'soft'``.
    """
    is_map = probs.ndim > 2
    axis = 2 if is_map else 0
    shape = (*probs.shape[:2], num_bins) if is_map else (num_bins, probs.shape[1])
    sum_of_gaps = probs.new_zeros(shape)
    sum_of_weights = probs.new_zeros(shape)
    for index, membership in _memberships(probs, num_bins, binning):
        gaps_in_bin = gaps if membership is None else gaps * membership
        weight_in_bin = weight if membership is None else weight * membership
        sum_of_gaps = sum_of_gaps.scatter_add(axis, index, gaps_in_bin)
        sum_of_weights = sum_of_weights.scatter_add(axis, index, weight_in_bin)
    bins = torch.stack([sum_of_gaps, sum_of_weights])
    return bins if is_map else bins.transpose(1, 2).unsqueeze(1)


def _memberships(probs: Tensor, num_bins: int, binning: str) -> list[tuple[Tensor, Tensor | None]]:
    """Return the indices of bins, and the part of each row that belongs to them, None for all."""
    if binning == 'hard':
        return [((probs.detach() * num_bins).long().clamp_(0, num_bins - 1), None)]
    position = (probs * num_bins - 0.5).clamp(min=0, max=num_bins - 1)
    low = position.detach().floor()
    upper_part = position - low
    lower_bin = low.long().clamp_(0, num_bins - 1)  # A NaN becomes the index of some bin.
    upper_bin = (lower_bin + 1).clamp(max=num_bins - 1)
    return [(lower_bin, 1 - upper_part), (upper_bin, upper_part)]


class L1ACELoss(BatchLoss):
    """mL1-ACE for the heads of both toolboxes, beside another loss; see :func:`l1_ace`."""

    formula = staticmethod(l1_ace)
    loss_name = 'loss_l1_ace'
    choices = dict(binning=('hard', 'soft'))

    def __init__(self, **options) -> None:
        super().__init__(**options)
        if self.per_image and self.share_statistics:
            raise ValueError('share_statistics merges bins of all images: set per_image=False')
