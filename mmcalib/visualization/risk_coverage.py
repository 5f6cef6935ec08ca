"""Risk–coverage curves: how often one errs who leaves out what the network is least sure of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from torch import Tensor

from mmcalib.metrics import CalibrationStatistics
from mmcalib.metrics.bins.risk_coverage import (
    binned_augrc,
    binned_aurc,
    binned_auroc,
    risk_coverage_curve,
)
from mmcalib.visualization.figure_style import COLOURS, GREY, by_line, colour_of, line_of, percent

PER_ROW = 4
# Below this coverage a few predictions make the risk, so the axis of risks need not reach them.
STEADY = 5.0
# Inches.
PANEL = 2.9
LEFT = 0.85
GAP = 0.55
HEADING = 0.65
FOOT = 0.5


@dataclass(frozen=True)
class RiskCoverage:
    """What a figure shows of one evaluation.

    Attributes:
        name: Of the run or its loss.
        table: ``(3, C)`` bins, ascending in confidence: count, correct, sum of confidences.
        figures: By name, in percent, for the title.
        note: Ends the title, such as the protocol.
    """

    name: str
    table: Tensor
    figures: Mapping[str, float] = field(default_factory=dict)
    note: str = ''


def risk_coverage_of(statistics: CalibrationStatistics, name: str) -> RiskCoverage:
    """Return what a figure shows of an evaluation.

    AURC, AUGRC and AUROC are those that were printed; what was not is computed from the bins.

    Args:
        statistics: Of the metric, or loaded.
        name: Of the run.

    Raises:
        ValueError: If nothing was evaluated.
    """
    if statistics.num_predictions == 0:
        raise ValueError(f'{name!r} has no predictions, so there is no figure of them')
    computed = {
        'AURC': binned_aurc,
        'AUGRC': binned_augrc,
        'AUROC': binned_auroc,
    }
    pooled = statistics.protocol == 'pooled'
    return RiskCoverage(
        name=name,
        table=statistics.cells,
        figures={
            key: statistics.metrics.get(key, figure(statistics.cells).item())
            for key, figure in computed.items()
        },
        note='' if pooled else f'protocol {statistics.protocol}',
    )


def draw_risk_coverage(evaluations: Sequence[RiskCoverage], *, overlay: bool = False) -> Figure:
    r"""Draw the risk against the coverage of one evaluation, or several.

    At a coverage c the risk is the error rate of the share c of the predictions that the network is
    most sure of; at 100 % that of all. The dashed line is the best order, all right predictions
    first, and the dotted one an order by chance. Both axes are in percent.

    Source: Geifman and El-Yaniv, Selective Classification for Deep Neural Networks, NeurIPS 2017.

    Args:
        evaluations: One panel each, four in a row.
        overlay: Draw all in one panel instead.

    Returns:
        The figure; ``savefig`` writes it.

    Raises:
        ValueError: If there is nothing to draw.
    """
    if not evaluations:
        raise ValueError('there is no evaluation to draw a risk–coverage curve of')
    for evaluation in evaluations:
        if evaluation.table[0].sum() == 0:
            raise ValueError(f'{evaluation.name!r} has no predictions to draw')
    panels = [evaluations] if overlay else [[evaluation] for evaluation in evaluations]
    columns = min(len(panels), PER_ROW)
    rows = -(-len(panels) // columns)
    handles = _handles(evaluations, overlay)
    per_line = 1 if overlay else min(len(handles), 2 * columns)
    lines = -(-len(handles) // per_line) + (len(evaluations) if overlay else 0)
    heading, size = (0.15, PANEL + 0.9) if overlay else (HEADING, PANEL)
    bottom = 0.175 * lines + 0.15
    width = LEFT + columns * (size + GAP) - GAP + 0.2
    height = rows * (heading + size + FOOT) + bottom
    figure = Figure(figsize=(width, height))
    top = max(_highest(evaluation) for evaluation in evaluations)
    for number, panel in enumerate(panels):
        row, column = divmod(number, columns)
        left = (LEFT + column * (size + GAP)) / width
        below = 1 - ((row + 1) * (heading + size) + row * FOOT) / height
        axes = figure.add_axes((left, below, size / width, size / height))
        for index, evaluation in enumerate(panel):
            _draw(axes, evaluation, index, alone=not overlay)
        axes.set(xlim=(0, 100), ylim=(0, top), xlabel='coverage (%)')
        axes.grid(True, linewidth=0.4, alpha=0.5)
        if column == 0:
            axes.set_ylabel('risk: errors among the accepted (%)')
        if not overlay:
            axes.set_title(_title(panel[0]), fontsize=9, linespacing=1.4)
    figure.legend(
        handles=by_line(handles, per_line),
        loc='lower left' if columns < 3 else 'lower center',
        bbox_to_anchor=((LEFT - 0.1) / width if columns < 3 else 0.5, 0.05 / height),
        borderaxespad=0,
        ncols=per_line,
        frameon=False,
        fontsize=8,
    )
    return figure


def _curve(evaluation: RiskCoverage) -> tuple[np.ndarray, np.ndarray]:
    """Return coverages and risks, from coverage 0 on: the most confident bin has one risk."""
    coverage, risk = risk_coverage_curve(evaluation.table).numpy()
    return np.concatenate([[0], coverage]), np.concatenate([risk[:1], risk])


def _highest(evaluation: RiskCoverage) -> float:
    """Return up to which risk the axis must reach."""
    coverage, risk = _curve(evaluation)
    return min(1.15 * max(risk[-1], risk[coverage >= STEADY].max(), 0.01), 100)


def _draw(axes: Axes, evaluation: RiskCoverage, index: int, *, alone: bool) -> None:
    coverage, risk = _curve(evaluation)
    error = risk[-1]
    colour = colour_of(index)
    axes.plot(coverage, risk, color=colour, linestyle=line_of(index), linewidth=1.6, zorder=5)
    axes.plot(100, error, marker='o', markersize=5, color=colour, clip_on=False, zorder=6)
    covered = np.linspace(max(100 - error, 1e-6), 100, 200)
    best = 100 * (1 - (100 - error) / covered)
    axes.plot(
        np.concatenate([[0], covered]), np.concatenate([[0], best]),
        color='black' if alone else colour, linestyle='--', linewidth=0.9, zorder=4,
    )  # fmt: skip
    if alone:
        axes.fill_between(coverage, 0, risk, color=colour, alpha=0.12, linewidth=0)
        axes.axhline(error, color='black', linestyle=':', linewidth=1.1, zorder=4)


def _handles(evaluations: Sequence[RiskCoverage], overlay: bool) -> list:
    if overlay:
        own = [
            Line2D(
                [], [], color=colour_of(i), linestyle=line_of(i), linewidth=1.6,
                label=_label(evaluation),
            )
            for i, evaluation in enumerate(evaluations)
        ]  # fmt: skip
        return [*own, Line2D([], [], color=GREY, linestyle='--', linewidth=0.9, label='best order')]
    return [
        Line2D([], [], color=COLOURS[0], linewidth=1.6, label='by confidence; area: AURC'),
        Line2D([], [], color='black', linestyle='--', linewidth=0.9, label='best order'),
        Line2D([], [], color='black', linestyle=':', linewidth=1.1, label='by chance'),
    ]


def _title(evaluation: RiskCoverage) -> str:
    figures = ', '.join(f'{key} {percent(value)}' for key, value in evaluation.figures.items())
    count = f'n = {round(float(evaluation.table[0].sum())):,}'
    last = ', '.join(part for part in (count, evaluation.note) if part)
    return '\n'.join(part for part in (evaluation.name, figures, last) if part)


def _label(evaluation: RiskCoverage) -> str:
    name, *rest = _title(evaluation).split('\n')
    return f'{name}\n{", ".join(rest)}'
