"""Reliability diagrams: accuracy over confidence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from mmcalib.arrays import A
from mmcalib.checks import UserError, check_choice, check_integer
from mmcalib.metrics.counts import condensed
from mmcalib.metrics.definitions import value_of
from mmcalib.metrics.intervals import drawn_weights, tails_of
from mmcalib.metrics.measure import counts_of
from mmcalib.metrics.statistics import CalibrationStatistics
from mmcalib.visualization.style import (
    COLOURS,
    GREY,
    PER_ROW,
    SIDE,
    check_drawable,
    legend,
    looks_of,
    panel_figure,
    title_of,
    wrapped,
)

TITLED = ('ECE', 'AECE')
ACCURACY = '#A6CFE8'
OVER = dict(facecolor='#F3B48A', edgecolor='#B34700', hatch='////', label='over-confident by')
UNDER = dict(facecolor='#8FD6BE', edgecolor='#00664A', hatch='....', label='under-confident by')
# Bins of fewer are faded: the standard error of their accuracy is up to eleven points.
FEW = 20
FADED = 0.3  # opacity
COVERAGE, NUM_BOOTSTRAP, MIN_IMAGES = 0.95, 200, 5
# Above the diagonal, where over-confident networks leave room, and below it.
INSETS = (0.11, 0.58, 0.36, 0.36), (0.58, 0.11, 0.36, 0.36)
# Of an axis of log-odds, in percent: what is nearer to 0 or 100 is drawn at its ends.
ENDS, TICKS = (0.01, 99.999), (0.1, 1, 10, 50, 90, 99, 99.9, 99.99)


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
    check_drawable(runs)
    logit = check_choice('scale', scale, ('linear', 'logit')) == 'logit'
    equal_mass = equal_mass or logit
    if num_bins is not None:
        check_integer('num_bins', num_bins)
    if zoom is not None and not 0 <= zoom[0] < zoom[1] <= 100:
        raise UserError(f'zoom must be an interval in percent, such as (80, 100); got {zoom}')
    figure, panels = panel_figure(1 if overlay else len(runs), 0.3)
    everything = [*zip(runs.items(), looks_of([*runs]), strict=True)]
    for number, (top, below) in enumerate(panels):
        here = everything if overlay else everything[number : number + 1]
        tables = [_table(found, num_bins, equal_mass) for (_, found), _ in here]
        squares = [top] if zoom is None else [top, _inset(top, tables, zoom)]
        for ((name, found), look), table in zip(here, tables, strict=True):
            own = not equal_mass and num_bins in (None, found.num_bins)
            title = _title(name, found, own, between=', ' if overlay else '\n')
            if overlay:
                draw = partial(draw_curve, look=look, label=title)
            else:
                band = accuracy_band(found.image_bins) if own else None
                draw = draw_gaps if equal_mass else partial(draw_bars, band=band)
                top.set_title(wrapped(title, SIDE), fontsize=8)
            for axes in squares:
                draw(axes, table)
            _draw_histogram(below, found, num_bins, look if overlay else None, logit=logit)
        for axes in squares:
            draw_diagonal(axes)
        top.set(xlim=(0, 100), ylim=(0, 100))
        top.tick_params(labelbottom=False)
        below.set(xlabel='confidence (%)', xlim=(0, 100), ylim=(0, None))
        if logit:
            _to_log_odds(top, below, tables)
        below.spines[['top', 'right']].set_visible(False)
        if number % PER_ROW == 0:
            top.set_ylabel('accuracy (%)')
            below.set_ylabel('share of\npredictions (%)')
    if overlay:
        top.plot([], [], color='black', marker='o', alpha=FADED, label=f'faded: n < {FEW}')
    legend(figure)
    return figure


def _title(name: str, found: CalibrationStatistics, own: bool, between: str) -> str:
    """Return a title with the errors, and which bins they are of."""
    errors = {key: found.metrics[key] for key in TITLED if key in found.metrics}
    note = f'{"" if own else "errors of "}{found.num_bins} bins' if errors else ''
    return title_of(name, found, errors, note, between)


def _inset(axes: Axes, tables: Sequence[Tensor], zoom: Sequence[float]) -> Axes:
    """Return axes for a zoom, on the side of the diagonal that most of the tables leave free."""
    gaps = [np.subtract(*_points(table)[:0:-1]).sum() for table in tables]
    inset = axes.inset_axes(INSETS[bool(sum(gaps) > 0)])
    inset.set(xlim=zoom, ylim=zoom, xticks=zoom, yticks=zoom)
    inset.set_autoscale_on(False)
    inset.tick_params(labelsize=7, pad=1.5, length=2)
    for connector in axes.indicate_inset_zoom(inset, edgecolor=GREY).connectors:
        connector.set_visible(False)
    return inset


def draw_bars(axes: Axes, table: Tensor, band: Tensor | None = None) -> None:
    """Draw the bins of an evaluation and the gaps between their confidence and accuracy."""
    filled, conf, accuracy = _points(table)
    edges = np.linspace(0, 100, table.shape[1] + 1)
    low, high, faded = np.zeros((3, table.shape[1]))
    low[filled], high[filled] = accuracy, conf
    # One outline for all bars takes a fraction of the time of a patch for each.
    axes.stairs(low, edges, fill=True, color=ACCURACY, linewidth=0, label='accuracy')
    for style, chosen in ((OVER, high > low), (UNDER, high < low)):
        tops = np.where(chosen, high, low)
        axes.stairs(tops, edges, baseline=low, fill=True, linewidth=0, **style)
    axes.vlines(edges[1:-1], 0, np.maximum(low, high)[:-1], color='white', linewidth=0.6)
    axes.hlines(accuracy, edges[filled], edges[filled + 1], color=COLOURS[0], linewidth=1.8)
    # Whitened as they are, since PDF and SVG draw hatches without any opacity.
    faded[filled] = 100 * _sparse(table, filled)
    white = dict(color='white', alpha=1 - FADED, linewidth=0, zorder=2.5)
    if faded.any():
        axes.stairs(faded, edges, fill=True, **white)
        axes.fill_between([], [], color='#DDDDDD', label=f'faded: n < {FEW}')
    if band is not None and band.isfinite().any():
        label = '95 % interval of accuracy'  # of each bin, not of an error
        ends = 100 * band.numpy()[:, filled]
        axes.vlines(
            edges[filled] + edges[1] / 2, *ends, color='black', linewidth=1, zorder=4, label=label
        )


def draw_gaps(axes: Axes, table: Tensor) -> None:
    """Draw bins of equal count as points, and their gaps as lines."""
    _, conf, accuracy = _points(table)
    axes.vlines(conf, conf, accuracy, color=OVER['edgecolor'], linewidth=1.2, label='gap')
    style = dict(color=COLOURS[0], marker='o', markersize=4, linewidth=1)
    axes.plot(conf, accuracy, **style, label='bins of equal count')


def draw_diagonal(axes: Axes) -> None:
    """Draw where a calibrated network is."""
    axes.plot((0, 100), (0, 100), 'k--', linewidth=1, zorder=3, label='calibrated')


def draw_curve(axes: Axes, table: Tensor, look: Mapping[str, str], *, label: str) -> None:
    """Draw accuracy against confidence as a curve, which is faded where bins are sparse."""
    filled, conf, accuracy = _points(table)
    sparse = _sparse(table, filled)
    style = {**look, 'linewidth': 1.4, 'markersize': 4.5, 'markeredgecolor': 'white', 'zorder': 5}
    axes.plot(conf, accuracy, **style, alpha=FADED)
    axes.plot(conf, np.where(sparse, np.nan, accuracy), **style, label=label)
    axes.grid(True, linewidth=0.4, alpha=0.5)


def _log_odds(percent: np.ndarray) -> np.ndarray:
    share = np.clip(percent, *ENDS) / 100
    return np.log(share / (1 - share))


def _percent(log_odds: np.ndarray) -> np.ndarray:
    return 100 / (1 + np.exp(-log_odds))


def _to_log_odds(top: Axes, below: Axes, tables: Sequence[Tensor]) -> None:
    """Give axes that are drawn a scale of log-odds, from the lowest point on."""
    lowest = np.clip(min(np.min(_points(table)[1:]) for table in tables), ENDS[0], 50)
    for set_scale in (top.set_xscale, top.set_yscale, below.set_xscale):
        set_scale('function', functions=(_log_odds, _percent))
    span = dict(xticks=TICKS, xlim=(lowest, ENDS[1]))
    texts = [f'{tick:g}' for tick in TICKS]
    top.set(**span, yticks=TICKS, yticklabels=texts, ylim=(lowest, ENDS[1]))
    below.set(**span, xticklabels=texts)


def _draw_histogram(
    axes: Axes,
    found: CalibrationStatistics,
    num_bins: int | None,
    look: Mapping[str, str] | None,
    *,
    logit: bool = False,
) -> None:
    """Draw the distribution of the confidences, of several evaluations as lines of their looks."""
    table = _table(found, num_bins)
    edges = np.linspace(0, 100, table.shape[1] + 1)
    count, correct, conf = table.numpy()
    if logit:
        places = np.linspace(*_log_odds(np.array(ENDS)), len(edges))
        cells, _, trust = found.narrow_bins.numpy()
        count, _ = np.histogram(_log_odds(100 * trust / cells), places, weights=cells)
        edges = _percent(places)
    share = 100 * count / count.sum()
    if look:
        axes.stairs(share, edges, color=look['color'], linestyle=look['linestyle'], linewidth=1.4)
        return
    axes.stairs(share, edges, color='#BBBBBB', fill=True)
    for total, style, name in ((correct.sum(), '-', 'accuracy'), (conf.sum(), ':', 'confidence')):
        mean = dict(color='black', linestyle=style, linewidth=1.3, label=f'mean {name}')
        axes.axvline(100 * total / count.sum(), **mean)


def _table(found: CalibrationStatistics, num_bins: int | None, equal_mass: bool = False) -> Tensor:
    """Return the ``(3, B)`` bins of an evaluation, exactly where the metric has counted them."""
    if found.image_bins is not None and num_bins in (None, found.num_bins) and not equal_mass:
        return found.image_bins.sum(dim=0)
    return found.bins(num_bins or found.num_bins, equal_mass=equal_mass)


def _points(table: Tensor) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the indices of the filled bins, and their confidence and accuracy in percent."""
    count, correct, conf = table.numpy()
    filled = np.flatnonzero(count > 0)
    return filled, 100 * conf[filled] / count[filled], 100 * correct[filled] / count[filled]


