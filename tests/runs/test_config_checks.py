"""What is found before a run starts, or before its numbers are."""

import re
from contextlib import nullcontext

import pytest
import torch
from commands import ROOT, call_here
from mmengine.config import Config
from mmengine.evaluator import BaseMetric
from mmengine.registry import METRICS

from mmcalib.checks import UserError
from mmcalib.runs.checkpoint_choice import check_checkpoint
from mmcalib.runs.config import load_config, set_loader_defaults
from mmcalib.runs.config_checks import check_accuracy_floor, check_learning, check_metrics
from mmcalib.runs.ensemble_config import average_predictions
from mmcalib.runs.runner import build_runner, run_test


def evaluated(*metrics, **checkpoint):
    hooks = dict(checkpoint=dict(type='CheckpointHook', **checkpoint))
    return Config(dict(default_scope='mmseg', val_evaluator=list(metrics), default_hooks=hooks))


@pytest.mark.parametrize(
    ('metrics', 'key'),
    [
        ([dict(type='ECE'), dict(type='ECE', num_bins=25)], 'calibration/ECE'),
        ([dict(type='CalibrationMetric'), dict(type='AECE')], 'calibration/AECE'),
        ([dict(type='ECE', prefix='a'), dict(type='CalibrationMetric', prefix='a')], 'a/ECE'),
    ],
)
def test_metrics_that_overwrite_each_other_are_refused(metrics, key):
    with pytest.raises(ValueError, match=f'val_evaluator measures {key} twice.*prefix='):
        check_metrics(evaluated(*metrics))


def test_metrics_of_other_names_or_prefixes_stand_together():
    metrics = [dict(type='ECE'), dict(type='AECE'), dict(type='ECE', prefix='ece25', num_bins=25)]
    check_metrics(evaluated(dict(type='IoUMetric'), *metrics))
    check_metrics(Config(dict()))


def test_the_worst_checkpoint_is_not_kept():
    metrics = [
        dict(type='mmpretrain.Accuracy'),
        dict(type='CalibrationMetric', metrics=['ECE', 'accuracy']),
    ]
    for key in ('calibration/ECE', ['accuracy/top1', 'calibration/ECE']):
        with pytest.raises(ValueError, match=r"'calibration/ECE': .*'less'.*worst checkpoint"):
            check_metrics(evaluated(*metrics, save_best=key, rule='greater'))
        check_metrics(evaluated(*metrics, save_best=key, rule='less'))
    with pytest.raises(ValueError, match=r"set rule='less'; without a rule mmengine cannot"):
        check_metrics(evaluated(*metrics, save_best='calibration/ECE'))
    for rule in ('greater', None):
        check_metrics(evaluated(*metrics, save_best='calibration/accuracy', rule=rule))
    check_metrics(
        evaluated(
            *metrics, save_best=['accuracy/top1', 'calibration/ECE'], rule=['greater', 'less']
        )
    )


@pytest.mark.parametrize('name', ['AUROC', 'coverage@risk_0.1', 'resolution', 'accuracy'])
def test_of_some_figures_more_is_better(name):
    metric, key = dict(type='CalibrationMetric', metrics=[name]), f'calibration/{name}'
    check_metrics(evaluated(metric, save_best=key, rule='greater'))
    with pytest.raises(ValueError, match=f"'{key}': set rule='greater'; .*keep the worst"):
        check_metrics(evaluated(metric, save_best=key, rule='less'))


def test_a_checkpoint_may_be_kept_by_a_figure_without_a_better_side():
    metric = dict(type='CalibrationMetric', metrics=['confidence'])
    for rule in ('less', 'greater'):
        check_metrics(evaluated(metric, save_best='calibration/confidence', rule=rule))


@pytest.mark.parametrize(
    ('metrics', 'key', 'meant'),
    [
        ([dict(type='CalibrationMetric')], 'calibration/ece', 'calibration/ECE'),
        ([dict(type='ECE', prefix='val')], 'calibration/ECE', None),
        ([dict(type='ECE'), dict(type='mmpretrain.Accuracy')], 'accuracy/top5', 'accuracy/top1'),
        ([dict(type='IoUMetric')], 'miou', 'mIoU'),
        ([dict(type='ForegroundIoU')], 'miou', 'mIoU'),
        # What another's metric measures is not known, but this is close to what is.
        ([dict(type='ECE'), dict(type='SegMap')], 'calibration/EEC', 'calibration/ECE'),
    ],
)
def test_a_checkpoint_is_not_kept_by_what_is_not_measured(metrics, key, meant):
    METRICS.register_module('SegMap', module=SegMap, force=True)
    with pytest.raises(ValueError, match=rf'{key}.*does not measure it; .*{meant or "val/ECE"}'):
        check_metrics(evaluated(*metrics, save_best=key, rule='less'))


@pytest.mark.parametrize(
    ('accuracy', 'metrics', 'refused'),
    [
        ('accuracy/top1', [dict(type='mmpretrain.Accuracy')], False),
        ('mIoU', [dict(type='IoUMetric')], False),
        ('mIoU', [], True),
        ('accuracy/top5', [dict(type='mmpretrain.Accuracy')], True),
        ('calibration/accuracy', [], False),
        ('their/own', [dict(type='SegMap')], False),
    ],
)
def test_the_accuracy_under_a_floor_must_be_measured(accuracy, metrics, refused):
    METRICS.register_module('SegMap', module=SegMap, force=True)
    metrics = [dict(type='CalibrationMetric', metrics=['ECE', 'accuracy']), *metrics]
    cfg = evaluated(*metrics, save_best='calibration/ECE', rule='less', accuracy=accuracy)
    check_accuracy_floor(cfg)
    cfg.default_hooks.checkpoint.type = 'AccuracyFloorCheckpointHook'
    error = pytest.raises(ValueError, match=r'accuracy=.* does not measure it')
    with error if refused else nullcontext():
        check_accuracy_floor(cfg)


