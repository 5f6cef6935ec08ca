import math

import pytest
from mmseg.evaluation import IoUMetric
from samples import segmented
from test_all_metrics import evaluate

from mmcalib.metrics import ForegroundIoU


def by_loops(samples, classes):
    """IoU of each class over all valid pixels."""
    ious = []
    for k in classes:
        both = either = 0
        for sample in samples:
            predicted, label = sample['pred_sem_seg']['data'][0], sample['gt_sem_seg']['data'][0]
            for p, y in zip(predicted.flatten().tolist(), label.flatten().tolist(), strict=True):
                if y != 255:
                    both += p == k == y
                    either += k in (p, y)
        ious.append(100 * both / either)
    return ious


def test_it_is_mmsegs_but_for_the_background():
    samples = segmented(3)
    background, *ious = by_loops(samples, range(5))
    assert evaluate(samples, ForegroundIoU())['mIoU'] == pytest.approx(sum(ious) / len(ious))
    theirs = evaluate(samples, IoUMetric(), meta={'classes': list('abcde')})['mIoU']
    assert theirs == pytest.approx((background + sum(ious)) / 5, abs=0.01)


def test_nothing_but_background_is_nan():
    samples = segmented(2)
    for sample in samples:
        sample['gt_sem_seg']['data'].fill_(0)
        sample['pred_sem_seg']['data'].fill_(0)
    for found in (samples, []):
        assert math.isnan(evaluate(found, ForegroundIoU())['mIoU'])
