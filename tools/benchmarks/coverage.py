"""How often intervals hold the truth, and thresholds keep to a risk.

    python tools/benchmarks/coverage.py
    python tools/benchmarks/coverage.py WORK_DIR … --splits 1000

Without work dirs: intervals of an ECE, over predictions that are independent or of images. Beside
those of `CalibrationMetric(confidence_interval=0.95)` are those of the basic bootstrap,
[2θ - q97.5, 2θ - q2.5], and those of its quantiles, [q2.5, q97.5]; in brackets is their mean width
in points. Confidences are 60 values in 15 bins, most of them near 1, so the true ECE is known. An
image has its own share of each confidence, drawn around the common one, and its own accuracy: a
probit with an effect of the image and one of each of its bins, of which the mean over images is the
accuracy of the population.

With them: the images of tested runs (their calibration.npz) are split at random into two halves,
and what is found on one is tried on the other. `found` is in what share of the tries there is a
threshold, `kept` what it keeps of the other half. `other half` is how often it holds there, which
is a sample too, and the luckier the first half the less lucky it is. `population` draws as many
images with replacement and asks for all images, which is what the theorem is about. A try without a
threshold breaks nothing.

Beside our risks are the Hoeffding-Bentkus p-value of Learn then Test, made one of images by adding
the risk to the gain of each, and the threshold that just keeps to the risk on its half, without a
proof, as `coverage@risk` has it.
"""

import math
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
import torch
from scipy.stats import binom

from mmcalib.cli.parser import ToolParser
from mmcalib.metrics import CalibrationStatistics, risk_threshold
from mmcalib.metrics.calibration_errors import calibration_error
from mmcalib.metrics.expected_accuracy import ExpectedAccuracy
from mmcalib.metrics.intervals import bootstrap_weights, gap_intervals, tail_probabilities
from mmcalib.metrics.log_bins import count_in_log_bins, shares_above
from mmcalib.tables import TextTable

BINS, PER_BIN = 15, 4
CONF = (np.arange(BINS * PER_BIN) + 0.5) / (BINS * PER_BIN)
SHARE = CONF**3 * (1 - CONF) ** -0.4
SHARE /= SHARE.sum()
# Standard deviations of the effects of an image, and of each of its bins.
EFFECTS = {'differ': (0.6, 0.3), 'differ in each bin': (0.2, 1.0)}
PIXELS, CONCENTRATION = 5000, 20
COVERAGE = 0.95
ERRORS = (0, 3, 10)  # true ECEs
KINDS = ('ours', 'basic bootstrap', 'its quantiles')
IMAGES = 5  # of each half whose own intervals are tried


def accuracies(error):
    """Return the accuracy of each confidence of an over-confident network with this ECE, in %."""
    gap = CONF * (1.3 - CONF)
    return torch.from_numpy(CONF - gap * error / 100 / (SHARE * gap).sum())


def independent(error, count, rng):
    """Return ``(n, 3, B)`` bins of single predictions."""
    cell = rng.choice(len(CONF), count, p=SHARE)
    right = rng.uniform(size=count) < accuracies(error).numpy()[cell]
    bins = np.zeros((count, 3, BINS))
    rows = np.arange(count), slice(None), cell // PER_BIN
    bins[rows] = np.stack([np.ones(count), right, CONF[cell]], axis=1)
    return torch.from_numpy(bins)


def clustered(effects, error, count, rng):
    """Return ``(n, 3, B)`` bins of images."""
    of_image, of_bin = effects
    pixels = rng.multinomial(PIXELS, rng.dirichlet(CONCENTRATION * SHARE, count))
    effect = of_image * rng.standard_normal((count, 1))
    effect = effect + of_bin * rng.standard_normal((count, BINS)).repeat(PER_BIN, axis=1)
    scale = (1 + of_image**2 + of_bin**2) ** 0.5
    probit = scale * torch.special.ndtri(accuracies(error)) + torch.from_numpy(effect)
    cells = np.stack(
        [pixels, rng.binomial(pixels, torch.special.ndtr(probit).numpy()), pixels * CONF], axis=1
    )
    return torch.from_numpy(cells.reshape(count, 3, BINS, PER_BIN).sum(axis=-1))


