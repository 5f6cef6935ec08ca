"""Weights of an ensemble of temperatures, against all of a grid."""

import numpy as np
import pytest
from overconfident import draw, draw_labels, nll
from scipy.special import softmax

from mmcalib.posthoc import EnsembleTemperatureScaler, TemperatureScaler


@pytest.mark.parametrize('equal', [0.0, 0.3])
def test_no_weights_of_a_grid_are_better(equal):
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(400, 4)) * 5
    mixed = (1 - equal) * softmax(logits / 2, axis=1) + equal / 4
    labels = draw_labels(np.log(mixed), rng)
    scaler = EnsembleTemperatureScaler().fit(logits, labels)
    assert scaler.temperature_ == TemperatureScaler().fit(logits, labels).temperature_
    assert scaler.weights_.sum() == pytest.approx(1) and scaler.weights_.min() >= 0
    parts = [softmax(logits / scaler.temperature_, axis=1), softmax(logits, axis=1), 0.25]
    best = nll(scaler.transform(logits), labels)
    grid = np.linspace(0, 1, 41)
    others = [
        nll(np.log(a * parts[0] + b * parts[1] + (1 - a - b) * parts[2]), labels)
        for a in grid for b in grid if a + b <= 1
    ]  # fmt: skip
    assert best <= min(others) + 1e-9
    single = nll(logits / scaler.temperature_, labels)
    assert (best < single - 0.005) == (equal > 0)


def test_labels_without_a_relation_leave_the_argmax():
    logits, _ = draw(300)
    labels = np.random.default_rng(5).integers(0, 4, size=300)
    scaler = EnsembleTemperatureScaler().fit(logits, labels)
    assert scaler.weights_[2] <= 0.99 + 1e-9
    assert (scaler.transform(logits).argmax(1) == logits.argmax(1)).all()
