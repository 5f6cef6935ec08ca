import math

import pytest
import torch
from mmengine.evaluator import Evaluator
from samples import segmented

from mmcalib.metrics import ForegroundIoU
from mmcalib.transforms import AtInputSize


def evaluate(samples, metric):
    evaluator = Evaluator(metric)
    evaluator.process(samples)
    return evaluator.evaluate(len(samples))


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
        ious.append(both / either)
    return ious


def test_it_is_the_mean_without_the_background():
    samples = segmented(3)
    ious = by_loops(samples, range(1, 5))
    value = evaluate(samples, ForegroundIoU())['mIoU']
    assert value == pytest.approx(100 * sum(ious) / 4)


def test_it_is_mmsegs_but_for_the_background():
    mmseg = pytest.importorskip('mmseg.evaluation')
    metric = mmseg.IoUMetric()
    metric.dataset_meta = {'classes': list('abcde')}
    samples = segmented(3)
    background = by_loops(samples, [0])[0]
    ours = evaluate(samples, ForegroundIoU())['mIoU']
    theirs = evaluate(samples, metric)['mIoU']
    assert theirs == pytest.approx((100 * background + 4 * ours) / 5, abs=0.01)


def test_nothing_but_background_is_nan():
    samples = segmented(2)
    for sample in samples:
        sample['gt_sem_seg']['data'].fill_(0)
        sample['pred_sem_seg']['data'].fill_(0)
    assert math.isnan(evaluate(samples, ForegroundIoU())['mIoU'])
    assert math.isnan(evaluate([], ForegroundIoU())['mIoU'])


def test_more_than_256_classes():
    samples = segmented(3)
    for number, sample in enumerate(samples):
        for key in ('pred_sem_seg', 'gt_sem_seg'):
            labels = sample[key]['data']
            labels[labels == 4] = 1000 if number else 4  # images end in different classes
    ious = by_loops(samples, [1, 2, 3, 4, 1000])
    value = evaluate(samples, ForegroundIoU())['mIoU']
    assert value == pytest.approx(100 * sum(ious) / 5)


@pytest.mark.parametrize('key', ['pred_sem_seg', 'gt_sem_seg'])
def test_samples_without_labels_are_refused_by_name(key):
    sample = segmented(1)[0]
    del sample[key]
    with pytest.raises(ValueError, match=rf'image_0\.jpg has no {key}'):
        evaluate([sample], ForegroundIoU())


def test_labels_of_another_size_are_refused():
    sample = segmented(1)[0]
    sample['gt_sem_seg']['data'] = torch.zeros(1, 3, 3, dtype=int)
    with pytest.raises(ValueError, match=r'size \(12, 17\), gt_sem_seg \(3, 3\).*AtInputSize'):
        evaluate([sample], ForegroundIoU())


def test_at_input_size():
    assert AtInputSize()({'ori_shape': (9, 9), 'img_shape': (4, 4)})['ori_shape'] == (4, 4)
