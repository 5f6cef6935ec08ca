"""What other code prints of the same predictions, against that code itself."""

import itertools

import numpy as np
import pytest
import torch
from metrics.test_calibration_metric import evaluate
from references import published_adaptive_calibration_error
from samples import classified

from mmcalib.metrics import CONVENTIONS, CalibrationMetric, CalibrationState, Prediction
from mmcalib.metrics.bins.binned_errors import binned_classwise_error, equal_mass_error_bound
from mmcalib.metrics.bins.classwise_bins import classwise_bins

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


@pytest.mark.parametrize('num_bins', [10, 15, 20, 100])
@pytest.mark.parametrize('library', ['netcal', 'torchmetrics'])
def test_confidences_on_an_edge(library, num_bins):
    # Also where k / B and the edge as numpy computes it, k * (1 / B), are not the same number.
    conf = torch.arange(1, num_bins + 1).double() / num_bins
    conf = torch.cat([conf[conf > 0.5], torch.linspace(0, 1, num_bins + 1).double()[-3:]])
    probs = torch.stack([conf, (1 - conf) * 0.6, (1 - conf) * 0.4], dim=1)
    labels = torch.arange(len(conf)) % 3
    samples = [{'pred_score': p, 'gt_label': y[None]} for p, y in zip(probs, labels, strict=True)]
    (ece,) = ours(samples, library, 'ECE', num_bins=num_bins)
    if library == 'netcal':
        netcal = pytest.importorskip('netcal.metrics')
        theirs = netcal.ECE(num_bins).measure(probs.numpy(), labels.numpy())
    else:
        functional = pytest.importorskip('torchmetrics.functional.classification')
        theirs = functional.multiclass_calibration_error(probs, labels, 3, n_bins=num_bins).item()
    assert ece == pytest.approx(100 * theirs, abs={'netcal': 1e-6, 'torchmetrics': 1e-4}[library])


def test_netcal_bins_the_positive_class_of_two():
    netcal = pytest.importorskip('netcal.metrics')
    samples, probs, labels = draw('spread', num_classes=2)
    probs, labels = probs.double().numpy(), labels.numpy()
    ece, mce, accuracy = ours(samples, 'netcal', 'ECE', 'MCE', 'accuracy')
    assert ece == pytest.approx(100 * netcal.ECE(15).measure(probs, labels), abs=1e-5)
    assert mce == pytest.approx(100 * netcal.MCE(15).measure(probs, labels), abs=1e-4)
    assert accuracy == pytest.approx(100 * (probs.argmax(1) == labels).mean())
    (ours_,) = ours(samples, 'mmcalib', 'ECE')
    assert abs(ours_ - ece) > 0.1


def in_cells(name, num_bins, *, tied):
    """Positions of a convention among narrow of 1 to 5 predictions, tied ones or distinct."""
    counts = torch.tensor([3, 1, 5, 2, 4, 1], dtype=torch.float64)
    table = torch.stack([counts, counts, counts])
    return CONVENTIONS[name].positions(table, torch.full((6,), tied), num_bins).tolist(), counts


@pytest.mark.parametrize('num_bins', [1, 4, 7])
def test_published_positions(num_bins):
    # How many values lie at or below each edge: of bins that stand for distinct values, an edge
    # at the r-th has r + 1 at or below it; of tied ones, all of its bin.
    found, counts = in_cells('published', num_bins, tied=False)
    n = int(counts.sum())
    values = np.arange(n)
    edges = np.interp(np.linspace(0, n, num_bins + 1), np.arange(n), values)
    assert found == [int((values <= edge).sum()) for edge in edges]
    found, _ = in_cells('published', num_bins, tied=True)
    values = np.repeat(np.arange(6), counts.long())
    edges = np.interp(np.linspace(0, n, num_bins + 1), np.arange(n), values)
    assert found == [int((values <= np.floor(edge)).sum()) for edge in edges]


@pytest.mark.parametrize('num_bins', [1, 4, 7])
def test_netcal_positions(num_bins):
    for tied in (False, True):
        found, counts = in_cells('netcal', num_bins, tied=tied)
        n = int(counts.sum())
        values = np.repeat(np.arange(6.0), counts.long()) if tied else np.arange(n, dtype=float)
        edges = np.quantile(values, np.linspace(0, 1, num_bins + 1))
        expected = [int((values < edge).sum()) for edge in edges]
        expected[0], expected[-1] = 0, n  # its first and last edges are 0 and 1
        assert found == expected


@pytest.mark.parametrize('name', ['mmcalib', 'published', 'netcal'])
@pytest.mark.parametrize('seed', range(4))
def test_fine_bins_lie_within_their_bound_by_any_convention(name, seed, monkeypatch):
    rng = np.random.default_rng(seed)
    conf = torch.from_numpy(np.float32(1 - rng.exponential(10.0**-seed, 6000).clip(0, 0.9)))
    correct = torch.from_numpy(rng.uniform(size=6000)) < 0.8
    prediction = Prediction(conf, correct, predicted=torch.zeros(6000, dtype=torch.int64))
    exact = CalibrationState(['AECE'], convention=name).update(prediction).compute()
    state = CalibrationState(['AECE'], convention=name, exact_limit=0)
    monkeypatch.setattr('mmcalib.metrics.bins.narrow_bins.NARROW_BITS', 2)
    fine = state.update(prediction).compute()
    assert abs(fine['AECE'] - exact['AECE']) <= fine['AECE_bound'] + 1e-9


def test_where_ties_are_not_shared_a_cut_cell_may_go_to_either_side():
    # One bin of a right and a wrong prediction of 0.5 and 0.6, which the edge of two bins cuts.
    table, spread = torch.tensor([[2.0], [1.0], [1.1]]).double(), torch.tensor([0.1]).double()
    edge = torch.tensor([0.0, 1.0, 2.0]).double()
    shared = equal_mass_error_bound(table, spread, edge, shares_ties=True).item()
    either = equal_mass_error_bound(table, spread, edge, shares_ties=False).item()
    assert shared == pytest.approx(100 * 2 * (0.5 + 1 * 0.5 * 0.1) / 2)
    assert either == pytest.approx(100 * 2 * (1 * 0.55 + 1 * 0.45 + 2 * 0.1) / 2)


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
