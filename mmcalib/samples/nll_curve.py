"""The negative log-likelihood of predictions at any temperature, in a few numbers that add up."""

from __future__ import annotations

import torch
from torch import Tensor

# Inverse temperatures β, each √2 times the one before: T is from 16 to 1/16. Where each is twice
# the one before, refinement_NLL may be off by 1.4e-4 of it, in place of 1.3e-5.
BETAS = tuple(2 ** (power / 2) for power in range(-8, 9))
# Differences of logits count as at most this, whose square float32 can hold.
LARGEST_GAP = 1e18


def nll_curve(logits: Tensor, label: Tensor) -> Tensor:
    r"""Return the NLL of each prediction at each of :data:`BETAS`, and its derivatives in β.

    .. math:: L = \log \sum_k e^{-\beta g_k} + \beta g_y, \qquad
        L' = g_y - \mathrm{E}[g], \qquad L'' = \mathrm{Var}[g]

    for differences g of the logits from the highest, and mean and variance under the softmax at β.

    Args:
        logits: ``(K, M)`` float32 or float64.
        label: ``(M,)`` int64 true classes.

    Returns:
        ``(M, 3, B)`` float64, on the device of the logits.
    """
    highest = logits.amax(dim=0)
    own = highest.double() - logits.gather(0, label[None])[0].double()
    gaps = (highest - logits).clamp_(max=LARGEST_GAP)
    exps, weighted = torch.empty_like(gaps), torch.empty_like(gaps)
    curve = own.new_empty(3, len(BETAS), len(own))
    for first in (0, 1):
        torch.mul(gaps, -BETAS[first], out=exps).exp_()
        for number in range(first, len(BETAS), 2):
            if number > first:
                exps.square_()  # for twice the β, at a tenth of the time of another exponential
            total = exps.sum(dim=0)
            torch.mul(exps, gaps, out=weighted)
            mean = weighted.sum(dim=0).div_(total)
            curve[0, number] = total.log() + BETAS[number] * own
            curve[1, number] = own - mean
            curve[2, number] = weighted.mul_(gaps).sum(dim=0).div_(total) - mean.square()
    return curve.permute(2, 0, 1)