class SegMap(BaseMetric):
    def process(self, data_batch, data_samples):
        pass

    def compute_metrics(self, results):
        return {}


@pytest.mark.parametrize(
    ('metrics', 'key'),
    [
        ([dict(type='CalibrationMetric', confidence_interval=0.9)], 'calibration/ECE_high'),
        ([dict(type='CalibrationMetric', metrics=['AURC'])], 'calibration/AURC'),
        ([dict(type='mmpretrain.Accuracy', topk=(1, 5))], 'accuracy/top5'),
        ([dict(type='IoUMetric', iou_metrics=['mFscore'])], 'mRecall'),
        ([dict(type='ECE'), dict(type='SegMap')], 'their/own'),
        ([dict(type='IoUMetric')], 'auto'),
    ],
)
def test_a_checkpoint_may_be_kept_by_anything_measured(metrics, key):
    METRICS.register_module('SegMap', module=SegMap, force=True)
    check_metrics(evaluated(*metrics, save_best=key, rule='less'))


def test_a_loss_that_could_not_learn_is_not_trained_with():
    loss = dict(type='CombinedLoss', losses=[dict(type='mmcalib.CALSLoss', num_classes=4)])
    cfg = Config(dict(model=dict(head=dict(loss=loss)), val_cfg=dict()))
    with pytest.raises(
        ValueError, match=r"CALSLoss learns nothing .*custom_hooks=\[dict\(type='Learn"
    ):
        check_learning(cfg)
    cfg.custom_hooks = [dict(type='LearnFromValidationHook')]
    check_learning(cfg)
    cfg.val_cfg = None
    with pytest.raises(ValueError, match='CALSLoss learns from validations, but this training'):
        check_learning(cfg)
    check_learning(Config(dict()))


def test_a_test_that_could_not_be_measured_is_not_trained_for():
    cfg = evaluated(dict(type='ECE'))
    cfg.test_evaluator = [dict(type='IoUMetric'), dict(type='ECE', num_bins=0)]
    with pytest.raises(ValueError, match=r'test_evaluator\.1: num_bins must be .* got 0'):
        check_metrics(cfg)
    cfg.test_evaluator = dict(type='NoSuchMetric')
    with pytest.raises(ValueError, match=r'test_evaluator\.0: NoSuchMetric is not in the'):
        check_metrics(cfg)


@pytest.mark.parametrize(
    ('out', 'said'),
    [
        ('folder.pkl', r'folder\.pkl is a folder: name a file'),
        ('file/below.pkl', r'below\.pkl cannot be written'),
        ('metrics.txt', r'predictions go to a \.pkl file'),
    ],
)
def test_an_out_that_cannot_be_written_is_said_before_the_test(
    out, said, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / 'folder.pkl').mkdir()
    (tmp_path / 'file').touch()
    arguments = [ROOT / 'configs/ce/digits.py', 'none.pth', '--out', out]
    with pytest.raises(SystemExit):
        call_here('test.py', *arguments, monkeypatch=monkeypatch)
    assert re.search(said, capsys.readouterr().err)


def test_what_is_no_checkpoint_is_said(tmp_path):
    whole, legacy = tmp_path / 'whole.pth', tmp_path / 'legacy.pth'
    torch.save({'a': torch.zeros(3)}, whole)
    torch.save({'a': torch.zeros(3)}, legacy, _use_new_zipfile_serialization=False)
    for path in (whole, legacy, 'https://host/model.pth'):
        check_checkpoint(str(path))
    with pytest.raises(FileNotFoundError, match='no checkpoint'):
        check_checkpoint(str(tmp_path))
    (tmp_path / 'text.pth').write_text('# text')
    with pytest.raises(ValueError, match='another kind of file'):
        check_checkpoint(str(tmp_path / 'text.pth'))
    whole.write_bytes(whole.read_bytes()[:-30])
    with pytest.raises(ValueError, match='not written to its end'):
        check_checkpoint(str(whole))


@pytest.mark.parametrize('tta', [False, True])
def test_a_checkpoint_of_another_model_is_not_tested(tta, tmp_path):
    cfg = load_config(str(ROOT / 'configs/ce/digits.py'), {'test_dataloader.num_workers': 0})
    cfg.work_dir, cfg.launcher = str(tmp_path), 'none'
    cfg.load_from = str(tmp_path / 'other.pth')
    torch.save({'state_dict': {'backbone.weight': torch.zeros(2)}, 'meta': {}}, cfg.load_from)
    set_loader_defaults(cfg)
    if tta:
        average_predictions(cfg, [cfg.load_from], tta=True)
    runner = build_runner(cfg, complete_weights=True)
    with pytest.raises(UserError, match=r'does not fit the model of this config: it lacks'):
        run_test(runner, str(tmp_path / 'other.pth'))
    assert not (tmp_path / 'results.json').exists()
