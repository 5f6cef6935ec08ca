"""tools/calibrate.py from the outside: what it writes, prints and refuses."""

import json
import os
import re
import resource
import shutil
from pathlib import Path

import mmpretrain
import mmseg
import numpy as np
import pytest
import torch
from commands import ROOT, call_here
from forked import call_forked
from mmcv.transforms import BaseTransform
from mmengine.dataset import pseudo_collate
from mmengine.hooks import Hook
from mmengine.model import BaseModel
from mmengine.registry import DATASETS, HOOKS, MODELS, TRANSFORMS, init_default_scope
from mmengine.runner import BaseLoop
from torch import nn

import mmcalib
from mmcalib.datasets import Digits
from mmcalib.datasets.same_data import same_data
from mmcalib.runs.config import load_config
from mmcalib.runs.model import describe_calibration

DIGITS, SCENES = (ROOT / f'configs/ce/{name}.py' for name in ('digits', 'digit_scenes'))
FEW = {
    config: [f'{split}_dataloader.dataset.indices={count}' for split in ('val', 'test')]
    for config, count in ((DIGITS, 60), (SCENES, 6))
}
SAME = 'val_dataloader.dataset.split=test'
# A head whose last layer absorbs nothing.
NORMALISED = ['model.head.type=ArcFaceClsHead', 'model.head.loss.type=CrossEntropyLoss']
FOLDED = {'head.fc.weight', 'head.fc.bias'}


def write_checkpoint(path, config, layer='head.fc', count=200):
    """Write a checkpoint as a training leaves it, of a network that is far too sure.

    All is drawn at random but its last layer: the least squares' answer, times 40.
    """
    cfg = load_config(str(config))
    init_default_scope(cfg.default_scope)
    torch.manual_seed(0)
    model = MODELS.build(cfg.model).eval()
    model.init_weights()
    last, inputs = model.get_submodule(layer), []
    handle = last.register_forward_hook(lambda module, given, output: inputs.append(given[0]))
    data = DATASETS.build({**cfg.train_dataloader.dataset, 'indices': count})
    with torch.no_grad():
        samples = model.val_step(pseudo_collate([data[i] for i in range(count)]))
    handle.remove()
    features = torch.cat(inputs).movedim(1, -1).flatten(0, -2)
    labels = [s.gt_label if 'gt_label' in s else s.gt_sem_seg.data.flatten() for s in samples]
    labels = torch.cat(labels)
    features, labels = features[labels != 255], labels[labels != 255]
    targets = nn.functional.one_hot(labels, max(len(last.weight), 2)).float() - 0.5
    targets = targets[:, -len(last.weight) :]
    features = nn.functional.pad(features, (0, 1), value=1.0)
    # Ridge regression, so that few samples do.
    gram = features.T @ features + 0.1 * torch.eye(features.shape[1])
    solution = 40 * torch.linalg.solve(gram, features.T @ targets)
    last.weight.data = solution[:-1].T.reshape(last.weight.shape).contiguous()
    last.bias.data = solution[-1]
    meta = {'epoch': 7, 'seed': 3, 'dataset_meta': {}}
    optimizer = {'state': {}, 'param_groups': []}
    torch.save({'state_dict': model.state_dict(), 'optimizer': optimizer, 'meta': meta}, path)
    return path


def predicted(config, checkpoint, split, count):
    """The logits and data samples of a toolbox's model for the first images of a split."""
    cfg = load_config(str(config))
    init_default_scope(cfg.default_scope)
    model = MODELS.build({'data_preprocessor': cfg.get('data_preprocessor'), **cfg.model}).eval()
    model.load_state_dict(load(checkpoint)['state_dict'])
    data = DATASETS.build({**cfg[f'{split}_dataloader'].dataset, 'indices': count})
    batch = pseudo_collate([data[i] for i in range(count)])
    with torch.no_grad():
        inputs = model.data_preprocessor(batch)['inputs']
        return model(inputs, mode='tensor').double(), model.val_step(batch)


