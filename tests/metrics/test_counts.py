"""What is counted of a sample: logits of any size, types that saturate, cells, ties."""

import math

import numpy as np
import pytest
import references
import torch
from samples import as_segmented

from mmcalib.metrics import measure, ranking
from mmcalib.metrics.counts import sum_counts
from mmcalib.metrics.measure import count_predictions
from mmcalib.metrics.outcomes import compute_outcomes
from mmcalib.openmmlab.metrics import CalibrationMetric
from mmcalib.openmmlab.samples import read_samples
from mmcalib.predictions.from_arrays import read_arrays


def read(sample):
    (predictions,) = read_samples([sample], ['image.jpg'])
    required = ('brier', 'one_minus_conf', 'class_bins', 'nll_curve', 'ignored_conf')
    return compute_outcomes(predictions, required=required)


def of(logits, label):
    logits = torch.tensor(logits)[:, None, None].expand(-1, *label.shape)
    return read(as_segmented(logits, logits.argmax(0), label))


def test_huge_logits_and_constants():
    label = torch.tensor([[0, 0], [2, 1]])
    found = of([1e4, -1e4, 0.0], label)
    assert (found.conf == 1).all() and found.nll.sum() == 3e4 and found.brier.sum() == 4
    found = of([3e38, -3e38, 0.0], label)
    assert found.nll.sum().item() == pytest.approx(9e38) and found.brier.sum() == 4
    plain = of([1.0, 0.0, 0.0], label)
    assert plain.conf.tolist() == pytest.approx([math.e / (math.e + 2)] * 4)
    for offset in (1e5, -1e5):
        moved = of([1.0 + offset, offset, offset], label)
        torch.testing.assert_close(plain._asdict(), moved._asdict(), rtol=1e-5, atol=1e-5)
    assert of([1e30] * 3, label).conf.tolist() == pytest.approx([1 / 3] * 4)


@pytest.mark.parametrize('threshold', [0.3, 0.5])
def test_a_binary_head_is_confident_of_the_class_it_predicts(threshold):
    prob = torch.tensor([[[0.1, 0.4, 0.9, 0.4]]])
    label = torch.tensor([[0, 1, 255, 255]])
    found = read(as_segmented(prob, (prob[0] > threshold).float(), label))
    conf = [0.9, 0.4 if threshold == 0.3 else 0.6]
    torch.testing.assert_close(found.conf, torch.tensor(conf))
    torch.testing.assert_close(found.ignored_conf, torch.tensor(conf))
    assert found.correct.tolist() == [True, threshold == 0.3]
    assert found.nll.sum().item() == pytest.approx(-math.log(0.9) - math.log(0.4))
    assert found.brier.sum().item() == pytest.approx(2 * 0.1**2 + 2 * 0.6**2)
    assert found.class_bins[:, :, 13].tolist() == [[1, 0], [1, 0], [pytest.approx(0.9), 0]]


@pytest.mark.parametrize('logit', [20.0, -20.0, 90.0, -90.0])
@pytest.mark.parametrize('dtype', [torch.float32, torch.float16])
def test_what_saturated_types_can_tell(logit, dtype):
    prob = torch.tensor([[logit]]).sigmoid().to(dtype)
    label = torch.tensor([[int(logit < 0)]])  # wrong
    found = read(as_segmented(prob[None], prob > 0.5, label)).nll.item()
    least = {torch.float32: (25, 126), torch.float16: (12, 25)}[dtype]  # near 1, near 0
    assert found == pytest.approx(min(abs(logit), math.log(2) * least[logit < 0]), rel=1e-3)
    scores = torch.zeros(300, dtype=dtype)
    scores[0] = 1
    metric = CalibrationMetric('NLL')
    metric.process(None, [{'pred_score': scores, 'gt_label': torch.tensor([255])}])  # a class
    assert metric.evaluate(1)['calibration/NLL'] == pytest.approx(least[1] * math.log(2))
    assert measure(scores[None], [255], 'NLL') == pytest.approx(least[1] * math.log(2))


