"""ECE against the distance of pixels from the nearest boundary."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from torch import Tensor

from mmcalib.metrics import CalibrationStatistics
from mmcalib.metrics.bins.stratified_bins import stratum_figures
from mmcalib.samples.boundary_distance import RANGE_NAMES
from mmcalib.visualization.figure_style import GREY, colour_of, marker_of

ROOM = 120  # letters of a legend that are as wide as the figure


@dataclass(frozen=True)
class BoundaryCurve:
    """What a figure shows of one evaluation.

    Attributes:
        name: Of the run or its loss.
        table: ``(3, D, B)`` bins of the pixels in each range of distance.
        note: What else to say, such as the protocol.
    """

    name: str
    table: Tensor
    note: str = ''


def boundary_curve_of(statistics: CalibrationStatistics, name: str) -> BoundaryCurve:
    """Return what a figure shows of an evaluation.

    Args:
        statistics: Of the metric, or loaded.
        name: Of the run.

    Raises:
        ValueError: If distances were not measured, or nothing was evaluated.
    """
    if statistics.distance_bins is None:
        raise ValueError(
            f'{name!r} has no distances from the boundary: test it with '
            'CalibrationMetric(per_distance=True)'
        )
    if not statistics.distance_bins[0].any():
        raise ValueError(f'{name!r} has no predictions, so there is no curve of them')
    pooled = statistics.protocol in ('pooled', 'image')  # of the same pixels
    note = '' if pooled else f'protocol {statistics.protocol}'
    return BoundaryCurve(name, statistics.distance_bins, note)


def draw_boundary_curves(curves: Sequence[BoundaryCurve]) -> Figure:
    """Draw ECE, accuracy and mean confidence against the distance from the nearest boundary.

    The left panel has the ECE, the right one the accuracy, solid, and the mean confidence, dashed;
    below are the shares of the pixels in each range of distance, which are those of the labels.
    Ranges without pixels are left out.

    Args:
        curves: Of evaluations of the same images, in one figure.

    Returns:
        The figure; ``savefig`` writes it.

    Raises:
        ValueError: If there is nothing to draw.
    """
    if not curves:
        raise ValueError('there is no evaluation to draw a boundary curve of')
    figure = Figure(figsize=(8.0, 4.3), layout='constrained')
    upper, lower = figure.subplots(2, 2, height_ratios=(4, 1), sharex=True)
    drawn = [(curve, stratum_figures(curve.table)) for curve in curves]
    filled = [i for i in range(len(RANGE_NAMES)) if any(f['count'][i] for _, f in drawn)]
    for index, (_, figures) in enumerate(drawn):
        _draw(upper[0], figures['ECE'], filled, index)
        _draw(upper[1], figures['accuracy'], filled, index)
        _draw(upper[1], figures['confidence'], filled, index, linestyle='--')
    counts = np.array(drawn[0][1]['count'], dtype=float)[filled]
    for axes in lower:
        axes.bar(range(len(filled)), 100 * counts / counts.sum(), color=GREY, width=0.7)
        axes.set_xticks(range(len(filled)), [RANGE_NAMES[i] for i in filled])
        axes.tick_params(axis='x', labelsize=7)
        axes.set_xlabel('distance from the nearest boundary (pixels)')
    lower[0].set_ylabel('pixels (%)')
    upper[0].set_ylabel('ECE (%)')
    upper[1].set_ylabel('accuracy and confidence (%)')
    upper[0].set_ylim(bottom=0)
    for axes in (*upper, *lower):
        axes.grid(True, axis='y', linewidth=0.4, alpha=0.5)
        axes.set_axisbelow(True)
        axes.spines[['top', 'right']].set_visible(False)
        axes.tick_params(axis='y', labelsize=8)
    handles = [
        Line2D([], [], color=colour_of(index), marker=marker_of(index), label=_label(curve))
        for index, curve in enumerate(curves)
    ]
    handles += [
        Line2D([], [], color=GREY, label='accuracy'),
        Line2D([], [], color=GREY, linestyle='--', label='mean confidence'),
    ]
    widest = max(len(handle.get_label()) for handle in handles)
    figure.legend(
        handles=handles, loc='outside lower center', ncols=max(1, min(3, ROOM // (widest + 10))),
        frameon=False, fontsize=8, handlelength=2.8,
    )  # fmt: skip
    return figure


def _draw(
    axes: Axes, values: Sequence[float], filled: Sequence[int], index: int, linestyle: str = '-'
) -> None:
    axes.plot(
        range(len(filled)), [values[i] for i in filled], color=colour_of(index), linewidth=1.5,
        marker=marker_of(index), markersize=4.5, linestyle=linestyle,
        markerfacecolor='white' if linestyle == '--' else None,
    )  # fmt: skip


def _label(curve: BoundaryCurve) -> str:
    return ', '.join(part for part in (curve.name, curve.note) if part)
