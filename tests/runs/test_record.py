"""What is written down of a run."""

import json

import pytest
import torch
from commands import ROOT, call_here
from mmengine.registry import MODELS
from records import write

from mmcalib.record import paths_of
from mmcalib.runs.config import load_config
from mmcalib.runs.config_tree import class_of, losses_of, main_loss, parameters_of
from mmcalib.runs.model import finished_of


def load(name, **options):
    return load_config(str(ROOT / f'configs/{name}.py'), options)


@pytest.mark.parametrize(
    ('name', 'loss'),
    [
        ('mbls/digits', dict(type='MarginLabelSmoothingLoss', margin=8.0, alpha=0.1)),
        ('mbls/digit_scenes_m0', dict(type='MarginLabelSmoothingLoss', margin=0.0, alpha=0.05)),
        ('flsd/digits', dict(type='SampleDependentFocalLoss')),
        ('ce/digits', dict(type='CrossEntropyLoss')),
        ('ce/digit_scenes', dict(type='CrossEntropyLoss', avg_non_ignore=True)),
    ],
)
def test_a_loss_is_its_type_and_what_is_not_the_default(name, loss):
    assert main_loss(load(name)) == loss


def test_what_a_config_leaves_out_is_said_of_the_margin():
    cfg = load('mbls/digits')
    cfg.model.head.loss = dict(type='MarginLabelSmoothingLoss', alpha=1, class_reduction='sum')
    expected = dict(margin=10.0, alpha=1.0, class_reduction='sum')
    assert main_loss(cfg) == dict(type='MarginLabelSmoothingLoss', **expected)
    assert 'ignore_index' in parameters_of(class_of(cfg.model.head.loss, 'mmpretrain'))
    unknown = dict(type='NoSuchLoss', beta=2.0)
    cfg.model.head.loss = unknown
    assert class_of(unknown, 'mmpretrain') is None and main_loss(cfg) == unknown


def test_the_auxiliary_head_is_not_the_main_one():
    cfg = load('mbls/digit_scenes')
    loss = dict(type='CrossEntropyLoss')
    cfg.model = dict(auxiliary_head=[dict(loss_decode=[loss])], **cfg.model)
    assert 'model.auxiliary_head.0.loss_decode.0' in losses_of(cfg.model)
    assert main_loss(cfg)['type'] == 'MarginLabelSmoothingLoss'


def test_whether_a_training_is_over(tmp_path):
    def finished(length):
        return finished_of(str(tmp_path / 'best.pth'), dict(train_cfg=dict(max_epochs=length)), {})

    assert finished(9) is None
    (tmp_path / 'last_checkpoint').write_text('/elsewhere/epoch_8.pth')
    assert finished(9) is False
    assert finished(8) is True
    assert finished(None) is None
    (tmp_path / 'results.json').write_text('{}')
    assert finished(9) is False
    write(tmp_path, 'ce/digits', name='results_val.json')
    assert finished(9) is True


def test_a_checkpoint_tested_under_another_config_says_its_own(tmp_path, monkeypatch):
    options = [
        'train_cfg.max_epochs=1',
        'train_cfg.val_interval=1',
        'train_dataloader.dataset.indices=16',
        'val_dataloader.dataset.indices=20',
        'train_dataloader.dataset.noise=0.2',
    ]
    call_here(
        'train.py', ROOT / 'configs/mbls/digits.py', '--work-dir', tmp_path / 'a', '--split', 'val',
        '--cfg-options', *options, 'model.head.loss.margin=5', 'randomness.seed=7',
        monkeypatch=monkeypatch,
    )  # fmt: skip
    validated = json.loads((tmp_path / 'a/results_val.json').read_text())
    assert not (tmp_path / 'a/results.json').exists()
    call_here(
        'test.py', ROOT / 'configs/ce/digits.py', *paths_of(validated['model']), '--work-dir',
        tmp_path / 'b', '--cfg-options', 'test_dataloader.dataset.indices=30',
        monkeypatch=monkeypatch,
    )  # fmt: skip
    tested = json.loads((tmp_path / 'b/results.json').read_text())
    assert validated['evaluation'] == dict(
        dataset=dict(type='Digits', split='val', samples=20), data_options=dict(indices=20),
        pipeline=[[dict(type='PackInputs')]], tta=False, limit=None, protocol='pooled',
        num_bins=15, ignore_index=255,
    )  # fmt: skip
    assert tested['evaluation']['dataset'] == dict(type='Digits', split='test', samples=30)
    members = []
    for content in (validated, tested):
        (found,) = content['model']['members']
        assert found['seed'] == 7 and found['loss']['margin'] == 5 and found['epoch'] == 1
        assert found['finished'] and found['file'] == 'best_accuracy_top1_epoch_1.pth'
        assert found['training']['train_dataloader']['dataset']['noise'] == 0.2
        assert content['date'] and content['version']
        members.append(found)
    assert members[0] == members[1]


