"""Metrics of arrays: any kind of array, maps, one class, and the functions beside `measure`."""

import numpy as np
import pytest
import references
import torch

from mmcalib import metrics
from mmcalib.metrics import measure, outcomes
from mmcalib.metrics.definitions import METRICS

NAMES = tuple(METRICS)


def draw(n=60, k=4, seed=0):
    generator = np.random.default_rng(seed)
    probs = generator.dirichlet(np.full(k, 0.5), n)
    return probs, generator.integers(0, k, n)


@pytest.mark.parametrize(
    'convert',
    [
        torch.from_numpy,
        lambda x: x.tolist(),
        lambda x: [torch.from_numpy(np.asarray(row)) for row in x],
        lambda x: np.asfortranarray(x),
        lambda x: x[::-1][::-1],
        lambda x: x.astype(x.dtype.newbyteorder('>')),
        lambda x: x.astype('uint16') if x.dtype.kind == 'i' else x,
    ],
)
def test_measure_any_kind_of_array_same(convert):
    probs, labels = draw()
    expected = measure(probs, labels, NAMES)
    actual = measure(convert(probs), convert(labels), NAMES)
    assert actual == pytest.approx(expected, abs=1e-5)


def test_measure_probability_of_class_1_equals_both_columns():
    probs, labels = draw(k=2)
    expected = measure(probs, labels, NAMES)
    assert measure(probs[:, 1], labels, NAMES) == pytest.approx(expected, abs=1e-6)
    assert measure(probs[:, 1:], labels, NAMES) == pytest.approx(expected, abs=1e-6)


def test_measure_maps_in_pieces_equals_rows(monkeypatch):
    monkeypatch.setattr(outcomes, 'PIECE_BYTES', 1)
    probs, labels = draw(k=2)
    maps = np.moveaxis(probs.reshape(3, 4, 5, 2), -1, 1)
    label_maps = labels.reshape(3, 4, 5)
    ignored = np.full_like(label_maps, 255)
    actual = measure(
        np.concatenate([maps, maps], axis=-1),
        np.concatenate([label_maps, ignored], axis=-1),
        NAMES,
        ignore_index=255,
    )
    assert actual == pytest.approx(measure(probs, labels, NAMES), abs=1e-9)


def test_measure_one_name_equals_named_function():
    probs, labels = draw()
    values = measure(probs, labels)
    assert list(values) == ['ECE', 'AECE', 'NLL', 'Brier', 'accuracy']
    actual = metrics.expected_calibration_error(probs, labels, num_bins=7)
    assert actual == measure(probs, labels, 'ECE', num_bins=7)
    correct = probs.argmax(1) == labels
    actual = metrics.adaptive_calibration_error(conf=probs.max(1), correct=correct)
    assert actual == values['AECE']


@pytest.mark.parametrize('threshold', [None, 0.0123, 0.305])
def test_classwise_adaptive_error_any_threshold_equals_loop(threshold):
    probs, labels = draw()
    probs = np.round(probs, 2)
    probs[:, 0] = 1 - probs[:, 1:].sum(1)
    probs = probs.clip(0, 1)
    actual = metrics.classwise_adaptive_calibration_error(probs, labels, threshold=threshold)
    expected = references.classwise(
        references.adaptive_calibration_error,
        probs.astype('float32').tolist(),
        labels.tolist(),
        threshold=-1 if threshold is None else threshold,
    )
    assert actual == pytest.approx(expected, abs=1e-3)


def test_classwise_adaptive_error_nothing_above_threshold_is_nan():
    probs, labels = draw()
    assert np.isnan(metrics.classwise_adaptive_calibration_error(probs, labels, threshold=1))
