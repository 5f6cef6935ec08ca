"""Scalings of two classes, against their definitions in plain loops."""

import numpy as np
import pytest
from overconfident import draw

from mmcalib.posthoc import BetaScaler, PlattScaler


def platt_objective(a, b, z, y):
    right, wrong = (y == 1).sum(), (y == 0).sum()
    targets = np.where(y == 1, (right + 1) / (right + 2), 1 / (wrong + 2))
    odds = a * z + b
    return (np.logaddexp(0, odds) - targets * odds).mean()


def test_platt_is_at_its_minimum():
    logits, labels = draw(100, num_classes=1)
    scaler = PlattScaler().fit(logits, labels)
    best = platt_objective(scaler.scale_, scaler.shift_, logits[:, 0], labels)
    for a, b in np.random.default_rng(0).normal(size=(50, 2)) * 1e-3:
        assert platt_objective(scaler.scale_ + a, scaler.shift_ + b, logits[:, 0], labels) > best


def test_platt_of_separable_logits_says_no_more_than_the_prior():
    labels = np.arange(40) % 2
    with pytest.warns(UserWarning, match='bound'):
        scaler = PlattScaler().fit(3 * (2.0 * labels[:, None] - 1), labels)
    np.testing.assert_allclose(scaler.predict_proba([[3.0], [-3.0]])[:, 1], [21 / 22, 1 / 22], 1e-4)


def beta_objective(a, b, c, z, y):
    odds = -a * np.logaddexp(0, -z) + b * np.logaddexp(0, z) + c
    return (np.logaddexp(0, odds) - y * odds).mean()


@pytest.mark.parametrize('flip', [False, True])
def test_beta_is_at_its_minimum_among_rising_curves(flip):
    logits, labels = draw(200, num_classes=1)
    if flip:  # above 0 the labels say the opposite
        labels = np.where(logits[:, 0] > 0, 1 - labels, labels)
    scaler = BetaScaler().fit(logits, labels)
    own = np.array([scaler.rise_, scaler.fall_, scaler.shift_])
    assert (min(own[:2]) == 0) == flip
    best = beta_objective(*own, logits[:, 0], labels)
    for change in np.random.default_rng(0).normal(size=(50, 3)) * 1e-3:
        near = own + change
        near[:2] = near[:2].clip(min=0)
        assert beta_objective(*near, logits[:, 0], labels) >= best - 1e-12


def test_beta_is_that_of_the_package():
    betacal = pytest.importorskip('betacal')
    logits, labels = draw(500, num_classes=1)
    probs = 1 / (1 + np.exp(-logits))
    expected = betacal.BetaCalibration('abm').fit(probs, labels).predict(probs)
    found = BetaScaler().fit(logits, labels).predict_proba(logits)[:, 1]
    np.testing.assert_allclose(found, expected, atol=1e-3)
