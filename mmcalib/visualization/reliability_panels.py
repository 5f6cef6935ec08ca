"""The panels of reliability diagrams, and what their legends and titles say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from torch import Tensor

from mmcalib.visualization.figure_style import COLOURS, Evaluation
from mmcalib.visualization.loss_colours import looks_of

ACCURACY = '#A6CFE8'
OVER = dict(facecolor='#F3B48A', edgecolor='#B34700', hatch='////')
UNDER = dict(facecolor='#8FD6BE', edgecolor='#00664A', hatch='....')
BAND = '95 % interval of accuracy'  # of each bin, not of an error
# Bins of fewer are faded: the standard error of their accuracy is up to eleven points.
FEW = 20
FADED = 0.3  # opacity


@dataclass(frozen=True)
class Reliability(Evaluation):
    """The bins of an evaluation, and everything else that its diagram shows.

    Attributes:
        equal_mass: Whether the bins hold equally many predictions; else they are equally wide.
        histogram: ``(3, H)`` bins of equal width for the histogram; those of `table` if None.
        band: ``(2, B)`` bounds of each bin's accuracy, as shares; NaN where there is none.
    """

    equal_mass: bool = False
    histogram: Tensor | None = None
    band: Tensor | None = None

    @property
    def sparse(self) -> np.ndarray:
        """Which filled bins hold fewer than :data:`FEW` predictions, as booleans of all bins."""
        count = self.table[0].numpy()
        return (count > 0) & (count < FEW)


def draw_small(axes: Axes, table: Tensor) -> None:
    """Draw the diagram of bins of equal width into axes of the size of a thumbnail."""
    draw_bars(axes, [Reliability('', table)], fades=False)  # there is no legend to say so
    axes.tick_params(labelsize=7, pad=1.5, length=2)
    axes.set(xticks=(0, 50, 100), yticks=(0, 50, 100))


def _frame(axes: Axes) -> None:
    axes.plot((0, 100), (0, 100), color='black', linewidth=1, linestyle='--', zorder=3)
    axes.set(xlim=(0, 100), ylim=(0, 100))


def draw_bars(axes: Axes, panel: Sequence[Reliability], *, fades: bool = True) -> None:
    """Draw the bins of a single evaluation and the gaps between their confidence and accuracy.

    Unless told otherwise it fades bins of few predictions.
    """
    (diagram,) = panel
    filled, conf, accuracy = _points(diagram.table)
    if diagram.equal_mass:
        axes.vlines(conf, conf, accuracy, color=OVER['edgecolor'], linewidth=1.2)
        axes.plot(conf, accuracy, color=COLOURS[0], marker='o', markersize=4, linewidth=1)
        middle = conf
    else:
        size = 100 / diagram.table.shape[1]
        middle = (filled + 0.5) * size
        # One outline for all bars takes a fraction of the time of a patch for each.
        edges = np.linspace(0, 100, diagram.table.shape[1] + 1)
        heights = np.zeros((2, len(edges) - 1))
        heights[:, filled] = accuracy, conf
        axes.stairs(heights[0], edges, fill=True, color=ACCURACY, linewidth=0)
        for style, chosen in (
            (OVER, heights[1] > heights[0]),
            (UNDER, heights[1] < heights[0]),
        ):
            low, high = heights[0], np.where(chosen, heights[1], heights[0])
            axes.stairs(high, edges, baseline=low, fill=True, linewidth=0, **style)
        axes.vlines(edges[1:-1], 0, heights.max(axis=0)[:-1], color='white', linewidth=0.6)
        axes.hlines(accuracy, middle - size / 2, middle + size / 2, color=COLOURS[0], linewidth=1.8)
        # Whitened as they are, since PDF and SVG draw hatches without any opacity.
        for number in np.flatnonzero(diagram.sparse & fades):
            axes.axvspan(
                *edges[number : number + 2], color='white', alpha=1 - FADED, linewidth=0, zorder=2.5
            )
    if diagram.band is not None:
        low, high = 100 * diagram.band.numpy()[:, filled]
        axes.vlines(middle, low, high, color='black', linewidth=1, zorder=4)
    _frame(axes)


def draw_curves(axes: Axes, panel: Sequence[Reliability]) -> None:
    """Draw accuracy against confidence as a curve for each evaluation."""
    for diagram, look in zip(panel, looks_of([each.name for each in panel]), strict=True):
        filled, conf, accuracy = _points(diagram.table)
        sparse = diagram.sparse[filled]
        style = dict(color=look.colour, zorder=5)
        markers = dict(
            linestyle='', marker=look.marker, markersize=4.5, markeredgecolor='white',
            markeredgewidth=0.5,
        )  # fmt: skip
        # A line ends where bins become sparse; the faded one goes on.
        axes.plot(conf, accuracy, linestyle=look.line, linewidth=1.4, alpha=FADED, **style)
        axes.plot(
            conf, np.where(sparse, np.nan, accuracy), linestyle=look.line, linewidth=1.4, **style
        )
        axes.plot(conf[sparse], accuracy[sparse], alpha=FADED, **markers, **style)
        axes.plot(conf[~sparse], accuracy[~sparse], **markers, **style)
        if diagram.band is not None:
            low, high = 100 * diagram.band.numpy()[:, filled]
            axes.fill_between(conf, low, high, color=look.colour, alpha=0.15, linewidth=0)
    axes.grid(True, linewidth=0.4, alpha=0.5)
    _frame(axes)


def draw_histogram(axes: Axes, panel: Sequence[Reliability]) -> None:
    """Draw the distribution of the confidences."""
    for diagram, look in zip(panel, looks_of([each.name for each in panel]), strict=True):
        table = diagram.table if diagram.histogram is None else diagram.histogram
        count, correct, conf = table.numpy()
        share = 100 * count / count.sum()
        edges = np.linspace(0, 100, len(count) + 1)
        if len(panel) > 1:
            axes.stairs(share, edges, color=look.colour, linestyle=look.line, linewidth=1.4)
            continue
        axes.stairs(share, edges, color='#BBBBBB', fill=True)
        for value, style in ((correct.sum(), '-'), (conf.sum(), ':')):
            axes.axvline(100 * value / count.sum(), color='black', linestyle=style, linewidth=1.3)
    axes.set_ylim(bottom=0)
    axes.spines[['top', 'right']].set_visible(False)


def is_underconfident(panel: Sequence[Reliability]) -> bool:
    """Return whether most of what is drawn lies above the diagonal."""
    gaps = [accuracy - conf for _, conf, accuracy in (_points(each.table) for each in panel)]
    return bool(np.concatenate(gaps).sum() > 0)


def _points(table: Tensor) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the indices of the filled bins, and their confidence and accuracy in percent."""
    count, correct, conf = table.numpy()
    filled = np.flatnonzero(count > 0)
    return filled, 100 * conf[filled] / count[filled], 100 * correct[filled] / count[filled]


