"""Scales and shifts per class, and a matrix, against what must hold of them."""

import warnings

import numpy as np
import pytest
from overconfident import draw, draw_labels, nll

from mmcalib.posthoc import MatrixScaler, TemperatureScaler, VectorScaler


def centred(logits):
    return logits - logits.mean(axis=1, keepdims=True)


@pytest.mark.parametrize('scaler', [VectorScaler, MatrixScaler])
class TestClasswise:
    def test_large_penalties_leave_the_temperature(self, scaler):
        logits, labels = draw()
        names = {'diagonal', 'intercept'} | ({'off_diagonal'} if scaler is MatrixScaler else set())
        stiff = scaler(**dict.fromkeys(names, 1e9)).fit(logits, labels)
        expected = TemperatureScaler().fit(logits, labels).predict_proba(logits)
        np.testing.assert_allclose(stiff.predict_proba(logits), expected, atol=1e-5)

    def test_no_penalty_finds_the_map(self, scaler):
        rng = np.random.default_rng(0)
        given = rng.normal(size=(6000, 3)) * 2
        logits = centred(given) * [0.5, 2.0, 1.0] + [0.5, -0.5, 0.0]
        labels = draw_labels(logits, rng)
        names = {'diagonal', 'intercept'} | ({'off_diagonal'} if scaler is MatrixScaler else set())
        free = scaler(**dict.fromkeys(names, 0.0)).fit(given, labels)
        # Up to what a softmax does not see.
        assert np.abs(centred(free.transform(given)) - centred(logits)).mean() < 0.15

    def test_a_class_that_the_data_lack(self, scaler):
        logits, labels = draw(num_classes=3)
        logits = np.concatenate([logits, logits[:, :1] - 1], axis=1)
        fitted = scaler().fit(logits, labels)
        assert np.isfinite(fitted.transform(logits)).all()
        assert fitted.shift_.abs().max() < 10

    def test_labels_of_one_class(self, scaler):
        logits, _ = draw()
        with pytest.raises(ValueError, match='all labels have class 2'):
            scaler().fit(logits, np.full(len(logits), 2))

    def test_the_classes_have_no_order(self, scaler):
        logits, labels = draw(num_classes=4)
        order = np.array([2, 0, 3, 1])
        given = scaler().fit(logits, labels).predict_proba(logits)
        permuted = scaler().fit(logits[:, order], np.argsort(order)[labels])
        found = permuted.predict_proba(logits[:, order])
        np.testing.assert_allclose(found, given[:, order], atol=1e-5)

    def test_separable_logits(self, scaler):
        labels = np.arange(40) % 4
        with warnings.catch_warnings():
            warnings.simplefilter('ignore')
            fitted = scaler().fit(3 * np.eye(4)[labels], labels)
        assert np.isfinite(fitted.transform(np.eye(4))).all()

    def test_penalties(self, scaler):
        for value in (-1.0, float('nan'), float('inf')):
            with pytest.raises(ValueError, match='intercept'):
                scaler(intercept=value)
        for value in ('1', True):
            with pytest.raises(TypeError, match='intercept'):
                scaler(intercept=value)


def test_matrix_has_the_derivative_of_nothing_at_its_optimum():
    logits, labels = draw(300, num_classes=3)
    scaler = MatrixScaler().fit(logits, labels)

    def objective(matrix, shift):
        t = scaler._temperature
        change = t * matrix - np.eye(3)
        own = np.diag(change)
        off = (change**2).sum() - (own**2).sum()
        total = nll(centred(logits) @ matrix.T + shift, labels) * len(labels)
        return total + 3 * (own**2).sum() + 6 * off + 3 * (shift**2).sum()

    matrix, shift = scaler.matrix_.numpy(), scaler.shift_.numpy()
    best = objective(matrix, shift)
    rng = np.random.default_rng(0)
    for _ in range(20):
        a, b = rng.normal(size=(3, 3)) * 1e-3, rng.normal(size=3) * 1e-3
        assert objective(matrix + a, shift + b) >= best - 1e-9


@pytest.mark.parametrize('scaler', [VectorScaler, MatrixScaler])
class TestDependentPredictions:
    """Rows that come in copies are no more information than one of them."""

    def test_copies_change_nothing(self, scaler):
        logits, labels = draw(300)
        once = scaler().fit(logits, labels)
        copies = [np.repeat(a, 7, axis=0) for a in (logits, labels, np.arange(300))]
        grouped = scaler().fit(*copies)
        assert once.num_effective_ == 300
        # The slopes of the NLL have a mean of 0 at the best temperature, up to rounding.
        assert grouped.num_effective_ == pytest.approx(300, rel=1e-6)
        np.testing.assert_allclose(grouped.transform(logits), once.transform(logits), atol=1e-4)
        apart = scaler().fit(*copies[:2])
        assert apart.num_effective_ == 2100
        assert np.abs(apart.transform(logits) - once.transform(logits)).max() > 0.1
