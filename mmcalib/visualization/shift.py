"""Metrics against the severity of corruptions: boxes over corruptions, or lines of their means."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mmcalib.checks import UserError, check_choice
from mmcalib.metrics.keys import metric_heading
from mmcalib.visualization.style import HATCHES, LINES, legend, looks_of, tidy


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
    severities = sorted({severity for tests in runs.values() for severity in tests})
    if not keys or not any(severities):
        raise UserError('there is no test on corrupted data to draw')
    size = (7.4, 2.1 * len(keys) + 0.6) if boxes else (3.4 * len(keys) + 0.4, 3.3)
    shape = (len(keys), 1) if boxes else (1, len(keys))
    drawing = Figure(figsize=size, layout='constrained')
    panels = drawing.subplots(*shape, squeeze=False, sharex=True)
    for axes, key in zip(panels.flat, keys, strict=True):
        for place, (name, look) in enumerate(zip(runs, looks_of([*runs]), strict=True)):
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
        tidy(axes)
    for axes in panels[-1]:
        axes.set(xlabel='severity of the corruptions', ylim=(None if boxes else 0, None))
    legend(drawing, 3)
    return drawing


def _draw_boxes(
    axes: Axes, values: Mapping[int, Sequence], width: float, aside: float, look: dict, name: str
) -> None:
    dot = dict(marker='.', markerfacecolor='black', markeredgecolor='black')
    box = dict(facecolor=look['color'], alpha=0.75, linewidth=0.7)
    style = dict(medianprops=dict(color='black'), meanprops=dot, boxprops=box, patch_artist=True)
    places = [severity + aside for severity in values]
    options = dict(positions=places, widths=0.85 * width, manage_ticks=False)
    drawn = axes.boxplot([*values.values()], whis=(0, 100), showmeans=True, **options, **style)
    for each in drawn['boxes']:
        each.set_hatch(HATCHES[LINES.index(look['linestyle'])])
    drawn['boxes'][0].set_label(name)
