"""What a run would meet hours later is found before it, and broken samples are named."""

import random
import re
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from commands import ROOT, call, call_here
from images import write_folders, write_voc
from mmengine.dataset import BaseDataset, Compose
from mmengine.evaluator import BaseMetric, Evaluator
from mmengine.hooks import CheckpointHook
from mmengine.registry import DATASETS, METRICS
from PIL import Image
from test_checkpoint import config
from tiny_models import fcn_head, segmentor
from torch.utils.data import DataLoader

from mmcalib.checks import UserError
from mmcalib.hooks.name_broken_samples_hook import (
    NamingPipeline,
    labels_known_to,
    name_samples,
)
from mmcalib.runs.checks import check_samples, check_selection
from mmcalib.runs.train import train_and_test

LOAD = [dict(type='LoadImageFromFile'), dict(type='mmpretrain.PackInputs')]


class Labels(BaseDataset):
    def __init__(self, labels, classes=None, **kwargs):
        self.labels = labels
        super().__init__(metainfo=dict(classes=classes) if classes else None, **kwargs)

    def load_data_list(self):
        return [{'gt_label': label} for label in self.labels]


def folders(root):
    return DATASETS.build(dict(type='mmpretrain.CustomDataset', data_root=str(root), pipeline=LOAD))


LOSS = "model = dict(head=dict(loss=dict(_delete_=True, type='{}', {})))"
DATA = '{}_dataloader = dict(dataset=dict({}))'
REFUSED = {
    'model = dict(head=dict(loss=dict(margn=8.0)))': r'has no option margn; did you mean margin\?',
    LOSS.format('CombinedLoss', "losses=[dict(type='MDCALoss', los_weight=2.0)]"): (
        'MDCALoss has no option los_weight; did you mean loss_weight'
    ),
    LOSS.format('CALSLoss', 'num_classes=10'): r"learns nothing .*\[dict\(type='LearnFromV",
    "custom_hooks = [dict(type='LossScheduleHook', parametre='margin')]": 'did you mean parameter',
    "custom_hooks = [dict(type='LossScheduleHook', factor=2.0)]": 'factor is gone .*: use values=',
    'model = dict(head=dict(num_classes=12))': 'train data have 10 classes, .* the model has 12. ',
    "test_evaluator = [dict(type='ECE', bins=15)]": 'no option bins; .*num_bins',
    "test_evaluator = [dict(type='ECE', num_bins=0)]": 'test data or their metrics: num_bins .* 0',
    "test_evaluator = [dict(type='CalibrationMetrics')]": 'did you mean CalibrationMetric?',
    "test_evaluator = [dict(type='OODMetric'), dict(type='Accuracy')]": 'but Accuracy would count',
    "val_evaluator = [dict(type='ECE'), dict(type='ECE', num_bins=9)]": '/ECE twice.*prefix=',
    'optim_wrapper = dict(optimizer=dict(lrr=0.1))': r'optim_wrapper: .*no option lrr; .*mean lr\?',
    DATA.format('val', 'spilt=0'): 'Digits has no option spilt; did you mean split',
    DATA.format('val', 'metainfo=dict(classes=[*range(1, 11)])'): 'classes differ',
    DATA.format('test', 'indices=[]'): 'the test data .*: there are no samples',
    DATA.format('train', "_delete_=True, type='CUB', data_root='no'"): (
        r'train_dataloader\.dataset: there is no folder .*/no\. Unpack CUB.*dataset\.data_root='
    ),
}