@pytest.fixture(scope='module')
def digits(tmp_path_factory):
    return write_checkpoint(tmp_path_factory.mktemp('digits') / 'ce.pth', DIGITS)


@pytest.fixture(scope='module')
def scenes(tmp_path_factory):
    path = tmp_path_factory.mktemp('scenes') / 'ce.pth'
    return write_checkpoint(path, SCENES, 'decode_head.conv_seg', 8)


@pytest.fixture
def call(tmp_path, monkeypatch, capsys):
    """Run a tool in a folder of its own, and return what it prints, or its error."""
    monkeypatch.chdir(tmp_path)

    def call_tool(tool, *arguments, fails=False):
        if not fails:
            call_here(tool, *arguments, monkeypatch=monkeypatch)
            return capsys.readouterr().out
        with pytest.raises(SystemExit):
            call_here(tool, *arguments, monkeypatch=monkeypatch)
        return capsys.readouterr().err

    return call_tool


@pytest.fixture
def run(call):
    """``run(config, checkpoint, …)`` calibrates on few images, and returns file and output."""

    def calibrate(config, checkpoint, *arguments, out='out.pth', cfg=(), fails=False):
        options = [*FEW.get(config, ()), *cfg]
        options = ['--cfg-options', *options] if options else []
        command = [config, checkpoint, '--out', out, '--work-dir', 'work', *arguments, *options]
        said = call('calibrate.py', *command, fails=fails)
        return said if fails else (load(out), said)

    return calibrate


def load(path):
    if Path(path).suffix == '.json':
        return json.loads(Path(path).read_text())
    return torch.load(path, weights_only=False)


def of(content):
    return content['meta']['calibration']


def changed(one, other):
    """Return the keys of the tensors that differ, and check that nothing else does."""
    assert one.keys() == other.keys()
    for key in one.keys() - {'state_dict', 'meta'}:
        assert one[key] == other[key]
    assert {**other['meta'], 'calibration': None} == {**one['meta'], 'calibration': None}
    a, b = one['state_dict'], other['state_dict']
    assert [(key, x.dtype) for key, x in a.items()] == [(key, x.dtype) for key, x in b.items()]
    return {key for key in a if not torch.equal(a[key], b[key])}


def test_by_toolbox(toolbox, config, checkpoint, *options):
    """Return the metrics that a toolbox's own tool prints."""
    tool = Path(toolbox.__file__).parent / '.mim/tools/test.py'
    tool = os.path.relpath(tool, ROOT / 'tools')
    log = call_forked(tool, config, checkpoint, '--work-dir', 'own', *options, cwd=os.getcwd())
    return {name: float(value) for name, value in re.findall(r'(\w+/\w+): ([\d.]+)', log)}


test_by_toolbox.__test__ = False


@pytest.mark.parametrize('method', ['temperature', 'vector', 'matrix'])
def test_a_classifiers_checkpoint(method, digits, run, call):
    content, output = run(DIGITS, digits, '--method', method, '--test', '--num-bins', 20)
    assert changed(load(digits), content) == FOLDED
    meta = of(content)
    assert meta['method'] == method and meta['forced'] == [] and 'earlier' not in meta
    assert meta['split'] == meta['dataset']['split'] == 'val' and meta['num_bins'] == 20
    assert meta['num_fitted'] == meta['num_predictions'] == meta['dataset']['samples'] == 60
    assert meta['tested']['num_predictions'] == 60 and meta['layers'] == ['head.fc']
    assert meta['difference'] < 1e-4 and meta['fitted']['before'] != meta['tested']['before']
    for result in (meta['fitted'], meta['tested']):
        assert result['after']['NLL'] < result['before']['NLL']
        assert set(result['after']) == {'ECE', 'AECE', 'NLL', 'Brier', 'accuracy'}
    json.dumps(meta)  # plain values only
    for value in ('before', 'after', 'Written: out.pth', 'Folded into head.fc'):
        assert value in output
    if method != 'temperature':
        return
    assert meta['fitted']['changed'] == 0 and 'Temperature ' in output
    temperature = meta['parameters']['temperature']
    assert temperature > 2 and meta['standard_error'] > 0 == meta['sampling_error']
    weights = (each['state_dict']['head.fc.weight'] for each in (content, load(digits)))
    torch.testing.assert_close(next(weights), next(weights) / temperature)
    # Every tool tests the file, ours says on what it was fitted.
    bins = ['--cfg-options', *FEW[DIGITS], 'test_evaluator.1.num_bins=20']
    found = test_by_toolbox(mmpretrain, DIGITS, 'out.pth', *bins)
    for key in ('accuracy/top1', 'calibration/ECE', 'calibration/AECE'):
        expected = meta['tested']['after'][key.split('/')[1].replace('top1', 'accuracy')]
        assert found[key] == pytest.approx(expected, abs=1e-3)
    for split, said in (('val', True), ('test', False)):
        options = ['--split', split, '--work-dir', f'tested_{split}', *bins[:3]]
        tested = call('test.py', DIGITS, 'out.pth', *options)
        assert ('was fitted on these images' in tested) == said


