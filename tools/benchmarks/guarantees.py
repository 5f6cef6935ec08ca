"""How often intervals contain the true value, and thresholds keep to a risk.

    python tools/benchmarks/guarantees.py
    python tools/benchmarks/guarantees.py --table thresholds --sets 1000
    python tools/benchmarks/guarantees.py --table comparisons --sets 1000
    python tools/benchmarks/guarantees.py --table classes --sets 1000
    python tools/benchmarks/guarantees.py WORK_DIR … --splits 1000

Without work dirs: intervals of an ECE, over predictions that are independent or of images. Beside
those of `CalibrationMetric(confidence_interval=0.95)` are those of the basic bootstrap,
[2θ - q97.5, 2θ - q2.5], and those of its quantiles, [q2.5, q97.5]; in brackets is their mean width
in points. Confidences are 60 values in 15 bins, most of them near 1, so the true ECE is known. An
image has its own share of each confidence, drawn around the common one, and its own accuracy: a
probit with an effect of the image and one of each of its bins, whose mean over images is the
accuracy of the population.

With `--table thresholds`: thresholds that `mmcalib.threshold` finds for a risk of 5 % with 90 %
probability, among such predictions, of which each is independent or those of a group. `found` is
the share of sets that have a threshold, `kept` the mean share of the predictions that it keeps,
and `holds` the share of sets without a threshold whose true risk is larger.

With `--table comparisons`: how often the intervals of `mmcalib.compare` contain the true
difference of two models, with their mean width in brackets. 70 % of the confidences of both are
equal, and 80 % of what decides about being correct is shared; NLL is that of being correct. `ECE,
bias ignored` are the quantiles of the resampled differences.

With `--table classes`: how often intervals, as those of `measure`, contain the true ClasswiseECE
and rate_gap of 2 and 10 classes, with their mean width in brackets. Each prediction is one of 500
vectors of probabilities, whose labels are drawn from other, known ones; the labels of a group of 20
predictions lean to one side or the other together.

With work dirs: the images of tested runs (their calibration.npz) are split at random into two
halves; a threshold is fitted to one half and tried on the other. `found` is the share of tries that
have a threshold, `kept` the share of predictions that it keeps in the other half. `other half` is
how often the risk holds there; that half is a sample too, and the luckier the first half is, the
less lucky is the other. `population` draws as many images with replacement and tries the threshold
on all images, which is what the theorem is about. A try without a threshold breaks nothing.

Beside our risks are the Hoeffding-Bentkus p-value of Learn then Test, made one of images by adding
the risk to the gain of each, and the threshold that just keeps to the risk on its half, without a
proof, as in `coverage@risk`.
"""

import math
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
import torch
from scipy.special import ndtri
from scipy.stats import binom

from mmcalib.cli.parser import ToolParser
from mmcalib.metrics import CalibrationStatistics, risk_threshold, threshold
from mmcalib.metrics.calibration_errors import calibration_error
from mmcalib.metrics.expected_accuracy import ExpectedAccuracy
from mmcalib.metrics.intervals import (
    bootstrap_weights,
    gap_intervals,
    interval_values,
    tail_probabilities,
)
from mmcalib.metrics.log_bins import count_in_log_bins, log_bin_thresholds
from mmcalib.metrics.metric_text import INTERVAL
from mmcalib.metrics.paired_intervals import difference_intervals
from mmcalib.metrics.unit_tables import UnitTables
from mmcalib.tables import TextTable

BINS = 15
LEVELS_PER_BIN = 4
CONF = (np.arange(BINS * LEVELS_PER_BIN) + 0.5) / (BINS * LEVELS_PER_BIN)
SHARE = CONF**3 * (1 - CONF) ** -0.4
SHARE /= SHARE.sum()
# Standard deviations of the effects of an image, and of each of its bins.
EFFECTS = {'differ': (0.6, 0.3), 'differ in each bin': (0.2, 1.0)}
PIXELS = 5000
CONCENTRATION = 20
LEVEL = 0.95
TRUE_ECES = (0, 3, 10)
INTERVALS = ('ours', 'basic bootstrap', 'its quantiles')
# Pairs of true ECEs of two models, and the metrics that are compared; the last one twice.
ERROR_PAIRS = ((0, 0), (3, 3), (3, 0), (10, 0), (10, 3))
COMPARED = ('accuracy', 'gap', 'NLL', 'ECE', 'ECE')
IMAGES_TRIED = 5  # Images of each half whose own intervals are tried.