def _sparse(table: Tensor, filled: np.ndarray) -> np.ndarray:
    return table[0].numpy()[filled] < FEW


def draw_image_calibration(runs: Mapping[str, CalibrationStatistics]) -> Figure:
    """Draw the accuracy of each segmented image against its mean confidence, in percent.

    An image below the diagonal is over-confident. An evaluation of all pixels may be calibrated
    while no image of it is; the title has the median of their gaps, whatever their signs.

    Args:
        runs: One panel each, four in a row, by their names.

    Raises:
        ValueError: For an evaluation whose images have one prediction each, or are not kept.
    """
    check_drawable(runs)
    figure, panels = panel_figure(len(runs))
    for (name, found), (axes,) in zip(runs.items(), panels, strict=True):
        table = torch.zeros(1, 3, 1) if found.image_bins is None else found.image_bins
        table = table.sum(dim=2).T
        if table[0].max() <= 1:
            raise UserError(f'{name!r} has no images of many pixels: draw its reliability')
        _, conf, accuracy = _points(table)
        axes.scatter(conf, accuracy, s=10, alpha=0.5, color=COLOURS[0], linewidth=0, label='image')
        draw_diagonal(axes)
        span = np.min([conf, accuracy]), 100
        axes.set(xlim=span, ylim=span, xlabel='mean confidence (%)', ylabel='accuracy (%)')
        gap = {'median gap': np.median(abs(conf - accuracy))}
        axes.set_title(wrapped(title_of(name, found, gap, f'{len(conf)} images'), SIDE), fontsize=8)
    legend(figure)
    return figure


