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
from commands import ROOT
from forked import run_forked
from mmcv.transforms import BaseTransform
from mmengine.dataset import pseudo_collate
from mmengine.hooks import Hook
from mmengine.model import BaseModel
from mmengine.registry import DATASETS, HOOKS, MODELS, TRANSFORMS, init_default_scope
from mmengine.runner import BaseLoop
from torch import nn

import mmcalib
from mmcalib.openmmlab.datasets import Digits
from mmcalib.openmmlab.same_data import same_data
from mmcalib.runs.config import load_config
from mmcalib.runs.mean import short_calibration
from mmcalib.runs.record import Record

DIGITS = ROOT / 'configs/ce/digits.py'
SCENES = ROOT / 'configs/ce/digit_scenes.py'
FEW = {
    config: [f'{split}_dataloader.dataset.indices={count}' for split in ('val', 'test')]
    for config, count in ((DIGITS, 60), (SCENES, 6))
}
SAME = 'val_dataloader.dataset.split=test'
# A head whose last layer absorbs nothing.
NORMALISED = ['model.head.type=ArcFaceClsHead', 'model.head.loss.type=CrossEntropyLoss']
FOLDED = {'head.fc.weight', 'head.fc.bias'}


def model_and_batch(config, split, count):
    """A toolbox's model of random weights, and the first images of a split."""
    cfg = load_config(str(config))
    init_default_scope(cfg.default_scope)
    torch.manual_seed(0)
    model = MODELS.build({'data_preprocessor': cfg.get('data_preprocessor'), **cfg.model}).eval()
    data = DATASETS.build({**cfg[f'{split}_dataloader'].dataset, 'indices': count})
    return model, pseudo_collate([data[i] for i in range(count)])


def write_checkpoint(path, config, layer='head.fc', count=200):
    """Write a checkpoint as a training leaves it, of a network that is far too sure.

    All is drawn at random but its last layer: the least squares' answer, times 40.
    """
    model, batch = model_and_batch(config, 'train', count)
    model.init_weights()
    last = model.get_submodule(layer)
    inputs = []
    handle = last.register_forward_hook(lambda module, args, output: inputs.append(args[0]))
    with torch.no_grad():
        samples = model.val_step(batch)
    handle.remove()
    features = torch.cat(inputs).movedim(1, -1).flatten(0, -2)
    labels = [s.gt_label if 'gt_label' in s else s.gt_sem_seg.data.flatten() for s in samples]
    labels = torch.cat(labels)
    is_valid = labels != 255
    features = features[is_valid]
    labels = labels[is_valid]
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


@pytest.fixture(scope='module')
def digits(tmp_path_factory):
    return write_checkpoint(tmp_path_factory.mktemp('digits') / 'ce.pth', DIGITS)


@pytest.fixture(scope='module')
def scenes(tmp_path_factory):
    path = tmp_path_factory.mktemp('scenes') / 'ce.pth'
    return write_checkpoint(path, SCENES, 'decode_head.conv_seg', 8)


@pytest.fixture
def calibrate(run):
    """A function that calibrates on few images, and returns the content of the file and the output.

    With a code that is not 0 it returns the output alone.
    """

    def calibrate(config, checkpoint, *arguments, out='out.pth', cfg=(), code=0):
        options = [*FEW.get(config, ()), *cfg]
        options = ['--cfg-options', *options] if options else []
        command = [config, checkpoint, '--out', out, '--work-dir', 'work', *arguments, *options]
        output = run('calibrate.py', *command, code=code)
        return output if code else (load(out), output)

    return calibrate


def load(path):
    if Path(path).suffix == '.json':
        return json.loads(Path(path).read_text())
    return torch.load(path, weights_only=False)


def record_in(content):
    """Return the record of the calibration in the content of a checkpoint."""
    return content['meta']['calibration']


def changed_tensors(one, other):
    """Return the keys of the tensors that differ, and check that nothing else does."""
    assert one.keys() == other.keys()
    for key in one.keys() - {'state_dict', 'meta'}:
        assert one[key] == other[key]
    assert {**other['meta'], 'calibration': None} == {**one['meta'], 'calibration': None}
    state = one['state_dict']
    other_state = other['state_dict']
    dtypes = {key: tensor.dtype for key, tensor in state.items()}
    other_dtypes = {key: tensor.dtype for key, tensor in other_state.items()}
    assert list(dtypes.items()) == list(other_dtypes.items())
    return {key for key in state if not torch.equal(state[key], other_state[key])}


