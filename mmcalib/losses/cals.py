"""Class-adaptive label smoothing by an augmented Lagrangian (CALS-ALM)."""

from __future__ import annotations

import torch
from torch import Tensor

from mmcalib.losses.calibration_loss import CalibrationLoss
from mmcalib.losses.cross_entropy import cross_entropy, per_class
from mmcalib.options import check_integer, check_number

# Range of a multiplier, as in the published code.
MULTIPLIERS = (1e-6, 1e6)


def cals(
    logits: Tensor,
    target: Tensor,
    *,
    multipliers: Tensor,
    rho: Tensor | float,
    margin: float = 10.0,
    class_weight: Tensor | None = None,
) -> Tensor:
    r"""Cross-entropy plus a penalty for each class with its own multiplier, per row.

    .. math:: -\log p_y + \sum_k P(h_k; \lambda_k, \rho), \qquad
        h_k = \frac{\max_j l_j - l_k}{m} - 1, \qquad
        P(h; \lambda, \rho) = \frac{\max(0, \lambda + \rho h)^2 - \lambda^2}{2 \rho}

    Source: Liu et al., "Class Adaptive Network Calibration", CVPR 2023, and its published code
    (MIT), whose penalty is this one of Powell, Hestenes and Rockafellar by default.

    Args:
        logits: ``(N, K, *)``. A class masked with -inf has no part in the sum.
        target: ``(N, *)`` int64 labels or ``(N, K, *)`` probabilities.
        multipliers: :math:`\lambda`, ``(K,)``, at least 0.
        rho: :math:`\rho`, above 0.
        margin: m, in logits, above 0; the published commands use 10.
        class_weight: ``(K,)`` weights of the cross-entropy term alone.

    Returns:
        ``(N, *)``, in nats (the penalty has no unit).

    Example:
        >>> logits = torch.tensor([[20., 0.]])
        >>> cals(logits, torch.tensor([0]), multipliers=torch.zeros(2), rho=1.0, margin=10.0)
        tensor([0.5000])
    """
    penalty, _ = lagrangian(logits, multipliers, rho, margin)
    return cross_entropy(logits, target, class_weight) + penalty.sum(dim=1)


def lagrangian(
    logits: Tensor, multipliers: Tensor, rho: Tensor | float, margin: float
) -> tuple[Tensor, Tensor]:
    """Return the penalty P of each logit, and its derivative by h, both ``(N, K, *)``."""
    is_finite = logits > float('-inf')
    excess = torch.where(is_finite, (logits.amax(dim=1, keepdim=True) - logits) / margin - 1, 0)
    multiplier = per_class(multipliers.to(logits.dtype), logits)
    slope = torch.where(is_finite, torch.relu(multiplier + rho * excess), 0)
    penalty = torch.where(is_finite, (slope.square() - multiplier.square()) / (2 * rho), 0)
    return penalty, slope


class CALSLoss(CalibrationLoss):
    r"""Class-adaptive label smoothing for mmpretrain and mmseg heads; see :func:`cals`.

    The multipliers start at 1e-6 and learn only with
    ``custom_hooks=[dict(type='LearnFromValidationHook')]``, which calls :meth:`update` after each
    validation of a training:

    .. math:: \lambda_k \leftarrow \frac{1}{M} \sum_i \max(0, \lambda_k + \rho h_{ik}),
        \qquad \rho \leftarrow \min(\text{rho\_max}, \text{rho\_growth} \cdot \rho)

    over the M valid rows of the validation data, each derivative and their mean within
    [1e-6, 1e6]; :math:`\rho` only with every `rho_interval`-th update, and only if the mean
    penalty of a row was positive and is above `tau` times that of the validation before. Both are
    buffers: a checkpoint holds them.

    Source: the published code, which averages over batches and ranks however many rows they have,
    counts a sampler's repeated samples and the ignored pixels too, and does not save what it has
    learnt. Here the mean is that of the valid rows, each once.

    Args:
        num_classes: K.
        rho: :math:`\rho` at the start.
        rho_max: Its largest value.
        rho_growth: The factor by which it grows.
        rho_interval: Number of updates between two that may change it; the published code validates
            once per epoch and uses 10.
        tau: rho grows if the mean penalty is above this share of the last one.
        common: `margin`, and the options of :class:`CalibrationLoss`.

    Raises:
        TypeError: If an option is of another type.
        ValueError: If an option is out of range; for logits of another number of classes.
    """

    formula = staticmethod(cals)
    loss_name = 'loss_cals'
    ranges = dict(margin=(1e-2, float('inf')))

    def __init__(
        self,
        num_classes: int,
        *,
        rho: float = 1.0,
        rho_max: float = 10.0,
        rho_growth: float = 1.2,
        rho_interval: int = 10,
        tau: float = 0.9,
        **common,
    ) -> None:
        super().__init__(**common)
        self.num_classes = check_integer('num_classes', num_classes, least=2)
        check_number('rho', rho, least=1e-6)
        self.rho_max = check_number('rho_max', rho_max, least=rho)
        self.rho_growth = check_number('rho_growth', rho_growth, least=1.0)
        self.rho_interval = check_integer('rho_interval', rho_interval)
        self.tau = check_number('tau', tau)
        self.register_buffer('multipliers', torch.full((num_classes,), MULTIPLIERS[0]))
        self.register_buffer('rho', torch.tensor(float(rho)))
        self.register_buffer('last_penalty', torch.tensor(0.0))
        self.register_buffer('num_updates', torch.tensor(0))

    @torch.no_grad()
    def statistics(self, logits: Tensor) -> Tensor:
        """Return the sums over some rows that :meth:`update` takes; those of more rows add up.

        Args:
            logits: ``(M, K)``, of valid rows; a constant added to a row changes nothing.

        Returns:
            ``(K + 2,)`` float64: sums of the derivatives, of the penalties, and M.
        """
        multipliers = self.multipliers.to(logits.device)
        penalty, slope = lagrangian(logits, multipliers, self.rho.to(logits.device), self.margin)
        sum_of_slopes = slope.clamp(*MULTIPLIERS).sum(dim=0, dtype=torch.float64)
        sum_of_penalties = penalty.sum(dtype=torch.float64).view(1)
        count = sum_of_slopes.new_tensor([len(logits)])
        return torch.cat([sum_of_slopes, sum_of_penalties, count]).cpu()

    @torch.no_grad()
    def update(self, statistics: Tensor) -> None:
        """Learn the multipliers and rho from the :meth:`statistics` of a validation.

        Without a row nothing changes.
        """
        if statistics[-1] == 0:
            return
        means = statistics[:-1] / statistics[-1]
        penalty = means[-1].item()
        self.num_updates += 1
        is_due = self.num_updates.item() % self.rho_interval == 0
        if is_due and penalty > self.tau * self.last_penalty.item() > 0:
            self.rho.fill_(min(self.rho_max, self.rho.item() * self.rho_growth))
        self.last_penalty.fill_(penalty)
        self.multipliers.copy_(means[:-1].double().clamp(*MULTIPLIERS))
