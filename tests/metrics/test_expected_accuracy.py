"""Expected accuracy of images without labels: against loops and the truth."""

import warnings

import numpy as np
import pytest
import torch
from samples import image_confidences, image_narrow_bins

from mmcalib.metrics.expected_accuracy import FOLDS, SEED, ExpectedAccuracy, fit_bins
from mmcalib.metrics.log_bins import NUM_LOG_BINS


def two_bin_accuracy(count, num_unlabelled):
    """Return an expected accuracy that is fitted to images with two kinds of predictions.

    Each image has `count` labelled predictions with confidence 1, of which nine in ten are correct,
    and as many with confidence 0, of which two in ten are. Of the latter kind it has unlabelled
    ones too.
    """
    table = torch.zeros(40, 3, NUM_LOG_BINS, dtype=torch.int32)
    table[:, :2, -1] = torch.tensor([count, 0.9 * count])
    table[:, :, 1] = torch.tensor([count, 0.2 * count, num_unlabelled])
    return ExpectedAccuracy(table)


def test_image_accuracy_is_mean_accuracy_of_its_bins():
    accuracy = two_bin_accuracy(10, 0)
    assert accuracy.image_accuracy(torch.ones(7)) == pytest.approx(0.9)
    assert accuracy.image_accuracy(torch.tensor([[1.0, 0.01], [1.0, 1.0]])) == pytest.approx(0.725)
    # An empty bin has the accuracy of the next one below.
    assert accuracy.image_accuracy(torch.tensor([0.5])) == pytest.approx(0.2)
    assert np.isnan(accuracy.image_accuracy(torch.ones(0)))
    assert accuracy.residuals.abs().max() < 1e-12
    assert accuracy.bin_weights.eq(1).all()


def test_residuals_equal_loop_over_folds():
    table = image_narrow_bins(*image_confidences(25, pixels=30))
    order = torch.randperm(25, generator=torch.Generator().manual_seed(SEED)).tolist()
    expected = []
    for fold in range(FOLDS):
        others = sum(table[i].double() for i in range(25) if order[i] % FOLDS != fold)
        accuracy, _ = fit_bins(others)
        for i in range(25):
            if order[i] % FOLDS == fold:
                count, correct, _ = table[i].double()
                expected.append(((correct - count * accuracy).sum() / count.sum()).item())
    actual = ExpectedAccuracy(table).residuals.tolist()
    assert actual == pytest.approx(sorted(expected))


def test_image_interval_ends_are_order_statistics():
    table = image_narrow_bins(*image_confidences(79, pixels=30))
    accuracy = ExpectedAccuracy(table)
    low, high = accuracy.image_interval(0.5)
    residuals = accuracy.residuals  # The second and the last but one are taken: k = 80 / 40 = 2.
    assert low == pytest.approx(0.5 + residuals[1].item())
    assert high == pytest.approx(0.5 + residuals[-2].item())
    assert accuracy.image_interval(0.99)[1] == 1
    assert ExpectedAccuracy(table[:38]).image_interval(0.5) == (0, 1)
    assert ExpectedAccuracy(table[:39]).image_interval(0.5) != (0, 1)


def test_folder_interval_more_images_narrows_to_that_of_validation():
    accuracy = ExpectedAccuracy(image_narrow_bins(*image_confidences(100, pixels=30, spread=0.5)))
    spread = accuracy.residuals.std().item()
    for count in (10, 100, 20_000):
        low, high = accuracy.folder_interval(0.6, count)
        expected = 2 * 1.984 * spread * (1 / min(count, 10_000) + 1 / 100) ** 0.5
        assert high - low == pytest.approx(expected, rel=0.1)
        assert low < 0.6 < high


def test_image_accuracy_bins_with_few_labels_weigh_less():
    accuracy = two_bin_accuracy(1000, 3000)
    # One in four of the unsure predictions has a label, so four weigh as much as a sure one.
    actual = accuracy.image_accuracy(torch.tensor([1.0, 0.01, 0.01, 0.01, 0.01]))
    assert actual == pytest.approx((0.9 + 0.2) / 2, abs=1e-3)
    assert accuracy.image_accuracy(torch.tensor([0.01])) == pytest.approx(0.2)
    assert accuracy.residuals.abs().max() < 1e-3


def test_expected_accuracy_small_validation_warns():
    table = image_narrow_bins(*image_confidences(100, pixels=9))
    with pytest.warns(UserWarning, match='a validation of 99 images'):
        ExpectedAccuracy(table[1:])
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        ExpectedAccuracy(table)
