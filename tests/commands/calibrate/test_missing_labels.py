"""Labels that lack a class, or say nothing about the predictions."""

import re
from pathlib import Path

import pytest
from mmcv.transforms import BaseTransform
from mmengine.registry import TRANSFORMS
from overconfident_checkpoints import DIGITS, FEW, SCENES, record_in

PACK = {DIGITS: 'PackInputs', SCENES: 'PackSegInputs'}


@TRANSFORMS.register_module(force=True)
class ChangeLabels(BaseTransform):
    """Changes labels to masks of 0 and 255, to lack class 3, or to another order of classes."""

    def __init__(self, kind):
        self.kind = kind

    def transform(self, results):
        if self.kind == 'other order':
            results['gt_label'] = (results['gt_label'] + 5) % 10
        elif self.kind == '0 and 255':
            mask = results['gt_seg_map']
            mask[mask > 0] = 255
        elif self.kind == 'no 3':
            mask = results['gt_seg_map']
            mask[mask == 3] = 255
        return results


def write_config(base, kind):
    """Write a config whose validation labels are changed."""
    pipeline = [dict(type='ChangeLabels', kind=kind), dict(type=PACK[base])]
    loader = dict(dataset=dict(pipeline=pipeline))
    Path('changed.py').write_text(f"_base_ = '{base}'\nval_dataloader = {loader}\n")
    return 'changed.py'


def test_calibrate_one_label_only_refused(scenes, calibrate):
    error = calibrate(write_config(SCENES, '0 and 255'), scenes, cfg=FEW[SCENES], code=2)
    assert re.search('all labels are 0: .*write 1', error)
    assert not Path('out.pth').exists()


def test_calibrate_other_order_of_classes_refused(digits, calibrate):
    error = calibrate(write_config(DIGITS, 'other order'), digits, cfg=FEW[DIGITS], code=2)
    assert 'same order' in error
    assert not Path('out.pth').exists()


@pytest.mark.parametrize(
    ('kind', 'message'),
    [
        ('no 3', 'No label is of class 2:'),
        ('0 and 255', 'The masks hold 0, 255,'),
        ('unchanged', None),
    ],
)
def test_test_class_without_labels_is_named(kind, message, scenes, run):
    config = write_config(SCENES, kind)
    few = ['--cfg-options', 'val_dataloader.dataset.indices=20']
    output = run('test.py', config, scenes, '--split', 'val', '--work-dir', 'tested', *few)
    if message is None:
        assert 'No label is of class' not in output
    else:
        assert 'No label is of class' in output
        assert message in ' '.join(output.split())


def test_calibrate_class_without_labels_is_named(scenes, calibrate):
    content, output = calibrate(write_config(SCENES, 'no 3'), scenes, cfg=FEW[SCENES])
    assert record_in(content)['unlabelled'] == ['2']
    assert 'No label is of class 2:' in output
