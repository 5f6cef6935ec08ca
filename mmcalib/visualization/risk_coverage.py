"""Risk–coverage curves: the error rate among the most confident share of predictions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from mmcalib.metrics import CalibrationStatistics
from mmcalib.metrics.ranking import (
    augrc,
    aurc,
    auroc,
    risk_coverage_curve,
)
from mmcalib.visualization.figure_style import (
    GREY,
    Evaluation,
    check_drawable,
)
from mmcalib.visualization.loss_colours import Look, looks_of
from mmcalib.visualization.panel_grid import PER_ROW, panel_grid

# Below this coverage a few predictions make the risk, so the axis of risks need not reach them.
STEADY = 5.0


def risk_coverage_of(statistics: CalibrationStatistics, name: str) -> Evaluation:
    """Return the curve of an evaluation.

    AURC, AUGRC and AUROC are those that were printed; what was not is computed from the bins.

    Args:
        statistics: Of the metric, or loaded.
        name: Of the run.

    Raises:
        ValueError: If nothing was evaluated.
    """
    if statistics.num_predictions == 0:
        raise ValueError(f'{name!r} has no predictions, so there is no figure of them')
    computed = {'AURC': aurc, 'AUGRC': augrc, 'AUROC': auroc}
    pooled = statistics.protocol == 'pooled'
    return Evaluation(
        name=name,
        table=statistics.narrow_bins,
        figures={
            key: statistics.metrics.get(key, figure(statistics.narrow_bins).item())
            for key, figure in computed.items()
        },
        note='' if pooled else f'protocol {statistics.protocol}',
    )


def draw_risk_coverage(evaluations: Sequence[Evaluation], *, overlay: bool = False) -> Figure:
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
    check_drawable(evaluations, 'risk–coverage curve')
    looks = looks_of([evaluation.name for evaluation in evaluations])
    handles = _handles(evaluations, looks, overlay)
    figure, panels = panel_grid(evaluations, handles, overlay=overlay)
    top = max(_highest(evaluation) for evaluation in evaluations)
    for number, (panel, (axes,)) in enumerate(panels):
        for evaluation, look in zip(panel, looks if overlay else [looks[number]], strict=True):
            _draw(axes, evaluation, look, alone=not overlay)
        axes.set(xlim=(0, 100), ylim=(0, top), xlabel='coverage (%)')
        axes.grid(True, linewidth=0.4, alpha=0.5)
        if number % PER_ROW == 0:
            axes.set_ylabel('risk: errors among the accepted (%)')
    return figure


def _curve(evaluation: Evaluation) -> tuple[np.ndarray, np.ndarray]:
    """Return coverages and risks, from coverage 0 on: the most confident bin has one risk."""
    coverage, risk = risk_coverage_curve(evaluation.table).numpy()
    return np.concatenate([[0], coverage]), np.concatenate([risk[:1], risk])


def _highest(evaluation: Evaluation) -> float:
    """Return up to which risk the axis must reach."""
    coverage, risk = _curve(evaluation)
    return min(1.15 * max(risk[-1], risk[coverage >= STEADY].max(), 0.01), 100)


def _draw(axes: Axes, evaluation: Evaluation, look: Look, *, alone: bool) -> None:
    coverage, risk = _curve(evaluation)
    error = risk[-1]
    colour, line = look.colour, '-' if alone else look.line
    axes.plot(coverage, risk, color=colour, linestyle=line, linewidth=1.6, zorder=5)
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


def _handles(evaluations: Sequence[Evaluation], looks: Sequence[Look], overlay: bool) -> list:
    if overlay:
        own = [
            Line2D(
                [], [], color=look.colour, linestyle=look.line, linewidth=1.6,
                label=evaluation.label,
            )
            for look, evaluation in zip(looks, evaluations, strict=True)
        ]  # fmt: skip
        return [*own, Line2D([], [], color=GREY, linestyle='--', linewidth=0.9, label='best order')]
    return [
        Line2D([], [], color=GREY, linewidth=1.6, label='by confidence; area: AURC'),
        Line2D([], [], color='black', linestyle='--', linewidth=0.9, label='best order'),
        Line2D([], [], color='black', linestyle=':', linewidth=1.1, label='by chance'),
    ]
