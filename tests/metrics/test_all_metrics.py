"""Every metric against plain loops: of arrays, samples, protocols and ranks."""

import math
import pickle
from functools import partial

import numpy as np
import pytest
import references
import torch
from evaluators import evaluate
from forked import on_ranks
from mmengine.registry import METRICS
from mmpretrain.registry import METRICS as MMPRETRAIN_METRICS
from mmseg.registry import METRICS as MMSEG_METRICS
from samples import as_segmented, classified, probabilities, segmented

from mmcalib.metrics import NAMES, PROTOCOLS, counts, measure, outcomes
from mmcalib.openmmlab.metrics import (
    AECE,
    ECE,
    CalibrationMetric,
    ForegroundIoU,
    ImageScoreMetric,
    OODMetric,
    list_metric as module,
)

LEVELS = ('risk@coverage_0.5', 'coverage@risk_0.3')
EVERY = (*NAMES, *LEVELS)
CURVE_METRICS = ('refinement_NLL', 'calibration_NLL', 'temperature')
# Other metrics need the probabilities of all classes.
CONFIDENCE_METRICS = [
    name
    for name in EVERY
    if name not in (*CURVE_METRICS, 'ClasswiseECE', 'rate_gap', 'NLL', 'Brier')
]


def reference_values(probs, labels, num_bins=15):
    """Return all metrics but those of curves by their definitions; NaN without predictions."""
    if not labels:
        return dict.fromkeys(set(EVERY) - set(CURVE_METRICS), math.nan)
    conf = [max(p) for p in probs]
    correct = [p.index(max(p)) == y for p, y in zip(probs, labels, strict=True)]
    n = len(conf)
    errors = references.expected_errors(conf, correct)
    curve = references.risk_curve(conf, correct)
    squares = (np.array(probs) - np.eye(len(probs[0]))[labels]) ** 2
    return references.equal_width_metrics(conf, correct, num_bins) | {
        'AECE': references.adaptive_calibration_error(conf, correct, num_bins),
        'ClasswiseECE': references.classwise(
            references.expected_calibration_error, probs, labels, num_bins
        ),
        'rate_gap': references.largest_rate_gap(probs, labels),
        'smECE': references.smooth_calibration_error(np.array(conf), np.array(correct)),
        'gap': 100 * (sum(conf) - sum(correct)) / n,
        'gap_size': 100 * abs(sum(conf) - sum(correct)) / n,
        'NLL': -np.log(np.array(probs)[range(n), labels]).mean(),
        'Brier': squares.sum() / n,
        'AURC': 100 * np.mean(curve),
        'AUGRC': 100 * np.mean(errors) / n,
        'AUROC': references.failure_auroc(conf, correct),
        'FPR95': references.failure_fpr(conf, correct),
        'accuracy': 100 * sum(correct) / n,
        'confidence': 100 * sum(conf) / n,
        LEVELS[0]: 100 * curve[math.ceil(0.5 * n) - 1],
        LEVELS[1]: references.coverage_at_risk(curve, 0.3),
    }


def reference_curve_values(samples, *, equal_weights=False):
    """Return the metrics of curves by a search for the temperature.

    Images have their numbers of pixels for weights, or equal ones.
    """
    rows = []
    labels = []
    weights = []
    for sample in samples:
        probs, sample_labels = probabilities([sample])
        rows += [[math.log(p) for p in row] for row in probs]
        labels += sample_labels
        weight = 1 / len(sample_labels) if equal_weights and sample_labels else 1
        weights += [weight] * len(sample_labels)
    least, nll, temperature = references.best_temperature(rows, labels, weights)
    return dict(zip(CURVE_METRICS, (least, nll - least, temperature), strict=True))


def ignore_outside(samples, region):
    """Return samples that ignore all pixels outside of `region(label)`, a mask."""
    masked = []
    for sample in samples:
        label = sample['gt_sem_seg']['data']
        masked.append(sample | {'gt_sem_seg': {'data': label.where(region(label[0]), 255)}})
    return masked


def near_another_label(label):
    distances = [references.distance(label, i, j) for i, j in np.ndindex(*label.shape)]
    return torch.tensor(distances).view(label.shape) <= 1