def accuracies(error):
    """Return the accuracy at each confidence of an over-confident model; ECE in percent."""
    gap = CONF * (1.3 - CONF)
    return torch.from_numpy(CONF - gap * error / 100 / (SHARE * gap).sum())


def independent_bins(error, count, rng):
    """Return ``(n, 3, B)`` bins of single predictions."""
    level = rng.choice(len(CONF), count, p=SHARE)
    correct = rng.uniform(size=count) < accuracies(error).numpy()[level]
    bins = np.zeros((count, 3, BINS))
    bin_index = level // LEVELS_PER_BIN
    bins[np.arange(count), :, bin_index] = np.stack([np.ones(count), correct, CONF[level]], axis=1)
    return torch.from_numpy(bins)


def image_bins(effects, error, count, rng):
    """Return ``(n, 3, B)`` bins of images."""
    image_deviation, bin_deviation = effects
    pixels = rng.multinomial(PIXELS, rng.dirichlet(CONCENTRATION * SHARE, count))
    image_effect = image_deviation * rng.standard_normal((count, 1))
    bin_effect = bin_deviation * rng.standard_normal((count, BINS))
    effect = image_effect + bin_effect.repeat(LEVELS_PER_BIN, axis=1)
    scale = (1 + image_deviation**2 + bin_deviation**2) ** 0.5
    probit = scale * torch.special.ndtri(accuracies(error)) + torch.from_numpy(effect)
    correct = rng.binomial(pixels, torch.special.ndtr(probit).numpy())
    levels = np.stack([pixels, correct, pixels * CONF], axis=1)
    bins = levels.reshape(count, 3, BINS, LEVELS_PER_BIN).sum(axis=-1)
    return torch.from_numpy(bins)


def interval_ends(bins, num_bootstrap):
    """Return low and high of each of the `INTERVALS`."""
    ours = gap_intervals(
        {'ECE': calibration_error},
        bins,
        level=LEVEL,
        limits={},
        num_bootstrap=num_bootstrap,
        seed=0,
    )['ECE']
    errors = []
    for weights in bootstrap_weights(len(bins), num_bootstrap=num_bootstrap, seed=0):
        resampled = (weights @ bins.flatten(1)).unflatten(1, (3, BINS))
        errors.append(calibration_error(resampled))
    low, high = torch.cat(errors).quantile(tail_probabilities(LEVEL)).tolist()
    twice = 2 * calibration_error(bins.sum(dim=0)).item()
    return ours, (max(twice - high, 0), max(twice - low, 0)), (low, high)


def coverages_and_widths(draw_bins, error, *, sets, draws):
    """Return how often each kind of interval contains the true ECE, and its mean width."""
    rng = np.random.default_rng(0)
    ends = np.array([interval_ends(draw_bins(rng), draws) for _ in range(sets)])
    low = ends[..., 0]
    high = ends[..., 1]
    contains_error = (low <= error + 1e-9) & (high >= error)
    return contains_error.mean(axis=0), (high - low).mean(axis=0)


def print_interval_table(args):
    """Print how often the intervals of simulated predictions contain the true ECE."""
    populations = {'predictions': (independent_bins, (300, 1000, 5000))}
    for name, effects in EFFECTS.items():
        populations[f'images that {name}'] = (partial(image_bins, effects), (10, 50, 200))
    rows = []
    for name, (draw_bins, counts) in populations.items():
        for error, count in product(TRUE_ECES, counts):
            coverages, widths = coverages_and_widths(
                partial(draw_bins, error, count), error, sets=args.sets, draws=args.draws
            )
            cells = []
            for coverage, width in zip(coverages, widths, strict=True):
                cells.append(f'{100 * coverage:.0f} % ({width:.1f})')
            rows.append([f'{count:,} {name}', f'{error:g}', *cells])
    print_table(['units', 'true ECE', *INTERVALS], rows)


