"""Metrics of arrays: any kind of them, maps, one class, and functions beside `measure`."""

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
def test_any_kind_of_array(convert):
    probs, labels = draw()
    assert measure(convert(probs), convert(labels), NAMES) == pytest.approx(
        measure(probs, labels, NAMES), abs=1e-5
    )


def test_maps_pieces_and_the_probability_of_class_1(monkeypatch):
    probs, labels = draw(k=2)
    expected = measure(probs, labels, NAMES)
    for one in (probs[:, 1], probs[:, 1:]):
        assert measure(one, labels, NAMES) == pytest.approx(expected, abs=1e-6)
    maps, targets = np.moveaxis(probs.reshape(3, 4, 5, 2), -1, 1), labels.reshape(3, 4, 5)
    maps, targets = (np.concatenate([x, x], axis=-1) for x in (maps, targets))
    targets[:, :, 5:] = 255
    monkeypatch.setattr(outcomes, 'PIECE_BYTES', 1)
    found = measure(maps, targets, NAMES, ignore_index=255)
    assert found == pytest.approx(expected, abs=1e-9)


def test_a_name_a_list_and_the_named_functions():
    probs, labels = draw()
    values = measure(probs, labels)
    assert list(values) == ['ECE', 'AECE', 'NLL', 'Brier', 'accuracy']
    assert measure(probs, labels, 'ECE', num_bins=7) == metrics.expected_calibration_error(
        probs, labels, num_bins=7
    )
    conf, correct = probs.max(1), probs.argmax(1) == labels
    assert metrics.adaptive_calibration_error(conf=conf, correct=correct) == values['AECE']


@pytest.mark.parametrize('threshold', [None, 0.0123, 0.305])
def test_class_wise_errors_over_bins_of_equal_count(threshold):
    probs, labels = draw()
    probs = np.round(probs, 2)
    probs[:, 0] = 1 - probs[:, 1:].sum(1)
    probs = probs.clip(0, 1)
    found = metrics.classwise_adaptive_calibration_error(probs, labels, threshold=threshold)
    rows, least = probs.astype('float32').tolist(), -1 if threshold is None else threshold
    expected = references.classwise(
        references.adaptive_calibration_error, rows, labels.tolist(), threshold=least
    )
    assert found == pytest.approx(expected, abs=1e-3)
    nothing = metrics.classwise_adaptive_calibration_error(probs, labels, threshold=1)
    assert np.isnan(nothing)
