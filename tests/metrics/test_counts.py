"""What is read of a sample and counted of it: logits of any size, types, pieces, tables."""

import math
from functools import partial

import numpy as np
import pytest
import references
import torch
from samples import as_segmented, segmented

from mmcalib.metrics import CalibrationMetric, counts, measure, ranking
from mmcalib.metrics.counts import Counts, condensed, of_map, of_probabilities
from mmcalib.metrics.measure import counts_of
from mmcalib.samples.reading import read_pixels

EVERYTHING = ('brier', 'doubt', 'classes', 'curve')


def read(sample, wanted=EVERYTHING, num_bins=15):
    maps = read_pixels(sample, ignore_index=255, name='image.jpg')
    valid = maps[-1] != 255
    return of_map(*maps, valid, wanted=wanted, num_bins=num_bins, name='image.jpg')


def of(logits, label):
    logits = torch.tensor(logits)[:, None, None].expand(-1, *label.shape)
    return read(as_segmented(logits, logits.argmax(0), label))


def assert_close(one, other, **options):
    for name, value in one._asdict().items():
        torch.testing.assert_close(value, getattr(other, name), msg=name, **options)


@pytest.mark.parametrize('dtype', [torch.float32, torch.float64, torch.float16])
@pytest.mark.parametrize('piece_bytes', [1, 1 << 12, 1 << 30])
def test_a_map_is_its_probabilities(dtype, piece_bytes, monkeypatch):
    monkeypatch.setattr(counts, 'PIECE_BYTES', piece_bytes)
    sample = segmented(3, num_classes=6, size=(20, 25))[2]
    logits = sample['seg_logits']['data'].to(dtype)
    sample |= {'seg_logits': {'data': logits}}
    sample['pred_sem_seg']['data'] = logits.argmax(0, keepdim=True)
    found, label = read(sample), sample['gt_sem_seg']['data'][0]
    kept = logits.double().softmax(0)[:, label != 255]
    expected = of_probabilities(kept.T, label[label != 255], wanted=EVERYTHING)
    left_out = logits.double().softmax(0).amax(0)[label == 255]
    expected = expected._replace(left_out=left_out)
    for name, value in expected._asdict().items():
        other = getattr(found, name)
        torch.testing.assert_close(other.to(value), value, rtol=1e-5, atol=1e-6, msg=name)
    assert found.conf.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert read(sample, ()).brier is read(sample, ()).classes is read(sample, ()).curve is None


def test_huge_logits_and_constants():
    label = torch.tensor([[0, 0], [2, 1]])
    found = of([1e4, -1e4, 0.0], label)
    assert (found.conf == 1).all() and found.nll.sum() == 3e4 and found.brier.sum() == 4
    found = of([3e38, -3e38, 0.0], label)
    assert found.nll.sum().item() == pytest.approx(9e38) and found.brier.sum() == 4
    plain = of([1.0, 0.0, 0.0], label)
    assert plain.conf.tolist() == pytest.approx([math.e / (math.e + 2)] * 4)
    for offset in (1e5, -1e5):
        assert_close(plain, of([1.0 + offset, offset, offset], label), rtol=1e-5, atol=1e-5)
    assert of([1e30] * 3, label).conf.tolist() == pytest.approx([1 / 3] * 4)


@pytest.mark.parametrize('threshold', [0.3, 0.5])
def test_a_binary_head_is_confident_of_the_class_it_predicts(threshold):
    prob = torch.tensor([[[0.1, 0.4, 0.9, 0.4]]])
    label = torch.tensor([[0, 1, 255, 255]])
    found = read(as_segmented(prob, (prob[0] > threshold).float(), label))
    conf = [0.9, 0.4 if threshold == 0.3 else 0.6]
    torch.testing.assert_close(found.conf, torch.tensor(conf))
    torch.testing.assert_close(found.left_out, torch.tensor(conf))
    assert found.correct.tolist() == [True, threshold == 0.3]
    assert found.nll.sum().item() == pytest.approx(-math.log(0.9) - math.log(0.4))
    assert found.brier.sum().item() == pytest.approx(2 * 0.1**2 + 2 * 0.6**2)
    assert found.classes[:, :, 13].tolist() == [[1, 0], [1, 0], [pytest.approx(0.9), 0]]


@pytest.mark.parametrize('logit', [20.0, -20.0, 90.0, -90.0])
@pytest.mark.parametrize('dtype', [torch.float32, torch.float16])
def test_what_saturated_types_can_tell(logit, dtype):
    prob = torch.tensor([[logit]]).sigmoid().to(dtype)
    label = torch.tensor([[int(logit < 0)]])  # wrong
    found = read(as_segmented(prob[None], prob > 0.5, label)).nll.item()
    least = {torch.float32: (25, 126), torch.float16: (12, 25)}[dtype]  # near 1, near 0
    assert found == pytest.approx(min(abs(logit), math.log(2) * least[logit < 0]), rel=1e-3)
    least = {torch.float32: 126, torch.float16: 25}[dtype] * math.log(2)
    scores = torch.tensor([1.0, 0.0], dtype=dtype)
    metric = CalibrationMetric('NLL')
    metric.process(None, [{'pred_score': scores, 'gt_label': torch.tensor([1])}])
    assert metric.evaluate(1)['calibration/NLL'] == pytest.approx(least)
    assert measure(scores[None], [1], 'NLL') == pytest.approx(least)


