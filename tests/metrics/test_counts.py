"""Outcomes and counts: logits of any size, saturated types of float, fine bins, ties."""

import math

import numpy as np
import pytest
import references
import torch
from samples import as_segmented

from mmcalib.metrics import counts, measure, ranking
from mmcalib.metrics.counts import count_outcomes, sum_counts
from mmcalib.metrics.outcomes import compute_outcomes
from mmcalib.openmmlab.metrics import CalibrationMetric
from mmcalib.openmmlab.samples import read_sample
from mmcalib.predictions.from_arrays import read_arrays


def sample_outcomes(sample):
    predictions = read_sample(sample, 'image.jpg')
    required = ('brier', 'conf_code', 'class_bins', 'nll_curve', 'ignored_conf')
    return compute_outcomes(predictions, required=required)


def constant_map_outcomes(logits, label):
    """Return the outcomes of a map with the same logits at each pixel."""
    logits = torch.tensor(logits)[:, None, None].expand(-1, *label.shape)
    return sample_outcomes(as_segmented(logits, logits.argmax(0), label))


def confidence_counts(conf, correct):
    predictions = read_arrays(conf=conf, correct=correct)
    return sum_counts([count_outcomes(compute_outcomes(predictions))])


def test_outcomes_huge_logits_are_exact():
    label = torch.tensor([[0, 0], [2, 1]])
    outcomes = constant_map_outcomes([1e4, -1e4, 0.0], label)
    assert (outcomes.conf == 1).all()
    assert outcomes.nll.sum() == 3e4
    assert outcomes.brier.sum() == 4
    outcomes = constant_map_outcomes([3e38, -3e38, 0.0], label)
    assert outcomes.nll.sum().item() == pytest.approx(9e38)
    assert outcomes.brier.sum() == 4
    outcomes = constant_map_outcomes([1e30] * 3, label)
    assert outcomes.conf.tolist() == pytest.approx([1 / 3] * 4)


