"""Expected accuracy of predictions without labels: the mean calibrated confidence.

It holds for images like those of the validation. Of others, such as those of another camera, no
confidence tells the accuracy.

Accuracy is that of the pixels that get a label. Those that annotators leave out, or labels do, are
predicted too and cannot be told from the others in an image without labels.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mmcalib.errors import UserError, warn
from mmcalib.metrics.intervals import tail_probabilities, widening_factors
from mmcalib.metrics.log_bins import count_in_log_bins, log_bin_counts

# With 20 images, a folder's 95 % interval held the truth in 65 % of simulations in which 4 % of all
# images are wrong everywhere: a validation that has none of those knows nothing of them.
FEW_IMAGES = 100
FOLDS = 10
NUM_BOOTSTRAP = 2000
SEED = 0
# A resample of a larger folder has so many images; their part of the interval is small by then.
MOST_DRAWN = 10_000
DRAWS_AT_ONCE = 1_000_000


class ExpectedAccuracy:
    r"""Expected accuracy of images without labels, learnt from a validation with labels.

    The calibrated confidence of a bin is the accuracy that the validation has there, made
    monotonic in confidence; the expected accuracy of an image is its mean over the image's
    predictions, each weighed by the share of the validation's predictions in its bin that have a
    label; that of a folder is the mean over images, each of the same weight.

    The residuals :math:`r_i = \mathrm{accuracy}_i - \mathrm{expected}_i` are cross-fitted: each of
    ten folds of the validation is predicted by the other nine.

    Source: isotonic calibration, Zadrozny and Elkan, KDD 2002; intervals of images as in conformal
    prediction by cross-validation, Barber, Candès, Ramdas and Tibshirani, Annals of Statistics
    2021, of folders a bootstrap over images.

    Args:
        image_log_bins: ``(n, 3, C)`` log bins of the validation's images, see
            :func:`~mmcalib.metrics.log_bins.log_bin_counts`.
        level: Level of the intervals.

    Warns:
        UserWarning: With fewer than 100 images, since a folder's interval may be too narrow then.

    Raises:
        ValueError: If fewer than two images have predictions.
    """

    def __init__(self, image_log_bins: Tensor, *, level: float = 0.95) -> None:
        bins = image_log_bins.double()
        bins = bins[bins[:, 0].sum(dim=1) > 0]
        if len(bins) < 2:
            raise UserError(
                'the expected accuracy requires a validation of at least two labelled images, got '
                f'{len(bins)}: a few hundred make it useful'
            )
        if len(bins) < FEW_IMAGES:
            warn(
                f'a validation of {len(bins)} images: the interval of the expected accuracy of a '
                f'folder may be too narrow; validate on {FEW_IMAGES} or more'
            )
        self.level = level
        self.bin_accuracies, self.bin_weights = fit_bins(bins.sum(dim=0))
        accuracies = bins[:, 1].sum(dim=1) / bins[:, 0].sum(dim=1)
        counts = count_in_log_bins(bins)
        expected = torch.empty_like(accuracies)
        # Folds are random, since a data set may have a period, such as an image of each class in
        # turn.
        generator = torch.Generator().manual_seed(SEED)
        folds = torch.randperm(len(bins), generator=generator, device='cpu') % FOLDS
        for fold in range(min(FOLDS, len(bins))):
            in_fold = folds == fold
            bin_accuracies, bin_weights = fit_bins(bins[~in_fold].sum(dim=0))
            expected[in_fold] = _weighted_mean(counts[in_fold], bin_accuracies, bin_weights)
        self.residuals = (accuracies - expected).sort().values

    def image_accuracy(self, conf: Tensor) -> float:
        """Return the expected accuracy of an image with ``(M,)`` confidences; NaN if M is 0."""
        conf = conf.flatten()
        correct = torch.zeros(len(conf), dtype=torch.bool, device='cpu')
        counts, _, _ = log_bin_counts(conf, correct, conf[:0])
        return self.accuracy_from_counts(counts).item()

    def accuracy_from_counts(self, counts: Tensor) -> Tensor:
        """Return the expected accuracy of images, ``(…)``, with ``(…, C)`` predictions in bins."""
        return _weighted_mean(counts.double(), self.bin_accuracies, self.bin_weights)

    def image_interval(self, expected: float) -> tuple[float, float]:
        r"""Return the interval that holds an image's accuracy with the probability `level`.

        It goes from :math:`\mathrm{expected} + r_{(k)}` to
        :math:`\mathrm{expected} + r_{(n + 1 - k)}` for
        :math:`k = \lfloor (n + 1) \alpha / 2 \rfloor`, over images and validations together. With
        fewer than 39 images in the validation it is 0 to 1.
        """
        n = len(self.residuals)
        k = int((n + 1) * (1 - self.level) / 2 + 1e-9)
        if k < 1:
            return 0.0, 1.0
        return _in_range(expected + self.residuals[[k - 1, n - k]])

    def folder_interval(self, expected: float, num_images: int) -> tuple[float, float]:
        """Return the interval that holds the mean accuracy of `num_images` images.

        It allows for the draw of these images and for that of the validation's.
        """
        num_validated = len(self.residuals)
        generator = torch.Generator().manual_seed(SEED)
        folder_means = self._resampled_means(num_images, generator)
        validation_means = self._resampled_means(num_validated, generator)
        mean = self.residuals.mean()
        # Resampled images vary less than new ones would.
        factors = widening_factors(num_validated, NUM_BOOTSTRAP, SEED)
        error = mean + factors * ((folder_means - mean) - (validation_means - mean))
        return _in_range(expected + error.quantile(tail_probabilities(self.level)))

    def _resampled_means(self, size: int, generator: torch.Generator) -> Tensor:
        """Return the mean residual of each resample of so many images, ``(NUM_BOOTSTRAP,)``."""
        size = min(size, MOST_DRAWN)
        means = []
        at_once = max(1, DRAWS_AT_ONCE // size)
        for start in range(0, NUM_BOOTSTRAP, at_once):
            shape = (min(at_once, NUM_BOOTSTRAP - start), size)
            index = torch.randint(len(self.residuals), shape, generator=generator, device='cpu')
            means.append(self.residuals[index].mean(dim=1))
        return torch.cat(means)


def fit_bins(table: Tensor) -> tuple[Tensor, Tensor]:
    """Return the accuracy of each bin of a ``(3, C)`` table, and the share of it that has a label.

    The accuracies ascend with confidence, by an isotonic regression. An empty bin has the accuracy
    of the next filled one below, or of the lowest filled one. For the share, each bin counts one
    more prediction of the mean share, so that no bin is empty.
    """
    from sklearn.isotonic import isotonic_regression  # Importing it takes a second; few need it.

    labelled, _, unlabelled = table
    filled = (labelled > 0).nonzero().squeeze(1)
    count, correct = table[:2, filled].numpy()
    accuracies = torch.from_numpy(isotonic_regression(correct / count, sample_weight=count))
    bins = torch.arange(table.shape[1], device='cpu')
    next_below = torch.searchsorted(filled, bins, right=True) - 1
    predicted = labelled + unlabelled
    share = (labelled + labelled.sum() / predicted.sum()) / (predicted + 1)
    return accuracies[next_below.clamp(min=0)], share


def _weighted_mean(counts: Tensor, values: Tensor, weights: Tensor) -> Tensor:
    return counts @ (weights * values) / (counts @ weights)


def _in_range(ends: Tensor) -> tuple[float, float]:
    low, high = ends.clamp(0, 1).tolist()
    return low, high
