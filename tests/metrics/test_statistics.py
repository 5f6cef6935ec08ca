"""Statistics that a test keeps of each image, class, distance and object, in a file too."""

import math
from typing import NamedTuple

import numpy as np
import pytest
import references
import torch
from evaluators import evaluate
from samples import as_segmented, classified, segmented
from test_all_metrics import in_patches

from mmcalib.errors import UserError
from mmcalib.metrics import PROTOCOLS, CalibrationStatistics, object_ious
from mmcalib.metrics.by_class import predicted_class_calibration
from mmcalib.metrics.calibration_errors import calibration_error
from mmcalib.metrics.log_bins import log_bin_thresholds, shares_above
from mmcalib.metrics.strata import stratum_figures
from mmcalib.openmmlab.metrics import CalibrationMetric, list_metric as module
from mmcalib.predictions.boundary import DISTANCES, RANGE_NAMES
from mmcalib.predictions.image_predictions import ImagePredictions
from mmcalib.predictions.objects import find_map_objects

CLASSES = ('a', 'background', 'c', 'd', 'e')
ALL_STATISTICS = dict(per_class=True, per_distance=True)


def measured_statistics(samples, **options):
    metric = CalibrationMetric(['ECE', 'accuracy'], **options)
    values = evaluate(samples, metric, meta=dict(classes=CLASSES))
    for name, value in metric.statistics.metrics.items():
        assert values[f'calibration/{name}'] == value
    return metric.statistics


class Pixels(NamedTuple):
    """Predictions of all pixels of some samples, ``(M,)`` each."""

    image_index: np.ndarray
    predicted: np.ndarray
    conf: np.ndarray
    correct: np.ndarray
    label: np.ndarray
    distance_range: np.ndarray


