"""Every tool on configs of mmengine's new style, whose types are classes, as toolboxes ship them.

Their base is inherited by `read_base`, and says that there is no default scope.
"""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from forked import ForkedCommand, run_forked
from images import write_voc
from PIL import Image
from shifted import needs_extra

from mmcalib.runs.config import load_config
from mmcalib.runs.record import Record

RUNTIME = """
from mmengine.dataset import DefaultSampler
from mmengine.hooks import (
    CheckpointHook, DistSamplerSeedHook, IterTimerHook, LoggerHook, ParamSchedulerHook)
from mmengine.optim import ConstantLR, OptimWrapper
from mmengine.visualization import LocalVisBackend
from torch.optim import SGD

default_scope = None
default_hooks = dict(
    timer=dict(type=IterTimerHook),
    logger=dict(type=LoggerHook, interval=100),
    param_scheduler=dict(type=ParamSchedulerHook),
    checkpoint=dict(type=CheckpointHook, interval=1, save_best='auto'),
    sampler_seed=dict(type=DistSamplerSeedHook))
env_cfg = dict(
    cudnn_benchmark=False,
    mp_cfg=dict(mp_start_method='fork', opencv_num_threads=0),
    dist_cfg=dict(backend='nccl'))
vis_backends = [dict(type=LocalVisBackend)]
log_level = 'INFO'
load_from = None
resume = False
randomness = dict(seed=0)
optim_wrapper = dict(type=OptimWrapper, optimizer=dict(type=SGD, lr=0.05))
param_scheduler = dict(type=ConstantLR, factor=1.0)
train_cfg = dict(by_epoch=True, max_epochs=3, val_interval=1)
val_cfg = dict()
test_cfg = dict()
loader = dict(batch_size=4, num_workers=0, sampler=dict(type=DefaultSampler, shuffle=False))
"""
CLASSIFIER = """
from mmcv.transforms import LoadImageFromFile
from mmpretrain.datasets import CustomDataset, PackInputs
from mmpretrain.engine.hooks import VisualizationHook
from mmpretrain.evaluation import Accuracy
from mmpretrain.models import ClsDataPreprocessor, CrossEntropyLoss, ImageClassifier, LinearClsHead
from mmpretrain.visualization import UniversalVisualizer
from tiny_models import TinyFeatures

default_hooks.update(visualization=dict(type=VisualizationHook, enable=False))
visualizer = dict(type=UniversalVisualizer, vis_backends=vis_backends)
model = dict(
    type=ImageClassifier,
    data_preprocessor=dict(
        type=ClsDataPreprocessor, mean=[127.0] * 3, std=[60.0] * 3, to_rgb=True),
    backbone=dict(type=TinyFeatures, form='vector'),
    head=dict(type=LinearClsHead, num_classes=10, in_channels=8,
              loss=dict(type=CrossEntropyLoss, loss_weight=1.0)))
pipeline = [dict(type=LoadImageFromFile), dict(type=PackInputs)]
train_dataloader = dict(
    **loader, dataset=dict(type=CustomDataset, data_root='data/train', pipeline=pipeline))
val_dataloader = dict(
    **loader, dataset=dict(type=CustomDataset, data_root='data/val', pipeline=pipeline))
test_dataloader = dict(
    **loader, dataset=dict(type=CustomDataset, data_root='data/test', pipeline=pipeline))
val_evaluator = dict(type=Accuracy, topk=(1, ))
test_evaluator = val_evaluator
"""
SEGMENTOR = """
from mmcv.transforms import LoadImageFromFile
from mmseg.datasets import PascalVOCDataset
from mmseg.datasets.transforms import LoadAnnotations, PackSegInputs
from mmseg.engine.hooks import SegVisualizationHook
from mmseg.evaluation import IoUMetric
from mmseg.models import (
    CrossEntropyLoss, EncoderDecoder, FCNHead, SegDataPreProcessor, SegTTAModel)
from mmseg.visualization import SegLocalVisualizer
from tiny_models import TinyFeatures

default_hooks.update(visualization=dict(type=SegVisualizationHook))
visualizer = dict(type=SegLocalVisualizer, vis_backends=vis_backends, name='visualizer')
tta_model = dict(type=SegTTAModel)
model = dict(
    type=EncoderDecoder,
    data_preprocessor=dict(
        type=SegDataPreProcessor, mean=[127.0] * 3, std=[60.0] * 3, bgr_to_rgb=True,
        pad_val=0, seg_pad_val=255, size_divisor=8, test_cfg=dict(size_divisor=8)),
    backbone=dict(type=TinyFeatures),
    decode_head=dict(
        type=FCNHead, in_channels=8, channels=8, num_convs=1, num_classes=21,
        norm_cfg=dict(type='BN'), loss_decode=dict(type=CrossEntropyLoss, use_sigmoid=False)),
    train_cfg=dict(), test_cfg=dict(mode='whole'))
dataset = dict(
    type=PascalVOCDataset, data_root='data',
    data_prefix=dict(img_path='JPEGImages', seg_map_path='SegmentationClass'),
    pipeline=[
        dict(type=LoadImageFromFile), dict(type=LoadAnnotations), dict(type=PackSegInputs)])
train_dataloader = dict(
    **loader, dataset=dict(**dataset, ann_file='ImageSets/Segmentation/train.txt'))
val_dataloader = dict(**loader, dataset=dict(**dataset, ann_file='ImageSets/Segmentation/val.txt'))
test_dataloader = dict(
    **loader, dataset=dict(**dataset, ann_file='ImageSets/Segmentation/test.txt'))
val_evaluator = dict(type=IoUMetric, iou_metrics=['mIoU'])
test_evaluator = val_evaluator
"""
READ_BASE = """
from mmengine.config import read_base

with read_base():
    from .{base} import *

from mmcalib.losses import MarginLabelSmoothingLoss
from mmcalib.openmmlab.metrics import CalibrationMetric

loss = dict(type=MarginLabelSmoothingLoss, margin=8.0, alpha=0.1)
model.{head} = loss
# One dict, whose type is a class and which has `metrics`, as an evaluator of mmengine has.
{evaluator}
"""


