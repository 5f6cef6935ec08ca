"""Multi-class difference in confidence and accuracy (MDCA)."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from mmcalib.losses.batch_loss import BatchLoss, divide


def mdca(
    logits: Tensor, target: Tensor, *, weight: Tensor, over_ranks: Callable[[Tensor], Tensor]
) -> Tensor:
    r"""Gap between mean probability and frequency of each class in a batch, to add to a loss.

    .. math:: \frac{1}{K} \sum_k \left| \frac{1}{M} \sum_i p_{ik} - \frac{1}{M} \sum_i y_{ik}
        \right|

    Source: Hebbalaguppe et al., "A Stitch in Time Saves Nine", CVPR 2022. The published code loops
    over the classes and takes ``(N, K)`` alone; ignored rows do not occur in it, and each rank has
    a value. The paper adds it to a focal loss with a weight beta, here ``loss_weight``, which it
    chooses by search.

    Args:
        logits: ``(N, K, *)``, finite.
        target: ``(N, *)`` int64 labels or ``(N, K, *)`` probabilities.
        weight: ``(N, *)``, 0 where a row does not count; M is its sum.
        over_ranks: See :class:`BatchLoss`.

    Returns:
        A scalar; 0 where no row counts.
    """
    over_rows = [0, *range(2, logits.ndim)]
    gaps = (F.softmax(logits, dim=1) * weight.unsqueeze(1)).sum(dim=over_rows)
    if target.is_floating_point():
        gaps = gaps - (target * weight.unsqueeze(1)).sum(dim=over_rows)
    else:
        gaps = gaps.scatter_add(0, target.flatten(), -weight.flatten())
    sums = over_ranks(torch.cat([gaps, weight.sum().view(1)]))
    return divide(sums[:-1].abs().mean(), sums[-1])


class MDCALoss(BatchLoss):
    """MDCA for the heads of both toolboxes, beside another loss; see :func:`mdca`."""

    formula = staticmethod(mdca)
    loss_name = 'loss_mdca'