def read_pixels(samples):
    """Return the pixels of some samples, by loops."""
    parts = []
    for image_index, sample in enumerate(samples):
        if 'pred_score' in sample:
            label = sample['gt_label'][None]
            probs = sample['pred_score'][:, None, None]
            predicted = probs.argmax(0, keepdim=True)
        else:
            (label,) = sample['gt_sem_seg']['data']
            logits = sample['seg_logits']['data'].float()
            probs = torch.cat([1 - logits, logits]) if len(logits) == 1 else logits.softmax(0)
            predicted = sample['pred_sem_seg']['data'].long()
        distances = [references.distance(label, i, j) for i, j in np.ndindex(*label.shape)]
        parts.append(
            Pixels(
                image_index=np.full(len(distances), image_index),
                predicted=predicted.flatten().numpy(),
                conf=probs.gather(0, predicted).flatten().numpy(),
                correct=(predicted[0] == label).flatten().numpy(),
                label=label.flatten().numpy(),
                distance_range=np.searchsorted(DISTANCES, distances),
            )
        )
    return Pixels(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def reference_figures(conf, correct):
    if not len(conf):
        return dict(ECE=math.nan, accuracy=math.nan, confidence=math.nan, count=0)
    return {
        'ECE': references.expected_calibration_error(conf, correct),
        'accuracy': 100 * correct.mean(),
        'confidence': 100 * conf.mean(),
        'count': len(conf),
    }


def binary_samples(n):
    torch.manual_seed(0)
    prob = torch.sigmoid(30 * torch.randn(n, 1, 6, 7))
    label = (torch.rand(n, 6, 7) < 0.3).long()
    return [as_segmented(p, (p[0] > 0.5).long(), y) for p, y in zip(prob, label, strict=True)]


@pytest.mark.parametrize('protocol', ['pooled', 'paper'])
@pytest.mark.parametrize('samples', [in_patches(4), binary_samples(3)], ids=['softmax', 'binary'])
def test_class_and_distance_bins_equal_loop(samples, protocol):
    statistics = measured_statistics(samples, protocol=protocol, **ALL_STATISTICS)
    pixels = read_pixels(samples)
    is_valid = pixels.label != 255
    if protocol == 'paper':
        is_valid &= pixels.label != 0
        assert statistics.image_narrow_bins is None
    for table, stratum in (
        (statistics.class_bins, pixels.predicted),
        (statistics.distance_bins, pixels.distance_range),
    ):
        figures = stratum_figures(table)
        for index in range(table.shape[1]):
            mask = is_valid & (stratum == index)
            expected = reference_figures(pixels.conf[mask], pixels.correct[mask])
            for name, value in expected.items():
                assert figures[name][index] == pytest.approx(value, abs=1e-4, nan_ok=True), name
    assert statistics.distance_bins.shape[1] == len(RANGE_NAMES)


def test_predicted_class_calibration_equals_class_bins():
    samples = classified(40, num_classes=5)
    statistics = measured_statistics(samples, per_class=True)
    expected = stratum_figures(statistics.class_bins)
    probs = torch.stack([sample['pred_score'] for sample in samples])
    labels = torch.cat([sample['gt_label'] for sample in samples])
    for name, values in predicted_class_calibration(probs, labels).items():
        assert values.tolist() == pytest.approx(expected[name], nan_ok=True)


def sum_from_above(counts):
    """Return the sums over each bin and all bins above it."""
    return counts.flip(-1).cumsum(-1).flip(-1)


def classified_with_certain_one(n):
    samples = classified(n)
    samples[0]['pred_score'] = torch.eye(7)[0]
    return samples


@pytest.mark.parametrize('draw_samples', [segmented, binary_samples, classified_with_certain_one])
def test_log_bins_each_image_equal_loop_over_thresholds(draw_samples):
    samples = draw_samples(4)
    statistics = measured_statistics(samples)
    log_bins = statistics.image_narrow_bins
    torch.testing.assert_close(
        statistics.image_bins[:, :2].sum(dim=2), log_bins[:, :2].sum(dim=2).double()
    )
    pixels = read_pixels(samples)
    labelled = pixels.label != 255
    for image_index, counts in enumerate(sum_from_above(log_bins)):
        for column, threshold in list(enumerate(log_bin_thresholds().tolist()))[::7]:
            kept = (pixels.image_index == image_index) & (pixels.conf > threshold)
            num_labelled, num_correct, num_unlabelled = counts[:, column].tolist()
            assert num_labelled == (kept & labelled).sum()
            assert num_correct == (kept & pixels.correct).sum()
            assert num_unlabelled == (kept & ~labelled).sum()
    kept, wrong = shares_above(log_bins)
    assert (kept[:, 0] == 1).all()
    assert (wrong <= kept).all()


def test_objects_of_segmented_images_equal_find_objects(monkeypatch):
    log_lines = []
    monkeypatch.setattr(module, 'print_log', lambda text, **_: log_lines.append(text))
    samples = [s for s in segmented(5) if (s['gt_sem_seg']['data'] != 255).any()]
    rows = []
    for image_index, sample in enumerate(samples):
        logits = sample['seg_logits']['data']
        predictions = ImagePredictions(predicted=logits.argmax(0)[None], logits=logits[None])
        objects = find_map_objects(predictions, background=1)
        ious = object_ious(objects, sample['gt_sem_seg']['data'][0].numpy())
        columns = (objects.label, objects.pixels, objects.confidence, objects.expected_iou, ious)
        for row in zip(*columns, strict=True):
            rows.append((image_index, *map(float, row)))
    actual = measured_statistics(samples, per_object=True).objects
    expected = torch.tensor(rows).double()
    torch.testing.assert_close(actual, expected, equal_nan=True, rtol=1e-5, atol=1e-6)
    ious = actual[~actual[:, 5].isnan(), 5]
    share = 100 * (ious > 0.5).double().mean()
    assert f'{share:.1f} % have an IoU above 0.5' in log_lines[-1]


def test_objects_only_background_predicted_are_none():
    samples = segmented(3)
    for sample in samples:
        sample['seg_logits']['data'][1] += 100
        sample['pred_sem_seg']['data'][:] = 1
    assert measured_statistics(samples, per_object=True).objects.shape == (0, 6)


@pytest.mark.parametrize('protocol', PROTOCOLS)
def test_statistics_saved_and_loaded_are_equal(protocol, tmp_path):
    statistics = measured_statistics(
        in_patches(9), per_object=protocol == 'pooled', protocol=protocol, **ALL_STATISTICS
    )
    path = tmp_path / 'new' / 'calibration.npz'
    statistics.save(path)
    loaded = CalibrationStatistics.load(path)
    for name, value in vars(statistics).items():
        np.testing.assert_array_equal(getattr(loaded, name), value)
    assert loaded.classes == list(CLASSES)
    assert loaded.num_predictions == statistics.bins(25)[0].sum()
    if protocol not in ('image', 'paper'):
        assert calibration_error(loaded.bins(15)) == pytest.approx(loaded.metrics['ECE'])
    shares = loaded.bins(9, equal_mass=True)[0] / loaded.num_predictions
    assert shares.tolist() == pytest.approx([1 / 9] * 9)


def test_statistics_load_tables_of_other_versions_are_left_out(tmp_path):
    path = tmp_path / 'calibration.npz'
    expected = measured_statistics(in_patches(9))
    expected.save(path)
    with np.load(path) as file:
        content = dict(file)
    np.savez(path, **content, image_class=np.zeros((3, 2)))
    actual = CalibrationStatistics.load(path)
    torch.testing.assert_close(actual.narrow_bins, expected.narrow_bins)
    assert not hasattr(actual, 'image_class')


def test_statistics_load_other_file_raises(tmp_path):
    measured_statistics(in_patches(9)).save(tmp_path / 'cut.npz')
    content = (tmp_path / 'cut.npz').read_bytes()
    for part in (b'{"metrics": {}}', content[:300], content[: len(content) // 2], b''):
        (tmp_path / 'cut.npz').write_bytes(part)
        with pytest.raises(UserError, match='cannot be read as calibration statistics'):
            CalibrationStatistics.load(tmp_path / 'cut.npz')
