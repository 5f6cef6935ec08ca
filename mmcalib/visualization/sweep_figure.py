"""ECE and accuracy against a parameter of the loss, on validation and test data."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from mmcalib.metrics.keys import ECE, INTERVAL, QUALITIES, metric_heading
from mmcalib.visualization.figure_style import GREY, add_legend, tidy
from mmcalib.visualization.loss_colours import Look, looks_of

PARAMETERS = {
    'margin': 'margin $m$ (logits)',
    'alpha': 'weight $\\alpha$ ($\\lambda$ of MbLS)',
    'gamma': '$\\gamma$',
}
SPLITS = {'val': ('validation', '--'), 'test': ('test, not used for selection', '-')}
MOST_TICKS = 14  # that an axis has room for


def draw_sweeps(sweeps: Sequence[Mapping]) -> Figure:
    """Draw the paper's two-curve figure of one sweep, or several on top of each other.

    The left panel has the ECE, the right one the accuracy or mIoU. Validation is dashed with hollow
    markers, test solid with full ones. Bars are the standard deviation over seeds; of one training,
    the interval of its ECE over images.
    A star marks the validation value by which one was chosen. If not every value was tested, there
    is no line through those that were.

    Source: the paper's figures of the effect of the margin and of the balancing weight.

    Args:
        sweeps: What the sweeps' ``sweep.json`` hold: ``parameter``, ``loss`` and ``rows``, each of
            which has a ``value``, whether it was ``chosen``, and the metrics of each seed under
            ``val`` and ``test``.

    Returns:
        The figure; ``savefig`` writes it.

    Raises:
        ValueError: If there is no sweep, none has been evaluated, or they have no quality measure
            in common.
    """
    quality = _quality(sweeps)
    figure = Figure(figsize=(7.0, 3.3), layout='constrained')
    places, ticks, looks = _places(sweeps), _ticks(sweeps), looks_of(_names(sweeps))
    for axes, key in zip(figure.subplots(1, 2), (ECE, quality), strict=True):
        for look, sweep in zip(looks, sweeps, strict=True):
            _draw_curves(axes, sweep, key, places, look)
        names = dict.fromkeys(PARAMETERS.get(s['parameter'], s['parameter']) for s in sweeps)
        axes.set_xlabel(' or '.join(names))
        axes.set_ylabel(metric_heading(key))
        if places is not None:
            axes.set_xticks(list(places.values()), list(places))
        elif ticks is not None:
            axes.set_xticks(ticks)
        if key == ECE:
            axes.set_ylim(bottom=0)
        tidy(axes)
    add_legend(figure, _handles(sweeps, looks))
    return figure


def _handles(sweeps: Sequence[Mapping], looks: Sequence[Look]) -> list[Line2D]:
    """Return the entries of the legend: the sweeps, and what of them is drawn."""
    handles = [
        Line2D([], [], color=look.colour, marker=look.marker, label=name)
        for look, name in zip(looks, _names(sweeps), strict=True)
    ]
    rows = [row for sweep in sweeps for row in sweep['rows']]
    for (split, (name, style)), face in zip(SPLITS.items(), ('white', GREY), strict=True):
        if any(row[split] for row in rows):
            if any(sweep.get('validates_on_test_data') for sweep in sweeps):
                name = 'validation (on test data)' if split == 'val' else 'test'
            look = dict(color=GREY, linestyle=style, marker='o', markerfacecolor=face)
            handles.append(Line2D([], [], **look, label=name))
    if any(row['chosen'] for row in rows):
        star = dict(marker='*', markersize=12, color=GREY, linestyle='')
        handles.append(Line2D([], [], **star, label='chosen on validation'))
    return handles


def _draw_curves(axes: Axes, sweep: Mapping, key: str, places: Mapping | None, look: Look) -> None:
    for split, (_, style) in SPLITS.items():
        points = [
            (
                row['value'] if places is None else places[str(row['value'])],
                *_mean_and_bars(runs, key),
                row['chosen'],
            )
            for row in sweep['rows']
            if (runs := [each for each in row[split] if key in each])
        ]
        if not points:
            continue
        axes.errorbar(
            [place for place, *_ in points],
            [mean for _, mean, _, _ in points],
            np.transpose([bars for _, _, bars, _ in points]),
            color=look.colour,
            linestyle=style if len(points) > 1 else '',
            marker=look.marker,
            markersize=5,
            markerfacecolor='white' if split == 'val' else look.colour,
            linewidth=1.4,
            elinewidth=0.9,
            capsize=2.5 if any(max(bars) > 0 for _, _, bars, _ in points) else 0,
        )
        for place, mean, _, chosen in points:
            if chosen and split == 'val':  # which is what it was chosen by
                axes.plot(
                    place, mean, linestyle='', marker='*', markersize=12,
                    color=look.colour, markeredgecolor='white', markeredgewidth=0.7, zorder=5,
                )  # fmt: skip


def _mean_and_bars(runs: Sequence[Mapping], key: str) -> tuple[float, tuple[float, float]]:
    """Return the mean of a metric and how far its bar reaches below and above."""
    values = [run[key] for run in runs]
    mean = statistics.mean(values)
    if len(values) > 1:
        deviation = float(np.std(values, ddof=1))
        return mean, (deviation, deviation)
    low, high = (runs[0].get(f'{key}{end}', mean) for end in INTERVAL)
    # An estimate that is mostly noise may lie outside of its interval.
    return mean, (max(mean - low, 0.0), max(high - mean, 0.0))


def _quality(sweeps: Sequence[Mapping]) -> str:
    """Return the measure beside the ECE that all sweeps have."""
    if not sweeps:
        raise ValueError('there is no sweep to draw')
    common = set(QUALITIES)
    for sweep in sweeps:
        common &= {key for row in sweep['rows'] for each in row['val'] for key in each}
    for key in QUALITIES:
        if key in common:
            return key
    raise ValueError(
        f'the sweeps have none of {", ".join(QUALITIES)} in common, or have no finished value'
    )


def _places(sweeps: Sequence[Mapping]) -> dict[str, int] | None:
    """Return a place on the axis for each value if some are words, None if all are numbers."""
    values = [row['value'] for sweep in sweeps for row in sweep['rows']]
    if not any(isinstance(value, str) for value in values):
        return None
    return {name: index for index, name in enumerate(dict.fromkeys(map(str, values)))}


def _ticks(sweeps: Sequence[Mapping]) -> list[float] | None:
    """Return the values as ticks where they do not crowd, else None."""
    values = {row['value'] for sweep in sweeps for row in sweep['rows']}
    if len(values) < 2 or any(isinstance(value, str) for value in values):
        return None
    values = sorted(values)
    closest = min(high - low for low, high in pairwise(values))
    return values if closest * MOST_TICKS >= values[-1] - values[0] else None


def _names(sweeps: Sequence[Mapping]) -> list[str]:
    """Return the losses, with the parameter or the experiment where that tells them apart."""
    names = [sweep['loss'] for sweep in sweeps]
    if len({sweep['parameter'] for sweep in sweeps}) > 1:
        names = [
            f'{name}, over {sweep["parameter"]}' for name, sweep in zip(names, sweeps, strict=True)
        ]
    if len(set(names)) < len(names):
        names = [f'{name}, {s["experiment"]}' for name, s in zip(names, sweeps, strict=True)]
    return names
