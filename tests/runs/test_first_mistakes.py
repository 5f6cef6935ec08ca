"""What a newcomer does wrong, and the one line that says what to do instead."""

import re
import sys

import pytest
import torch
from commands import call, call_here
from mmengine.registry import MODELS

from mmcalib.runs.config import load_config

OWN_CLASS = """
from mmengine.registry import MODELS
from torch.nn import CrossEntropyLoss

@MODELS.register_module(force=True)
class MyLoss(CrossEntropyLoss):
    def forward(self, pred, target, weight=None, avg_factor=None, reduction_override=None):
        return super().forward(pred, target)
"""


@pytest.fixture
def refused(tmp_path, monkeypatch, capsys):
    """Run a tool in an empty folder, and return the one line that it ends with."""

    def run(tool, *arguments):
        with pytest.raises(SystemExit) as stop:
            call_here(tool, *arguments, monkeypatch=monkeypatch)
        assert stop.value.code == 2
        error = capsys.readouterr().err
        assert 'Traceback' not in error
        return error.splitlines()[-1]

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, 'path', list(sys.path))
    return run


def write(path, base, text):
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"_base_ = '{base}'\n{text}\n")
    return path


def test_a_class_beside_the_config_is_found(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, 'path', list(sys.path))
    config = write(
        tmp_path / 'project/own.py',
        'mmcalib::ce/digits.py',
        "custom_imports = dict(imports=['mmcalib', 'a_loss_of_mine'])\n"
        "model = dict(head=dict(loss=dict(_delete_=True, type='MyLoss')))",
    )
    (tmp_path / 'project/a_loss_of_mine.py').write_text(OWN_CLASS)
    call_here('train.py', config, '--limit', 4, '--no-test', monkeypatch=monkeypatch)
    assert list(tmp_path.glob('work_dirs/own/limit4/best_*.pth'))


@pytest.mark.parametrize(
    ('content', 'said'),
    [
        (None, r"there is no module 'not_written'.* put not_written.py beside the config"),
        ('import nothing_like_it', r"not_written cannot be imported: No module named 'nothing_li"),
    ],
)
def test_a_module_that_cannot_be_imported(content, said, refused, tmp_path):
    text = "custom_imports = dict(imports=['mmcalib', 'not_written'])"
    config = write(tmp_path / 'own.py', 'mmcalib::ce/digits.py', text)
    if content:
        (tmp_path / 'not_written.py').write_text(content)
    line = refused('train.py', config)
    assert re.search(said, line), line


def test_a_loss_that_does_not_replace_that_of_the_base(refused, tmp_path):
    base = 'mmseg::deeplabv3/deeplabv3_r50-d8_4xb4-20k_voc12aug-512x512.py'
    lists = tmp_path / 'data/VOCdevkit/VOC2012/ImageSets/Segmentation'
    lists.mkdir(parents=True)
    for name in ('train', 'aug', 'val'):
        (lists / f'{name}.txt').touch()
    loss = "dict(type='MarginLabelSmoothingLoss', margin=10.0)"
    text = (
        "custom_imports = dict(imports=['mmcalib'])\n"
        f'model = dict(decode_head=dict(loss_decode={loss}))'
    )
    line = refused('train.py', write(tmp_path / 'own.py', base, text))
    assert 'use_sigmoid' in line and '_delete_=True' in line


def test_layers_that_do_not_fit(refused, tmp_path):
    config = write(
        tmp_path / 'own.py', 'mmcalib::ce/digits.py', 'model = dict(head=dict(in_channels=64))'
    )
    line = refused('train.py', config, '--limit', 4)
    assert 'head.fc' in line and 'in_channels' in line and '.log' in line


def test_a_checkpoint_of_another_model(refused, tmp_path):
    with MODELS.switch_scope_and_registry('mmseg') as registry:
        model = registry.build(load_config('mmcalib::ce/digit_scenes.py').model)
    meta = {'dataset_meta': {'classes': ['background', *map(str, range(10))]}}
    torch.save({'state_dict': model.state_dict(), 'meta': meta}, tmp_path / 'scenes.pth')
    line = refused('test.py', 'mmcalib::ce/digits.py', 'scenes.pth')
    assert 'does not fit the model' in line and 'Use the config that it was trained with' in line


def test_warnings_of_other_packages_are_one_line(tmp_path):
    text = "custom_imports = dict(imports=['mmcalib', 'it_warns'])"
    config = write(tmp_path / 'own.py', 'mmcalib::ce/digits.py', text)
    (tmp_path / 'it_warns.py').write_text("import warnings\nwarnings.warn('be careful')\n")
    said = call('train.py', config, '--cfg-options', 'no_such=1', cwd=tmp_path, check=False)
    assert 'train.py: warning: be careful\n' in said
    assert 'warnings.warn' not in said
