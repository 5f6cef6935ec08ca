"""Where a scaling is written: into a layer of the model, or behind the model."""

import re
from pathlib import Path

import mmpretrain
import mmseg
import pytest
import torch
from forked import run_forked
from full_disk import limited_file_size
from mmengine.registry import MODELS
from overconfident_checkpoints import (
    DIGITS,
    FEW,
    SCALED_TENSORS,
    SCENES,
    load,
    model_and_batch,
    read_toolbox_metrics,
    record_in,
)
from torch import nn

from mmcalib.runs.config import load_config

TEMPERATURE_TENSORS = {'calibration.temperature', 'calibration.about'}


@pytest.mark.parametrize('method', ['temperature', 'ets'])
def test_calibrate_full_disk_keeps_old_files(method, digits, calibrate, tmp_path):
    for name in ('out.pth', 'out.py'):
        Path(name).write_text('old')
    with limited_file_size(digits.stat().st_size // 2):
        error = calibrate(DIGITS, digits, '--method', method, '--overwrite', code=2)
    assert '--out out.pth cannot be written' in error
    assert Path('out.pth').read_text() == 'old'
    assert Path('out.py').read_text() == 'old'
    assert sorted(path.name for path in tmp_path.iterdir()) == ['out.pth', 'out.py', 'work']


def test_calibrate_bare_and_wrapped_checkpoints_equal_whole_one(digits, calibrate):
    state = load(digits)['state_dict']
    torch.save(state, 'bare.pth')
    wrapped_state = {f'module.{key}': tensor for key, tensor in state.items()}
    torch.save({'state_dict': wrapped_state}, 'wrapped.pth')
    expected, _ = calibrate(DIGITS, digits)
    bare, _ = calibrate(DIGITS, 'bare.pth', out='from_bare.pth')
    wrapped, _ = calibrate(DIGITS, 'wrapped.pth', out='from_wrapped.pth')
    assert bare['meta'].keys() == {'calibration'}
    for key in SCALED_TENSORS:
        expected_tensor = expected['state_dict'][key]
        assert torch.equal(bare['state_dict'][key], expected_tensor)
        assert torch.equal(wrapped['state_dict'][f'module.{key}'], expected_tensor)


def test_calibrate_half_checkpoint_writes_scaled_layer_in_single(digits, calibrate):
    half_state = {}
    for key, tensor in load(digits)['state_dict'].items():
        half_state[key] = tensor.half() if tensor.is_floating_point() else tensor
    torch.save(half_state, 'half.pth')
    content, _ = calibrate(DIGITS, 'half.pth')
    assert record_in(content)['difference'] < 1e-5
    with_other_dtype = set()
    for key, tensor in content['state_dict'].items():
        if tensor.dtype != half_state[key].dtype:
            with_other_dtype.add(key)
    assert with_other_dtype == SCALED_TENSORS


@pytest.mark.parametrize(
    ('method', 'tensors'),
    [
        ('temperature', {'fc.weight', 'fc.bias'}),
        ('class-temperatures', TEMPERATURE_TENSORS),
    ],
)
def test_calibrate_model_that_renames_keys_predicts_scaled(method, tensors, digits, calibrate, run):
    state = load(digits)['state_dict']
    renamed = {key.removeprefix('head.'): tensor for key, tensor in state.items()}
    torch.save(renamed, 'renamed.pth')
    Path('renaming.py').write_text(
        f"_base_ = '{DIGITS}'\n"
        "custom_imports = dict(imports=['mmcalib', 'tiny_models'])\n"
        "model = dict(type='RenamingClassifier')\n"
    )
    content, _ = calibrate(
        'renaming.py', 'renamed.pth', '--test', '--method', method, cfg=FEW[DIGITS]
    )
    changed = set()
    for key, tensor in content['state_dict'].items():
        if key not in renamed or not torch.equal(tensor, renamed[key]):
            changed.add(key)
    assert changed == tensors
    config = 'out.py' if record_in(content)['attached'] else 'renaming.py'
    run('test.py', config, 'out.pth', '--work-dir', 'tested', '--cfg-options', *FEW[DIGITS])
    expected = record_in(content)['tested']['after']['ECE']
    metrics = load('tested/results.json')['metrics']
    assert metrics['calibration/ECE'] == pytest.approx(expected, abs=1e-3)


# Its last layer absorbs nothing.
COSINE_HEAD = [
    'model.head.type=ArcFaceClsHead',
    'model.head.loss.type=CrossEntropyLoss',
    "custom_imports.imports=['mmcalib','tiny_models']",
]


@pytest.fixture
def cosine(digits, run):
    """Checkpoint of a classifier whose logits are cosines."""
    state = load(digits)['state_dict']
    state['head.norm_product.weight'] = state.pop('head.fc.weight')
    del state['head.fc.bias']
    torch.save({'state_dict': state, 'meta': {'epoch': 1, 'seed': 0}}, 'cosine.pth')
    return 'cosine.pth'


def test_calibrate_head_without_linear_layer_attaches(cosine, calibrate, run):
    content, output = calibrate(DIGITS, cosine, '--test', cfg=COSINE_HEAD)
    record = record_in(content)
    assert 'out.pth and out.py' in output
    assert record['layers'] == []
    assert 'no linear layer' in record['attached']
    assert record['tested']['after']['NLL'] < record['tested']['before']['NLL']
    original_state = load(cosine)['state_dict']
    assert content['state_dict'].keys() - original_state.keys() == TEMPERATURE_TENSORS
    for key, tensor in original_state.items():
        assert torch.equal(content['state_dict'][key], tensor)
    cfg = load_config('out.py')
    assert cfg.model.type == 'CalibratedModel'
    assert cfg.model.calibrates == 'ImageClassifier'
    assert cfg.custom_imports['imports'] == ['mmcalib', 'tiny_models']
    run('test.py', 'out.py', 'out.pth', '--work-dir', 'tested')
    metrics = load('tested/results.json')['metrics']
    toolbox_metrics = read_toolbox_metrics(mmpretrain, 'out.py', 'out.pth')
    for name in ('ECE', 'AECE'):
        expected = pytest.approx(record['tested']['after'][name], abs=1e-3)
        assert metrics[f'calibration/{name}'] == expected
        assert toolbox_metrics[f'calibration/{name}'] == expected


def test_attached_files_used_wrongly_refused(cosine, calibrate, run):
    calibrate(DIGITS, cosine, cfg=COSINE_HEAD)
    config_text = re.sub(r"criterion='nll',?", '', Path('out.py').read_text())
    config_text = config_text.replace("='temperature'", "='class-temperatures'")
    Path('other_method.py').write_text(config_text)

    def refused(tool, *arguments):
        return run(tool, *arguments, '--work-dir', 'refused', code=2)

    without_scaling = refused(
        'test.py', DIGITS, 'out.pth', '--cfg-options', *COSINE_HEAD, *FEW[DIGITS]
    )
    assert 'is attached, and the config has none' in without_scaling
    assert 'calibration.temperature' in refused('test.py', 'out.py', cosine)
    assert 'class-temperatures' in refused('test.py', 'other_method.py', 'out.pth')
    calibrated_again = refused('calibrate.py', 'out.py', 'out.pth', '--out', 'again.pth', '--force')
    assert 'attached scaling (temperature)' in calibrated_again
    assert 'calibrate again' in refused('train.py', 'out.py')
    assert not Path('refused/results.json').exists()


@MODELS.register_module(force=True)
class CappedHead(nn.Module):
    """A linear head whose logits have a largest value."""

    def __new__(cls, **options):
        head = MODELS.build(dict(type='mmpretrain.LinearClsHead', **options))
        forward = head.forward
        head.forward = lambda feats: forward(feats).clamp(max=0.5)
        return head


def test_calibrate_head_that_caps_logits_attaches(digits, calibrate, run):
    """The logits are so small that their cap matters only after the fit."""
    content = load(digits)
    content['state_dict']['head.fc.bias'] += 20  # The largest logits become positive.
    for key in SCALED_TENSORS:
        content['state_dict'][key] /= 200
    torch.save(content, 'weak.pth')
    content, _ = calibrate(DIGITS, 'weak.pth', '--test', cfg=['model.head.type=CappedHead'])
    record = record_in(content)
    assert 'differ from the scaled ones' in record['attached']
    assert record['layers'] == []
    run('test.py', 'out.py', 'out.pth', '--work-dir', 'tested')
    metrics = load('tested/results.json')['metrics']
    expected = record['tested']['after']['ECE']
    assert metrics['calibration/ECE'] == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize(
    ('config', 'fixture', 'batch_size', 'num_images'),
    [(DIGITS, 'digits', 2, 60), (SCENES, 'scenes', 1, 20)],
)
def test_calibrate_fold_is_proven_on_images_of_each_batch(
    config, fixture, batch_size, num_images, calibrate, request
):
    """At most ten batches are kept whole."""
    cfg = [
        f'val_dataloader.batch_size={batch_size}',
        f'val_dataloader.dataset.indices={num_images}',
    ]
    content, output = calibrate(config, request.getfixturevalue(fixture), cfg=cfg)
    assert record_in(content)['proven_images'] == num_images
    assert f'on {num_images} of {num_images} images.' in output


@pytest.mark.parametrize('ranks', [1, 2])
def test_calibrate_two_heads_attaches(ranks, digits, calibrate, tmp_path, free_port):
    """The images of the first batch pass through one of the heads only."""
    model, batch = model_and_batch(DIGITS, 'val', 60)
    content = load(digits)
    model.load_state_dict(content['state_dict'])
    with torch.no_grad():
        inputs = model.data_preprocessor(batch)['inputs']
        brightness = model.extract_feat(inputs)[-1].mean(dim=1)
    limit = float(brightness[:10].max())
    assert (brightness > limit).any()
    for name in ('weight', 'bias'):
        key = f'head.fc.{name}'
        content['state_dict'][f'head.bright.{name}'] = content['state_dict'][key].clone()
    torch.save(content, 'routed.pth')
    Path('routed.py').write_text(
        f"_base_ = '{DIGITS}'\n"
        "custom_imports = dict(imports=['mmcalib', 'tiny_models'])\n"
        f"model = dict(head=dict(type='RoutedHead', limit={limit}))\n"
        'val_dataloader = dict(batch_size=5, dataset=dict(indices=60))\n'
    )
    if ranks == 1:
        content, _ = calibrate('routed.py', 'routed.pth')
    else:
        command = ['routed.py', 'routed.pth', '--out', 'out.pth', '--work-dir', 'work']
        run_forked('calibrate.py', *command, cwd=tmp_path, ranks=2, port=free_port)
        content = load('out.pth')
    record = record_in(content)
    assert record['layers'] == []
    assert 'linear layer' in record['attached']


def test_calibrate_attached_segmentor_is_tested_by_mmseg(scenes, calibrate):
    content, _ = calibrate(SCENES, scenes, '--test', '--method', 'class-temperatures')
    record = record_in(content)
    assert 'class-temperatures' in record['attached']
    assert record['fitted']['changed'] == record['tested']['changed'] == 0
    assert record['fitted']['after']['NLL'] < record['fitted']['before']['NLL']
    metrics = read_toolbox_metrics(mmseg, 'out.py', 'out.pth')
    for name in ('ECE', 'AECE'):
        expected = pytest.approx(record['tested']['after'][name], abs=1e-3)
        assert metrics[f'calibration/{name}'] == expected
