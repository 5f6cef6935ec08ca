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
from mmpretrain.registry import METRICS as PRETRAIN
from mmseg.registry import METRICS as SEG
from samples import as_segmented, classified, probabilities, segmented

from mmcalib.metrics import NAMES, PROTOCOLS, counts, measure, outcomes
from mmcalib.openmmlab.metrics import (
    AECE,
    ECE,
    CalibrationMetric,
    ForegroundIoU,
    ImageScoreMetric,
    OODMetric,
)
from mmcalib.openmmlab.metrics import list_metric as module

LEVELS = ('risk@coverage_0.5', 'coverage@risk_0.3')
EVERY = (*NAMES, *LEVELS)
OF_CURVES = ('refinement_NLL', 'calibration_NLL', 'temperature')
# What does not need the probabilities of all classes.
OF_CONFIDENCE = [n for n in EVERY if n not in (*OF_CURVES, 'ClasswiseECE', 'NLL', 'Brier')]


def by_loops(probs, labels, num_bins=15):
    """Every metric but those of curves, by its definition; NaN of nothing."""
    if not labels:
        return dict.fromkeys(set(EVERY) - set(OF_CURVES), math.nan)
    conf = [max(p) for p in probs]
    correct = [p.index(max(p)) == y for p, y in zip(probs, labels, strict=True)]
    n, errors = len(conf), references.errors_among_the_first(conf, correct)
    curve = references.risk_curve(conf, correct)
    squares = (np.array(probs) - np.eye(len(probs[0]))[labels]) ** 2
    return references.errors_of_bins(conf, correct, num_bins) | {
        'AECE': references.adaptive_calibration_error(conf, correct, num_bins),
        'ClasswiseECE': references.classwise(
            references.expected_calibration_error, probs, labels, num_bins
        ),
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


def curves_by_loops(samples, *, alike=False):
    """The metrics of curves, by a search for the temperature; images may count alike."""
    rows, labels, weights = [], [], []
    for sample in samples:
        probs, own = probabilities([sample])
        rows += [[math.log(p) for p in row] for row in probs]
        labels += own
        weights += [1 / len(own) if alike else 1] * len(own)
    least, nll, temperature = references.best_temperature(rows, labels, weights)
    return dict(zip(OF_CURVES, (least, nll - least, temperature), strict=True))


def masked(samples, keep):
    """The samples with every pixel ignored that `keep(label)` is false for."""
    maps = [sample['gt_sem_seg']['data'] for sample in samples]
    kept = [{'data': label.where(keep(label[0]), 255)} for label in maps]
    return [s | {'gt_sem_seg': label} for s, label in zip(samples, kept, strict=True)]


def near_another_label(label):
    away = [references.distance(label, i, j) for i, j in np.ndindex(*label.shape)]
    return torch.tensor(away).view(label.shape) <= 1


def in_patches(n):
    """Segmented samples of patches and three types, one all background and one without an error."""
    samples = segmented(n, size=(10, 7))
    for number, sample in enumerate(samples):
        label, logits = sample['gt_sem_seg']['data'], sample['seg_logits']['data']
        if number % 2:
            label[0] = label[0, ::4, ::7].repeat_interleave(4, 0).repeat_interleave(7, 1)[:10]
        label[0, 0, 0] = 255
        logits = logits.to((torch.float32, torch.float64, torch.float16)[number % 3])
        sample['seg_logits']['data'] = logits
        sample['pred_sem_seg']['data'] = logits.argmax(0, keepdim=True)
        if number in (1, 2):
            label[:] = 0 if number == 1 else sample['pred_sem_seg']['data']
    return samples


def by_protocol(samples, protocol):
    """All metrics under a protocol, by plain loops."""
    if protocol == 'boundary':
        samples = masked(samples, near_another_label)
    if protocol in ('foreground', 'paper'):
        samples = masked(samples, lambda label: label != 0)
    curves = curves_by_loops(samples, alike=protocol == 'image')
    step = {'paper': 8, 'image': 1}.get(protocol, len(samples))
    groups = [samples[i : i + step] for i in range(0, len(samples), step)]
    values = [by_loops(*probabilities(group)) for group in groups]
    sizes = [1 if protocol == 'image' else len(probabilities(group)[1]) for group in groups]
    means = {}
    for name in set(EVERY) - set(OF_CURVES):  # what is not defined in a group drops out
        own = [(w, v[name]) for w, v in zip(sizes, values, strict=True) if v[name] == v[name]]
        means[name] = sum(w * v for w, v in own) / sum(w for w, _ in own)
    return means | curves


TOLERANCE = {'smECE': dict(abs=0.05), 'temperature': dict(rel=5e-4)}


def check(values, expected, prefix=''):
    assert len(values) == len(expected)
    for name, value in expected.items():
        found = values[f'{prefix}{name}']
        assert found == pytest.approx(value, **TOLERANCE.get(name, dict(abs=1e-5)), nan_ok=True), (
            name
        )


@pytest.fixture(scope='module')
def patches():
    return in_patches(11)


@pytest.mark.parametrize('protocol', PROTOCOLS)
def test_a_segmentation(patches, protocol, monkeypatch):
    monkeypatch.setattr(outcomes, 'PIECE_BYTES', 1)  # so that an image is two pieces
    metric = CalibrationMetric(EVERY, protocol=protocol, boundary_width=1)
    check(evaluate(patches, metric), by_protocol(patches, protocol), 'calibration/')


@pytest.mark.parametrize(('dtype', 'num_bins'), [('float32', 15), ('float64', 4)])
def test_a_classifier_and_arrays(dtype, num_bins):
    samples = classified(41)
    # At edges of bins, and one at 1 that is wrong.
    for number, conf in enumerate([0.5, 0.75, 0.25, 1.0]):
        rest = torch.full((7,), 1e-8 if conf == 1 else (1 - conf) / 6)
        samples[number]['pred_score'] = rest.index_fill(0, torch.tensor(number), conf)
    samples[3]['gt_label'][:] = 0
    for sample in samples:
        sample['pred_score'] = sample['pred_score'].to(getattr(torch, dtype))
    probs, labels = probabilities(samples)
    expected = by_loops(probs, labels, num_bins) | curves_by_loops(samples)
    values = evaluate(samples, CalibrationMetric(EVERY, num_bins=num_bins))
    assert list(values) == [f'calibration/{name}' for name in EVERY]
    check(values, expected, 'calibration/')
    array, labels = np.array(probs, dtype), np.array(labels)
    check(measure(array, labels, EVERY, num_bins=num_bins), expected)
    conf, correct = array.max(1), array.argmax(1) == labels
    found = measure(metrics=OF_CONFIDENCE, conf=conf, correct=correct, num_bins=num_bins)
    check(found, {name: expected[name] for name in OF_CONFIDENCE})


@pytest.mark.parametrize('name', EVERY)
def test_order_ties_and_numbers_of_times(name):
    """Permuted or all twice, it is the same but for what noise adds; of one value it is defined."""
    generator = np.random.default_rng(0)
    probs = generator.dirichlet([0.7] * 3, 60).round(2)
    probs[:, 2] = 1 - probs[:, 0] - probs[:, 1]
    probs, labels = probs.clip(0, 1), generator.integers(0, 3, 60)
    value = measure(probs, labels, name)
    order = generator.permutation(60)
    assert measure(probs[order], labels[order], name) == pytest.approx(value, abs=1e-9)
    if name not in ('debiasedECE', 'AUGRC', 'AURC', 'FPR95', *LEVELS):
        twice = measure(np.concatenate([probs, probs]), np.concatenate([labels, labels]), name)
        assert twice == pytest.approx(value, abs=1e-9)
    with pytest.warns(UserWarning, match='no prediction is valid'):
        assert math.isnan(measure(probs[:0], labels[:0], name))


def _shares(samples, world_size, kind):
    """What each rank has; a sampler interleaves, and pads with the first samples."""
    shares = [samples[rank::world_size] for rank in range(world_size)]
    if kind == 'padded':
        padding = -len(samples) % world_size
        for number in range(padding):
            shares[world_size - padding + number].append(samples[number])
    if kind == 'empty':
        shares = [samples, *[[]] * (world_size - 1)]
    return shares


def of_every_kind(protocol, **options):
    """A metric of all there is to measure."""
    return CalibrationMetric(
        EVERY, protocol=protocol, per_class=True, per_distance=True,
        per_object=protocol == 'pooled', confidence_interval=0.9, num_bootstrap=20, **options,
    )  # fmt: skip


def tables(metric):
    found = vars(getattr(metric, 'statistics', None) or metric).items()
    return {name: table for name, table in found if torch.is_tensor(table)}


SETS = dict(near=['one'], far=['two', 'three'])
# Each rank alone has fewer predictions than this, and all together more.
LIMITED = dict(image=500, ood_rounded=30, ood_pixels_rounded=10)


def every_metric(patches):
    """By name, samples and a metric of them."""
    found = {protocol: (patches, partial(of_every_kind, protocol)) for protocol in PROTOCOLS}
    ood = partial(OODMetric, ('max_probability', 'entropy'), ood_index=4)
    unseen = classified(41)
    for number, sample in enumerate(unseen):
        sample['gt_label'] = sample['gt_label'] if number % 3 else -torch.tensor([number % 4])
    for end in ('', '_rounded'):
        found |= {f'ood{end}': (unseen, ood), f'ood_pixels{end}': (patches, ood)}
    found['images'] = patches, partial(ImageScoreMetric, ('confidence', 'soft_dice'))
    found['IoU'] = patches, ForegroundIoU
    return found


def measured(name, samples, metric, monkeypatch, **options):
    """What a metric returns, and the tables that it keeps."""
    monkeypatch.setattr(counts, 'EXACT_LIMIT', LIMITED.get(name, 1_000_000))
    sets = dict(ood_sets=SETS) if name in ('ood', 'ood_rounded') else None
    return evaluate(samples, metric, batch=2, meta=sets, **options), tables(metric)


def _split(rank, world_size, patches, folder):
    values = {}
    with pytest.MonkeyPatch.context() as monkeypatch:
        for number, (name, (samples, build)) in enumerate(every_metric(patches).items()):
            kind = ('padded', 'uneven', 'empty')[(number + world_size) % 3]
            kind = 'padded' if name == 'paper' else kind
            share = _shares(samples, world_size, kind)[rank]
            metric = build(collect_dir=f'{folder}/{name}')
            values[name] = measured(name, share, metric, monkeypatch, size=len(samples))
    torch.save(values, f'{folder}/{rank}.pt')


@pytest.mark.parametrize('world_size', [2, 3])
def test_any_split_over_ranks(world_size, patches, tmp_path, monkeypatch):
    on_ranks(_split, world_size, world_size, patches, str(tmp_path))
    ranks = [torch.load(f'{tmp_path}/{n}.pt', weights_only=False) for n in range(world_size)]
    for name, (samples, build) in every_metric(patches).items():
        values, whole = measured(name, samples, build(), monkeypatch)
        for rank in ranks:
            assert rank[name][0] == pytest.approx(values, abs=1e-9, nan_ok=True), name
        assert ranks[0][name][1].keys() == whole.keys()
        for key, table in ranks[0][name][1].items():
            torch.testing.assert_close(table, whole[key], rtol=0, atol=1e-9, equal_nan=True)
    for name in ('ood', 'ood_pixels'):
        exact, found = (ranks[0][f'{name}{end}'][0] for end in ('', '_rounded'))
        assert exact != found == pytest.approx(exact, abs=1)


def test_what_an_image_leaves_is_pickled_and_small():
    generator = torch.Generator().manual_seed(0)
    logits = 6 * torch.randn(3, 300, 300, generator=generator)
    label = torch.randint(3, (300, 300), generator=generator)
    metric = CalibrationMetric(NAMES, per_distance=True)
    metric.process(None, [as_segmented(logits, logits.argmax(0), label)] * 12)
    assert all(image.is_rounded for image in metric.results)
    size = len(pickle.dumps(metric.results[-1]))
    assert size < 100_000
    values = metric.evaluate(12)
    few = CalibrationMetric(NAMES)
    few.process(None, [as_segmented(logits, logits.argmax(0), label)])
    assert not few.results[0].is_rounded
    exact = few.evaluate(1)
    for name in NAMES:  # of the same pixels twelve times
        if name not in ('debiasedECE',):
            value, margin = exact[f'calibration/{name}'], 0.02 if name == 'FPR95' else 1e-3
            assert values[f'calibration/{name}'] == pytest.approx(value, abs=margin), name


def test_nothing_valid_is_nan(monkeypatch):
    said = []
    monkeypatch.setattr(module, 'print_log', lambda text, **options: said.append(text))
    samples = segmented(2)
    for sample in samples:
        sample['gt_sem_seg']['data'].fill_(255)
    for found in (samples, []):
        values = evaluate(found, CalibrationMetric(EVERY, confidence_interval=0.9))
        assert len(values) == len(EVERY) and all(map(math.isnan, values.values()))
        assert 'no valid prediction' in said.pop()


def test_more_samples_than_the_data_set_has_are_refused_and_forgotten():
    samples, metric = segmented(5), CalibrationMetric()
    with pytest.raises(ValueError, match=r'6 samples .* 1 processes, .* has 5'):
        evaluate([*samples, samples[0]], metric, size=5)
    with pytest.raises(ValueError, match=r'4 samples .* has 5'):
        evaluate(samples[:4], metric, size=5)
    assert evaluate(samples, metric) == evaluate(samples) == evaluate(samples, metric)


def test_names_prefixes_and_toolboxes():
    values = evaluate(classified(9), ECE(), ECE(num_bins=5, prefix='coarse'), AECE())
    assert set(values) == {'calibration/ECE', 'coarse/ECE', 'calibration/AECE'}
    for name in ('ECE', 'AECE', 'ClasswiseECE', 'CalibrationMetric'):
        assert [name in each.module_dict for each in (METRICS, PRETRAIN, SEG)] == [1, 0, 0]


def test_saturated_predictions_are_ranked_by_what_float32_rounds_away():
    """Of two classes, 18 to 57 nats apart, the less sure half is wrong."""
    gaps = torch.linspace(18, 57, 400)
    logits, label = torch.stack([gaps / 2, -gaps / 2]), (torch.arange(400) < 200).long()
    assert (logits.softmax(0)[0] == 1).sum() > 390
    maps = logits.view(2, 20, 20), torch.zeros(20, 20, dtype=int), label.view(20, 20)
    rows = [
        dict(pred_score=z.softmax(0), gt_label=y[None])
        for z, y in zip(logits.T, label, strict=True)
    ]
    for samples in ([as_segmented(*maps)], rows):
        values = evaluate(samples, CalibrationMetric(['AUROC', 'FPR95', 'AECE', 'ECE']))
        assert values['calibration/AUROC'] == pytest.approx(100)
        assert values['calibration/FPR95'] == 0
        assert values['calibration/AECE'] == pytest.approx(values['calibration/ECE'], abs=1e-5)
