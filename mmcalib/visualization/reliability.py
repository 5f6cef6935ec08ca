"""Reliability diagrams: accuracy over confidence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from mmcalib.errors import UserError
from mmcalib.metrics.definitions import metric_value
from mmcalib.metrics.intervals import bootstrap_weights, tail_probabilities
from mmcalib.metrics.measure import count_predictions
from mmcalib.metrics.statistics import CalibrationStatistics
from mmcalib.options import check_choice, check_integer
from mmcalib.predictions.arrays import Array
from mmcalib.predictions.from_arrays import read_arrays
from mmcalib.visualization import style

TITLED = ('ECE', 'AECE')
BLUE, ACCURACY = style.COLOURS[0], '#A6CFE8'
OVER = dict(facecolor='#F3B48A', edgecolor='#B34700', hatch='////', label='over-confident by')
UNDER = dict(facecolor='#8FD6BE', edgecolor='#00664A', hatch='....', label='under-confident by')
# Bins of fewer are faded: the standard error of their accuracy is up to eleven points.
FEW, FADED = 20, 0.3  # opacity
MARGIN = 0.03  # of the axes of images, at each end
COVERAGE, NUM_BOOTSTRAP, MIN_IMAGES = 0.95, 200, 5
# Above the diagonal, where over-confident networks leave room, and below it.
INSETS = (0.11, 0.58, 0.36, 0.36), (0.58, 0.11, 0.36, 0.36)
# Of an axis of log-odds, in percent: what is nearer to 0 or 100 is drawn at its ends.
ENDS, TICKS = (0.01, 99.999), (0.1, 1, 10, 50, 90, 99, 99.9, 99.99)


class Bins(NamedTuple):
    """The bins that hold a prediction: places, counts, and figures in percent."""

    left: np.ndarray
    right: np.ndarray
    count: np.ndarray
    conf: np.ndarray
    accuracy: np.ndarray


def draw_reliability(
    runs: Mapping[str, CalibrationStatistics],
    *,
    num_bins: int | None = None,
    equal_mass: bool = False,
    overlay: bool = False,
    zoom: Sequence[float] | None = None,
    scale: str = 'linear',
) -> Figure:
    r"""Draw accuracy against confidence for one evaluation, or several.

    A bin is drawn at its mean confidence :math:`\mathrm{conf}_b` with its accuracy
    :math:`\mathrm{acc}_b`; the hatched gap between the two, weighted by the bin's share of the
    predictions in the histogram below, is what an expected calibration error sums up. Both axes
    are in percent. Bins of fewer than 20 predictions are faded. The metric's own bins of equal
    width have 95 % bootstrap intervals of their accuracy, over images. The errors in the titles are
    those that were printed, whatever the bins of the diagram.

    Source: the paper's figures of reliability diagrams, which have 25 bins and a zoom.

    Args:
        runs: One panel each, four in a row, by their names.
        num_bins: B; the metric's own number if None.
        equal_mass: Bins of equal count instead of equal width.
        overlay: Draw all as curves in one panel instead.
        zoom: The part of both axes, in percent, to enlarge in an inset.
        scale: ``'linear'``, or ``'logit'`` for axes of log-odds, on which 90, 99 and 99.9 % are
            equally far apart, as pixels need; its bins are of equal count.

    Returns:
        The figure; ``savefig`` writes it.

    Raises:
        TypeError: If `num_bins` is no integer.
        ValueError: If it is below 1, there is nothing to draw, the zoom is no interval within 0 to
            100, or the scale is another.
    """
    style.check_drawable(runs)
    logit = check_choice('scale', scale, ('linear', 'logit')) == 'logit'
    equal_mass = equal_mass or logit
    if num_bins is not None:
        check_integer('num_bins', num_bins)
    if zoom is not None and not 0 <= zoom[0] < zoom[1] <= 100:
        raise UserError(f'zoom must be an interval in percent, such as (80, 100); got {zoom}')
    figure, panels = style.panels_of(runs, 0.3, overlay=overlay)
    for (top, below), shown in panels:
        tables = [bins_of(found.bins(num_bins, equal_mass=equal_mass)) for _, found, _ in shown]
        squares = [top] if zoom is None else [top, _inset(top, tables, zoom)]
        for (name, found, look), bins in zip(shown, tables, strict=True):
            own = not equal_mass and num_bins in (None, found.num_bins)
            errors = {key: found.metrics[key] for key in TITLED if key in found.metrics}
            note = f'{"" if own else "errors of "}{found.num_bins} bins' if errors else ''
            title = style.title_of(name, found, errors, note, ', ' if overlay else '\n')
            if not overlay:
                style.set_title(top, title)
            for axes in squares:
                if overlay:
                    _draw_curve(axes, bins, look, title)
                elif equal_mass:
                    axes.vlines(bins.conf, bins.conf, bins.accuracy, color='#B34700', label='gap')
                    _draw_curve(axes, bins, dict(color=BLUE, marker='o'), 'bins of equal count')
                else:
                    draw_bars(axes, bins, accuracy_band(found.image_bins) if own else None)
            _draw_shares(below, found, num_bins, logit, look if overlay else None)
        for axes in squares:
            draw_diagonal(axes)
        top.set(xlim=(0, 100), ylim=(0, 100), ylabel='accuracy (%)')
        below.set(xlim=(0, 100), ylim=(0, None), xlabel='confidence (%)')
        below.set_ylabel('share of\npredictions (%)')
        if logit:
            _to_log_odds(top, below, tables)
        top.tick_params(labelbottom=False)
        below.spines[['top', 'right']].set_visible(False)
    if overlay or equal_mass:
        top.plot([], [], color='black', marker='o', alpha=FADED, label=f'faded: n < {FEW}')
    style.legend(figure)
    return figure


def bins_of(table: Tensor) -> Bins:
    """Return what is drawn of a ``(3, B)`` table: count, correct and sum of confidences."""
    filled, edges = table[0].numpy() > 0, np.linspace(0, 100, table.shape[1] + 1)
    count, correct, conf = table.numpy()[:, filled]
    left, right = edges[:-1][filled], edges[1:][filled]
    return Bins(left, right, count, 100 * conf / count, 100 * correct / count)


def _inset(axes: Axes, tables: Sequence[Bins], zoom: Sequence[float]) -> Axes:
    """Return axes for a zoom, on the side of the diagonal that most of the tables leave free."""
    above = sum((bins.accuracy - bins.conf).sum() for bins in tables) > 0
    inset = axes.inset_axes(INSETS[bool(above)])
    inset.set(xlim=zoom, ylim=zoom, xticks=zoom, yticks=zoom, autoscale_on=False)
    inset.tick_params(labelsize=7, pad=1.5, length=2)
    for connector in axes.indicate_inset_zoom(inset, edgecolor=style.GREY).connectors:
        connector.set_visible(False)
    return inset


def draw_bars(axes: Axes, bins: Bins, band: np.ndarray | None = None) -> None:
    """Draw the bins of an evaluation and the gaps between their confidence and accuracy."""
    left, right, count, conf, accuracy = bins
    width = right - left

    def draw(chosen: np.ndarray, height: np.ndarray, bottom: np.ndarray, **look) -> None:
        if chosen.any():
            place = left[chosen], height[chosen], width[chosen], bottom[chosen]
            axes.bar(*place, align='edge', linewidth=0, **look)

    draw(count > 0, accuracy, 0 * accuracy, color=ACCURACY, label='accuracy')
    draw(conf > accuracy, conf - accuracy, accuracy, **OVER)
    draw(conf < accuracy, conf - accuracy, accuracy, **UNDER)
    axes.vlines(left[1:], 0, 100, color='white', linewidth=0.6)
    axes.hlines(accuracy, left, right, color=BLUE, linewidth=1.8)
    # Whitened as they are, since PDF and SVG draw hatches without any opacity.
    draw(count < FEW, 100 + 0 * count, 0 * count, color='white', alpha=1 - FADED, zorder=2.5)
    if (count < FEW).any():
        axes.fill_between([], [], color='#DDDDDD', label=f'faded: n < {FEW}')
    if band is not None and np.isfinite(band).any():
        label = '95 % interval of accuracy'  # of each bin, not of an error
        middle, reach = band.mean(axis=0), np.diff(band, axis=0)[0] / 2
        look = dict(fmt='none', ecolor='black', elinewidth=1, zorder=4, label=label)
        axes.errorbar((left + right) / 2, middle, reach, **look)


def draw_diagonal(axes: Axes) -> None:
    """Draw where a calibrated network is."""
    axes.plot((0, 100), (0, 100), 'k--', linewidth=1, zorder=3, label='calibrated')


def _draw_curve(axes: Axes, bins: Bins, look: Mapping[str, str], label: str) -> None:
    """Draw accuracy against confidence as a curve, which is faded where bins are sparse."""
    look = {**look, 'linewidth': 1.4, 'markersize': 4.5, 'markeredgecolor': 'white', 'zorder': 5}
    axes.plot(bins.conf, bins.accuracy, **look, alpha=FADED)
    axes.plot(bins.conf, np.where(bins.count < FEW, np.nan, bins.accuracy), **look, label=label)
    axes.grid(True, linewidth=0.4, alpha=0.5)


def _draw_shares(
    axes: Axes, found: CalibrationStatistics, num_bins: int | None, logit: bool, look: dict | None
) -> None:
    """Draw the distribution of the confidences, of several evaluations as lines of their looks."""
    count = found.bins(num_bins)[0].numpy()
    edges = np.linspace(0, 100, len(count) + 1)
    cells, correct, conf = found.narrow_bins.numpy()
    if logit:
        places = np.linspace(*_log_odds(np.array(ENDS)), len(edges))
        count, _ = np.histogram(_log_odds(100 * conf / cells), places, weights=cells)
        edges = _percent(places)
    share, total = 100 * count / count.sum(), cells.sum()
    if look:
        axes.stairs(share, edges, color=look['color'], linestyle=look['linestyle'], linewidth=1.4)
        return
    axes.stairs(share, edges, color='#BBBBBB', fill=True)
    mean = dict(color='black', linewidth=1.3)
    axes.axvline(100 * correct.sum() / total, **mean, label='mean accuracy')
    axes.axvline(100 * conf.sum() / total, **mean, linestyle=':', label='mean confidence')


def _log_odds(percent: np.ndarray) -> np.ndarray:
    share = np.clip(percent, *ENDS) / 100
    return np.log(share / (1 - share))


def _percent(log_odds: np.ndarray) -> np.ndarray:
    return 100 / (1 + np.exp(-log_odds))


def _to_log_odds(top: Axes, below: Axes, tables: Sequence[Bins]) -> None:
    """Give axes that are drawn a scale of log-odds, from the lowest point on."""
    lowest = min(np.min([bins.conf, bins.accuracy]) for bins in tables)
    for set_scale in (top.set_xscale, top.set_yscale, below.set_xscale):
        set_scale('function', functions=(_log_odds, _percent))
    for axis in (top.xaxis, top.yaxis, below.xaxis):
        axis.set_ticks(TICKS, [f'{tick:g}' for tick in TICKS])
    below.tick_params(axis='x', rotation=45)  # 99.9 and 99.99 stand close
    ends = np.clip(lowest, ENDS[0], 50), ENDS[1]
    top.set(xlim=ends, ylim=ends)
    below.set(xlim=ends)


def draw_image_calibration(runs: Mapping[str, CalibrationStatistics]) -> Figure:
    """Draw the accuracy of each segmented image against its mean confidence, in percent.

    An image below the diagonal is over-confident. An evaluation of all pixels may be calibrated
    while no image of it is; the title has the median of their gaps, whatever their signs.

    Args:
        runs: One panel each, four in a row, by their names.

    Raises:
        ValueError: For an evaluation whose images have one prediction each, or are not kept.
    """
    style.check_drawable(runs)
    figure, panels = style.panels_of(runs)
    lowest = 100
    for (axes,), ((name, found, _),) in panels:
        if found.image_bins is None or found.image_bins[:, 0].sum(dim=1).max() <= 1:
            raise UserError(f'{name!r} has no images of many pixels: draw its reliability')
        *_, conf, accuracy = bins_of(found.image_bins.sum(dim=2).T)
        axes.scatter(conf, accuracy, s=10, alpha=0.5, color=BLUE, linewidth=0, label='image')
        draw_diagonal(axes)
        lowest = min(lowest, np.min([conf, accuracy]))
        axes.set(xlabel='mean confidence (%)', ylabel='accuracy (%)')
        gap = {'median gap': np.median(abs(conf - accuracy))}
        style.set_title(axes, style.title_of(name, found, gap, f'{len(conf)} images'))
    # Whole points at both ends; the worst image is the one to look at.
    margin = MARGIN * max(100 - lowest, 1)
    limits = (lowest - margin, 100 + margin)
    ticks = MaxNLocator(6, steps=[1, 2, 5, 10]).tick_values(lowest, 100)
    ticks = ticks[(ticks >= limits[0]) & (ticks <= 100)]
    for axes in figure.axes:
        axes.set(xlim=limits, ylim=limits, xticks=ticks, yticks=ticks)
    style.legend(figure)
    return figure


def accuracy_band(image_bins: Tensor | None) -> np.ndarray | None:
    """Return ``(2, n)`` bounds of the accuracy of filled bins, by a bootstrap over images.

    They are percentiles in percent, and NaN for bins that fewer than 5 images reach: too few to
    tell how much they vary.
    """
    if image_bins is None:
        return None
    flat, draws = image_bins[:, :2].flatten(1), []
    for weights in bootstrap_weights(len(flat), num_bootstrap=NUM_BOOTSTRAP, seed=0):
        count, correct = (weights @ flat).view(len(weights), 2, -1).unbind(dim=1)
        draws.append(correct / count)
    band, images = (
        torch.cat(draws).nanquantile(tail_probabilities(COVERAGE), dim=0),
        image_bins[:, 0] > 0,
    )
    band[:, images.sum(dim=0) < MIN_IMAGES] = torch.nan
    return 100 * band[:, images.any(dim=0)].numpy()


def reliability_diagram(
    probs: Array | None = None,
    labels: Array | None = None,
    *,
    conf: Array | None = None,
    correct: Array | None = None,
    num_bins: int = 15,
    ignore_index: int | None = None,
    title: str = '',
    **options,
) -> Figure:
    """Draw accuracy against confidence, with ECE and AECE in the title.

    >>> probs, labels = [[0.9, 0.1], [0.8, 0.2], [0.3, 0.7]], [0, 1, 1]
    >>> figure = reliability_diagram(probs, labels, title='three predictions')
    >>> print(figure.axes[0].get_title())
    three predictions
    ECE 40.00 %, AECE 40.00 %
    n = 3, 15 bins
    >>> figure.savefig('reliability.png')  # doctest: +SKIP

    Arguments and errors that are not described here are those of
    :func:`~mmcalib.metrics.expected_calibration_error`.

    Args:
        num_bins: B, of the diagram and of both errors.
        title: Heads the figure.
        options: `equal_mass`, `zoom` and `scale` of
            :func:`~mmcalib.visualization.draw_reliability`, which says what is drawn.

    Returns:
        A figure of matplotlib without pyplot, which a notebook shows and ``savefig`` writes.

    Raises:
        ValueError: If there are no predictions, or the zoom is no interval within 0 to 100.
    """
    predictions = read_arrays(probs, labels, conf, correct, ignore_index=ignore_index)
    counts = count_predictions(predictions, TITLED, num_bins=num_bins)
    if not counts.count:
        raise UserError('there are no predictions to draw; are all labels ignore_index?')
    # Which rows are of one image is unknown, so there are no intervals over images.
    metrics = {name: metric_value(name, counts) for name in TITLED}
    statistics = CalibrationStatistics(metrics, 'pooled', num_bins, counts.condensed_table())
    return draw_reliability({title: statistics}, **options)