def test_label_255_of_a_classifier_is_a_class():
    scores = torch.full((300,), 0.1 / 299)
    scores[255] = 0.9
    metric = CalibrationMetric(['accuracy'])
    metric.process(None, [{'pred_score': scores, 'gt_label': torch.tensor([255])}])
    assert metric.evaluate(1) == {'calibration/accuracy': 100}


def test_an_edge_belongs_to_the_bin_below():
    conf = torch.arange(0, 11).double() / 10
    found = counts_of([], conf=conf, correct=conf > 0.5, num_bins=10)
    assert found.bins[0].tolist() == [2, *[1] * 9]
    found = counts_of([], conf=[0.5, 0.5000001], correct=[True, False], num_bins=2)
    assert found.bins[0].tolist() == [1, 1]


def test_parts_add_up_to_the_whole_and_cells_of_many_are_few():
    generator = torch.Generator().manual_seed(0)
    conf = 1 - torch.rand(60_000, generator=generator) ** 4
    correct = torch.rand(60_000, generator=generator) < conf
    whole = counts_of([], conf=conf, correct=correct)
    halves = [counts_of([], conf=conf[i::2], correct=correct[i::2]) for i in range(2)]
    total = Counts.total(halves)
    torch.testing.assert_close(total.cells, whole.cells)
    torch.testing.assert_close(total.bins, whole.bins)
    table = condensed(whole)
    assert table.shape[1] < 6146 < whole.cells.shape[1]
    torch.testing.assert_close(table.sum(1), whole.table.sum(1))
    assert ((table[2] / table[0]).diff() > 0).all()
    for part in halves:
        part.round()
    rounded = Counts.total(halves)
    whole.round()
    torch.testing.assert_close(whole.cells.double(), rounded.cells, rtol=1e-6, atol=1e-6)
    assert rounded.cells[1].sum() == 60_000
    width = rounded.cells[3] / rounded.cells[1] - rounded.cells[0]
    assert (width >= -1e-9).all() and (width <= rounded.cells[0] / 128 + 1e-9).all()


def test_forty_million_in_one_cell():
    conf, correct = np.full(2_000_000, 0.95), np.arange(2_000_000) % 5 != 0  # 80 % of them
    found = Counts.total([counts_of([], conf=conf, correct=correct)] * 20)
    assert found.count == 40_000_000
    assert found.bins[:, -1].tolist() == pytest.approx([40e6, 32e6, 38e6])
    assert found.cells.shape == (4, 1)


@pytest.mark.parametrize(
    ('conf', 'correct'),
    [
        ([0.7], [True]),
        ([0.9, 0.9, 0.8, 0.3, 1.0], [True, False, True, True, False]),
        ([1.0, 1.0, 0.0], [False, False, True]),
        ([0.5, 0.5, 0.52, 0.51], [True, False, True, False]),
    ],
)
def test_smooth_ece_is_its_definition(conf, correct):
    """Gaps of both signs, whose size depends on the width, and some at the ends."""
    expected = references.smooth_calibration_error(conf, correct)
    found = measure(metrics='smECE', conf=np.array(conf), correct=np.array(correct))
    assert found == pytest.approx(expected, abs=0.02)


FIGURES = {
    'AUROC': (ranking.auroc, partial(references.failure_auroc, range(7, 0, -1))),
    'AUPR': (ranking.aupr, references.average_precision),
    'FPR95': (ranking.fpr, partial(references.failure_fpr, range(7, 0, -1))),
}


@pytest.mark.parametrize('name', FIGURES)
def test_the_mean_over_all_orders_of_ties(name):
    figure, oracle = FIGURES[name]
    for seed in range(4):
        generator = np.random.default_rng(seed)
        conf, correct = generator.integers(1, 4, 7) / 4, generator.permutation(7) > 2
        table = counts_of([], conf=conf, correct=correct).table
        orders = [*map(oracle, references.orders_of(conf.tolist(), correct.tolist()))]
        assert figure(table).item() == pytest.approx(sum(orders) / len(orders))


@pytest.mark.parametrize('level', [0.1, 0.3, 0.5])
@pytest.mark.parametrize('seed', range(6))
def test_coverage_at_a_risk_is_of_the_mean_curve(seed, level):
    generator = np.random.default_rng(seed)
    conf, correct = generator.integers(1, 5, 20) / 5, generator.random(20) < 0.7
    errors = references.errors_among_the_first(conf.tolist(), correct.tolist())
    curve = [found / i for i, found in enumerate(errors, 1)]
    found = measure(metrics=f'coverage@risk_{level}', conf=conf, correct=correct)
    assert found == pytest.approx(references.coverage_at_risk(curve, level))


def test_levels_on_a_prediction_take_it_in():
    rows = dict(conf=np.array([0.9, 0.8, 0.7, 0.6]), correct=np.array([True, True, True, False]))
    assert measure(metrics='coverage@risk_0.25', **rows) == 100
    assert measure(metrics='coverage@risk_0.24', **rows) == 75
    assert measure(metrics='risk@coverage_0.75', **rows) == 0
    assert measure(metrics='risk@coverage_0.76', **rows) == 25


def test_all_right_is_a_temperature_at_its_bound_and_all_wrong_at_the_other():
    probs = np.array([[0.8, 0.2], [0.7, 0.3]])
    right = measure(probs, [0, 0], ['temperature', 'refinement_NLL', 'calibration_NLL', 'NLL'])
    assert right['temperature'] == pytest.approx(1 / 16)
    assert right['refinement_NLL'] == pytest.approx(0, abs=1e-4)
    assert measure(probs, [1, 1], 'temperature') == pytest.approx(16)