def read_toolbox_metrics(toolbox, config, checkpoint, *options):
    """Return the metrics that a toolbox's own tool prints."""
    tool = Path(toolbox.__file__).parent / '.mim/tools/test.py'
    tool = os.path.relpath(tool, ROOT / 'tools')
    log = run_forked(tool, config, checkpoint, '--work-dir', 'own', *options, cwd=os.getcwd())
    return {name: float(value) for name, value in re.findall(r'(\w+/\w+): ([\d.]+)', log)}


@pytest.mark.parametrize('method', ['temperature', 'vector', 'matrix'])
def test_calibrate_classifier_writes_scaled_layer_and_record(method, digits, calibrate, run):
    content, output = calibrate(DIGITS, digits, '--method', method, '--test', '--num-bins', 20)
    assert changed_tensors(load(digits), content) == FOLDED
    meta = record_in(content)
    assert meta['method'] == method
    assert meta['forced'] == []
    assert 'earlier' not in meta
    assert meta['split'] == meta['dataset']['split'] == 'val'
    assert meta['num_bins'] == 20
    assert meta['num_fitted'] == meta['num_predictions'] == meta['dataset']['samples'] == 60
    assert meta['tested']['num_predictions'] == 60
    assert meta['layers'] == ['head.fc']
    assert meta['difference'] < 1e-4
    assert meta['fitted']['before'] != meta['tested']['before']
    for result in (meta['fitted'], meta['tested']):
        assert result['after']['NLL'] < result['before']['NLL']
        assert set(result['after']) == {'ECE', 'AECE', 'NLL', 'Brier', 'accuracy'}
    json.dumps(meta)  # plain values only
    for value in ('before', 'after', 'Written: out.pth', "Folded into layer 'head.fc'"):
        assert value in output
    if method != 'temperature':
        return
    assert meta['fitted']['changed'] == 0
    assert 'Temperature ' in output
    temperature = meta['parameters']['temperature']
    assert temperature > 2
    assert meta['standard_error'] > 0 == meta['sampling_error']
    actual_weight = content['state_dict']['head.fc.weight']
    original_weight = load(digits)['state_dict']['head.fc.weight']
    torch.testing.assert_close(actual_weight, original_weight / temperature)
    # Every tool tests the file, ours says on what it was fitted.
    bins = ['--cfg-options', *FEW[DIGITS], 'test_evaluator.1.num_bins=20']
    actual = read_toolbox_metrics(mmpretrain, DIGITS, 'out.pth', *bins)
    expected = meta['tested']['after']
    assert actual['accuracy/top1'] == pytest.approx(expected['accuracy'], abs=1e-3)
    assert actual['calibration/ECE'] == pytest.approx(expected['ECE'], abs=1e-3)
    assert actual['calibration/AECE'] == pytest.approx(expected['AECE'], abs=1e-3)
    for split in ('val', 'test'):
        options = ['--split', split, '--work-dir', f'tested_{split}', *bins[:3]]
        output = run('test.py', DIGITS, 'out.pth', *options)
        assert ('was fitted on these images' in output) == (split == 'val')


def test_calibrate_segmentor_samples_are_off_by_sampling_error(scenes, calibrate):
    content, output = calibrate(SCENES, scenes, '--samples', 500)
    names = {'decode_head.conv_seg.weight', 'decode_head.conv_seg.bias'}
    assert changed_tensors(load(scenes), content) == names
    drawn = record_in(content)
    assert drawn['num_fitted'] == 500 < drawn['num_predictions'] < 6 * 40 * 40
    assert drawn['sampling_error'] > 0
    assert 'of it from the draw' in output
    assert f'500 of {drawn["num_predictions"]:,} predictions of 6 images on val' in output
    other = record_in(calibrate(SCENES, scenes, '--samples', 500, '--seed', 1, out='seed.pth')[0])
    exact = record_in(calibrate(SCENES, scenes, out='more.pth')[0])['parameters']['temperature']
    # The draws are off by about what they say.
    error = abs(drawn['parameters']['temperature'] - exact)
    other_error = abs(other['parameters']['temperature'] - exact)
    assert 0 < max(error, other_error) < 4 * drawn['sampling_error']
    assert error != other_error


def test_calibrate_one_image_has_no_standard_error(scenes, calibrate):
    content, output = calibrate(SCENES, scenes, cfg=['val_dataloader.dataset.indices=1'])
    assert 'standard_error' not in record_in(content)
    assert 'fitted on' in output
    assert 'nan' not in output
    assert '±' not in output


@TRANSFORMS.register_module(force=True)
class ToBinary(BaseTransform):
    def transform(self, results):
        label = results['gt_seg_map']
        label[(label > 1) & (label < 255)] = 1
        return results


