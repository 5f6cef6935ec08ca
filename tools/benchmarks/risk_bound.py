"""Coverage of thresholds at a risk and of intervals of accuracy, on real predictions.

    python tools/benchmarks/risk_bound.py WORK_DIR … --splits 1000

Of each tested run (its calibration.npz), images are split at random into two halves. On one a
threshold is looked for that keeps to a risk with a probability of 95 %: in what share of the tries
it is found, and what it then keeps. `other half` says how often the other half does not break the
bound, but is a sample too, and the luckier the first half the less lucky it is. `population` draws
as many images with replacement and asks for the risk over all images, which is what the theorem is
about. A try without a threshold breaks nothing.

Beside ours are the Hoeffding-Bentkus p-value of Learn then Test, made one of images by adding the
risk to the gain of each, and the threshold that just keeps to the risk on its half, without a
proof, as `coverage@risk` has it.
"""

import argparse
import math
from functools import partial
from pathlib import Path

import torch
from scipy.stats import binom

from mmcalib.metrics import risk_threshold
from mmcalib.metrics.counts import predicted_in_narrow_bins, shares_above
from mmcalib.metrics.expected_accuracy import ExpectedAccuracy
from mmcalib.metrics.statistics import CalibrationStatistics

PROBABILITY = 0.95
IMAGES = 5  # of each half whose own intervals are tried


def hoeffding_bentkus(kept, wrong, risk):
    """Return p-values of a mean of at most the risk, for terms in [0, 1] of images."""
    size = len(kept)
    mean = (risk + wrong - risk * kept).mean(dim=0)
    share = mean.clamp(1e-12, risk)
    distance = share * (share / risk).log() + (1 - share) * ((1 - share) / (1 - risk)).log()
    hoeffding = (-size * distance).exp()
    counts = (size * mean - 1e-9).ceil().clamp(min=0)
    tails = torch.from_numpy(binom.cdf(counts.numpy(), size, risk))
    return torch.minimum(hoeffding, math.e * tails).clamp(max=1).tolist()


def proven(p_values, kept, wrong, risk):
    """Return the bin that is found by some p-values."""
    return risk_threshold.loosest_rejected(p_values(kept, wrong, risk), 1 - PROBABILITY)


def without_proof(kept, wrong, risk):
    kept, wrong = kept.mean(dim=0), wrong.mean(dim=0)
    within = ((kept > 0) & (wrong <= risk * kept)).nonzero().squeeze(1)
    return int(within[0]) if len(within) else None


METHODS = {
    'ours': partial(proven, risk_threshold.risk_p_values),
    'Hoeffding-Bentkus': partial(proven, hoeffding_bentkus),
    'no proof': without_proof,
}


def tries(count, splits, seed):
    """Yield the images of two halves, and as many drawn with replacement."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(splits):
        order = torch.randperm(count, generator=generator)
        drawn = torch.randint(count, (count // 2,), generator=generator)
        yield order[: count // 2], order[count // 2 :], drawn


def risk_row(bins, method, risk, splits, seed):
    kept, wrong = shares_above(bins)
    shares, on_half, on_all = [], 0, 0
    for half, other, drawn in tries(len(kept), splits, seed):
        bin = METHODS[method](kept[half], wrong[half], risk)
        if bin is not None:
            share = kept[other, bin].mean().item()
            shares.append(share)
            on_half += wrong[other, bin].mean().item() > risk * share
        bin = METHODS[method](kept[drawn], wrong[drawn], risk)
        if bin is not None:
            on_all += wrong[:, bin].mean().item() > risk * kept[:, bin].mean().item()
    coverage = f'{sum(shares) / len(shares):.1%}' if shares else ''
    held = (f'{1 - broken / splits:.1%}' for broken in (on_half, on_all))
    return [f'{len(shares) / splits:.1%}', coverage, *held]


def accuracy_row(bins, splits, seed):
    """Return how often intervals hold the accuracy of the other half, and of its images."""
    folders = in_image = images = 0
    error, width = 0.0, 0.0
    for half, other, _ in tries(len(bins), splits, seed):
        accuracy = ExpectedAccuracy(bins[half], coverage=PROBABILITY)
        counts = bins[other].double()
        found = counts[:, 1].sum(dim=1) / counts[:, 0].sum(dim=1)
        expected = accuracy.of_counts(predicted_in_narrow_bins(counts))
        low, high = accuracy.folder_interval(expected.mean().item(), len(other))
        folders += low <= found.mean().item() <= high
        error += (expected.mean() - found.mean()).abs().item()
        width += high - low
        for value, true in zip(expected[:IMAGES].tolist(), found[:IMAGES].tolist(), strict=True):
            low, high = accuracy.image_interval(value)
            in_image += low - 1e-12 <= true <= high + 1e-12
            images += 1
    single = (bins[:, 0].sum(dim=1) == 1).all()
    return [
        f'{100 * error / splits:.2f}',
        f'± {50 * width / splits:.2f}',
        f'{folders / splits:.1%}',
        '' if single else f'{in_image / images:.1%}',
    ]


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('runs', nargs='+', help='work dirs, or .npz files in them')
    parser.add_argument('--splits', type=int, default=1000)
    parser.add_argument('--risks', type=float, nargs='+', default=[0.05, 0.1])
    parser.add_argument('--seed', type=int, default=0)
    args = parser.parse_args()
    torch.set_num_threads(1)

    populations = {}
    for run in map(Path, args.runs):
        file = run if run.is_file() else run / 'calibration.npz'
        bins = CalibrationStatistics.load(file).image_narrow_bins
        populations[file.parent.name] = bins[bins[:, 0].sum(dim=1) > 0]
    print('| predictions | images | risk | method | found | kept | other half | population |')
    print('|---|--:|--:|---|--:|--:|--:|--:|')
    for name, bins in populations.items():
        for risk in args.risks:
            for method in METHODS:
                row = risk_row(bins, method, risk, args.splits, args.seed)
                start = f'| {name} | {len(bins) // 2} | {risk:.0%} | {method} | '
                print(start + ' | '.join(row) + ' |', flush=True)
    print('\n| predictions | images | error, points | interval | holds | of an image |')
    print('|---|--:|--:|--:|--:|--:|')
    for name, bins in populations.items():
        row = accuracy_row(bins, args.splits, args.seed)
        print(f'| {name} | {len(bins) // 2} | ' + ' | '.join(row) + ' |', flush=True)


if __name__ == '__main__':
    main()
