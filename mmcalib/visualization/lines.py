"""Metrics of runs along an axis: distance from a boundary, severity, a parameter of the loss."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from itertools import chain

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.transforms import ScaledTranslation

from mmcalib.errors import UserError
from mmcalib.metrics.names import ECE, INTERVAL, QUALITIES, metric_heading
from mmcalib.metrics.statistics import CalibrationStatistics
from mmcalib.metrics.strata import stratum_figures
from mmcalib.options import check_choice
from mmcalib.predictions.boundary import RANGE_NAMES
from mmcalib.visualization import style

PARAMETERS = {
    'margin': 'margin $m$ (logits)',
    'alpha': 'weight $\\alpha$ ($\\lambda$ of MbLS)',
    'gamma': '$\\gamma$',
}
# Of each split: its look, and how far it is drawn aside in points, for bars that do not overlap.
SPLITS = {
    'val': (dict(linestyle='--', markerfacecolor='white'), -2.5),
    'test': (dict(linestyle='-'), 2.5),
}


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
    style.check_drawable(runs)
    runs = style.labelled(runs)
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
        runs.items(), drawn, style.looks_of([*runs]), strict=True
    ):  # fmt: skip
        # Under the protocol of images the pixels are the same.
        label = name + f', protocol {found.protocol}' * (found.protocol not in ('pooled', 'image'))
        look = {**look, 'linestyle': '-', 'markersize': 4.5}
        for axes, key in zip(upper, ('ECE', 'accuracy'), strict=True):
            axes.plot(np.array(figures[key])[filled], **look, label=label)
        look |= {'linestyle': '--', 'markerfacecolor': 'white'}
        upper[1].plot(np.array(figures['confidence'])[filled], **look)
    upper[1].plot([], [], color=style.GREY, label='accuracy')
    upper[1].plot([], [], color=style.GREY, linestyle='--', label='mean confidence')
    for axes in lower:
        axes.bar(range(len(filled)), 100 * counts[0, filled] / counts[0].sum(), color=style.GREY)
        axes.set_xticks(range(len(filled)), [RANGE_NAMES[i] for i in filled])
        axes.set_xlabel('distance from the nearest boundary (pixels)')
    lower[0].set_ylabel('pixels (%)')
    upper[0].set(ylabel='ECE (%)', ylim=(0, None))
    upper[1].set_ylabel('accuracy and confidence (%)')
    for axes in figure.axes:
        style.tidy(axes)
    style.legend(figure, 3)
    return figure


def draw_severity(
    runs: Mapping[str, Mapping[int, Sequence[Mapping[str, float]]]],
    keys: Sequence[str],
    *,
    figure: str = 'boxes',
) -> Figure:
    """Draw metrics of tests on corrupted data by severity, with a panel for each metric.

    ``'boxes'`` have the quartiles and the median over corruptions, whiskers to the least and the
    largest value, and a dot at the mean; ``'lines'`` are the mean alone. A calibrated model has the
    colour of its loss, hatched or dashed, if it follows the one before its calibration.

    Source: Ovadia et al., "Can You Trust Your Model's Uncertainty?", NeurIPS 2019, Figure 2.

    Args:
        runs: By name, the metrics of each corruption (and seed) by severity; 0 is the clean data.
        keys: Metrics that all of them have; NaN is left out.
        figure: ``'boxes'`` or ``'lines'``.

    Returns:
        The figure; ``savefig`` writes it.

    Raises:
        ValueError: If there is nothing to draw, or the figure is another.
    """
    boxes = check_choice('figure', figure, ('boxes', 'lines')) == 'boxes'
    runs = style.labelled(runs)
    severities = sorted({severity for tests in runs.values() for severity in tests})
    if not keys or not any(severities):
        raise UserError('there is no test on corrupted data to draw')
    size = (7.4, 2.1 * len(keys) + 0.6) if boxes else (3.4 * len(keys) + 0.4, 3.3)
    shape = (len(keys), 1) if boxes else (1, len(keys))
    drawing = Figure(figsize=size, layout='constrained')
    panels = drawing.subplots(*shape, squeeze=False, sharex=True)
    for axes, key in zip(panels.flat, keys, strict=True):
        for place, (name, look) in enumerate(zip(runs, style.looks_of([*runs]), strict=True)):
            values = {
                severity: [test[key] for test in tests if not math.isnan(test[key])]
                for severity, tests in sorted(runs[name].items())
            }
            values = {severity: found for severity, found in values.items() if found}
            if boxes:
                width = 0.8 / len(runs)
                _draw_boxes(axes, values, width, (place + 0.5) * width - 0.4, look, name)
            else:
                hollow = dict(markerfacecolor=None if look['linestyle'] == '-' else 'white')
                means = [*map(statistics.fmean, values.values())]
                axes.plot([*values], means, **look, **hollow, markersize=5, label=name)
        axes.set_ylabel(metric_heading(key) + ', mean' * (not boxes))
        axes.set_xticks(severities, [str(severity or 'clean') for severity in severities])
        style.tidy(axes)
    for axes in panels[-1]:
        axes.set(xlabel='severity of the corruptions', ylim=(None if boxes else 0, None))
    style.legend(drawing, 3)
    return drawing


def _draw_boxes(
    axes: Axes, values: Mapping[int, Sequence], width: float, aside: float, look: dict, name: str
) -> None:
    dot = dict(marker='.', markerfacecolor='black', markeredgecolor='black')
    box = dict(facecolor=look['color'], alpha=0.75, linewidth=0.7)
    props = dict(medianprops=dict(color='black'), meanprops=dot, boxprops=box, patch_artist=True)
    places = [severity + aside for severity in values]
    options = dict(positions=places, widths=0.85 * width, manage_ticks=False)
    drawn = axes.boxplot([*values.values()], whis=(0, 100), showmeans=True, **options, **props)
    for each in drawn['boxes']:
        each.set_hatch(style.HATCHES[style.LINES.index(look['linestyle'])])
    drawn['boxes'][0].set_label(name)


def draw_sweep(runs: Mapping[str, Mapping]) -> Figure:
    """Draw the paper's two-curve figure of one sweep, or several on top of each other.

    The left panel has the ECE, the right one the accuracy or mIoU. Validation is dashed with hollow
    markers, test solid with full ones. Bars are the standard deviation over seeds; of one training,
    the interval of its ECE over images.
    A star marks the validation value by which one was chosen.

    Source: the paper's figures of the effect of the margin and of the balancing weight.

    Args:
        runs: By the names of sweeps, what their ``sweep.json`` hold: ``parameter`` and ``rows``,
            each of which has a ``value``, whether it was ``chosen``, and the metrics of each seed
            under ``val`` and ``test``.

    Returns:
        The figure; ``savefig`` writes it.

    Raises:
        ValueError: If there is no sweep, none has been evaluated, or they have no quality measure
            in common.
    """
    runs = style.labelled(runs)
    measured = [{*chain(*chain(*(row['val'] for row in s['rows'])))} for s in runs.values()]
    common = [key for key in QUALITIES if runs and all(key in keys for keys in measured)]
    if not common:
        raise UserError(
            f'{len(runs)} sweeps have none of {", ".join(QUALITIES)} in common, or have no '
            'finished value'
        )
    rows = [row for sweep in runs.values() for row in sweep['rows']]
    place = str if any(isinstance(row['value'], str) for row in rows) else float
    parameters = [*dict.fromkeys(sweep['parameter'] for sweep in runs.values())]
    figure = Figure(figsize=(7.0, 3.0), layout='constrained')
    for axes, key in zip(figure.subplots(1, 2), (ECE, common[0]), strict=True):
        for (name, sweep), look in zip(runs.items(), style.looks_of([*runs]), strict=True):
            for split, (marks, aside) in SPLITS.items():
                _draw_split(axes, sweep['rows'], split, key, place, {**look, **marks}, aside)
            several = f', over {sweep["parameter"]}' * (len(parameters) > 1)
            axes.plot([], [], **{**look, 'linestyle': '-'}, label=name + several)
        axes.set_xlabel(' or '.join(PARAMETERS.get(each, each) for each in parameters))
        axes.set_ylabel(metric_heading(key))
        style.tidy(axes)
    figure.axes[0].set_ylim(0, None)
    on_test = any(sweep.get('validates_on_test_data') for sweep in runs.values())
    names = ('validation (on test data)', 'test') if on_test else (
        'validation', 'test, not used for selection'
    )  # fmt: skip
    for (split, (marks, _)), name in zip(SPLITS.items(), names, strict=True):
        if any(row[split] for row in rows):
            axes.plot([], [], color=style.GREY, marker='o', **marks, label=name)
    if any(row['chosen'] for row in rows):
        axes.plot([], [], '*', markersize=12, color=style.GREY, label='chosen on validation')
    style.legend(figure, 3)
    return figure


def _draw_split(
    axes: Axes, rows: Sequence[Mapping], split: str, key: str, place: type, look: dict, aside: float
) -> None:
    """Draw a metric of one split of a sweep; values that are words are categories."""
    points = [
        (place(row['value']), *_mean_and_bar(runs, key), row['chosen'])
        for row in rows
        if (runs := [each for each in row[split] if key in each])
    ]
    if not points:
        return
    places, means, bars, chosen = zip(*points, strict=True)
    look = {**look, 'linestyle': look['linestyle'] if len(points) > 1 else ''}
    caps = dict(elinewidth=0.9, capsize=2.5 if np.any(bars) else 0)
    look |= {**caps, 'markersize': 5, 'linewidth': 1.4}
    drawn = [*axes.errorbar(places, means, np.transpose(bars), **look).get_children()]
    if split == 'val' and any(chosen):  # which is what it was chosen by
        best = chosen.index(True)
        star = dict(marker='*', markersize=12, markeredgecolor='white', zorder=5)
        drawn += axes.plot(places[best], means[best], color=look['color'], **star)
    for artist in drawn:
        moved = ScaledTranslation(aside / 72, 0, axes.figure.dpi_scale_trans)
        artist.set_transform(axes.transData + moved)


def _mean_and_bar(runs: Sequence[Mapping], key: str) -> tuple[float, tuple[float, float]]:
    """Return the mean of a metric and how far its bar reaches below and above."""
    values = [run[key] for run in runs]
    mean = statistics.mean(values)
    if len(values) > 1:
        return mean, (np.std(values, ddof=1),) * 2
    low, high = (runs[0].get(f'{key}{end}', mean) for end in INTERVAL)
    # An estimate that is mostly noise may lie outside of its interval.
    return mean, (max(mean - low, 0.0), max(high - mean, 0.0))