def test_calibrate_binary_segmentor_counts_changed_pixels(calibrate, tmp_path):
    config = tmp_path / 'binary.py'
    config.write_text(
        f"_base_ = '{SCENES}'\n"
        'model = dict(decode_head=dict(num_classes=2, out_channels=1, threshold=0.4,\n'
        "    loss_decode=dict(type='CrossEntropyLoss', use_sigmoid=True)))\n"
        "pipeline = [dict(type='ToBinary'), dict(type='PackSegInputs')]\n"
        "two = dict(classes=('background', 'stroke'), palette=[[0, 0, 0], [255, 255, 255]])\n"
        'train_dataloader = dict(dataset=dict(pipeline=pipeline, metainfo=two))\n'
        'val_dataloader = dict(dataset=dict(indices=4, pipeline=pipeline, metainfo=two))\n'
        'test_dataloader = dict(dataset=dict(indices=4, pipeline=pipeline, metainfo=two))\n'
    )
    checkpoint = write_checkpoint(tmp_path / 'b.pth', config, 'decode_head.conv_seg', 8)
    content, output = calibrate(config, checkpoint, '--test')
    count = record_in(content)['tested']['changed']
    assert f'{count:,} of' in output
    assert 'predicted classes on test change' in output
    assert record_in(content)['threshold'] == 0.4
    sides = []
    for file in (checkpoint, 'out.pth'):
        model, batch = model_and_batch(config, 'test', 4)
        model.load_state_dict(load(file)['state_dict'])
        with torch.no_grad():
            samples = model.val_step(batch)
        sides.append(torch.cat([s.pred_sem_seg.data[s.gt_sem_seg.data < 255] for s in samples]))
    assert count == int((sides[0] != sides[1]).sum()) > 0


def joined_config(*parts, train=None):
    """A config whose validation data are those parts of the digits, one after the other."""
    parts = [dict(type='Digits', split=s, indices=i, pipeline=PACK) for s, i in parts]
    dataset = dict(_delete_=True, type='ConcatDataset', datasets=parts)
    text = f"_base_ = '{DIGITS}'\nval_dataloader = dict(dataset={dataset})\n"
    text += 'test_dataloader = dict(dataset=dict(indices=60))\n'
    if train:
        text += f'train_dataloader = dict(dataset={train})\n'
    Path('joined.py').write_text(text)
    return 'joined.py'


PACK = [dict(type='PackInputs')]


def test_calibrate_training_images_raises(digits, calibrate):
    """Of a network that has learned them, a temperature is too low."""
    cfg = ['val_dataloader.dataset.split=train']
    assert '60 of the 60 val images are training images' in calibrate(
        DIGITS, digits, cfg=cfg, code=2
    )
    assert not Path('out.pth').exists()
    content, output = calibrate(DIGITS, digits, '--force', cfg=cfg, out='forced.pth')
    assert 'training images' in record_in(content)['forced'][0]
    assert 'Warning: 60 of the 60' in output
    some = joined_config(('val', 60), ('train', 30))
    assert '30 of the 90 val images are training images' in calibrate(some, digits, code=2)
    content, output = calibrate(joined_config(('val', 60), ('train', 3)), digits)
    assert '3 of the 63 val images are training images' in output
    assert record_in(content)['shared'] == {'images': 63, 'train': 3, 'test': 0, 'test_images': 60}


def test_calibrate_validation_that_contains_test_warns(digits, calibrate, run):
    config = joined_config(('val', 60), ('test', 60))
    content, output = calibrate(config, digits, '--test')
    assert '60 of the 120 val images are test images' in output
    assert record_in(content)['groups'] == record_in(content)['dataset']['samples'] == 120
    output = run('test.py', config, 'out.pth', '--work-dir', 'tested')
    assert 'was fitted on these images' in output
    options = ['--work-dir', 'more', '--cfg-options', 'test_dataloader.dataset.indices=100']
    assert 'was fitted on 60 of these 100 images' in run('test.py', config, 'out.pth', *options)
    other = joined_config(('val', 60), ('val', 60))
    content, output = calibrate(other, digits, '--test', out='other.pth')
    assert record_in(content)['groups'] == 60
    assert 'images too' not in output
    assert 'was fitted on' not in run('test.py', other, 'other.pth', '--work-dir', 'third')


def test_calibrate_test_images_under_other_config_are_cross_fitted(digits, calibrate):
    content, output = calibrate(joined_config(('test', 30), ('test', 60)), digits, '--test')
    assert 'Validation and test data are the same' in output
    assert record_in(content)['tested'] is None
    assert record_in(content)['folds'] == 5
    assert record_in(content)['groups'] == 60


