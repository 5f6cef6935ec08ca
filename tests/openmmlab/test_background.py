"""Protocols of the foreground leave out class 0, which may be no background."""

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


def samples_with(reduced):
    return [dict(sample, reduce_zero_label=reduced) for sample in segmented(3)]


@pytest.mark.parametrize('metric', FOREGROUND)
def test_foreground_of_reduced_labels_is_refused(metric):
    with pytest.raises(ValueError, match=r"reduce_zero_label.*'wall'"):
        Evaluator([metric()]).dataset_meta = dict(classes=['wall', 'sky'], reduce_zero_label=True)
    with pytest.raises(ValueError, match='reduce_zero_label'):
        Evaluator([metric()]).process(samples_with(True))


@pytest.mark.parametrize(
    ('metric', 'reduced'), [(m, False) for m in FOREGROUND] + [(m, True) for m in OTHERS]
)
def test_other_protocols_and_labels_are_measured(metric, reduced):
    evaluator = Evaluator([metric()])
    evaluator.dataset_meta = dict(classes=['wall', 'sky'], reduce_zero_label=reduced)
    evaluator.process(samples_with(reduced))
    assert evaluator.evaluate(3)


def test_training_foreground_of_reduced_labels_is_refused_before_it(run, tmp_path):
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
