"""Out-of-distribution detection: scores of predictions, and the registered metric."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
from mmengine.registry import METRICS
from torch import Tensor

from mmcalib.checks import UserError, check_choices
from mmcalib.metrics.counts import doubt_of, grouped, pieces, round_if_many
from mmcalib.metrics.list_metric import ListMetric
from mmcalib.metrics.ranking import aupr, auroc, fpr
from mmcalib.samples import OOD_GROUPS
from mmcalib.samples.reading import read_ood

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
        total = others.sum(dim=0)
        values = {
            'max_probability': -doubt_of(1 / (1 + total), total / (1 + total)),
            'max_logit': highest,
            'energy': highest + total.log1p(),
            'entropy': (others * below).sum(dim=0) / (1 + total) - total.log1p(),
        }
        parts.append([values[name].cpu() for name in wanted])
    return dict(zip(wanted, map(torch.cat, zip(*parts, strict=True)), strict=True))


def scores_of_probabilities(probs: Tensor, wanted: Collection[str]) -> dict[str, Tensor]:
    """Return the scores of ``(K, M)`` probabilities, as in :func:`scores_of_logits`."""
    conf, top = probs.max(dim=0)
    found = {
        'max_probability': -doubt_of(conf, probs.scatter(0, top[None], 0).sum(dim=0)).cpu(),
        'entropy': torch.xlogy(probs, probs).sum(dim=0).cpu(),
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
            values, rows = grouped(code.view(torch.float32), cells[1:])
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


@METRICS.register_module()
class OODMetric(ListMetric):
    r"""Out-of-distribution detection by scores of the predictions, measured as in OpenOOD.

    Out of distribution (OOD) is a sample with a negative label, as
    :class:`~mmcalib.datasets.WithOODSets` gives, or a sample or pixel of the label `ood_index`; all
    others are in distribution (ID). For a score s, of which ID should have more, and with OOD as
    the positive kind:

    - ``AUROC``: :math:`P(s_\mathrm{ID} > s_\mathrm{OOD}) + \frac12 P(s_\mathrm{ID} =
      s_\mathrm{OOD})`.
    - ``AUPR_out``, ``AUPR_in``: average precision with OOD, and with ID, as positives.
    - ``FPR95``: the share of ID that is flagged at the threshold that flags 95 % of OOD.

    Tied scores count in the mean over their orders. OpenOOD joins the points of a precision-recall
    curve by lines, and flags all that is tied at the threshold: with distinct scores ``AUROC`` and
    ``FPR95`` are its own, and ``AUPR`` is close; docs/results/shift.md reports how close.

    The scores are those of
    :func:`~mmcalib.metrics.ood_metric.scores_of_logits`:
    ``'max_probability'``, ``'max_logit'``, ``'energy'`` and ``'entropy'``. mmpretrain leaves only
    probabilities; for ``'max_logit'`` and ``'energy'`` add ``KeepLogitsHook``.

    Keys are ``ood/max_probability/AUROC`` and so on, in percent; with named OOD sets
    ``ood/max_probability/svhn/AUROC`` of each, and ``…/near/AUROC`` and ``…/far/AUROC``, the means
    over the near and the far sets. Above a million predictions, scores are rounded to 8 bits behind
    the first. NaN, with a warning, where ID or OOD is absent.

    Source: Zhang et al., OpenOOD v1.5: Enhanced Benchmark for Out-of-Distribution Detection, 2023,
    and its ``auc_and_fpr_recall``. Version 1 of its code took ID as positive in FPR95.

    Args:
        scores: One or more of ``max_probability``, ``entropy``, ``max_logit`` and ``energy``.
        ood_index: Label of OOD pixels, or of a classifier's OOD samples beside negative labels.
        ignore_index: Label of the pixels to leave out. Classifiers do not use it.
        **options: Those of mmengine's ``BaseMetric``, such as ``prefix``.

    Attributes:
        counts: How many predictions of ``'ID'`` and of each OOD set, ``'OOD'`` where they have no
            names, the last evaluation had, on the main process.

    Raises:
        ValueError: If a score is unknown, or `ood_index` is `ignore_index`; while evaluating, for
            samples that :func:`~mmcalib.samples.reading.read_ood` refuses.
    """

    default_prefix = 'ood'

    def __init__(
        self,
        scores: Sequence[str] = ('max_probability',),
        *,
        ood_index: int | None = None,
        ignore_index: int = 255,
        **options,
    ) -> None:
        super().__init__(**options)
        self.scores = check_choices('scores', scores, SCORES)
        if ood_index is not None and ood_index == ignore_index:
            both = f'ood_index and ignore_index are both {ood_index}: set ignore_index to a label'
            raise UserError(f'{both} that is neither left out nor OOD, such as -1')
        self.ood_index = ood_index
        self.ignore_index = ignore_index

    def read(self, sample: dict) -> Scored:
        """Return what an image leaves."""
        name, sets = self.name(sample), self._sets()
        found, are_logits, kind = read_ood(
            sample, ood_index=self.ood_index, ignore_index=self.ignore_index, name=name
        )
        if not are_logits and (missing := [x for x in self.scores if x in NEED_LOGITS]):
            others = ' and '.join(x for x in SCORES if x not in NEED_LOGITS)
            raise UserError(
                f'{" and ".join(missing)} require logits, but {name} has only probabilities: for '
                "a classifier add custom_hooks=[dict(type='KeepLogitsHook')] to the config, give "
                f'a binary segmentor two channels, or take {others}'
            )
        if sets and kind.numel() and kind.max() > len(sets):
            known = f'the data set names only {len(sets)} OOD sets: {", ".join(sets)}'
            raise UserError(f'{name} has the label {-kind.max().item()}, and {known}')
        scores = (scores_of_logits if are_logits else scores_of_probabilities)(found, self.scores)
        kind = kind if sets else kind.clamp(max=1)
        kinds = (torch.arange(1 + max(len(sets), 1))[:, None] == kind).double()
        cells = {name: torch.cat([v.double()[None], kinds]) for name, v in scores.items()}
        return self.limited(Scored(cells))

    def compute_metrics(self, results: list[Scored]) -> dict[str, float]:
        """Return the figures of all images."""
        round_if_many(results)  # of all processes together
        groups, values = self._sets(), {}
        names = ['ID', *(groups or ('OOD',))]
        nothing = torch.zeros(1 + len(names), 0, dtype=torch.float64)
        for score in self.scores:
            cells = torch.cat([nothing, *(x.cells[score].double() for x in results)], dim=1)
            seen, *unseen = grouped(cells[0], cells[1:])[1]
            found = dict(zip(names[1:], (ood_figures(seen, row) for row in unseen), strict=True))
            means = {}
            for group in dict.fromkeys(groups.values()):
                members = [found[name] for name in groups if groups[name] == group]
                means[group] = {k: sum(each[k] for each in members) / len(members) for k in FIGURES}
            for name, figures in (means | found).items():
                prefix = f'{score}/{name}' if groups else score
                values |= {f'{prefix}/{key}': value for key, value in figures.items()}
        self.counts = dict(zip(names, map(int, cells[1:].sum(dim=1)), strict=True))
        self.log(', '.join(f'{count:,} {name}' for name, count in self.counts.items()))
        if absent := [name for name, count in self.counts.items() if not count]:
            self.log(
                f'no prediction of {" and ".join(absent)}, so figures against it are NaN. OOD are '
                f'negative labels, and those of ood_index ({self.ood_index})',
                logging.WARNING,
            )
        return values

    def _sets(self) -> dict[str, str]:
        """Return the group of each OOD set that the data set names."""
        groups = (self.dataset_meta or {}).get('ood_sets', {})
        return {name: group for group in OOD_GROUPS for name in groups.get(group, ())}
