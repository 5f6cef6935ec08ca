"""ECE against the distance of pixels from the nearest boundary."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure

from mmcalib.checks import UserError
from mmcalib.metrics.statistics import CalibrationStatistics
from mmcalib.metrics.strata import stratum_figures
from mmcalib.samples.boundary import RANGE_NAMES
from mmcalib.visualization.style import GREY, check_drawable, legend, looks_of, tidy


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
    for name, found in runs.items():
        if found.distance_bins is None:
            raise UserError(
                f'{name!r} has no distances from the boundary: test it with '
                'CalibrationMetric(per_distance=True)'
            )
    figure = Figure(figsize=(8.0, 4.0), layout='constrained')
    upper, lower = figure.subplots(2, 2, height_ratios=(4, 1), sharex=True)
    drawn = [stratum_figures(found.distance_bins) for found in runs.values()]
    counts = np.array([figures['count'] for figures in drawn], dtype=float)
    filled = np.flatnonzero(counts.any(axis=0))
    for (name, found), figures, look in zip(
        runs.items(), drawn, looks_of([*runs]), strict=True
    ):  # fmt: skip
        # Under the protocol of images the pixels are the same.
        label = name + f', protocol {found.protocol}' * (found.protocol not in ('pooled', 'image'))
        look = {**look, 'linestyle': '-', 'markersize': 4.5}
        for axes, key in zip(upper, ('ECE', 'accuracy'), strict=True):
            axes.plot(np.array(figures[key])[filled], **look, label=label)
        look |= {'linestyle': '--', 'markerfacecolor': 'white'}
        upper[1].plot(np.array(figures['confidence'])[filled], **look)
    upper[1].plot([], [], color=GREY, label='accuracy')
    upper[1].plot([], [], color=GREY, linestyle='--', label='mean confidence')
    for axes in lower:
        axes.bar(range(len(filled)), 100 * counts[0, filled] / counts[0].sum(), color=GREY)
        axes.set_xticks(range(len(filled)), [RANGE_NAMES[i] for i in filled])
        axes.set_xlabel('distance from the nearest boundary (pixels)')
    lower[0].set_ylabel('pixels (%)')
    upper[0].set(ylabel='ECE (%)', ylim=(0, None))
    upper[1].set_ylabel('accuracy and confidence (%)')
    for axes in figure.axes:
        tidy(axes)
    legend(figure, 3)
    return figure
