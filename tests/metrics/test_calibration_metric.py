"""The registered metrics, on one process and on several gloo ranks."""

import itertools
import math

import pytest
import references
import torch
from forked import on_ranks
from mmengine.evaluator import Evaluator
from mmengine.registry import METRICS
from samples import classified, flatten, probabilities, segmented

from mmcalib.metrics import (
    AECE,
    ECE,
    NAMES,
    PROTOCOLS,
    CalibrationMetric,
    CalibrationState,
    CalibrationStatistics,
    Prediction,
    protocol_groups,
)
from mmcalib.metrics import calibration_metric as module
from mmcalib.metrics.bins import narrow_bins as narrow_module
from mmcalib.metrics.bins.conventions import CONVENTIONS
from mmcalib.metrics.bins.narrow_bins import ConfidenceBins
from mmcalib.metrics.bins.smooth_calibration_error import binned_smooth_error


def evaluate(samples, *metrics, batch=4, size=None):
    evaluator = Evaluator(list(metrics) or [CalibrationMetric()])
    for start in range(0, len(samples), batch):
        evaluator.process(samples[start : start + batch])
    return evaluator.evaluate(len(samples) if size is None else size)


OF_FOLDS = ('refinement_NLL', 'calibration_NLL', 'temperature')


def of_folds(samples, by_image=False):
    """Refinement, what is left and the temperature by plain loops; images may count alike."""
    rows, labels, images, weights = [], [], [], []
    for place, sample in enumerate(samples):
        probs, own = probabilities([sample])
        rows += [[math.log(p) for p in row] for row in probs]
        labels += own
        images += [place] * len(own)
        weights += [1 / len(own) if by_image else 1] * len(own)
    nll, refined, temperature = references.refinement(rows, labels, images, weights)
    return dict(zip(OF_FOLDS, (refined, nll - refined, temperature), strict=True))


def every_metric(samples, num_bins=15):
    """The metrics of some samples by plain loops, those of an image without predictions as NaN.

    But for those of folds, which are of all images together.
    """
    probs, labels = probabilities(samples)
    if not labels:
        return dict.fromkeys(NAMES, math.nan)
    conf, correct = flatten(samples)
    own = [p[y] for p, y in zip(probs, labels, strict=True)]
    n, errors = len(conf), references.errors_among_the_first(conf, correct)
    parts = references.brier_parts(conf, correct, num_bins)
    return {
        'ECE': references.expected_calibration_error(conf, correct, num_bins),
        'AECE': references.adaptive_calibration_error(conf, correct, num_bins),
        'ClasswiseECE': references.classwise_calibration_error(probs, labels, num_bins),
        'ClasswiseAECE': references.classwise_adaptive_error(probs, labels, num_bins),
        'TACE': references.classwise_adaptive_error(probs, labels, num_bins, threshold=0.01),
        'MCE': references.maximum_calibration_error(conf, correct, num_bins),
        'RMSCE': references.root_mean_square_calibration_error(conf, correct, num_bins),
        'OE': references.overconfidence_error(conf, correct, num_bins),
        'NLL': -sum(map(math.log, own)) / len(own),
        'Brier': sum(
            sum((p - (k == y)) ** 2 for k, p in enumerate(row))
            for row, y in zip(probs, labels, strict=True)
        )
        / len(probs),
        'accuracy': 100 * sum(correct) / len(correct),
        'confidence': 100 * sum(conf) / len(conf),
        'gap': 100 * (sum(conf) - sum(correct)) / len(correct),
        'debiasedECE': references.debiased_calibration_error(conf, correct, num_bins),
        'ACE': references.average_calibration_error(conf, correct, num_bins),
        **dict(zip(('reliability', 'resolution', 'uncertainty'), parts, strict=True)),
        # Held against its own definition elsewhere, which takes long.
        'smECE': binned_smooth_error(
            ConfidenceBins().add(torch.tensor(conf).double(), torch.tensor(correct)).table()
        ).item(),
        'AURC': 100 * sum(found / i for i, found in enumerate(errors, 1)) / n,
        'AUGRC': 100 * sum(errors) / n**2,
        'AUROC': references.failure_auroc_of_pairs(conf, correct),
        'FPR95': references.failure_fpr_of_groups(conf, correct),
    }


