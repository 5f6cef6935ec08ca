"""Labels in other forms: masked by numpy, as a column, one-hot, or with several classes."""

from functools import partial

import numpy as np
import pytest

import mmcalib
from mmcalib import reliability_diagram
from mmcalib.metrics import (
    classwise_adaptive_calibration_error,
    image_risks,
    measure,
    predicted_class_calibration,
)
from mmcalib.posthoc import SCALERS, TemperatureScaler

METRICS = ['ECE', 'NLL', 'accuracy']


def draw_predictions(shape=(60,), classes=3, seed=0):
    """Return confident probabilities (N, K, *), and labels of which about two thirds agree."""
    generator = np.random.default_rng(seed)
    logits = 2 * generator.normal(size=(shape[0], classes, *shape[1:]))
    probs = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    random_labels = generator.integers(0, classes, shape)
    labels = np.where(generator.random(shape) < 0.5, probs.argmax(axis=1), random_labels)
    return probs, labels


def mask_some(values):
    """Return values of which 3 of 10 are masked, and which are not."""
    mask = np.random.default_rng(1).random(values.shape) < 0.3
    return np.ma.array(values, mask=mask), ~mask


def title(figure):
    return figure.axes[0].get_title()


def test_measure_masked_labels_do_not_count():
    probs, labels = draw_predictions()
    masked, kept = mask_some(labels)
    expected = measure(probs[kept], labels[kept], METRICS)
    assert measure(probs, masked, METRICS) == pytest.approx(expected)
    assert measure(probs, list(masked), METRICS) == pytest.approx(expected)
    masked_as_bytes = masked.astype('uint8')
    assert measure(probs, masked_as_bytes, METRICS) == pytest.approx(expected)
    assert measure(probs[:, 1:2], (masked > 1).astype(int), 'accuracy') == pytest.approx(
        measure(probs[kept][:, 1:2], (labels[kept] > 1).astype(int), 'accuracy')
    )
    assert mmcalib.evaluate(probs, masked, METRICS) == pytest.approx(expected)
    assert title(reliability_diagram(probs, masked)) == title(
        reliability_diagram(probs[kept], labels[kept])
    )
    assert classwise_adaptive_calibration_error(probs, masked) == pytest.approx(
        classwise_adaptive_calibration_error(probs[kept], labels[kept])
    )
    assert predicted_class_calibration(probs, masked)['count'].sum() == kept.sum()


def test_measure_masked_labels_and_an_ignored_one_do_not_count():
    probs, labels = draw_predictions()
    labels[::7] = 255
    masked, kept = mask_some(labels)
    kept &= labels != 255
    expected = measure(probs[kept], labels[kept], METRICS)
    assert measure(probs, masked, METRICS, ignore_index=255) == pytest.approx(expected)


def test_measure_masked_pixels_do_not_count_in_intervals():
    probs, labels = draw_predictions((8, 5, 6))
    masked, kept = mask_some(labels)
    ignored = np.where(kept, labels, 255)
    expected = measure(probs, ignored, METRICS, interval=0.9, ignore_index=255)
    assert measure(probs, masked, METRICS, interval=0.9) == pytest.approx(expected)


def test_measure_masked_probabilities_do_not_count():
    probs, labels = draw_predictions()
    kept = np.arange(len(labels)) % 5 > 0
    mask = np.zeros(probs.shape, bool)
    mask[~kept, 1] = True
    values = np.ma.array(np.where(mask, np.nan, probs), mask=mask)
    expected = measure(probs[kept], labels[kept], METRICS)
    assert measure(values, labels, METRICS) == pytest.approx(expected)


def test_measure_masked_confidences_do_not_count():
    probs, labels = draw_predictions()
    conf = probs.max(axis=1)
    correct = probs.argmax(axis=1) == labels
    masked, kept = mask_some(correct)
    expected = measure(conf=conf[kept], correct=correct[kept], metrics='ECE')
    assert measure(conf=conf, correct=masked, metrics='ECE') == pytest.approx(expected)
    floats = masked.astype(float)
    assert measure(conf=conf, correct=floats, metrics='ECE') == pytest.approx(expected)
    masked = np.ma.array(conf, mask=~kept)
    assert measure(conf=masked, correct=correct, metrics='ECE') == pytest.approx(expected)
    actual = measure(conf=masked, correct=correct, metrics=['ECE'], interval=0.9)
    assert actual['ECE'] == pytest.approx(expected) and actual['ECE_low'] <= actual['ECE_high']