def test_outcomes_constant_added_to_logits_same():
    label = torch.tensor([[0, 0], [2, 1]])
    expected = constant_map_outcomes([1.0, 0.0, 0.0], label)
    assert expected.conf.tolist() == pytest.approx([math.e / (math.e + 2)] * 4)
    for offset in (1e5, -1e5):
        actual = constant_map_outcomes([1.0 + offset, offset, offset], label)
        torch.testing.assert_close(actual._asdict(), expected._asdict(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize('threshold', [0.3, 0.5])
def test_outcomes_binary_head_confidence_is_of_predicted_class(threshold):
    prob = torch.tensor([[[0.1, 0.4, 0.9, 0.4]]])
    label = torch.tensor([[0, 1, 255, 255]])
    outcomes = sample_outcomes(as_segmented(prob, (prob[0] > threshold).float(), label))
    conf = [0.9, 0.4 if threshold == 0.3 else 0.6]
    torch.testing.assert_close(outcomes.conf, torch.tensor(conf))
    torch.testing.assert_close(outcomes.ignored_conf, torch.tensor(conf))
    assert outcomes.correct.tolist() == [True, threshold == 0.3]
    assert outcomes.nll.sum().item() == pytest.approx(-math.log(0.9) - math.log(0.4))
    assert outcomes.brier.sum().item() == pytest.approx(2 * 0.1**2 + 2 * 0.6**2)
    assert outcomes.class_bins[:, :, 13].tolist() == [[1, 0], [1, 0], [pytest.approx(0.9), 0]]


@pytest.mark.parametrize(
    ('dtype', 'doublings_near_1', 'doublings_near_0'),
    [(torch.float32, 25, 126), (torch.float16, 12, 25)],
)
@pytest.mark.parametrize('logit', [20.0, -20.0, 90.0, -90.0])
def test_nll_saturated_binary_prediction_is_limited_by_type_of_float(
    logit, dtype, doublings_near_1, doublings_near_0
):
    prob = torch.tensor([[logit]]).sigmoid().to(dtype)
    wrong_label = torch.tensor([[int(logit < 0)]])
    actual = sample_outcomes(as_segmented(prob[None], prob > 0.5, wrong_label)).nll.item()
    doublings = doublings_near_0 if logit < 0 else doublings_near_1
    assert actual == pytest.approx(min(abs(logit), math.log(2) * doublings), rel=1e-3)


@pytest.mark.parametrize(('dtype', 'doublings'), [(torch.float32, 126), (torch.float16, 25)])
def test_nll_saturated_softmax_is_limited_by_type_of_float(dtype, doublings):
    scores = torch.zeros(300, dtype=dtype)
    scores[0] = 1
    metric = CalibrationMetric('NLL')
    # Label 255 is one of the 300 classes of a classifier.
    metric.process(None, [{'pred_score': scores, 'gt_label': torch.tensor([255])}])
    assert metric.evaluate(1)['calibration/NLL'] == pytest.approx(doublings * math.log(2))
    assert measure(scores[None], [255], 'NLL') == pytest.approx(doublings * math.log(2))


def test_fine_bins_many_predictions_are_few_and_narrow():
    torch.manual_seed(0)
    conf = 1 - torch.rand(60_000) ** 4
    correct = torch.rand(60_000) < conf
    whole = confidence_counts(conf, correct)
    table = whole.condensed_table()
    assert table.shape[1] < 6146 < whole.fine_bins.shape[1]
    torch.testing.assert_close(table.sum(1), whole.table.sum(1))
    assert ((table[2] / table[0]).diff() > 0).all()
    halves = [confidence_counts(conf[i::2], correct[i::2]).round() for i in range(2)]
    rounded = sum_counts(halves).fine_bins
    torch.testing.assert_close(whole.round().fine_bins, rounded)


CONFIDENCES = {
    'below 0.4 %': (5e-5, 4e-3),
    'below 2 %': (1e-3, 2e-2),
    'around 30 %': (0.30, 0.31),
    'around 90 %': (0.90, 0.91),
    'around 99.9 %': (0.999, 0.9991),
}
RANKED = ['AUROC', 'AURC', 'AUGRC', 'FPR95', 'risk@coverage_0.5', 'coverage@risk_0.3', 'AECE']


@pytest.mark.parametrize('name', CONFIDENCES)
@pytest.mark.parametrize('shape', [(400_000,), (100, 80, 50)], ids=['rows', 'maps'])
def test_metrics_of_shared_fine_bins_equal_exact_ones(name, shape, monkeypatch):
    """Check confidences that lie near each other, of which the larger are more often correct."""
    generator = np.random.default_rng(0)
    quantile = generator.random(shape)
    lowest, highest = np.log(CONFIDENCES[name])
    conf = np.exp(lowest + (highest - lowest) * quantile)
    correct = generator.random(shape) < quantile
    expected = measure(metrics=RANKED, conf=conf, correct=correct)
    monkeypatch.setattr(counts, 'EXACT_LIMIT', 1000)
    actual = measure(metrics=RANKED, conf=conf, correct=correct)
    assert actual != expected
    assert actual == pytest.approx(expected, abs=0.03)


def test_counts_forty_million_equal_confidences_are_one_fine_bin():
    conf = np.full(2_000_000, 0.95)
    correct = np.arange(2_000_000) % 5 != 0  # 80 % are correct.
    total = sum_counts([confidence_counts(conf, correct)] * 20)
    assert total.count == 40_000_000
    assert total.bins[:, -1].tolist() == pytest.approx([40e6, 32e6, 38e6])
    assert total.fine_bins.shape == (4, 1)


@pytest.mark.parametrize(
    ('conf', 'correct'),
    [
        ([0.9, 0.9, 0.8, 0.3, 1.0], [True, False, True, True, False]),
        ([1.0, 1.0, 0.0], [False, False, True]),
    ],
    ids=['gaps of both signs', 'gaps at the ends'],
)
def test_smooth_ece_few_predictions_equals_loop(conf, correct):
    actual = measure(metrics='smECE', conf=np.array(conf), correct=np.array(correct))
    assert actual == pytest.approx(references.smooth_calibration_error(conf, correct), abs=0.02)


RANKING_ORACLES = {
    'AUROC': references.failure_auroc,
    'FPR95': references.failure_fpr,
    'AURC': lambda *rows: 100 * references.risk_curve(*rows).mean(),
    'AUGRC': lambda *rows: 100 * references.expected_errors(*rows).mean() / 8,
    'risk@coverage_0.5': lambda *rows: 100 * references.risk_curve(*rows)[3],
    **{
        f'coverage@risk_{level}': lambda *rows, level=level: references.coverage_at_risk(
            references.risk_curve(*rows), level
        )
        for level in (0.1, 0.3, 0.5)
    },
}


@pytest.mark.parametrize('seed', range(6))
def test_ranking_ties_equals_mean_over_all_orders(seed):
    generator = np.random.default_rng(seed)
    conf = generator.integers(1, 5, 8) / 4
    correct = generator.permutation(8) > 2
    for name, oracle in RANKING_ORACLES.items():
        actual = measure(metrics=name, conf=conf, correct=correct)
        assert actual == pytest.approx(oracle(conf, correct)), name
    table = confidence_counts(conf, correct).table
    expected = references.average_precision(conf, correct)
    assert ranking.aupr(table).item() == pytest.approx(expected)


def test_level_exactly_at_a_prediction_includes_it():
    rows = dict(conf=np.array([0.9, 0.8, 0.7, 0.6]), correct=np.array([True, True, True, False]))
    assert measure(metrics='coverage@risk_0.25', **rows) == 100
    assert measure(metrics='coverage@risk_0.24', **rows) == 75
    assert measure(metrics='risk@coverage_0.75', **rows) == 0
    assert measure(metrics='risk@coverage_0.76', **rows) == 25


def test_temperature_all_correct_or_all_wrong_is_at_its_bound():
    probs = np.array([[0.8, 0.2], [0.7, 0.3]])
    values = measure(probs, [0, 0], ['temperature', 'refinement_NLL'])
    assert values['temperature'] == pytest.approx(1 / 16)
    assert values['refinement_NLL'] == pytest.approx(0, abs=1e-4)
    assert measure(probs, [1, 1], 'temperature') == pytest.approx(16)
