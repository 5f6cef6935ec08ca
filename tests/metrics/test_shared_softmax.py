"""One softmax for the metrics of an evaluator, and the same numbers as of each alone."""

import gc

import pytest
from metrics.test_calibration_metric import evaluate
from samples import segmented

from mmcalib.metrics import AECE, ECE, CalibrationMetric, ClasswiseECE
from mmcalib.metrics import shared_softmax as module


@pytest.fixture
def read(monkeypatch):
    """The names of the samples that are read, in turn."""
    names, original = [], module.read_prediction

    def read_prediction(sample, *, name, **options):
        names.append(name)
        return original(sample, name=name, **options)

    monkeypatch.setattr(module, 'read_prediction', read_prediction)
    return names


def metrics():
    return [
        ECE(),
        AECE(),
        ClasswiseECE(num_bins=10),
        CalibrationMetric(['NLL', 'Brier', 'ClasswiseECE'], num_bins=25, prefix='more'),
    ]


def test_what_several_metrics_want_of_a_segmentor_is_read_once(read):
    samples, together = segmented(11), metrics()
    values = evaluate(samples, *together, batch=2)
    # The metrics find each other in the first batch, which each reads for itself.
    assert len(read) == 4 * 2 + 9
    alone = {}
    for metric in metrics():
        alone |= evaluate(samples, metric, batch=2)
    assert values == pytest.approx(alone, abs=1e-9)
    read.clear()
    assert evaluate(samples, *together, batch=2) == values
    assert len(read) == 11
    assert not together[0]._reader._kept


def test_other_regions_are_read_apart(read):
    together = [
        ECE(),
        ECE(protocol='boundary', prefix='edge'),
        ECE(protocol='image', prefix='image'),
    ]
    evaluate(segmented(4), *together, batch=1)
    assert len(read) == 4 + 4 + 1  # all pixels twice in the first image; those of boundaries


def test_metrics_that_part_read_for_themselves(read):
    samples, others = segmented(4), segmented(4, seed=1)
    one, other = ECE(), AECE()
    evaluate(samples, one, other, batch=1)
    expected = {**evaluate(others, ECE(), batch=1), **evaluate(samples, AECE(), batch=1)}
    assert {**evaluate(others, one, batch=1), **evaluate(samples, other, batch=1)} == expected
    # What was read of labels that have changed since is not used.
    samples[0]['gt_sem_seg']['data'][0, 5:] = 255
    assert evaluate(samples[:1], other) == evaluate(samples[:1], AECE())


def test_nothing_keeps_the_logits_alive():
    samples, metric, other = segmented(2), ECE(), AECE()
    for sample in samples:
        metric.process(None, [sample])
        other.process(None, [sample])
    del samples, sample
    gc.collect()
    assert metric._reader is other._reader and metric._reader._first() is None
