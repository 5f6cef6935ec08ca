"""Protocols of the foreground refuse data whose class 0 is no background."""

from pathlib import Path

import pytest
from images import write_voc
from mmengine.evaluator import Evaluator
from samples import segmented

from mmcalib.openmmlab.metrics import CalibrationMetric, ForegroundIoU

FOREGROUND = [
    lambda: CalibrationMetric(protocol='foreground'),
    lambda: CalibrationMetric(protocol='paper'),
    ForegroundIoU,
]
OTHERS = [
    CalibrationMetric,
    lambda: CalibrationMetric(protocol='image'),
    lambda: CalibrationMetric(protocol='boundary'),
]


def samples_with(reduce_zero_label):
    return [dict(sample, reduce_zero_label=reduce_zero_label) for sample in segmented(3)]


@pytest.mark.parametrize('metric', FOREGROUND)
def test_foreground_metric_reduced_labels_raises(metric):
    with pytest.raises(ValueError, match=r"reduce_zero_label.*'wall'"):
        Evaluator([metric()]).dataset_meta = dict(classes=['wall', 'sky'], reduce_zero_label=True)
    with pytest.raises(ValueError, match='reduce_zero_label'):
        Evaluator([metric()]).process(samples_with(True))


@pytest.mark.parametrize(
    ('metric', 'reduced'),
    [(metric, False) for metric in FOREGROUND] + [(metric, True) for metric in OTHERS],
)
def test_metric_labels_with_a_background_are_measured(metric, reduced):
    evaluator = Evaluator([metric()])
    evaluator.dataset_meta = dict(classes=['wall', 'sky'], reduce_zero_label=reduced)
    evaluator.process(samples_with(reduced))
    assert evaluator.evaluate(3)


def test_train_foreground_metric_of_reduced_labels_raises_before_training(run, tmp_path):
    write_voc(tmp_path / 'data/VOCdevkit/VOC2012')
    data = 'dataset=dict(reduce_zero_label=True)'
    Path('own.py').write_text(
        "_base_ = 'mmcalib::mbls/deeplabv3_r50_voc.py'\n"
        f'val_dataloader = dict({data})\nmodel = dict(backbone=dict(init_cfg=None))\n'
        "val_evaluator = dict(_delete_=True, type='ForegroundIoU')\n"
    )
    message = run('train.py', 'own.py', '--limit', 2, code=2)
    assert 'reduce_zero_label' in message.splitlines()[-1]
    assert not list(tmp_path.rglob('*.pth'))
