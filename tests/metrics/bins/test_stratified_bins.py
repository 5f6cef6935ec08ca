"""Calibration of each predicted class and at each distance from a boundary, by plain loops."""

import math

import pytest
import references
import torch
from metrics.test_calibration_metric import evaluate, in_patches
from references import distance
from samples import as_segmented, classified, segmented

from mmcalib.metrics import (
    CalibrationMetric,
    CalibrationState,
    CalibrationStatistics,
    Prediction,
)
from mmcalib.metrics import calibration_metric as module
from mmcalib.metrics.bins.stratified_bins import stratum_figures, stratum_text
from mmcalib.samples.boundary_distance import DISTANCES, RANGE_NAMES


def pixels(sample, keep=lambda label: True, *, distances=False):
    """Predicted class, confidence, correctness and range of distance of each valid prediction."""
    if 'pred_score' in sample:
        scores = sample['pred_score'].tolist()
        predicted = scores.index(max(scores))
        return [(predicted, max(scores), predicted == sample['gt_label'].item(), None)]
    logits, label = sample['seg_logits']['data'].double(), sample['gt_sem_seg']['data'][0]
    probs = logits.softmax(0) if len(logits) > 1 else torch.cat([1 - logits, logits])
    probs, labels = probs.tolist(), label.tolist()
    classes, found = sample['pred_sem_seg']['data'][0].tolist(), []
    for i, row in enumerate(labels):
        for j, own in enumerate(row):
            if own == 255 or not keep(own):
                continue
            predicted = classes[i][j]
            far = distances and sum(distance(label, i, j) > end for end in DISTANCES)
            found.append((predicted, probs[predicted][i][j], predicted == own, far))
    return found


def figures_of(predictions, num_bins=15):
    """ECE, accuracy, mean confidence and count of (confidence, correctness), by plain loops."""
    n = len(predictions)
    if not n:
        return dict(ECE=math.nan, accuracy=math.nan, confidence=math.nan, count=0)
    conf, correct = zip(*predictions, strict=True)
    return dict(
        ECE=references.expected_calibration_error(conf, correct, num_bins),
        accuracy=100 * sum(correct) / n,
        confidence=100 * sum(conf) / n,
        count=n,
    )


def assert_figures(table, predictions):
    """`predictions`: for each stratum, confidences and correctness."""
    found = stratum_figures(table)
    for place, own in enumerate(predictions):
        for name, expected in figures_of(own, table.shape[2]).items():
            assert found[name][place] == pytest.approx(expected, abs=1e-4, nan_ok=True), name
    assert len(found['ECE']) == len(predictions)


def binary(n):
    """mmseg's samples of a binary head: sigmoids, of which some are saturated."""
    generator = torch.Generator().manual_seed(0)
    samples = []
    for _ in range(n):
        prob = torch.sigmoid(30 * torch.randn(1, 6, 7, generator=generator))
        label = (torch.rand(6, 7, generator=generator) < 0.3).long()
        samples.append(as_segmented(prob, (prob[0] > 0.5).long(), label))
    return samples


@pytest.mark.parametrize(
    ('samples', 'num_classes'),
    [(classified(41, num_classes=60), 60), (in_patches(4), 5), (binary(3), 2)],
    ids=['mmpretrain', 'mmseg', 'a binary head'],
)
@pytest.mark.parametrize('num_bins', [15, 4])
def test_each_predicted_class_equals_plain_loops(samples, num_classes, num_bins):
    metric = CalibrationMetric(['ECE'], num_bins=num_bins, per_class=True)
    metric.keep_statistics = True
    values = evaluate(samples, metric)
    assert set(values) == {'calibration/ECE'}
    by_class = [[] for _ in range(num_classes)]
    for sample in samples:
        for predicted, conf, correct, _ in pixels(sample):
            by_class[predicted].append((conf, correct))
    assert any(not own for own in by_class) == (num_classes == 60)  # some are never predicted
    assert_figures(metric.statistics.class_bins, by_class)
    assert metric.statistics.classes == [str(k) for k in range(num_classes)]
    assert metric.statistics.distance_bins is None


@pytest.mark.parametrize('protocol', ['pooled', 'paper'])
def test_each_distance_equals_plain_loops(protocol):
    samples = in_patches(5)
    metric = CalibrationMetric(['ECE'], protocol=protocol, per_distance=True, per_class=True)
    metric.keep_statistics = True
    evaluate(samples, metric)
    ranges, by_class = [[] for _ in RANGE_NAMES], [[] for _ in range(5)]
    for sample in samples:
        keep = (lambda label: label != 0) if protocol == 'paper' else (lambda label: True)
        for predicted, conf, correct, range_of in pixels(sample, keep, distances=True):
            ranges[range_of].append((conf, correct))
            by_class[predicted].append((conf, correct))
    assert sum(map(bool, ranges)) >= 3
    assert_figures(metric.statistics.distance_bins, ranges)
    assert_figures(metric.statistics.class_bins, by_class)


