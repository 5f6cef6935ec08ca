"""Metrics against the severity of corruptions: boxes over corruptions, and lines of their means."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mmcalib.checks import UserError
from mmcalib.metrics.keys import metric_heading
from mmcalib.visualization.style import legend, looks_of, tidy

# Of boxes, by the style of the same model's line.
HATCHES = {'-': '', '--': '..', '-.': 'xx', ':': 'oo'}


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
    figure = Figure(figsize=(7.4, 2.1 * len(keys) + 0.6), layout='constrained')
    width = 0.8 / len(models)
    panels = figure.subplots(len(keys), 1, sharex=True, squeeze=False)[:, 0]
    for axes, key in zip(panels, keys, strict=True):
        for number, (model, look) in enumerate(_looks(models)):
            hatch = HATCHES[look['linestyle']] + '///' * (model.name != model.before)
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
            style = dict(facecolor=look['color'], alpha=0.75, hatch=hatch or None, linewidth=0.7)
            for box in boxes['boxes']:
                box.set(**style)
            boxes['boxes'][0].set_label(model.name)
        _style(axes, severities, metric_heading(key))
    panels[-1].set_xlabel('severity of the corruptions')
    legend(figure, 3)
    return figure


def draw_severity_lines(models: Sequence[ShiftedModel], keys: Sequence[str]) -> Figure:
    """Draw the mean over corruptions against severity, with a line per model.

    Calibrated models are dashed with hollow markers and have the colour of the model before it.
    Arguments, result and errors are those of :func:`draw_severity_boxes`.
    """
    severities = _severities(models, keys)
    figure = Figure(figsize=(3.4 * len(keys) + 0.4, 3.3), layout='constrained')
    for axes, key in zip(figure.subplots(1, len(keys), squeeze=False)[0], keys, strict=True):
        for model, look in _looks(models):
            look = {**look, 'linestyle': '-'}
            if model.name != model.before:
                look |= {'linestyle': '--', 'markerfacecolor': 'white'}
            filled = [s for s in severities if model.values(s, key)]
            means = [statistics.fmean(model.values(s, key)) for s in filled]
            axes.plot(filled, means, **look, markersize=5, linewidth=1.4, label=model.name)
        axes.set(xlabel='severity of the corruptions', ylim=(0, None))
        _style(axes, severities, f'{metric_heading(key)}, mean')
    legend(figure, 3)
    return figure


def _severities(models: Sequence[ShiftedModel], keys: Sequence[str]) -> list[int]:
    severities = sorted({s for model in models for s in model.by_severity})
    if not keys or not any(severities):
        raise UserError('there is no test on corrupted data to draw')
    return severities


def _looks(models: Sequence[ShiftedModel]) -> list[tuple[ShiftedModel, dict[str, str]]]:
    """Return models with the look before their calibration, which the calibrated one shares."""
    names = list(dict.fromkeys(model.before for model in models))
    looks = dict(zip(names, looks_of(names), strict=True))
    return [(model, looks[model.before]) for model in models]


def _style(axes: Axes, severities: Sequence[int], label: str) -> None:
    axes.set_xticks(severities, ['clean' if s == 0 else str(s) for s in severities])
    axes.set_ylabel(label)
    tidy(axes)
