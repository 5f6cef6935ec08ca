"""tools/calibrate.py from the outside: what it writes, prints and refuses."""

import json
import os
import resource
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from commands import ROOT, call_here
from forked import call_forked
from mmengine.hooks import Hook
from mmengine.model import BaseModel
from mmengine.registry import DATASETS, HOOKS, MODELS, init_default_scope
from mmengine.runner import BaseLoop
from torch import nn

import mmcalib
from mmcalib.cli.arguments import parse_options
from mmcalib.datasets.same_data import same_data
from mmcalib.posthoc import SCALERS
from mmcalib.posthoc.model_logits import draw_predictions
from mmcalib.runs.config import load_config, set_loader_defaults
from mmcalib.runs.model import describe_calibration
from mmcalib.runs.runner import build_runner

DIGITS = ROOT / 'configs/ce/digits.py'
SCENES = ROOT / 'configs/ce/digit_scenes.py'
FEW_SCENES = [f'{split}_dataloader.dataset.indices=6' for split in ('val', 'test')]
# Of a thousand, whose evaluation takes a second each time.
FEW_DIGITS = [f'{split}_dataloader.dataset.indices=60' for split in ('val', 'test')]


def write_checkpoint(path, config, layer):
    """Write a checkpoint as a training leaves it, of a network that is far too sure.

    All is drawn at random but its last layer, which is the least squares' answer, times 40.
    """
    cfg = load_config(str(config))
    init_default_scope(cfg.default_scope)
    torch.manual_seed(0)
    model = MODELS.build(cfg.model).eval()
    model.init_weights()
    last, inputs = model.get_submodule(layer), []
    handle = last.register_forward_hook(lambda module, given, output: inputs.append(given[0]))
    data = DATASETS.build({**cfg.train_dataloader.dataset, 'indices': 200})
    data = [data[i] for i in range(200 if layer == 'head.fc' else 8)]
    batch = {key: [sample[key] for sample in data] for key in data[0]}
    if layer == 'head.fc':
        batch['inputs'] = torch.stack(batch['inputs'])
    with torch.no_grad():
        samples = model.val_step(batch)
    handle.remove()
    features = torch.cat(inputs).movedim(1, -1).flatten(0, -2)
    labels = torch.cat(
        [s.gt_label if 'gt_label' in s else s.gt_sem_seg.data.flatten() for s in samples]
    )
    valid = labels != 255
    features, labels = features[valid], labels[valid]
    targets = torch.nn.functional.one_hot(labels, max(len(last.weight), 2)).float() - 0.5
    targets = targets[:, -len(last.weight) :]
    features = torch.nn.functional.pad(features, (0, 1), value=1.0)
    # Ridge regression, so that few samples do.
    gram = features.T @ features + 0.1 * torch.eye(features.shape[1])
    solution = 40 * torch.linalg.solve(gram, features.T @ targets)
    last.weight.data = solution[:-1].T.reshape(last.weight.shape).contiguous()
    last.bias.data = solution[-1]
    content = {
        'state_dict': model.state_dict(),
        'optimizer': {'state': {}, 'param_groups': []},
        'meta': {'epoch': 7, 'seed': 3, 'dataset_meta': {}},
        'message_hub': {},
    }
    torch.save(content, path)
    return path


@pytest.fixture(scope='module')
def digits(tmp_path_factory):
    return write_checkpoint(tmp_path_factory.mktemp('digits') / 'ce.pth', DIGITS, 'head.fc')


