"""The reliability diagram of arrays of probabilities, in one call."""

from __future__ import annotations

from matplotlib.figure import Figure

from mmcalib.arrays import A
from mmcalib.metrics.counts import condensed
from mmcalib.metrics.definitions import value_of
from mmcalib.metrics.measure import counts_of
from mmcalib.metrics.statistics import CalibrationStatistics
from mmcalib.visualization.reliability_bands import TITLED, reliability_of
from mmcalib.visualization.reliability_diagram import draw_reliability


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

    Returns:
        A figure of matplotlib without pyplot, which a notebook shows and ``savefig`` writes.

    Raises:
        ValueError: If there are no predictions, or the zoom is no interval within 0 to 100.
    """
    arrays = dict(probs=probs, labels=labels, conf=conf, correct=correct)
    counts = counts_of(TITLED, **arrays, num_bins=num_bins, ignore_index=ignore_index)
    if not counts.count:
        raise ValueError('there are no predictions to draw; are all labels ignore_index?')
    # Which rows are of one image is unknown, so there are no intervals over images.
    metrics = {name: value_of(name, counts, num_bins) for name in TITLED}
    statistics = CalibrationStatistics(metrics, 'pooled', num_bins, condensed(counts))
    return draw_reliability([reliability_of(statistics, title, equal_mass=equal_mass)], zoom=zoom)