def write_classes(root):
    """Write folders of images, whose class is their colour beneath noise."""
    rng = np.random.default_rng(0)
    for split in ('train', 'val', 'test'):
        for label in range(10):
            folder = root / split / f'class_{label}'
            folder.mkdir(parents=True)
            for number in range(3):
                colour = np.array([20 * label + 20, 128, 220 - 20 * label])
                pixels = (colour + rng.normal(0, 60, (32, 32, 3))).clip(0, 255).astype(np.uint8)
                Image.fromarray(pixels).save(folder / f'{number}.png')


def write_masks(root):
    """Write the folder of VOC 2012, with images in which a third of the pixels shows its class."""
    write_voc(root)
    rng = np.random.default_rng(0)
    for path in root.glob('SegmentationClass/*.png'):
        mask = np.asarray(Image.open(path))
        pixels = rng.integers(0, 256, (*mask.shape, 3), dtype=np.uint8)
        known = rng.random(mask.shape) < 1 / 3
        pixels[known] = np.repeat(mask // 2 + 100, 3).reshape(pixels.shape)[known]
        Image.fromarray(pixels).save(root / 'JPEGImages' / f'{path.stem}.jpg')


KINDS = {
    'mmpretrain': (CLASSIFIER, write_classes, 'head.loss', 'accuracy/top1'),
    'mmseg': (SEGMENTOR, write_masks, 'decode_head.loss_decode', 'mIoU'),
}


def write_configs(folder, toolbox):
    """Write the bases and a config `mine.py` that inherits them, with their data."""
    base, write_data, head, _ = KINDS[toolbox]
    (folder / 'runtime.py').write_text(RUNTIME)
    inherit = (
        'from mmengine.config import read_base\nwith read_base():\n    from .runtime import *\n'
    )
    (folder / 'base.py').write_text(inherit + base)
    evaluator = 'test_evaluator = dict(type=CalibrationMetric, metrics=["ECE", "NLL"])'
    (folder / 'mine.py').write_text(READ_BASE.format(base='base', head=head, evaluator=evaluator))
    if not (folder / 'data').exists():
        write_data(folder / 'data')


@pytest.fixture(scope='module', params=KINDS)
def trained(request, tmp_path_factory):
    """A folder with configs of the new style, and the checkpoint of a training by one."""
    folder = tmp_path_factory.mktemp(request.param)
    write_configs(folder, request.param)
    run_forked('train.py', 'mine.py', cwd=folder)
    shutil.copy(next(folder.glob('work_dirs/mine/best_*.pth')), folder / 'best.pth')
    return folder


@pytest.fixture
def run_folder(trained):
    return trained


def is_segmentation():
    return Path('data/SegmentationClass').exists()


def test_train_lazy_config_record_equals_old_style(trained):
    path = trained / 'work_dirs/mine/results.json'
    record = Record.read(path)
    (member,) = record.model['members']
    assert member['loss'] == dict(type='MarginLabelSmoothingLoss', margin=8, alpha=0.1)
    assert member['training']['optim_wrapper']['optimizer'] == dict(type='SGD', lr=0.05)
    assert record.metrics.keys() == {'calibration/ECE', 'calibration/NLL'}
    assert record.evaluation['dataset']['type'] in ('CustomDataset', 'PascalVOCDataset')
    (written_member,) = json.loads(path.read_text())['model']['members']
    assert written_member['network']['type'] in ('ImageClassifier', 'EncoderDecoder')


@pytest.mark.parametrize('options', [[], ['--tta'], ['--show-dir', 'shown']])
def test_test_lazy_config_measures_calibration(options, run):
    run('test.py', 'mine.py', 'best.pth', '--calibration', '--work-dir', 'tested', *options)
    record = Record.read('tested/results.json')
    metrics = record.metrics
    assert {'calibration/ECE', 'calibration/gap', 'calibration/ECE_low'} <= metrics.keys()
    if not options:
        expected = Record.read('work_dirs/mine/results.json').metrics
        assert metrics['calibration/ECE'] == expected['calibration/ECE']
    if options == ['--tta']:
        # Images to segment have three scales, and all images are mirrored.
        num_views = [3, 2] if is_segmentation() else [2]
        assert [len(views) for views in record.model['views']] == num_views


@pytest.mark.parametrize('method', ['temperature', 'isotonic'])
def test_calibrate_lazy_config_is_read_again(method, run):
    out = f'{method}.pth'
    options = ['--method', method, '--out', out, '--test', '--overwrite']
    run('calibrate.py', 'mine.py', 'best.pth', *options)
    config = f'{method}.py' if method == 'isotonic' else 'mine.py'
    run('test.py', config, out, '--calibration', '--work-dir', method)
    actual = Record.read(f'{method}/results.json').metrics['calibration/ECE']
    calibration = torch.load(out, weights_only=False)['meta']['calibration']
    assert actual == pytest.approx(calibration['tested']['after']['ECE'], abs=1e-3)


def test_predict_lazy_config_writes_row_of_each_image(run):
    images = Path('data/JPEGImages' if is_segmentation() else 'data/test/class_1')
    run('predict.py', 'mine.py', 'best.pth', images, '--out', 'predicted', '--overwrite')
    lines = Path('predicted/predictions.csv').read_text().splitlines()
    assert len(lines) == 1 + len(list(images.iterdir()))


@needs_extra
def test_robustness_lazy_config_tests_each_shift(run):
    options = ['--corruptions', 'contrast', '--severities', '3', '--work-dir', 'shifted']
    run('test_robustness.py', 'mine.py', 'best.pth', *options)
    names = {path.parent.name for path in Path('shifted').glob('*/*/results.json')}
    assert names == {'clean', 'contrast_3'}


def test_export_lazy_config_writes_file(run, torchscript):
    pytest.importorskip('onnxruntime')
    run('export.py', 'mine.py', 'best.pth', '--out', 'a.onnx', '--overwrite')
    assert Path('a.onnx').is_file()


def test_sweep_and_report_lazy_config_list_trainings(run, monkeypatch):
    monkeypatch.setattr('mmcalib.commands.sweep.jobs.subprocess.Popen', ForkedCommand)
    assert 'chosen' in run('sweep.py', 'mine.py', '--param', 'margin=2')
    assert 'MbLS m=2 α=0.1' in run('report.py', 'work_dirs')


def test_sweep_lazy_config_replaces_cross_entropy(run, monkeypatch):
    monkeypatch.setattr('mmcalib.commands.sweep.jobs.subprocess.Popen', ForkedCommand)
    output = run('sweep.py', 'base.py', '--param', 'margin=8')
    assert 'MarginLabelSmoothingLoss for model' in output


@pytest.mark.parametrize(
    'evaluator',
    [
        "dict(type='CalibrationMetric', metrics=['NLL'])",
        "dict(type='mmengine.CalibrationMetric', metrics=['NLL'])",
        "dict(type='mmcalib.openmmlab.metrics.CalibrationMetric', metrics=['NLL'])",
    ],
)
def test_load_lazy_config_metric_becomes_list(evaluator, trained, monkeypatch):
    monkeypatch.chdir(trained)
    toolbox = 'mmseg' if is_segmentation() else 'mmpretrain'
    head = KINDS[toolbox][2]
    text = READ_BASE.format(base='base', head=head, evaluator=f'test_evaluator = {evaluator}')
    Path('named.py').write_text(text)
    (metric,) = load_config('named.py').test_evaluator
    assert metric['metrics'] == ['NLL']


def test_train_lazy_config_option_of_other_loss_refused(run):
    """In such a config, `update` keeps the options of the earlier loss, and has no `_delete_`."""
    part = 'decode_head=dict(loss_decode=loss)' if is_segmentation() else 'head=dict(loss=loss)'
    Path('wrong.py').write_text(
        'from mmengine.config import read_base\n'
        'with read_base():\n'
        '    from .base import *\n'
        'from mmcalib.losses import MarginLabelSmoothingLoss\n'
        'loss = dict(type=MarginLabelSmoothingLoss, _delete_=True)\n'
        f'model.update({part})\n'
    )
    error = run('train.py', 'wrong.py', code=2)
    assert 'unexpected keyword argument' in error


def test_test_dumped_lazy_config_same_model(run):
    """mmengine writes the names of classes into a copy in the work dir, and into checkpoints."""
    cfg = load_config('mine.py')
    cfg.dump('dumped.py')
    dumped = load_config('dumped.py')
    assert isinstance(dumped.model.type, str)
    assert not isinstance(cfg.model.type, str)
    records = []
    for name in ('mine', 'dumped'):
        options = ['--tta', '--calibration', '--work-dir', name]
        run('test.py', f'{name}.py', 'best.pth', *options)
        records.append(Record.read(f'{name}/results.json'))
    expected, actual = records
    assert actual.model == expected.model
    assert actual.evaluation == expected.evaluation
    assert actual.metrics == expected.metrics
