"""One temperature, against brute force and a published package."""

import numpy as np
import pytest
import torch
from overconfident import draw, nll
from references import expected_calibration_error

from mmcalib.posthoc import TemperatureScaler


@pytest.mark.parametrize('num_classes', [1, 2, 5])
@pytest.mark.parametrize('temperature', [0.05, 0.7, 2.5, 30.0])
def test_brute_force(num_classes, temperature):
    logits, labels = draw(num_classes=num_classes, temperature=temperature)
    found = TemperatureScaler().fit(logits, labels).temperature_
    near = found * np.linspace(0.98, 1.02, 401)
    values = [nll(logits / t, labels) for t in near]
    assert near[int(np.argmin(values))] == pytest.approx(found, rel=2e-4)
    wide = np.geomspace(0.01, 100, 100)
    best = nll(logits / found, labels)
    assert best <= min(nll(logits / t, labels) for t in wide) + 1e-12
    assert found == pytest.approx(temperature, rel=0.3)


def test_netcal():
    scaling = pytest.importorskip('netcal.scaling')
    logits, labels = draw(2000)
    ours = TemperatureScaler().fit(logits, labels)
    theirs = scaling.TemperatureScaling()  # takes probabilities
    probs = torch.softmax(torch.as_tensor(logits), 1).numpy()
    theirs.fit(probs, labels)
    expected = 1 / float(np.ravel(theirs.weights)[0])
    assert ours.temperature_ == pytest.approx(expected, rel=1e-2)
    np.testing.assert_allclose(ours.predict_proba(logits), theirs.transform(probs), atol=5e-3)


def test_grid():
    logits, labels = draw(300)

    def ece(t):
        probs = torch.softmax(torch.as_tensor(logits) / t, 1)
        conf, predicted = probs.max(1)
        return expected_calibration_error(conf.tolist(), (predicted.numpy() == labels).tolist())

    errors = [ece(k / 10) for k in range(1, 101)]
    scaler = TemperatureScaler(criterion='ece-grid').fit(logits, labels)
    assert scaler.temperature_ == (int(np.argmin(errors)) + 1) / 10
    assert scaler.fit(logits + 1e7, labels).temperature_ == (int(np.argmin(errors)) + 1) / 10


def test_standard_error():
    found = [TemperatureScaler().fit(*draw(1000, seed=s)).temperature_ for s in range(30)]
    logits, labels = draw(1000)
    scaler = TemperatureScaler().fit(logits, labels)
    single = scaler.standard_error(logits, labels)
    assert single == pytest.approx(np.std(found), rel=0.35)
    # Rows that come in copies are no more information than one of them.
    copies = [np.repeat(a, 4, axis=0) for a in (logits, labels)]
    groups = np.repeat(np.arange(1000), 4)
    assert scaler.standard_error(*copies, groups) == pytest.approx(single)
    assert scaler.standard_error(*copies) == pytest.approx(single / 2)
    with pytest.raises(ValueError, match=r'groups must be \(1000,\)'):
        scaler.standard_error(logits, labels, groups)


def test_separable_logits_end_at_the_bound():
    labels = np.arange(40) % 4
    logits = 3 * np.eye(4)[labels]
    with pytest.warns(UserWarning, match=r'bound of 0\.01'):
        scaler = TemperatureScaler().fit(logits, labels)
    assert scaler.temperature_ == pytest.approx(0.01) and scaler.at_bound_
    assert np.isnan(scaler.standard_error(logits, labels))


def test_logits_that_mislead_end_at_the_other():
    labels = np.arange(40) % 4
    with pytest.warns(UserWarning, match='bound of 100'):
        scaler = TemperatureScaler().fit(-3 * np.eye(4)[labels], labels)
    assert scaler.temperature_ == pytest.approx(100)


def test_labels_of_one_class():
    logits, _ = draw()
    labels = np.zeros(len(logits), dtype=int)
    assert 0.01 <= TemperatureScaler().fit(logits, labels).temperature_ <= 100


def test_equal_logits():
    with pytest.raises(ValueError, match='all equal'):
        TemperatureScaler().fit(np.ones((5, 3)), np.arange(5) % 3)


def test_criterion():
    with pytest.raises(ValueError, match="'ece'"):
        TemperatureScaler(criterion='ece')