def ends_of(bins, draws):
    """Return the ends of each kind of interval."""
    options = dict(num_bootstrap=draws, seed=0)
    errors = {'ECE': calibration_error}
    ours = gap_intervals(errors, bins, coverage=COVERAGE, limits={}, **options)['ECE']
    drawn = [
        calibration_error((weights @ bins.flatten(1)).unflatten(1, (3, BINS)))
        for weights in bootstrap_weights(len(bins), **options)
    ]
    low, high = torch.cat(drawn).quantile(tail_probabilities(COVERAGE)).tolist()
    twice = 2 * calibration_error(bins.sum(dim=0)).item()
    return ours, (max(twice - high, 0), max(twice - low, 0)), (low, high)


def held(draw, error, *, sets, draws):
    """Return, of each kind of interval, how often it held the true ECE, and its mean width."""
    rng = np.random.default_rng(0)
    ends = np.array([ends_of(draw(rng), draws) for _ in range(sets)])
    low, high = ends[..., 0], ends[..., 1]
    often = ((low <= error + 1e-9) & (high >= error)).mean(axis=0)
    return dict(zip(KINDS, zip(often, (high - low).mean(axis=0), strict=True), strict=True))


def intervals(args):
    kinds = {'predictions': (independent, (300, 1000, 5000))}
    for name, effects in EFFECTS.items():
        kinds[f'images that {name}'] = partial(clustered, effects), (10, 50, 200)
    rows = []
    for kind, error, place in product(kinds, ERRORS, range(3)):
        draw, counts = kinds[kind]
        name, draw = f'{counts[place]:,} {kind}', partial(draw, error, counts[place])
        found = held(draw, error, sets=args.sets, draws=args.draws)
        cells = [f'{100 * often:.0f} % ({width:.1f})' for often, width in found.values()]
        rows.append([name, f'{error:g}', *cells])
    print_table(['units', 'true ECE', *KINDS], rows)


def hoeffding_bentkus(kept, wrong, risk):
    """Return p-values of a mean of at most the risk, for terms in [0, 1] of images."""
    size = len(kept)
    mean = (risk + wrong - risk * kept).mean(dim=0)
    share = mean.clamp(1e-12, risk)
    distance = share * (share / risk).log() + (1 - share) * ((1 - share) / (1 - risk)).log()
    counts = (size * mean - 1e-9).ceil().clamp(min=0)
    tails = torch.from_numpy(binom.cdf(counts.numpy(), size, risk))
    return torch.minimum((-size * distance).exp(), math.e * tails).clamp(max=1).tolist()


def proven(p_values, kept, wrong, risk):
    return risk_threshold.loosest_rejected(p_values(kept, wrong, risk), 1 - COVERAGE)


def without_proof(kept, wrong, risk):
    kept, wrong = kept.mean(dim=0), wrong.mean(dim=0)
    within = ((kept > 0) & (wrong <= risk * kept)).nonzero().squeeze(1)
    return int(within[0]) if len(within) else None


METHODS = {
    'ours': partial(proven, risk_threshold.risk_p_values),
    'Hoeffding-Bentkus': partial(proven, hoeffding_bentkus),
    'no proof': without_proof,
}


