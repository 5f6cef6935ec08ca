"""The scalers against brute force, published packages and what must hold of any of them."""

import warnings

import numpy as np
import pytest
import torch
from references import expected_calibration_error

from mmcalib.posthoc import SCALERS, MatrixScaler, TemperatureScaler, VectorScaler
from mmcalib.posthoc import scalers as module


def draw(n=400, num_classes=4, temperature=2.5, seed=0):
    """Logits that are `temperature` times too large for their labels."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(n, num_classes)) * 2
    if num_classes == 1:
        labels = rng.random(n) < 1 / (1 + np.exp(-logits[:, 0]))
    else:
        probs = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
        labels = np.array([rng.choice(num_classes, p=p) for p in probs])
    return logits * temperature, labels.astype(np.int64)


def nll(logits, labels):
    """By the definition, in plain numpy."""
    if logits.shape[1] == 1:
        logits = np.concatenate([np.zeros_like(logits), logits], axis=1)
    logits = logits - logits.max(axis=1, keepdims=True)
    log_probs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    return -log_probs[np.arange(len(labels)), labels].mean()


class TestTemperature:
    @pytest.mark.parametrize('num_classes', [1, 2, 5])
    @pytest.mark.parametrize('temperature', [0.05, 0.7, 2.5, 30.0])
    def test_brute_force(self, num_classes, temperature):
        logits, labels = draw(num_classes=num_classes, temperature=temperature)
        found = TemperatureScaler().fit(logits, labels).temperature_
        near = found * np.linspace(0.9, 1.1, 2001)
        values = [nll(logits / t, labels) for t in near]
        assert near[int(np.argmin(values))] == pytest.approx(found, rel=2e-4)
        wide = np.geomspace(0.01, 100, 400)
        best = nll(logits / found, labels)
        assert best <= min(nll(logits / t, labels) for t in wide) + 1e-12
        assert found == pytest.approx(temperature, rel=0.3)

    def test_netcal(self):
        scaling = pytest.importorskip('netcal.scaling')
        logits, labels = draw(2000)
        ours = TemperatureScaler().fit(logits, labels)
        theirs = scaling.TemperatureScaling()  # takes probabilities
        probs = torch.softmax(torch.as_tensor(logits), 1).numpy()
        theirs.fit(probs, labels)
        expected = 1 / float(np.ravel(theirs.weights)[0])
        assert ours.temperature_ == pytest.approx(expected, rel=1e-2)
        np.testing.assert_allclose(ours.predict_proba(logits), theirs.transform(probs), atol=5e-3)

    def test_grid(self):
        logits, labels = draw(300)

        def ece(t):
            probs = torch.softmax(torch.as_tensor(logits) / t, 1)
            conf, predicted = probs.max(1)
            return expected_calibration_error(conf.tolist(), (predicted.numpy() == labels).tolist())

        errors = [ece(k / 10) for k in range(1, 101)]
        scaler = TemperatureScaler(criterion='ece-grid').fit(logits, labels)
        assert scaler.temperature_ == (int(np.argmin(errors)) + 1) / 10

    def test_standard_error(self):
        found = [TemperatureScaler().fit(*draw(1000, seed=s)).temperature_ for s in range(60)]
        logits, labels = draw(1000)
        scaler = TemperatureScaler().fit(logits, labels)
        single = scaler.standard_error(logits, labels)
        assert single == pytest.approx(np.std(found), rel=0.35)
        # Rows that come in copies are no more information than one of them.
        copies = [np.repeat(a, 4, axis=0) for a in (logits, labels)]
        groups = np.repeat(np.arange(1000), 4)
        assert scaler.standard_error(*copies, groups) == pytest.approx(single)
        assert scaler.standard_error(*copies) == pytest.approx(single / 2)

    def test_separable_logits_end_at_the_bound(self):
        labels = np.arange(40) % 4
        logits = 3 * np.eye(4)[labels]
        with pytest.warns(UserWarning, match=r'bound of 0\.01'):
            scaler = TemperatureScaler().fit(logits, labels)
        assert scaler.temperature_ == pytest.approx(0.01) and scaler.at_bound_
        assert np.isnan(scaler.standard_error(logits, labels))
        # Also going on from there.
        with pytest.warns(UserWarning, match='bound'):
            scaler.refine(lambda: [(torch.as_tensor(logits), torch.as_tensor(labels))])
        assert scaler.temperature_ == pytest.approx(0.01)

    def test_logits_that_mislead_end_at_the_other(self):
        labels = np.arange(40) % 4
        with pytest.warns(UserWarning, match='bound of 100'):
            scaler = TemperatureScaler().fit(-3 * np.eye(4)[labels], labels)
        assert scaler.temperature_ == pytest.approx(100)

    def test_labels_of_one_class(self):
        logits, _ = draw()
        labels = np.zeros(len(logits), dtype=int)
        assert 0.01 <= TemperatureScaler().fit(logits, labels).temperature_ <= 100

    def test_equal_logits(self):
        with pytest.raises(ValueError, match='all equal'):
            TemperatureScaler().fit(np.ones((5, 3)), np.arange(5) % 3)

    def test_criterion(self):
        with pytest.raises(ValueError, match="'ece'"):
            TemperatureScaler(criterion='ece')


@pytest.mark.parametrize('name', SCALERS)
@pytest.mark.parametrize('num_classes', [1, 4])
class TestAll:
    def test_it_improves_the_likelihood(self, name, num_classes):
        logits, labels = draw(num_classes=num_classes)
        scaler = SCALERS[name]().fit(logits, labels)
        assert scaler.num_predictions_ == len(labels)
        assert nll(scaler.transform(logits), labels) < nll(logits, labels) - 0.1
        probs = scaler.predict_proba(logits)
        assert probs.shape == (len(labels), max(num_classes, 2))
        assert nll(np.log(probs), labels) == pytest.approx(nll(scaler.transform(logits), labels))

    def test_kinds(self, name, num_classes):
        logits, labels = draw(num_classes=num_classes)
        scaler = SCALERS[name]().fit(torch.as_tensor(logits), torch.as_tensor(labels))
        expected = scaler.transform(logits)
        assert isinstance(expected, np.ndarray) and expected.dtype == np.float64
        for dtype, result in (
            (torch.float64, torch.float64), (torch.float32, torch.float32),
            (torch.float16, torch.float32), (torch.bfloat16, torch.float32),
        ):  # fmt: skip
            given = torch.as_tensor(logits).to(dtype)
            found = scaler.transform(given)
            assert found.dtype == result
            torch.testing.assert_close(
                found.double(), torch.as_tensor(scaler.transform(given.double().numpy())),
                rtol=1e-5, atol=1e-5,
            )  # fmt: skip
        # Half precision is fitted in float64.
        rounded = torch.as_tensor(logits).half()
        a = SCALERS[name]().fit(rounded, labels).transform(logits)
        b = SCALERS[name]().fit(rounded.double(), labels).transform(logits)
        np.testing.assert_array_equal(a, b)

    def test_parts_are_the_whole(self, name, num_classes, monkeypatch):
        logits, labels = draw(num_classes=num_classes)
        whole = SCALERS[name]().fit(logits, labels).transform(logits)
        monkeypatch.setattr(module, '_CHUNK_VALUES', 7 * num_classes)
        np.testing.assert_allclose(
            SCALERS[name]().fit(logits, labels).transform(logits), whole, rtol=1e-5, atol=1e-5
        )

    def test_refining_from_a_sample_ends_at_the_optimum(self, name, num_classes):
        logits, labels = (torch.as_tensor(a) for a in draw(2000, num_classes=num_classes))
        reads = []

        def passes():
            reads.append(1)
            yield from zip(logits.split(300), labels.split(300), strict=True)

        scaler = SCALERS[name]().fit(logits[:200], labels[:200]).refine(passes, max_passes=30)
        expected = SCALERS[name]().fit(logits, labels)
        if name == 'temperature':  # the others keep the sample's T, from which they are penalised
            assert scaler.temperature_ == pytest.approx(expected.temperature_, rel=1e-5)
            assert len(reads) <= 6
        found, best = (nll(s.transform(logits.numpy()), labels) for s in (scaler, expected))
        assert found == pytest.approx(best, abs=2e-3)
        assert len(reads) <= 40

    def test_folding_a_layer_scales_its_outputs(self, name, num_classes):
        logits, labels = draw(num_classes=num_classes)
        scaler = SCALERS[name]().fit(logits, labels)
        torch.manual_seed(0)
        layer = torch.nn.Conv2d(3, num_classes, 3, padding=1).double()
        inputs = torch.randn(2, 3, 5, 6, dtype=torch.float64)
        before = layer(inputs)
        weight, bias = scaler.fold(layer.weight, layer.bias)
        after = torch.nn.functional.conv2d(inputs, weight, bias, padding=1)
        rows = before.movedim(1, -1).reshape(-1, num_classes)
        expected = scaler.transform(rows).reshape(2, 5, 6, num_classes).movedim(-1, 1)
        torch.testing.assert_close(after, expected)
        if name == 'temperature':
            assert scaler.fold(layer.weight, None)[1] is None
        else:
            with pytest.raises(ValueError, match='no bias'):
                scaler.fold(layer.weight, None)

    def test_what_cannot_be_fitted_is_said(self, name, num_classes):
        logits, labels = draw(6, num_classes=num_classes)
        cases = [
            (logits[:0], labels[:0], ValueError, 'nothing to fit'),
            (logits, labels[:5], ValueError, 'shapes?|must be'),
            (logits[:, 0], labels, ValueError, 'must be'),
            (logits, labels + 0.5, TypeError, 'integers'),
            (logits, labels + 9, ValueError, r'outside \[0, '),
            (logits, labels - 9, ValueError, r'outside \[0, '),
        ]
        for wrong in (np.nan, np.inf, -np.inf):
            bad = logits.copy()
            bad[2, 0] = wrong
            cases.append((bad, labels, ValueError, f'1 of {logits.size} logits'))
        for z, y, error, message in cases:
            with pytest.raises(error, match=message):
                SCALERS[name]().fit(z, y)
        with pytest.raises(ValueError, match='not fitted'):
            SCALERS[name]().transform(logits)


@pytest.mark.parametrize('scaler', [VectorScaler, MatrixScaler])
class TestClasswise:
    def test_large_penalties_leave_the_temperature(self, scaler):
        logits, labels = draw()
        names = {'diagonal', 'intercept'} | ({'off_diagonal'} if scaler is MatrixScaler else set())
        stiff = scaler(**dict.fromkeys(names, 1e9)).fit(logits, labels)
        expected = TemperatureScaler().fit(logits, labels).transform(logits)
        np.testing.assert_allclose(stiff.transform(logits), expected, atol=1e-5)

    def test_no_penalty_finds_the_map(self, scaler):
        logits, labels = draw(6000, num_classes=3, temperature=1.0)
        given = (logits - [0.5, -0.5, 0.0]) / [0.5, 2.0, 1.0]
        names = {'diagonal', 'intercept'} | ({'off_diagonal'} if scaler is MatrixScaler else set())
        free = scaler(**dict.fromkeys(names, 0.0)).fit(given, labels)
        # Up to what a softmax does not see.
        found, expected = (z - z.mean(1, keepdims=True) for z in (free.transform(given), logits))
        assert np.abs(found - expected).mean() < 0.15

    def test_a_class_that_the_data_lack(self, scaler):
        logits, labels = draw(num_classes=3)
        logits = np.concatenate([logits, logits[:, :1] - 1], axis=1)
        fitted = scaler().fit(logits, labels)
        assert np.isfinite(fitted.transform(logits)).all()
        assert fitted.shift_.abs().max() < 10

    def test_labels_of_one_class(self, scaler):
        logits, _ = draw()
        with pytest.raises(ValueError, match='all labels are of class 2'):
            scaler().fit(logits, np.full(len(logits), 2))

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


def test_matrix_has_the_derivative_of_nothing_at_its_optimum():
    logits, labels = draw(300, num_classes=3)
    scaler = MatrixScaler().fit(logits, labels)

    def objective(matrix, shift):
        t = scaler._temperature
        change = t * matrix - np.eye(3)
        own = np.diag(change)
        off = (change**2).sum() - (own**2).sum()
        total = nll(logits @ matrix.T + shift, labels) * len(labels)
        return total + 10 * (own**2).sum() + 200 * off + 10 * (shift**2).sum()

    matrix, shift = scaler.matrix_.numpy(), scaler.shift_.numpy()
    best = objective(matrix, shift)
    rng = np.random.default_rng(0)
    for _ in range(20):
        a, b = rng.normal(size=(3, 3)) * 1e-3, rng.normal(size=3) * 1e-3
        assert objective(matrix + a, shift + b) >= best - 1e-9
