"""Marginal L1 average calibration error (mL1-ACE) as a loss."""

import torch
import torch.nn.functional as F
from torch import Tensor

from mmcalib.checks import check_choice, check_integer
from mmcalib.losses.base.batch_loss import BatchLoss, divide
from mmcalib.losses.base.models_registry import MODELS

BINNINGS = ('hard', 'soft')


@MODELS.register_module()
class L1ACELoss(BatchLoss):
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
        num_bins: B.
        binning: ``'hard'`` or ``'soft'``.
        per_image: Whether to average the errors of single images. Otherwise, and always for logits
            of shape ``(N, K)``, there is one error of all rows, which ranks may share.
        loss_name: See :class:`CalibrationLoss`, which also takes ``ignore_index`` and
            ``loss_weight``; ``share_statistics`` is of :class:`BatchLoss`.

    Raises:
        ValueError: If an option is outside its range; if ranks are to share errors of images.
    """

    def __init__(
        self,
        *,
        num_bins: int = 20,
        binning: str = 'hard',
        per_image: bool = True,
        loss_name: str = 'loss_l1_ace',
        **common,
    ) -> None:
        super().__init__(loss_name=loss_name, **common)
        self.num_bins = check_integer('num_bins', num_bins)
        self.binning = check_choice('binning', binning, BINNINGS)
        if not isinstance(per_image, bool):
            raise TypeError(f'per_image must be True or False, got {per_image!r}')
        self.per_image = per_image
        if per_image and self.share_statistics:
            raise ValueError(
                'share_statistics merges the bins of all ranks, but per_image=True measures each '
                'image: set per_image=False'
            )

    def options(self) -> dict:
        return dict(num_bins=self.num_bins, binning=self.binning, per_image=self.per_image)

    def statistics(
        self,
        logits: Tensor,
        target: Tensor,
        weight: Tensor,
        *,
        num_bins: int,
        binning: str,
        per_image: bool,
    ) -> Tensor:
        """Return weighted sums of p - y and of 1 by image, class and bin, ``(N or 1, K, B, 2)``."""
        is_map = logits.ndim > 2
        if is_map:
            logits, weight = logits.flatten(2), weight.flatten(1)
            target = target.flatten(2 if target.is_floating_point() else 1)
        probs = F.softmax(logits, dim=1)
        rows = _weighted_gaps(probs, target, weight), weight.unsqueeze(1).expand_as(probs)
        size = (*probs.shape[:2], num_bins) if is_map else (num_bins, probs.shape[1])
        sums = [probs.new_zeros(size), probs.new_zeros(size)]
        for bins, part in _memberships(probs, num_bins, binning):
            for number, values in enumerate(rows):
                values = values if part is None else values * part
                sums[number] = sums[number].scatter_add(2 if is_map else 0, bins, values)
        both = torch.stack(sums, dim=-1)
        if not is_map:
            return both.transpose(0, 1).unsqueeze(0)
        return both if per_image else both.sum(dim=0, keepdim=True)

    def value(self, statistics: Tensor, *, num_bins: int, binning: str, per_image: bool) -> Tensor:
        gap, count = statistics.unbind(-1)
        filled = (count > 0).to(gap.dtype)
        # A group without a valid row has no bins, and no part in the mean.
        groups = filled.amax(dim=(1, 2))
        if binning == 'soft':
            filled = count.clamp(max=1)
        errors = divide((divide(gap, count).abs() * filled).sum(dim=2), filled.sum(dim=2))
        return divide((errors.mean(dim=1) * groups).sum(), groups.sum())


def _memberships(probs: Tensor, num_bins: int, binning: str) -> list[tuple[Tensor, Tensor | None]]:
    """Return bins and the share that each row has in them, None for all of it."""
    if binning == 'hard':
        return [((probs.detach() * num_bins).long().clamp_(0, num_bins - 1), None)]
    position = (probs * num_bins - 0.5).clamp(min=0, max=num_bins - 1)
    low = position.detach().floor()
    upper = position - low
    bins = low.long().clamp_(0, num_bins - 1)  # a NaN is no bin
    return [(bins, 1 - upper), ((bins + 1).clamp(max=num_bins - 1), upper)]


def _weighted_gaps(probs: Tensor, target: Tensor, weight: Tensor) -> Tensor:
    """Return w (p - y) of ``(N, K, *)`` probabilities; the arguments of `statistics` otherwise."""
    weight = weight.unsqueeze(1)
    if target.is_floating_point():
        return (probs - target) * weight
    return (probs * weight).scatter_add_(1, target.unsqueeze(1), -weight)
