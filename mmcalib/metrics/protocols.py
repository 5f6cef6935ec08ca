"""Protocols of segmentation: the pixels that are valid, and the images that are averaged over."""

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
from mmcalib.metrics.unit_tables import UnitTables
from mmcalib.predictions.boundary import boundary

BACKGROUND_LABEL = 0


@dataclass(frozen=True)
class Protocol:
    """A rule by which metrics of a segmentation are computed.

    Attributes:
        region: Function of the ``(H, W)`` labels and the width of a boundary that returns a mask of
            the valid pixels; None for all.
        images_per_unit: Number of consecutive images that a metric is computed for before values
            are averaged; None for all images together.
        equal_weights: Whether units have the same weight in the average, rather than their numbers
            of pixels.
    """

    region: Callable[[Tensor, int], Tensor] | None = None
    images_per_unit: int | None = None
    equal_weights: bool = False

    def value(self, name: str, units: Sequence[Counts], whole: Counts) -> float:
        """Return a metric of the units, whose sum is the whole."""
        if self.images_per_unit is None or not whole.count:
            return metric_value(name, whole)
        if find_metric(name).required == 'nll_curve':
            # There is one temperature for all units, whose weights may be equal.
            if not self.equal_weights:
                return metric_value(name, whole)
            curve = sum(unit.nll_curve / max(unit.count, 1) for unit in units)
            bins = sum(unit.bins / max(unit.count, 1) for unit in units)
            return metric_value(name, replace(whole, bins=bins, nll_curve=curve))
        unit_values = [metric_value(name, unit) for unit in units]
        values = torch.tensor(unit_values, dtype=torch.float64, device='cpu')
        bins = torch.stack([unit.bins for unit in units])
        return self.mean(values, bins, torch.ones_like(values)[None]).item()

    def mean(self, values: Tensor, bins: Tensor, weights: Tensor) -> Tensor:
        """Return the means of ``(U,)`` values of units without NaN, ``(R,)``.

        Every value of an empty unit is NaN, and so is the AUROC of a unit without errors.

        Args:
            values: ``(U,)``.
            bins: ``(U, 3, B)`` bins of the units.
            weights: ``(R, U)``, how often each of R resamples has each unit.
        """
        unit_weight = torch.ones_like(values) if self.equal_weights else bins[:, 0].sum(dim=-1)
        unit_weight = torch.where(values.isnan(), 0, unit_weight)
        return weights @ (unit_weight * values.nan_to_num(0)) / (weights @ unit_weight)

    def intervals(
        self,
        names: Sequence[str],
        units: Sequence[Counts],
        images: UnitTables,
        **options: Any,
    ) -> dict[str, float]:
        """Return the ends of intervals over images, or over units where a metric is their mean.

        Args:
            names: Names of metrics.
            units: Counts of the units.
            images: Tables of the images.
            options: Options of :func:`~mmcalib.metrics.intervals.interval_values`.
        """
        if self.images_per_unit is None:
            return interval_values(names, images, **options)
        if self.images_per_unit == 1:  # Units of several processes are not in order, images are.
            return interval_values(names, images, mean=self.mean, **options)
        return interval_values(names, UnitTables.from_counts(units), mean=self.mean, **options)


def foreground(label: Tensor, _: int) -> Tensor:
    """Return the mask of an ``(H, W)`` label map's pixels that are not background."""
    return label != BACKGROUND_LABEL


def check_background(meta: Mapping, reason: str, remedy: str) -> None:
    """Raise a UserError if the meta data of a data set or a sample say that class 0 is an object.

    It prevents a wrong number: mmseg's ``reduce_zero_label`` ignores label 0 and counts the others
    from 0 on, so a metric of the foreground would leave out a class.

    Args:
        meta: Meta data, with ``reduce_zero_label`` and ``classes`` if they are known.
        reason: Subject of the error: the option or metric that leaves class 0 out.
        remedy: End of the error.
    """
    if not meta.get('reduce_zero_label'):
        return
    classes = meta.get('classes')
    first_class = f' {classes[0]!r},' if classes else ''
    raise UserError(
        f'{reason} leaves out class 0, which is no background after reduce_zero_label=True '
        f'but{first_class} a class like the others: {remedy}'
    )


PROTOCOLS = {
    'pooled': Protocol(),
    'foreground': Protocol(foreground),
    'image': Protocol(images_per_unit=1, equal_weights=True),
    # The paper averages over batches of 8 images, weighted by their pixels.
    'paper': Protocol(foreground, images_per_unit=8),
    'boundary': Protocol(boundary),
}