def test_measure_masked_labels_of_several_do_not_count():
    probs, labels = draw_predictions((40,), 4)
    probs = probs.clip(0, 0.9) ** 0.5
    several = (np.arange(4) < labels[:, None]).astype(int)
    masked, kept = mask_some(several)
    expected = measure(probs, np.where(kept, several, 255), METRICS, ignore_index=255)
    actual = measure(probs, masked, METRICS)
    for name, values in expected.items():
        assert actual[name] == pytest.approx(values, nan_ok=True)


@pytest.mark.parametrize('shape', [(80,), (4, 5, 6)])
def test_scaler_masked_labels_do_not_count(shape):
    probs, labels = draw_predictions(shape)
    logits = np.log(probs)
    masked, kept = mask_some(labels)
    ignored = np.where(kept, labels, 255)
    expected = TemperatureScaler().fit(logits, ignored, ignore_index=255).temperature_
    assert TemperatureScaler().fit(logits, masked).temperature_ == pytest.approx(expected)
    plain = TemperatureScaler().fit(logits, labels).temperature_
    assert plain != pytest.approx(expected)


@pytest.mark.parametrize('method', ['platt', 'isotonic'])
def test_fit_confidence_masked_values_do_not_count(method):
    probs, labels = draw_predictions()
    conf = probs.max(axis=1)
    correct = probs.argmax(axis=1) == labels
    masked, kept = mask_some(correct)
    scaler = SCALERS[method]().fit_confidence(conf[kept], correct[kept])
    expected = scaler.confidence(conf)
    actual = SCALERS[method]().fit_confidence(conf, masked).confidence(conf)
    np.testing.assert_allclose(actual, expected)
    hidden = np.ma.array(np.where(kept, conf, 9), mask=~kept)
    actual = SCALERS[method]().fit_confidence(hidden, correct).confidence(conf)
    np.testing.assert_allclose(actual, expected)


def test_image_risks_masked_labels_do_not_count():
    predicted = np.array([0, 1, 1, 2])
    labels = np.ma.array([0, 0, 1, 0], mask=[0, 0, 0, 1])
    assert image_risks(predicted, labels) == image_risks(predicted[:3], labels.data[:3])


def test_values_without_labels_masked_are_refused():
    probs, labels = draw_predictions()
    scaler = TemperatureScaler().fit(np.log(probs), labels)
    logits = np.ma.array(np.eye(3), mask=np.eye(3) == 1)
    with pytest.raises(ValueError, match='logits has 3 masked values'):
        scaler.transform(logits)


@pytest.mark.parametrize('shape', [(60,), (5, 4, 3)])
def test_labels_of_one_column_are_read(shape):
    probs, labels = draw_predictions(shape)
    column = labels[:, None]
    expected = measure(probs, labels, METRICS)
    assert measure(probs, column, METRICS) == pytest.approx(expected)
    assert measure(probs, column, METRICS, interval=0.9)['ECE'] == pytest.approx(expected['ECE'])
    fitted = [TemperatureScaler().fit(np.log(probs), y).temperature_ for y in (labels, column)]
    assert fitted[0] == fitted[1]


@pytest.mark.parametrize('squeeze', [True, False])
def test_labels_of_one_column_of_a_binary_head_are_read(squeeze):
    probs, labels = draw_predictions(classes=2)
    positive = probs[:, 1] if squeeze else probs[:, 1:]
    expected = measure(probs, labels, METRICS)
    assert measure(positive, labels[:, None], METRICS) == pytest.approx(expected)
    logits = np.log(probs[:, 1:] / probs[:, :1])
    fitted = [SCALERS['platt']().fit(logits, y).parameters for y in (labels, labels[:, None])]
    assert fitted[0] == fitted[1]


@pytest.mark.parametrize('shape', [(60,), (4, 5, 6)])
@pytest.mark.parametrize('door', ['measure', 'fit'])
def test_labels_one_hot_and_several_are_told_apart(door, shape):
    probs, labels = draw_predictions(shape)
    one_hot = np.moveaxis(np.eye(3, dtype=int)[labels], -1, 1)
    several = one_hot.copy()
    several[0] = 1
    if door == 'fit':
        read = partial(TemperatureScaler().fit, np.log(probs))
    else:
        read = partial(measure, probs)
    with pytest.raises(ValueError, match=r'one-hot.*argmax\(1\)'):
        read(one_hot)
    with pytest.raises(ValueError, match='several classes') as error:
        read(several)
    assert 'one-hot' not in str(error.value) and 'argmax' not in str(error.value)
