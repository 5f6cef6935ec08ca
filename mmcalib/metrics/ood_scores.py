"""Scores of out-of-distribution detection and their figures."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import torch
from torch import Tensor

from mmcalib.metrics.bins import sum_by_key
from mmcalib.metrics.kept_memory import own_storage
from mmcalib.metrics.outcomes import exact_one_minus_conf, pieces
from mmcalib.metrics.ranking import aupr, auroc, fpr

SCORES = ('max_probability', 'max_logit', 'energy', 'entropy')
# Which a constant added to all logits changes, so that probabilities do not tell them.
NEED_LOGITS = ('max_logit', 'energy')
ROUNDED_BITS = 15  # of the 23 of a float32, so that an image leaves at most 100 kB


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
    parts = []
    for (piece,) in pieces(logits):
        highest, top = piece.max(dim=0)
        below = piece - highest
        # Without the highest, whose 1 would drown the others in a saturated network.
        others = below.exp().scatter_(0, top[None], 0)
        # In float64, whose rounding does not show the order of the classes.
        total = others.sum(dim=0, dtype=torch.float64)
        conf = (1 / (1 + total)).to(piece.dtype)
        entropy = (others * below).sum(dim=0, dtype=torch.float64) / (1 + total) - total.log1p()
        values = {
            'max_probability': -exact_one_minus_conf(conf, total / (1 + total)),
            'max_logit': highest,
            'energy': highest + total.log1p().to(piece.dtype),
            'entropy': entropy.to(piece.dtype),
        }
        parts.append([values[name].cpu() for name in wanted])
    return dict(zip(wanted, map(torch.cat, zip(*parts, strict=True)), strict=True))


def scores_of_probabilities(probs: Tensor, wanted: Collection[str]) -> dict[str, Tensor]:
    """Return the scores of ``(K, M)`` probabilities, as in :func:`scores_of_logits`."""
    conf, top = probs.max(dim=0)
    sum_of_others = probs.scatter(0, top[None], 0).sum(dim=0, dtype=torch.float64)
    found = {
        'max_probability': -exact_one_minus_conf(conf, sum_of_others).cpu(),
        'entropy': torch.xlogy(probs, probs).sum(dim=0, dtype=torch.float64).to(probs.dtype).cpu(),
    }
    return {name: found[name] for name in wanted}


@dataclass
class Scored:
    """What the scores of an image leave.

    Attributes:
        cells: Of each score, a table of values, and how often each is of a seen prediction and of
            one of each OOD set; float32 where values share cells.
    """

    cells: dict[str, Tensor]

    def __getstate__(self) -> dict:
        return own_storage(vars(self))

    @property
    def count(self) -> float:
        """How many predictions there are."""
        return next(iter(self.cells.values()))[1:].sum().item()

    @property
    def rounded(self) -> bool:
        """Whether values share cells."""
        return next(iter(self.cells.values())).dtype == torch.float32

    def round(self) -> Scored:
        """Have values share cells, and return self."""
        for score, cells in () if self.rounded else [*self.cells.items()]:
            code = cells[0].float().view(torch.int32) >> ROUNDED_BITS << ROUNDED_BITS
            values, rows = sum_by_key(code.view(torch.float32), cells[1:])
            self.cells[score] = torch.cat([values[None], rows.float()])
        return self


def unseen_first(table: Tensor) -> Tensor:
    """Return the table of cells with the unseen as the right ones, ascending in unlikeness."""
    count, seen, total = table
    return torch.stack([count, count - seen, -total]).flip(1)


# Of tables of the cells of a score, in which the seen are the "right" ones.
FIGURES = {
    'AUROC': auroc,
    'AUPR_in': aupr,
    'AUPR_out': lambda table: aupr(unseen_first(table)),
    'FPR95': lambda table: fpr(unseen_first(table)),
}


def ood_figures(seen: Tensor, unseen: Tensor) -> dict[str, float]:
    """Return the figures of a score, in percent, by how many have each value, ascending."""
    table = torch.stack([seen + unseen, seen, torch.zeros_like(seen)])
    return {name: figure(table).item() for name, figure in FIGURES.items()}