def in_patches(n):
    """Return segmented samples with patches, of three types of float.

    One has only background, and one has no error.
    """
    samples = segmented(n, size=(10, 7))
    for number, sample in enumerate(samples):
        label = sample['gt_sem_seg']['data']
        logits = sample['seg_logits']['data']
        if number % 2:
            label[0] = label[0, ::4, ::7].repeat_interleave(4, 0).repeat_interleave(7, 1)[:10]
        label[0, 0, 0] = 255
        logits = logits.to((torch.float32, torch.float64, torch.float16)[number % 3])
        sample['seg_logits']['data'] = logits
        sample['pred_sem_seg']['data'] = logits.argmax(0, keepdim=True)
        if number in (1, 2):
            label[:] = 0 if number == 1 else sample['pred_sem_seg']['data']
    return samples


def reference_protocol_values(samples, protocol):
    """Return all metrics under a protocol, by loops."""
    if protocol == 'boundary':
        samples = ignore_outside(samples, near_another_label)
    if protocol in ('foreground', 'paper'):
        samples = ignore_outside(samples, lambda label: label != 0)
    curve_values = reference_curve_values(samples, equal_weights=protocol == 'image')
    images_per_unit = {'paper': 8, 'image': 1}.get(protocol, len(samples))
    weights = []
    unit_values = []
    for start in range(0, len(samples), images_per_unit):
        probs, labels = probabilities(samples[start : start + images_per_unit])
        unit_values.append(reference_values(probs, labels))
        weights.append(1 if protocol == 'image' else len(labels))
    means = {}
    for name in set(EVERY) - set(CURVE_METRICS):
        values = np.array([values[name] for values in unit_values])
        is_defined = ~np.isnan(values)  # A unit without a value has no part in the mean.
        means[name] = np.average(values[is_defined], weights=np.array(weights)[is_defined])
    return means | curve_values


TOLERANCE = {'smECE': dict(abs=0.05), 'temperature': dict(rel=5e-4)}


def assert_values_close(values, expected, prefix=''):
    assert len(values) == len(expected)
    for name, value in expected.items():
        tolerance = TOLERANCE.get(name, dict(abs=1e-5))
        actual = values[f'{prefix}{name}']
        assert actual == pytest.approx(value, **tolerance, nan_ok=True), name


@pytest.fixture(scope='module')
def patches():
    return in_patches(11)


@pytest.mark.parametrize('protocol', PROTOCOLS)
def test_calibration_metric_segmentation_equals_loops(patches, protocol, monkeypatch):
    monkeypatch.setattr(outcomes, 'PIECE_BYTES', 1)  # An image becomes two pieces.
    metric = CalibrationMetric(EVERY, protocol=protocol, boundary_width=1)
    expected = reference_protocol_values(patches, protocol)
    assert_values_close(evaluate(patches, metric), expected, 'calibration/')


@pytest.mark.parametrize(('dtype', 'num_bins'), [('float32', 15), ('float64', 4)])
def test_calibration_metric_and_measure_classifier_equal_loops(dtype, num_bins):
    samples = classified(41)
    # Some confidences are at edges of bins, and one is 1 and wrong.
    for number, conf in enumerate([0.5, 0.75, 0.25, 1.0]):
        rest = torch.full((7,), 1e-8 if conf == 1 else (1 - conf) / 6)
        samples[number]['pred_score'] = rest.index_fill(0, torch.tensor(number), conf)
    samples[3]['gt_label'][:] = 0
    for sample in samples:
        sample['pred_score'] = sample['pred_score'].to(getattr(torch, dtype))
    probs, labels = probabilities(samples)
    expected = reference_values(probs, labels, num_bins) | reference_curve_values(samples)
    values = evaluate(samples, CalibrationMetric(EVERY, num_bins=num_bins))
    assert list(values) == [f'calibration/{name}' for name in EVERY]
    assert_values_close(values, expected, 'calibration/')
    probs = np.array(probs, dtype)
    labels = np.array(labels)
    assert_values_close(measure(probs, labels, EVERY, num_bins=num_bins), expected)
    correct = probs.argmax(1) == labels
    values = measure(
        metrics=CONFIDENCE_METRICS, conf=probs.max(1), correct=correct, num_bins=num_bins
    )
    assert_values_close(values, {name: expected[name] for name in CONFIDENCE_METRICS})


def draw_tied(generator):
    """Return 60 rows of probabilities, some of which are tied, and labels."""
    probs = generator.dirichlet([0.7] * 3, 60).round(2)
    probs[:, 2] = 1 - probs[:, 0] - probs[:, 1]
    return probs.clip(0, 1), generator.integers(0, 3, 60)