def masked(samples, keep):
    """The samples with every pixel ignored that `keep(label, i, j)` is false for."""
    kept = []
    for sample in samples:
        label = sample['gt_sem_seg']['data'][0]
        new = label.clone()
        for i in range(label.shape[0]):
            for j in range(label.shape[1]):
                if not keep(label, i, j):
                    new[i, j] = 255
        kept.append(sample | {'gt_sem_seg': {'data': new[None]}})
    return kept


def near_another_label(label, i, j, width=1):
    window = label[max(i - width, 0) : i + width + 1, max(j - width, 0) : j + width + 1]
    return any(other != label[i, j] for other in window.flatten())


def in_patches(n):
    """Segmented samples whose labels are patches, one of them without foreground."""
    samples = segmented(n, size=(12, 14))
    for number, sample in enumerate(samples):
        label = sample['gt_sem_seg']['data']
        label[0] = label[0, ::4, ::7].repeat_interleave(4, 0).repeat_interleave(7, 1)
        label[0, 0, 0] = 255
        if number == 1:
            label.fill_(0)
    return samples


def by_protocol(samples, protocol):
    """All metrics under a protocol, by plain loops."""
    if protocol == 'boundary':
        samples = masked(samples, near_another_label)
        return every_metric(samples) | of_folds(samples)
    if protocol in ('foreground', 'paper'):
        samples = masked(samples, lambda label, i, j: label[i, j] != 0)
    folded = of_folds(samples, by_image=protocol == 'image')
    if protocol in ('pooled', 'foreground'):
        return every_metric(samples) | folded
    step = 8 if protocol == 'paper' else 1
    groups = [samples[i : i + step] for i in range(0, len(samples), step)]
    values = [every_metric(group) for group in groups]
    counts = [len(flatten(group)[0]) for group in groups]
    weights = [n if protocol == 'paper' else 1 for n in counts]
    means = {}
    for name in set(NAMES) - set(OF_FOLDS):  # what is not defined in a group drops out
        own = [(w, v[name]) for w, v in zip(weights, values, strict=True) if v[name] == v[name]]
        means[name] = sum(w * v for w, v in own) / sum(w for w, _ in own) if own else math.nan
    return means | folded


@pytest.mark.parametrize(
    ('protocol', 'group_limit'), [*((name, 1 << 14) for name in PROTOCOLS), ('paper', 0)]
)
def test_every_metric_and_protocol_equals_plain_loops(protocol, group_limit, monkeypatch):
    monkeypatch.setattr(protocol_groups, 'GROUP_LIMIT', group_limit)
    samples = in_patches(11)
    metric = CalibrationMetric(NAMES, protocol=protocol, boundary_width=1)
    values = evaluate(samples, metric)
    bounds = {name for name in values if name.endswith('_bound')}
    # Those of all classes are never exact.
    assert len(bounds) == (8 if group_limit == 0 else 2)
    assert all(0 <= values[name] <= 100 for name in bounds)
    for name, expected in by_protocol(samples, protocol).items():
        margin = 1e-5 + values.get(f'calibration/{name}_bound', 0)
        found = values[f'calibration/{name}']
        assert found == pytest.approx(expected, abs=margin, nan_ok=True), name


def test_every_metric_of_a_classifier():
    samples = classified(41)
    values = evaluate(samples, CalibrationMetric(NAMES))
    expected = every_metric(samples) | of_folds(samples)
    bounds = {'ClasswiseAECE': 'ClasswiseAECE_bound', 'TACE': 'TACE_bound'}
    assert list(values) == [f'calibration/{name}' for name in (*NAMES, *bounds.values())]
    for name in NAMES:
        margin = 1e-5 + values.get(f'calibration/{bounds.get(name)}', 0)
        assert values[f'calibration/{name}'] == pytest.approx(expected[name], abs=margin), name
    with pytest.raises(ValueError, match="protocol 'image' is for segmentation"):
        evaluate(samples, CalibrationMetric(protocol='image'))


def test_prefixes_keep_two_metrics_apart():
    values = evaluate(classified(9), ECE(), ECE(num_bins=5, prefix='coarse'))
    assert set(values) == {'calibration/ECE', 'coarse/ECE'}


