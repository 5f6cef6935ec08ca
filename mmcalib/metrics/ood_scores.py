"""Scores of out-of-distribution detection and their figures."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import torch
from torch import Tensor

from mmcalib.metrics.bins import sum_by_key
from mmcalib.metrics.kept_memory import own_storage
from mmcalib.metrics.outcomes import pieces
from mmcalib.metrics.ranking import aupr, auroc, fpr
from mmcalib.metrics.ties import confidence_code, odds_of_code
from mmcalib.tensors import on_float64_device

SCORES = ('max_probability', 'max_logit', 'energy', 'entropy')
# A constant added to all logits changes these scores, so probabilities do not tell them.
NEED_LOGITS = ('max_logit', 'energy')
DROPPED_BITS = 15  # A rounded float32 loses so many of its 23 bits: an image keeps at most 100 kB.


def scores_of_logits(logits: Tensor, required: Collection[str]) -> dict[str, Tensor]:
    r"""Return scores of predictions, which are higher for in-distribution inputs.

    .. math::
        \frac{\max_k p_k}{1 - \max_k p_k}, \qquad \max_k l_k, \qquad \log \sum_k e^{l_k}, \qquad
        \sum_k p_k \log p_k

    for logits l and p = softmax(l): ``max_probability``, ``max_logit``, ``energy`` (the negative
    energy at temperature 1) and ``entropy`` (the negative entropy). The first is the odds of the
    probability, float64, which keep saturated predictions apart.

    Args:
        logits: ``(K, M)`` float32 or float64; -inf for a masked class.
        required: Some of ``SCORES``.

    Returns:
        ``(M,)`` values of each score, in nats or logits, on the CPU.

    Source: Hendrycks and Gimpel, ICLR 2017; Hendrycks et al., Scaling Out-of-Distribution Detection
    for Real-World Settings, ICML 2022; Liu et al., Energy-Based Out-of-Distribution Detection,
    NeurIPS 2020.
    """
    parts: dict[str, list[Tensor]] = {name: [] for name in required}
    for (piece,) in pieces(on_float64_device(logits)):
        highest, top = piece.max(dim=0)
        # The logit of a masked class may be -inf, which would make a NaN of its 0 probability.
        gaps = (piece - highest).clamp(min=torch.finfo(piece.dtype).min)
        # The top class is left out, since its 1 would drown the others in a saturated network.
        other_exps = gaps.exp().scatter_(0, top[None], 0)
        # The sums are float64, whose rounding does not show the order of the classes.
        total = other_exps.sum(dim=0, dtype=torch.float64)
        conf = (1 / (1 + total)).to(piece.dtype)
        weighted_gaps = (other_exps * gaps).sum(dim=0, dtype=torch.float64)
        negative_entropy = weighted_gaps / (1 + total) - total.log1p()
        values = {
            'max_probability': odds_of_code(confidence_code(conf, total / (1 + total))),
            'max_logit': highest,
            'energy': highest + total.log1p().to(piece.dtype),
            'entropy': negative_entropy.to(piece.dtype),
        }
        for name in required:
            parts[name].append(values[name].cpu())
    return {name: torch.cat(values) for name, values in parts.items()}


def scores_of_probabilities(probs: Tensor, required: Collection[str]) -> dict[str, Tensor]:
    """Return the scores of ``(K, M)`` probabilities, as in :func:`scores_of_logits`."""
    conf, top = probs.max(dim=0)
    sum_of_others = probs.scatter(0, top[None], 0).sum(dim=0, dtype=torch.float64)
    negative_entropy = torch.xlogy(probs, probs).sum(dim=0, dtype=torch.float64)
    scores = {
        'max_probability': odds_of_code(confidence_code(conf, sum_of_others)).cpu(),
        'entropy': negative_entropy.to(probs.dtype).cpu(),
    }
    return {name: scores[name] for name in required}


@dataclass
class OODCounts:
    """Counts of the predictions of an image by their scores; those of images are concatenated.

    Attributes:
        fine_bins: ``(2 + S, C)`` table of each score: distinct values, the number of
            in-distribution predictions with each, and the numbers of predictions of S OOD sets;
            float32 if values are rounded.
    """

    fine_bins: dict[str, Tensor]

    def __getstate__(self) -> dict:
        return own_storage(vars(self))

    @property
    def count(self) -> float:
        """The number of predictions."""
        table = next(iter(self.fine_bins.values()))
        return table[1:].sum().item()

    @property
    def is_rounded(self) -> bool:
        """Whether values are rounded, so that some share a fine bin."""
        table = next(iter(self.fine_bins.values()))
        return table.dtype == torch.float32

    def round(self) -> OODCounts:
        """Round values in place, so that some share a fine bin, and return the counts."""
        if self.is_rounded:
            return self
        rounded = {}
        for score, table in self.fine_bins.items():
            code = table[0].float().view(torch.int32) >> DROPPED_BITS << DROPPED_BITS
            values, counts = sum_by_key(code.view(torch.float32), table[1:])
            rounded[score] = torch.cat([values[None], counts.float()])
        self.fine_bins = rounded
        return self


def detection_table(table: Tensor) -> Tensor:
    """Return a ``(3, C)`` table with OOD as the correct class, ascending in the negative score."""
    count, in_distribution, total = table
    return torch.stack([count, count - in_distribution, -total]).flip(1)


# Functions of ``(3, C)`` tables, ascending in a score, with in-distribution as the correct class.
FIGURES = {
    'AUROC': auroc,
    'AUPR_in': aupr,
    'AUPR_out': lambda table: aupr(detection_table(table)),
    'FPR95': lambda table: fpr(detection_table(table)),
}


def ood_figures(in_distribution: Tensor, ood: Tensor) -> dict[str, float]:
    """Return the figures of a score, in percent.

    Args:
        in_distribution: ``(C,)`` number of in-distribution predictions with each value of the
            score, ascending.
        ood: ``(C,)`` number of OOD predictions.
    """
    zeros = torch.zeros_like(in_distribution)
    table = torch.stack([in_distribution + ood, in_distribution, zeros])
    return {name: formula(table).item() for name, formula in FIGURES.items()}