def bar_handles(diagrams: Sequence[Reliability]) -> list:
    """Return the entries of the legend of :func:`draw_bars`."""
    handles = [Line2D([], [], color='black', linestyle='--', linewidth=1, label='calibrated')]
    if any(diagram.equal_mass for diagram in diagrams):
        handles += [
            Line2D([], [], color=COLOURS[0], marker='o', markersize=4, label='bins of equal count'),
            Line2D([], [], color=OVER['edgecolor'], linewidth=1.2, label='gap'),
        ]
    if not all(diagram.equal_mass for diagram in diagrams):
        handles += [
            Patch(facecolor=ACCURACY, label='accuracy'),
            Patch(**OVER, linewidth=0.5, label='over-confident by'),
            Patch(**UNDER, linewidth=0.5, label='under-confident by'),
        ]
    if _has_band(diagrams):
        # Upright, as it is drawn.
        upright = dict(color='black', linestyle='none', marker='|', markersize=9)
        handles.append(Line2D([], [], **upright, label=BAND))
    return [
        *handles,
        Line2D([], [], color='black', linewidth=1.3, label='mean accuracy'),
        Line2D([], [], color='black', linestyle=':', linewidth=1.3, label='mean confidence'),
        *_sparse_handle(
            [each for each in diagrams if not each.equal_mass], Patch(facecolor='#DDDDDD')
        ),
    ]


def curve_handles(diagrams: Sequence[Reliability]) -> list:
    """Return the entries of the legend of :func:`draw_curves`."""
    handles = [
        Line2D(
            [], [], color=look.colour, linestyle=look.line, marker=look.marker, markersize=4.5,
            label=diagram.label,
        )
        for diagram, look in zip(diagrams, looks_of([each.name for each in diagrams]), strict=True)
    ]  # fmt: skip
    if _has_band(diagrams):
        handles.append(Patch(facecolor='black', alpha=0.15, label=BAND))
    handles.append(Line2D([], [], color='black', linestyle='--', label='calibrated'))
    faded = Line2D([], [], color='black', marker='o', markersize=4.5, alpha=FADED)
    return [*handles, *_sparse_handle(diagrams, faded)]


def _sparse_handle(diagrams: Sequence[Reliability], handle: Artist) -> list[Artist]:
    if not any(diagram.sparse.any() for diagram in diagrams):
        return []
    handle.set_label(f'faded: n < {FEW}')
    return [handle]


def _has_band(diagrams: Sequence[Reliability]) -> bool:
    return any(each.band is not None and each.band.isfinite().any() for each in diagrams)
