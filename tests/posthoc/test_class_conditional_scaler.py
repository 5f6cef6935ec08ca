"""The map of each predicted class against maps that the labels were drawn with."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from mmcalib.posthoc import (
    ClassConditionalScaler,
    MatrixScaler,
    PredictedClassTemperatureScaler,
    TemperatureScaler,
)

TRUTH = ClassConditionalScaler.from_parameters(
    {
        'matrix': [
            [[0, 0, 0], [0, 0.5, 0.1], [0, 0, 0.7]],
            [[0.4, 0, 0], [0, 0, 0], [0.2, 0, 0.4]],
            [[0.6, 0.1, 0], [0, 0.3, 0], [0, 0, 0]],
        ],
        'shift': [[0, 0, 1.0], [0.5, 0, 0], [0, 0, 0]],
    }
)
SINGLE = ClassConditionalScaler.from_parameters(
    {
        'matrix': torch.diag_embed((1 - torch.eye(3)) / 2),
        'shift': torch.zeros(3, 3),
    }
)


def draw(n=20_000, truth=TRUTH, seed=0):
    """Logits that `truth` calibrates."""
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(n, 3, generator=generator, dtype=torch.float64)
    return logits, truth.predict_proba(logits).multinomial(1, generator=generator)[:, 0]


def nll(scaler, logits, labels):
    return cross_entropy(scaler.transform(logits), labels).item()


class TestMaps:
    def test_the_map_by_a_loop(self):
        logits, _ = draw(30)
        scaled = TRUTH.transform(logits)
        for z, found in zip(logits, scaled, strict=True):
            c = z.argmax().item()
            for j in range(3):
                expected = 0.0
                if j != c:
                    a, b = TRUTH.matrix_[c], TRUTH.shift_[c]
                    expected = -sum(a[j, k] * (z[c] - z[k]) for k in range(3) if k != c) - b[j]
                assert found[j].item() == pytest.approx(float(expected))

    def test_the_true_ones_are_found(self):
        scaler = ClassConditionalScaler(off_diagonal=1.0, intercept=1.0).fit(*draw(60_000))
        torch.testing.assert_close(scaler.matrix_, TRUTH.matrix_, rtol=0, atol=0.06)
        torch.testing.assert_close(scaler.shift_, TRUTH.shift_, rtol=0, atol=0.12)

    def test_held_out_it_beats_what_it_contains(self):
        """Not a matrix: this map is of several kinds, and 3 classes need but 9 of its entries."""
        train, held_out = draw(), draw(seed=1)
        best = nll(ClassConditionalScaler().fit(*train), *held_out)
        for other in (TemperatureScaler(), PredictedClassTemperatureScaler(), MatrixScaler()):
            assert best < nll(other.fit(*train), *held_out) - 0.003
        assert best < nll(TRUTH, *held_out) + 0.003

    def test_where_one_temperature_is_enough_it_does_no_worse(self):
        train, held_out = draw(10_000, SINGLE), draw(truth=SINGLE, seed=1)
        single = nll(TemperatureScaler().fit(*train), *held_out)
        assert nll(ClassConditionalScaler().fit(*train), *held_out) < 1.001 * single

    def test_permuted_classes(self):
        logits, labels = draw(1000)
        order = torch.tensor([2, 0, 1])
        plain = ClassConditionalScaler().fit(logits, labels)
        other = ClassConditionalScaler().fit(logits[:, order], order.argsort()[labels])
        torch.testing.assert_close(
            other.predict_proba(logits[:, order]), plain.predict_proba(logits)[:, order],
            rtol=0, atol=1e-4,
        )  # fmt: skip

    def test_two_classes_are_those_of_a_sigmoid(self):
        logits, labels = draw(1000)
        logits, labels = logits[:, :2], labels.clamp(max=1)
        pair = ClassConditionalScaler().fit(logits, labels)
        one = logits[:, 1:] - logits[:, :1]
        single = ClassConditionalScaler().fit(one, labels)
        assert single.matrix_.shape == (2, 2, 2)
        torch.testing.assert_close(
            single.predict_proba(one), pair.predict_proba(logits), rtol=0, atol=1e-5
        )


class TestPenalty:
    def test_a_class_that_is_never_predicted_has_the_single_temperature(self):
        logits, labels = draw(1000)
        logits[:, 2] = logits.min() - 1
        scaler = ClassConditionalScaler().fit(logits, labels)
        beta = 1 / TemperatureScaler().fit(logits, labels).temperature_
        expected = torch.tensor([beta, beta, 0], dtype=torch.float64).diag()
        torch.testing.assert_close(scaler.matrix_[2], expected)
        assert not scaler.shift_[2].any()

    def test_strong_ones_leave_the_temperatures_of_the_classes(self):
        logits, labels = draw(1000)
        scaler = ClassConditionalScaler(diagonal=1e9, off_diagonal=1e9, intercept=1e9)
        classes = PredictedClassTemperatureScaler().fit(logits, labels)
        torch.testing.assert_close(
            scaler.fit(logits, labels).predict_proba(logits), classes.predict_proba(logits),
            rtol=0, atol=1e-5,
        )  # fmt: skip

    def test_copies_of_a_prediction_are_one(self):
        logits, labels = draw(300)
        rows = torch.arange(300).repeat_interleave(50)
        alone = ClassConditionalScaler().fit(logits, labels, torch.arange(300))
        copied = ClassConditionalScaler().fit(logits[rows], labels[rows], rows)
        taken_for_new = ClassConditionalScaler().fit(logits[rows], labels[rows])
        torch.testing.assert_close(copied.matrix_, alone.matrix_, rtol=0, atol=1e-4)
        assert (taken_for_new.matrix_ - alone.matrix_).abs().max() > 0.05

    def test_no_step_goes_lower(self):
        """The minimum is that of a convex function: no small allowed change of it is lower."""
        logits, labels = draw(300)
        scaler = ClassConditionalScaler().fit(logits, labels)
        beta = 1 / PredictedClassTemperatureScaler().fit(logits, labels).temperature_

        def objective():
            a = scaler.matrix_ / beta[:, None, None]
            own = a.diagonal(dim1=1, dim2=2)
            off = a.square().sum() - own.square().sum()
            penalty = 10 * (own - (1 - torch.eye(3))).square().sum() + 200 * off
            penalty += 10 * scaler.shift_.square().sum()
            return nll(scaler, logits, labels) * len(labels) + penalty.item()

        least = objective()
        for values in (scaler.matrix_, scaler.shift_):
            for place in (torch.ones_like(values).nonzero()).tolist():
                if place[0] in place[1:]:
                    continue
                before = values[tuple(place)].item()
                for step in (-0.003, 0.003):
                    values[tuple(place)] = max(before + step, 0)
                    assert objective() >= least - 1e-6
                values[tuple(place)] = before

    @pytest.mark.parametrize('name', ['diagonal', 'off_diagonal', 'intercept'])
    def test_a_wrong_one_is_refused(self, name):
        with pytest.raises(ValueError, match=name):
            ClassConditionalScaler(**{name: -1.0})