def test_a_calibration_elsewhere_knows_whether_its_training_is_over(tmp_path, monkeypatch):
    config = ROOT / 'configs/ce/digits.py'
    cfg = load_config(str(config))
    with MODELS.switch_scope_and_registry('mmpretrain') as registry:
        model = registry.build(dict(cfg.model, data_preprocessor=cfg.data_preprocessor))
    trained = tmp_path / 'trained/best.pth'
    trained.parent.mkdir()
    meta = dict(cfg=cfg.pretty_text, seed=0, epoch=3)
    torch.save(dict(state_dict=model.state_dict(), meta=meta), trained)
    for epoch, finished in ((29, False), (30, True)):
        (tmp_path / 'trained/last_checkpoint').write_text(f'epoch_{epoch}.pth')
        out = tmp_path / f'{epoch}/calibrated.pth'
        few = ['--cfg-options', 'test_dataloader.dataset.indices=5']
        call_here(
            'calibrate.py', config, trained, '--out', out, '--work-dir', tmp_path, *few,
            monkeypatch=monkeypatch,
        )  # fmt: skip
        work = tmp_path / f'tested{epoch}'
        call_here('test.py', config, out, '--work-dir', work, *few, monkeypatch=monkeypatch)
        (found,) = json.loads((work / 'results.json').read_text())['model']['members']
        assert found['finished'] is finished


LOSS = """
from mmengine.registry import MODELS
from torch import nn


@MODELS.register_module(force=True)
class TsallisLoss(nn.Module):
    def __init__(self, q=1.5, kind='plain', reduction='mean', loss_weight=1.0):
        super().__init__()

    def forward(self, pred, target, **_):
        return pred.sum()
"""


@pytest.mark.parametrize('given', ['', ', q=1.5'])
def test_an_own_loss_says_its_options(given, tmp_path, monkeypatch, capsys):
    (tmp_path / 'tsallis.py').write_text(LOSS)
    config = tmp_path / 'own.py'
    config.write_text(
        "_base_ = 'mmcalib::ce/digits.py'\n"
        "custom_imports = dict(imports=['mmcalib', 'tsallis'])\n"
        f"model = dict(head=dict(loss=dict(_delete_=True, type='TsallisLoss'{given})))\n"
        'test_dataloader = dict(dataset=dict(indices=5))\n'
    )
    monkeypatch.syspath_prepend(tmp_path)
    cfg = load_config(str(config))
    with MODELS.switch_scope_and_registry('mmpretrain') as registry:
        model = registry.build(dict(cfg.model, data_preprocessor=cfg.data_preprocessor))
    torch.save(dict(state_dict=model.state_dict()), tmp_path / 'own.pth')
    call_here(
        'test.py', config, tmp_path / 'own.pth', '--work-dir', tmp_path / 'w',
        monkeypatch=monkeypatch,
    )  # fmt: skip
    capsys.readouterr()
    call_here('report.py', tmp_path / 'w', monkeypatch=monkeypatch)
    assert 'TsallisLoss kind=plain q=1.5' in capsys.readouterr().out