def test_calibrate_parts_of_one_split_share_nothing(digits, calibrate):
    whole = dict(type='Digits', split='train', pipeline=PACK)
    parts = [
        dict(type='SeededSplit', part=p, held_out=100, dataset=whole) for p in ('train', 'held_out')
    ]
    Path('parts.py').write_text(
        f"_base_ = '{DIGITS}'\n"
        f'train_dataloader = dict(dataset={dict(_delete_=True, **parts[0])})\n'
        f'val_dataloader = dict(dataset={dict(_delete_=True, **parts[1])})\n'
    )
    content, output = calibrate('parts.py', digits)
    assert record_in(content)['shared'] == {
        'images': 100,
        'train': 0,
        'test': 0,
        'test_images': 797,
    }
    assert 'images too' not in output


def test_calibrate_unreadable_training_data_warns(digits, calibrate):
    missing = dict(_delete_=True, type='mmpretrain.CustomDataset', data_root='gone', pipeline=PACK)
    content, output = calibrate(joined_config(('val', 60), train=missing), digits)
    assert 'train data cannot be read' in output
    assert 'train' not in record_in(content)['shared']


def test_calibrate_limit_fits_few_images_and_marks_them(digits, calibrate, run):
    content, output = calibrate(DIGITS, digits, '--limit', 40, '--test')
    meta = record_in(content)
    assert meta['limit'] == 40
    assert 'SMOKE RUN with --limit 40' in output
    assert meta['dataset']['samples'] == meta['tested']['num_predictions'] == 40
    run('test.py', DIGITS, 'out.pth', '--work-dir', 'tested', '--cfg-options', *FEW[DIGITS])
    assert Record.read('tested/results.json').limit == 40


@TRANSFORMS.register_module(force=True)
class ChangeLabels(BaseTransform):
    """Masks of 0 and 255, or those that lack a class, or have another order of classes."""

    def __init__(self, kind):
        self.kind = kind

    def transform(self, results):
        label = results['gt_seg_map'] if 'gt_seg_map' in results else results['gt_label']
        if self.kind == '0 and 255':
            label[label > 0] = 255
        elif self.kind == 'no 3':
            label[label == 3] = 255
        elif self.kind == 'order':
            results['gt_label'] = (label + 5) % 10
        return results


def with_labels(config, kind, pack):
    """A config whose validation labels are changed."""
    pipeline = [dict(type='ChangeLabels', kind=kind), dict(type=pack)]
    loader = dict(dataset=dict(pipeline=pipeline))
    Path('changed.py').write_text(f"_base_ = '{config}'\nval_dataloader = {loader}\n")
    return 'changed.py'


@pytest.mark.parametrize(
    ('kind', 'message'),
    [('0 and 255', 'all labels are 0: .*write 1'), ('order', 'no information.*same order')],
)
def test_calibrate_labels_that_determine_nothing_writes_no_file(
    kind, message, digits, scenes, calibrate
):
    config, checkpoint, pack = DIGITS, digits, 'PackInputs'
    if kind == '0 and 255':
        config, checkpoint, pack = SCENES, scenes, 'PackSegInputs'
    error = calibrate(with_labels(config, kind, pack), checkpoint, cfg=FEW[config], code=2)
    assert re.search(message, error)
    assert not Path('out.pth').exists()


@pytest.mark.parametrize(
    ('kind', 'message'),
    [
        ('no 3', 'No label is of class 2:'),
        ('0 and 255', 'The masks hold 0, 255, and only one of these is a class'),
        ('the same', None),
    ],
)
def test_test_segmentor_names_classes_without_labels(kind, message, scenes, run):
    config = with_labels(SCENES, kind, 'PackSegInputs')
    few = ['--cfg-options', 'val_dataloader.dataset.indices=20']
    output = run('test.py', config, scenes, '--split', 'val', '--work-dir', 'tested', *few)
    assert ('No label is of class' in output) == (message is not None)
    if message is not None:
        assert message in ' '.join(output.split())


def test_calibrate_class_without_labels_is_named(scenes, calibrate):
    config = with_labels(SCENES, 'no 3', 'PackSegInputs')
    content, output = calibrate(config, scenes, cfg=FEW[SCENES])
    assert record_in(content)['unlabelled'] == ['2']
    assert 'No label is of class 2:' in output


def test_calibrate_criterion_is_that_of_the_scaler(digits, calibrate):
    meta = record_in(calibrate(DIGITS, digits, '--criterion', 'ece-grid')[0])
    temperature = meta['parameters']['temperature']
    assert round(10 * temperature) == pytest.approx(10 * temperature)
    assert meta['options'] == {'criterion': 'ece-grid'}
    assert 'standard_error' not in meta


