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
    drawn = {name: stratum_figures(found.distance_bins) for name, found in runs.items()}
    filled = [i for i in range(len(RANGE_NAMES)) if any(f['count'][i] for f in drawn.values())]
    for (name, figures), look in zip(drawn.items(), looks_of([*runs]), strict=True):
        protocol = runs[name].protocol
        # Under the protocol of images the pixels are the same.
        label = name + f', protocol {protocol}' * (protocol not in ('pooled', 'image'))
        style = {**look, 'linestyle': '-', 'linewidth': 1.5, 'markersize': 4.5}
        for axes, key in (upper[0], 'ECE'), (upper[1], 'accuracy'):
            axes.plot(np.array(figures[key])[filled], **style, label=label)
        dashed = {**style, 'linestyle': '--', 'markerfacecolor': 'white'}
        upper[1].plot(np.array(figures['confidence'])[filled], **dashed)
    upper[1].plot([], [], color=GREY, label='accuracy')
    upper[1].plot([], [], color=GREY, linestyle='--', label='mean confidence')
    counts = np.array(next(iter(drawn.values()))['count'], dtype=float)[filled]
    for axes in lower:
        axes.bar(range(len(filled)), 100 * counts / counts.sum(), color=GREY, width=0.7)
        axes.set_xticks(range(len(filled)), [RANGE_NAMES[i] for i in filled])
        axes.set_xlabel('distance from the nearest boundary (pixels)')
    lower[0].set_ylabel('pixels (%)')
    upper[0].set(ylabel='ECE (%)', ylim=(0, None))
    upper[1].set_ylabel('accuracy and confidence (%)')
    for axes in (*upper, *lower):
        tidy(axes)
    legend(figure, 3)
    return figure