@pytest.mark.parametrize('name', EVERY)
def test_measure_permuted_same_and_empty_nan(name):
    generator = np.random.default_rng(0)
    probs, labels = draw_tied(generator)
    expected = measure(probs, labels, name)
    order = generator.permutation(60)
    assert measure(probs[order], labels[order], name) == pytest.approx(expected, abs=1e-9)
    with pytest.warns(UserWarning, match='no prediction is valid'):
        assert math.isnan(measure(probs[:0], labels[:0], name))


def samples_by_rank(samples, world_size, kind):
    """Return the samples of each rank; a sampler interleaves, and pads with the first samples."""
    shares = [samples[rank::world_size] for rank in range(world_size)]
    if kind == 'padded':
        padding = -len(samples) % world_size
        for number in range(padding):
            shares[world_size - padding + number].append(samples[number])
    if kind == 'empty':
        shares = [samples, *[[]] * (world_size - 1)]
    return shares


def full_metric(protocol, **options):
    """Return a metric of all values and statistics that a protocol has."""
    return CalibrationMetric(
        EVERY,
        protocol=protocol,
        per_class=True,
        per_distance=True,
        per_object=protocol == 'pooled',
        confidence_interval=0.9,
        num_bootstrap=20,
        **options,
    )


def kept_tables(metric):
    attributes = vars(getattr(metric, 'statistics', None) or metric)
    return {name: value for name, value in attributes.items() if torch.is_tensor(value)}


OOD_SETS = dict(near=['one'], far=['two', 'three'])
# Each rank alone has fewer predictions than this limit, and all together more.
EXACT_LIMITS = dict(image=500, ood_rounded=30, ood_pixels_rounded=10)


def metric_cases(patches):
    """Return samples and a function that builds a metric, by the name of the case."""
    cases = {protocol: (patches, partial(full_metric, protocol)) for protocol in PROTOCOLS}
    ood_metric = partial(OODMetric, ('max_probability', 'entropy'), ood_index=4)
    ood_samples = classified(41)
    for number, sample in enumerate(ood_samples):
        if number % 3 == 0:
            sample['gt_label'] = -torch.tensor([number % 4])
    for suffix in ('', '_rounded'):
        cases[f'ood{suffix}'] = (ood_samples, ood_metric)
        cases[f'ood_pixels{suffix}'] = (patches, ood_metric)
    cases['images'] = (patches, partial(ImageScoreMetric, ('confidence', 'soft_dice')))
    cases['IoU'] = (patches, ForegroundIoU)
    return cases


def values_and_tables(name, samples, metric, monkeypatch, **options):
    """Return the values of a metric, and the tables that it keeps."""
    monkeypatch.setattr(counts, 'EXACT_LIMIT', EXACT_LIMITS.get(name, 1_000_000))
    meta = dict(ood_sets=OOD_SETS) if name in ('ood', 'ood_rounded') else None
    values = evaluate(samples, metric, batch=2, meta=meta, **options)
    return values, kept_tables(metric)


def save_results_of_rank(rank, world_size, patches, folder):
    results = {}
    with pytest.MonkeyPatch.context() as monkeypatch:
        for number, (name, (samples, build)) in enumerate(metric_cases(patches).items()):
            kind = ('padded', 'uneven', 'empty')[(number + world_size) % 3]
            if name == 'paper':
                kind = 'padded'
            rank_samples = samples_by_rank(samples, world_size, kind)[rank]
            metric = build(collect_dir=f'{folder}/{name}')
            results[name] = values_and_tables(
                name, rank_samples, metric, monkeypatch, size=len(samples)
            )
    torch.save(results, f'{folder}/{rank}.pt')


@pytest.mark.parametrize('world_size', [2, 3])
def test_metrics_any_split_over_ranks_equal_one_process(world_size, patches, tmp_path, monkeypatch):
    on_ranks(save_results_of_rank, world_size, world_size, patches, str(tmp_path))
    ranks = [torch.load(f'{tmp_path}/{n}.pt', weights_only=False) for n in range(world_size)]
    for name, (samples, build) in metric_cases(patches).items():
        expected, expected_tables = values_and_tables(name, samples, build(), monkeypatch)
        for results in ranks:
            values, _ = results[name]
            assert values == pytest.approx(expected, abs=1e-9, nan_ok=True), name
        _, tables = ranks[0][name]
        assert tables.keys() == expected_tables.keys()
        for key, table in tables.items():
            torch.testing.assert_close(
                table, expected_tables[key], rtol=0, atol=1e-9, equal_nan=True
            )
    for name in ('ood', 'ood_pixels'):
        exact, _ = ranks[0][name]
        rounded, _ = ranks[0][f'{name}_rounded']
        assert exact != rounded
        assert rounded == pytest.approx(exact, abs=1)


