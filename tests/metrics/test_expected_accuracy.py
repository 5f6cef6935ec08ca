"""Accuracies expected without labels: against loops and the truth."""

import warnings

import numpy as np
import pytest
import torch
from samples import image_confidences, image_narrow_bins

from mmcalib.metrics.expected_accuracy import FOLDS, SEED, ExpectedAccuracy, fit_bins
from mmcalib.metrics.log_bins import NUM_LOG_BINS


def accuracy_of(count, left_out):
    """Of images with as many predictions of confidence 1, nine in ten right, as of 0, two in ten.

    Of the latter some are left out.
    """
    table = torch.zeros(40, 3, NUM_LOG_BINS, dtype=torch.int32)
    table[:, :2, -1] = torch.tensor([count, 0.9 * count])
    table[:, :, 1] = torch.tensor([count, 0.2 * count, left_out])
    return ExpectedAccuracy(table)


def test_an_image_expects_the_accuracy_of_its_cells():
    accuracy = accuracy_of(10, 0)
    assert accuracy.image_accuracy(torch.ones(7)) == pytest.approx(0.9)
    assert accuracy.image_accuracy(torch.tensor([[1.0, 0.01], [1.0, 1.0]])) == pytest.approx(0.725)
    assert accuracy.image_accuracy(torch.tensor([0.5])) == pytest.approx(
        0.2
    )  # as the next one below
    assert np.isnan(accuracy.image_accuracy(torch.ones(0)))
    assert accuracy.residuals.abs().max() < 1e-12 and accuracy.bin_weights.eq(1).all()


def test_residuals_are_of_images_that_the_fit_has_not_seen():
    table = image_narrow_bins(*image_confidences(25, pixels=30))
    order = torch.randperm(25, generator=torch.Generator().manual_seed(SEED)).tolist()
    expected = []
    for fold in range(FOLDS):
        others = sum(table[i].double() for i in range(25) if order[i] % FOLDS != fold)
        accuracy = fit_bins(others)[0]
        for i in (i for i in range(25) if order[i] % FOLDS == fold):
            count, right, _ = table[i].double()
            expected.append(((right - count * accuracy).sum() / count.sum()).item())
    found = ExpectedAccuracy(table).residuals.tolist()
    assert found == pytest.approx(sorted(expected))


def test_intervals_of_an_image_are_order_statistics():
    table = image_narrow_bins(*image_confidences(79, pixels=30))
    accuracy = ExpectedAccuracy(table)
    low, high = accuracy.image_interval(0.5)
    r = accuracy.residuals  # k = floor(80 / 40) = 2
    assert (low, high) == pytest.approx((0.5 + r[1].item(), 0.5 + r[-2].item()))
    assert accuracy.image_interval(0.99)[1] == 1
    assert ExpectedAccuracy(table[:38]).image_interval(0.5) == (0, 1)
    assert ExpectedAccuracy(table[:39]).image_interval(0.5) != (0, 1)


def test_the_interval_of_a_folder_narrows_with_its_images_down_to_that_of_the_validation():
    accuracy = ExpectedAccuracy(image_narrow_bins(*image_confidences(100, pixels=30, spread=0.5)))
    spread = accuracy.residuals.std().item()
    for count in (10, 100, 20_000):
        low, high = accuracy.folder_interval(0.6, count)
        expected = 2 * 1.984 * spread * (1 / min(count, 10_000) + 1 / 100) ** 0.5
        assert high - low == pytest.approx(expected, rel=0.1)
        assert low < 0.6 < high


def test_a_confidence_weighs_as_often_as_it_gets_a_label():
    accuracy = accuracy_of(1000, 3000)
    found = accuracy.image_accuracy(torch.tensor([1.0, 0.01, 0.01, 0.01, 0.01]))
    assert found == pytest.approx((0.9 + 0.2) / 2, abs=1e-3)  # four in one
    assert accuracy.image_accuracy(torch.tensor([0.01])) == pytest.approx(0.2)
    assert accuracy.residuals.abs().max() < 1e-3


def test_a_small_validation_is_warned_of():
    table = image_narrow_bins(*image_confidences(100, pixels=9))
    with pytest.warns(UserWarning, match='a validation of 99 images'):
        ExpectedAccuracy(table[1:])
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        ExpectedAccuracy(table)
