"""Calibration of each segmented image: its accuracy against its mean confidence."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from mmcalib.errors import UserError
from mmcalib.metrics.statistics import CalibrationStatistics
from mmcalib.visualization.panels import (
    PlottedRun,
    add_legend,
    check_drawable,
    panels,
    set_panel_title,
    statistics_title,
)
from mmcalib.visualization.reliability import BLUE, Bins, draw_diagonal, filled_bins

MARGIN = 0.03  # at each end of the axes, as a share of their length


def draw_image_calibration(runs: Mapping[str, CalibrationStatistics]) -> Figure:
    """Draw the accuracy of each segmented image against its mean confidence, in percent.

    An image below the diagonal is over-confident. An evaluation of all pixels may be calibrated
    while no image of it is; the title has the median of their gaps, whatever their signs.

    Args:
        runs: Statistics of each evaluation, by its name: one panel each, four in a row.

    Raises:
        ValueError: For an evaluation whose images have one prediction each, or are not kept.
    """
    check_drawable(runs)
    images_by_run = {name: _image_bins(name, statistics) for name, statistics in runs.items()}
    figure, image_panels = panels(runs)
    for panel, images in zip(image_panels, images_by_run.values(), strict=True):
        _draw_images(panel.axes[0], panel.runs[0], images)
    lowest = min(np.min([images.conf, images.accuracy]) for images in images_by_run.values())
    _set_limits(figure, min(lowest, 100))
    add_legend(figure)
    return figure


def _image_bins(name: str, statistics: CalibrationStatistics) -> Bins:
    """Return a bin for each image, of all its pixels."""
    image_bins = statistics.image_bins
    if image_bins is None or image_bins[:, 0].sum(dim=1).max() <= 1:
        raise UserError(f'{name!r} has no images of many pixels: draw its reliability')
    return filled_bins(image_bins.sum(dim=2).T)


def _draw_images(axes: Axes, run: PlottedRun, images: Bins) -> None:
    axes.scatter(
        images.conf, images.accuracy, s=10, alpha=0.5, color=BLUE, linewidth=0, label='image'
    )
    draw_diagonal(axes)
    axes.set(xlabel='mean confidence (%)', ylabel='accuracy (%)')
    median_gap = np.median(np.abs(images.conf - images.accuracy))
    title = statistics_title(
        run.label, run.content, {'median gap': median_gap}, note=f'{len(images.conf)} images'
    )
    set_panel_title(axes, title)


def _set_limits(figure: Figure, lowest: float) -> None:
    """Give all axes the same limits, between which no point is cut, and ticks at both ends."""
    margin = MARGIN * max(100 - lowest, 1)
    limits = (lowest - margin, 100 + margin)
    # The lower end has a tick too, since the worst image is the one to look at.
    ticks = MaxNLocator(6, steps=[1, 2, 5, 10]).tick_values(lowest, 100)
    ticks = ticks[(ticks >= limits[0]) & (ticks <= 100)]
    for axes in figure.axes:
        axes.set(xlim=limits, ylim=limits, xticks=ticks, yticks=ticks)