@pytest.mark.parametrize(
    ('options', 'cfg', 'reason'),
    [
        (['--split', 'test', '--test'], [], 'fitted on the test split'),
        ([], [SAME], "fitted on the validation split, which is the config's test split as well"),
    ],
)
def test_calibrate_forced_record_has_reason(options, cfg, reason, digits, calibrate):
    content, output = calibrate(DIGITS, digits, '--force', *options, cfg=cfg)
    meta = record_in(content)
    assert meta['forced'] == [reason]
    assert f'Warning: {reason}' in output
    assert meta['folds'] == 5
    assert meta['split'] == ('test' if options else 'val')
    assert meta['tested'] == (meta['fitted'] if options else None)


@pytest.mark.parametrize('method', ['temperature', 'vector', 'ets'])
def test_calibrate_cross_fitted_figures_equal_function(method, digits, calibrate):
    content, output = calibrate(DIGITS, digits, '--method', method, '--test', cfg=[SAME])
    meta = record_in(content)
    assert 'Validation and test data are the same' in output
    assert 'other 4 of 5 folds' in output
    assert meta['forced'] == []
    assert meta['tested'] is None
    assert meta['folds'] == 5
    model, batch = model_and_batch(DIGITS, 'test', 60)
    model.load_state_dict(load(digits)['state_dict'])
    given = model.data_preprocessor(batch)
    with torch.no_grad():
        logits = model(given['inputs'], mode='tensor').double()
    labels = torch.cat([sample.gt_label for sample in given['data_samples']])
    batches = [(logits, labels)]
    function = mmcalib.calibrate(nn.Identity(), batches, method=method, groups=range(60))
    for name, value in function.scaler.tensors.items():
        given = torch.as_tensor(meta['parameters'][name]).double()
        torch.testing.assert_close(given, value, rtol=1e-5, atol=1e-5)
    assert meta['fitted']['before'] == pytest.approx(function.before, rel=1e-4)
    assert meta['fitted']['after'] == pytest.approx(function.after, rel=1e-4)
    if method == 'temperature':
        other = record_in(calibrate(DIGITS, digits, '--seed', 3, out='other.pth', cfg=[SAME])[0])
        assert other['parameters'] == meta['parameters']
        assert other['fitted']['after']['NLL'] != meta['fitted']['after']['NLL']
        three = [option.replace('60', '3') for option in FEW[DIGITS]]
        assert (
            record_in(calibrate(DIGITS, digits, out='3.pth', cfg=[SAME, *three])[0])['folds'] == 3
        )


def test_calibrate_mean_on_test_images_is_cross_fitted(digits, calibrate):
    meta, _ = calibrate(DIGITS, digits, '--tta', out='t.json', cfg=[SAME])
    assert meta['folds'] == 5
    assert meta['fitted']['num_predictions'] == 60
    assert meta['fitted']['after']['NLL'] < meta['fitted']['before']['NLL']


@pytest.mark.parametrize(('config', 'passes'), [(DIGITS, 1), (SCENES, 2)])
def test_calibrate_passes_over_images(config, passes, digits, scenes, calibrate, monkeypatch):
    """Once, and twice where its maps are too large to keep; and a few batches a few times."""
    batch_sizes = []
    run_forward = BaseModel._run_forward

    def run_noting_size(self, data, mode):
        batch_sizes.append(len(data['inputs']))
        return run_forward(self, data, mode)

    monkeypatch.setattr(BaseModel, '_run_forward', run_noting_size)
    few = [f'{split}_dataloader.dataset.indices=60' for split in ('val', 'test')]
    cfg = [SAME, *few, 'val_dataloader.batch_size=1']
    content, _ = calibrate(config, digits if config == DIGITS else scenes, cfg=cfg)
    assert record_in(content)['folds'] == 5
    assert 60 * passes < sum(batch_sizes) < 60 * (passes + 1)


def test_same_data_configs_without_validation_data():
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


def test_calibrate_head_that_caps_logits_attaches(digits, calibrate, run):
    """So little trained that its cap matters only after the fit."""
    content = load(digits)
    content['state_dict']['head.fc.bias'] += 20  # so that the largest logits are above 0
    for key in FOLDED:
        content['state_dict'][key] /= 200
    torch.save(content, 'weak.pth')
    head = 'model.head.type=CappedHead'
    content, output = calibrate(DIGITS, 'weak.pth', '--test', cfg=[head])
    meta = record_in(content)
    assert 'differ from the scaled ones' in meta['attached']
    assert meta['layers'] == []
    assert 'Attached' in output
    assert Path('out.py').exists()
    run('test.py', 'out.py', 'out.pth', '--work-dir', 'tested')
    tested = load('tested/results.json')['metrics']
    assert tested['calibration/ECE'] == pytest.approx(meta['tested']['after']['ECE'], abs=1e-3)


