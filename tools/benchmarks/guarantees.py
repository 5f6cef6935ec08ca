"""How often thresholds of classes keep their guarantee, and how well objects are calibrated.

    python tools/test.py CONFIG CHECKPOINT --objects --work-dir DIR
    python tools/benchmarks/guarantees.py DIR … --splits 1000

Real predictions are split at random into two halves: what is fitted on one is tried on the other.
Of each tested run (its calibration.npz, of --objects):

- precision: thresholds of all classes at once. `found` is how many classes have one, `kept` what
  they keep of the other half's pixels of these classes. `other half` says how often all of them
  hold there; `population` draws as many images with replacement, and asks for the precision over
  all images, which is what the theorem is about. A try without a threshold breaks nothing.
- objects: the calibration error (15 bins) of their scores on the other half, before and after.
"""

import argparse
from pathlib import Path

import numpy as np
import torch

from mmcalib.metrics import (
    CalibrationStatistics,
    class_thresholds,
    expected_calibration_error,
    measure,
)
from mmcalib.metrics.counts import narrow_bin_thresholds, shares_above
from mmcalib.samples.objects import RIGHT
from mmcalib.tasks.predict.validation import calibrated_objects

THRESHOLDS = narrow_bin_thresholds()


def halves(count, splits, seed):
    """Yield the images of two halves, and as many drawn with replacement."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(splits):
        order = torch.randperm(count, generator=generator)
        drawn = torch.randint(count, (count // 2,), generator=generator)
        yield order[: count // 2], order[count // 2 :], drawn


class Counts:
    """The rows of classes in images, to be taken by image."""

    def __init__(self, statistics):
        self.keys, self.bins = statistics.image_class, statistics.image_class_bins
        self.classes = range(int(self.keys[:, 1].max()) + 1)
        self.images = int(self.keys[:, 0].max()) + 1
        self.index = torch.full((self.images, len(self.classes)), -1)
        self.index[self.keys[:, 0], self.keys[:, 1]] = torch.arange(len(self.keys))

    def of(self, images):
        rows = self.index[images].flatten()
        rows = rows[rows >= 0]
        return self.keys[rows], self.bins[rows]


def holds(found, keys, bins, precision):
    """Return whether all thresholds keep to a precision in some images, and what they keep."""
    held, kept_pixels, pixels = True, 0, 0
    for k, threshold in enumerate(found):
        if threshold.bound is None:
            continue
        column = THRESHOLDS.tolist().index(threshold.bound.threshold)
        counts = bins[keys[:, 1] == k]
        kept, wrong = (share[:, column] for share in shares_above(counts))
        held &= bool(wrong.mean() <= (1 - precision) * kept.mean() + 1e-12) or not len(kept)
        kept_pixels += counts[:, 0, column:].sum().item()
        pixels += counts[:, 0].sum().item()
    return held, kept_pixels / pixels if pixels else float('nan')


def precision_row(counts, precision, splits, seed):
    number, shares, on_half, on_all = [], [], 0, 0
    for half, other, drawn in halves(counts.images, splits, seed):
        found = class_thresholds(*counts.of(half), counts.classes, precision)
        number.append(sum(threshold.bound is not None for threshold in found))
        held, share = holds(found, *counts.of(other), precision)
        on_half += held
        shares.append(share)
        found = class_thresholds(*counts.of(drawn), counts.classes, precision)
        on_all += holds(found, counts.keys, counts.bins, precision)[0]
    kept = f'{np.nanmean(shares):.1%}' if np.isfinite(shares).any() else ''
    held = f'{on_half / splits:.1%} | {on_all / splits:.1%}'
    return f'{np.mean(number):.1f} of {len(counts.classes)} | {kept} | {held}'


def object_rows(objects, splits, seed):
    images = int(objects[:, 0].max()) + 1
    objects = objects[~objects[:, 5].isnan()]
    place, _, _, conf, expected, iou = objects.numpy().T
    rows = {'mean confidence': [], 'expected IoU': [], 'P(IoU > 0.5)': [], 'calibrated IoU': []}
    for half, _, _ in halves(images, splits, seed):
        fit = np.isin(place, half.numpy())
        curves = calibrated_objects(objects[torch.from_numpy(fit)])
        right, mean = (curve.predict(expected[~fit]) for curve in curves)
        truth = iou[~fit]
        values = conf[~fit], expected[~fit], right, mean
        for name, scores in zip(rows, values, strict=True):
            scores = np.clip(scores, 0, 1)
            found = truth > RIGHT
            gaps = expected_calibration_error(conf=scores, correct=found)
            auroc = measure(metrics='AUROC', conf=scores, correct=found)
            rows[name].append((gaps, iou_error(scores, truth), auroc))
    share = f'{(iou > RIGHT).mean():.1%} found, mean IoU {iou.mean():.1%}'
    return [
        f'{len(iou):,}, {share} | {name} | '
        + ' | '.join(f'{v:.2f}' for v in np.mean(found, axis=0))
        for name, found in rows.items()
    ]


def iou_error(scores, ious, num_bins=15):
    """Return the mean gap of scores and IoUs over bins of equal width, in percent."""
    index = np.clip(np.ceil(scores * num_bins).astype(int) - 1, 0, num_bins - 1)
    gaps = np.bincount(index, scores - ious, num_bins)
    return 100 * np.abs(gaps).sum() / len(scores)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('runs', nargs='+', type=Path, help='work dirs of tests with --objects')
    parser.add_argument('--splits', type=int, default=1000)
    parser.add_argument('--precisions', type=float, nargs='*', default=[0.8, 0.9])
    parser.add_argument('--seed', type=int, default=0)
    args = parser.parse_args()
    torch.set_num_threads(1)

    for run in args.runs:
        statistics = CalibrationStatistics.load(run / 'calibration.npz')
        counts = Counts(statistics)
        start = f'| {run.name} | {counts.images // 2} |'
        print('| predictions | images | precision | found | kept | other half | population |')
        print('|---|--:|--:|--:|--:|--:|--:|')
        for precision in args.precisions:
            row = precision_row(counts, precision, args.splits, args.seed)
            print(f'{start} {precision:.0%} | {row} |', flush=True)
        if statistics.objects is not None:
            print('\n| predictions | images | objects | score | ECE of found | of IoU | AUROC |')
            print('|---|--:|---|---|--:|--:|--:|')
            for row in object_rows(statistics.objects, args.splits, args.seed):
                print(f'{start} {row} |', flush=True)
        print()


if __name__ == '__main__':
    main()
