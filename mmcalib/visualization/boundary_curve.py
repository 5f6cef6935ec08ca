"""ECE against the distance of pixels from the nearest boundary."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from mmcalib.metrics import CalibrationStatistics
from mmcalib.metrics.strata import stratum_figures
from mmcalib.samples.boundary import RANGE_NAMES
from mmcalib.visualization.figure_style import (
    GREY,
    Evaluation,
    add_legend,
    check_drawable,
    tidy,
)
from mmcalib.visualization.loss_colours import Look, looks_of


def boundary_curve_of(statistics: CalibrationStatistics, name: str) -> Evaluation:
    """Return the curve of an evaluation.

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
    return Evaluation(name, statistics.distance_bins, note=note)


def draw_boundary_curves(curves: Sequence[Evaluation]) -> Figure:
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
    check_drawable(curves, 'boundary curve')
    figure = Figure(figsize=(8.0, 4.3), layout='constrained')
    upper, lower = figure.subplots(2, 2, height_ratios=(4, 1), sharex=True)
    drawn = [(curve, stratum_figures(curve.table)) for curve in curves]
    filled = [i for i in range(len(RANGE_NAMES)) if any(f['count'][i] for _, f in drawn)]
    looks = looks_of([curve.name for curve in curves])
    for look, (_, figures) in zip(looks, drawn, strict=True):
        _draw(upper[0], figures['ECE'], filled, look)
        _draw(upper[1], figures['accuracy'], filled, look)
        _draw(upper[1], figures['confidence'], filled, look, linestyle='--')
    counts = np.array(drawn[0][1]['count'], dtype=float)[filled]
    for axes in lower:
        axes.bar(range(len(filled)), 100 * counts / counts.sum(), color=GREY, width=0.7)
        axes.set_xticks(range(len(filled)), [RANGE_NAMES[i] for i in filled])
        axes.set_xlabel('distance from the nearest boundary (pixels)')
    lower[0].set_ylabel('pixels (%)')
    upper[0].set_ylabel('ECE (%)')
    upper[1].set_ylabel('accuracy and confidence (%)')
    upper[0].set_ylim(bottom=0)
    for axes in (*upper, *lower):
        tidy(axes)
    handles = [
        Line2D([], [], color=look.colour, marker=look.marker, label=curve.short_label)
        for look, curve in zip(looks, curves, strict=True)
    ]
    handles += [
        Line2D([], [], color=GREY, label='accuracy'),
        Line2D([], [], color=GREY, linestyle='--', label='mean confidence'),
    ]
    add_legend(figure, handles)
    return figure


def _draw(
    axes: Axes, values: Sequence[float], filled: Sequence[int], look: Look, linestyle: str = '-'
) -> None:
    axes.plot(
        range(len(filled)), [values[i] for i in filled], color=look.colour, linewidth=1.5,
        marker=look.marker, markersize=4.5, linestyle=linestyle,
        markerfacecolor='white' if linestyle == '--' else None,
    )  # fmt: skip
