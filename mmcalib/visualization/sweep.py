"""ECE and accuracy against a parameter of the loss, on validation and test data."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from itertools import chain

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
# Of each split: its look, and how far it is drawn aside in points, for bars that do not overlap.
SPLITS = {
    'val': (dict(linestyle='--', markerfacecolor='white'), -2.5),
    'test': (dict(linestyle='-'), 2.5),
}


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
        for (name, sweep), look in zip(runs.items(), looks_of([*runs]), strict=True):
            for split, (style, aside) in SPLITS.items():
                _draw(axes, sweep['rows'], split, key, place, {**look, **style}, aside)
            several = f', over {sweep["parameter"]}' * (len(parameters) > 1)
            axes.plot([], [], **{**look, 'linestyle': '-'}, label=name + several)
        axes.set_xlabel(' or '.join(PARAMETERS.get(each, each) for each in parameters))
        axes.set_ylabel(metric_heading(key))
        tidy(axes)
    figure.axes[0].set_ylim(0, None)
    on_test = any(sweep.get('validates_on_test_data') for sweep in runs.values())
    names = ('validation (on test data)', 'test') if on_test else (
        'validation', 'test, not used for selection'
    )  # fmt: skip
    for (split, (style, _)), name in zip(SPLITS.items(), names, strict=True):
        if any(row[split] for row in rows):
            axes.plot([], [], color=GREY, marker='o', **style, label=name)
    if any(row['chosen'] for row in rows):
        axes.plot([], [], '*', markersize=12, color=GREY, label='chosen on validation')
    legend(figure, 3)
    return figure


def _draw(
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
    style = {**look, **caps, 'markersize': 5, 'linewidth': 1.4}
    drawn = [*axes.errorbar(places, means, np.transpose(bars), **style).get_children()]
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
