"""Heads that predict each class by a sigmoid: their calibration in tools, configs and ranks."""

import json
import pickle
from pathlib import Path

import pytest
import torch
from mmengine.evaluator import Evaluator

from mmcalib.metrics import measure
from mmcalib.openmmlab.metrics import CalibrationMetric

NAMES = ['ECE', 'AECE', 'NLL', 'Brier', 'accuracy', 'gap']
CONFIG = """
_base_ = 'mmcalib::mbls/digits.py'
model = dict(
    neck=dict(type='GlobalAveragePooling'),
    head=dict(
        _delete_=True,
        type='MultiLabelLinearClsHead',
        in_channels=128,
        num_classes=10,
        loss=dict(type='CrossEntropyLoss', use_sigmoid=True),
    ),
)
val_evaluator = [dict(type='ECE'), dict(type='MultiLabelMetric', average='macro')]
test_evaluator = val_evaluator
default_hooks = dict(checkpoint=dict(save_best='calibration/ECE', rule='less'))
"""


def several(count, num_labels=6, score=False):
    """Return mmpretrain's samples of a head that predicts each label by a sigmoid."""
    torch.manual_seed(0)
    samples = []
    for index in range(count):
        scores = (2 * torch.randn(num_labels) - 1).sigmoid()
        present = (torch.rand(num_labels) < scores.sqrt()).long()
        sample = {
            'pred_score': scores,
            'pred_label': (scores >= 0.5).nonzero()[:, 0],
            'gt_label': present.nonzero()[:, 0],
            'sample_idx': index,
        }
        if score:
            present[index % num_labels] = -1
            sample['gt_score'] = present.float()
        samples.append(sample)
    return samples


def decisions(samples):
    """Return the probability of each valid label, and whether the image has the label."""
    probs = []
    labels = []
    for sample in samples:
        for label, prob in enumerate(sample['pred_score'].tolist()):
            if 'gt_score' in sample:
                is_present = int(sample['gt_score'][label])  # It is -1 for an ignored label.
            else:
                is_present = int(label in sample['gt_label'].tolist())
            if is_present >= 0:
                probs.append(prob)
                labels.append(is_present)
    return torch.tensor(probs), torch.tensor(labels)


def evaluate(samples, **options):
    evaluator = Evaluator([CalibrationMetric(several_labels=True, **options)])
    evaluator.dataset_meta = {'classes': [f'label {k}' for k in range(6)]}
    for start in range(0, len(samples), 4):
        evaluator.process(samples[start : start + 4])
    return evaluator.evaluate(len(samples)), evaluator.metrics[0].statistics


@pytest.mark.parametrize('score', [False, True])
def test_metric_several_labels_measures_all_decisions(score):
    samples = several(30, score=score)
    actual, statistics = evaluate(samples, metrics=NAMES, per_class=True)
    expected = measure(*decisions(samples), NAMES)
    for name in NAMES:
        assert actual[f'calibration/{name}'] == pytest.approx(expected[name], abs=1e-4)
    assert statistics.classes == [f'label {k}' for k in range(6)]
    counts = statistics.class_bins[0].sum(dim=1)
    judged = [6 if 'gt_score' not in s else int((s['gt_score'] >= 0).sum()) for s in samples]
    assert counts.sum() == sum(judged)
    first = [s['pred_score'][0] for s in samples if not score or s['gt_score'][0] >= 0]
    assert counts[0] == len(first)
    conf = torch.stack(first)
    conf = torch.where(conf >= 0.5, conf, 1 - conf)
    assert statistics.class_bins[2, 0].sum() == pytest.approx(conf.sum())


def test_metric_several_labels_has_intervals_over_images():
    samples = several(40)
    actual, _ = evaluate(samples, metrics=['ECE', 'accuracy'], confidence_interval=0.9)
    probs, labels = decisions(samples)
    maps = [probs.view(40, 1, 6), labels.view(40, 6)]
    expected = measure(*maps, ['ECE', 'accuracy'], interval=0.9)
    for name, value in expected.items():
        assert actual[f'calibration/{name}'] == pytest.approx(value, abs=1e-4)


def test_test_several_labels_measures_all_decisions(run):
    Path('own.py').write_text(CONFIG)
    run('train.py', 'own.py', '--limit', 40, '--no-test', '--cfg-options', 'train_cfg.max_epochs=1')
    (checkpoint,) = Path().rglob('best*.pth')
    options = ['--calibration', '--limit', 40, '--out', 'out.pkl', '--work-dir', 'test']
    run('test.py', 'own.py', checkpoint, *options)
    metrics = json.loads(Path('test/results.json').read_text())['metrics']
    samples = pickle.loads(Path('out.pkl').read_bytes())
    expected = measure(*decisions(samples), ['ECE', 'NLL', 'gap'])
    for name, value in expected.items():
        assert metrics[f'calibration/{name}'] == pytest.approx(value, abs=1e-3)
    assert metrics['calibration/ECE_low'] <= metrics['calibration/ECE_high']


@pytest.mark.parametrize('num_labels', [200, 201])
def test_metric_several_labels_keeps_at_most_100_kb_of_an_image(num_labels):
    metric = CalibrationMetric(several_labels=True)
    metric.process({}, several(3, num_labels=num_labels))
    assert len(pickle.dumps(metric.results)) < 3 * 100_000
    metric.evaluate(3)
    assert metric.statistics.class_rates().are_of_labels == (num_labels == 200)
