"""ECE and accuracy against a parameter of the loss, on validation and test data."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.transforms import ScaledTranslation

from mmcalib.checks import UserError
from mmcalib.metrics.keys import ECE, INTERVAL, QUALITIES, metric_heading
from mmcalib.visualization.style import GREY, legend, looks_of, tidy

PARAMETERS = {
    'margin': 'margin $m$ (logits)',
    'alpha': 'weight $\\alpha$ ($\\lambda$ of MbLS)',
    'gamma': '$\\gamma$',
}
MOST_TICKS = 14  # that an axis has room for
ASIDE = {'val': -2.5, 'test': 2.5}  # points
SPLITS = {'val': ('validation', '--'), 'test': ('test, not used for selection', '-')}


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
    figure = Figure(figsize=(7.0, 3.0), layout='constrained')
    rows = [row for sweep in sweeps for row in sweep['rows']]
    words = any(isinstance(row['value'], str) for row in rows)
    values = [] if words else sorted({float(row['value']) for row in rows})
    names = _names(sweeps)
    for axes, key in zip(figure.subplots(1, 2), (ECE, quality), strict=True):
        for sweep, name, look in zip(sweeps, names, looks_of(names), strict=True):
            for split, (_, style) in SPLITS.items():
                own = {'linestyle': style, 'markerfacecolor': 'white' if split == 'val' else None}
                _draw(axes, sweep['rows'], split, key, words, {**look, **own})
            axes.plot([], [], **{**look, 'linestyle': '-'}, label=name)
        parameters = dict.fromkeys(PARAMETERS.get(s['parameter'], s['parameter']) for s in sweeps)
        axes.set(xlabel=' or '.join(parameters), ylabel=metric_heading(key))
        if values and np.diff(values).min(initial=np.inf) * MOST_TICKS >= np.ptp(values):
            axes.set_xticks(values)
        if key == ECE:
            axes.set_ylim(bottom=0)
        tidy(axes)
    on_test = any(sweep.get('validates_on_test_data') for sweep in sweeps)
    for (split, (name, style)), face in zip(SPLITS.items(), ('white', GREY), strict=True):
        if any(row[split] for row in rows):
            if on_test:
                name = 'validation (on test data)' if split == 'val' else 'test'
            look = dict(color=GREY, linestyle=style, marker='o', markerfacecolor=face)
            axes.plot([], [], **look, label=name)
    if any(row['chosen'] for row in rows):
        axes.plot([], [], '*', markersize=12, color=GREY, label='chosen on validation')
    legend(figure, 3)
    return figure


def _draw(
    axes: Axes, rows: Sequence[Mapping], split: str, key: str, words: bool, look: dict
) -> None:
    """Draw a metric of one split of a sweep; values that are words are categories."""
    points = [
        (str(row['value']) if words else row['value'], *_mean_and_bars(runs, key), row['chosen'])
        for row in rows
        if (runs := [each for each in row[split] if key in each])
    ]
    if not points:
        return
    places, means, bars, _ = zip(*points, strict=True)
    caps = dict(elinewidth=0.9, capsize=2.5 if np.any(bars) else 0)
    if len(points) == 1:
        look = {**look, 'linestyle': ''}
    drawn = [*axes.errorbar(
        places, means, np.transpose(bars), **look, markersize=5, linewidth=1.4, **caps
    ).get_children()]  # fmt: skip
    for place, mean, _, best in points:
        if best and split == 'val':  # which is what it was chosen by
            drawn += axes.plot(
                place, mean, linestyle='', marker='*', markersize=12, color=look['color'],
                markeredgecolor='white', markeredgewidth=0.7, zorder=5,
            )  # fmt: skip
    # Bars of the two splits stand beside each other.
    aside = ScaledTranslation(ASIDE[split] / 72, 0, axes.figure.dpi_scale_trans)
    for artist in drawn:
        artist.set_transform(axes.transData + aside)


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
        raise UserError('there is no sweep to draw')
    common = set(QUALITIES)
    for sweep in sweeps:
        common &= {key for row in sweep['rows'] for each in row['val'] for key in each}
    for key in QUALITIES:
        if key in common:
            return key
    raise UserError(
        f'the sweeps have none of {", ".join(QUALITIES)} in common, or have no finished value'
    )


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
