"""Images of a known calibration error, and how often intervals of their errors hold it."""

import numpy as np
import torch

from mmcalib.metrics.errors import calibration_error
from mmcalib.metrics.intervals import drawn_weights, gap_intervals, tails_of

BINS, PER_BIN = 15, 4
CONF = (np.arange(BINS * PER_BIN) + 0.5) / (BINS * PER_BIN)
SHARE = CONF**3 * (1 - CONF) ** -0.4
SHARE /= SHARE.sum()
# Standard deviations of the effects of an image, and of each of its bins.
EFFECTS = {'differ': (0.6, 0.3), 'differ in each bin': (0.2, 1.0)}
PIXELS, CONCENTRATION = 5000, 20
COVERAGE = 0.95
KINDS = ('ours', 'basic bootstrap', 'its quantiles')


def accuracies(error):
    """Return the accuracy of each confidence of an over-confident network with this ECE, in %."""
    gap = CONF * (1.3 - CONF)
    return torch.from_numpy(CONF - gap * error / 100 / (SHARE * gap).sum())


def independent(rng, error, count):
    """Return ``(n, 3, B)`` bins of single predictions."""
    cell = rng.choice(len(CONF), count, p=SHARE)
    right = rng.uniform(size=count) < accuracies(error).numpy()[cell]
    bins = np.zeros((count, 3, BINS))
    rows = np.arange(count), slice(None), cell // PER_BIN
    bins[rows] = np.stack([np.ones(count), right, CONF[cell]], axis=1)
    return torch.from_numpy(bins)


def clustered(rng, error, count, effects):
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


def intervals_of(bins, draws):
    """Return the ends of each kind of interval."""
    options = dict(coverage=COVERAGE, num_bootstrap=draws, seed=0)
    ours = gap_intervals({'ECE': calibration_error}, bins, **options, limits={})['ECE']
    errors = [
        calibration_error((weights @ bins.flatten(1)).unflatten(1, (3, BINS)))
        for weights in drawn_weights(len(bins), num_bootstrap=draws, seed=0)
    ]
    low, high = torch.cat(errors).quantile(tails_of(COVERAGE)).tolist()
    twice = 2 * calibration_error(bins.sum(dim=0)).item()
    basic = max(twice - high, 0), max(twice - low, 0)
    return dict(zip(KINDS, (ours, basic, (low, high)), strict=True))


def held(draw, error, *, sets, draws, seed=0):
    """Return, of each kind of interval, how often it held the true ECE, and its mean width."""
    rng = np.random.default_rng(seed)
    ends = {name: [] for name in KINDS}
    for _ in range(sets):
        for name, pair in intervals_of(draw(rng), draws).items():
            ends[name].append(pair)
    found = {}
    for name, pairs in ends.items():
        low, high = np.array(pairs).T
        found[name] = np.mean((low <= error + 1e-9) & (high >= error)), np.mean(high - low)
    return found
