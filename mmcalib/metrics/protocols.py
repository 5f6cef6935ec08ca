"""Protocols of segmentation: the pixels that count, and what errors are averaged over."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from mmcalib.errors import UserError
from mmcalib.metrics.counts import Counts
from mmcalib.metrics.definitions import find_metric, metric_value
from mmcalib.metrics.intervals import interval_values
from mmcalib.predictions.boundary import boundary

BACKGROUND = 0


@dataclass(frozen=True)
class Protocol:
    """One way of judging a segmentation.

    Attributes:
        region: Given the ``(H, W)`` labels and the width of a boundary, a mask of the pixels that
            count; None for all.
        group: How many consecutive images errors are computed over before they are averaged; None
            for all of them.
        alike: Groups weigh the same, rather than as many pixels as they have.
    """

    region: Callable[[Tensor, int], Tensor] | None = None
    group: int | None = None
    alike: bool = False

    def value(self, name: str, units: Sequence[Counts], whole: Counts) -> float:
        """Return a metric of groups, the units, which together are the whole."""
        is_of_curve = find_metric(name).required == 'nll_curve'
        if self.group is None or not whole.count or (is_of_curve and not self.alike):
            return metric_value(name, whole)
        if is_of_curve:  # There is one temperature for all, though images weigh the same.
            curve = sum(unit.nll_curve / max(unit.count, 1) for unit in units)
            bins = sum(unit.bins / max(unit.count, 1) for unit in units)
            return metric_value(name, replace(whole, bins=bins, nll_curve=curve))
        values = torch.tensor(
            [metric_value(name, unit) for unit in units], dtype=torch.float64, device='cpu'
        )
        bins = torch.stack([unit.bins for unit in units])
        return self.mean(values, bins, torch.ones_like(values)[None]).item()

    def mean(self, values: Tensor, bins: Tensor, weights: Tensor) -> Tensor:
        """Average ``(U,)`` values for ``(R, U)`` weights of units; what is NaN drops out.

        That is every value of an empty unit, and the AUROC of one without errors.
        """
        share = torch.ones_like(values) if self.alike else bins[:, 0].sum(dim=-1)
        share = torch.where(values.isnan(), 0, share)
        return weights @ (share * values.nan_to_num(0)) / (weights @ share)

    def intervals(
        self, names: Sequence[str], units: Sequence[Counts], images: Sequence[Tensor], **how: Any
    ) -> dict[str, float]:
        """Return the ends of intervals over images, by their bins and sums, or over groups."""
        if self.group is None:
            return interval_values(names, *images, **how)
        tables = (torch.stack([getattr(u, name) for u in units]) for name in ('bins', 'sums'))
        return interval_values(names, *tables, mean=self.mean, **how)


def foreground(label: Tensor, _: int) -> Tensor:
    """Return where an ``(H, W)`` label map is not background, label 0."""
    return label != BACKGROUND


def check_background(meta: Mapping, reason: str, remedy: str) -> None:
    """Raise a UserError where class 0 is no background, by what a data set or a sample says.

    It prevents a wrong number: mmseg's ``reduce_zero_label`` ignores label 0 and counts the others
    from 0 on, so a metric of the foreground would leave out a class.

    Args:
        meta: With ``reduce_zero_label`` and ``classes``, if they are known.
        reason: Begins the error: what leaves class 0 out.
        remedy: Ends it.
    """
    if meta.get('reduce_zero_label'):
        first = ''.join(f' {name!r},' for name in (meta.get('classes') or ())[:1])
        raise UserError(
            f'{reason} leaves out class 0, which is no background after reduce_zero_label=True '
            f'but{first} a class like the others: {remedy}'
        )


PROTOCOLS = {
    'pooled': Protocol(),
    'foreground': Protocol(foreground),
    'image': Protocol(group=1, alike=True),
    # The paper's: averaged by the pixels of 8 images.
    'paper': Protocol(foreground, group=8),
    'boundary': Protocol(boundary),
}