def draw_confidences(group_size, effects, error, count, rng):
    """Return the levels of confidence of predictions, whether they are correct, and their groups.

    Args:
        group_size: Number of predictions of a group; None for groups of 1 to 40 predictions.
        effects: Standard deviations of the effects of a group, and of each of its bins.
        error: True ECE, in percent.
        count: Number of groups.
        rng: Generator of random numbers.
    """
    sizes = np.full(count, group_size) if group_size else rng.integers(1, 41, count)
    group = np.arange(count).repeat(sizes)
    chances = accuracies(error).numpy()
    if group_size == 1:
        level = rng.choice(len(CONF), count, p=SHARE)
        return level, rng.uniform(size=count) < chances[level], group
    group_deviation, bin_deviation = effects
    shares = rng.dirichlet(CONCENTRATION * SHARE, count).cumsum(axis=1)
    level = (shares[group] < rng.uniform(size=(len(group), 1))).sum(axis=1).clip(0, len(CONF) - 1)
    group_effect = group_deviation * rng.standard_normal(count)
    bin_effect = bin_deviation * rng.standard_normal((count, BINS))
    effect = group_effect[group] + bin_effect[group, level // LEVELS_PER_BIN]
    scale = (1 + group_deviation**2 + bin_deviation**2) ** 0.5
    probit = scale * ndtri(chances[level]) + effect
    return level, rng.standard_normal(len(group)) < probit, group


def true_risk(error, confidence):
    """Return the share of wrong predictions above a confidence."""
    is_kept = confidence < CONF
    wrong = SHARE * (1 - accuracies(error).numpy())
    return wrong[is_kept].sum() / SHARE[is_kept].sum()


def threshold_row(group_size, effects, error, count, *, sets, risk):
    """Return how often a threshold is found, what it keeps, and how often its risk holds."""
    rng = np.random.default_rng(0)
    kept_shares = []
    num_held = 0
    num_held_without_proof = 0
    for _ in range(sets):
        level, correct, group = draw_confidences(group_size, effects, error, count, rng)
        groups = None if group_size == 1 else group
        proven = threshold(CONF[level], correct, risk, groups=groups).threshold
        if proven is not None:
            kept_shares.append(SHARE[proven < CONF].sum())
        if proven is None or true_risk(error, proven) <= risk:
            num_held += 1
        loosest = loosest_observed(CONF[level], correct, risk)
        if loosest is None or true_risk(error, loosest) <= risk:
            num_held_without_proof += 1
    return [
        f'{len(kept_shares) / sets:.1%}',
        f'{np.mean(kept_shares):.1%}' if kept_shares else '',
        f'{num_held / sets:.1%}',
        f'{num_held_without_proof / sets:.1%}',
    ]


def loosest_observed(conf, correct, risk):
    """Return the loosest threshold that keeps to the risk on these predictions, without a proof."""
    for confidence in log_bin_thresholds().tolist():
        is_kept = conf > confidence
        if is_kept.any() and (~correct[is_kept]).mean() <= risk:
            return confidence
    return None


def print_simulated_thresholds(args):
    """Print how often thresholds of simulated predictions keep to their risk."""
    single = ('predictions', 1, None, (200, 1000, 5000))
    populations = [single]
    for name, effects in EFFECTS.items():
        populations.append((f'groups of 20 that {name}', 20, effects, (50, 200, 1000)))
    populations.append(('groups of 1 to 40 that differ', None, EFFECTS['differ'], (50, 200, 1000)))
    rows = []
    for name, group_size, effects, counts in populations:
        for error, count in product(TRUE_ECES, counts):
            cells = threshold_row(group_size, effects, error, count, sets=args.sets, risk=0.05)
            rows.append([f'{count:,} {name}', f'{error:g}', *cells])
    print_table(['units', 'true ECE', 'found', 'kept', 'holds', 'holds without proof'], rows)


def draw_pair(group_size, errors, count, rng):
    """Return the confidences of two models, whether they are correct, and the groups.

    Returns:
        A list of ``(level, correct)`` for each model, and the ``(M,)`` group of each prediction.
    """
    group = np.arange(count).repeat(group_size)
    size = len(group)
    shares = SHARE.cumsum()[None].repeat(count, axis=0)
    group_deviation = 0.0
    if group_size > 1:
        shares = rng.dirichlet(CONCENTRATION * SHARE, count).cumsum(axis=1)
        group_deviation = EFFECTS['differ'][0]
    effect = group_deviation * rng.standard_normal(count)[group]

    def draw_levels():
        above = shares[group] < rng.uniform(size=(size, 1))
        return above.sum(axis=1).clip(0, len(CONF) - 1)

    first_level = draw_levels()
    first_noise = rng.standard_normal(size)
    second_level = np.where(rng.uniform(size=size) < 0.7, first_level, draw_levels())
    second_noise = np.where(rng.uniform(size=size) < 0.8, first_noise, rng.standard_normal(size))
    scale = (1 + group_deviation**2) ** 0.5
    models = []
    levels_and_noises = ((first_level, first_noise), (second_level, second_noise))
    for error, (level, noise) in zip(errors, levels_and_noises, strict=True):
        chance = accuracies(error).numpy()[level]
        models.append((level, (noise + effect) / scale < ndtri(chance)))
    return models, group


def unit_tables(level, correct, group, count):
    """Return the bins, and the sums of NLL and Brier score, of each group."""
    conf = CONF[level]
    key = group * BINS + level // LEVELS_PER_BIN
    columns = [np.bincount(key, values, count * BINS) for values in (conf * 0 + 1, correct, conf)]
    bins = np.stack([column.reshape(count, BINS) for column in columns], axis=1)
    nll = -np.log(np.where(correct, conf, 1 - conf))
    sums = np.stack([np.bincount(group, nll, count), np.zeros(count)], axis=1)
    return UnitTables(torch.from_numpy(bins), torch.from_numpy(sums))


def true_values(error):
    """Return the metrics of the population of one model."""
    chance = accuracies(error).numpy()
    accuracy = 100 * (SHARE * chance).sum()
    nll = -(chance * np.log(CONF) + (1 - chance) * np.log(1 - CONF))
    return {
        'accuracy': accuracy,
        'gap': 100 * (SHARE * CONF).sum() - accuracy,
        'NLL': (SHARE * nll).sum(),
        'ECE': error,
    }


def quantiles_of_differences(a, b, num_bootstrap):
    """Return the quantiles of the resampled differences of the ECEs, whose bias is ignored."""
    differences = []
    for weights in bootstrap_weights(len(a.bins), num_bootstrap=num_bootstrap, seed=0):
        errors = []
        for tables in (a, b):
            resampled = (weights @ tables.bins.flatten(1)).unflatten(1, (3, BINS))
            errors.append(calibration_error(resampled))
        differences.append(errors[1] - errors[0])
    return torch.cat(differences).quantile(tail_probabilities(LEVEL)).tolist()


def comparison_row(group_size, errors, count, *, sets, draws):
    """Return how often the intervals of differences contain the true ones, and their widths."""
    rng = np.random.default_rng(0)
    values_a, values_b = map(true_values, errors)
    truth = np.array([values_b[name] - values_a[name] for name in COMPARED])
    ends = []
    for _ in range(sets):
        models, group = draw_pair(group_size, errors, count, rng)
        a, b = (unit_tables(*model, group, count) for model in models)
        bounds = difference_intervals(COMPARED[:-1], a, b, level=LEVEL, num_bootstrap=draws)
        ends.append([*bounds.values(), quantiles_of_differences(a, b, draws)])
    low, high = np.moveaxis(np.array(ends), 2, 0)
    coverages = ((low <= truth + 1e-9) & (high >= truth - 1e-9)).mean(axis=0)
    widths = (high - low).mean(axis=0)
    return [
        f'{100 * coverage:.1f} % ({width:.2f})'
        for coverage, width in zip(coverages, widths, strict=True)
    ]


def print_comparisons(args):
    """Print how often intervals of the differences of two simulated models hold."""
    rows = []
    for group_size, unit, counts in (
        (1, 'predictions', (300, 1000)),
        (20, 'groups of 20', (20, 100)),
    ):
        for errors, count in product(ERROR_PAIRS, counts):
            cells = comparison_row(group_size, errors, count, sets=args.sets, draws=args.draws)
            rows.append([f'{count:,} {unit}', '{:g} and {:g}'.format(*errors), *cells])
    print_table(['units', 'true ECEs', *COMPARED[:-1], 'ECE, bias ignored'], rows)


def class_vectors(num_classes, sharpness, bias, rng):
    """Return probabilities and true label frequencies of 500 kinds of predictions, ``(500, K)``."""
    logits = 2 * rng.standard_normal((500, num_classes))
    probs = torch.tensor(sharpness * logits).softmax(dim=1).numpy()
    frequencies = torch.tensor(logits + bias * (np.arange(num_classes) == 0)).softmax(dim=1)
    return probs, frequencies.numpy()


def true_class_errors(probs, frequencies):
    """Return the ClasswiseECE and rate_gap of equally frequent kinds of predictions, in percent."""
    gaps = probs - frequencies
    bin_index = np.clip(np.ceil(probs * BINS) - 1, 0, BINS - 1).astype(int)
    errors = []
    for class_gaps, class_index in zip(gaps.T, bin_index.T, strict=True):
        errors.append(np.abs(np.bincount(class_index, class_gaps, BINS)).sum())
    return 100 * np.mean(errors) / len(probs), 100 * np.abs(gaps.mean(axis=0)).max()


def draw_labels(frequencies, group_index, rng):
    """Return labels of predictions, ``(n,)``, which lean to one side in half of the groups."""
    sides = rng.choice([-1, 1], group_index.max() + 1)[group_index]
    lean = np.where(np.arange(frequencies.shape[1]) % 2, 1.0, -1.0)
    lean = lean - (frequencies * lean).sum(axis=1, keepdims=True)
    leaning = frequencies * (1 + 0.4 * sides[:, None] * lean)
    cumulative = leaning.cumsum(axis=1)
    return (cumulative < rng.uniform(size=(len(leaning), 1)) * cumulative[:, -1:]).sum(axis=1)


def class_unit_tables(probs, kind, labels, group_index):
    """Return the tables of groups of predictions, of the bins of each class."""
    num_groups = group_index.max() + 1
    num_classes = probs.shape[1]
    bin_index = np.clip(np.ceil(probs * BINS) - 1, 0, BINS - 1).astype(int)[kind]
    key = (group_index[:, None] * num_classes + np.arange(num_classes)) * BINS + bin_index
    is_label = labels[:, None] == np.arange(num_classes)
    size = num_groups * num_classes * BINS
    columns = []
    for values in (np.ones_like(is_label), is_label, probs[kind]):
        column = np.bincount(key.ravel(), values.ravel(), size)
        columns.append(column.reshape(num_groups, num_classes, BINS))
    class_bins = torch.from_numpy(np.stack(columns, axis=1))
    return UnitTables(class_bins[:, :, 0], torch.zeros(num_groups, 2), class_bins)


def class_row(group_size, num_classes, model, count, *, sets, draws):
    """Return the cells of one row of the table of classes."""
    rng = np.random.default_rng(0)
    probs, frequencies = class_vectors(num_classes, *model, rng)
    truth = true_class_errors(probs, frequencies)
    group_index = np.arange(count * group_size) // group_size
    names = ('ClasswiseECE', 'rate_gap')
    ends = []
    for _ in range(sets):
        kind = rng.integers(len(probs), size=len(group_index))
        labels = draw_labels(frequencies[kind], group_index, rng)
        tables = class_unit_tables(probs, kind, labels, group_index)
        found = interval_values(names, tables, level=LEVEL, num_bootstrap=draws)
        ends.append([[found[f'{name}{ending}'] for ending in INTERVAL] for name in names])
    low, high = np.moveaxis(np.array(ends), 2, 0)
    holds = ((low <= truth + np.array(1e-9)) & (high >= truth)).mean(axis=0)
    cells = [f'{value:.2f}' for value in truth]
    for share, width in zip(holds, (high - low).mean(axis=0), strict=True):
        cells.append(f'{100 * share:.1f} % ({width:.1f})')
    return cells


def print_class_table(args):
    """Print how often intervals contain the true errors of classes."""
    headings = ['units', 'number', 'classes', 'true ClasswiseECE', 'true rate_gap']
    rows = []
    for group_size, counts in ((1, (100, 1_000, 10_000)), (20, (20, 100, 500))):
        unit = 'predictions' if group_size == 1 else f'groups of {group_size}'
        for count, num_classes, model in product(counts, (2, 10), ((1, 0), (2, 0), (1, 1))):
            cells = class_row(
                group_size, num_classes, model, count, sets=args.sets, draws=args.draws
            )
            rows.append([unit, f'{count:,}', str(num_classes), *cells])
            print('  '.join(rows[-1]), flush=True)
    print_table([*headings, 'ClasswiseECE', 'rate_gap'], rows)


def hoeffding_bentkus(shares, risk):
    """Return p-values of a mean of at most the risk, for terms in [0, 1] of images."""
    size = shares.num_groups
    mean = (risk + shares.wrong - risk * shares.kept).mean(dim=0)
    share = mean.clamp(1e-12, risk)
    distance = share * (share / risk).log() + (1 - share) * ((1 - share) / (1 - risk)).log()
    counts = (size * mean - 1e-9).ceil().clamp(min=0)
    tails = torch.from_numpy(binom.cdf(counts.numpy(), size, risk))
    return torch.minimum((-size * distance).exp(), math.e * tails).clamp(max=1).tolist()


def proven_threshold(p_values, shares, risk):
    return risk_threshold.loosest_rejected(p_values(shares, risk), 1 - LEVEL)


def unproven_threshold(shares, risk):
    """Return the index of the loosest threshold whose risk on these images is low enough."""
    kept = shares.kept.mean(dim=0)
    wrong = shares.wrong.mean(dim=0)
    low_enough = ((kept > 0) & (wrong <= risk * kept)).nonzero().squeeze(1)
    return int(low_enough[0]) if len(low_enough) else None


METHODS = {
    'ours': partial(proven_threshold, risk_threshold.risk_p_values),
    'Hoeffding-Bentkus': partial(proven_threshold, hoeffding_bentkus),
    'no proof': unproven_threshold,
}


def random_splits(count, args):
    """Yield image indices of two halves, and of as many images drawn with replacement."""
    generator = torch.Generator().manual_seed(args.seed)
    for _ in range(args.splits):
        order = torch.randperm(count, generator=generator)
        resample = torch.randint(count, (count // 2,), generator=generator)
        yield order[: count // 2], order[count // 2 :], resample


def risk_cells(bins, method, risk, args):
    """Return how often a threshold is found, what it keeps, and how often its risk holds."""
    shares = risk_threshold.shares_of_images(bins)
    kept = shares.kept
    wrong = shares.wrong
    all_images = torch.arange(len(bins))

    def fit(images):
        selected = shares._replace(
            kept=kept[images], wrong=wrong[images], count=shares.count[images]
        )
        return METHODS[method](selected, risk)

    def holds(threshold, images):
        if threshold is None:
            return True
        share = kept[images, threshold].mean().item()
        return wrong[images, threshold].mean().item() <= risk * share

    is_found = []
    kept_shares = []
    holds_on_half = []
    holds_on_population = []
    for half, other_half, resample in random_splits(len(bins), args):
        threshold = fit(half)
        is_found.append(threshold is not None)
        if threshold is not None:
            kept_shares.append(kept[other_half, threshold].mean().item())
        holds_on_half.append(holds(threshold, other_half))
        holds_on_population.append(holds(fit(resample), all_images))
    return [
        f'{np.mean(is_found):.1%}',
        f'{np.mean(kept_shares):.1%}' if kept_shares else '',
        f'{np.mean(holds_on_half):.1%}',
        f'{np.mean(holds_on_population):.1%}',
    ]


def accuracy_cells(bins, args):
    """Return how often intervals contain the accuracy of the other half, and of its images."""
    folder_holds = []
    image_holds = []
    errors = []
    widths = []
    for half, other_half, _ in random_splits(len(bins), args):
        estimator = ExpectedAccuracy(bins[half], level=LEVEL)
        counts = bins[other_half].double()
        accuracy = counts[:, 1].sum(dim=1) / counts[:, 0].sum(dim=1)
        expected = estimator.accuracy_from_counts(count_in_log_bins(counts))
        low, high = estimator.folder_interval(expected.mean().item(), len(other_half))
        folder_holds.append(low <= accuracy.mean().item() <= high)
        errors.append((expected.mean() - accuracy.mean()).abs().item())
        widths.append(high - low)
        for index in range(min(IMAGES_TRIED, len(other_half))):
            low, high = estimator.image_interval(expected[index].item())
            image_holds.append(low - 1e-12 <= accuracy[index].item() <= high + 1e-12)
    is_classifier = (bins[:, 0].sum(dim=1) == 1).all()
    return [
        f'{100 * np.mean(errors):.2f}',
        f'± {50 * np.mean(widths):.2f}',
        f'{np.mean(folder_holds):.1%}',
        '' if is_classifier else f'{np.mean(image_holds):.1%}',
    ]


def print_threshold_tables(args):
    """Print how often thresholds and expected accuracies hold on other images of tested runs."""
    risk_rows = []
    accuracy_rows = []
    for run in args.runs:
        statistics = CalibrationStatistics.load(run / 'calibration.npz')
        bins = statistics.image_narrow_bins
        bins = bins[bins[:, 0].sum(dim=1) > 0]
        first_cells = [run.name, f'{len(bins) // 2}']
        for risk in args.risks:
            for method in METHODS:
                cells = risk_cells(bins, method, risk, args)
                risk_rows.append([*first_cells, f'{risk:.0%}', method, *cells])
        accuracy_rows.append([*first_cells, *accuracy_cells(bins, args)])
    first = ['predictions', 'images']
    print_table([*first, 'risk', 'method', 'found', 'kept', 'other half', 'population'], risk_rows)
    print_table([*first, 'error, points', 'interval', 'holds', 'of an image'], accuracy_rows)


def print_table(headings, rows):
    if rows:
        print(f'\n{TextTable(headings, rows).write("markdown")}', flush=True)


TABLES = {
    'intervals': print_interval_table,
    'thresholds': print_simulated_thresholds,
    'comparisons': print_comparisons,
    'classes': print_class_table,
}


def main():
    parser = ToolParser(description=__doc__)
    parser.add_argument('runs', nargs='*', type=Path, help='work dirs of tests')
    parser.add_argument('--table', choices=TABLES, default='intervals', help='without work dirs')
    parser.add_argument('--splits', type=int, default=1000)
    parser.add_argument('--risks', type=float, nargs='*', default=[0.05, 0.1])
    parser.add_argument('--seed', type=int, default=0)
    parser.add_argument('--sets', type=int, default=100, help='sets of predictions for an interval')
    parser.add_argument('--draws', type=int, default=200, help='draws of the bootstrap')
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.runs:
        print_threshold_tables(args)
    else:
        TABLES[args.table](args)


if __name__ == '__main__':
    main()
