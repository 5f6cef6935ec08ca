"""Labels that lack a class, or say nothing about the predictions."""

import json
import re
from pathlib import Path

import pytest
from mmcv.transforms import BaseTransform
from mmengine.registry import TRANSFORMS
from overconfident_checkpoints import DIGITS, FEW, SCENES, record_in

PACK = {DIGITS: 'PackInputs', SCENES: 'PackSegInputs'}


@TRANSFORMS.register_module(force=True)
class ChangeLabels(BaseTransform):
    """Changes labels to masks of 0 and 255, to lack class 3 or 255, or to another order."""

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
        elif self.kind == 'no 255':
            mask = results['gt_seg_map']
            mask[mask == 255] = 3
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


@pytest.mark.parametrize(('declared', 'expected'), [(None, 3), (5, 5)])
def test_calibrate_ignored_label_of_head_or_metric_counts_as_in_test(
    declared, expected, scenes, calibrate, run
):
    """A head that leaves out label 3 has not learned it, so that its pixels must not count."""
    config = write_config(SCENES, 'no 255')
    cfg = [*FEW[SCENES], 'model.decode_head.ignore_index=3']
    if declared is not None:
        cfg.append(f'val_evaluator.1.ignore_index={declared}')
    content, output = calibrate(config, scenes, cfg=cfg)
    assert 'IoUMetric leaves out label 255' in output
    options = ['--split', 'val', '--work-dir', 'tested', '--cfg-options', *cfg]
    assert 'IoUMetric leaves out label 255' in run('test.py', config, scenes, *options)
    results = json.loads(Path('tested/results_val.json').read_text())
    assert results['evaluation']['ignore_index'] == expected
    before = record_in(content)['fitted']['before']
    assert results['metrics']['calibration/ECE'] == pytest.approx(before['ECE'], abs=1e-4)
    assert 0 < record_in(content)['num_predictions'] < 6 * 40 * 40
