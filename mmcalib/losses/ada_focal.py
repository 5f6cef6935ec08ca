"""Calibration-aware adaptive focal loss (AdaFocal)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mmcalib.losses.calibration_loss import ANY_NUMBER, CalibrationLoss
from mmcalib.losses.cross_entropy import cross_entropy, power, weight_by_label
from mmcalib.options import check_integer, check_number


def ada_focal(
    logits: Tensor,
    target: Tensor,
    *,
    gammas: Tensor,
    edges: Tensor,
    class_weight: Tensor | None = None,
) -> Tensor:
    r"""Focal or inverse focal loss, depending on the bin of the true class's probability, per row.

    .. math:: -(1 - p_y)^{\gamma_b} \log p_y \ \text{ for } \gamma_b \ge 0, \qquad
        -(1 + p_y)^{|\gamma_b|} \log p_y \ \text{ below}

    where b is the bin [lo, hi) of :math:`p_y`, a constant to the gradient.

    Source: Ghosh et al., "AdaFocal: Calibration-aware Adaptive Focal Loss", NeurIPS 2022, and its
    published code.

    Args:
        logits: ``(N, K, *)``.
        target: ``(N, *)`` int64 labels.
        gammas: :math:`\gamma`, ``(B,)``.
        edges: ``(B - 1,)`` between the bins, ascending.
        class_weight: ``(K,)`` weights of the classes.

    Returns:
        ``(N, *)``, in nats.

    Example:
        >>> ada_focal(
        ...     torch.tensor([[0., 0.], [9., 0.]]),
        ...     torch.tensor([0, 0]),
        ...     gammas=torch.tensor([1.0, -1.0]),
        ...     edges=torch.tensor([0.8]),
        ... )
        tensor([3.4657e-01, 2.4673e-04])
    """
    log_probs = -cross_entropy(logits, target)
    bins = torch.bucketize(log_probs.exp().detach(), edges.to(log_probs.dtype), right=True)
    gamma = gammas.to(log_probs.dtype)[bins]
    base = torch.where(gamma >= 0, -torch.expm1(log_probs), 1 + log_probs.exp())
    return weight_by_label(-power(base, gamma.abs()) * log_probs, target, class_weight)


class AdaFocalLoss(CalibrationLoss):
    r"""AdaFocal for mmpretrain and mmseg heads; see :func:`ada_focal`.

    Every bin starts from the same gamma, and learns its own only with
    ``custom_hooks=[dict(type='LearnFromValidationHook')]``, which calls :meth:`update` after each
    validation of a training with the gap :math:`e_b` of mean confidence and accuracy in bins of
    equal count:

    .. math:: \gamma_b \leftarrow \gamma_b \exp(\pm \text{rate} \cdot e_b)

    with the sign of :math:`\gamma_b`; where that comes closer to 0 than `switch`, the loss of the
    bin changes between focal and inverse focal, with :math:`\mp\text{switch}`. Bins and gammas are
    buffers: a checkpoint holds them.

    Source: the published code, whose defaults these are. Its bins are those of the predicted
    class's confidence in the validation, and are applied to the true class's probability in the
    training, as here; its edges are interpolated between two confidences, here they are the lowest
    confidence of the upper bin, or the mean of its fine bin; see :mod:`~mmcalib.metrics.counts`. It
    leaves out the smallest confidence, knows no ignored pixels, and does not save what it has
    learnt.

    Args:
        num_bins: B.
        gamma: Gamma of all bins at the start; below 0 for inverse focal loss.
        rate: The paper's :math:`\lambda`.
        gamma_min: The lowest gamma.
        gamma_max: The highest gamma.
        switch: The smallest absolute value of a gamma; one closer to 0 changes its sign.
        common: Options of :class:`CalibrationLoss`.

    Raises:
        TypeError: If an option is of another type.
        ValueError: If an option is out of range; for soft targets.
    """

    formula = staticmethod(ada_focal)
    loss_name = 'loss_ada_focal'
    soft_targets = False
    ranges = dict(rate=ANY_NUMBER)

    def __init__(
        self,
        *,
        num_bins: int = 15,
        gamma: float = 1.0,
        rate: float = 1.0,
        gamma_min: float = -2.0,
        gamma_max: float = 20.0,
        switch: float = 0.2,
        **common,
    ) -> None:
        super().__init__(**common)
        self.num_bins = check_integer('num_bins', num_bins)
        self.rate = self.check_parameter('rate', rate)
        self.switch = check_number('switch', switch)
        self.gamma_min = check_number('gamma_min', gamma_min, least=float('-inf'), most=-switch)
        self.gamma_max = check_number('gamma_max', gamma_max, least=switch)
        self.gamma = check_number('gamma', gamma, least=gamma_min, most=gamma_max)
        self.register_buffer('gammas', torch.full((num_bins,), float(gamma)))
        self.register_buffer('edges', torch.arange(1, num_bins) / num_bins)

    @torch.no_grad()
    def update(self, edges: Sequence[float], gaps: Sequence[float]) -> None:
        """Learn the gamma of each bin from the gaps of a validation.

        Args:
            edges: B - 1 confidences between bins of equal count, ascending.
            gaps: B differences of mean confidence and accuracy, as shares.
        """
        gammas = self.gammas.double()
        gaps = torch.as_tensor(gaps, device=gammas.device).to(gammas)
        gammas = gammas * (self.rate * gammas.sign() * gaps).exp()
        switched = torch.where(gammas > 0, -self.switch, self.switch)
        gammas = torch.where(gammas.abs() < self.switch, switched, gammas)
        self.gammas.copy_(gammas.clamp(self.gamma_min, self.gamma_max))
        self.edges.copy_(torch.as_tensor(edges, device=self.edges.device))