def accuracy_band(image_bins: Tensor | None) -> Tensor | None:
    """Return ``(2, B)`` bounds of each bin's accuracy, by a percentile bootstrap over images.

    They are NaN for bins that fewer than 5 images reach: too few to tell how much they vary.
    """
    if image_bins is None:
        return None
    flat, draws = image_bins[:, :2].flatten(1), []
    for weights in drawn_weights(len(flat), num_bootstrap=NUM_BOOTSTRAP, seed=0):
        count, correct = (weights @ flat).view(len(weights), 2, -1).unbind(dim=1)
        draws.append(correct / count)
    band = torch.cat(draws).nanquantile(tails_of(COVERAGE), dim=0)
    band[:, (image_bins[:, 0] > 0).sum(dim=0) < MIN_IMAGES] = torch.nan
    return band


def reliability_diagram(
    probs: A = None,
    labels: A = None,
    *,
    conf: A = None,
    correct: A = None,
    num_bins: int = 15,
    equal_mass: bool = False,
    ignore_index: int | None = None,
    title: str = '',
    zoom: tuple[float, float] | None = None,
    scale: str = 'linear',
) -> Figure:
    """Draw accuracy against confidence, with ECE and AECE in the title.

    >>> probs, labels = [[0.9, 0.1], [0.8, 0.2], [0.3, 0.7]], [0, 1, 1]
    >>> figure = reliability_diagram(probs, labels, title='three predictions')
    >>> print(figure.axes[0].get_title())
    three predictions
    ECE 40.00 %, AECE 40.00 %
    n = 3, 15 bins
    >>> figure.savefig('reliability.png')  # doctest: +SKIP

    What is drawn is described at :func:`~mmcalib.visualization.draw_reliability`. Other arguments
    and errors are those of :func:`~mmcalib.metrics.expected_calibration_error`.

    Args:
        num_bins: B, of the diagram and of both errors.
        equal_mass: Draw the bins of AECE, which hold equally many predictions.
        title: Heads the figure.
        zoom: The part of both axes, in percent, to enlarge in an inset.
        scale: ``'logit'`` for axes of log-odds, as pixels need.

    Returns:
        A figure of matplotlib without pyplot, which a notebook shows and ``savefig`` writes.

    Raises:
        ValueError: If there are no predictions, or the zoom is no interval within 0 to 100.
    """
    options = dict(num_bins=num_bins, ignore_index=ignore_index)
    counts = counts_of(TITLED, probs, labels, conf, correct, **options)
    if not counts.count:
        raise UserError('there are no predictions to draw; are all labels ignore_index?')
    # Which rows are of one image is unknown, so there are no intervals over images.
    metrics = {name: value_of(name, counts) for name in TITLED}
    statistics = CalibrationStatistics(metrics, 'pooled', num_bins, condensed(counts))
    options = dict(equal_mass=equal_mass, zoom=zoom, scale=scale)
    return draw_reliability({title: statistics}, **options)
