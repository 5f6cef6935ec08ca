"""By what a checkpoint may be chosen, and what a look at the data leaves as it was."""

import random
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from mmengine.evaluator import BaseMetric, Evaluator
from mmengine.hooks import CheckpointHook
from mmengine.registry import DATASETS, METRICS

from mmcalib.errors import UserError
from mmcalib.runs.checks import check_samples, check_selection

ECE = dict(type='ECE')
ACCURACY = dict(type='mmpretrain.Accuracy')
IOU = dict(type='mmseg.IoUMetric')
OTHERS = dict(type='Others')


class Others(BaseMetric):
    def process(self, data_batch, data_samples):
        pass

    def compute_metrics(self, results):
        return {}


@pytest.mark.parametrize(
    ('metrics', 'key', 'rule', 'said'),
    [
        ([ECE], 'calibration/ece', 'less', 'mean calibration/ECE'),
        ([{**ECE, 'prefix': 'val'}], 'calibration/ECE', 'less', 'val/ECE'),
        ([ECE, ACCURACY], 'accuracy/top5', None, 'accuracy/top1'),
        ([IOU], 'miou', 'greater', 'mean mIoU'),
        ([dict(type='ForegroundIoU')], 'miou', 'greater', 'mean mIoU'),
        # What another's metric measures is not known, but this is close to what is.
        ([ECE, OTHERS], 'calibration/EEC', 'less', 'calibration/ECE'),
        ([ECE], 'calibration/ECE', 'greater', r"set rule='less'.*worst checkpoint"),
        ([dict(type='CalibrationMetric', metrics='AUROC')], 'calibration/AUROC', 'less', 'greater'),
        ([ECE, OTHERS], 'their/own', 'less', None),
        ([ECE], 'auto', None, None),
        ([{**ECE, 'confidence_interval': 0.9}], 'calibration/ECE_high', 'less', None),
        ([{**ACCURACY, 'topk': (1, 5)}], 'accuracy/top5', 'greater', None),
        ([{**IOU, 'iou_metrics': ['mFscore']}], 'mRecall', 'greater', None),
    ],
)
def test_check_selection_key_not_measured_raises(metrics, key, rule, said):
    METRICS.register_module('Others', module=Others, force=True)
    runner = SimpleNamespace(
        cfg=dict(val_dataloader=True),
        val_evaluator=Evaluator(metrics),
        hooks=[CheckpointHook(save_best=key, rule=rule)],
    )
    with pytest.raises(UserError, match=said) if said else nullcontext():
        check_selection(runner)


def test_check_samples_keeps_random_state():
    data = DATASETS.build(dict(type='Digits', split='val', pipeline=[]))
    data.pipeline.transforms.append(lambda sample: (random.random(), torch.rand(3), sample)[2])
    loop = SimpleNamespace(dataloader=SimpleNamespace(dataset=data))
    before = random.getstate(), torch.get_rng_state().tolist()
    check_samples('test', loop, None, loop)
    assert (random.getstate(), torch.get_rng_state().tolist()) == before
