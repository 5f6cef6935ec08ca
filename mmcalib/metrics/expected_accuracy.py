"""Expected accuracy of predictions without labels: the mean calibrated confidence.

It holds for images like those of the validation. Of others, such as those of another camera, no
confidence tells the accuracy.

Accuracy is that of the pixels that get a label. Those that annotators leave out, or labels do, are
predicted too and cannot be told from the others in an image without labels.
"""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from mmcalib.errors import UserError
from mmcalib.metrics.intervals import tails_of, widening
from mmcalib.metrics.log_bins import count_in_log_bins, log_bin_counts

# With 20 images, a folder's 95 % interval held the truth in 65 % of simulations in which 4 % of all
# images are wrong everywhere: a validation that has none of those knows nothing of them.
FEW_IMAGES = 100
# Parts of the validation, each of which is predicted by the others.
FOLDS = 10
NUM_BOOTSTRAP = 2000
SEED = 0
# Of more images, as many are drawn; their own share of the interval is small by then.
MOST_DRAWN = 10_000
CHUNK = 1_000_000  # draws at a time


class ExpectedAccuracy:
    r"""Accuracies expected of images without labels, from a validation with them.

    The calibrated confidence of a bin is the accuracy that the validation has there, made
    monotonic in confidence; the expected accuracy of an image is its mean over the image's
    predictions, each weighed by the share of the validation's predictions in its bin that have a
    label; that of a folder is the mean over images, each alike.

    How far accuracies lie from this, :math:`r_i = \mathrm{accuracy}_i - \mathrm{expected}_i`, is
    learnt from the validation itself, a tenth of which is predicted by the other nine at a time.

    Source: isotonic calibration, Zadrozny and Elkan, KDD 2002; intervals of images as in conformal
    prediction by cross-validation, Barber, Candès, Ramdas and Tibshirani, Annals of Statistics
    2021, of folders a bootstrap over images.

    Args:
        image_narrow_bins: ``(n, 3, C)`` counts, see
            :func:`~mmcalib.metrics.log_bins.log_bin_counts`.
        coverage: Of the intervals.

    Warns:
        UserWarning: With fewer than 100 images, of which a folder's interval may be too narrow.

    Raises:
        ValueError: If fewer than two images have predictions.
    """

    def __init__(self, image_narrow_bins: Tensor, *, coverage: float = 0.95) -> None:
        bins = image_narrow_bins.double()
        bins = bins[bins[:, 0].sum(dim=1) > 0]
        if len(bins) < 2:
            raise UserError(
                'the expected accuracy requires a validation of at least two labelled images, got '
                f'{len(bins)}: a few hundred make it useful'
            )
        if len(bins) < FEW_IMAGES:
            warnings.warn(
                f'a validation of {len(bins)} images: the interval of the expected accuracy of a '
                f'folder may be too narrow; validate on {FEW_IMAGES} or more',
                stacklevel=2,
            )
        self.coverage = coverage
        self.of_bins, self.weights = learned_of(bins.sum(dim=0))
        found = bins[:, 1].sum(dim=1) / bins[:, 0].sum(dim=1)
        predicted, expected = count_in_log_bins(bins), torch.empty_like(found)
        # At random, since a data set may have a period, such as an image of each class in turn.
        generator = torch.Generator().manual_seed(SEED)
        folds = torch.randperm(len(bins), generator=generator, device='cpu') % FOLDS
        for fold in range(min(FOLDS, len(bins))):
            part = folds == fold
            expected[part] = _mean_in_bins(predicted[part], *learned_of(bins[~part].sum(dim=0)))
        self.residuals = (found - expected).sort().values

    def of_image(self, conf: Tensor) -> float:
        """Return the expected accuracy of an image's ``(M,)`` confidences, NaN of none."""
        conf = conf.flatten()
        correct = torch.zeros(len(conf), dtype=torch.bool, device='cpu')
        counts = log_bin_counts(conf, correct, conf[:0])[0]
        return self.of_counts(counts).item()

    def of_counts(self, counts: Tensor) -> Tensor:
        """Return that of images with so many predictions in each bin, ``(…, C)`` of them."""
        return _mean_in_bins(counts.double(), self.of_bins, self.weights)

    def image_interval(self, expected: float) -> tuple[float, float]:
        r"""Return where an image's accuracy lies with the probability `coverage`.

        Between :math:`\mathrm{expected} + r_{(k)}` and :math:`\mathrm{expected} + r_{(n + 1 - k)}`
        for :math:`k = \lfloor (n + 1) \alpha / 2 \rfloor`, over images and validations together. It
        says nothing, and is 0 to 1, of fewer than 39 images.
        """
        n = len(self.residuals)
        k = int((n + 1) * (1 - self.coverage) / 2 + 1e-9)
        if k < 1:
            return 0.0, 1.0
        return _in_range(expected + self.residuals[[k - 1, n - k]])

    def folder_interval(self, expected: float, num_images: int) -> tuple[float, float]:
        """Return where the mean accuracy of so many images lies with the probability `coverage`.

        It allows for the draw of these images and for that of the validation's.
        """
        n = len(self.residuals)
        generator = torch.Generator().manual_seed(SEED)
        new, old = (self._drawn_means(count, generator) for count in (num_images, n))
        mean = self.residuals.mean()
        # Draws of images that are there vary less than new ones would.
        around = mean + widening(n, NUM_BOOTSTRAP, SEED) * ((new - mean) - (old - mean))
        return _in_range(expected + around.quantile(tails_of(self.coverage)))

    def _drawn_means(self, count: int, generator: torch.Generator) -> Tensor:
        count, means = min(count, MOST_DRAWN), []
        for rows in torch.arange(NUM_BOOTSTRAP, device='cpu').split(max(1, CHUNK // count)):
            size = (len(rows), count)
            drawn = torch.randint(len(self.residuals), size, generator=generator, device='cpu')
            means.append(self.residuals[drawn].mean(dim=1))
        return torch.cat(means)


def learned_of(table: Tensor) -> tuple[Tensor, Tensor]:
    """Return the accuracy of each bin of a ``(3, C)`` table, and which share of it has a label.

    The accuracies ascend with confidence, by an isotonic regression. A bin that is empty has that
    of the next one below that is not, or of the lowest. In the share all bins together count as one
    prediction more in each, so that none is without.
    """
    from sklearn.isotonic import isotonic_regression  # takes a second to import, and few need it

    filled = (table[0] > 0).nonzero().squeeze(1)
    count, correct = table[:2, filled].numpy()
    values = torch.from_numpy(isotonic_regression(correct / count, sample_weight=count))
    below = torch.searchsorted(filled, torch.arange(table.shape[1], device='cpu'), right=True) - 1
    labelled, predicted = table[0], table[0] + table[2]
    share = (labelled + labelled.sum() / predicted.sum()) / (predicted + 1)
    return values[below.clamp(min=0)], share


def _mean_in_bins(counts: Tensor, values: Tensor, weights: Tensor) -> Tensor:
    return counts @ (weights * values) / (counts @ weights)


def _in_range(ends: Tensor) -> tuple[float, float]:
    return tuple(ends.clamp(0, 1).tolist())
