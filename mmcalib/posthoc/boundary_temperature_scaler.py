"""A temperature for each range of distance from the predicted boundary."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor
from torch.nn.functional import max_pool2d

from mmcalib.checks import check_number
from mmcalib.posthoc.binned_temperatures import temperatures_of_bins
from mmcalib.posthoc.gaps_to_top import gaps_to_top, of_given_head
from mmcalib.posthoc.map_scaler import IGNORED, LabelledMap, MapScaler, valid_rows
from mmcalib.samples.boundary_distance import DISTANCES

# Upper ends of the ranges in pixels; the last range is beyond them.
UPPER_ENDS = DISTANCES[:4]


class BoundaryTemperatureScaler(MapScaler):
    r"""Divide the logits of a pixel by a temperature for its distance from the predicted boundary.

    .. math:: z'_k = (z_k - z_c) / T_{r(d)}, \qquad c = \arg\max_k z_k

    which changes no argmax. The distance d is that of :mod:`~mmcalib.samples.boundary_distance`,
    from the nearest pixel that is predicted to be of another class, in the ranges 1, 2, 3–4, 5–8
    and above 8 pixels; a map of one class is all above. With T the single temperature of the least
    NLL, those of the ranges minimise

    .. math:: \sum_r \frac{N_r}{n_r} \sum_{i \in r} \mathrm{NLL}_i + \lambda \sum_r (T / T_r - 1)^2

    where the :math:`n_r` pixels of a range count as the number :math:`N_r` of independent ones that
    they amount to (:func:`~mmcalib.posthoc.effective_number.effective_number`). The distances are
    in pixels of the maps that it is given: fitted at one resolution, it is not for another.

    Source: ours. That calibration depends on the distance, Ding et al., Local Temperature Scaling
    for Probability Calibration, 2021, show, who measure it near boundaries.

    Args:
        penalty: :math:`\lambda`, in effective predictions.

    Attributes:
        temperature_: ``(5,)``, within [0.01, 100], the nearest range first.

    Raises:
        TypeError: If the penalty is no number.
        ValueError: If the penalty is negative or infinite.
    """

    learned = ('temperature',)
    keeps_argmax = True

    def __init__(self, *, penalty: float = 10.0) -> None:
        self.penalty = check_number('penalty', penalty)

    def _apply(self, logits: Tensor, learned: Mapping[str, Tensor]) -> Tensor:
        gaps, predicted = gaps_to_top(logits)
        temperature = learned['temperature'][ranges_from_boundary(predicted)]
        return of_given_head(gaps / temperature.unsqueeze(1), logits)

    def _fit_maps(self, maps: Sequence[LabelledMap]) -> None:
        def read() -> Iterable[tuple[Tensor, Tensor, Tensor]]:
            for one in maps:
                gaps, predicted = gaps_to_top(one.logits[None].double())
                valid = one.labels != IGNORED
                ranges = ranges_from_boundary(predicted)[0]
                if valid.any():
                    yield valid_rows(gaps[0], one.labels), one.labels[valid], ranges[valid]

        groups = torch.cat([torch.full((int((m.labels != IGNORED).sum()),), m.group) for m in maps])
        self.temperature_ = temperatures_of_bins(
            read, groups, num_bins=len(UPPER_ENDS) + 1, penalty=self.penalty
        )


def ranges_from_boundary(predicted: Tensor) -> Tensor:
    """Return in which range of distance from another class each pixel lies, 0 for the nearest.

    It is :func:`~mmcalib.samples.boundary_distance.distance_ranges` by pooling, for batches and for
    export to ONNX, for which the other's slices depend on the size of the image.

    Args:
        predicted: ``(N, H, W)`` classes.

    Returns:
        ``(N, H, W)`` int64, at most 4.
    """
    values = predicted.float().unsqueeze(1)
    # Padding counts as less than any value, so the edge of an image is no boundary.
    near = (_pooled(values, 1) != values) | (-_pooled(-values, 1) != values)
    near, reached = near.float(), 1
    found = torch.zeros_like(near)
    for distance in UPPER_ENDS:
        if distance > reached:
            near, reached = _pooled(near, distance - reached), distance
        found = found + near
    return (len(UPPER_ENDS) - found).squeeze(1).long()


def _pooled(values: Tensor, reach: int) -> Tensor:
    """Return the highest value within `reach` pixels of each, rows first, since that is faster."""
    size = 2 * reach + 1
    rows = max_pool2d(values, (1, size), stride=1, padding=(0, reach))
    return max_pool2d(rows, (size, 1), stride=1, padding=(reach, 0))