def test_a_segmentors_checkpoint(scenes, run):
    content, output = run(SCENES, scenes, '--samples', 500)
    names = {'decode_head.conv_seg.weight', 'decode_head.conv_seg.bias'}
    assert changed(load(scenes), content) == names
    drawn = of(content)
    assert drawn['num_fitted'] == 500 < drawn['num_predictions'] < 6 * 40 * 40
    assert drawn['sampling_error'] > 0 and 'of it from the draw' in output
    assert f'500 of {drawn["num_predictions"]:,} predictions on val' in output
    other = of(run(SCENES, scenes, '--samples', 500, '--seed', 1, out='seed.pth')[0])
    exact = of(run(SCENES, scenes, out='more.pth')[0])['parameters']['temperature']
    # The draws are off by about what they say.
    off = [abs(each['parameters']['temperature'] - exact) for each in (drawn, other)]
    assert 0 < max(off) < 4 * drawn['sampling_error'] and off[0] != off[1]


def test_one_image_has_no_standard_error(scenes, run):
    content, output = run(SCENES, scenes, cfg=['val_dataloader.dataset.indices=1'])
    assert 'standard_error' not in of(content) and 'fitted on' in output
    assert 'nan' not in output and '±' not in output


@TRANSFORMS.register_module(force=True)
class ToBinary(BaseTransform):
    def transform(self, results):
        label = results['gt_seg_map']
        label[(label > 1) & (label < 255)] = 1
        return results


def test_a_binary_segmentor_says_how_many_pixels_changed_side(run, tmp_path):
    config = tmp_path / 'binary.py'
    config.write_text(
        f"_base_ = '{SCENES}'\n"
        'model = dict(decode_head=dict(num_classes=2, out_channels=1, threshold=0.4,\n'
        "    loss_decode=dict(type='CrossEntropyLoss', use_sigmoid=True)))\n"
        "pipeline = [dict(type='ToBinary'), dict(type='PackSegInputs')]\n"
        "two = dict(classes=('background', 'stroke'), palette=[[0, 0, 0], [255, 255, 255]])\n"
        'train_dataloader = dict(dataset=dict(pipeline=pipeline, metainfo=two))\n'
        'val_dataloader = dict(dataset=dict(indices=4, pipeline=pipeline, metainfo=two))\n'
    )
    checkpoint = write_checkpoint(tmp_path / 'b.pth', config, 'decode_head.conv_seg', 8)
    content, output = run(config, checkpoint)
    count = of(content)['fitted']['changed']
    assert f'{count:,} of' in output and 'side of the threshold 0.4' in output
    both = zip(
        *(predicted(config, file, 'val', 4)[1] for file in (checkpoint, 'out.pth')), strict=True
    )
    sides = ((a.pred_sem_seg.data, b.pred_sem_seg.data, a.gt_sem_seg.data < 255) for a, b in both)
    assert count == sum(int((a != b)[valid].sum()) for a, b, valid in sides) > 0