def test_registered_in_the_root_under_names_that_no_toolbox_has():
    mmpretrain = pytest.importorskip('mmpretrain')
    mmseg = pytest.importorskip('mmseg')
    for name in ('ECE', 'AECE', 'ClasswiseECE', 'CalibrationMetric'):
        assert METRICS.get(name).__module__.startswith('mmcalib')
        for toolbox in (mmpretrain, mmseg):
            registry = __import__(f'{toolbox.__name__}.registry', fromlist=['METRICS']).METRICS
            assert name not in registry.module_dict


def test_more_samples_than_the_data_set_has_are_refused_and_forgotten():
    samples, metric = segmented(5), CalibrationMetric()
    with pytest.raises(ValueError, match=r'6 samples .* 1 processes, .* has 5.*call reset\(\)'):
        evaluate([*samples, samples[0]], metric, size=5)
    assert evaluate(samples, metric) == evaluate(samples)


def test_an_evaluation_that_was_broken_off_leaves_nothing():
    samples, metric = segmented(5), CalibrationMetric(NAMES, protocol='paper')
    broken = segmented(3, seed=1)
    del broken[2]['gt_sem_seg']
    with pytest.raises(ValueError, match='LoadAnnotations'):
        evaluate(broken, metric)
    assert evaluate(samples, metric) == evaluate(
        samples, CalibrationMetric(NAMES, protocol='paper')
    )
    metric.process(None, samples[:3])  # and the model fails
    metric.reset()
    assert evaluate(samples, metric) == evaluate(
        samples, CalibrationMetric(NAMES, protocol='paper')
    )


def test_nothing_valid_is_nan():
    samples = segmented(2)
    for sample in samples:
        sample['gt_sem_seg']['data'].fill_(255)
    assert all(math.isnan(value) for value in evaluate(samples).values())
    assert all(math.isnan(value) for value in evaluate([]).values())


@pytest.mark.parametrize('convention', CONVENTIONS)
@pytest.mark.parametrize('num_classes', [2, 7])
@pytest.mark.parametrize('dtype', [torch.float32, torch.float16, torch.float64])
def test_a_batch_of_a_classifier_counts_as_one_sample_after_the_other(
    convention, num_classes, dtype
):
    samples = classified(23, num_classes)
    for number, sample in enumerate(samples):
        # In the last batch of 5 they are not alike, which leaves the short way.
        sample['pred_score'] = sample['pred_score'].to(torch.float64 if number == 21 else dtype)
    names = [name for name in NAMES if name not in CONVENTIONS[convention].missing]
    options = dict(convention=convention, per_class=True, confidence_interval=0.9)
    found = []
    for batch in (1, 5, 23):
        metric = CalibrationMetric(names, num_bootstrap=20, **options)
        metric.keep_statistics = True
        found.append((evaluate(samples, metric, batch=batch), metric.statistics))
    (values, statistics), *others = found
    for other, tables in others:
        assert other == pytest.approx(values, abs=1e-5, nan_ok=True)
        for name in ('narrow_bins', 'image_bins', 'image_narrow_bins', 'class_bins'):
            assert torch.equal(getattr(tables, name), getattr(statistics, name))


def test_an_empty_batch_changes_nothing():
    metric = CalibrationMetric()
    metric.process(None, classified(5))
    metric.process(None, [])
    assert metric.evaluate(5) == evaluate(classified(5), CalibrationMetric())


def test_a_broken_sample_of_a_batch_is_named():
    samples = classified(5)
    samples[3]['gt_label'] = torch.tensor([7])
    with pytest.raises(ValueError, match=r'sample 3 has 1 labels outside \[0, 7\): 7'):
        evaluate(samples, batch=5)
    samples[3]['gt_label'] = torch.tensor([1, 2])
    with pytest.raises(ValueError, match=r'sample 3 needs one gt_label; got \[1, 2\]'):
        evaluate(samples, batch=5)


def test_images_that_a_protocol_takes_apart_are_counted_one_by_one():
    state = CalibrationState(['ECE'], protocol='image')
    with pytest.raises(ValueError, match='a protocol divides'):
        state.update_each(Prediction(torch.ones(2), torch.ones(2).bool()), places=[0, 1])