@pytest.mark.parametrize('text', REFUSED)
def test_what_a_run_would_meet_later_is_one_line_before_it(text, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path('own.py').write_text(f"_base_ = 'mmcalib::mbls/digits.py'\n{text}\n")
    limit = [] if 'indices' in text else ['--limit', 4]
    with pytest.raises(SystemExit) as end:
        call_here('train.py', 'own.py', *limit, monkeypatch=monkeypatch)
    said = capsys.readouterr().err
    assert end.value.code == 2 and 'Traceback' not in said
    assert re.search(REFUSED[text], said.splitlines()[-1]), said
    assert not list(tmp_path.rglob('*.pth'))


ECE = dict(type='ECE')
ACCURACY, IOU = dict(type='mmpretrain.Accuracy'), dict(type='mmseg.IoUMetric')
OTHERS = dict(type='Others')


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
def test_a_checkpoint_is_chosen_by_what_is_measured(metrics, key, rule, said):
    METRICS.register_module('Others', module=Others, force=True)
    runner = SimpleNamespace(
        cfg=dict(val_dataloader=True),
        val_evaluator=Evaluator(metrics),
        hooks=[CheckpointHook(save_best=key, rule=rule)],
    )
    with pytest.raises(UserError, match=said) if said else nullcontext():
        check_selection(runner)


class Others(BaseMetric):
    def process(self, data_batch, data_samples):
        pass

    def compute_metrics(self, results):
        return {}


def test_a_first_sample_leaves_randomness_as_it_was(tmp_path):
    data = folders(write_folders(tmp_path, classes=3))
    loop = SimpleNamespace(dataloader=SimpleNamespace(dataset=data))
    before = random.getstate(), torch.get_rng_state().tolist()
    data.pipeline.transforms.insert(1, lambda sample: (random.random(), torch.rand(3), sample)[2])
    check_samples('test', loop, 3, loop)
    assert (random.getstate(), torch.get_rng_state().tolist()) == before
    (tmp_path / 'class_0/0.jpg').unlink()
    with pytest.raises(UserError, match=r'test data: cannot load .*no file .*class_0/0\.jpg'):
        check_samples('test', loop, 3, loop)


@pytest.mark.parametrize('workers', [0, 1])
def test_an_image_that_breaks_later_is_named(tmp_path, workers):
    data = folders(write_folders(tmp_path, classes=2, per_class=2))
    name_samples(SimpleNamespace(datasets=[SimpleNamespace(dataset=data)]))
    path = tmp_path / 'class_1/1.jpg'
    path.write_bytes(b'')
    with pytest.raises(UserError) as error:
        list(DataLoader(data, num_workers=workers, collate_fn=list))
    assert error.value.reason == f'cannot load {path}: {path} is empty (0 bytes)'


def test_a_transform_that_fails_names_the_sample_and_the_error():
    data = Labels([0, 1], pipeline=[lambda sample: sample['no such key']])
    name_samples(data)
    name_samples(data)
    with pytest.raises(UserError, match=r"^cannot load sample 1: KeyError: 'no such key'$"):
        data[1]


def test_a_test_looks_at_its_data_first(tmp_path, monkeypatch, capsys):
    torch.save({'state_dict': {}}, tmp_path / 'a.pth')
    with pytest.raises(SystemExit):
        call_here(
            'test.py', ROOT / 'configs/mbls/digits.py', tmp_path / 'a.pth', '--work-dir',
            tmp_path / 'b', '--cfg-options', 'test_dataloader.dataset.indices=[]',
            monkeypatch=monkeypatch,
        )  # fmt: skip
    assert 'error: the test data or their metrics: there are no samples' in capsys.readouterr().err


def test_a_training_names_the_image_that_breaks_it(tmp_path):
    root = write_folders(tmp_path / 'images', per_class=1)
    (root / 'class_7/0.jpg').write_text('no image')
    cfg = config(tmp_path / 'run')
    cfg.train_dataloader.dataset = dict(type='CustomDataset', data_root=str(root), pipeline=LOAD)
    cfg.val_cfg = cfg.val_dataloader = cfg.val_evaluator = None
    with pytest.raises(UserError, match=r'cannot load .*class_7/0\.jpg: '):
        train_and_test(cfg, test=False)


def train_on_masks(folder, loss, name, label, **options):
    """Train a small network on Pascal VOC, one of whose masks has a label in a corner."""
    train_and_test(masks(folder, loss, name, label, **options), test=False)


def masks(folder, loss, name, label, **options):
    """Return the config of such a training, whose masks are in `folder`."""
    root = write_voc(folder / 'VOC2012')
    path = root / f'SegmentationClass/{name}.png'
    mask = np.asarray(Image.open(path)).copy()
    mask[:6, :6] = label
    Image.fromarray(mask).save(path)
    cfg = config(folder / 'run', 'mbls/digit_scenes', **options)
    load = [dict(type='LoadImageFromFile', color_type='grayscale'), dict(type='LoadAnnotations')]
    steps = [*load, dict(type='Resize', scale=(40, 40)), dict(type='PackSegInputs')]
    cfg.train_dataloader.dataset = dict(
        type='PascalVOCDataset', data_root=str(root), ann_file='ImageSets/Segmentation/train.txt',
        data_prefix=dict(img_path='JPEGImages', seg_map_path='SegmentationClass'), pipeline=steps,
    )  # fmt: skip
    cfg.val_cfg = cfg.val_dataloader = cfg.val_evaluator = None
    cfg.model.decode_head.num_classes = 21
    cfg.model.decode_head.loss_decode = loss
    return cfg
    return path


LOSSES = [dict(type=name) for name in ('MarginLabelSmoothingLoss', 'CrossEntropyLoss', 'DiceLoss')]


@pytest.mark.parametrize('workers', [0, 1])
@pytest.mark.parametrize('loss', LOSSES, ids=lambda loss: loss['type'])
def test_a_training_names_the_mask_with_a_label_out_of_range(loss, workers, tmp_path):
    with pytest.raises(UserError) as error:
        train_on_masks(tmp_path, loss, 'b', 77, train_dataloader__num_workers=workers)
    path = tmp_path / 'VOC2012/SegmentationClass/b.png'
    start, _, end = error.value.reason.partition(' labels outside [0, 21): 77. The model has 21 ')
    assert start.startswith(f'{path} has ') and '255: check the file' in end
    assert '\n' not in error.value.reason


def test_on_two_processes_the_other_one_says_no_more(tmp_path, free_port):
    cfg = masks(tmp_path, LOSSES[1], 'b', 77, train_dataloader__batch_size=1)
    cfg.dump(tmp_path / 'masks.py')
    said = call(
        'dist_train.sh', tmp_path / 'masks.py', 2, '--work-dir', 'run', '--no-test', cwd=tmp_path,
        check=False, PORT=free_port,
    )  # fmt: skip
    (line,) = [line for line in said.splitlines() if 'error:' in line]
    assert 'SegmentationClass/b.png has ' in line and 'outside [0, 21): 77' in line
    assert 'Traceback' not in said


def test_labels_that_the_model_ignores_are_trained_with(tmp_path):
    ignoring = dict(model__decode_head__ignore_index=77)
    with pytest.raises(UserError, match=r'outside \[0, 21\): 255\. .* ignores 77: check'):
        train_on_masks(tmp_path, LOSSES[1], 'b', 77, **ignoring)


@pytest.mark.parametrize(
    ('ignored', 'labels', 'wrong'),
    [((255,), [0, 2, 255], None), ((9, 255), [9, 2], None), ((255,), [-1, 2], -1), ((), [3], 3)],
)
def test_a_class_out_of_range_is_named_with_its_image(ignored, labels, wrong):
    sample = SimpleNamespace(gt_label=torch.tensor(labels))
    steps = Compose([lambda _: dict(data_samples=sample)])
    load = NamingPipeline(steps, 3, ignored)
    if wrong is None:
        assert load(dict(img_path='a.jpg'))['data_samples'] is sample
    else:
        with pytest.raises(UserError, match=rf'^a\.jpg has 1 labels outside \[0, 3\): {wrong}\.'):
            load(dict(img_path='a.jpg'))


@pytest.mark.parametrize(('classes', 'expected'), [(1, 2), (4, 4)])
def test_a_single_logit_tells_two_classes_apart(classes, expected):
    model = segmentor(fcn_head(num_classes=classes, ignore_index=7))
    assert labels_known_to(model)[0] == expected
    assert 7 in labels_known_to(model)[1]
