"""Mistakes in a config that every command refuses in one line, and writes nothing."""

import re
from pathlib import Path

import pytest
import torch
from commands import ROOT
from images import write_folders
from mmengine.registry import MODELS, init_default_scope

from mmcalib.runs.config import load_config

DIGITS = str(ROOT / 'configs/ce/digits.py')
# The arguments after the config and the checkpoint.
DOORS = {
    'test.py': ['--limit', '4'],
    'calibrate.py': ['--limit', '4', '--out', 'out.pth'],
    'test_robustness.py': ['--limit', '4', '--corruptions', 'contrast', '--severities', '1'],
    'predict.py': ['images', '--out', 'out'],
    'export.py': ['--out', 'out.onnx'],
}
LOSS = "model = dict(head=dict(loss=dict(_delete_=True, type='{}')))"
# `predict` reads files, as the digits do not.
FILES = """
step = dict(type='LoadImageFromFile', color_type='grayscale')
steps = [step, dict(type='Resize', scale=(8, 8)), dict(type='PackInputs')]
test_dataloader = dict(dataset=dict(pipeline=steps))
"""
# Lines of a config, and what each command says.
MISTAKES = {
    'model = dict(head=dict(loss=dict(margn=8.0)))': (
        "cannot be built: .*got an unexpected keyword argument 'margn'; if it comes from _base_"
    ),
    LOSS.format('mmcalib.FocalLoss'): "mmcalib has no scope: name it 'FocalLoss'",
    LOSS.format('FocalLos'): 'cannot be built: FocalLos is not in the ',
    'model = dict(backbone=dict(depth=19))': 'cannot be built: .*depth 19',
    'model = dict(head=dict(num_classes=12))': (
        r'untrained\.pth: the checkpoint does not fit the model of this config: size mismatch for '
        r'head\.fc'
    ),
    "model = dict(head=dict(type='StackedLinearClsHead', mid_channels=[8]))": (
        r'does not fit .*: it lacks head\.layers\.0\.fc\.weight, one of 4 missing tensors. Use the'
    ),
    "custom_imports = dict(imports=['mmcalib', 'not_written'])": (
        r'mine\.py: Failed to import not_written: .*looked for beside the config'
    ),
    "custom_hooks = [dict(type='EMAHook', ema_type=lambda model: model)]": (
        r'mine\.py: custom_hooks\.0\.ema_type has <function'
    ),
    'test_dataloader = val_dataloader = None': (
        'has no (test|val)_dataloader|no test image for an example .*--size HEIGHT WIDTH'
    ),
}


@pytest.fixture(scope='module')
def checkpoint(tmp_path_factory):
    """Path of a checkpoint with random weights."""
    cfg = load_config(DIGITS)
    init_default_scope(cfg.default_scope)
    path = tmp_path_factory.mktemp('model') / 'untrained.pth'
    meta = {'dataset_meta': {'classes': [str(digit) for digit in range(10)]}}
    torch.save({'state_dict': MODELS.build(cfg.model).state_dict(), 'meta': meta}, path)
    return path


@pytest.mark.parametrize('tool', DOORS)
@pytest.mark.parametrize('text', MISTAKES)
def test_mistake_in_a_config_is_one_line_of_every_command(text, tool, checkpoint, run, tmp_path):
    files = FILES if tool == 'predict.py' else ''
    Path('mine.py').write_text(f"_base_ = 'mmcalib::mbls/digits.py'\n{files}{text}\n")
    write_folders(tmp_path / 'images', classes=1, per_class=1)
    *_, last_line = run(tool, 'mine.py', checkpoint, *DOORS[tool], code=2).splitlines()
    assert last_line.startswith(f'{tool}: error: ')
    assert re.search(MISTAKES[text], last_line)
    assert not list(Path().glob('out*'))
    assert not list(Path().rglob('results*.json'))
