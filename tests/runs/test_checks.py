"""Checks of a run: the metric that chooses a checkpoint, and the first samples."""

import random
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from mmengine.evaluator import BaseMetric, Evaluator
from mmengine.hooks import CheckpointHook
from mmengine.registry import DATASETS, METRICS

from mmcalib.errors import UserError
from mmcalib.runs.checks import check_samples, check_selection, error_reason

ECE = dict(type='ECE')
ACCURACY = dict(type='mmpretrain.Accuracy')
IOU = dict(type='mmseg.IoUMetric')
UNKNOWN = dict(type='UnknownMetric')


class UnknownMetric(BaseMetric):
    """A metric of another package, whose keys are not known."""

    def process(self, data_batch, data_samples):
        pass

    def compute_metrics(self, results):
        return {}


@pytest.mark.parametrize(
    ('metrics', 'key', 'rule', 'message'),
    [
        ([ECE], 'calibration/ece', 'less', 'mean calibration/ECE'),
        ([{**ECE, 'prefix': 'val'}], 'calibration/ECE', 'less', 'val/ECE'),
        ([ECE, ACCURACY], 'accuracy/top5', None, 'accuracy/top1'),
        ([IOU], 'miou', 'greater', 'mean mIoU'),
        ([dict(type='ForegroundIoU')], 'miou', 'greater', 'mean mIoU'),
        # An unknown metric might measure it, but the key is close to a known one.
        ([ECE, UNKNOWN], 'calibration/EEC', 'less', 'calibration/ECE'),
        ([ECE], 'calibration/ECE', 'greater', r"set rule='less'.*worst checkpoint"),
        ([dict(type='CalibrationMetric', metrics='AUROC')], 'calibration/AUROC', 'less', 'greater'),
        ([ECE, UNKNOWN], 'their/own', 'less', None),
        ([ECE], 'auto', None, None),
        ([{**ECE, 'confidence_interval': 0.9}], 'calibration/ECE_high', 'less', None),
        ([{**ACCURACY, 'topk': (1, 5)}], 'accuracy/top5', 'greater', None),
        ([{**IOU, 'iou_metrics': ['mFscore']}], 'mRecall', 'greater', None),
    ],
)
def test_check_selection_key_not_measured_raises(metrics, key, rule, message):
    METRICS.register_module('UnknownMetric', module=UnknownMetric, force=True)
    runner = SimpleNamespace(
        cfg=dict(val_dataloader=True),
        val_evaluator=Evaluator(metrics),
        hooks=[CheckpointHook(save_best=key, rule=rule)],
    )
    with nullcontext() if message is None else pytest.raises(UserError, match=message):
        check_selection(runner)


class PartsEvaluator(Evaluator):
    """An evaluator that names the keys of each part of the data."""


def test_check_selection_key_of_own_evaluator_is_allowed():
    runner = SimpleNamespace(
        cfg=dict(val_dataloader=True),
        val_evaluator=PartsEvaluator([ACCURACY]),
        hooks=[CheckpointHook(save_best='first/accuracy/top1', rule='greater')],
    )
    check_selection(runner)


def test_check_samples_keeps_random_state():
    def draw_numbers(sample):
        random.random()
        torch.rand(3)
        return sample

    dataset = DATASETS.build(dict(type='Digits', split='val', pipeline=[]))
    dataset.pipeline.transforms.append(draw_numbers)
    loop = SimpleNamespace(
        dataloader=SimpleNamespace(dataset=dataset), evaluator=Evaluator([ACCURACY])
    )
    python_state = random.getstate()
    torch_state = torch.get_rng_state()
    check_samples('test', loop, torch.nn.Identity(), loop)
    assert random.getstate() == python_state
    assert torch.equal(torch.get_rng_state(), torch_state)


def test_error_reason_unexpected_keyword_names_delete():
    error = TypeError("__init__() got an unexpected keyword argument 'avg_non_ignore'")
    assert '_delete_=True' in error_reason(error)