def test_the_method_s_options_are_passed(digits, run):
    meta = of(run(DIGITS, digits, '--criterion', 'ece-grid')[0])
    temperature = meta['parameters']['temperature']
    assert round(10 * temperature) == pytest.approx(10 * temperature)
    assert meta['options'] == {'criterion': 'ece-grid'} and 'standard_error' not in meta


@pytest.mark.parametrize(
    ('options', 'cfg', 'reason'),
    [
        (['--split', 'test', '--test'], [], 'fitted on the test split'),
        ([], [SAME], "fitted on the validation split, which is the config's test split as well"),
    ],
)
def test_what_is_forced_is_marked(options, cfg, reason, digits, run):
    content, output = run(DIGITS, digits, '--force', *options, cfg=cfg)
    meta = of(content)
    assert meta['forced'] == [reason] and f'Warning: {reason}' in output and meta['folds'] == 0
    assert meta['split'] == ('test' if options else 'val')
    assert meta['tested'] == (meta['fitted'] if options else None)


@pytest.mark.parametrize('method', ['temperature', 'vector', 'ets'])
def test_the_function_comes_to_the_same_cross_fitted_figures(method, digits, run):
    content, output = run(DIGITS, digits, '--method', method, '--test', cfg=[SAME])
    meta = of(content)
    assert 'Validation and test data are the same' in output and 'other 4 of 5 folds' in output
    assert meta['forced'] == [] and meta['tested'] is None and meta['folds'] == 5
    logits, samples = predicted(DIGITS, digits, 'test', 60)
    labels = torch.cat([sample.gt_label for sample in samples])
    options = dict(method=method, groups=range(60))  # by their places
    found = mmcalib.calibrate(nn.Identity(), [(logits, labels)], **options)
    for name, value in found.scaler.tensors.items():
        given = torch.as_tensor(meta['parameters'][name]).double()
        torch.testing.assert_close(given, value, rtol=1e-5, atol=1e-5)
    for when in ('before', 'after'):
        assert meta['fitted'][when] == pytest.approx(getattr(found, when), rel=1e-4)
    if method == 'temperature':
        other = of(run(DIGITS, digits, '--seed', 3, out='other.pth', cfg=[SAME])[0])
        assert other['parameters'] == meta['parameters']
        assert other['fitted']['after']['NLL'] != meta['fitted']['after']['NLL']
        three = [each.replace('60', '3') for each in FEW[DIGITS]]
        assert of(run(DIGITS, digits, out='3.pth', cfg=[SAME, *three])[0])['folds'] == 3


def test_a_mean_is_cross_fitted(digits, run):
    meta, _ = run(DIGITS, digits, '--tta', out='t.json', cfg=[SAME])
    assert meta['folds'] == 5 and meta['fitted']['num_predictions'] == 60
    assert meta['fitted']['after']['NLL'] < meta['fitted']['before']['NLL']


@pytest.mark.parametrize(('config', 'passes'), [(DIGITS, 1), (SCENES, 2)])
def test_how_often_the_model_sees_an_image(config, passes, digits, scenes, run, monkeypatch):
    """Once, and twice where its maps are too large to keep; and the first batch a few times."""
    seen, forward = [], BaseModel._run_forward
    monkeypatch.setattr(
        BaseModel,
        '_run_forward',
        lambda self, data, mode: seen.append(len(data['inputs'])) or forward(self, data, mode),
    )
    few = [f'{split}_dataloader.dataset.indices=12' for split in ('val', 'test')]
    cfg = [SAME, *few, 'val_dataloader.batch_size=1']
    content, _ = run(config, digits if config == DIGITS else scenes, cfg=cfg)
    assert of(content)['folds'] == 5 and 12 * passes < sum(seen) < 12 * (passes + 1)


def test_which_configs_have_no_validation_data():
    for name, expected in (
        ('deeplabv3_r50_voc', True), ('deeplabv3_r50_voc_heldout', False),
        ('resnet101_cub', True), ('resnet101_cub_heldout', False), ('resnet50_cifar10', False),
        ('resnet50_tinyimagenet', False), ('gpool_cnn_20news', False), ('digit_scenes', False),
    ):  # fmt: skip
        cfg = load_config(str(ROOT / f'configs/ce/{name}.py'))
        assert same_data(cfg.val_dataloader, cfg.test_dataloader) is expected, name


