"""How often thresholds of classes, recalls and prediction sets keep their guarantee.

    python tools/test.py CONFIG CHECKPOINT --objects --work-dir DIR --out DIR/predictions.pkl
    python tools/benchmarks/guarantees.py DIR … --splits 1000

Real predictions are split at random into two halves: what is fitted on one is tried on the other.
Of each tested run (its calibration.npz, of --objects):

- precision: thresholds of all classes at once. `found` is how many classes have one, `kept` what
  they keep of the other half's pixels of these classes. `other half` says how often all of them
  hold there; `population` draws as many images with replacement, and asks for the precision over
  all images, which is what the theorem is about. A try without a threshold breaks nothing.
- recall: the guarantee is about a mean, so `mean` is the recall of the other half over all splits,
  and `other half` how often it is reached there. The lowest class is the one of the lowest mean.
- objects: the calibration error (15 bins) of their scores on the other half, before and after.

Of the predictions of a classifier (predictions.pkl beside it): sets, their mean coverage and size.
"""

import argparse
import pickle
from pathlib import Path

import numpy as np
import torch

from mmcalib.metrics import (
    CalibrationStatistics,
    ObjectCalibration,
    PredictionSets,
    class_thresholds,
    expected_calibration_error,
    failure_auroc,
    recall_over_all,
    recall_thresholds,
)
from mmcalib.metrics.bins.image_bins import narrow_bin_thresholds, shares_above
from mmcalib.metrics.functional.object_calibration import RIGHT

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


def recall_of(counts, threshold):
    """Return the mean recall of images with true pixels in bins of 1 - probability."""
    ends = torch.cat([1 - THRESHOLDS, torch.zeros(1).double()])
    # The bins before the threshold's own place hold what is at least as probable.
    place = int((ends >= threshold - 1e-12).sum()) - 1
    total = counts.sum(dim=1)
    return (counts[:, :place].sum(dim=1)[total > 0] / total[total > 0]).mean().item()


def recall_rows(counts, recall, splits, seed):
    over_all, of_classes = [], []
    for half, other, _ in halves(counts.images, splits, seed):
        keys, bins = counts.of(half)
        new_keys, new_bins = counts.of(other)
        found = recall_over_all(keys, bins, recall)
        places, row = new_keys[:, 0].unique(return_inverse=True)
        pooled = torch.zeros(len(places), bins.shape[2]).double()
        pooled.index_add_(0, row, new_bins[:, 2].double())
        over_all.append(recall_of(pooled, found.threshold))
        values = []
        for k, threshold in enumerate(recall_thresholds(keys, bins, counts.classes, recall)):
            own = new_bins[(new_keys[:, 1] == k) & (new_bins[:, 2].sum(dim=1) > 0), 2].double()
            known = not isinstance(threshold, str) and len(own)
            values.append(recall_of(own, threshold.threshold) if known else np.nan)
        of_classes.append(values)
    means = np.nanmean(of_classes, axis=0)
    reached = np.nanmean(np.where(np.isnan(of_classes), np.nan, np.array(of_classes) >= recall))
    over_all = np.array(over_all)
    return [
        f'all classes | {over_all.mean():.2%} | {(over_all >= recall).mean():.1%}',
        f'each class | {means.mean():.2%}, lowest {means.min():.2%} | {reached:.1%}',
    ]


def object_rows(objects, splits, seed):
    images = int(objects[:, 0].max()) + 1
    objects = objects[~objects[:, 5].isnan()]
    place, _, _, conf, expected, iou = objects.numpy().T
    rows = {'mean confidence': [], 'expected IoU': [], 'P(IoU > 0.5)': [], 'calibrated IoU': []}
    for half, _, _ in halves(images, splits, seed):
        fit = np.isin(place, half.numpy())
        right, mean = ObjectCalibration(expected[fit], iou[fit])(expected[~fit])
        truth = iou[~fit]
        values = conf[~fit], expected[~fit], right, mean
        for name, scores in zip(rows, values, strict=True):
            scores = np.clip(scores, 0, 1)
            found = truth > RIGHT
            gaps = expected_calibration_error(conf=scores, correct=found)
            rows[name].append(
                (gaps, iou_error(scores, truth), failure_auroc(conf=scores, correct=found))
            )
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


def set_rows(probs, labels, coverage, splits, seed, most):
    for method in ('aps', 'raps'):
        for randomized in (True, False):
            covered, sizes = [], []
            for number, (half, other, _) in enumerate(halves(len(labels), splits, seed)):
                half, other = half[:most], other[:most]
                sets = PredictionSets(
                    probs[half], labels[half], coverage, method=method, randomized=randomized,
                    seed=number,
                )  # fmt: skip
                found = sets(probs[other])
                covered.append(found[np.arange(len(other)), labels[other]].mean())
                sizes.append(found.sum(axis=1).mean())
            name = method.upper() + ('' if randomized else ', not randomized')
            reached = (np.array(covered) >= coverage).mean()
            yield f'{name} | {np.mean(covered):.2%} | {reached:.1%} | {np.mean(sizes):.2f}'


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('runs', nargs='+', type=Path, help='work dirs of tests with --objects')
    parser.add_argument('--splits', type=int, default=1000)
    parser.add_argument('--precisions', type=float, nargs='*', default=[0.8, 0.9])
    parser.add_argument('--recalls', type=float, nargs='*', default=[0.8, 0.9])
    parser.add_argument('--coverages', type=float, nargs='*', default=[0.9])
    parser.add_argument(
        '--set-images', type=int, default=500, help='of each half, at most so many for sets'
    )
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
        print('\n| predictions | images | recall | of | mean | other half |')
        print('|---|--:|--:|---|--:|--:|')
        for recall in args.recalls:
            for row in recall_rows(counts, recall, args.splits, args.seed):
                print(f'{start} {recall:.0%} | {row} |', flush=True)
        if statistics.objects is not None:
            print('\n| predictions | images | objects | score | ECE of found | of IoU | AUROC |')
            print('|---|--:|---|---|--:|--:|--:|')
            for row in object_rows(statistics.objects, args.splits, args.seed):
                print(f'{start} {row} |', flush=True)
        samples = None
        if (run / 'predictions.pkl').is_file():
            samples = pickle.loads((run / 'predictions.pkl').read_bytes())
        if samples and 'pred_score' in samples[0]:
            probs = torch.stack([sample['pred_score'] for sample in samples])
            labels = torch.cat([sample['gt_label'] for sample in samples])
            print('\n| predictions | images | coverage | sets | mean | other half | size |')
            print('|---|--:|--:|---|--:|--:|--:|')
            options = args.splits, args.seed, args.set_images
            start = f'| {run.name} | {min(counts.images // 2, args.set_images)} |'
            for coverage in args.coverages:
                for row in set_rows(probs, labels, coverage, *options):
                    print(f'{start} {coverage:.0%} | {row} |', flush=True)
        print()


if __name__ == '__main__':
    main()
