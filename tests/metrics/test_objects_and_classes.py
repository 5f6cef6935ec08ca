"""What a test keeps of each object and each class: against loops, merged and read again."""

import pytest
import torch
from forked import on_ranks
from mmengine.evaluator import Evaluator
from samples import classified, segmented

from mmcalib.metrics import CalibrationMetric, CalibrationStatistics, object_ious
from mmcalib.metrics import calibration_metric as module
from mmcalib.metrics.bins.class_image_bins import ClassImageBins
from mmcalib.samples.objects import objects_of_logits

CLASSES = ('a', 'background', 'c', 'd', 'e')
TABLES = ('image_class', 'image_class_bins', 'objects')


def statistics_of(samples, size=None, **options):
    metric = CalibrationMetric('ECE', per_class=True, **options)
    metric.keep_statistics = True
    evaluator = Evaluator([metric])
    evaluator.dataset_meta = {'classes': CLASSES}
    for start in range(0, len(samples), 3):
        evaluator.process(samples[start : start + 3])
    evaluator.evaluate(len(samples) if size is None else size)
    return metric.statistics


def expected_of(samples, num_classes):
    bins, objects = ClassImageBins(), []
    for place, sample in enumerate(samples):
        if 'pred_score' in sample:
            probs, label = sample['pred_score'][:, None], sample['gt_label']
        else:
            logits, truth = sample['seg_logits']['data'], sample['gt_sem_seg']['data'][0]
            found = objects_of_logits(logits, logits.argmax(0), background=1)
            ious = object_ious(found, truth.numpy())
            columns = found.label, found.pixels, found.confidence, found.expected_iou, ious
            rows = zip(*columns, strict=True)
            objects += [(place, *map(float, row)) for row in rows]
            valid = truth != 255
            probs, label = logits.softmax(0)[:, valid], truth[valid]
        conf, predicted = probs.max(dim=0)
        own = probs.gather(0, label[None])[0]
        values = dict(predicted=predicted, label=label, conf=conf, own=own)
        bins.add(torch.tensor(place), num_classes, **values)
    return dict(zip(TABLES, (*bins.table(), torch.tensor(objects)), strict=True))


def check(found, expected, tables):
    for name in tables:
        table = getattr(found, name)
        if name == 'image_class_bins':  # rounding may move a value to the bin beside it
            assert torch.equal(table.sum(dim=2), expected[name].sum(dim=2))
            assert (table - expected[name]).abs().sum() <= 1e-3 * table.sum()
        else:
            torch.testing.assert_close(
                table.double(), expected[name].double(), rtol=1e-5, atol=1e-6, equal_nan=True
            )


def test_a_segmentors_objects_and_classes(tmp_path, monkeypatch):
    said = []
    monkeypatch.setattr(module, 'print_log', lambda text, **_: said.append(text))
    samples = [s for s in segmented(7) if (s['gt_sem_seg']['data'] != 255).any()]
    found = statistics_of(samples, per_object=True)
    check(found, expected_of(samples, 5), TABLES)
    known = found.objects[~found.objects[:, 5].isnan()]
    share = 100 * (known[:, 5] > 0.5).double().mean()
    assert f'{len(known):,} objects of' in said[-1]
    assert f'{share:.1f} % have an IoU above 0.5' in said[-1]
    found.save(tmp_path / 'statistics.npz')
    again = CalibrationStatistics.load(tmp_path / 'statistics.npz')
    for name in TABLES:
        torch.testing.assert_close(getattr(again, name), getattr(found, name), equal_nan=True)


def test_a_classifiers_classes():
    samples = classified(11)
    found = statistics_of(samples)
    check(found, expected_of(samples, 7), TABLES[:2])
    assert found.objects is None


def _two_ranks(rank, samples, expected):
    found = statistics_of([*samples, samples[0]][rank::2], size=7, per_object=True)
    if rank == 0:
        check(found, expected, TABLES)


def test_two_ranks_keep_what_one_does():
    samples = segmented(7, size=(9, 9))
    on_ranks(_two_ranks, 2, samples, expected_of(samples, 5))


def test_images_without_an_object_have_no_rows():
    samples = segmented(2)
    for sample in samples:
        sample['seg_logits']['data'][1] += 100
        sample['pred_sem_seg']['data'][:] = 1
    assert statistics_of(samples, per_object=True).objects.shape == (0, 6)


def test_objects_are_not_a_classifiers_and_not_of_parts_of_images():
    with pytest.raises(ValueError, match=r'sample 0 comes from .* and objects require'):
        statistics_of(classified(2), per_object=True)
    with pytest.raises(ValueError, match="per_object is for the protocol 'pooled', got 'boundary'"):
        CalibrationMetric('ECE', per_object=True, protocol='boundary')
