"""Tests against unseen classes with the tools and configs of a user, on one process and on two."""

import json

import numpy as np
import pytest
import shifted
import torch
from commands import ROOT, call_here
from forked import call_forked
from images import save, write_folders, write_voc
from mmengine.registry import DATASETS, MODELS
from mmengine.runner import Runner
from PIL import Image
from sklearn.metrics import average_precision_score, roc_auc_score, roc_curve

from mmcalib.runs.config import load_config, use_evaluation

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


def run(folder, config, checkpoint, work_dir, monkeypatch, *options):
    monkeypatch.chdir(folder)
    arguments = [config, checkpoint, '--work-dir', work_dir, *options]
    call_here('test.py', *arguments, monkeypatch=monkeypatch)
    return json.loads((folder / work_dir / 'results.json').read_text())


def figures_of(scores, unseen):
    """By scikit-learn, as OpenOOD has them."""
    fpr, tpr, _ = roc_curve(unseen, -scores)
    figures = {
        'AUROC': roc_auc_score(unseen, -scores),
        'AUPR_in': average_precision_score(1 - unseen, scores),
        'AUPR_out': average_precision_score(unseen, -scores),
        'FPR95': fpr[np.argmax(tpr >= 0.95)],
    }
    return {name: 100 * value for name, value in figures.items()}


@torch.no_grad()
def predictions_of(config, checkpoint):
    """What the network returns for each of the test data, and the masks that it was packed with."""
    cfg = load_config(config)
    cfg.load_from, cfg.work_dir = checkpoint, 'by_hand'
    runner = Runner.from_cfg(cfg)
    runner.load_or_resume()
    model, found = runner.model.eval(), []
    for batch in runner.test_dataloader:
        if cfg.default_scope == 'mmseg':
            found += [sample.seg_logits.data for sample in model.test_step(batch)]
        else:
            found += [*model(model.data_preprocessor(batch)['inputs'], mode='tensor')]
    return found


def test_a_classifier_against_sets(project, monkeypatch, free_port):
    result = run(project, 'digits_ood.py', 'digits.pth', 'one', monkeypatch)
    found = result['metrics']
    logits = torch.stack(predictions_of('digits_ood.py', 'digits.pth')).double()
    assert len(logits) == 40 + 13 + 12
    for score, values in (('energy', logits.logsumexp(1)), ('max_probability', logits.softmax(1))):
        values = values.reshape(len(logits), -1).amax(1).numpy()
        for name, part in (('val', slice(40, 53)), ('photographs', slice(53, 65))):
            scores = np.concatenate([values[:40], values[part]])
            unseen = np.arange(len(scores)) >= 40
            expected = figures_of(scores, unseen.astype(int))
            of_set = {key: found[f'ood/{score}/{name}/{key}'] for key in expected}
            assert of_set == pytest.approx(expected, abs=0.01)
    (metric,) = result['evaluation']['ood']
    assert metric['counts'] == {'ID': 40, 'val': 13, 'photographs': 12}
    assert result['evaluation']['data_options']['far']['photographs']['data_root'] == 'photographs'
    said = call_forked(
        'test.py', 'digits_ood.py', 'digits.pth', '--work-dir', 'two',
        cwd=project, ranks=2, port=free_port,
    )  # fmt: skip
    assert 'Samples: ' in said and 'Calibration was not measured' not in said
    two = json.loads((project / 'two/results.json').read_text())
    assert two['metrics'] == pytest.approx(found, abs=1e-9)
    assert two['evaluation'] == result['evaluation']


def test_a_segmentor_against_the_pixels_of_untrained_classes(project, monkeypatch, free_port):
    options = ['--cfg-options', 'test_dataloader.dataset.indices=3']
    result = run(project, 'voc_ood.py', 'plain.pth', 'seg', monkeypatch, *options)
    logits, unseen = [], []
    for name, of_image in zip('abc', predictions_of('voc_ood.py', 'plain.pth'), strict=False):
        mask = np.array(Image.open(project / f'data/SegmentationClass/{name}.png'))
        small = np.array(Image.fromarray(mask).resize(of_image.shape[:0:-1], Image.NEAREST))
        assert small.shape == mask.shape  # mmseg predicts at the masks' own size
        logits.append(of_image.flatten(1).amax(0).numpy()[mask.flatten() != 255])
        unseen.append(mask.flatten()[mask.flatten() != 255] == 20)  # the class that was left out
    expected = figures_of(np.concatenate(logits), np.concatenate(unseen).astype(int))
    found = {key.split('/')[-1]: value for key, value in result['metrics'].items()}
    assert found == pytest.approx(expected, abs=0.01)
    assert result['evaluation']['ood'][0]['counts']['OOD'] == np.concatenate(unseen).sum()
    call_forked(
        'test.py', 'voc_ood.py', 'plain.pth', '--work-dir', 'seg2', *options,
        cwd=project, ranks=2, port=free_port,
    )  # fmt: skip
    two = json.loads((project / 'seg2/results.json').read_text())
    assert two['metrics'] == pytest.approx(result['metrics'], abs=1e-9)


@pytest.mark.parametrize(
    ('options', 'message'),
    [
        (['--calibration'], 'OODMetric treats some labels as unseen, but CalibrationMetric would'),
        (
            ['--cfg-options', 'test_dataloader.dataset.far.photographs.data_root=no'],
            'test_dataloader.dataset.far.photographs: there is no folder',
        ),
    ],
)
def test_what_cannot_be_tested_is_said_first(options, message, project, monkeypatch, capsys):
    with pytest.raises(SystemExit):
        run(project, 'digits_ood.py', 'digits.pth', 'refused', monkeypatch, *options)
    assert message in ' '.join(capsys.readouterr().err.split())


def test_our_evaluations_have_unseen_samples_and_pixels(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_folders(tmp_path / 'data/cifar10_folder/test', classes=2, per_class=1)
    write_voc(tmp_path / 'data/VOCdevkit/VOC2012')
    found = {}
    for name in ('ce/digits', 'ce/deeplabv3plus_efflite0_people_animals'):
        cfg = load_config(str(ROOT / f'configs/{name}.py'))
        cfg.work_dir = 'work'
        use_evaluation(cfg, 'unseen')
        with DATASETS.switch_scope_and_registry(cfg.default_scope) as registry:
            found[name.split('_')[0]] = registry.build(cfg.test_dataloader.dataset)
    digits, photographs = found['ce/digits'], found['ce/deeplabv3plus']
    assert len(digits) == 797 + 2
    sample = digits[798]
    assert sample['data_samples'].gt_label.tolist() == [-1]
    assert sample['inputs'].shape == digits[0]['inputs'].shape == (1, 8, 8)
    assert sample['inputs'].min() >= 0 and 0.3 < sample['inputs'].max() <= 1
    labels = photographs[0]['data_samples'].gt_sem_seg.data
    # Background; of the aeroplane and the television, which are not trained; and borders.
    assert labels.unique().tolist() == [0, 254, 255]
