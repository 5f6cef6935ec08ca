"""What is written down of a run."""

import json

import pytest
from commands import ROOT, call_here

from mmcalib.record import paths_of
from mmcalib.runs.config import load_config
from mmcalib.runs.loss_config import loss_configs, loss_parameters, main_loss
from mmcalib.runs.training_record import training_finished


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
    assert 'ignore_index' in loss_parameters(cfg.model.head.loss, 'mmpretrain')
    with pytest.raises(ValueError, match="'NoSuchLoss'"):
        loss_parameters(dict(type='NoSuchLoss'), 'mmpretrain')


def test_the_auxiliary_head_is_not_the_main_one():
    cfg = load('mbls/digit_scenes')
    loss = dict(type='CrossEntropyLoss')
    cfg.model = dict(auxiliary_head=[dict(loss_decode=[loss])], **cfg.model)
    assert next(loss_configs(cfg.model))[0] == 'model.auxiliary_head.0.loss_decode.0'
    assert main_loss(cfg)['type'] == 'MarginLabelSmoothingLoss'


def test_whether_a_training_is_over(tmp_path):
    checkpoint = str(tmp_path / 'best.pth')
    assert training_finished(checkpoint, dict(epochs=9)) is None
    (tmp_path / 'last_checkpoint').write_text('/elsewhere/epoch_8.pth')
    assert training_finished(checkpoint, dict(epochs=9)) is False
    assert training_finished(checkpoint, dict(epochs=8)) is True
    assert training_finished(checkpoint, {}) is None
    (tmp_path / 'results.json').write_text('{}')
    assert training_finished(checkpoint, dict(epochs=9)) is False
    record = '{"training": {"finished": true}, "model": {}, "metrics": {}}'
    (tmp_path / 'results_val.json').write_text(record)
    assert training_finished(checkpoint, dict(epochs=9)) is True


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
        pipeline=[[dict(type='PackInputs')]], tta=False, protocol='pooled',
        convention=validated['evaluation']['convention'], num_bins=15, ignore_index=255,
    )  # fmt: skip
    assert tested['evaluation']['dataset'] == dict(type='Digits', split='test', samples=30)
    for content in (validated, tested):
        assert content['seed'] == 7 and content['loss']['margin'] == 5.0
        assert content['training'] == dict(epochs=1, finished=True, epoch=1, checkpoint='best')
        assert content['trained']['config']['data']['noise'] == 0.2
        assert content['date'] and content['version']
    assert validated['trained'] == tested['trained']
    assert paths_of(tested['model']) == paths_of(validated['model'])