@pytest.mark.parametrize('name', ['nll', 'brier'])
def test_a_sum_is_not_taken_for_a_value_of_each_image(name):
    sums = Prediction(torch.ones(2), torch.ones(2).bool())._replace(**{name: torch.tensor(1.0)})
    with pytest.raises(ValueError, match='for each prediction, not as sums'):
        CalibrationState(['ECE']).update_each(sums, places=[0, 1])


def test_evaluating_twice_starts_afresh():
    metric = CalibrationMetric()
    first = evaluate(segmented(3), metric)
    assert evaluate(segmented(3), metric) == first


def test_errors_name_the_image_or_the_index():
    with pytest.raises(ValueError, match=r'image_1\.jpg has 1020 NaN'):
        samples = segmented(2)
        samples[1]['seg_logits']['data'].fill_(float('nan'))
        evaluate(samples)
    with pytest.raises(ValueError, match='pred_score of sample 2 has 7 NaN'):
        samples = classified(3)
        samples[2]['pred_score'].fill_(float('nan'))
        evaluate(samples)


@pytest.mark.parametrize(
    ('options', 'message'),
    [
        (dict(num_bins=0), 'num_bins must be an integer of at least 1, got 0'),
        (dict(metrics=['ECE', 'MCE!']), r"some of \('ECE', .*'coverage@risk_LEVEL'\), got 'MCE!'"),
        (
            dict(metrics=['risk@coverage']),
            r"needs a level .* as in risk@coverage_0\.8; got 'risk@c",
        ),
        (dict(metrics=['coverage@risk_5']), "a level between 0 and 1, .*; got 'coverage@risk_5'"),
        (dict(metrics=[]), 'metrics must be some of'),
        (dict(protocol='voc'), r"protocol must be one of \(.*\), got 'voc'"),
        (dict(boundary_width=0), 'boundary_width must be an integer of at least 1, got 0'),
        (dict(confidence_interval=95), r'confidence_interval must be in \(0, 1\), got 95'),
        (dict(metrics=['AECE'], confidence_interval=0.9), 'AECE has no interval'),
        (dict(out_file='ece.txt'), "a .json or .npz file, got 'ece.txt'"),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        CalibrationMetric(**options)


@pytest.mark.parametrize('ignore_index', [[0, 255], '255', True, None])
def test_one_label_is_ignored(ignore_index):
    with pytest.raises(TypeError, match=r'ignore_index must be an integer, such as 255, got'):
        CalibrationMetric(ignore_index=ignore_index)


def test_a_confidence_interval_covers_and_repeats():
    samples = segmented(30)
    options = dict(confidence_interval=0.9, num_bootstrap=400)
    values = evaluate(samples, CalibrationMetric(['ECE', 'NLL', 'AECE'], **options))
    assert 'calibration/AECE_low' not in values
    for name in ('ECE', 'NLL'):
        low, high = (values[f'calibration/{name}_{end}'] for end in ('low', 'high'))
        assert low < values[f'calibration/{name}'] < high
    assert evaluate(samples, CalibrationMetric(['ECE', 'NLL', 'AECE'], **options)) == values
    other = evaluate(samples, CalibrationMetric(['ECE'], seed=1, **options))
    assert other['calibration/ECE_low'] != values['calibration/ECE_low']


@pytest.mark.parametrize('protocol', PROTOCOLS)
def test_one_image_has_no_interval(protocol, monkeypatch):
    samples = in_patches(8 if protocol == 'paper' else 1)
    for sample in in_patches(3):  # without a valid pixel
        sample['gt_sem_seg']['data'].fill_(255)
        samples.append(sample)
    metric = CalibrationMetric(['ECE', 'NLL'], protocol=protocol, confidence_interval=0.95)
    said = []
    monkeypatch.setattr(module, 'print_log', lambda text, **options: said.append(text))
    values = evaluate(samples, metric)
    unit = 'batch of images' if protocol == 'paper' else 'image'
    assert sum(f'all predictions come from one {unit}' in text for text in said) == 1
    assert values['calibration/ECE'] > 0
    for name in ('ECE_low', 'ECE_high', 'NLL_low', 'NLL_high'):
        assert math.isnan(values[f'calibration/{name}'])


def test_levels_are_part_of_the_name():
    samples = classified(41)
    conf, correct = flatten(samples)
    errors = references.errors_among_the_first(conf, correct)
    values = evaluate(samples, CalibrationMetric(['risk@coverage_0.5', 'coverage@risk_0.3']))
    curve = [found / i for i, found in enumerate(errors, 1)]
    assert values == pytest.approx({
        'calibration/risk@coverage_0.5': 100 * curve[20],
        'calibration/coverage@risk_0.3': references.coverage_at_risk(curve, 0.3),
    })  # fmt: skip


def test_the_interval_of_a_gap_goes_below_zero_and_tells_what_that_of_ece_does_not():
    # Over-confident by 6 points at 1,000 predictions: a gap that 60 draws of 60 tell from 0.
    generator = torch.Generator().manual_seed(0)
    conf = 0.5 + torch.rand(1000, generator=generator) / 2
    for shift in (0.06, -0.06):
        right = torch.rand(1000, generator=generator) < conf - shift
        samples = [
            dict(pred_score=torch.stack([p, 1 - p]), gt_label=(~hit).long()[None])
            for p, hit in zip(conf, right, strict=True)
        ]
        metric = CalibrationMetric(['ECE', 'gap'], confidence_interval=0.95, num_bootstrap=200)
        values = evaluate(samples, metric)
        low, high = (shift * values[f'calibration/gap_{end}'] for end in ('low', 'high'))
        assert min(low, high) > 0
        gap = 100 * (conf.mean() - right.double().mean()).item()
        assert values['calibration/gap'] == pytest.approx(gap, abs=1e-4)


def test_a_confidence_interval_holds_the_error_of_a_calibrated_network():
    # 500 predictions of 15 bins: an ECE of some percent, where the true one is 0.
    generator = torch.Generator().manual_seed(0)
    held = []
    for _ in range(6):
        conf = 0.5 + torch.rand(500, generator=generator) / 2
        label = (torch.rand(500, generator=generator) > conf).long()
        scores = torch.stack([conf, 1 - conf], dim=1)
        samples = [
            dict(pred_score=score, gt_label=target[None])
            for score, target in zip(scores, label, strict=True)
        ]
        metric = CalibrationMetric(['ECE', 'accuracy'], confidence_interval=0.95, num_bootstrap=200)
        values = evaluate(samples, metric)
        assert values['calibration/ECE'] > 1
        assert 0 <= values['calibration/ECE_low'] < values['calibration/ECE_high']
        held.append(values['calibration/ECE_low'] == 0)
    assert sum(held) >= 4


@pytest.mark.parametrize('protocol', PROTOCOLS)
@pytest.mark.parametrize('suffix', ['.json', '.npz'])
def test_statistics_are_written(protocol, suffix, tmp_path):
    samples, path = in_patches(9), tmp_path / 'new' / f'statistics{suffix}'
    metric = CalibrationMetric(['ECE'], protocol=protocol, out_file=str(path))
    value = evaluate(samples, metric)['calibration/ECE']
    statistics = CalibrationStatistics.load(path)
    assert statistics.metrics == {'ECE': value}
    assert (statistics.protocol, statistics.num_bins) == (protocol, 15)
    reference = evaluate(
        samples, CalibrationMetric(['ECE', 'accuracy'], protocol=protocol, prefix='again')
    )
    table = statistics.bins(25, equal_mass=True)
    assert statistics.num_predictions == round(table[0].sum().item())
    if protocol not in ('image', 'paper'):
        share = 100 * statistics.narrow_bins[1].sum() / statistics.num_predictions
        assert share.item() == pytest.approx(reference['again/accuracy'])
        ece = 100 * (statistics.bins(15)[1] - statistics.bins(15)[2]).abs().sum()
        assert ece.item() / statistics.num_predictions == pytest.approx(value)
    if suffix == '.npz':
        torch.testing.assert_close(statistics.image_bins.shape, torch.Size((9, 3, 15)))
        assert statistics.image_bins[:, 0].sum() == statistics.num_predictions
    else:
        assert statistics.image_bins is None


def test_broken_statistics_are_refused(tmp_path):
    (tmp_path / 'results.json').write_text('{"metrics": {}}')
    with pytest.raises(ValueError, match='does not hold calibration statistics'):
        CalibrationStatistics.load(tmp_path / 'results.json')


def test_many_bins_are_condensed(monkeypatch):
    monkeypatch.setattr(narrow_module, 'EXACT_LIMIT', 20_000)
    generator = torch.Generator().manual_seed(0)
    conf = 1 - torch.rand(60_000, generator=generator) ** 4
    correct = torch.rand(60_000, generator=generator) < conf
    table = ConfidenceBins().add(conf, correct).table()
    small = narrow_module.condense(table)
    assert small.shape[1] <= 6146 < (table[0] > 0).sum()
    torch.testing.assert_close(small.sum(1), table.sum(1))
    mean = small[2] / small[0]
    assert (mean.diff() > 0).all()
    # A wide bin holds 1/256 of an octave of 1 - confidence; all wide bins that the narrow ones
    # lie in are there, and no other.
    wide = narrow_module.narrow_bin_of(table[2][table[0] > 0] / table[0][table[0] > 0], 8).unique()
    assert narrow_module.narrow_bin_of(mean, 8).tolist() == wide.tolist()
    few = ConfidenceBins().add(conf[:500], correct[:500]).table()
    assert torch.equal(narrow_module.condense(few), few)


def test_forty_million_in_one_bin():
    state = CalibrationState(['ECE', 'AECE'])
    conf = torch.full((2_000_000,), 0.95, dtype=torch.float64)
    correct = torch.arange(len(conf)) % 5 != 0  # 80 % of them
    for _ in range(20):
        state.update(Prediction(conf, correct))
    values = state.compute()
    assert state.num_predictions == 40_000_000
    assert values == pytest.approx({'ECE': 15.0, 'AECE': 15.0, 'AECE_bound': 0}, abs=1e-6)


def test_the_log_says_what_was_measured(monkeypatch):
    lines = []
    monkeypatch.setattr(module, 'print_log', lambda text, **_: lines.append(text))
    evaluate(in_patches(3), CalibrationMetric(protocol='boundary', boundary_width=2))
    evaluate(classified(149), ECE())
    out = '\n'.join(lines)
    assert "protocol 'boundary': valid pixels at most 2 pixels from another label" in out
    assert "149 predictions of 149 images, by the protocol 'pooled'" in out
    assert '149 predictions are few for 15 bins' in out
    assert 'confidence_interval=0.95 says' in out
    lines.clear()
    evaluate(classified(149), AECE())  # which has no interval to recommend
    assert 'Use fewer bins' in lines[-1] and 'confidence_interval' not in lines[-1]


LIMITS = {'exact': 1_000_000, 'fine': 300}


def _shares(samples, world_size, kind):
    """What each rank has; a sampler interleaves, and pads with the first samples."""
    shares = [samples[rank::world_size] for rank in range(world_size)]
    if kind == 'padded':
        padding = -len(samples) % world_size
        for number in range(padding):
            shares[world_size - padding + number].append(samples[number])
    elif kind == 'empty':
        shares = [samples, *[[]] * (world_size - 1)]
    return shares


def of_every_kind(protocol, **options):
    """A metric of all there is to measure, which keeps its statistics."""
    metric = CalibrationMetric(
        NAMES, protocol=protocol, per_class=True, per_distance=True, **options
    )
    metric.keep_statistics = True
    return metric


def strata(metric):
    return torch.cat([metric.statistics.class_bins, metric.statistics.distance_bins], dim=1)


KINDS = ['padded', 'uneven', 'empty']


def combinations(world_size):
    """Each kind of split with each protocol, half of them on two ranks and half on three."""
    return [
        (kind, list(LIMITS)[(i + j // 2) % 2], protocol)
        for i, kind in enumerate(KINDS)
        for j, protocol in enumerate(PROTOCOLS)
        if (i + j + world_size) % 2
    ]


def _split(rank, world_size, samples, folder):
    values = {}
    for kind, limit, protocol in combinations(world_size):
        narrow_module.EXACT_LIMIT = LIMITS[limit]
        share = _shares(samples, world_size, kind)[rank]
        metric = of_every_kind(protocol, collect_dir=f'{folder}/{kind}_{limit}_{protocol}')
        found = evaluate(share, metric, batch=2, size=len(samples))
        values[kind, limit, protocol] = found, strata(metric) if rank == 0 else None
    torch.save(values, f'{folder}/{rank}.pt')


@pytest.fixture(scope='module')
def of_one_process():
    """What one process measures of ``in_patches(11)``, by limit and protocol."""
    measured = {}
    with pytest.MonkeyPatch.context() as patch:
        for limit, protocol in itertools.product(LIMITS, PROTOCOLS):
            patch.setattr(narrow_module, 'EXACT_LIMIT', LIMITS[limit])
            metric = of_every_kind(protocol)
            measured[limit, protocol] = evaluate(in_patches(11), metric), strata(metric)
    return measured


@pytest.mark.parametrize('world_size', [2, 3])
def test_any_split_over_ranks(world_size, of_one_process, tmp_path):
    on_ranks(_split, world_size, world_size, in_patches(11), str(tmp_path))
    for rank in range(world_size):
        found = torch.load(tmp_path / f'{rank}.pt', weights_only=False)
        assert len(found) == len(combinations(world_size)) >= len(KINDS) * len(PROTOCOLS) // 2
        for (kind, limit, protocol), (values, bins) in found.items():
            if kind == 'empty' and protocol == 'paper':
                continue  # which images are consecutive depends on the interleaved order
            expected, expected_bins = of_one_process[limit, protocol]
            if kind == 'empty':  # and so do the folds
                values, expected = (
                    {k: v for k, v in found.items() if k.split('/')[1] not in OF_FOLDS}
                    for found in (values, expected)
                )
            assert values == pytest.approx(expected, abs=1e-9), (kind, limit, protocol)
            if rank == 0:
                torch.testing.assert_close(bins, expected_bins, rtol=0, atol=1e-9)


@pytest.mark.parametrize('limit', [1_000_000, 100])
@pytest.mark.parametrize('toolbox', ['mmseg', 'mmpretrain'])
def test_saturated_predictions_are_ranked_by_what_float32_rounds_away(toolbox, limit, monkeypatch):
    """Of two classes, 18 to 57 nats apart, the less sure half is wrong."""
    monkeypatch.setattr(narrow_module, 'EXACT_LIMIT', limit)
    gaps = torch.linspace(18, 57, 400)
    logits, label = torch.stack([gaps / 2, -gaps / 2]), (torch.arange(400) < 200).long()
    assert (logits.softmax(0)[0] == 1).sum() > 390
    names = ['AUROC', 'AURC', 'AUGRC', 'FPR95', 'coverage@risk_0.05', 'ECE', 'AECE']
    if toolbox == 'mmseg':
        plane = dict(pred_sem_seg=dict(data=torch.zeros(1, 20, 20, dtype=torch.int64)))
        samples = [
            dict(
                seg_logits=dict(data=logits.view(2, 20, 20)),
                gt_sem_seg=dict(data=label.view(1, 20, 20)),
                **plane,
            )
        ]
    else:
        samples = [
            dict(pred_score=z.softmax(0), gt_label=y[None])
            for z, y in zip(logits.T, label, strict=True)
        ]
    values = evaluate(samples, CalibrationMetric(names))
    rank, correct = gaps.tolist(), (label == 0).tolist()
    order = sorted(range(400), key=lambda i: -rank[i])
    errors = itertools.accumulate(not correct[i] for i in order)
    risks = [wrong / count for count, wrong in enumerate(errors, 1)]
    found = {name: values[f'calibration/{name}'] for name in names}
    tolerance = values.get('calibration/AURC_bound', 0) + 1e-6
    assert found['AUROC'] == pytest.approx(100, abs=tolerance)
    assert found['AURC'] == pytest.approx(100 * sum(risks) / 400, abs=tolerance)
    assert found['FPR95'] == pytest.approx(0, abs=tolerance)
    covered = max(i for i, risk in enumerate(risks, 1) if risk <= 0.05) / 4
    assert found['coverage@risk_0.05'] == pytest.approx(covered, abs=0.3)
    assert found['ECE'] == found['AECE'] == pytest.approx(50, abs=1e-4)
