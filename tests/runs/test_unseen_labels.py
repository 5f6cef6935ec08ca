"""Tests against unseen classes with the tools and configs of a user, on one process and on two."""

import json

import numpy as np
import pytest
import shifted
import torch
from commands import ROOT
from forked import run_forked
from images import save, write_folders
from mmengine.registry import DATASETS, MODELS
from PIL import Image

from mmcalib.runs.config import load_config
from mmcalib.runs.run_config import use_evaluation

pytest.importorskip('mmpretrain.models')
pytest.importorskip('mmseg.models')
CLASSIFIER = """
_base_ = '{root}/configs/ce/digits.py'
test_dataloader = dict(dataset=dict(
    _delete_=True, type='WithOODSets',
    dataset=dict(type='Digits', split='test', indices=40, pipeline=[dict(type='PackInputs')]),
    near=dict(val=dict(type='Digits', split='val', indices=13)),
    far=dict(photographs=dict(
        type='CustomDataset', data_root='photographs', pipeline=[
            dict(type='LoadImageFromFile', color_type='grayscale'),
            dict(type='Resize', scale=8),
            dict(type='Normalize', mean=[0.0], std=[255.0], to_rgb=False),
            dict(type='PackInputs')]))))
test_evaluator = [dict(type='OODMetric', scores=['max_probability', 'energy'])]
custom_hooks = [dict(type='KeepLogitsHook')]
"""
SEGMENTOR = """
_base_ = './tiny_segmentor.py'
test_dataloader = dict(dataset=dict(
    metainfo=dict(classes={classes}),
    pipeline=[dict(type='LoadImageFromFile'), dict(type='Resize', scale=(40, 40), keep_ratio=True),
              dict(type='LabelUntrainedClasses', ood_index=254),
              dict(type='LoadAnnotations'), dict(type='PackSegInputs')]))
test_evaluator = dict(_delete_=True, type='OODMetric', scores=['max_logit'], ood_index=254)
default_hooks = dict(
    reliability_diagram=dict(type='ReliabilityDiagramHook', splits=['test']),
    confidence_map=dict(type='ConfidenceMapHook'))
"""


@pytest.fixture(scope='module')
def project(tmp_path_factory):
    """A classifier of digits, and a segmentor of VOC without its last class."""
    folder = tmp_path_factory.mktemp('unseen')
    rng = np.random.default_rng(0)
    for number in range(12):
        save(folder / f'photographs/any/{number}.jpg', (20, 16), rng)
    (folder / 'digits_ood.py').write_text(CLASSIFIER.format(root=ROOT.as_posix()))
    cfg = load_config(str(folder / 'digits_ood.py'))
    torch.manual_seed(0)
    with MODELS.switch_scope_and_registry('mmpretrain') as registry:
        model = registry.build({**cfg.model, 'data_preprocessor': cfg.data_preprocessor})
    torch.save({'state_dict': model.state_dict()}, folder / 'digits.pth')
    shifted.write_project(folder, 'segmentor')
    from mmseg.datasets import PascalVOCDataset

    classes = PascalVOCDataset.METAINFO['classes'][:-1]
    (folder / 'voc_ood.py').write_text(SEGMENTOR.format(classes=classes))
    return folder


def evaluate(run, monkeypatch, folder, *arguments):
    monkeypatch.chdir(folder)
    run('test.py', *arguments, '--work-dir', 'one')
    return json.loads((folder / 'one/results.json').read_text())


def test_test_classifier_with_ood_sets_equals_loop(project, run, monkeypatch, free_port):
    result = evaluate(run, monkeypatch, project, 'digits_ood.py', 'digits.pth')
    metrics = result['metrics']
    for name in ('val', 'photographs'):
        assert 0 < metrics[f'ood/energy/{name}/AUROC'] < 100
    (metric,) = result['evaluation']['ood']
    assert metric['counts'] == {'ID': 40, 'val': 13, 'photographs': 12}
    assert result['evaluation']['data_options']['far']['photographs']['data_root'] == 'photographs'
    output = run_forked(
        'test.py', 'digits_ood.py', 'digits.pth', '--work-dir', 'two',
        cwd=project, ranks=2, port=free_port,
    )  # fmt: skip
    assert 'Calibration was not measured' not in output
    result_of_two = json.loads((project / 'two/results.json').read_text())
    assert result_of_two['metrics'] == pytest.approx(metrics, abs=1e-9)
    assert result_of_two['evaluation'] == result['evaluation']


def test_test_segmentor_with_ood_pixels_equals_loop(project, run, monkeypatch):
    three = ['--cfg-options', 'test_dataloader.dataset.indices=3']
    result = evaluate(run, monkeypatch, project, 'voc_ood.py', 'plain.pth', *three)
    masks = [np.array(Image.open(project / f'data/SegmentationClass/{n}.png')) for n in 'abc']
    unseen = sum((mask == 20).sum() for mask in masks)  # This class was not trained.
    valid = sum((mask != 255).sum() for mask in masks)
    assert result['evaluation']['ood'][0]['counts'] == {'ID': valid - unseen, 'OOD': unseen}
    assert 0 < result['metrics']['ood/max_logit/AUROC'] < 100


def test_evaluation_unseen_has_ood_samples(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_folders(tmp_path / 'data/cifar10_folder/test', classes=2, per_class=1)
    cfg = load_config('mmcalib::ce/digits.py')
    cfg.work_dir = 'work'
    use_evaluation(cfg, 'unseen')
    with DATASETS.switch_scope_and_registry(cfg.default_scope) as registry:
        digits = registry.build(cfg.test_dataloader.dataset)
    assert len(digits) == 797 + 2
    sample = digits[798]
    assert sample['data_samples'].gt_label.tolist() == [-1]
    assert sample['inputs'].shape == digits[0]['inputs'].shape == (1, 8, 8)
    assert sample['inputs'].min() >= 0 and 0.3 < sample['inputs'].max() <= 1