@MODELS.register_module(force=True)
class CappedHead(nn.Module):
    """A linear head whose logits have a largest value."""

    def __new__(cls, **options):
        head = MODELS.build(dict(type='mmpretrain.LinearClsHead', **options))
        forward = head.forward
        head.forward = lambda feats: forward(feats).clamp(max=0.5)
        return head


def test_a_head_that_does_not_scale_is_found_by_the_proof(digits, run):
    """So little trained that its cap matters only after the fit."""
    content = load(digits)
    content['state_dict']['head.fc.bias'] += 20  # so that the largest logits are above 0
    for key in FOLDED:
        content['state_dict'][key] /= 200
    torch.save(content, 'weak.pth')
    error = run(DIGITS, 'weak.pth', cfg=['model.head.type=CappedHead'], fails=True)
    assert 'differ from the scaled ones' in error and 'Nothing was written' in error
    assert not Path('out.pth').exists()


def test_folding_twice_is_refused_and_noted(digits, run):
    first, _ = run(DIGITS, digits, out='first.pth')
    error = run(DIGITS, 'first.pth', fails=True)
    assert 'calibrated before' in error and 'ce.pth' in error
    second, output = run(DIGITS, 'first.pth', '--force', '--method', 'vector')
    assert of(second)['earlier'] == of(first)
    assert describe_calibration(second['meta'])['methods'] == ['temperature', 'vector']
    assert of(second)['forced'] == ['calibrated before']
    assert 'Warning: calibrated before' in output
    again, said = run(DIGITS, 'first.pth', '--force', out='again.pth')
    assert of(again)['parameters']['temperature'] == pytest.approx(1, abs=1e-3)
    assert 'No gain expected: a temperature of 1, which changes nothing, is only 0.0' in said


def test_no_file_is_lost(digits, run):
    shutil.copy(digits, 'ours.pth')
    Path('mine.py').write_text(f"_base_ = '{DIGITS}'\n")
    for name in ('other.pth', 'ets.py'):
        Path(name).write_text('mine')
    os.link('ours.pth', 'hard.pth')
    os.symlink('ours.pth', 'soft.pth')
    os.symlink('other.pth', 'link.pth')
    os.symlink('mine.py', 'soft.py')
    kept = ('ours.pth', 'mine.py', 'other.pth', 'ets.py')
    before, ets = [Path(name).read_bytes() for name in kept], ['--method', 'ets', '--overwrite']
    for config, checkpoint, out, options, message in (
        (DIGITS, 'ours.pth', 'ours.pth', ['--overwrite'], 'is the checkpoint itself'),
        (DIGITS, 'ours.pth', 'hard.pth', ['--overwrite'], 'is the checkpoint itself'),
        (DIGITS, 'soft.pth', 'ours.pth', ['--overwrite'], 'is the checkpoint itself'),
        (DIGITS, 'ours.pth', 'other.pth', [], 'other.pth exists: name another file'),
        (DIGITS, 'ours.pth', 'ets.pth', ets[:2], 'ets.py exists: name another file'),
        (DIGITS, 'ours.pth', '.', ['--overwrite'], 'is a folder'),
        ('mine.py', 'ours.pth', 'mine.pth', ets, 'is the config itself'),
        ('mine.py', 'ours.pth', 'soft.pth', ets, 'itself'),
        ('mine.py', 'ours.pth', 'x.py', [], 'name a .pth file'),
    ):
        assert message in run(config, checkpoint, *options, out=out, fails=True), out
    # A link to another file is replaced; what is folded needs no config.
    for out in ('link.pth', 'mine.pth', 'new/folder/out.pth'):
        run('mine.py', 'ours.pth', '--overwrite', out=out)
    assert [Path(name).read_bytes() for name in kept] == before
    assert not Path('link.pth').is_symlink()