def test_cells_of_many_are_few_and_narrow():
    generator = torch.Generator().manual_seed(0)
    conf = 1 - torch.rand(60_000, generator=generator) ** 4
    correct = torch.rand(60_000, generator=generator) < conf
    whole = count_predictions(read_arrays(conf=conf, correct=correct))
    table = whole.condensed_table()
    assert table.shape[1] < 6146 < whole.fine_bins.shape[1]
    torch.testing.assert_close(table.sum(1), whole.table.sum(1))
    assert ((table[2] / table[0]).diff() > 0).all()
    halves = [
        count_predictions(read_arrays(conf=conf[i::2], correct=correct[i::2])).round()
        for i in range(2)
    ]
    rounded = sum_counts(halves).fine_bins
    torch.testing.assert_close(whole.round().fine_bins.double(), rounded, rtol=1e-6, atol=1e-6)
    width = rounded[3] / rounded[1] - rounded[0]
    assert (width >= -1e-9).all() and (width <= rounded[0] / 128 + 1e-9).all()


def test_forty_million_in_one_cell():
    conf, correct = np.full(2_000_000, 0.95), np.arange(2_000_000) % 5 != 0  # 80 % of them
    found = sum_counts([count_predictions(read_arrays(conf=conf, correct=correct))] * 20)
    assert found.count == 40_000_000
    assert found.bins[:, -1].tolist() == pytest.approx([40e6, 32e6, 38e6])
    assert found.fine_bins.shape == (4, 1)


def test_smooth_ece_is_its_definition():
    """Gaps of both signs, whose size depends on the width, and some at the ends."""
    for conf, correct in (
        ([0.9, 0.9, 0.8, 0.3, 1.0], [True, False, True, True, False]),
        ([1.0, 1.0, 0.0], [False, False, True]),
    ):
        found = measure(metrics='smECE', conf=np.array(conf), correct=np.array(correct))
        assert found == pytest.approx(references.smooth_calibration_error(conf, correct), abs=0.02)


OF_ORDER = {
    'AUROC': references.failure_auroc,
    'FPR95': references.failure_fpr,
    'AURC': lambda *rows: 100 * references.risk_curve(*rows).mean(),
    'AUGRC': lambda *rows: 100 * references.errors_among_the_first(*rows).mean() / 8,
    'risk@coverage_0.5': lambda *rows: 100 * references.risk_curve(*rows)[3],
    **{
        f'coverage@risk_{level}': lambda *rows, level=level: references.coverage_at_risk(
            references.risk_curve(*rows), level
        )
        for level in (0.1, 0.3, 0.5)
    },
}


@pytest.mark.parametrize('seed', range(6))
def test_the_mean_over_all_orders_of_ties(seed):
    generator = np.random.default_rng(seed)
    conf, correct = generator.integers(1, 5, 8) / 4, generator.permutation(8) > 2
    for name, oracle in OF_ORDER.items():
        found = measure(metrics=name, conf=conf, correct=correct)
        assert found == pytest.approx(oracle(conf, correct)), name
    found = ranking.aupr(count_predictions(read_arrays(conf=conf, correct=correct)).table).item()
    assert found == pytest.approx(references.average_precision(conf, correct))


def test_levels_on_a_prediction_take_it_in():
    rows = dict(conf=np.array([0.9, 0.8, 0.7, 0.6]), correct=np.array([True, True, True, False]))
    assert measure(metrics='coverage@risk_0.25', **rows) == 100
    assert measure(metrics='coverage@risk_0.24', **rows) == 75
    assert measure(metrics='risk@coverage_0.75', **rows) == 0
    assert measure(metrics='risk@coverage_0.76', **rows) == 25


def test_all_right_is_a_temperature_at_its_bound_and_all_wrong_at_the_other():
    probs = np.array([[0.8, 0.2], [0.7, 0.3]])
    right = measure(probs, [0, 0], ['temperature', 'refinement_NLL'])
    assert right['temperature'] == pytest.approx(1 / 16)
    assert right['refinement_NLL'] == pytest.approx(0, abs=1e-4)
    assert measure(probs, [1, 1], 'temperature') == pytest.approx(16)