def test_results_of_an_image_pickled_are_small():
    torch.manual_seed(0)
    logits = 6 * torch.randn(3, 300, 300)
    label = torch.randint(3, (300, 300))
    metric = CalibrationMetric(NAMES, per_distance=True)
    metric.process(None, [as_segmented(logits, logits.argmax(0), label)] * 12)
    assert all(image.is_rounded for image in metric.results)
    assert len(pickle.dumps(metric.results[-1])) < 100_000
    values = metric.evaluate(12)
    exact_metric = CalibrationMetric(NAMES)
    exact_metric.process(None, [as_segmented(logits, logits.argmax(0), label)])
    assert not exact_metric.results[0].is_rounded
    exact_values = exact_metric.evaluate(1)
    # The same pixels twelve times have the same metrics, but for one that depends on their number.
    for name in set(NAMES) - {'debiasedECE'}:
        margin = 0.02 if name == 'FPR95' else 1e-3
        expected = exact_values[f'calibration/{name}']
        assert values[f'calibration/{name}'] == pytest.approx(expected, abs=margin), name


def test_calibration_metric_no_valid_prediction_is_nan(monkeypatch):
    log_lines = []
    monkeypatch.setattr(module, 'print_log', lambda text, **options: log_lines.append(text))
    ignored_samples = segmented(2)
    for sample in ignored_samples:
        sample['gt_sem_seg']['data'].fill_(255)
    for samples in (ignored_samples, []):
        values = evaluate(samples, CalibrationMetric(EVERY, confidence_interval=0.9))
        assert len(values) == len(EVERY)
        assert all(map(math.isnan, values.values()))
        assert 'no valid prediction' in log_lines.pop()


def test_calibration_metric_other_number_of_samples_raises_and_forgets_them():
    samples = segmented(5)
    metric = CalibrationMetric()
    with pytest.raises(ValueError, match=r'6 samples .* 1 processes, .* has 5'):
        evaluate([*samples, samples[0]], metric, size=5)
    with pytest.raises(ValueError, match=r'4 samples .* has 5'):
        evaluate(samples[:4], metric, size=5)
    assert evaluate(samples, metric) == evaluate(samples) == evaluate(samples, metric)


def test_metrics_have_their_prefixes_and_are_in_the_root_registry():
    values = evaluate(classified(9), ECE(), ECE(num_bins=5, prefix='coarse'), AECE())
    assert set(values) == {'calibration/ECE', 'coarse/ECE', 'calibration/AECE'}
    for name in ('ECE', 'AECE', 'ClasswiseECE', 'CalibrationMetric'):
        assert name in METRICS.module_dict
        assert name not in MMPRETRAIN_METRICS.module_dict
        assert name not in MMSEG_METRICS.module_dict


def test_ranking_saturated_predictions_are_told_apart():
    """The logits of two classes are 18 to 57 nats apart, and the less sure half is wrong."""
    gaps = torch.linspace(18, 57, 400)
    logits = torch.stack([gaps / 2, -gaps / 2])
    label = (torch.arange(400) < 200).long()
    assert (logits.softmax(0)[0] == 1).sum() > 390
    segmented_sample = as_segmented(
        logits.view(2, 20, 20), torch.zeros(20, 20, dtype=int), label.view(20, 20)
    )
    classified_samples = []
    for row, row_label in zip(logits.T, label, strict=True):
        classified_samples.append(dict(pred_score=row.softmax(0), gt_label=row_label[None]))
    for samples in ([segmented_sample], classified_samples):
        values = evaluate(samples, CalibrationMetric(['AUROC', 'FPR95', 'AECE', 'ECE']))
        assert values['calibration/AUROC'] == pytest.approx(100)
        assert values['calibration/FPR95'] == 0
        assert values['calibration/AECE'] == pytest.approx(values['calibration/ECE'], abs=1e-5)