def halves(count, args):
    """Yield the images of two halves, and as many drawn with replacement."""
    generator = torch.Generator().manual_seed(args.seed)
    for _ in range(args.splits):
        order = torch.randperm(count, generator=generator)
        drawn = torch.randint(count, (count // 2,), generator=generator)
        yield order[: count // 2], order[count // 2 :], drawn


def tried(fit, try_on, count, args):
    """Return the means of what is found, kept and held on the other half, and on all images.

    Args:
        fit: From images to a threshold, and how many were found.
        try_on: From a threshold and images to whether it holds, and the share that it keeps.
        count: Of the images.
        args: With the splits and their seed.
    """
    rows, everything = [], torch.arange(count)
    for half, other, drawn in halves(count, args):
        threshold, number = fit(half)
        held, share = try_on(threshold, other)
        rows.append((number, share, held, try_on(fit(drawn)[0], everything)[0]))
    number, shares, *held = map(np.array, zip(*rows, strict=True))
    kept = f'{np.nanmean(shares):.1%}' if np.isfinite(shares).any() else ''
    return number.mean(), [kept, *(f'{each.mean():.1%}' for each in held)]


def risk_row(bins, method, risk, args):
    kept, wrong = shares_above(bins)

    def fit(images):
        found = METHODS[method](kept[images], wrong[images], risk)
        return found, found is not None

    def try_on(bin, images):
        if bin is None:
            return True, math.nan
        share = kept[images, bin].mean().item()
        return wrong[images, bin].mean().item() <= risk * share, share

    found, cells = tried(fit, try_on, len(bins), args)
    return [f'{found:.1%}', *cells]


def accuracy_row(bins, args):
    """Return how often intervals hold the accuracy of the other half, and of its images."""
    folders, in_image, errors, widths = [], [], [], []
    for half, other, _ in halves(len(bins), args):
        accuracy = ExpectedAccuracy(bins[half], coverage=COVERAGE)
        counts = bins[other].double()
        found = counts[:, 1].sum(dim=1) / counts[:, 0].sum(dim=1)
        expected = accuracy.accuracy_from_counts(count_in_log_bins(counts))
        low, high = accuracy.folder_interval(expected.mean().item(), len(other))
        folders.append(low <= found.mean().item() <= high)
        errors.append((expected.mean() - found.mean()).abs().item())
        widths.append(high - low)
        for value, true in zip(expected[:IMAGES].tolist(), found[:IMAGES].tolist(), strict=True):
            low, high = accuracy.image_interval(value)
            in_image.append(low - 1e-12 <= true <= high + 1e-12)
    single = (bins[:, 0].sum(dim=1) == 1).all()
    cells = [f'{100 * np.mean(errors):.2f}', f'± {50 * np.mean(widths):.2f}']
    return [*cells, f'{np.mean(folders):.1%}', '' if single else f'{np.mean(in_image):.1%}']


def thresholds(args):
    risks, accuracy = [], []
    for run in args.runs:
        statistics = CalibrationStatistics.load(run / 'calibration.npz')
        bins = statistics.image_narrow_bins
        bins = bins[bins[:, 0].sum(dim=1) > 0]
        start = [run.name, f'{len(bins) // 2}']
        for risk in args.risks:
            for method in METHODS:
                row = risk_row(bins, method, risk, args)
                risks.append([*start, f'{risk:.0%}', method, *row])
        accuracy.append([*start, *accuracy_row(bins, args)])
    start, end = ['predictions', 'images'], ['found', 'kept', 'other half', 'population']
    print_table([*start, 'risk', 'method', *end], risks)
    print_table([*start, 'error, points', 'interval', 'holds', 'of an image'], accuracy)


def print_table(headings, rows):
    if rows:
        print(f'\n{TextTable(headings, rows).write("markdown")}', flush=True)


def main():
    parser = ToolParser(description=__doc__)
    parser.add_argument('runs', nargs='*', type=Path, help='work dirs of tests')
    parser.add_argument('--splits', type=int, default=1000)
    parser.add_argument('--risks', type=float, nargs='*', default=[0.05, 0.1])
    parser.add_argument('--seed', type=int, default=0)
    parser.add_argument('--sets', type=int, default=100, help='sets of predictions for an interval')
    parser.add_argument('--draws', type=int, default=200, help='draws of the bootstrap')
    args = parser.parse_args()
    torch.set_num_threads(1)
    thresholds(args) if args.runs else intervals(args)


if __name__ == '__main__':
    main()
