"""From the statistics of an evaluation to the bins and bands of its reliability diagram."""

from __future__ import annotations

import torch
from torch import Tensor

from mmcalib.checks import check_integer
from mmcalib.metrics import CalibrationStatistics
from mmcalib.metrics.intervals import drawn_weights, tails_of
from mmcalib.visualization.reliability_panels import Reliability

TITLED = ('ECE', 'AECE')
COVERAGE = 0.95
NUM_BOOTSTRAP = 200
MIN_IMAGES = 5
SEED = 0


def reliability_of(
    statistics: CalibrationStatistics,
    name: str,
    *,
    num_bins: int | None = None,
    equal_mass: bool = False,
) -> Reliability:
    """Return the reliability of an evaluation, for a diagram.

    Its errors are those that were printed, whatever the bins of the diagram. Where these are the
    metric's own, of equal width, each has a 95 % bootstrap interval over images.

    Args:
        statistics: Of the metric, or loaded.
        name: Of the run.
        num_bins: B; the metric's own number if None.
        equal_mass: Bins of equal count instead of equal width.

    Raises:
        TypeError: If `num_bins` is no integer.
        ValueError: If it is below 1, or nothing was evaluated.
    """
    num_bins = statistics.num_bins if num_bins is None else check_integer('num_bins', num_bins)
    if statistics.num_predictions == 0:
        raise ValueError(f'{name!r} has no predictions, so there is no diagram of it')
    table, band = statistics.bins(num_bins, equal_mass=equal_mass), None
    images = statistics.image_bins
    if images is not None and not equal_mass and images.shape[-1] == num_bins:
        table, band = images.sum(dim=0), accuracy_band(images)
    notes = []
    if statistics.metrics.keys() & set(TITLED):
        own = num_bins == statistics.num_bins and not equal_mass
        notes.append(f'{"" if own else "errors of "}{statistics.num_bins} bins')
    notes += [f'protocol {statistics.protocol}' if statistics.protocol != 'pooled' else '']
    return Reliability(
        name=name,
        table=table,
        equal_mass=equal_mass,
        histogram=statistics.bins(num_bins) if equal_mass else None,
        figures={key: statistics.metrics[key] for key in TITLED if key in statistics.metrics},
        band=band,
        note=', '.join(note for note in notes if note),
    )


def accuracy_band(image_bins: Tensor) -> Tensor:
    """Return the ``(2, B)`` bounds of each bin's accuracy, by a percentile bootstrap over images.

    They are NaN for bins that fewer than 5 images reach: too few to tell how much they vary.

    Args:
        image_bins: ``(n, 3, B)`` bins of each image.
    """
    flat = image_bins[:, :2].flatten(1)
    draws = []
    for weights in drawn_weights(len(image_bins), num_bootstrap=NUM_BOOTSTRAP, seed=SEED):
        count, correct = (weights @ flat).view(len(weights), 2, -1).unbind(dim=1)
        draws.append(correct / count)
    band = torch.cat(draws).nanquantile(tails_of(COVERAGE), dim=0)
    band[:, (image_bins[:, 0] > 0).sum(dim=0) < MIN_IMAGES] = torch.nan
    return band
