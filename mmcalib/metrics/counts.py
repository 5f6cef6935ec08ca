"""Counts: sums of outcomes, which add up over images and processes, for all metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from mmcalib.metrics.bins import bin_index, bin_table, sum_by_key
from mmcalib.metrics.kept_memory import own_storage
from mmcalib.metrics.log_bins import log_bin_counts
from mmcalib.metrics.outcomes import Outcomes, ranking_odds

# Up to so many predictions, each confidence has a fine bin of its own. More share fine bins of the
# odds, 128 to each doubling, so that an image keeps at most 100 kB.
EXACT_LIMIT = 1_000_000
DROPPED_BITS = 16  # The float32 value of rounded odds loses so many last bits.
IMAGES_PER_MERGE = 64
CONDENSED_SIZE = 6144


@dataclass
class Counts:
    """Sums of the outcomes of some predictions; those of two parts add up.

    Attributes:
        bins: ``(3, B)`` bins of equal width, each (lo, hi]: count, correct, sum of confidences.
        fine_bins: ``(4, C)``: odds of the confidence, count, correct, sum of 1 - confidence;
            float32 if confidences share fine bins. Those of a sum ascend in confidence, without
            ties.
        sums: ``(2,)`` float64: NLL, Brier score.
        strata: ``(3, S, B)`` bins of each stratum, by the name of the stratification: of the
            probability of each class (``'classes'``), of each predicted class (``'predicted'``),
            of each range of distance from a boundary (``'distance'``).
        nll_curve: ``(33,)`` sums of the NLL at each of ``BETAS``; None if not required.
        image: Tables of a single image, which are not summed, by name: ``log_bins`` ``(3, 98)``
            int32; ``objects`` ``(O, 5)``, see
            :class:`~mmcalib.metrics.statistics.CalibrationStatistics`.
    """

    bins: Tensor
    fine_bins: Tensor
    sums: Tensor
    strata: dict[str, Tensor] = field(default_factory=dict)
    nll_curve: Tensor | None = None
    image: dict[str, Tensor] = field(default_factory=dict)

    def __getstate__(self) -> dict:
        return own_storage(vars(self))

    @property
    def count(self) -> float:
        """The number of predictions."""
        return self.bins[0].sum().item()

    @property
    def is_rounded(self) -> bool:
        """Whether confidences share fine bins."""
        return self.fine_bins.dtype == torch.float32

    @property
    def table(self) -> Tensor:
        """The ``(3, C)`` table of the fine bins: count, correct, sum of confidences."""
        _, count, correct, sum_of_one_minus_conf = self.fine_bins
        return torch.stack([count, correct, count - sum_of_one_minus_conf])

    def condensed_table(self) -> Tensor:
        """Return the ``(3, C)`` table of at most some 6,000 fine bins."""
        if self.fine_bins.shape[1] <= CONDENSED_SIZE:
            return self.table
        return replace(self, fine_bins=round_bins(self.fine_bins)).table

    def round(self) -> Counts:
        """Let confidences share fine bins, in place, and return the counts."""
        if not self.is_rounded:
            self.fine_bins = round_bins(self.fine_bins).float()
        return self


def count_outcomes(
    outcomes: Outcomes,
    num_bins: int = 15,
    *,
    strata: Mapping[str, tuple[Tensor, int]] | None = None,
    rounded: bool = False,
    with_fine_bins: bool = True,
) -> Counts:
    """Return the counts of outcomes; they have log bins if the outcomes have ignored confidences.

    Args:
        outcomes: Outcomes of M predictions.
        num_bins: B.
        strata: By the name of a stratification, the ``(M,)`` int64 stratum of each prediction, and
            the number of strata.
        rounded: Whether confidences share fine bins from the beginning.
        with_fine_bins: Whether there are fine bins at all.
    """
    strata = strata or {}
    odds = outcomes.odds
    if odds is None and with_fine_bins:
        odds = ranking_odds(outcomes.conf)
    if not with_fine_bins:
        fine_bins = torch.zeros(4, 0, dtype=torch.float64, device='cpu')
    elif rounded:
        fine_bins = rounded_fine_bins(outcomes, odds)
    else:
        fine_bins = exact_fine_bins(outcomes, odds)
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
    )
    if outcomes.ignored_conf is not None:
        counts.image['log_bins'] = log_bin_counts(
            outcomes.conf, outcomes.correct, outcomes.ignored_conf
        )
    return counts


def exact_fine_bins(outcomes: Outcomes, odds: Tensor) -> Tensor:
    """Return one fine bin for each prediction, ``(4, M)`` float64."""
    count = torch.ones_like(odds)
    return torch.stack([odds, count, outcomes.correct.double(), 1 - outcomes.conf.double()])


def rounded_fine_bins(outcomes: Outcomes, odds: Tensor) -> Tensor:
    """Return :func:`round_bins` of the exact fine bins, float32, without these being made."""
    code, first_code, size = odds_codes(odds)
    by_correctness = torch.bincount(code * 2 + outcomes.correct, minlength=2 * size).view(-1, 2)
    correct = by_correctness[:, 1]
    count = by_correctness.sum(dim=1)
    sums = torch.bincount(code, 1 - outcomes.conf.double(), size)
    return filled_bins(torch.stack([count.double(), correct.double(), sums]), first_code).float()


def sum_counts(parts: Sequence[Counts], num_bins: int = 15) -> Counts:
    """Return the sum of counts of one kind; for no counts, that of no predictions."""
    if not parts:
        return Counts(
            bins=torch.zeros(3, num_bins, dtype=torch.float64, device='cpu'),
            fine_bins=torch.zeros(4, 0, dtype=torch.float64, device='cpu'),
            sums=torch.zeros(2, dtype=torch.float64, device='cpu'),
        )
    fine_bins = torch.cat([part.fine_bins for part in parts], dim=1)
    if any(part.is_rounded for part in parts):
        fine_bins = round_bins(fine_bins)
    else:
        fine_bins = merge_ties(fine_bins)
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
    )


def merge_ties(fine_bins: Tensor) -> Tensor:
    """Return fine bins of which those of one odds are one, ascending in confidence."""
    odds, sums = sum_by_key(fine_bins[0], fine_bins[1:])
    return torch.cat([odds[None], sums])


def round_bins(fine_bins: Tensor) -> Tensor:
    """Return fine bins of which those of one rounded odds are one, float64.

    They are rounded to the bits of a bfloat16, ascend in confidence, and are not sorted for it.
    """
    odds, *rows = fine_bins.double()
    code, first_code, size = odds_codes(odds)
    sums = torch.stack([torch.bincount(code, row, size) for row in rows])
    return filled_bins(sums, first_code)


def odds_codes(odds: Tensor) -> tuple[Tensor, int, int]:
    """Return the index of the rounded fine bin of each odds, from 0 on, and where these lie.

    Returns:
        ``(M,)`` indices, which ascend in confidence; the code of index 0; the number of indices.
    """
    if not len(odds):
        return odds.long(), 0, 0
    code = odds.float().view(torch.int32) >> DROPPED_BITS
    first_code = int(code.min())
    code -= first_code
    return code, first_code, int(code.max()) + 1


def filled_bins(sums: Tensor, first_code: int) -> Tensor:
    """Return the fine bins that hold predictions.

    Args:
        sums: ``(3, C)``: count, correct, sum of 1 - confidence, by the index of :func:`odds_codes`.
        first_code: The code of index 0.
    """
    filled = sums[0].nonzero()[:, 0]
    bits = (filled + first_code).int() << DROPPED_BITS
    return torch.cat([bits.view(torch.float32)[None], sums[:, filled]])


def tables_by_group(
    outcomes: Outcomes, group_index: Tensor, num_groups: int, num_bins: int
) -> tuple[Tensor, Tensor]:
    """Return the bins ``(G, 3, B)`` and the sums of NLL and Brier score ``(G, 2)`` of groups.

    Args:
        outcomes: Outcomes of M predictions.
        group_index: ``(M,)`` int64 group of each, such as its image.
        num_groups: G.
        num_bins: B.
    """
    index = group_index * num_bins + bin_index(outcomes.conf, num_bins)
    bins = bin_table(index, outcomes.conf, outcomes.correct, num_groups, num_bins)
    brier = torch.zeros_like(outcomes.nll) if outcomes.brier is None else outcomes.brier
    sums = torch.stack([outcomes.nll, brier], dim=1)
    zeros = sums.new_zeros(num_groups, 2)
    return bins.transpose(0, 1), zeros.index_add_(0, group_index, sums)


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
        if self.is_reached:
            for exact_counts in self._exact:
                exact_counts.round()
            self._exact.clear()
        return counts


class Tally:
    """Sums of the counts of images: one sum of all, or one for every few consecutive images.

    Only few images are in memory once fine bins are rounded.

    Args:
        num_bins: B.
        images_per_sum: Number of images after which the next sum begins; None for one sum of all.
    """

    def __init__(self, num_bins: int = 15, images_per_sum: int | None = None) -> None:
        self.num_bins = num_bins
        self.images_per_sum = images_per_sum
        self.limit = FineBinLimit()
        self._parts_of_sums: list[list[Counts]] = [[]]
        self._images_in_last = 0

    def add(self, counts: Counts) -> None:
        """Add the counts of an image, or of a batch of classified images."""
        parts = self._parts_of_sums[-1]
        parts.append(self.limit.take(counts))
        self._images_in_last += 1
        is_full = self._images_in_last == self.images_per_sum
        # Before the limit is reached, parts stay apart, since it may have to round each of them.
        if self.limit.is_reached and (is_full or len(parts) >= IMAGES_PER_MERGE):
            parts[:] = [sum_counts(parts, self.num_bins)]
        if is_full:
            self._parts_of_sums.append([])
            self._images_in_last = 0

    def sums(self) -> list[Counts]:
        """Return the sum of each group of images; without images, that of no predictions."""
        filled = [parts for parts in self._parts_of_sums if parts] or [[]]
        return [sum_counts(parts, self.num_bins) for parts in filled]
