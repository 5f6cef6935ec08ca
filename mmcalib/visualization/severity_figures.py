"""Metrics against the severity of corruptions: boxes over corruptions, and lines of their means."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from mmcalib.metrics.keys import metric_heading
from mmcalib.visualization.figure_style import add_legend, tidy
from mmcalib.visualization.loss_colours import Look, looks_of

# Inches.
WIDTH = 7.4
PANEL = 2.1
LINES_PANEL = 3.4
GROUP = 0.8  # of the distance between severities, for the boxes of all methods
# Of boxes, by the style of the same model's line.
HATCHES = {'-': '', '--': '..', '-.': 'xx', ':': 'oo'}
CALIBRATED = '///'


@dataclass(frozen=True)
class ShiftedModel:
    """A model on corrupted data, with any number of seeds, for figures.

    Attributes:
        name: Of its loss, and of its calibration.
        before: Name of the same loss without its calibration; the same name where there is none.
        by_severity: Metrics of each corruption (and seed), by severity; 0 is the clean data.
    """

    name: str
    before: str
    by_severity: Mapping[int, Sequence[Mapping[str, float]]]

    def values(self, severity: int, key: str) -> list[float]:
        """Return a metric of all corruptions at a severity, without those that are NaN."""
        values = [metrics[key] for metrics in self.by_severity.get(severity, ())]
        return [value for value in values if not math.isnan(value)]


def draw_severity_boxes(models: Sequence[ShiftedModel], keys: Sequence[str]) -> Figure:
    """Draw a box over corruptions per severity, with a colour per model and a panel per metric.

    A box has the quartiles and the median, its whiskers the least and the largest value, and a
    dot the mean. Calibrated models are hatched and have the colour of the model before it; further
    models of a loss have dots, crosses or rings.

    Source: Ovadia et al., "Can You Trust Your Model's Uncertainty?", NeurIPS 2019, Figure 2.

    Args:
        models: At least one.
        keys: Metrics that all of them have.

    Returns:
        The figure; ``savefig`` writes it.

    Raises:
        ValueError: If there is nothing to draw.
    """
    severities = _severities(models, keys)
    figure = Figure(figsize=(WIDTH, PANEL * len(keys) + 0.9), layout='constrained')
    looks = _looks(models)
    width = GROUP / len(models)
    panels = figure.subplots(len(keys), 1, sharex=True, squeeze=False)[:, 0]
    for axes, key in zip(panels, keys, strict=True):
        for number, model in enumerate(models):
            offset = (number - (len(models) - 1) / 2) * width
            filled = [s for s in severities if model.values(s, key)]
            boxes = axes.boxplot(
                [model.values(severity, key) for severity in filled],
                positions=[severity + offset for severity in filled],
                widths=0.85 * width,
                whis=(0, 100),
                showmeans=True,
                patch_artist=True,
                medianprops=dict(color='black', linewidth=1),
                meanprops=dict(marker='.', markerfacecolor='black', markeredgecolor='black'),
                manage_ticks=False,
            )
            for box in boxes['boxes']:
                box.set(**_look_of_box(model, looks), linewidth=0.7)
        axes.set_ylabel(metric_heading(key))
        _style(axes, severities)
    panels[-1].set_xlabel('severity of the corruptions')
    handles = [
        Patch(**_look_of_box(model, looks), edgecolor='black', linewidth=0.7, label=model.name)
        for model in models
    ]
    add_legend(figure, handles)
    return figure


def draw_severity_lines(models: Sequence[ShiftedModel], keys: Sequence[str]) -> Figure:
    """Draw the mean over corruptions against severity, with a line per model.

    Calibrated models are dashed with hollow markers and have the colour of the model before it.
    Arguments, result and errors are those of :func:`draw_severity_boxes`.
    """
    severities = _severities(models, keys)
    figure = Figure(figsize=(LINES_PANEL * len(keys) + 0.4, 3.6), layout='constrained')
    looks = _looks(models)
    handles = []
    for axes, key in zip(figure.subplots(1, len(keys), squeeze=False)[0], keys, strict=True):
        handles = []
        for model in models:
            calibrated, of_loss = model.name != model.before, looks[model.before]
            look = dict(
                color=of_loss.colour, marker=of_loss.marker, markersize=5,
                linewidth=1.4, linestyle='--' if calibrated else '-',
                markerfacecolor='white' if calibrated else None,
            )  # fmt: skip
            filled = [s for s in severities if model.values(s, key)]
            means = [statistics.fmean(model.values(s, key)) for s in filled]
            axes.plot(filled, means, **look)
            handles.append(Line2D([], [], **look, label=model.name))
        axes.set_xlabel('severity of the corruptions')
        axes.set_ylabel(f'{metric_heading(key)}, mean')
        axes.set_ylim(bottom=0)
        _style(axes, severities)
    add_legend(figure, handles)
    return figure


def _severities(models: Sequence[ShiftedModel], keys: Sequence[str]) -> list[int]:
    severities = sorted({s for model in models for s in model.by_severity})
    if not keys or not any(severities):
        raise ValueError('there is no test on corrupted data to draw')
    return severities


def _looks(models: Sequence[ShiftedModel]) -> dict[str, Look]:
    """Return the look of each model before its calibration, which the calibrated one shares."""
    names = list(dict.fromkeys(model.before for model in models))
    return dict(zip(names, looks_of(names), strict=True))


def _look_of_box(model: ShiftedModel, looks: Mapping[str, Look]) -> dict:
    look = looks[model.before]
    hatch = HATCHES[look.line] + (CALIBRATED if model.name != model.before else '')
    return dict(facecolor=look.colour, alpha=0.75, hatch=hatch or None)


def _style(axes: Axes, severities: Sequence[int]) -> None:
    axes.set_xticks(severities, ['clean' if s == 0 else str(s) for s in severities])
    tidy(axes)
