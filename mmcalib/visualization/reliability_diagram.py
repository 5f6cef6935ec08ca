"""Reliability diagrams: accuracy over confidence."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from mmcalib.visualization.figure_style import GREY, check_drawable
from mmcalib.visualization.panel_grid import PER_ROW, panel_grid
from mmcalib.visualization.reliability_panels import (
    Reliability,
    bar_handles,
    curve_handles,
    draw_bars,
    draw_curves,
    draw_histogram,
    is_underconfident,
)

# Above the diagonal, where over-confident networks leave room, and below it.
INSETS = (0.11, 0.58, 0.36, 0.36), (0.58, 0.11, 0.36, 0.36)
HISTOGRAM = 0.95  # inches


def draw_reliability(
    diagrams: Sequence[Reliability],
    *,
    overlay: bool = False,
    zoom: tuple[float, float] | None = None,
) -> Figure:
    r"""Draw accuracy against confidence for one evaluation, or several.

    A bin is drawn at its mean confidence :math:`\mathrm{conf}_b` with its accuracy
    :math:`\mathrm{acc}_b`; the hatched gap between the two, weighted by the bin's share of the
    predictions in the histogram below, is what an expected calibration error sums up. Both axes
    are in percent. Bins of fewer than 20 predictions are faded.

    Source: the paper's figures of reliability diagrams, which have 25 bins and a zoom.

    Args:
        diagrams: One panel each, four in a row.
        overlay: Draw all as curves in one panel instead.
        zoom: The part of both axes, in percent, to enlarge in an inset.

    Returns:
        The figure; ``savefig`` writes it.

    Raises:
        ValueError: If there is nothing to draw, or the zoom is no interval within 0 to 100.
    """
    check_drawable(diagrams, 'reliability diagram')
    if zoom is not None and not 0 <= zoom[0] < zoom[1] <= 100:
        raise ValueError(f'zoom must be an interval in percent, such as (80, 100); got {zoom}')

    draw_panel = draw_curves if overlay else draw_bars
    handles = curve_handles(diagrams) if overlay else bar_handles(diagrams)
    figure, panels = panel_grid(diagrams, handles, overlay=overlay, below=HISTOGRAM)
    for number, (panel, (top, below)) in enumerate(panels):
        draw_panel(top, panel)
        draw_histogram(below, panel)
        if zoom is not None:
            inset = top.inset_axes(INSETS[is_underconfident(panel)])
            draw_panel(inset, panel)
            inset.set(xlim=zoom, ylim=zoom, xticks=zoom, yticks=zoom)
            inset.tick_params(labelsize=7, pad=1.5, length=2)
            for connector in top.indicate_inset_zoom(inset, edgecolor=GREY).connectors:
                connector.set_visible(False)
        top.tick_params(labelbottom=False)
        if number % PER_ROW == 0:
            top.set_ylabel('accuracy (%)')
            below.set_ylabel('share of\npredictions (%)')
        below.set_xlabel('confidence (%)')
    return figure
