"""What a test keeps of each image, class, distance and object, and reads again."""

import math

import numpy as np
import pytest
import references
import torch
from samples import as_segmented, classified, segmented
from test_all_metrics import evaluate, in_patches

from mmcalib.errors import UserError
from mmcalib.metrics import PROTOCOLS, CalibrationStatistics, object_ious
from mmcalib.metrics.by_class import predicted_class_calibration
from mmcalib.metrics.calibration_errors import calibration_error
from mmcalib.metrics.log_bins import log_bin_thresholds, shares_above
from mmcalib.metrics.strata import stratum_figures
from mmcalib.openmmlab.metrics import CalibrationMetric
from mmcalib.openmmlab.metrics import list_metric as module
from mmcalib.predictions.boundary import DISTANCES, RANGE_NAMES
from mmcalib.predictions.image_predictions import ImagePredictions
from mmcalib.predictions.objects import find_map_objects

CLASSES = ('a', 'background', 'c', 'd', 'e')
ALL = dict(per_class=True, per_distance=True)


def statistics_of(samples, **options):
    metric = CalibrationMetric(['ECE', 'accuracy'], **options)
    values = evaluate(samples, metric, meta=dict(classes=CLASSES))
    assert metric.statistics.metrics == {k.split('/')[1]: v for k, v in values.items()}
    return metric.statistics


def pixels_of(samples):
    """Of each pixel: image, predicted class, confidence, correctness, label, range of distance."""
    rows = []
    for place, sample in enumerate(samples):
        if 'pred_score' in sample:
            label, probs = sample['gt_label'][None], sample['pred_score'][:, None, None]
            k = probs.argmax(0, keepdim=True)
        else:
            logits, (label,) = sample['seg_logits']['data'].float(), sample['gt_sem_seg']['data']
            probs = torch.cat([1 - logits, logits]) if len(logits) == 1 else logits.softmax(0)
            k = sample['pred_sem_seg']['data'].long()
        away = [references.distance(label, i, j) for i, j in np.ndindex(*label.shape)]
        ranks = np.searchsorted(DISTANCES, away)
        columns = np.full(len(away), place), k, probs.gather(0, k), k[0] == label, label, ranks
        rows.append(np.stack([np.ravel(column) for column in columns]))
    image, k, conf, correct, label, rank = np.concatenate(rows, axis=1)
    return image, k, conf, correct == 1, label, rank


def figures_of(conf, correct):
    if not len(conf):
        return dict(ECE=math.nan, accuracy=math.nan, confidence=math.nan, count=0)
    found = {'ECE': references.expected_calibration_error(conf, correct), 'count': len(conf)}
    return found | {'accuracy': 100 * correct.mean(), 'confidence': 100 * conf.mean()}


def binary(n):
    generator = torch.Generator().manual_seed(0)
    prob = torch.sigmoid(30 * torch.randn(n, 1, 6, 7, generator=generator))
    label = (torch.rand(n, 6, 7, generator=generator) < 0.3).long()
    return [as_segmented(p, (p[0] > 0.5).long(), y) for p, y in zip(prob, label, strict=True)]


@pytest.mark.parametrize('protocol', ['pooled', 'paper'])
@pytest.mark.parametrize('samples', [in_patches(4), binary(3)], ids=['softmax', 'binary'])
def test_classes_and_distances_are_those_of_loops(samples, protocol):
    found = statistics_of(samples, protocol=protocol, **ALL)
    _, k, conf, correct, label, rank = pixels_of(samples)
    counted = (label != 255) & ((label != 0) | (protocol == 'pooled'))
    for table, part in ((found.class_bins, k), (found.distance_bins, rank)):
        figures = stratum_figures(table)
        for place in range(table.shape[1]):
            own = counted & (part == place)
            for name, value in figures_of(conf[own], correct[own]).items():
                assert figures[name][place] == pytest.approx(value, abs=1e-4, nan_ok=True), name
    assert found.distance_bins.shape[1] == len(RANGE_NAMES)
    if protocol == 'paper':
        assert found.image_narrow_bins is None


def test_predicted_classes_of_arrays_are_those_of_the_metric():
    samples = classified(40, num_classes=5)
    table = stratum_figures(statistics_of(samples, per_class=True).class_bins)
    probs = torch.stack([sample['pred_score'] for sample in samples])
    labels = torch.cat([sample['gt_label'] for sample in samples])
    for name, values in predicted_class_calibration(probs, labels).items():
        assert values.tolist() == pytest.approx(table[name], nan_ok=True)