@pytest.mark.parametrize('ranks', [1, 2])
def test_calibrate_two_heads_attaches(ranks, digits, calibrate, tmp_path, free_port):
    """Of which the first batch sees one."""
    model, batch = model_and_batch(DIGITS, 'val', 60)
    content = load(digits)
    model.load_state_dict(content['state_dict'])
    with torch.no_grad():
        given = model.data_preprocessor(batch)
        means = model.extract_feat(given['inputs'])[-1].mean(dim=1)
    limit = float(means[:10].max())
    assert (means > limit).any()
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
    meta = record_in(content)
    assert meta['layers'] == []
    assert 'linear layer' in meta['attached']


def test_calibrate_calibrated_checkpoint_raises_unless_forced(digits, calibrate):
    first, _ = calibrate(DIGITS, digits, out='first.pth')
    error = calibrate(DIGITS, 'first.pth', code=2)
    assert 'calibrated before' in error
    assert 'ce.pth' in error
    second, output = calibrate(DIGITS, 'first.pth', '--force', '--method', 'vector')
    assert record_in(second)['earlier'] == record_in(first)
    assert short_calibration(second['meta']['calibration'])['methods'] == ['temperature', 'vector']
    assert record_in(second)['forced'] == ['calibrated before']
    assert 'Warning: calibrated before' in output
    again, output = calibrate(DIGITS, 'first.pth', '--force', out='again.pth')
    assert record_in(again)['parameters']['temperature'] == pytest.approx(1, abs=1e-3)
    assert 'No gain expected: a temperature of 1, which changes nothing, is only 0.0' in output


def test_calibrate_out_that_is_another_file_raises(digits, calibrate):
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
        assert message in calibrate(config, checkpoint, *options, out=out, code=2), out
    # A link to another file is replaced; what is folded needs no config.
    for out in ('link.pth', 'mine.pth', 'new/folder/out.pth'):
        calibrate('mine.py', 'ours.pth', '--overwrite', out=out)
    assert [Path(name).read_bytes() for name in kept] == before
    assert not Path('link.pth').is_symlink()


