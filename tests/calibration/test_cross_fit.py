"""Scalings without a fold: those of shared passes are those of separate fits."""

import math
import warnings

import numpy as np
import pytest
import torch
from drawn import draw_of_arrays, held_out
from overconfident import draw
from torch.nn.functional import cross_entropy

from mmcalib.calibration.cross_fit import fit_folds, fit_scaler
from mmcalib.errors import UserError
from mmcalib.posthoc import SCALERS, TemperatureScaler

METHODS = ('temperature', 'vector', 'ets', 'isotonic', 'class-temperatures')
BY_CLASS = ('class-temperatures', 'class-conditional')
DTYPES = (torch.float16, torch.float32, torch.float64)


def overconfident_draw(num_classes, *, num_rows=1500, rows_per_image=5, dtype=torch.float64):
    """Return predictions of images that have several rows each."""
    logits, labels = draw(num_rows, num_classes=num_classes)
    images = torch.arange(num_rows) // rows_per_image
    return draw_of_arrays(torch.as_tensor(logits).to(dtype), labels, images)


def separate_fits(scaler_type, data):
    """Return a scaler for each fold, fitted from the start to a copy of the other rows."""
    fold = data.folds[data.rows.images]
    scalers = []
    for number in range(int(fold.max()) + 1):
        scalers.append(fit_scaler(scaler_type(), data.rows.select(fold != number)))
    return scalers


@pytest.mark.parametrize('num_logits', [1, 2, 4])
@pytest.mark.parametrize('method', METHODS)
def test_fit_folds_equals_separate_fits(method, num_logits):
    predictions = overconfident_draw(num_logits)
    data = held_out(predictions, torch.arange(predictions.num_images) // 3)
    expected = separate_fits(SCALERS[method], data)
    actual = fit_folds(SCALERS[method](), data)
    for actual_scaler, expected_scaler in zip(actual, expected, strict=True):
        assert actual_scaler.num_predictions_ == expected_scaler.num_predictions_
        torch.testing.assert_close(
            actual_scaler.predict_proba(predictions.logits),
            expected_scaler.predict_proba(predictions.logits),
            rtol=0,
            atol=1e-5,
        )


@pytest.mark.parametrize('dtype', DTYPES)
@pytest.mark.parametrize('size', [1e-4, 1.0, 1e3])
def test_fit_folds_temperatures_equal_separate_fits_in_double(dtype, size):
    """A temperature of float32 logits is within 1e-6 of that of the same logits in float64."""
    logits, labels = draw(1500, num_classes=4)
    rounded = torch.as_tensor(size * logits).to(dtype)
    images = torch.arange(1500) // 5
    data_in_double = held_out(draw_of_arrays(rounded.double(), labels, images), seed=1)
    expected = separate_fits(TemperatureScaler, data_in_double)
    data = held_out(draw_of_arrays(rounded, labels, images), seed=1)
    actual = fit_folds(TemperatureScaler(), data)
    for actual_scaler, expected_scaler in zip(actual, expected, strict=True):
        assert actual_scaler.temperature_ == pytest.approx(expected_scaler.temperature_, rel=1e-6)


def test_fit_folds_of_different_temperatures_equal_separate_fits():
    """One fold is far from the others, so that more steps are needed."""
    logits, labels = draw(500, num_classes=3)
    logits[:100] *= 30
    images = torch.arange(500) // 100
    data = held_out(draw_of_arrays(logits, labels, images))
    expected = separate_fits(TemperatureScaler, data)
    actual = fit_folds(TemperatureScaler(), data)
    temperatures = [scaler.temperature_ for scaler in actual]
    assert max(temperatures) > 3 * min(temperatures)
    assert temperatures == pytest.approx([s.temperature_ for s in expected], rel=1e-7)


def test_fit_folds_without_wrong_predictions_has_bound():
    """All wrong predictions are in one fold, without which there is no temperature."""
    logits, labels = draw(200, num_classes=3)
    labels[40:] = np.argmax(logits[40:], axis=1)
    images = torch.arange(200) // 40
    data = held_out(draw_of_arrays(logits, labels, images), run_of_group=torch.arange(5))
    with pytest.warns(UserWarning, match='bound of 0.01'):
        scalers = fit_folds(TemperatureScaler(), data)
    assert scalers[0].temperature_ == 0.01
    assert all(scaler.temperature_ > 0.1 for scaler in scalers[1:])


def test_fit_folds_undetermined_temperature_names_fold():
    logits, labels = draw(200, num_classes=3)
    logits[40:] = 0
    images = torch.arange(200) // 40
    data = held_out(draw_of_arrays(logits, labels, images), run_of_group=torch.arange(5))
    with pytest.raises(
        UserError, match='without fold 1 of 5: the logits of each row are all equal'
    ):
        fit_folds(TemperatureScaler(), data)


def test_fit_folds_grid_equals_separate_fits():
    data = held_out(overconfident_draw(4, num_rows=300))
    scaler = TemperatureScaler(criterion='ece-grid')
    actual = fit_folds(scaler, data)
    for number, fold_scaler in enumerate(actual):
        is_kept = data.folds[data.rows.images] != number
        expected = fit_scaler(TemperatureScaler(criterion='ece-grid'), data.rows.select(is_kept))
        assert fold_scaler.temperature_ == expected.temperature_


@pytest.mark.parametrize('dtype', [torch.float32, torch.float64])
def test_fit_temperature_of_huge_logits_is_finite(dtype):
    """Differences of such logits are beyond float32."""
    logits, labels = draw(300, num_classes=3)
    large = torch.as_tensor(logits) / np.abs(logits).max() * 3e38
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        scaler = TemperatureScaler().fit(large.to(dtype), labels)
    expected = TemperatureScaler().fit(logits, labels).temperature_
    expected *= 3e38 / np.abs(logits).max()
    assert math.isfinite(scaler.temperature_)
    assert scaler.temperature_ == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize('method', ['vector', 'matrix', 'ets', *BY_CLASS])
def test_fit_folds_in_single_precision_have_nll_of_double(method):
    logits, labels = draw(16_000, num_classes=4)
    logits = torch.as_tensor(logits + 0.7 * np.arange(4))  # Classes then differ.
    labels = torch.as_tensor(labels)
    images = torch.arange(len(labels)) // 40
    losses = []
    for values in (logits.float(), logits.float().double()):
        data = held_out(draw_of_arrays(values, labels, images))
        fold = data.folds[images]
        full = fit_scaler(SCALERS[method](), data.rows)
        scalers = fit_folds(SCALERS[method](), data, similar=full)
        for number, scaler in enumerate(scalers):
            scaled = scaler.transform(values.double()[fold != number])
            losses.append(cross_entropy(scaled, labels[fold != number]).item())
    assert losses[:5] == pytest.approx(losses[5:], abs=1e-6)