@pytest.mark.parametrize('method', ['temperature', 'ets'])
def test_a_full_disk_leaves_both_old_files(method, digits, run, tmp_path):
    """A limit on the size of a file fails where a full disk does."""
    for name in ('out.pth', 'out.py'):
        Path(name).write_text('mine')
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (digits.stat().st_size // 2, limits[1]))
    try:
        error = run(DIGITS, digits, '--method', method, '--overwrite', fails=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert '--out out.pth cannot be written' in error
    assert [Path(name).read_text() for name in ('out.pth', 'out.py')] == ['mine', 'mine']
    assert sorted(path.name for path in tmp_path.iterdir()) == ['out.pth', 'out.py', 'work']


@HOOKS.register_module(force=True)
class Sequence(Hook):
    """Notes what runs and which loops there are by then."""

    seen = []


def note(event):
    def noted(self, runner, **_):
        loops = [isinstance(loop, BaseLoop) for loop in (runner._val_loop, runner._test_loop)]
        self.seen.append((event, *loops))

    setattr(Sequence, event, noted)
    return event


EVENTS = [note(event) for event in ('before_run', 'after_load_checkpoint', 'after_run')]


@pytest.mark.parametrize('test', [False, True])
def test_hooks_run_as_in_a_test(test, digits, run):
    """So that they see all the data that the checkpoint is to be compared with."""
    Sequence.seen.clear()
    Path('own.py').write_text(f"_base_ = '{DIGITS}'\ncustom_hooks = [dict(type='Sequence')]\n")
    run('own.py', digits, *(['--test'] if test else []), cfg=FEW[DIGITS])
    assert Sequence.seen == [(event, True, test) for event in EVENTS]


REFUSED = [
    (['--method', 'vector', '--criterion', 'nll'], [], 'vector does not take --criterion'),
    (['--diagonal', '1'], [], 'temperature does not take --diagonal'),
    (['--method', 'matrix', '--off-diagonal', '-1'], [], 'off_diagonal must be'),
    (['--method', 'ets', '--out', 'a.json'], [], 'only a temperature can calibrate a mean'),
    (['--all'], [], '--all is gone since 0.3.0: use --samples'),
    (['--holdout', '0.3'], [], '--holdout is gone since 0.3.0: leave it out'),
    (['--groups', '(x'], [], '--groups (x'),
    (['--groups', 'x'], [], 'the images have no file names'),
    (['--method', 'local'], [], 'local is gone since 0.3.0: use class-conditional'),
    (['--samples', '0'], [], '--samples must be an integer of at least 1'),
    (['--num-bins', '0'], [], '--num-bins must be'),
    (['--seed', '-1'], [], '--seed must be'),
    (['--split', 'test'], [], 'fitted on the test split. Fit on images that no test uses: leave'),
    ([], ['val_dataloader.dataset.indices=0'], 'there are no samples'),
    ([], ['model.head.num_classes=7'], 'the head of the model has 7'),
    ([], ['model.head=None'], 'ImageClassifier has no head'),
    ([], ['val_evaluator.1.num_bin=9'], 'did you mean num_bins?'),
    (['--test'], ['test_evaluator.1.num_bins=0'], 'num_bins must be'),
    ([], ['model.backbone.depth=19'], 'the config cannot be built: '),
    ([], [SAME, *(each[:-2] + '1' for each in FEW[DIGITS])], 'cannot be divided into parts'),
    (['--out', 'file/out.pth'], [], 'file/out.pth cannot be written: Not a directory'),
    (['--out', 'n' * 300 + '.pth'], [], 'cannot be written: File name too long'),
    (['nan.pth'], [], 'NaN'),
]


@pytest.mark.parametrize(('arguments', 'cfg', 'message'), REFUSED)
def test_what_cannot_be_done_is_said(arguments, cfg, message, digits, run, tmp_path):
    Path('file').write_text('mine')
    checkpoint = 'nan.pth' if arguments == ['nan.pth'] else digits
    content = load(digits)
    content['state_dict']['head.fc.weight'][3] = float('nan')
    torch.save(content, 'nan.pth')
    arguments = [] if arguments == ['nan.pth'] else arguments
    assert message in run(DIGITS, checkpoint, *arguments, cfg=cfg, fails=True)
    assert {path.name for path in tmp_path.iterdir()} <= {'file', 'nan.pth', 'work'}
    if 'cannot be written' in message:  # before the fit
        assert not Path('work').exists()


def test_other_kinds_of_files(digits, run):
    content = load(digits)
    state = content['state_dict']
    half = {key: x.half() if x.is_floating_point() else x for key, x in state.items()}
    wrapped = {f'module.{key}': value for key, value in state.items()}
    found = {'': run(DIGITS, digits)[0]}
    for name, kind in (('bare', state), ('wrapped', dict(state_dict=wrapped)), ('half', half)):
        torch.save(kind, f'{name}.pth')
        found[name], _ = run(DIGITS, f'{name}.pth', out=f'from_{name}.pth')
    assert found['bare']['meta'].keys() == {'calibration'}
    for key in FOLDED:
        expected = found['']['state_dict'][key]
        assert torch.equal(found['bare']['state_dict'][key], expected)
        assert torch.equal(found['wrapped']['state_dict'][f'module.{key}'], expected)
    assert of(found['half'])['difference'] < 1e-5
    small = found['half']['state_dict']
    assert {key for key in small if small[key].dtype != half[key].dtype} == FOLDED


def test_what_no_layer_absorbs_is_attached(digits, run, call):
    own = [*NORMALISED, "custom_imports.imports=['mmcalib','tiny_models']"]
    state = load(digits)['state_dict']
    state['head.norm_product.weight'] = state.pop('head.fc.weight')
    del state['head.fc.bias']
    torch.save({'state_dict': state, 'meta': {'epoch': 1, 'seed': 0}}, 'arc.pth')
    content, output = run(DIGITS, 'arc.pth', '--test', cfg=own)
    meta = of(content)
    assert 'Attached behind the model, because ImageClassifier has no linear' in output
    assert 'Written: out.pth and out.py' in output
    assert meta['layers'] == [] and 'no linear layer' in meta['attached']
    assert meta['tested']['after']['NLL'] < meta['tested']['before']['NLL']
    added = content['state_dict'].keys() - state.keys()
    assert added == {'calibration.temperature', 'calibration.about'}
    assert all(torch.equal(content['state_dict'][key], value) for key, value in state.items())
    cfg = load_config('out.py')
    assert cfg.model.type == 'CalibratedModel' and cfg.model.calibrates == 'ImageClassifier'
    assert cfg.custom_imports['imports'] == ['mmcalib', 'tiny_models']
    call('test.py', 'out.py', 'out.pth', '--work-dir', 'tested')
    ours = load('tested/results.json')['metrics']
    theirs = test_by_toolbox(mmpretrain, 'out.py', 'out.pth')
    for name in ('ECE', 'AECE'):
        for found in (ours, theirs):
            expected = pytest.approx(meta['tested']['after'][name], abs=1e-3)
            assert found[f'calibration/{name}'] == expected

    text = re.sub(r"criterion='nll',?", '', Path('out.py').read_text())
    Path('wrong.py').write_text(text.replace("='temperature'", "='class-temperatures'"))
    options = ['--cfg-options', *own, *FEW[DIGITS]]
    for tool, *arguments, message in (
        ('test.py', DIGITS, 'out.pth', *options, 'is attached, and the config has none: use the'),
        ('test.py', 'out.py', 'arc.pth', 'calibration.temperature'),
        ('test.py', 'wrong.py', 'out.pth', "method must be one of ('class-temperatures',), got"),
        ('calibrate.py', 'out.py', 'out.pth', '--out', 'again.pth', '--force',
         'attached scaling (temperature)'),
        ('train.py', 'out.py', 'calibrate again'),
    ):  # fmt: skip
        assert message in call(tool, '--work-dir', 'w', *arguments, fails=True)
    assert not Path('w/results.json').exists()


@pytest.mark.parametrize('method', ['ets', 'class-temperatures'])
def test_mmseg_tests_an_attached_calibration(method, scenes, run):
    content, output = run(SCENES, scenes, '--test', '--method', method)
    assert f'{method} scaling is not one that layers absorb' in output
    meta = of(content)
    assert meta['fitted']['changed'] == meta['tested']['changed'] == 0
    assert meta['fitted']['after']['NLL'] < meta['fitted']['before']['NLL']
    found = test_by_toolbox(mmseg, 'out.py', 'out.pth')
    for name in ('ECE', 'AECE'):
        expected = pytest.approx(meta['tested']['after'][name], abs=1e-3)
        assert found[f'calibration/{name}'] == expected


def test_auto_chooses(digits, run, call):
    content, output = run('mmcalib::ce/digits.py', digits, '--method', 'auto')
    meta = of(content)
    assert meta['method'] != 'none' and 'Cross-validated over 200 images' in output
    assert [c['method'] for c in meta['candidates']][:2] == ['none', 'temperature']
    del content['meta']['calibration']
    torch.save(content, 'as_if_new.pth')
    options = ['--out', 'none.pth', '--work-dir', 'work', '--method', 'auto']
    output = call('calibrate.py', DIGITS, 'as_if_new.pth', *options)
    assert 'Nothing was written' in output and not Path('none.pth').exists()


@DATASETS.register_module(force=True)
class Videos(Digits):
    """Each of 12 digits is a video of 6 frames, under a little noise."""

    def load_data_list(self):
        rng, digits = np.random.default_rng(0), super().load_data_list()
        return [
            digits[place]
            | dict(
                img=digits[place]['img'] + rng.normal(0, 0.01, (8, 8)).astype('float32'),
                img_path=f'v{place:02d}_{frame}.png',
            )
            for place, frame in np.ndindex(12, 6)
        ]


@pytest.mark.parametrize(('pattern', 'groups'), [(None, 5), (r'v(\d+)_', 12), (r'(v\d)\d_', 2)])
def test_auto_compares_by_groups(pattern, groups, digits, run):
    options = ['--groups', pattern] if pattern else []
    few = dict(cfg=['val_dataloader.dataset.type=Videos'])
    _, output = run('mmcalib::ce/digits.py', digits, '--method', 'auto', *options, **few)
    assert ('Neighbours among the 72 images are alike' in output) == (pattern is None)
    assert f'Cross-validated over {groups} groups of 72 images' in output
    assert ('only a temperature is compared' in output) == (groups < 10)
    assert ('matrix' in output) == (groups >= 10)


@pytest.mark.parametrize('config', [DIGITS, SCENES])
@pytest.mark.parametrize('method', ['temperature', 'ets'])
def test_two_processes_come_to_the_same(config, method, digits, scenes, run, tmp_path, free_port):
    """An odd number of images, cross-fitted and drawn from, of which one process repeats one."""
    checkpoint = digits if config == DIGITS else scenes
    few = f"dict(batch_size=2, dataset=dict(split='val', indices={61 if config == DIGITS else 7}))"
    Path('cross.py').write_text(
        f"_base_ = '{config}'\nval_dataloader = {few}\ntest_dataloader = {few}\n"
    )
    options = ['--method', method, '--samples', 50]
    run('cross.py', checkpoint, *options, out='one.pth')
    call_forked(
        'calibrate.py', 'cross.py', checkpoint, '--out', 'two.pth', *options, cwd=tmp_path,
        ranks=2, port=free_port,
    )  # fmt: skip
    one, two = load('one.pth'), load('two.pth')
    for key, value in one['state_dict'].items():
        # Two processes add up in another order, and the optimiser of ETS ends within 1e-6.
        torch.testing.assert_close(two['state_dict'][key], value, rtol=1e-6, atol=1e-6)
    one, two = of(one), of(two)
    assert two['num_predictions'] == one['num_predictions'] > one['num_fitted'] == 50
    assert two['dataset'] == one['dataset'] and two['folds'] == 5
    for key in ('num_predictions', 'changed'):
        assert two['fitted'][key] == one['fitted'][key]
    for when in ('before', 'after'):
        assert two['fitted'][when] == pytest.approx(one['fitted'][when], rel=1e-6)