@pytest.fixture(scope='module')
def scenes(tmp_path_factory):
    folder = tmp_path_factory.mktemp('scenes')
    return write_checkpoint(folder / 'ce.pth', SCENES, 'decode_head.conv_seg')


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Run the tool in this process: ``run(config, checkpoint, …)`` returns the file and output.

    Of the digits it takes few, unless told otherwise.
    """
    monkeypatch.chdir(tmp_path)

    def call_tool(config, checkpoint, *arguments, out='out.pth', fails=False, every=False):
        if config == DIGITS and not every and '--cfg-options' not in arguments:
            arguments += ('--cfg-options', *FEW_DIGITS)
        command = [config, checkpoint, '--out', out, '--work-dir', 'work', *arguments]
        if fails:
            with pytest.raises(SystemExit):
                call_here('calibrate.py', *command, monkeypatch=monkeypatch)
            return capsys.readouterr().err
        call_here('calibrate.py', *command, monkeypatch=monkeypatch)
        return load(tmp_path / out), capsys.readouterr().out

    return call_tool


def load(path):
    return torch.load(path, weights_only=False)


def changed(one, other):
    """Return the keys of the tensors that differ, and check that nothing else does."""
    assert one.keys() == other.keys()
    assert one['state_dict'].keys() == other['state_dict'].keys()
    for key in one.keys() - {'state_dict', 'meta'}:
        assert one[key] == other[key]
    assert {**other['meta'], 'calibration': None} == {**one['meta'], 'calibration': None}
    a, b = one['state_dict'], other['state_dict']
    assert all(a[key].dtype == b[key].dtype for key in a)
    return {key for key in a if not torch.equal(a[key], b[key])}


@pytest.mark.parametrize('method', ['temperature', 'vector', 'matrix'])
def test_a_classifiers_checkpoint(digits, run, method):
    every = method == 'temperature'
    samples, tested = (200, 797) if every else (60, 60)
    content, output = run(DIGITS, digits, '--method', method, '--test', every=every)
    assert changed(load(digits), content) == {'head.fc.weight', 'head.fc.bias'}
    meta = content['meta']['calibration']
    assert meta['method'] == method and meta['forced'] == [] and 'earlier' not in meta
    assert meta['split'] == 'val' and meta['dataset']['split'] == 'val'
    assert meta['num_fitted'] == meta['num_predictions'] == meta['dataset']['samples'] == samples
    assert meta['tested']['num_predictions'] == tested and meta['layers'] == ['head.fc']
    assert meta['difference'] < 1e-4
    for result in (meta['fitted'], meta['tested']):
        assert result['after']['NLL'] < result['before']['NLL']
        assert set(result['after']) == {'ECE', 'AECE', 'NLL', 'Brier', 'accuracy'}
    json.dumps(meta)  # plain values only
    for value in ('before', 'after', str(tested), 'Written: out.pth', 'Folded into head.fc'):
        assert value in output
    if method == 'temperature':
        assert meta['fitted']['changed'] == 0 and 'Temperature ' in output
        original, temperature = load(digits)['state_dict'], meta['parameters']['temperature']
        assert temperature > 2 and meta['standard_error'] > 0 == meta['sampling_error']
        torch.testing.assert_close(
            content['state_dict']['head.fc.weight'], original['head.fc.weight'] / temperature
        )


def test_the_toolbox_tests_the_new_checkpoint_with_the_same_numbers(digits, run, tmp_path):
    mmpretrain = pytest.importorskip('mmpretrain')
    content, _ = run(DIGITS, digits, '--test')
    tool = Path(mmpretrain.__file__).parent / '.mim/tools/test.py'
    call_forked(
        os.path.relpath(tool, ROOT / 'tools'), DIGITS, 'out.pth', '--work-dir', 'own',
        '--out', 'own.json', '--out-item', 'metrics', '--cfg-options', *FEW_DIGITS, cwd=tmp_path,
    )  # fmt: skip
    found = json.loads((tmp_path / 'own.json').read_text())
    after = content['meta']['calibration']['tested']['after']
    assert found['accuracy/top1'] == pytest.approx(after['accuracy'], abs=1e-3)
    for name in ('ECE', 'AECE'):
        assert found[f'calibration/{name}'] == pytest.approx(after[name], abs=1e-3)


def test_a_test_on_the_images_of_the_fit_says_so(digits, run, monkeypatch, capsys):
    run(DIGITS, digits, every=True)
    for split, said in (('val', True), ('test', False)):
        options = ['--split', split, '--work-dir', f'tested_{split}']
        call_here('test.py', DIGITS, 'out.pth', *options, monkeypatch=monkeypatch)
        assert ('was fitted on these images' in capsys.readouterr().out) == said


def test_the_paper_s_grid(digits, run):
    meta = run(DIGITS, digits, '--criterion', 'ece-grid')[0]['meta']['calibration']
    temperature = meta['parameters']['temperature']
    assert round(10 * temperature) == pytest.approx(10 * temperature)
    assert meta['options'] == {'criterion': 'ece-grid'} and 'standard_error' not in meta


def test_a_segmentors_checkpoint(scenes, run):
    options = ['--cfg-options', *FEW_SCENES]
    content, output = run(SCENES, scenes, '--samples', 500, *options)
    names = {'decode_head.conv_seg.weight', 'decode_head.conv_seg.bias'}
    assert changed(load(scenes), content) == names
    drawn = content['meta']['calibration']
    assert drawn['num_fitted'] == 500 < drawn['num_predictions'] and drawn['sampling_error'] > 0
    assert f'500 of {drawn["num_predictions"]:,} predictions on val' in output
    assert 'of it from the draw' in output

    more, _ = run(SCENES, scenes, *options, out='more.pth')
    more = more['meta']['calibration']
    exact = more['parameters']['temperature']
    # The draw is off by about what it says.
    off = abs(drawn['parameters']['temperature'] - exact)
    assert 0 < off < 4 * drawn['sampling_error']


def test_one_image_has_no_standard_error(scenes, run):
    content, output = run(SCENES, scenes, '--cfg-options', 'val_dataloader.dataset.indices=1')
    assert 'standard_error' not in content['meta']['calibration']
    assert 'fitted on' in output and 'nan' not in output and '±' not in output


def test_a_binary_segmentor_says_how_many_pixels_changed_side(run, tmp_path):
    config = tmp_path / 'binary.py'
    config.write_text(
        f"_base_ = '{SCENES}'\n"
        "custom_imports = dict(imports=['mmcalib', 'to_binary'])\n"
        'model = dict(decode_head=dict(num_classes=2, out_channels=1, threshold=0.4,\n'
        "    loss_decode=dict(type='CrossEntropyLoss', use_sigmoid=True)))\n"
        "pipeline = [dict(type='ToBinary'), dict(type='PackSegInputs')]\n"
        "two = dict(classes=('background', 'stroke'), palette=[[0, 0, 0], [255, 255, 255]])\n"
        'train_dataloader = dict(dataset=dict(pipeline=pipeline, metainfo=two))\n'
        'val_dataloader = dict(dataset=dict(indices=4, pipeline=pipeline, metainfo=two))\n'
    )
    (tmp_path / 'to_binary.py').write_text(
        'from mmcv.transforms import BaseTransform\n'
        'from mmengine.registry import TRANSFORMS\n'
        '@TRANSFORMS.register_module(force=True)\n'
        'class ToBinary(BaseTransform):\n'
        '    def transform(self, results):\n'
        "        label = results['gt_seg_map']\n"
        '        label[(label > 1) & (label < 255)] = 1\n'
        '        return results\n'
    )
    sys.path.insert(0, str(tmp_path))
    try:
        checkpoint = write_checkpoint(tmp_path / 'b.pth', config, 'decode_head.conv_seg')
        content, output = run(config, checkpoint)
    finally:
        sys.path.remove(str(tmp_path))
    meta = content['meta']['calibration']
    assert meta['fitted']['changed'] > 0
    assert f'{meta["fitted"]["changed"]:,} of' in output and 'side of the threshold 0.4' in output


def test_fitting_on_test_is_refused_and_marked(digits, run, tmp_path):
    error = run(DIGITS, digits, '--split', 'test', fails=True)
    assert 'refused: fitted on the test split' in error and 'leave out --split' in error
    assert not (tmp_path / 'out.pth').exists()
    content, output = run(DIGITS, digits, '--split', 'test', '--force', '--test')
    meta = content['meta']['calibration']
    assert meta['forced'] == ['fitted on the test split'] and meta['split'] == 'test'
    assert meta['tested'] == meta['fitted']
    assert 'Warning: fitted on the test split' in output


@pytest.fixture
def same_digits():
    """Options by which the validation data are the test data, of 60 digits, and their logits."""
    same = ['val_dataloader.dataset.split=test', *FEW_DIGITS]

    def logits_of(checkpoint):
        cfg = load_config(str(DIGITS), parse_options(same))
        cfg.load_from, cfg.work_dir, cfg.launcher = str(checkpoint), 'logits', 'none'
        set_loader_defaults(cfg)
        runner = build_runner(cfg)
        runner.load_or_resume()
        drawn = draw_predictions(runner.model, runner.test_dataloader)
        return drawn.logits.double(), drawn.labels

    return ['--cfg-options', *same], logits_of


@pytest.mark.parametrize('method', ['temperature', 'vector'])
def test_cross_fitted_figures_are_those_of_a_plain_loop(method, digits, run, same_digits):
    same, logits_of = same_digits
    content, output = run(DIGITS, digits, '--method', method, '--seed', '3', '--test', *same)
    meta = content['meta']['calibration']
    assert 'Validation and test data are the same' in output and 'other 4 of 5 folds' in output
    assert meta['forced'] == [] and meta['tested'] is None and meta['folds'] == 5
    logits, labels = logits_of(digits)
    fold = torch.from_numpy(np.random.RandomState(3).permutation(60) % 5)
    losses = torch.empty(60, dtype=torch.float64)
    for number in range(5):
        scaler = SCALERS[method]().fit(logits[fold != number], labels[fold != number])
        scaled = scaler.transform(logits[fold == number])
        losses[fold == number] = torch.nn.functional.cross_entropy(
            scaled, labels[fold == number], reduction='none'
        )
    assert meta['fitted']['after']['NLL'] == pytest.approx(losses.mean().item(), rel=1e-4)
    whole = SCALERS[method]().fit(logits, labels)
    assert meta['fitted']['after']['NLL'] != pytest.approx(
        torch.nn.functional.cross_entropy(whole.transform(logits), labels).item(), rel=1e-4
    )
    for name, value in whole.parameters.items():  # of what is written
        torch.testing.assert_close(
            torch.as_tensor(meta['parameters'][name]), torch.as_tensor(value), rtol=1e-3, atol=1e-4
        )
    before = torch.nn.functional.cross_entropy(logits, labels).item()
    assert meta['fitted']['before']['NLL'] == pytest.approx(before, rel=1e-4)


@pytest.mark.parametrize('method', ['temperature', 'vector', 'ets'])
def test_the_function_comes_to_the_same_without_a_runner(method, digits, run, same_digits):
    same, logits_of = same_digits
    content, _ = run(DIGITS, digits, '--method', method, *same)
    meta = content['meta']['calibration']
    found = mmcalib.calibrate(nn.Identity(), [logits_of(digits)], method=method)
    for name, value in found.scaler.tensors.items():
        torch.testing.assert_close(
            torch.as_tensor(meta['parameters'][name]).double(), value, rtol=1e-6, atol=1e-6
        )
    assert found.before == pytest.approx(meta['fitted']['before'], rel=1e-5)


@pytest.mark.parametrize(('config', 'passes'), [(DIGITS, 1), (SCENES, 2)])
def test_how_often_the_model_sees_an_image(config, passes, digits, scenes, run, monkeypatch):
    """Once, and twice where its maps are too large to keep; and the first batch a few times."""
    seen, forward = [], BaseModel._run_forward
    monkeypatch.setattr(
        BaseModel,
        '_run_forward',
        lambda self, data, mode: seen.append(len(data['inputs'])) or forward(self, data, mode),
    )
    few = ['val_dataloader.dataset.indices=12', 'val_dataloader.batch_size=1']
    same = [
        '--cfg-options',
        *few,
        'val_dataloader.dataset.split=test',
        few[0].replace('val', 'test'),
    ]
    content, _ = run(config, digits if config == DIGITS else scenes, *same)
    assert content['meta']['calibration']['folds'] == 5
    assert 12 * passes < sum(seen) < 12 * (passes + 1)


@MODELS.register_module(force=True)
class CappedHead(nn.Module):
    """A linear head whose logits have a largest value."""

    def __new__(cls, **options):
        head = MODELS.build(dict(type='mmpretrain.LinearClsHead', **options))
        forward = head.forward
        head.forward = lambda feats: forward(feats).clamp(max=0.5)
        return head


def test_a_head_that_does_not_scale_is_found_by_the_proof(digits, run, tmp_path):
    """So little trained that its cap matters only after the fit."""
    content = load(digits)
    content['state_dict']['head.fc.bias'] += 20  # so that the largest logits are above 0
    for key in ('head.fc.weight', 'head.fc.bias'):
        content['state_dict'][key] /= 200
    torch.save(content, tmp_path / 'weak.pth')
    capped = ['--cfg-options', 'model.head.type=CappedHead', *FEW_DIGITS]
    error = run(DIGITS, 'weak.pth', *capped, fails=True)
    assert 'differ from the scaled ones' in error and 'Nothing was written' in error
    assert not (tmp_path / 'out.pth').exists()


def test_an_ensemble_is_cross_fitted(digits, tmp_path, monkeypatch, same_digits):
    same, _ = same_digits
    command = [DIGITS, digits, '--tta', '--out', 't.json', '--work-dir', 'work', *same]
    monkeypatch.chdir(tmp_path)
    call_here('calibrate.py', *command, monkeypatch=monkeypatch)
    meta = json.loads((tmp_path / 't.json').read_text())
    assert meta['folds'] == 5 and meta['fitted']['num_predictions'] == 60
    assert meta['fitted']['after']['NLL'] < meta['fitted']['before']['NLL']


def test_a_model_without_a_head_is_refused(digits, run):
    error = run(DIGITS, digits, '--cfg-options', 'model.head=None', *FEW_DIGITS, fails=True)
    assert 'ImageClassifier has no head' in error


@pytest.mark.parametrize(('count', 'folds'), [(1, None), (3, 3)])
def test_fewer_images_than_folds(count, folds, digits, run, tmp_path):
    few = [f'{split}_dataloader.dataset.indices={count}' for split in ('val', 'test')]
    same = ['--cfg-options', 'val_dataloader.dataset.split=test', *few]
    if folds is None:
        assert 'cannot be divided into parts' in run(DIGITS, digits, *same, fails=True)
        assert not (tmp_path / 'out.pth').exists()
    else:
        assert run(DIGITS, digits, *same)[0]['meta']['calibration']['folds'] == folds


def test_a_validation_split_that_is_the_test_split_may_be_forced(digits, run):
    same = ['--cfg-options', 'val_dataloader.dataset.split=test', *FEW_DIGITS]
    forced = run(DIGITS, digits, '--force', *same)[0]['meta']['calibration']['forced']
    assert len(forced) == 1 and 'as well' in forced[0]


@pytest.mark.parametrize(
    ('config', 'expected'),
    [
        ('deeplabv3_r50_voc', True),
        ('deeplabv3_r50_voc_heldout', False),
        ('resnet101_cub', True),
        ('resnet101_cub_heldout', False),
        ('resnet50_cifar10', False),
        ('resnet50_tinyimagenet', False),
        ('gpool_cnn_20news', False),
        ('digit_scenes', False),
    ],
)
def test_which_configs_have_no_validation_data(config, expected):
    cfg = load_config(str(ROOT / f'configs/ce/{config}.py'))
    assert same_data(cfg.val_dataloader, cfg.test_dataloader) is expected


def test_folding_twice_is_refused_and_noted(digits, run):
    first, _ = run(DIGITS, digits, out='first.pth')
    error = run(DIGITS, 'first.pth', fails=True)
    assert 'calibrated before' in error and 'ce.pth' in error
    second, output = run(DIGITS, 'first.pth', '--force', '--method', 'vector')
    meta = second['meta']['calibration']
    assert meta['earlier'] == first['meta']['calibration']
    assert describe_calibration(second['meta'])['methods'] == ['temperature', 'vector']
    assert meta['forced'] == ['calibrated before'] and 'Warning: calibrated before' in output
    again, said = run(DIGITS, 'first.pth', '--force', out='again.pth')
    temperature = again['meta']['calibration']['parameters']['temperature']
    assert temperature == pytest.approx(1, abs=1e-3)
    assert 'No gain expected: a temperature of 1, which changes nothing, is only 0.0' in said


def test_no_file_is_lost(digits, run, tmp_path):
    content = digits.read_bytes()
    assert 'is the checkpoint itself' in run(DIGITS, digits, '--overwrite', out=digits, fails=True)
    (tmp_path / 'out.pth').write_text('mine')
    assert 'exists: name another file' in run(DIGITS, digits, fails=True)
    assert (tmp_path / 'out.pth').read_text() == 'mine'
    assert 'is a folder' in run(DIGITS, digits, '--overwrite', out=tmp_path, fails=True)
    run(DIGITS, digits, '--overwrite')
    run(DIGITS, digits, out='new/folder/out.pth')
    assert digits.read_bytes() == content


def test_another_name_of_the_checkpoint_is_the_checkpoint(digits, run, tmp_path):
    original = tmp_path / 'original.pth'
    shutil.copy(digits, original)
    content = original.read_bytes()
    os.link(original, tmp_path / 'hard.pth')
    os.symlink(original, tmp_path / 'soft.pth')
    for name in ('hard.pth', 'soft.pth'):
        assert 'is the checkpoint itself' in run(
            DIGITS, original, '--overwrite', out=name, fails=True
        )
        assert 'is the checkpoint itself' in run(
            DIGITS, name, '--overwrite', out=original, fails=True
        )
        assert original.read_bytes() == content
    # A link to another file is replaced, and that file is not written into.
    (tmp_path / 'other.pth').write_text('mine')
    os.symlink('other.pth', tmp_path / 'link.pth')
    run(DIGITS, original, '--overwrite', out='link.pth')
    assert (tmp_path / 'other.pth').read_text() == 'mine'
    assert not (tmp_path / 'link.pth').is_symlink()


def test_a_kill_while_it_is_written_leaves_the_old_file(digits, run, tmp_path, monkeypatch):
    (tmp_path / 'out.pth').write_text('mine')
    save = torch.save

    def killed(content, path):
        save(content, path)
        os.truncate(path, 1000)
        raise KeyboardInterrupt

    monkeypatch.setattr(torch, 'save', killed)
    with pytest.raises(SystemExit, match='Stopped: nothing was written'):
        run(DIGITS, digits, '--overwrite')
    assert (tmp_path / 'out.pth').read_text() == 'mine'
    assert sorted(path.name for path in tmp_path.iterdir()) == ['out.pth', 'work']


@pytest.mark.parametrize('method', ['temperature', 'ets'])
def test_a_full_disk_leaves_both_old_files(method, digits, run, tmp_path):
    """A limit on the size of a file fails where a full disk does."""
    for name in ('out.pth', 'out.py'):
        (tmp_path / name).write_text('mine')
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (digits.stat().st_size // 2, limits[1]))
    try:
        error = run(DIGITS, digits, '--method', method, '--overwrite', fails=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert '--out out.pth cannot be written' in error
    assert [(tmp_path / name).read_text() for name in ('out.pth', 'out.py')] == ['mine', 'mine']
    assert sorted(path.name for path in tmp_path.iterdir()) == ['out.pth', 'out.py', 'work']


def test_the_config_is_never_replaced(digits, run, tmp_path):
    config = tmp_path / 'mine.py'
    config.write_text(f"_base_ = '{DIGITS}'\n")
    os.symlink(config, tmp_path / 'link.py')
    for out in ('mine.pth', 'link.pth'):
        error = run(config, digits, '--method', 'ets', '--overwrite', out=out, fails=True)
        assert 'is the config itself' in error
    assert 'name a .pth file' in run(config, digits, out='other.py', fails=True)
    run(config, digits, out='mine.pth')  # which is folded, and needs no config
    assert config.read_text() == f"_base_ = '{DIGITS}'\n"


@pytest.mark.parametrize(
    ('out', 'message'),
    [
        ('file/out.pth', 'file/out.pth cannot be written: Not a directory'),
        ('n' * 300 + '.pth', 'cannot be written: File name too long'),
    ],
)
def test_a_file_that_cannot_be_written_is_found_before_the_fit(out, message, run, tmp_path):
    (tmp_path / 'file').write_text('mine')
    torch.save(
        {'no weights': 1}, tmp_path / 'nothing.pth'
    )  # so that nothing later can be the cause
    assert message in run(DIGITS, 'nothing.pth', out=out, fails=True)
    assert not (tmp_path / 'work').exists()


@HOOKS.register_module()
class Sequence(Hook):
    """Notes what runs and which loops there are by then."""

    seen = []

    def note(self, runner, event):
        loops = [isinstance(loop, BaseLoop) for loop in (runner._val_loop, runner._test_loop)]
        self.seen.append((event, *loops))

    def before_run(self, runner):
        self.note(runner, 'before_run')

    def after_load_checkpoint(self, runner, checkpoint):
        self.note(runner, 'after_load_checkpoint')

    def after_run(self, runner):
        self.note(runner, 'after_run')


@pytest.mark.parametrize('test', [False, True])
def test_hooks_run_as_in_a_test(test, digits, run, tmp_path):
    """So that they see all the data that the checkpoint is to be compared with."""
    Sequence.seen.clear()
    config = tmp_path / 'digits.py'
    config.write_text(f"_base_ = '{DIGITS}'\ncustom_hooks = [dict(type='Sequence')]\n")
    run(config, digits, *(['--test'] if test else []), '--cfg-options', *FEW_DIGITS)
    events = ('before_run', 'after_load_checkpoint', 'after_run')
    assert Sequence.seen == [(event, True, test) for event in events]


@pytest.mark.parametrize(
    ('arguments', 'message'),
    [
        (['--method', 'vector', '--criterion', 'nll'], 'vector does not take --criterion'),
        (['--diagonal', '1'], 'temperature does not take --diagonal'),
        (['--method', 'matrix', '--off-diagonal', '-1'], 'off_diagonal must be'),
        (['--all'], '--all is gone since 0.3.0: use --samples'),
        (['--holdout', '0.3'], '--holdout is gone since 0.3.0: leave it out'),
        (['--groups', '(x'], '--groups (x'),
        (['--method', 'local'], 'local is gone since 0.3.0: use class-conditional'),
        (['--samples', '0'], '--samples must be an integer of at least 1'),
        (['--num-bins', '0'], '--num-bins must be'),
        (['--seed', '-1'], '--seed must be'),
        (['--cfg-options', 'val_dataloader.dataset.indices=0'], 'there are no samples'),
        (['--cfg-options', 'model.head.num_classes=7'], 'the head of the model has 7'),
        (['--cfg-options', 'val_evaluator.1.num_bin=9'], 'did you mean num_bins?'),
        (['--test', '--cfg-options', 'test_evaluator.1.num_bins=0'], 'num_bins must be'),
        (['--cfg-options', 'model.backbone.depth=19'], 'the config cannot be built: '),
    ],
)
def test_what_cannot_be_done_is_said(arguments, message, digits, run, tmp_path):
    assert message in run(DIGITS, digits, *arguments, fails=True)
    assert not (tmp_path / 'out.pth').exists()


def test_a_diverged_model(digits, run, tmp_path):
    content = load(digits)
    content['state_dict']['head.fc.weight'][3] = float('nan')
    torch.save(content, tmp_path / 'nan.pth')
    assert 'NaN' in run(DIGITS, 'nan.pth', fails=True)
    assert not (tmp_path / 'out.pth').exists()


def test_other_kinds_of_files(digits, run, tmp_path):
    content = load(digits)
    torch.save(content['state_dict'], tmp_path / 'bare.pth')
    bare, _ = run(DIGITS, 'bare.pth', out='from_bare.pth')
    expected, _ = run(DIGITS, digits)
    assert bare['meta'].keys() == {'calibration'}
    wrapped = {f'module.{key}': value for key, value in content['state_dict'].items()}
    torch.save({'state_dict': wrapped}, tmp_path / 'wrapped.pth')
    parallel, _ = run(DIGITS, 'wrapped.pth', out='from_wrapped.pth')
    for key in ('head.fc.weight', 'head.fc.bias'):
        assert torch.equal(bare['state_dict'][key], expected['state_dict'][key])
        assert torch.equal(parallel['state_dict'][f'module.{key}'], expected['state_dict'][key])
    half = {
        key: value.half() if value.is_floating_point() else value
        for key, value in content['state_dict'].items()
    }
    torch.save({'state_dict': half}, tmp_path / 'half.pth')
    small, _ = run(DIGITS, 'half.pth', out='from_half.pth')
    assert small['meta']['calibration']['difference'] < 1e-5
    assert {k for k, v in small['state_dict'].items() if v.dtype != half[k].dtype} == {
        'head.fc.weight', 'head.fc.bias'
    }  # fmt: skip


@pytest.mark.parametrize('config', [DIGITS, SCENES])
@pytest.mark.parametrize('method', ['temperature', 'ets'])
def test_two_processes_come_to_the_same(config, method, digits, scenes, run, tmp_path, free_port):
    """An odd number of images, cross-fitted and drawn from, of which one process repeats one."""
    checkpoint = digits if config == DIGITS else scenes
    cross = tmp_path / 'cross.py'
    count = 7 if config == SCENES else 61
    few = f"dict(batch_size=2, dataset=dict(split='val', indices={count}))"
    cross.write_text(f"_base_ = '{config}'\nval_dataloader = {few}\ntest_dataloader = {few}\n")
    options = ['--method', method, '--samples', 50, '--work-dir']
    run(cross, checkpoint, *options, 'one', out='one.pth')
    call_forked(
        'calibrate.py', cross, checkpoint, '--out', 'two.pth', *options, 'two', cwd=tmp_path,
        ranks=2, port=free_port,
    )  # fmt: skip
    one, two = (load(tmp_path / f'{name}.pth') for name in ('one', 'two'))
    for key, value in one['state_dict'].items():
        # Two processes add up in another order, and the optimiser of ETS ends within 1e-6.
        torch.testing.assert_close(two['state_dict'][key], value, rtol=1e-6, atol=1e-6)
    one, two = (content['meta']['calibration'] for content in (one, two))
    assert two['num_predictions'] == one['num_predictions'] > one['num_fitted'] == 50
    assert two['dataset'] == one['dataset'] and two['folds'] == 5
    assert two['fitted']['num_predictions'] == one['fitted']['num_predictions']
    assert two['fitted']['changed'] == one['fitted']['changed']
    for when in ('before', 'after'):
        assert two['fitted'][when] == pytest.approx(one['fitted'][when], rel=1e-6)
