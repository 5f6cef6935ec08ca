"""Calibration by the distance of pixels from the nearest boundary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mmcalib.errors import UserError
from mmcalib.metrics.statistics import CalibrationStatistics
from mmcalib.metrics.strata import stratum_figures
from mmcalib.predictions.boundary import RANGE_NAMES
from mmcalib.visualization.panels import (
    PlottedRun,
    add_legend,
    check_drawable,
    panel_axes,
    plotted_runs,
    tidy_axes,
)
from mmcalib.visualization.style import GREY


def draw_boundary_curves(runs: Mapping[str, CalibrationStatistics]) -> Figure:
    """Draw ECE, accuracy and mean confidence against the distance from the nearest boundary.

    The left panel has the ECE, the right one the accuracy, solid, and the mean confidence, dashed;
    below are the shares of the pixels in each range of distance, which are those of the labels.
    Ranges without pixels are left out.

    Args:
        runs: Evaluations of the same images, by the names of the runs.

    Returns:
        The figure; ``savefig`` writes it.

    Raises:
        ValueError: If there is nothing to draw, or distances were not measured.
    """
    check_drawable(runs)
    for name, statistics in runs.items():
        if statistics.distance_bins is None:
            raise UserError(
                f'{name!r} has no distances from the boundary: test it with '
                'CalibrationMetric(per_distance=True)'
            )
    figure, ((ece_axes, left_shares), (accuracy_axes, right_shares)) = panel_axes(
        2, columns=2, panel_size=(4.0, 4.0), below=(0.25,), share_x=True
    )
    plotted = plotted_runs(runs)
    metrics_by_run = [stratum_figures(run.content.distance_bins) for run in plotted]
    counts = np.array([metrics['count'] for metrics in metrics_by_run], dtype=float)
    filled_ranges = np.flatnonzero(counts.any(axis=0))
    for run, metrics in zip(plotted, metrics_by_run, strict=True):
        label = _label_with_protocol(run)
        ece = np.array(metrics['ECE'])[filled_ranges]
        accuracy = np.array(metrics['accuracy'])[filled_ranges]
        confidence = np.array(metrics['confidence'])[filled_ranges]
        _plot_curve(ece_axes, ece, run, label=label)
        _plot_curve(accuracy_axes, accuracy, run, label=label)
        _plot_curve(accuracy_axes, confidence, run, linestyle='--', markerfacecolor='white')
    accuracy_axes.plot([], [], color=GREY, label='accuracy')
    accuracy_axes.plot([], [], color=GREY, linestyle='--', label='mean confidence')
    shares = 100 * counts[0, filled_ranges] / counts[0].sum()
    for axes in (left_shares, right_shares):
        _draw_shares(axes, shares, [RANGE_NAMES[index] for index in filled_ranges])
    left_shares.set_ylabel('pixels (%)')
    ece_axes.set(ylabel='ECE (%)', ylim=(0, None))
    accuracy_axes.set_ylabel('accuracy and confidence (%)')
    for axes in figure.axes:
        tidy_axes(axes)
    add_legend(figure, most_columns=3)
    return figure


def _label_with_protocol(run: PlottedRun) -> str:
    """Return the label of a run, and its protocol if that measures other pixels."""
    protocol = run.content.protocol
    # The pixels of the protocol of images are those of all images together.
    if protocol in ('pooled', 'image'):
        return run.label
    return f'{run.label}, protocol {protocol}'


def _plot_curve(
    axes: Axes, values: np.ndarray, run: PlottedRun, *, linestyle: str = '-', **look
) -> None:
    """Plot values by range in the colour of a run; `look` are options of ``plot``."""
    axes.plot(
        values,
        color=run.look.colour,
        linestyle=linestyle,
        marker=run.look.marker,
        markersize=4.5,
        **look,
    )


def _draw_shares(axes: Axes, shares: np.ndarray, range_names: Sequence[str]) -> None:
    axes.bar(range(len(shares)), shares, color=GREY)
    axes.set_xticks(range(len(shares)), range_names)
    axes.set_xlabel('distance from the nearest boundary (pixels)')
