"""Reliability diagrams: accuracy over confidence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from mmcalib.errors import UserError, warn
from mmcalib.metrics.intervals import bootstrap_weights, tail_probabilities
from mmcalib.metrics.measured import Measured
from mmcalib.metrics.measurement import Measurement
from mmcalib.metrics.statistics import CalibrationStatistics, check_class
from mmcalib.options import check_choice, check_integer, suggests_arguments
from mmcalib.predictions.arrays import Array
from mmcalib.predictions.from_arrays import read_arrays
from mmcalib.predictions.image_predictions import ImagePredictions, predictions_from_confidences
from mmcalib.visualization.panels import (
    Panel,
    PlottedRun,
    add_legend,
    check_drawable,
    check_no_arrays,
    measured_statistics,
    panels,
    set_panel_title,
    statistics_title,
)
from mmcalib.visualization.style import COLOURS, GREY, Look

TITLE_METRICS = ('ECE', 'AECE')
PREDICTED = 'predicted'
WITHOUT_CLASS_1 = 'of the predicted class, since it has no such bins of P(y = 1)'
BLUE = COLOURS[0]
ACCURACY_COLOUR = '#A6CFE8'
GAP_COLOUR = '#B34700'
# Bins of fewer predictions are faded: the standard error of their accuracy is up to eleven points.
FEW_IN_BIN = 20
FADED_OPACITY = 0.3
LEVEL = 0.95
NUM_RESAMPLES = 200
MIN_IMAGES = 5
# Positions of an inset: above the diagonal, where over-confident networks leave room, and below it.
UPPER_LEFT = (0.11, 0.58, 0.36, 0.36)
LOWER_RIGHT = (0.58, 0.11, 0.36, 0.36)
# An axis of log-odds ends here, in percent: what is nearer to 0 or 100 is drawn at its ends.
LOG_ODDS_ENDS = (0.01, 99.999)
LOG_ODDS_TICKS = (0.1, 1, 10, 50, 90, 99, 99.9, 99.99)


class Bins(NamedTuple):
    """Bins that hold a prediction.

    Attributes:
        left: Lower edges in percent, for bins of equal width.
        right: Upper edges.
        count: Numbers of predictions.
        conf: Mean confidences in percent.
        accuracy: Accuracies in percent.
    """

    left: np.ndarray
    right: np.ndarray
    count: np.ndarray
    conf: np.ndarray
    accuracy: np.ndarray


class DiagramWords(NamedTuple):
    """Words of a diagram: of the predicted class, or of one class."""

    accuracy: str = 'accuracy'
    confidence: str = 'confidence'
    too_high: str = 'over-confident by'
    too_low: str = 'under-confident by'


def diagram_words(of_class: int | None) -> DiagramWords:
    """Return the words of a diagram of the probability of a class, None for the predicted one."""
    if of_class is None:
        return DiagramWords()
    return DiagramWords(
        accuracy=f'share of labels {of_class}',
        confidence=f'P(y = {of_class})',
        too_high='too high by',
        too_low='too low by',
    )


@dataclass(frozen=True)
class DiagramOptions:
    """Options of a reliability diagram, see :func:`draw_reliability`."""

    num_bins: int | None
    equal_mass: bool
    overlay: bool
    zoom: Sequence[float] | None
    log_odds: bool

    def uses_metric_bins(self, statistics: CalibrationStatistics) -> bool:
        """Return whether the bins drawn are those that the metric has used."""
        return not self.equal_mass and self.num_bins in (None, statistics.num_bins)


@suggests_arguments
def draw_reliability(
    runs: Mapping[str, CalibrationStatistics],
    *,
    num_bins: int | None = None,
    equal_mass: bool = False,
    overlay: bool = False,
    zoom: Sequence[float] | None = None,
    scale: str = 'linear',
    of_class: int | str | None = None,
    ax: Axes | None = None,
) -> Figure:
    r"""Draw accuracy against confidence for one evaluation, or several.

    A bin is drawn at its mean confidence :math:`\mathrm{conf}_b` with its accuracy
    :math:`\mathrm{acc}_b`; the hatched gap between the two, weighted by the bin's share of the
    predictions in the histogram below, is what an expected calibration error sums up. Both axes
    are in percent. Bins of fewer than 20 predictions are faded. The metric's own bins of equal
    width have intervals of their accuracy, at the level of the measurement: exact ones of single
    predictions, and of maps and groups a bootstrap over these. The errors in the titles are those
    that were printed, whatever the bins of the diagram.

    Source: the paper's figures of reliability diagrams, which have 25 bins and a zoom.

    Args:
        runs: Statistics of each evaluation, by its name: one panel each, four in a row.
        num_bins: B; None for the number of the metric.
        equal_mass: Bins of equal count instead of equal width.
        overlay: Draw all as curves in one panel instead.
        zoom: Part of both axes, in percent, to enlarge in an inset; None for no inset.
        scale: ``'linear'``, or ``'logit'`` for axes of log-odds, on which 90, 99 and 99.9 % are
            equally far apart, as pixels need; its bins are of equal count.
        of_class: The class whose probability is drawn, with the share of its labels in place of the
            accuracy, of a test of several labels the label; ``'predicted'`` for the confidence of
            the predicted class. None for class 1 where a run has these bins of two classes, in one
            panel where all runs have them, and else for the predicted class, as a title says beside
            runs that have them. Several labels are pooled, but for one that is named.
        ax: Axes of matplotlib in which one panel is drawn, without the histogram and the legend:
            ``ax.legend()`` adds the latter. None for a new figure.

    Returns:
        The figure; ``savefig`` writes it.

    Raises:
        TypeError: If `num_bins` is no integer.
        ValueError: If it is below 1, there is nothing to draw, the zoom is no interval within 0 to
            100, the scale is another, or `ax` is for one panel and there are several.
    """
    check_drawable(runs)
    log_odds = check_choice('scale', scale, ('linear', 'logit')) == 'logit'
    if num_bins is not None:
        check_integer('num_bins', num_bins)
    if zoom is not None and not 0 <= zoom[0] < zoom[1] <= 100:
        raise UserError(f'zoom must be an interval in percent, such as (80, 100); got {zoom}')
    options = DiagramOptions(
        num_bins=num_bins,
        equal_mass=equal_mass or log_odds,
        overlay=overlay,
        zoom=zoom,
        log_odds=log_odds,
    )
    without_class_1 = []
    if of_class is None:
        without_class_1 = [name for name, run in runs.items() if not has_class_1(run, options)]
        if any(is_of_two_classes(runs[name]) for name in without_class_1):
            warn(
                'drawn are the confidences of the predicted class, since of P(y = 1) only the bins '
                'of the measurement were counted: leave equal_mass, scale and num_bins out, or '
                'give probs and labels, to draw P(y = 1)'
            )
    are_mixed = 0 < len(without_class_1) < len(runs)
    drawn = {}
    for name, statistics in runs.items():
        drawn_class = of_class
        if name in without_class_1 or (overlay and without_class_1):
            drawn_class = PREDICTED
        title, chosen = choose_class(name, statistics, drawn_class)
        if are_mixed and name in without_class_1:
            title = f'{title}, {WITHOUT_CLASS_1}'.removeprefix(', ')
        check_bins_known(chosen, options)
        drawn[title] = chosen
    figure, diagram_panels = panels(drawn, below=(0.3,), overlay=overlay, ax=ax)
    for panel in diagram_panels:
        _draw_panel(panel, options)
    if overlay or options.equal_mass:
        diagram_panels[-1].axes[0].plot(
            [], [], color='black', marker='o', alpha=FADED_OPACITY, label=f'faded: n < {FEW_IN_BIN}'
        )
    if ax is None:
        add_legend(figure)
    return figure


def has_class_1(statistics: CalibrationStatistics, options: DiagramOptions) -> bool:
    """Return whether the bins to draw are known of the probability of class 1 of two."""
    if statistics.of_class is not None:
        return True
    return is_of_two_classes(statistics) and options.uses_metric_bins(statistics)


def is_of_two_classes(statistics: CalibrationStatistics) -> bool:
    """Return whether the bins of a measurement were counted for each of two classes."""
    bins = statistics.probability_bins
    return bins is not None and bins.shape[1] == 2


def choose_class(
    name: str, statistics: CalibrationStatistics, of_class: int | str | None
) -> tuple[str, CalibrationStatistics]:
    """Return the title and what is drawn of a run, see `of_class` of :func:`draw_reliability`."""
    if statistics.of_class is not None:
        return name, statistics
    if statistics.label_bins is not None:
        if isinstance(of_class, int):
            return f'{name}, label {of_class}', statistics.for_label(of_class)
        name = f'{name}, pooled over labels'
    if of_class == PREDICTED:
        return name, statistics
    return name, statistics.for_class(1 if of_class is None else of_class)


def check_bins_known(statistics: CalibrationStatistics, options: DiagramOptions) -> None:
    """Refuse other bins of a class than those that were counted."""
    has_fine_bins = statistics.narrow_bins.shape[1] > statistics.num_bins
    if statistics.of_class is None or has_fine_bins or options.uses_metric_bins(statistics):
        return
    raise UserError(
        f'of a class {statistics.num_bins} bins of equal width were counted: draw these, or give '
        "probs and labels, or of_class='predicted'"
    )


def _draw_panel(panel: Panel, options: DiagramOptions) -> None:
    """Draw the diagram of a panel, and the distribution of the confidences below it."""
    diagram = panel.axes[0]
    lowest_axes = panel.axes[-1]
    bins_by_run = [
        filled_bins(run.content.bins(options.num_bins, equal_mass=options.equal_mass))
        for run in panel.runs
    ]
    diagrams = [diagram]
    if options.zoom is not None:
        diagrams.append(_add_inset(diagram, bins_by_run, options.zoom))
    for run, bins in zip(panel.runs, bins_by_run, strict=True):
        title = _run_title(run, options)
        if options.overlay:
            for axes in diagrams:
                _draw_curve(axes, bins, run.look, title)
        else:
            set_panel_title(diagram, title)
            _draw_single_run(diagrams, run.content, bins, options)
    for axes in diagrams:
        draw_diagonal(axes)
    words = diagram_words(panel.runs[0].content.of_class)
    diagram.set(xlim=(0, 100), ylim=(0, 100), ylabel=f'{words.accuracy} (%)')
    lowest_axes.set_xlabel(f'{words.confidence} (%)')
    if lowest_axes is not diagram:
        _draw_histogram(lowest_axes, panel.runs, options)
        diagram.tick_params(labelbottom=False)
    if options.log_odds:
        _set_log_odds_scale(panel.axes, bins_by_run)


def _draw_histogram(axes: Axes, runs: Sequence[PlottedRun], options: DiagramOptions) -> None:
    """Draw the distribution of the confidences of the runs of a panel."""
    for run in runs:
        _draw_distribution(axes, run, options)
    axes.set(xlim=(0, 100), ylim=(0, None), ylabel='share of\npredictions (%)')
    axes.spines[['top', 'right']].set_visible(False)


def _run_title(run: PlottedRun, options: DiagramOptions) -> str:
    """Return the title of a run, with the errors that were measured and their bins."""
    statistics = run.content
    errors = {key: statistics.metrics[key] for key in TITLE_METRICS if key in statistics.metrics}
    note = ''
    if errors:
        note = f'{statistics.num_bins} bins'
        if not options.uses_metric_bins(statistics):
            note = f'errors of {note}'
    if statistics.of_class is not None:
        errors = {f'{key} of P(y = {statistics.of_class})': errors[key] for key in errors}
    separator = ', ' if options.overlay else '\n'
    return statistics_title(run.label, statistics, errors, note=note, separator=separator)


def _draw_single_run(
    diagrams: Sequence[Axes],
    statistics: CalibrationStatistics,
    bins: Bins,
    options: DiagramOptions,
) -> None:
    """Draw the bins of the one run of a panel, in its diagram and its inset."""
    if options.equal_mass:
        for axes in diagrams:
            axes.vlines(bins.conf, bins.conf, bins.accuracy, color=GAP_COLOUR, label='gap')
            _draw_curve(axes, bins, Look(BLUE, '-', 'o'), 'bins of equal count')
        return
    band = accuracy_band(statistics) if options.uses_metric_bins(statistics) else None
    level = statistics.level or LEVEL
    for axes in diagrams:
        draw_bars(axes, bins, band, level=level, words=diagram_words(statistics.of_class))


def filled_bins(table: Tensor) -> Bins:
    """Return what is drawn of a ``(3, B)`` table: count, correct and sum of confidences."""
    is_filled = table[0].numpy() > 0
    edges = np.linspace(0, 100, table.shape[1] + 1)
    count, correct, conf_sum = table.numpy()[:, is_filled]
    return Bins(
        left=edges[:-1][is_filled],
        right=edges[1:][is_filled],
        count=count,
        conf=100 * conf_sum / count,
        accuracy=100 * correct / count,
    )


def _add_inset(axes: Axes, bins_by_run: Sequence[Bins], zoom: Sequence[float]) -> Axes:
    """Return axes for a zoom, on the side of the diagonal that most of the runs leave free."""
    bins_lie_above = sum((bins.accuracy - bins.conf).sum() for bins in bins_by_run) > 0
    inset = axes.inset_axes(LOWER_RIGHT if bins_lie_above else UPPER_LEFT)
    inset.set(xlim=zoom, ylim=zoom, xticks=zoom, yticks=zoom, autoscale_on=False)
    inset.tick_params(labelsize=7, pad=1.5, length=2)
    for connector in axes.indicate_inset_zoom(inset, edgecolor=GREY).connectors:
        connector.set_visible(False)
    return inset


def draw_bars(
    axes: Axes,
    bins: Bins,
    band: np.ndarray | None = None,
    *,
    level: float = LEVEL,
    words: DiagramWords = DiagramWords(),  # noqa: B008 (It cannot be changed.)
) -> None:
    """Draw the bins of an evaluation and the gaps between their confidence and accuracy.

    Args:
        axes: Axes in percent.
        bins: Bins of equal width.
        band: ``(2, n)`` bounds of the accuracies, in percent; None to draw none.
        level: Level of the band.
        words: The words of the legend.
    """
    zeros = np.zeros_like(bins.accuracy)
    every_bin = bins.count > 0
    _draw_chosen_bars(
        axes, bins, every_bin, bins.accuracy, zeros, color=ACCURACY_COLOUR, label=words.accuracy
    )
    _draw_gaps(axes, bins, words)
    axes.vlines(bins.left[1:], 0, 100, color='white', linewidth=0.6)
    axes.hlines(bins.accuracy, bins.left, bins.right, color=BLUE, linewidth=1.8)
    is_faded = bins.count < FEW_IN_BIN
    # Faded bars are whitened, since PDF and SVG draw hatches without any opacity.
    _draw_chosen_bars(
        axes,
        bins,
        is_faded,
        np.full_like(zeros, 100),
        zeros,
        color='white',
        alpha=1 - FADED_OPACITY,
        zorder=2.5,
    )
    if is_faded.any():
        axes.fill_between([], [], color='#DDDDDD', label=f'faded: n < {FEW_IN_BIN}')
    if band is not None and np.isfinite(band).any():
        axes.errorbar(
            (bins.left + bins.right) / 2,
            band.mean(axis=0),
            np.diff(band, axis=0)[0] / 2,
            fmt='none',
            ecolor='black',
            elinewidth=1,
            zorder=4,
            label=f'{100 * level:g} % interval of {words.accuracy}',
        )


def _draw_gaps(axes: Axes, bins: Bins, words: DiagramWords) -> None:
    """Draw the gaps between confidence and accuracy, in the colour and hatch of their sign."""
    gap = bins.conf - bins.accuracy
    _draw_chosen_bars(
        axes,
        bins,
        gap > 0,
        gap,
        bins.accuracy,
        facecolor='#F3B48A',
        edgecolor=GAP_COLOUR,
        hatch='////',
        label=words.too_high,
    )
    _draw_chosen_bars(
        axes,
        bins,
        gap < 0,
        gap,
        bins.accuracy,
        facecolor='#8FD6BE',
        edgecolor='#00664A',
        hatch='....',
        label=words.too_low,
    )


def _draw_chosen_bars(
    axes: Axes,
    bins: Bins,
    is_chosen: np.ndarray,
    height: np.ndarray,
    bottom: np.ndarray,
    **look,
) -> None:
    """Draw bars of some bins, if there are any; `look` are options of ``bar``."""
    if is_chosen.any():
        width = bins.right - bins.left
        axes.bar(
            bins.left[is_chosen],
            height[is_chosen],
            width[is_chosen],
            bottom[is_chosen],
            align='edge',
            linewidth=0,
            **look,
        )


def draw_diagonal(axes: Axes) -> None:
    """Draw where a calibrated network is."""
    axes.plot((0, 100), (0, 100), 'k--', linewidth=1, zorder=3, label='calibrated')


def _draw_curve(axes: Axes, bins: Bins, look: Look, label: str) -> None:
    """Draw accuracy against confidence as a curve, which is faded where bins are sparse."""
    style = dict(
        color=look.colour,
        linestyle=look.line,
        marker=look.marker,
        linewidth=1.4,
        markersize=4.5,
        markeredgecolor='white',
        zorder=5,
    )
    axes.plot(bins.conf, bins.accuracy, **style, alpha=FADED_OPACITY)
    accuracy = np.where(bins.count < FEW_IN_BIN, np.nan, bins.accuracy)
    axes.plot(bins.conf, accuracy, **style, label=label)
    axes.grid(True, linewidth=0.4, alpha=0.5)


def _draw_distribution(axes: Axes, run: PlottedRun, options: DiagramOptions) -> None:
    """Draw the distribution of the confidences: an outline among several, else filled."""
    fine_count, fine_correct, fine_conf_sum = run.content.narrow_bins.numpy()
    count = run.content.bins(options.num_bins)[0].numpy()
    edges = np.linspace(0, 100, len(count) + 1)
    if options.log_odds:
        log_odds_edges = np.linspace(*percent_to_log_odds(np.array(LOG_ODDS_ENDS)), len(edges))
        fine_conf = percent_to_log_odds(100 * fine_conf_sum / fine_count)
        count, _ = np.histogram(fine_conf, log_odds_edges, weights=fine_count)
        edges = log_odds_to_percent(log_odds_edges)
    share = 100 * count / count.sum()
    if options.overlay:
        axes.stairs(share, edges, color=run.look.colour, linestyle=run.look.line, linewidth=1.4)
        return
    axes.stairs(share, edges, color='#BBBBBB', fill=True)
    total = fine_count.sum()
    mean_accuracy = 100 * fine_correct.sum() / total
    mean_conf = 100 * fine_conf_sum.sum() / total
    words = diagram_words(run.content.of_class)
    axes.axvline(mean_accuracy, color='black', linewidth=1.3, label=f'mean {words.accuracy}')
    axes.axvline(
        mean_conf, color='black', linewidth=1.3, linestyle=':', label=f'mean {words.confidence}'
    )


def percent_to_log_odds(percent: np.ndarray) -> np.ndarray:
    """Return the log-odds of shares in percent, which are clipped to the ends of the axis."""
    share = np.clip(percent, *LOG_ODDS_ENDS) / 100
    return np.log(share / (1 - share))


def log_odds_to_percent(log_odds: np.ndarray) -> np.ndarray:
    """Return the shares of log-odds, in percent."""
    return 100 / (1 + np.exp(-log_odds))


def _set_log_odds_scale(axes_of_panel: Sequence[Axes], bins_by_run: Sequence[Bins]) -> None:
    """Give axes that are drawn, of which the diagram is first, a scale of log-odds."""
    lowest = min(np.min([bins.conf, bins.accuracy]) for bins in bins_by_run)
    least, most = LOG_ODDS_ENDS
    ends = (np.clip(lowest, least, 50), most)
    labels = [f'{tick:g}' for tick in LOG_ODDS_TICKS]
    functions = (percent_to_log_odds, log_odds_to_percent)
    for axes in axes_of_panel:
        axes.set_xscale('function', functions=functions)
        axes.xaxis.set_ticks(LOG_ODDS_TICKS, labels)
    axes_of_panel[-1].tick_params(axis='x', rotation=45)  # 99.9 and 99.99 stand close.
    diagram = axes_of_panel[0]
    diagram.set_yscale('function', functions=functions)
    diagram.yaxis.set_ticks(LOG_ODDS_TICKS, labels)
    diagram.set_ylim(ends)
    for axes in axes_of_panel:
        axes.set_xlim(ends)


def accuracy_band(statistics: CalibrationStatistics) -> np.ndarray | None:
    """Return ``(2, n)`` bounds of the accuracy of filled bins, in percent.

    They are NaN for bins that fewer than 5 units reach: too few to tell how much they vary. None if
    no units are known.
    """
    level = statistics.level or LEVEL
    tables = statistics.unit_tables()
    if tables is not None and tables.bins[:, 0].sum(dim=1).max() > 1:
        return 100 * resampled_band(tables.bins, level)
    if tables is None and statistics.level is None:
        return None
    count, correct, _ = statistics.bins()
    is_filled = count > 0
    return 100 * binomial_band(count[is_filled].numpy(), correct[is_filled].numpy(), level)


def binomial_band(count: np.ndarray, correct: np.ndarray, level: float) -> np.ndarray:
    """Return the bounds ``(2, n)`` of the accuracy of bins of single predictions, as shares.

    Resamples of 10 right predictions of 10 would have bounds without any width.

    Source: Clopper and Pearson, The use of confidence or fiducial limits illustrated in the case of
    the binomial, Biometrika 26, 1934.
    """
    from scipy.special import betaincinv  # A training that draws nothing does without SciPy.

    tail = (1 - level) / 2
    wrong = count - correct
    low = np.where(correct > 0, betaincinv(correct, wrong + 1, tail), 0)
    high = np.where(wrong > 0, betaincinv(correct + 1, wrong, 1 - tail), 1)
    return np.where(count < MIN_IMAGES, np.nan, np.stack([low, high]))


def resampled_band(image_bins: Tensor, level: float) -> np.ndarray:
    """Return the bounds ``(2, n)`` of the accuracy of filled bins, by a bootstrap over images.

    Args:
        image_bins: ``(N, 3, B)`` count, correct and sum of confidences of each image.
        level: Level between whose tails the resampled accuracies lie.
    """
    num_images = len(image_bins)
    count_and_correct = image_bins[:, :2].flatten(1)
    accuracies = []
    for weights in bootstrap_weights(num_images, num_bootstrap=NUM_RESAMPLES, seed=0):
        sums = (weights @ count_and_correct).view(len(weights), 2, -1)
        count, correct = sums.unbind(dim=1)
        accuracies.append(correct / count)
    band = torch.cat(accuracies).nanquantile(tail_probabilities(level), dim=0)
    reaches_bin = image_bins[:, 0] > 0
    band[:, reaches_bin.sum(dim=0) < MIN_IMAGES] = torch.nan
    return band[:, reaches_bin.any(dim=0)].numpy()


def reliability_diagram(
    probs: Array | Measured | Mapping[str, Measured] | None = None,
    labels: Array | None = None,
    *,
    conf: Array | None = None,
    correct: Array | None = None,
    num_bins: int | None = None,
    ignore_index: int | None = None,
    of_class: int | str | None = None,
    title: str = '',
    ax: Axes | None = None,
    **options,
) -> Figure:
    """Draw accuracy against confidence, with ECE and AECE in the title.

    Of two classes, the share of labels 1 is drawn against P(y = 1).

    >>> probs, labels = [[0.9, 0.1, 0.0], [0.8, 0.2, 0.0], [0.1, 0.7, 0.2]], [0, 1, 1]
    >>> figure = reliability_diagram(probs, labels, title='three predictions')
    >>> print(figure.axes[0].get_title())
    three predictions
    ECE 40.00 %, AECE 40.00 %
    n = 3, 15 bins
    >>> figure.savefig('reliability.png')  # doctest: +SKIP

    What :func:`~mmcalib.measure`, :func:`~mmcalib.evaluate` or a stream has returned is drawn too:

    >>> from mmcalib import measure
    >>> figure = reliability_diagram(measure(probs, labels, ['ECE', 'NLL']))
    >>> print(figure.axes[0].get_title())
    ECE 40.00 %
    n = 3, 15 bins

    Arguments and errors that are not described here are those of
    :func:`~mmcalib.metrics.expected_calibration_error`.

    Args:
        probs: Probabilities. Or a measurement of several metrics, with a panel for each of several
            labels; measured with an interval, its bins of equal width have intervals. Or several
            measurements by name, with a panel each.
        num_bins: B, for the diagram and both errors; None for 15, or that of the measurement.
        of_class: The class whose probability is drawn, with the share of its labels; or
            ``'predicted'`` for confidence and accuracy of the predicted class. None is the latter,
            and class 1 of two.
        title: Text above the figure, which says of several labels that they are pooled.
        ax: Axes of matplotlib in which one panel is drawn, without the histogram and the legend:
            ``ax.legend()`` adds the latter. None for a new figure.
        options: `equal_mass`, `overlay`, `zoom` and `scale` of
            :func:`~mmcalib.visualization.draw_reliability`, which says what is drawn.

    Returns:
        A figure of matplotlib without pyplot, which a notebook shows and ``savefig`` writes; with
        `ax`, that of these axes.

    Raises:
        ValueError: If there are no predictions, the zoom is no interval within 0 to 100, or `ax` is
            for one panel and there are several.
    """
    if isinstance(probs, (Mapping, float)):
        check_no_arrays(labels, conf, correct, ignore_index)
        return draw_reliability(
            measured_statistics(probs, title),
            num_bins=num_bins,
            of_class=of_class,
            ax=ax,
            **options,
        )
    num_bins = 15 if num_bins is None else num_bins
    predictions = read_arrays(probs, labels, conf, correct, ignore_index=ignore_index)
    if predictions.several_labels:
        title = f'{title}, pooled over labels' if title else 'pooled over labels'
    if of_class is None and predictions.are_of_two_classes:
        of_class = 1
    if of_class == PREDICTED:
        of_class = None
    if of_class is not None:
        predictions = predictions_of_class(predictions, of_class)
    measurement = Measurement(TITLE_METRICS, num_bins=num_bins)
    measurement.add(predictions)
    if not measurement.count:
        raise UserError('there are no predictions to draw; are all labels ignore_index?')
    # It is unknown which rows are of one image, so there are no intervals over images.
    statistics = replace(measurement.measured().statistics, of_class=of_class)
    return draw_reliability({title: statistics}, ax=ax, **options)


def predictions_of_class(predictions: ImagePredictions, of_class: int) -> ImagePredictions:
    """Return the probability of a class as a confidence, which is correct where it is the label.

    Raises:
        UserError: If there is no such class, or confidences alone are known.
    """
    if predictions.are_bare_confidences:
        raise UserError('of_class needs probs and labels, not conf and correct')
    check_class(of_class, predictions.num_classes)
    prob = predictions.class_probabilities()[:, of_class]
    of_this_class = predictions_from_confidences(prob, predictions.labels == of_class)
    return of_this_class.within(predictions.valid)
