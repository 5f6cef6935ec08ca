"""Counts: sums of outcomes, which add up over images and processes, for all metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from mmcalib.metrics.bins import bin_index, bin_table, sum_by_key
from mmcalib.metrics.kept_memory import own_storage
from mmcalib.metrics.log_bins import log_bin_counts
from mmcalib.metrics.outcomes import Outcomes

# Up to so many predictions, each confidence has a fine bin of its own. More share fine bins of
# 1 - confidence, 128 to each halving, so that an image keeps at most 100 kB.
EXACT_LIMIT = 1_000_000
DROPPED_BITS = 16  # A rounded float32 value of 1 - confidence loses so many last bits.
BITS_OF_ONE = 0x3F80  # The float32 value 1 without these bits.
IMAGES_PER_MERGE = 64
# Equal confidences, such as those of equal votes for different classes, differ by what is rounded
# in their logits, probabilities and sums: by less than so many steps of their type of float, of
# which a softmax of 1,000 classes takes 30.
TIE_STEPS = 32
# Near ties are tied if they are at least a quarter of the pairs within 1,024 times that distance.
# Of confidences that are all distinct they are one in 1,024.
NEIGHBOURHOOD = 1024
TIED_SHARE = 0.25
NEARLY_ONE_STEPS = 2.0**-12  # A smaller 1 - confidence is exact relative to itself.
CONDENSED_SIZE = 6144


@dataclass
class Counts:
    """Sums of the outcomes of some predictions; those of two parts add up.

    Attributes:
        bins: ``(3, B)`` bins of equal width, each (lo, hi]: count, correct, sum of confidences.
        fine_bins: ``(4, C)``: 1 - confidence, count, correct, sum of 1 - confidence; float32 if
            confidences share fine bins. Those of a sum ascend in confidence, without ties.
        sums: ``(2,)`` float64: NLL, Brier score.
        strata: ``(3, S, B)`` bins of each stratum, by the name of the stratification: of the
            probability of each class (``'classes'``), of each predicted class (``'predicted'``),
            of each range of distance from a boundary (``'distance'``).
        nll_curve: ``(33,)`` sums of the NLL at each of ``BETAS``; None if not required.
        step: Relative rounding of the confidences, by their type of float.
        image: Tables of a single image, which are not summed, by name: ``log_bins`` ``(3, 98)``
            int32; ``objects`` ``(O, 5)``, see
            :class:`~mmcalib.metrics.statistics.CalibrationStatistics`.
    """

    bins: Tensor
    fine_bins: Tensor
    sums: Tensor
    strata: dict[str, Tensor] = field(default_factory=dict)
    nll_curve: Tensor | None = None
    step: float = 2.0**-24
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

    def ranking_table(self) -> Tensor:
        """Return the ``(3, C)`` table, in which confidences are tied that only rounding parts."""
        if self.is_rounded:
            return self.table
        return replace(self, fine_bins=merge_near_ties(self.fine_bins, self.step)).table

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
    if not with_fine_bins:
        fine_bins = torch.zeros(4, 0, dtype=torch.float64, device='cpu')
    elif rounded:
        fine_bins = rounded_fine_bins(outcomes)
    else:
        fine_bins = exact_fine_bins(outcomes)
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
        step=torch.finfo(outcomes.conf.dtype).eps / 2,
    )
    if outcomes.ignored_conf is not None:
        counts.image['log_bins'] = log_bin_counts(
            outcomes.conf, outcomes.correct, outcomes.ignored_conf
        )
    return counts


def exact_fine_bins(outcomes: Outcomes) -> Tensor:
    """Return one fine bin for each prediction, ``(4, M)`` float64."""
    one_minus_conf = outcomes.one_minus_conf.double()
    count = torch.ones_like(one_minus_conf)
    return torch.stack(
        [one_minus_conf, count, outcomes.correct.double(), 1 - outcomes.conf.double()]
    )


def rounded_fine_bins(outcomes: Outcomes) -> Tensor:
    """Return :func:`round_bins` of the exact fine bins, float32, without these being made."""
    code = rounded_code(outcomes.one_minus_conf)
    by_correctness = torch.bincount(code * 2 + outcomes.correct, minlength=2 * (BITS_OF_ONE + 1))
    correct = by_correctness.view(-1, 2)[:, 1]
    count = by_correctness.view(-1, 2).sum(dim=1)
    sums = torch.bincount(code, 1 - outcomes.conf.double(), BITS_OF_ONE + 1)
    return filled_bins(torch.stack([count.double(), correct.double(), sums])).float()


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
        step=max(part.step for part in parts),
    )


def merge_ties(fine_bins: Tensor) -> Tensor:
    """Return fine bins of which those of one confidence are one, ascending in confidence."""
    negative, sums = sum_by_key(-fine_bins[0], fine_bins[1:])
    return torch.cat([-negative[None], sums])


def merge_near_ties(fine_bins: Tensor, step: float) -> Tensor:
    """Return fine bins of which those are one that rounding has parted.

    If near ties are as frequent as of distinct confidences, none is merged.

    Args:
        fine_bins: ``(4, C)``, ascending in confidence, without ties.
        step: Relative rounding of the confidences.
    """
    one_minus_conf, count, _, _ = fine_bins
    # A sum of the other classes may be tied with a difference from 1, which is less exact.
    is_difference = one_minus_conf > NEARLY_ONE_STEPS - TIE_STEPS * step
    width = TIE_STEPS * step * torch.where(is_difference, 1.0, one_minus_conf)
    num_near = count_pairs_within(one_minus_conf, count, width)
    num_neighbours = count_pairs_within(one_minus_conf, count, NEIGHBOURHOOD * width)
    if not num_near or num_near < TIED_SHARE * num_neighbours:
        return fine_bins
    gap = one_minus_conf[:-1] - one_minus_conf[1:]
    begins = torch.ones(len(one_minus_conf), dtype=torch.bool, device=gap.device)
    begins[1:] = gap > width[:-1]
    # A long chain of near ties is cut into parts that are as wide as a tie.
    first = begins.nonzero()[:, 0][begins.cumsum(dim=0) - 1]
    distance = one_minus_conf[first] - one_minus_conf
    part = torch.where(distance > 0, distance / width[first], 0.0).floor()
    begins[1:] |= part.diff() > 0
    index = begins.cumsum(dim=0) - 1
    sums = fine_bins.new_zeros(3, int(index[-1]) + 1).index_add_(1, index, fine_bins[1:])
    return torch.cat([one_minus_conf[begins][None], sums])


def count_pairs_within(descending: Tensor, count: Tensor, distance: Tensor) -> float:
    """Return how many pairs of predictions differ by at most the distance of the larger value.

    Args:
        descending: ``(C,)`` values, all different.
        count: ``(C,)`` number of predictions of each value.
        distance: ``(C,)``.
    """
    ascending = -descending.numpy()
    # NumPy finds values that ascend themselves in a third of the time that torch takes.
    end = np.searchsorted(ascending, ascending + distance.numpy(), side='right')
    total = torch.nn.functional.pad(count.cumsum(dim=0), (1, 0))
    return (count * (total[torch.from_numpy(end)] - total[1:]).clamp(min=0)).sum().item()


def round_bins(fine_bins: Tensor) -> Tensor:
    """Return fine bins of which those of one rounded 1 - confidence are one, float64.

    They are rounded to the bits of a bfloat16, ascend in confidence, and are not sorted for it.
    """
    one_minus_conf, *rows = fine_bins.double()
    code = rounded_code(one_minus_conf)
    return filled_bins(torch.stack([torch.bincount(code, row) for row in rows]))


def rounded_code(one_minus_conf: Tensor) -> Tensor:
    """Return the index of the rounded fine bin of each 1 - confidence; it ascends in confidence."""
    return BITS_OF_ONE - (one_minus_conf.float().view(torch.int32) >> DROPPED_BITS)


def filled_bins(sums: Tensor) -> Tensor:
    """Return the fine bins, by the code of :func:`rounded_code`, that hold predictions.

    Args:
        sums: ``(3, C)``: count, correct, sum of 1 - confidence.
    """
    filled = sums[0].nonzero()[:, 0]
    bits = (BITS_OF_ONE - filled).int() << DROPPED_BITS
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