def above(counts):
    return counts.flip(-1).cumsum(-1).flip(-1)


def with_a_certain_one(n):
    samples = classified(n)
    samples[0]['pred_score'] = torch.eye(7)[0]
    return samples


@pytest.mark.parametrize('kind', [segmented, binary, with_a_certain_one])
def test_log_bins_of_each_image_equal_loops_over_thresholds(kind):
    samples = kind(4)
    statistics = statistics_of(samples)
    log_bins = statistics.image_narrow_bins
    torch.testing.assert_close(
        statistics.image_bins[:, :2].sum(dim=2), log_bins[:, :2].sum(dim=2).double()
    )
    image, _, conf, correct, label, _ = pixels_of(samples)
    labelled = label != 255
    for image_index, counts in enumerate(above(log_bins)):
        for column, threshold in list(enumerate(log_bin_thresholds().tolist()))[::7]:
            kept = (image == image_index) & (conf > threshold)
            expected = [(kept & labelled).sum(), (kept & correct).sum(), (kept & ~labelled).sum()]
            assert counts[:, column].tolist() == expected
    kept, wrong = shares_above(log_bins)
    assert (kept[:, 0] == 1).all() and (wrong <= kept).all()


def test_objects(monkeypatch):
    said = []
    monkeypatch.setattr(module, 'print_log', lambda text, **_: said.append(text))
    samples = [s for s in segmented(5) if (s['gt_sem_seg']['data'] != 255).any()]
    rows = []
    for place, sample in enumerate(samples):
        logits, truth = sample['seg_logits']['data'], sample['gt_sem_seg']['data'][0]
        predictions = ImagePredictions(predicted=logits.argmax(0)[None], logits=logits[None])
        found = find_map_objects(predictions, background=1)
        ious = object_ious(found, truth.numpy())
        columns = found.label, found.pixels, found.confidence, found.expected_iou, ious
        rows += [(place, *map(float, row)) for row in zip(*columns, strict=True)]
    objects = statistics_of(samples, per_object=True).objects
    torch.testing.assert_close(
        objects, torch.tensor(rows).double(), equal_nan=True, rtol=1e-5, atol=1e-6
    )
    share = 100 * (objects[~objects[:, 5].isnan(), 5] > 0.5).double().mean()
    assert f'{share:.1f} % have an IoU above 0.5' in said[-1]
    for sample in samples:
        sample['seg_logits']['data'][1] += 100
        sample['pred_sem_seg']['data'][:] = 1
    assert statistics_of(samples, per_object=True).objects.shape == (0, 6)


@pytest.mark.parametrize('protocol', PROTOCOLS)
def test_they_are_saved_and_loaded(protocol, tmp_path):
    options = ALL | dict(per_object=protocol == 'pooled', protocol=protocol)
    found, path = statistics_of(in_patches(9), **options), tmp_path / 'new' / 'calibration.npz'
    found.save(path)
    again = CalibrationStatistics.load(path)
    for name, value in vars(found).items():
        np.testing.assert_array_equal(getattr(again, name), value)
    assert again.classes == list(CLASSES) and again.num_predictions == found.bins(25)[0].sum()
    if protocol not in ('image', 'paper'):
        assert calibration_error(again.bins(15)) == pytest.approx(again.metrics['ECE'])
    shares = again.bins(9, equal_mass=True)[0] / again.num_predictions
    assert shares.tolist() == pytest.approx([1 / 9] * 9)


def test_statistics_with_tables_of_other_versions_are_loaded(tmp_path):
    path = tmp_path / 'calibration.npz'
    expected = statistics_of(in_patches(9))
    expected.save(path)
    with np.load(path) as file:
        content = dict(file)
    np.savez(path, **content, image_class=np.zeros((3, 2)))
    actual = CalibrationStatistics.load(path)
    torch.testing.assert_close(actual.narrow_bins, expected.narrow_bins)
    assert not hasattr(actual, 'image_class')


def test_other_files_are_refused(tmp_path):
    statistics_of(in_patches(9)).save(tmp_path / 'cut.npz')
    content = (tmp_path / 'cut.npz').read_bytes()
    for part in (b'{"metrics": {}}', content[:300], content[: len(content) // 2], b''):
        (tmp_path / 'cut.npz').write_bytes(part)
        with pytest.raises(UserError, match='cannot be read as calibration statistics'):
            CalibrationStatistics.load(tmp_path / 'cut.npz')