@pytest.mark.parametrize('method', ['temperature', 'ets'])
def test_calibrate_full_disk_leaves_both_old_files(method, digits, calibrate, tmp_path):
    """A limit on the size of a file fails where a full disk does."""
    for name in ('out.pth', 'out.py'):
        Path(name).write_text('mine')
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (digits.stat().st_size // 2, limits[1]))
    try:
        error = calibrate(DIGITS, digits, '--method', method, '--overwrite', code=2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert '--out out.pth cannot be written' in error
    assert [Path(name).read_text() for name in ('out.pth', 'out.py')] == ['mine', 'mine']
    assert sorted(path.name for path in tmp_path.iterdir()) == ['out.pth', 'out.py', 'work']


@HOOKS.register_module(force=True)
class Sequence(Hook):
    """Notes what runs and which loops there are by then."""

    seen = []

    def before_run(self, runner, event='before_run'):
        loops = (isinstance(loop, BaseLoop) for loop in (runner._val_loop, runner._test_loop))
        self.seen.append((event, *loops))

    def after_load_checkpoint(self, runner, checkpoint):
        self.before_run(runner, 'after_load_checkpoint')

    def after_run(self, runner):
        self.before_run(runner, 'after_run')


def test_calibrate_hooks_see_all_loops(digits, calibrate):
    """So that they see all the data that the checkpoint is to be compared with."""
    Path('own.py').write_text(f"_base_ = '{DIGITS}'\ncustom_hooks = [dict(type='Sequence')]\n")
    calibrate('own.py', digits, '--test', cfg=FEW[DIGITS])
    events = ('before_run', 'after_load_checkpoint', 'after_run')
    assert Sequence.seen == [(event, True, True) for event in events]


REFUSED = [
    (['--method', 'vector', '--criterion', 'nll'], [], 'vector does not take --criterion'),
    (['--diagonal', '1'], [], 'temperature does not take --diagonal'),
    (['--method', 'matrix', '--off-diagonal', '-1'], [], 'off_diagonal must be'),
    (['--method', 'ets', '--out', 'a.json'], [], 'only a temperature can calibrate a mean'),
    (['--groups', '(x'], [], '--groups (x'),
    (['--groups', 'x'], [], 'the images have no file names'),
    ([], ['val_dataloader.sampler.shuffle=True'], 'val_dataloader.sampler.shuffle=False'),
    (['--samples', '0'], [], '--samples must be an integer of at least 1'),
    (['--num-bins', '0'], [], '--num-bins must be'),
    (['--seed', '-1'], [], '--seed must be'),
    (['--split', 'test'], [], 'fitted on the test split. Fit on images that no test uses: leave'),
    ([], ['val_dataloader.dataset.indices=0'], 'there are no samples'),
    ([], ['model.head.num_classes=7'], 'the head of the model has 7'),
    ([], ['model.head=None'], 'ImageClassifier has no head'),
    ([], ['val_evaluator.1.num_bin=9'], "argument 'num_bin'"),
    (['--test'], ['test_evaluator.1.num_bins=0'], 'num_bins must be'),
    ([], ['model.backbone.depth=19'], 'the config cannot be built: '),
    (
        [],
        [SAME, *(option.replace('60', '1') for option in FEW[DIGITS])],
        'two or more independent ones',
    ),
    (['--out', 'file/out.pth'], [], 'file/out.pth cannot be written: Not a directory'),
    (['--out', 'n' * 300 + '.pth'], [], 'cannot be written: File name too long'),
]


@pytest.mark.parametrize(('arguments', 'cfg', 'message'), REFUSED)
def test_calibrate_invalid_options_raises(arguments, cfg, message, digits, calibrate, tmp_path):
    Path('file').write_text('mine')
    assert message in calibrate(DIGITS, digits, *arguments, cfg=cfg, code=2)
    assert {path.name for path in tmp_path.iterdir()} <= {'file', 'work'}
    if 'cannot be written' in message:  # before the fit
        assert not Path('work').exists()


def test_calibrate_bare_wrapped_and_half_checkpoints_are_read(digits, calibrate):
    content = load(digits)
    state = content['state_dict']
    wrapped_state = {f'module.{key}': tensor for key, tensor in state.items()}
    half_state = {}
    for key, tensor in state.items():
        half_state[key] = tensor.half() if tensor.is_floating_point() else tensor
    expected, _ = calibrate(DIGITS, digits)
    torch.save(state, 'bare.pth')
    torch.save({'state_dict': wrapped_state}, 'wrapped.pth')
    torch.save(half_state, 'half.pth')
    bare, _ = calibrate(DIGITS, 'bare.pth', out='from_bare.pth')
    wrapped, _ = calibrate(DIGITS, 'wrapped.pth', out='from_wrapped.pth')
    half, _ = calibrate(DIGITS, 'half.pth', out='from_half.pth')
    assert bare['meta'].keys() == {'calibration'}
    for key in FOLDED:
        expected_tensor = expected['state_dict'][key]
        assert torch.equal(bare['state_dict'][key], expected_tensor)
        assert torch.equal(wrapped['state_dict'][f'module.{key}'], expected_tensor)
    assert record_in(half)['difference'] < 1e-5
    with_other_dtype = set()
    for key, tensor in half['state_dict'].items():
        if tensor.dtype != half_state[key].dtype:
            with_other_dtype.add(key)
    assert with_other_dtype == FOLDED


def test_calibrate_head_without_linear_layer_attaches(digits, calibrate, run):
    own = [*NORMALISED, "custom_imports.imports=['mmcalib','tiny_models']"]
    state = load(digits)['state_dict']
    state['head.norm_product.weight'] = state.pop('head.fc.weight')
    del state['head.fc.bias']
    torch.save({'state_dict': state, 'meta': {'epoch': 1, 'seed': 0}}, 'arc.pth')
    content, output = calibrate(DIGITS, 'arc.pth', '--test', cfg=own)
    meta = record_in(content)
    assert 'Attached behind the model, because ImageClassifier has no linear' in output
    assert 'Written: out.pth and out.py' in output
    assert meta['layers'] == []
    assert 'no linear layer' in meta['attached']
    assert meta['tested']['after']['NLL'] < meta['tested']['before']['NLL']
    added = content['state_dict'].keys() - state.keys()
    assert added == {'calibration.temperature', 'calibration.about'}
    assert all(torch.equal(content['state_dict'][key], value) for key, value in state.items())
    cfg = load_config('out.py')
    assert cfg.model.type == 'CalibratedModel'
    assert cfg.model.calibrates == 'ImageClassifier'
    assert cfg.custom_imports['imports'] == ['mmcalib', 'tiny_models']
    run('test.py', 'out.py', 'out.pth', '--work-dir', 'tested')
    metrics = load('tested/results.json')['metrics']
    toolbox_metrics = read_toolbox_metrics(mmpretrain, 'out.py', 'out.pth')
    for name in ('ECE', 'AECE'):
        expected = pytest.approx(meta['tested']['after'][name], abs=1e-3)
        assert metrics[f'calibration/{name}'] == expected
        assert toolbox_metrics[f'calibration/{name}'] == expected

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
        assert message in run(tool, '--work-dir', 'w', *arguments, code=2)
    assert not Path('w/results.json').exists()


def test_calibrate_attached_segmentor_is_tested_by_mmseg(scenes, calibrate):
    content, output = calibrate(SCENES, scenes, '--test', '--method', 'class-temperatures')
    assert 'class-temperatures scaling is not one that layers absorb' in output
    meta = record_in(content)
    assert meta['fitted']['changed'] == meta['tested']['changed'] == 0
    assert meta['fitted']['after']['NLL'] < meta['fitted']['before']['NLL']
    metrics = read_toolbox_metrics(mmseg, 'out.py', 'out.pth')
    for name in ('ECE', 'AECE'):
        expected = pytest.approx(meta['tested']['after'][name], abs=1e-3)
        assert metrics[f'calibration/{name}'] == expected


def test_calibrate_auto_chooses_once(digits, calibrate, run):
    content, output = calibrate('mmcalib::ce/digits.py', digits, '--method', 'auto')
    meta = record_in(content)
    assert meta['method'] != 'none'
    assert 'Cross-validated over 200 images' in output
    assert [c['method'] for c in meta['candidates']][:2] == ['none', 'temperature']
    del content['meta']['calibration']
    torch.save(content, 'as_if_new.pth')
    options = ['--out', 'none.pth', '--work-dir', 'work', '--method', 'auto']
    error = run('calibrate.py', DIGITS, 'as_if_new.pth', *options, '--test', code=1)
    assert 'none.pth was not written' in error
    assert not Path('none.pth').exists()


@DATASETS.register_module(force=True)
class Videos(Digits):
    """Each of 12 digits is a video of 6 frames."""

    def load_data_list(self):
        digits = super().load_data_list()
        frames = []
        for video, frame in np.ndindex(12, 6):
            frames.append(digits[video] | {'img_path': f'v{video:02d}_{frame}.png'})
        return frames


@pytest.mark.parametrize(('pattern', 'groups'), [(None, 5), (r'v(\d+)_', 12), (r'(v\d)\d_', 2)])
def test_calibrate_auto_compares_by_groups(pattern, groups, digits, calibrate):
    options = ['--groups', pattern] if pattern else []
    few = dict(cfg=['val_dataloader.dataset.type=Videos'])
    _, output = calibrate('mmcalib::ce/digits.py', digits, '--method', 'auto', *options, **few)
    assert ('Neighbours among the 72 images are alike' in output) == (pattern is None)
    assert f'Cross-validated over {groups} groups of 72 images' in output
    assert ('only a temperature is taken' in output) == (groups < 10)
    assert ('matrix' in output) == (groups >= 10)


def test_calibrate_groups_pattern_that_does_not_suit_is_named(digits, calibrate):
    videos = dict(cfg=['val_dataloader.dataset.type=Videos'])
    config = 'mmcalib::ce/digits.py'
    _, output = calibrate(config, digits, '--groups', r'v(\d+_\d)', **videos)
    assert r'--groups v(\d+_\d) names groups that are alike' in output
    one = ['--groups', 'v', '--overwrite']
    error = calibrate(config, digits, '--method', 'auto', *one, code=2, **videos)
    assert '--groups v finds the same in the paths of all 72 images' in error
    assert 'Reading logits' not in error
    content, output = calibrate(config, digits, *one, **videos)
    assert record_in(content)['groups'] == 1
    assert 'All images are of one group' in output


@pytest.mark.parametrize(('config', 'method'), [(DIGITS, 'temperature'), (SCENES, 'ets')])
def test_calibrate_two_processes_equal_one(
    config, method, digits, scenes, calibrate, tmp_path, free_port
):
    """An odd number of images, cross-fitted and drawn from, of which one process repeats one."""
    checkpoint = digits if config == DIGITS else scenes
    few = f"dict(batch_size=2, dataset=dict(split='val', indices={61 if config == DIGITS else 7}))"
    Path('cross.py').write_text(
        f"_base_ = '{config}'\nval_dataloader = {few}\ntest_dataloader = {few}\n"
    )
    options = ['--method', method, '--samples', 50]
    calibrate('cross.py', checkpoint, *options, out='one.pth')
    run_forked(
        'calibrate.py', 'cross.py', checkpoint, '--out', 'two.pth', *options, cwd=tmp_path,
        ranks=2, port=free_port,
    )  # fmt: skip
    one, two = load('one.pth'), load('two.pth')
    for key, value in one['state_dict'].items():
        # Two processes add up in another order, and the optimiser of ETS ends within 1e-6.
        torch.testing.assert_close(two['state_dict'][key], value, rtol=1e-6, atol=1e-6)
    one, two = record_in(one), record_in(two)
    assert two['num_predictions'] == one['num_predictions'] > one['num_fitted'] == 50
    assert two['dataset'] == one['dataset']
    assert two['folds'] == 5
    for key in ('num_predictions', 'changed'):
        assert two['fitted'][key] == one['fitted'][key]
    for when in ('before', 'after'):
        assert two['fitted'][when] == pytest.approx(one['fitted'][when], rel=1e-6)
