"""Counts: sums of outcomes, which add up over images and processes, for all metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from mmcalib.metrics.bins import bin_index, bin_table, sum_by_key, sum_runs
from mmcalib.metrics.kept_memory import own_storage
from mmcalib.metrics.log_bins import log_bin_counts
from mmcalib.metrics.outcomes import Outcomes, true_indices
from mmcalib.metrics.ties import confidence_code

# Up to so many predictions, each confidence has a fine bin of its own. More share fine bins: 2,048
# to each doubling of the confidence up to one half, and to each halving of 1 - confidence above it.
EXACT_LIMIT = 1_000_000
DROPPED_BITS = 12  # A rounded code of the confidence loses so many last bits.
# 16 fine bins of a map are one coarse bin, of 128 to each doubling, if they hold less than this
# share of its predictions. So a map keeps at most 100 kB.
COARSE_DROPPED_BITS = 16
LIGHT_SHARE = 1 / 256
# Parts with this number of fine bins take longer to sum than to round.
BINS_PER_MERGE = 1 << 15
CONDENSED_SIZE = 6144
# The bins of each class are kept of so many classes: 11 kB of an image, for 30 classes and 15 bins.
MOST_CLASSES = 30


@dataclass
class Counts:
    """Sums of the outcomes of some predictions; those of two parts add up.

    Attributes:
        bins: ``(3, B)`` bins of equal width, each (lo, hi]: count, correct, sum of confidences.
        fine_bins: ``(4, C)``: code of the confidence, count, correct, sum of 1 - confidence. Those
            of a sum ascend in confidence, without ties.
        sums: ``(2,)`` float64: NLL, Brier score.
        strata: ``(3, S, B)`` bins of each stratum, by the name of the stratification: of the
            probability of each class (``'classes'``), of each predicted class (``'predicted'``),
            of each range of distance from a boundary (``'distance'``).
        nll_curve: ``(33,)`` sums of the NLL at each of ``BETAS``; None if not required.
        is_map: Whether the predictions are those of one map, whose light fine bins may be merged.
        is_rounded: Whether confidences share fine bins; those of few rows do in a sum.
        image: Tables of a single image, which are not summed, by name: ``log_bins`` ``(3, 98)``
            int32; ``objects`` ``(O, 5)``, see
            :class:`~mmcalib.metrics.statistics.CalibrationStatistics`.
    """

    bins: Tensor
    fine_bins: Tensor
    sums: Tensor
    strata: dict[str, Tensor] = field(default_factory=dict)
    nll_curve: Tensor | None = None
    is_map: bool = False
    is_rounded: bool = False
    image: dict[str, Tensor] = field(default_factory=dict)

    def __getstate__(self) -> dict:
        return own_storage(vars(self))

    @property
    def count(self) -> float:
        """The number of predictions."""
        return self.bins[0].sum().item()

    @property
    def class_bins(self) -> Tensor | None:
        """The ``(3, K, B)`` bins of the probability of each class; None of many classes."""
        class_bins = self.strata.get('classes')
        if class_bins is None or class_bins.shape[1] > MOST_CLASSES:
            return None
        return class_bins

    @property
    def table(self) -> Tensor:
        """The ``(3, C)`` table of the fine bins: count, correct, sum of confidences."""
        _, count, correct, sum_of_one_minus_conf = self.fine_bins
        return torch.stack([count, correct, count - sum_of_one_minus_conf])

    def condensed_table(self) -> Tensor:
        """Return the ``(3, C)`` table of at most some 6,000 fine bins."""
        if self.fine_bins.shape[1] <= CONDENSED_SIZE:
            return self.table
        return replace(self, fine_bins=round_bins(self.fine_bins, COARSE_DROPPED_BITS)).table

    def round(self) -> Counts:
        """Let confidences share fine bins, in place, and return the counts; see `is_rounded`."""
        if not self.is_rounded and is_rounded_at_once(self.fine_bins.shape[1], self.is_map):
            self.fine_bins = round_bins(self.fine_bins)
            if self.is_map:
                self.fine_bins = merge_light_bins(self.fine_bins)
        self.is_rounded = True
        return self


def is_rounded_at_once(count: int, is_map: bool) -> bool:
    """Return whether so many fine bins are rounded before they are summed.

    Few rows are not, since the bins of a sum take longer than they do.
    """
    return is_map or count >= BINS_PER_MERGE


def count_outcomes(
    outcomes: Outcomes,
    num_bins: int = 15,
    *,
    strata: Mapping[str, tuple[Tensor, int]] | None = None,
    is_map: bool = False,
    rounded: bool = False,
    with_fine_bins: bool = True,
) -> Counts:
    """Return the counts of outcomes; they have log bins if the outcomes have ignored confidences.

    Args:
        outcomes: Outcomes of M predictions.
        num_bins: B.
        strata: By the name of a stratification, the ``(M,)`` int64 stratum of each prediction, and
            the number of strata.
        is_map: Whether the predictions are those of one map.
        rounded: Whether confidences share fine bins from the beginning.
        with_fine_bins: Whether there are fine bins at all.
    """
    strata = strata or {}
    if not with_fine_bins:
        fine_bins = torch.zeros(4, 0, dtype=torch.float64, device='cpu')
    else:
        code = outcomes.conf_code
        if code is None:
            code = confidence_code(outcomes.conf)
        one_minus_conf = 1 - outcomes.conf.double()
        if rounded and is_rounded_at_once(len(code), is_map):
            fine_bins = sum_by_code(code, outcomes.correct.double(), one_minus_conf)
            if is_map:
                fine_bins = merge_light_bins(fine_bins)
        else:
            count = torch.ones_like(one_minus_conf)
            fine_bins = torch.stack(
                [code.double(), count, outcomes.correct.double(), one_minus_conf]
            )
    index = bin_index(outcomes.conf, num_bins)
    strata_bins = {}
    for name, (stratum, size) in strata.items():
        strata_bins[name] = bin_table(
            stratum * num_bins + index, outcomes.conf, outcomes.correct, size, num_bins
        )
    if outcomes.class_bins is not None:
        strata_bins['classes'] = outcomes.class_bins
    brier = 0.0 if outcomes.brier is None else outcomes.brier.sum()
    counts = Counts(
        bins=bin_table(index, outcomes.conf, outcomes.correct, num_bins),
        fine_bins=fine_bins,
        sums=torch.tensor([outcomes.nll.sum(), brier], dtype=torch.float64, device='cpu'),
        strata=strata_bins,
        nll_curve=outcomes.nll_curve,
        is_map=is_map,
        is_rounded=rounded,
    )
    if outcomes.ignored_conf is not None:
        counts.image['log_bins'] = log_bin_counts(
            outcomes.conf, outcomes.correct, outcomes.ignored_conf
        )
    return counts


def sum_counts(parts: Sequence[Counts], num_bins: int = 15) -> Counts:
    """Return the sum of counts of one kind; for no counts, that of no predictions."""
    if not parts:
        return Counts(
            bins=torch.zeros(3, num_bins, dtype=torch.float64, device='cpu'),
            fine_bins=torch.zeros(4, 0, dtype=torch.float64, device='cpu'),
            sums=torch.zeros(2, dtype=torch.float64, device='cpu'),
        )
    fine_bins = torch.cat([part.fine_bins for part in parts], dim=1)
    is_rounded = any(part.is_rounded for part in parts)
    fine_bins = round_bins(fine_bins) if is_rounded else merge_ties(fine_bins)
    strata = {}
    for name in parts[0].strata:
        strata[name] = sum(part.strata[name] for part in parts)
    curve = None
    if parts[0].nll_curve is not None:
        curve = sum(part.nll_curve for part in parts)
    return Counts(
        bins=sum(part.bins for part in parts),
        fine_bins=fine_bins,
        sums=sum(part.sums for part in parts),
        strata=strata,
        nll_curve=curve,
        is_rounded=is_rounded,
    )


def merge_ties(fine_bins: Tensor) -> Tensor:
    """Return fine bins of which those of one code are one, ascending in confidence."""
    code, sums = sum_by_key(fine_bins[0], fine_bins[1:])
    return torch.cat([code[None], sums])


def round_bins(fine_bins: Tensor, dropped_bits: int = DROPPED_BITS) -> Tensor:
    """Return fine bins of which those of one rounded code are one, ascending, float64."""
    code, count, correct, sum_of_one_minus_conf = fine_bins.double()
    return sum_by_code(code.int(), correct, sum_of_one_minus_conf, count, dropped_bits)


def sum_by_code(
    code: Tensor,
    correct: Tensor,
    one_minus_conf: Tensor,
    count: Tensor | None = None,
    dropped_bits: int = DROPPED_BITS,
) -> Tensor:
    """Return the fine bins of rounded codes, ``(4, C)`` float64, which ascend.

    Args:
        code: ``(M,)`` int32 codes of confidences; they are not sorted.
        correct: ``(M,)`` numbers of correct predictions.
        one_minus_conf: ``(M,)`` sums of 1 - confidence.
        count: ``(M,)`` numbers of predictions; None for 1 each.
        dropped_bits: Number of last bits that codes lose.
    """
    if not len(code):
        return torch.zeros(4, 0, dtype=torch.float64, device='cpu')
    index = code >> dropped_bits
    first = int(index.min())
    index -= first
    counts = torch.bincount(index, count)
    filled = true_indices(counts)
    rows = [counts, torch.bincount(index, correct), torch.bincount(index, one_minus_conf)]
    codes = (filled + first) << dropped_bits
    return torch.stack([codes.double(), *(row[filled].double() for row in rows)])


def merge_light_bins(fine_bins: Tensor) -> Tensor:
    """Return rounded fine bins of which those in a coarse bin of few predictions are one, float32.

    Args:
        fine_bins: ``(4, C)``, ascending.
    """
    code = fine_bins[0].int()
    coarse = code >> COARSE_DROPPED_BITS
    count = fine_bins[1]
    _, index = coarse.unique_consecutive(return_inverse=True)
    is_light = (torch.bincount(index, count) < LIGHT_SHARE * count.sum())[index]
    # A coarse bin lies at its middle among the fine bins of other maps.
    middle = (coarse << COARSE_DROPPED_BITS) + (1 << (COARSE_DROPPED_BITS - 1))
    merged_code, sums = sum_runs(torch.where(is_light, middle, code), fine_bins[1:])
    return torch.cat([merged_code.double()[None], sums]).float()


class FineBinLimit:
    """Decision between exact fine bins, up to a million predictions, and rounded ones beyond.

    All counts of a sum go through one limit. It depends on nothing but the number of predictions,
    so neither on their order nor on the process that counts them.
    """

    def __init__(self) -> None:
        self.count = 0.0
        self._exact: list = []

    @property
    def is_reached(self) -> bool:
        """Whether there are too many predictions for a fine bin each."""
        return self.count > EXACT_LIMIT

    def take(self, counts):
        """Take note of counts and return them; all that were taken are rounded beyond the limit."""
        self.count += counts.count
        self._exact.append(counts)
        self.round_beyond(self.count)
        return counts

    def round_beyond(self, total: float) -> None:
        """Round all that were taken if the predictions of all processes are beyond the limit."""
        if total > EXACT_LIMIT:
            for exact_counts in self._exact:
                exact_counts.round()
            self._exact.clear()


def class_table(class_bins: Tensor, kind: str) -> Tensor:
    """Return the ``(…, 3, *)`` table of the ``(…, 3, K, B)`` bins of all classes.

    Args:
        class_bins: Bins of the probability of each class.
        kind: ``'class_bins'`` for all of them, ``(…, 3, K B)``, or ``'class_totals'`` for the sums
            of each class, ``(…, 3, K)``.
    """
    return class_bins.sum(dim=-1) if kind == 'class_totals' else class_bins.flatten(-2)
