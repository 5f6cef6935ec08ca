"""Temperatures of predicted classes against those that the logits were drawn with."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from mmcalib.posthoc import PredictedClassTemperatureScaler, TemperatureScaler

TRUTH = torch.tensor([1.0, 2.0, 4.0, 2.0], dtype=torch.float64)


def draw(n=20_000, temperatures=TRUTH, seed=0):
    """Logits that are as many times too large as the predicted class's temperature says."""
    generator = torch.Generator().manual_seed(seed)
    shape = (n, len(temperatures))
    logits = 2 * torch.randn(shape, generator=generator, dtype=torch.float64)
    labels = logits.softmax(dim=1).multinomial(1, generator=generator)[:, 0]
    return logits * temperatures[logits.argmax(dim=1)][:, None], labels


def nll(scaler, logits, labels):
    return cross_entropy(scaler.transform(logits), labels).item()


class TestTemperatures:
    def test_the_true_ones_are_found(self):
        logits, labels = draw()
        scaler = PredictedClassTemperatureScaler().fit(logits, labels)
        torch.testing.assert_close(scaler.temperature_, TRUTH, rtol=0.06, atol=0)
        held_out = draw(seed=1)
        single = TemperatureScaler().fit(logits, labels)
        assert nll(scaler, *held_out) < nll(single, *held_out) - 0.02

    def test_where_one_is_enough_they_do_no_worse(self):
        same = torch.full((4,), 2.0, dtype=torch.float64)
        logits, labels = draw(2000, same)
        held_out = draw(temperatures=same, seed=1)
        single = nll(TemperatureScaler().fit(logits, labels), *held_out)
        scaler = PredictedClassTemperatureScaler().fit(logits, labels)
        assert nll(scaler, *held_out) < 1.001 * single

    def test_permuted_classes(self):
        logits, labels = draw(500)
        order = torch.tensor([2, 0, 3, 1])
        plain = PredictedClassTemperatureScaler().fit(logits, labels)
        other = PredictedClassTemperatureScaler().fit(logits[:, order], order.argsort()[labels])
        torch.testing.assert_close(other.temperature_, plain.temperature_[order])

    @pytest.mark.parametrize('penalty', [0.0, 10.0])
    def test_a_class_that_is_never_predicted_has_the_single_temperature(self, penalty):
        logits, labels = draw(500)
        logits[:, 3] = logits.min() - 1
        scaler = PredictedClassTemperatureScaler(penalty=penalty).fit(logits, labels)
        single = TemperatureScaler().fit(logits, labels).temperature_
        assert scaler.temperature_[3].item() == pytest.approx(single)
        assert (scaler.temperature_[:3] / single - 1).abs().min() > 0.02

    def test_two_classes_are_those_of_a_sigmoid(self):
        logits, labels = draw(500, TRUTH[[0, 2]])
        pair = PredictedClassTemperatureScaler().fit(logits, labels)
        one = logits[:, 1:] - logits[:, :1]
        single = PredictedClassTemperatureScaler().fit(one, labels)
        torch.testing.assert_close(single.temperature_, pair.temperature_)
        torch.testing.assert_close(single.predict_proba(one), pair.predict_proba(logits))


class TestPenalty:
    def test_it_is_the_minimum_by_a_grid(self):
        logits, labels = draw(300)
        scaler = PredictedClassTemperatureScaler(penalty=3.0).fit(logits, labels)
        single = TemperatureScaler().fit(logits, labels).temperature_
        grid = torch.linspace(0.2, 12, 100_000, dtype=torch.float64)
        rows = logits.argmax(dim=1) == 2
        gaps = logits[rows] - logits[rows].amax(dim=1, keepdim=True)
        total = 3 * (single / grid - 1) ** 2
        for z, y in zip(gaps, labels[rows], strict=True):
            scaled = z / grid[:, None]
            total += scaled.logsumexp(dim=1) - scaled[:, y]
        expected = grid[total.argmin()].item()
        assert scaler.temperature_[2].item() == pytest.approx(expected, abs=3e-4)

    def test_copies_of_a_prediction_are_one(self):
        """Which its pixels may be: a hundred copies in a group change nothing."""
        logits, labels = draw(200)
        rows = torch.arange(200).repeat_interleave(100)
        alone = PredictedClassTemperatureScaler().fit(logits, labels, torch.arange(200))
        copied = PredictedClassTemperatureScaler().fit(logits[rows], labels[rows], rows)
        taken_for_new = PredictedClassTemperatureScaler().fit(logits[rows], labels[rows])
        torch.testing.assert_close(copied.temperature_, alone.temperature_, rtol=1e-6, atol=0)
        assert (taken_for_new.temperature_ / alone.temperature_ - 1).abs().max() > 0.1

    def test_a_strong_one_leaves_the_single_temperature(self):
        logits, labels = draw(500)
        scaler = PredictedClassTemperatureScaler(penalty=1e9).fit(logits, labels)
        single = TemperatureScaler().fit(logits, labels).temperature_
        torch.testing.assert_close(scaler.temperature_, torch.full((4,), single).double())

    def test_a_wrong_one_is_refused(self):
        with pytest.raises(ValueError, match='penalty'):
            PredictedClassTemperatureScaler(penalty=-1.0)
