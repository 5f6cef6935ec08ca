"""Calibration of each segmented image: its accuracy against its mean confidence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from mmcalib.errors import UserError
from mmcalib.metrics.measured import Measured
from mmcalib.metrics.statistics import CalibrationStatistics
from mmcalib.metrics.streaming import StreamingMetrics
from mmcalib.options import suggests_arguments
from mmcalib.predictions.arrays import Array
from mmcalib.predictions.distributed import gather_one_process
from mmcalib.predictions.from_arrays import read_arrays
from mmcalib.visualization.panels import (
    PlottedRun,
    add_legend,
    check_drawable,
    check_no_arrays,
    measured_statistics,
    panels,
    set_panel_title,
    statistics_title,
)
from mmcalib.visualization.reliability import BLUE, Bins, draw_diagonal, filled_bins

MARGIN = 0.03  # at each end of the axes, as a share of their length


@suggests_arguments
def image_calibration_diagram(
    probs: Array | Measured | Mapping[str, Measured],
    labels: Array | None = None,
    *,
    ignore_index: int | None = None,
    title: str = '',
    ax: Axes | None = None,
) -> Figure:
    """Draw the accuracy of each map or volume against its mean confidence, in percent.

    >>> probs = torch.rand(5, 3, 8, 8).softmax(dim=1)
    >>> figure = image_calibration_diagram(probs, torch.randint(3, (5, 8, 8)))
    >>> figure.savefig('images.png')  # doctest: +SKIP

    Args:
        probs: Maps or volumes of probabilities, as :func:`~mmcalib.metrics.measure` takes them. Or
            a measurement of them with an interval, whose groups, if it has some, are drawn in place
            of images; or several measurements by name, with a panel each.
        labels: True classes of the maps.
        ignore_index: Label of the pixels that are not valid.
        title: Text above the figure.
        ax: Axes of matplotlib in which one panel is drawn, without the legend, which
            ``ax.legend()`` adds. None for a new figure.

    Returns:
        A figure of matplotlib without pyplot, which a notebook shows and ``savefig`` writes; with
        `ax`, that of these axes.

    Raises:
        TypeError: For a number, or a dict that is no measurement.
        ValueError: For a classifier, whose images have one prediction each; a measurement without
            an interval, which keeps no images; if no prediction is valid; and if `ax` is for one
            panel and there are several.
    """
    if not isinstance(probs, (Mapping, float)):
        stream = StreamingMetrics(['ECE'], keep_images=True, gather=gather_one_process)
        stream.add(read_arrays(probs, labels, ignore_index=ignore_index))
        bins = stream.image_tables().filled().bins
        statistics = CalibrationStatistics(
            metrics={},
            protocol='pooled',
            num_bins=stream.num_bins,
            narrow_bins=bins.sum(dim=0),
            image_bins=bins,
        )
        return draw_image_calibration({title: statistics}, ax=ax)
    check_no_arrays(labels, ignore_index)
    runs = measured_statistics(probs, title)
    measurements = [probs] if isinstance(probs, Measured) else list(probs.values())
    if any(measured.coverage is None for measured in measurements):
        raise UserError('the images were not kept: measure with interval=0.95, or give the arrays')
    are_groups = any(measured.unit == 'group' for measured in measurements)
    return draw_image_calibration(runs, unit='group' if are_groups else 'image', ax=ax)


def draw_image_calibration(
    runs: Mapping[str, CalibrationStatistics], *, unit: str = 'image', ax: Axes | None = None
) -> Figure:
    """Draw the accuracy of each segmented image against its mean confidence, in percent.

    An image below the diagonal is over-confident. An evaluation of all pixels may be calibrated
    while no image of it is; the title has the median of their gaps, whatever their signs.

    Args:
        runs: Statistics of each evaluation, by its name: one panel each, four in a row.
        unit: Name of what the tables of images are of, such as a group of images.
        ax: Axes of matplotlib in which one panel is drawn, without the legend, which
            ``ax.legend()`` adds. None for a new figure.

    Raises:
        ValueError: For an evaluation whose images have one prediction each, or are not kept.
    """
    check_drawable(runs)
    images_by_run = {name: _image_bins(name, statistics) for name, statistics in runs.items()}
    figure, image_panels = panels(runs, ax=ax)
    for panel, images in zip(image_panels, images_by_run.values(), strict=True):
        _draw_images(panel.axes[0], panel.runs[0], images, unit)
    lowest = min(np.min([images.conf, images.accuracy]) for images in images_by_run.values())
    _set_limits([panel.axes[0] for panel in image_panels], min(lowest, 100))
    if ax is None:
        add_legend(figure)
    return figure


def _image_bins(name: str, statistics: CalibrationStatistics) -> Bins:
    """Return a bin for each image, of all its pixels."""
    image_bins = statistics.image_bins
    if image_bins is None or image_bins[:, 0].sum(dim=1).max() <= 1:
        subject = f'{name!r} has' if name else 'there are'
        raise UserError(f'{subject} no images of many pixels: draw the reliability')
    return filled_bins(image_bins.sum(dim=2).T)


def _draw_images(axes: Axes, run: PlottedRun, images: Bins, unit: str) -> None:
    axes.scatter(images.conf, images.accuracy, s=10, alpha=0.5, color=BLUE, linewidth=0, label=unit)
    draw_diagonal(axes)
    axes.set(xlabel='mean confidence (%)', ylabel='accuracy (%)')
    median_gap = np.median(np.abs(images.conf - images.accuracy))
    count = len(images.conf)
    title = statistics_title(
        run.label,
        run.content,
        {'median gap': median_gap},
        note=f'1 {unit}' if count == 1 else f'{count:,} {unit}s',
    )
    set_panel_title(axes, title)


def _set_limits(all_axes: Sequence[Axes], lowest: float) -> None:
    """Give all axes the same limits, between which no point is cut, and ticks at both ends."""
    margin = MARGIN * max(100 - lowest, 1)
    limits = (lowest - margin, 100 + margin)
    # The lower end has a tick too, since the worst image is the one to look at.
    ticks = MaxNLocator(6, steps=[1, 2, 5, 10]).tick_values(lowest, 100)
    ticks = ticks[(ticks >= limits[0]) & (ticks <= 100)]
    for axes in all_axes:
        axes.set(xlim=limits, ylim=limits, xticks=ticks, yticks=ticks)
