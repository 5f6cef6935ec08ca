"""What other code prints of the same predictions, against that code itself."""

import itertools

import numpy as np
import pytest
import torch
from metrics.samples import classified
from metrics.test_calibration_metric import evaluate
from references import published_adaptive_calibration_error

from mmcalib.metrics import (
    CalibrationMetric,
    binned_classwise_error,
    classwise_bins,
)

KINDS = ['spread', 'saturated', 'tied']


def draw(kind, n=400, num_classes=5):
    """Samples whose confidences are spread out, crowd at 1, or take few values."""
    samples = classified(n, num_classes)
    for sample in samples:
        scores = sample['pred_score']
        if kind == 'saturated':
            scores = (40 * scores.double()).softmax(0).float()
        elif kind == 'tied':
            top = (scores.max() * 4).ceil() / 4
            rest = (1 - top) / (num_classes - 1)
            scores = torch.full_like(scores, rest.item()).scatter(0, scores.argmax(), top)
        sample['pred_score'] = scores
    probs = torch.stack([sample['pred_score'] for sample in samples])
    return samples, probs, torch.cat([sample['gt_label'] for sample in samples])


def ours(samples, convention, *names, num_bins=15):
    metric = CalibrationMetric(names, convention=convention, num_bins=num_bins)
    values = evaluate(samples, metric)
    return [values[f'calibration/{name}'] for name in names]


@pytest.mark.parametrize('kind', KINDS)
@pytest.mark.parametrize('num_bins', [10, 15])
def test_torchmetrics(kind, num_bins):
    functional = pytest.importorskip('torchmetrics.functional.classification')
    samples, probs, labels = draw(kind)
    values = ours(samples, 'torchmetrics', 'ECE', 'RMSCE', 'MCE', num_bins=num_bins)
    for value, norm in zip(values, ('l1', 'l2', 'max'), strict=True):
        theirs = functional.multiclass_calibration_error(
            probs, labels, probs.shape[1], n_bins=num_bins, norm=norm
        )
        assert value == pytest.approx(100 * theirs.item(), abs=1e-4)


@pytest.mark.parametrize('kind', KINDS)
@pytest.mark.parametrize('num_bins', [10, 15])
def test_netcal(kind, num_bins):
    netcal = pytest.importorskip('netcal.metrics')
    samples, probs, labels = draw(kind)
    probs, labels = probs.double().numpy(), labels.numpy()
    ece, mce = ours(samples, 'netcal', 'ECE', 'MCE', num_bins=num_bins)
    assert ece == pytest.approx(100 * netcal.ECE(num_bins).measure(probs, labels), abs=1e-6)
    assert mce == pytest.approx(100 * netcal.MCE(num_bins).measure(probs, labels), abs=1e-6)
    (aece,) = ours(samples, 'netcal', 'AECE', num_bins=num_bins)
    if kind == 'spread':
        theirs = netcal.ECE(num_bins, equal_intervals=False).measure(probs, labels)
        assert aece == pytest.approx(100 * theirs, abs=1e-6)
    else:  # netcal itself cannot bin these
        with pytest.raises(ValueError):
            netcal.ECE(num_bins, equal_intervals=False).measure(probs, labels)
        assert np.isfinite(aece)


@pytest.mark.parametrize('kind', KINDS)
def test_published(kind):
    samples, probs, labels = draw(kind)
    conf, predicted = probs.max(1)
    correct = (predicted == labels).float()
    edges = torch.linspace(0, 1, 16)
    theirs = 0.0
    for low, high in itertools.pairwise(edges):
        inside = conf.gt(low) & conf.le(high)
        if inside.any():
            gap = (correct[inside].mean() - conf[inside].mean()).abs()
            theirs += (gap * inside.float().mean()).item()
    ece, aece = ours(samples, 'published', 'ECE', 'AECE')
    assert ece == pytest.approx(100 * theirs, abs=1e-4)
    expected = published_adaptive_calibration_error(conf.double().numpy(), correct.numpy())
    assert aece == pytest.approx(expected, abs=1e-6)


def test_published_classwise_error_leaves_out_classes_above_the_largest_label():
    samples, probs, labels = draw('spread')
    kept = [sample for sample, label in zip(samples, labels, strict=True) if label < 3]
    (seen,) = ours(kept, 'published', 'ClasswiseECE')
    (every,) = ours(kept, 'mmcalib', 'ClasswiseECE')
    probs, labels = probs[labels < 3, :3], labels[labels < 3]
    table = classwise_bins(probs.T, labels, 15)
    assert seen == pytest.approx(binned_classwise_error(table).item(), abs=1e-4)
    assert every != pytest.approx(seen)


def test_what_a_convention_lacks_is_refused():
    with pytest.raises(ValueError, match='torchmetrics has no AECE: leave it out'):
        CalibrationMetric(['ECE', 'AECE'], convention='torchmetrics')
    with pytest.raises(ValueError, match=r"convention must be one of \(.*\), got 'sklearn'"):
        CalibrationMetric(convention='sklearn')
