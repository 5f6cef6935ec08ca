"""Scores that are higher for in-distribution inputs than for others."""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor

from mmcalib.metrics.counts import PIECE_BYTES, doubt_of

SCORES = ('max_probability', 'max_logit', 'energy', 'entropy')
# Which a constant added to all logits changes, so that probabilities do not tell them.
NEED_LOGITS = ('max_logit', 'energy')


def scores_of_logits(logits: Tensor, wanted: Collection[str]) -> dict[str, Tensor]:
    r"""Return scores of predictions, which are higher for in-distribution inputs.

    .. math::
        \max_k p_k - 1, \qquad \max_k l_k, \qquad \log \sum_k e^{l_k}, \qquad \sum_k p_k \log p_k

    for logits l and p = softmax(l): ``max_probability``, ``max_logit``, ``energy`` (the negative
    of the energy at temperature 1) and ``entropy`` (the negative of it). The first is float64 and
    less 1, which keeps saturated predictions apart.

    Args:
        logits: ``(K, M)`` float32 or float64, finite.
        wanted: Some of ``SCORES``.

    Returns:
        ``(M,)`` of each, in nats or logits, on the CPU.

    Source: Hendrycks and Gimpel, ICLR 2017; Hendrycks et al., Scaling Out-of-Distribution Detection
    for Real-World Settings, ICML 2022; Liu et al., Energy-Based Out-of-Distribution Detection,
    NeurIPS 2020.
    """
    step = max(PIECE_BYTES // (len(logits) * logits.element_size()), 64)
    pieces = [_of_piece(piece, wanted) for piece in logits.split(step, dim=1)]
    return {name: torch.cat([piece[name] for piece in pieces]).cpu() for name in wanted}


def scores_of_probabilities(probs: Tensor, wanted: Collection[str]) -> dict[str, Tensor]:
    """Return the scores of ``(K, M)`` probabilities, as in :func:`scores_of_logits`."""
    found = {}
    if 'max_probability' in wanted:
        conf, top = probs.max(dim=0)
        others = probs.scatter(0, top[None], 0).sum(dim=0)
        found['max_probability'] = -doubt_of(conf, others).cpu()
    if 'entropy' in wanted:
        found['entropy'] = torch.xlogy(probs, probs).sum(dim=0).cpu()
    return found


def _of_piece(logits: Tensor, wanted: Collection[str]) -> dict[str, Tensor]:
    highest, top = logits.max(dim=0)
    below = logits - highest
    # Without the highest, whose 1 would drown the others in a saturated network.
    others = below.exp().scatter_(0, top[None], 0)
    total = others.sum(dim=0)
    found = {
        'max_probability': -doubt_of(1 / (1 + total), total / (1 + total)),
        'max_logit': highest,
        'energy': highest + total.log1p(),
    }
    if 'entropy' in wanted:
        found['entropy'] = others.mul_(below).sum(dim=0) / (1 + total) - total.log1p()
    return {name: found[name] for name in wanted}
