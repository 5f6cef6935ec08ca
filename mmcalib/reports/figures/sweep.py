"""Metrics by a parameter of the loss, as sweeps have measured them."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.transforms import ScaledTranslation

from mmcalib.errors import UserError
from mmcalib.metrics.metric_text import ECE, INTERVAL, QUALITIES, metric_heading
from mmcalib.visualization.panels import (
    PlottedRun,
    add_legend,
    panel_axes,
    plotted_runs,
    tidy_axes,
)
from mmcalib.visualization.style import GREY

PARAMETERS = {
    'margin': 'margin $m$ (logits)',
    'alpha': 'weight $\\alpha$ ($\\lambda$ of MbLS)',
    'gamma': '$\\gamma$',
}
POINTS_PER_INCH = 72


@dataclass(frozen=True)
class SplitLook:
    """Look of a split in a figure of sweeps.

    Attributes:
        line: Style of its lines.
        marker_colour: Colour of the inside of its markers, None for that of the run.
        offset: How far it is drawn aside, in points, so that bars do not overlap.
    """

    line: str
    marker_colour: str | None
    offset: float


SPLIT_LOOKS = {
    'val': SplitLook('--', 'white', -2.5),
    'test': SplitLook('-', None, 2.5),
}


def draw_sweep(runs: Mapping[str, Mapping]) -> Figure:
    """Draw the paper's two-curve figure of one sweep, or several on top of each other.

    The left panel has the ECE, the right one the accuracy or mIoU. Validation is dashed with hollow
    markers, test solid with full ones. Bars are the standard deviation over seeds; of one training,
    the interval of its ECE over images.
    A star marks the validation value by which one was chosen.

    Source: the paper's figures of the effect of the margin and of the balancing weight.

    Args:
        runs: Content of the ``sweep.json`` of each sweep, by its name: ``parameter`` and ``rows``,
            each of which has a ``value``, whether it was ``chosen``, and the metrics of each seed
            under ``val`` and ``test``.

    Returns:
        The figure; ``savefig`` writes it.

    Raises:
        ValueError: If there is no sweep, none has been evaluated, or they have no quality measure
            in common.
    """
    quality = _common_quality(runs)
    rows = []
    for sweep in runs.values():
        rows += sweep['rows']
    has_words = any(isinstance(row['value'], str) for row in rows)
    as_position = str if has_words else float
    parameters = list(dict.fromkeys(sweep['parameter'] for sweep in runs.values()))
    plotted = plotted_runs(runs)
    figure, axes_by_panel = panel_axes(2, columns=2, panel_size=(3.5, 3.0))
    for (axes,), key in zip(axes_by_panel, (ECE, quality), strict=True):
        for run in plotted:
            for split in SPLIT_LOOKS:
                _draw_split(axes, run, split, key, as_position)
            label = run.label
            if len(parameters) > 1:
                label += f', over {run.content["parameter"]}'
            axes.plot([], [], color=run.look.colour, marker=run.look.marker, label=label)
        axes.set_xlabel(' or '.join(PARAMETERS.get(name, name) for name in parameters))
        axes.set_ylabel(metric_heading(key))
        tidy_axes(axes)
    ece_axes, quality_axes = figure.axes
    ece_axes.set_ylim(0, None)
    validates_on_test_data = any(sweep.get('validates_on_test_data') for sweep in runs.values())
    _label_splits(quality_axes, rows, validates_on_test_data)
    add_legend(figure, most_columns=3)
    return figure


def _common_quality(runs: Mapping[str, Mapping]) -> str:
    """Return the quality measure that all sweeps have on validation data."""
    keys_by_sweep = []
    for sweep in runs.values():
        keys = set()
        for row in sweep['rows']:
            keys.update(*row['val'])
        keys_by_sweep.append(keys)
    for quality in QUALITIES:
        if runs and all(quality in keys for keys in keys_by_sweep):
            return quality
    raise UserError(
        f'{len(runs)} sweeps have none of {", ".join(QUALITIES)} in common, or have no '
        'finished value'
    )


def _label_splits(axes: Axes, rows: Sequence[Mapping], validates_on_test_data: bool) -> None:
    """Add what the looks of the splits and the star mean to the legend."""
    names = {'val': 'validation', 'test': 'test, not used for selection'}
    if validates_on_test_data:
        names = {'val': 'validation (on test data)', 'test': 'test'}
    for split, look in SPLIT_LOOKS.items():
        if any(row[split] for row in rows):
            axes.plot(
                [],
                [],
                color=GREY,
                marker='o',
                linestyle=look.line,
                markerfacecolor=look.marker_colour,
                label=names[split],
            )
    if any(row['chosen'] for row in rows):
        axes.plot([], [], '*', markersize=12, color=GREY, label='chosen on validation')


def _draw_split(
    axes: Axes, run: PlottedRun, split: str, key: str, as_position: Callable[[Any], float | str]
) -> None:
    """Draw a metric of one split of a sweep; values that are words are categories."""
    positions = []
    means = []
    bars = []
    chosen_index = None
    for row in run.content['rows']:
        metrics_by_seed = [metrics for metrics in row[split] if key in metrics]
        if metrics_by_seed:
            if row['chosen'] and chosen_index is None:
                chosen_index = len(positions)
            positions.append(as_position(row['value']))
            mean, bar = _mean_and_bar(metrics_by_seed, key)
            means.append(mean)
            bars.append(bar)
    if not positions:
        return
    look = SPLIT_LOOKS[split]
    curve = axes.errorbar(
        positions,
        means,
        np.transpose(bars),
        color=run.look.colour,
        marker=run.look.marker,
        linestyle=look.line if len(positions) > 1 else '',
        markerfacecolor=look.marker_colour,
        markersize=5,
        linewidth=1.4,
        elinewidth=0.9,
        capsize=2.5 if np.any(bars) else 0,
    )
    artists = list(curve.get_children())
    # The star stands on validation data, by which the value was chosen.
    if split == 'val' and chosen_index is not None:
        artists += axes.plot(
            positions[chosen_index],
            means[chosen_index],
            color=run.look.colour,
            marker='*',
            markersize=12,
            markeredgecolor='white',
            zorder=5,
        )
    for artist in artists:
        translation = ScaledTranslation(
            look.offset / POINTS_PER_INCH, 0, axes.figure.dpi_scale_trans
        )
        artist.set_transform(axes.transData + translation)


def _mean_and_bar(
    metrics_by_seed: Sequence[Mapping[str, float]], key: str
) -> tuple[float, tuple[float, float]]:
    """Return the mean of a metric and how far its bar reaches below and above."""
    values = [metrics[key] for metrics in metrics_by_seed]
    mean = statistics.mean(values)
    if len(values) > 1:
        deviation = np.std(values, ddof=1)
        return mean, (deviation, deviation)
    low_end, high_end = INTERVAL
    low = metrics_by_seed[0].get(f'{key}{low_end}', mean)
    high = metrics_by_seed[0].get(f'{key}{high_end}', mean)
    # An estimate that is mostly noise may lie outside of its interval.
    return mean, (max(mean - low, 0.0), max(high - mean, 0.0))