@pytest.mark.parametrize('correct', [True, False])
@pytest.mark.parametrize('conf', [1.0, 0.25])
def test_one_prediction_of_one_class(conf, correct):
    state = CalibrationState(['ECE'], per_class=True)
    prediction = Prediction(
        torch.tensor([conf]), torch.tensor([correct]), 1, torch.zeros(1, dtype=torch.int64)
    )
    assert stratum_figures(state.update(prediction).class_bins()) == dict(
        ECE=[100 * abs(conf - correct)], accuracy=[100.0 * correct], confidence=[100 * conf],
        count=[1],
    )  # fmt: skip


def test_conventions_bin_as_they_do():
    samples = classified(30)
    metric = CalibrationMetric(['ECE'], convention='torchmetrics', per_class=True)
    metric.keep_statistics = True
    evaluate(samples, metric)
    assert metric.statistics.class_bins.shape == (3, 7, 16)
    assert metric.statistics.class_bins[0].sum() == 30


def test_what_cannot_be_counted_is_said():
    with pytest.raises(ValueError, match='per_distance is for segmentation, but sample 0 comes'):
        evaluate(classified(3), CalibrationMetric(per_distance=True))
    predictions = [
        Prediction(torch.tensor([0.5]), torch.tensor([True]), k, torch.tensor([1])) for k in (2, 3)
    ]
    state = CalibrationState(['ECE'], per_class=True).update(predictions[0])
    with pytest.raises(ValueError, match='predictions of 2 and of 3 classes'):
        state.update(predictions[1])
    other = CalibrationState(['ECE'], per_class=True).update(predictions[1])
    with pytest.raises(ValueError, match='predictions of 2 and of 3 classes'):
        CalibrationState(['ECE'], per_class=True).update(predictions[0]).merge(other)
    with pytest.raises(ValueError, match='has no predicted, but ECE'):
        state.update(predictions[0]._replace(predicted=None))
    samples = segmented(2)
    samples[1]['seg_logits']['data'].fill_(math.nan)
    metric = CalibrationMetric(per_class=True, per_distance=True)
    with pytest.raises(ValueError, match='NaN'):
        evaluate(samples, metric)
    assert metric._state.class_bins() is None


def test_the_log_has_a_line_for_each(monkeypatch):
    lines = []
    monkeypatch.setattr(module, 'print_log', lambda text, **_: lines.append(text))
    metric = CalibrationMetric(['ECE'], per_class=True, per_distance=True)
    metric.dataset_meta = {'classes': ('[b]sky', 'road :car:', 'c', 'd', 'e')}
    evaluate(in_patches(3), metric)
    rows = [row.split('|')[1:-1] for row in '\n'.join(lines).splitlines() if '|' in row]
    names = [row[0].strip() for row in rows]
    assert names[:3] == ['predicted class', '[b]sky', 'road :car:']
    assert names[-1] == 'over 64' and len(rows) == 1 + 5 + 1 + 8
    assert [cell.strip() for cell in rows[11]] == ['9–16', 'nan', 'nan', 'nan', '0']
    metric.dataset_meta = {'classes': ('one', 'two')}  # of other data: numbers stand for them
    lines.clear()
    evaluate(in_patches(3), metric)
    assert '\n| 4 ' in lines[1] and 'one' not in lines[1]


def test_a_table_of_many_is_whole():
    table = torch.zeros(3, 1234, 15, dtype=torch.float64)
    table[0] = 1e9
    text = stratum_text(table, [f'class number {k}' for k in range(1234)], 'class')
    assert 'class number 1233' in text and '15,000,000,000' in text


@pytest.mark.parametrize('suffix', ['.json', '.npz'])
def test_they_are_saved(suffix, tmp_path):
    path = tmp_path / f'statistics{suffix}'
    metric = CalibrationMetric(per_class=True, per_distance=True, out_file=str(path))
    metric.dataset_meta = {'classes': ['ä', 'b', 'c', 'd', 'e']}
    evaluate(in_patches(3), metric)
    loaded = CalibrationStatistics.load(path)
    for name in ('class_bins', 'distance_bins'):
        assert getattr(loaded, name).equal(getattr(metric.statistics, name))
    assert loaded.classes == ['ä', 'b', 'c', 'd', 'e']
