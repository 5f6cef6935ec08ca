"""Files and figures of tools/calibrate.py."""

import json
from pathlib import Path

import mmpretrain
import pytest
import torch
from forked import run_forked
from mmcv.transforms import BaseTransform
from mmengine.dataset import BaseDataset
from mmengine.hooks import Hook
from mmengine.registry import HOOKS, TRANSFORMS
from mmengine.runner import BaseLoop
from overconfident_checkpoints import (
    DIGITS,
    FEW,
    SAME,
    SCALED_TENSORS,
    SCENES,
    changed_tensors,
    load,
    model_and_batch,
    read_toolbox_metrics,
    record_in,
    write_checkpoint,
)

from mmcalib.runs.record import Record


def assert_record_of_digits(record, method):
    """Assert that a record is of a fit on 60 images, tested on 60 others."""
    json.dumps(record)  # It has plain values only.
    assert record['method'] == method
    assert record['forced'] == []
    assert 'earlier' not in record
    assert record['split'] == record['dataset']['split'] == 'val'
    assert record['num_bins'] == 20
    assert record['dataset']['samples'] == 60
    assert record['num_fitted'] == record['num_predictions'] == 60
    assert record['tested']['num_predictions'] == 60
    assert record['layers'] == ['head.fc']
    assert record['difference'] < 1e-4
    assert record['fitted']['before'] != record['tested']['before']
    for result in (record['fitted'], record['tested']):
        assert result['after']['NLL'] < result['before']['NLL']
        assert result['after'].keys() == {'ECE', 'AECE', 'NLL', 'Brier', 'accuracy'}


@pytest.mark.parametrize('method', ['vector', 'matrix'])
def test_calibrate_classifier_writes_scaled_layer_and_record(method, digits, calibrate):
    content, output = calibrate(DIGITS, digits, '--method', method, '--test', '--num-bins', 20)
    assert changed_tensors(load(digits), content) == SCALED_TENSORS
    assert_record_of_digits(record_in(content), method)
    for text in ('before', 'after', 'out.pth', 'head.fc'):
        assert text in output


def test_calibrate_temperature_divides_layer_equals_toolbox_test(digits, calibrate, run):
    content, output = calibrate(DIGITS, digits, '--test', '--num-bins', 20)
    record = record_in(content)
    assert changed_tensors(load(digits), content) == SCALED_TENSORS
    assert_record_of_digits(record, 'temperature')
    assert record['fitted']['changed'] == 0
    assert record['standard_error'] > 0
    assert record['sampling_error'] == 0
    assert 'Temperature ' in output
    temperature = record['parameters']['temperature']
    assert temperature > 2
    actual_weight = content['state_dict']['head.fc.weight']
    original_weight = load(digits)['state_dict']['head.fc.weight']
    torch.testing.assert_close(actual_weight, original_weight / temperature)

    few = ['--cfg-options', *FEW[DIGITS]]
    toolbox_metrics = read_toolbox_metrics(
        mmpretrain, DIGITS, 'out.pth', *few, 'test_evaluator.1.num_bins=20'
    )
    expected = record['tested']['after']
    assert toolbox_metrics['accuracy/top1'] == pytest.approx(expected['accuracy'], abs=1e-3)
    assert toolbox_metrics['calibration/ECE'] == pytest.approx(expected['ECE'], abs=1e-3)
    assert toolbox_metrics['calibration/AECE'] == pytest.approx(expected['AECE'], abs=1e-3)
    # Our tool warns where it tests on the images of the fit.
    on_test = run('test.py', DIGITS, 'out.pth', '--work-dir', 'on_test', *few)
    on_val = run('test.py', DIGITS, 'out.pth', '--split', 'val', '--work-dir', 'on_val', *few)
    assert 'fitted on' not in on_test
    assert 'fitted on' in on_val


def test_calibrate_segmentor_samples_are_off_by_sampling_error(scenes, calibrate):
    content, output = calibrate(SCENES, scenes, '--samples', 500)
    layer_tensors = {'decode_head.conv_seg.weight', 'decode_head.conv_seg.bias'}
    assert changed_tensors(load(scenes), content) == layer_tensors
    record = record_in(content)
    assert record['num_fitted'] == 500
    assert 500 < record['num_predictions'] < 6 * 40 * 40
    assert record['sampling_error'] > 0
    assert f'500 of {record["num_predictions"]:,} predictions of 6 images' in output
    other_seed, _ = calibrate(SCENES, scenes, '--samples', 500, '--seed', 1, out='seed.pth')
    all_pixels, _ = calibrate(SCENES, scenes, out='all.pth')
    # Accuracy and share of the most frequent class are of all pixels, not of those that were drawn.
    assert record['majority'] == record_in(all_pixels)['majority']
    exact = record_in(all_pixels)['parameters']['temperature']
    error = abs(record['parameters']['temperature'] - exact)
    other_error = abs(record_in(other_seed)['parameters']['temperature'] - exact)
    assert 0 < max(error, other_error) < 4 * record['sampling_error']
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
    num_changed = record_in(content)['tested']['changed']
    assert f'{num_changed:,} of' in output
    assert record_in(content)['threshold'] == 0.4
    predicted = []
    for file in (checkpoint, 'out.pth'):
        model, batch = model_and_batch(config, 'test', 4)
        model.load_state_dict(load(file)['state_dict'])
        with torch.no_grad():
            samples = model.val_step(batch)
        valid_pixels = [s.pred_sem_seg.data[s.gt_sem_seg.data < 255] for s in samples]
        predicted.append(torch.cat(valid_pixels))
    before, after = predicted
    assert num_changed == int((before != after).sum()) > 0


def test_calibrate_limit_fits_few_images_and_marks_them(digits, calibrate, run):
    content, output = calibrate(DIGITS, digits, '--limit', 40, '--test')
    meta = record_in(content)
    assert meta['limit'] == 40
    assert 'SMOKE RUN' in output
    assert meta['dataset']['samples'] == meta['tested']['num_predictions'] == 40
    run('test.py', DIGITS, 'out.pth', '--work-dir', 'tested', '--cfg-options', *FEW[DIGITS])
    assert Record.read('tested/results.json').limit == 40


def test_calibrate_criterion_ece_grid_fits_multiple_of_tenth(digits, calibrate):
    content, _ = calibrate(DIGITS, digits, '--criterion', 'ece-grid')
    record = record_in(content)
    temperature = record['parameters']['temperature']
    assert round(10 * temperature) == pytest.approx(10 * temperature)
    assert record['options'] == {'criterion': 'ece-grid'}
    assert 'standard_error' not in record


def test_calibrate_auto_writes_best_candidate(digits, calibrate):
    content, output = calibrate('mmcalib::ce/digits.py', digits, '--method', 'auto')
    record = record_in(content)
    assert record['method'] != 'none'
    assert '200 images' in output
    methods = [candidate['method'] for candidate in record['candidates']]
    assert methods[:2] == ['none', 'temperature']
    # The calibrated model gains nothing from a second choice.
    del content['meta']['calibration']
    torch.save(content, 'as_if_new.pth')
    error = calibrate(
        'mmcalib::ce/digits.py', 'as_if_new.pth', '--method', 'auto', '--test', out='none.pth',
        code=1,
    )  # fmt: skip
    assert 'none.pth was not written' in error
    assert not Path('none.pth').exists()


@pytest.mark.parametrize(('config', 'passes'), [(DIGITS, 1), (SCENES, 2)])
def test_calibrate_cross_fitted_reads_images_once_or_twice(
    config, passes, digits, scenes, calibrate, monkeypatch
):
    """Twice where the maps are too large to keep; the first batch is read before, for a check."""
    read_indices = []
    get_item = BaseDataset.__getitem__

    def get_noted_item(self, index):
        read_indices.append(index)
        return get_item(self, index)

    monkeypatch.setattr(BaseDataset, '__getitem__', get_noted_item)
    checkpoint = digits if config == DIGITS else scenes
    cfg = [SAME, *FEW[DIGITS], 'val_dataloader.batch_size=1', 'val_dataloader.num_workers=0']
    content, _ = calibrate(config, checkpoint, cfg=cfg)
    assert record_in(content)['folds'] == 5
    assert 60 * passes <= len(read_indices) < 60 * (passes + 1)


@HOOKS.register_module(force=True)
class EventHook(Hook):
    """Keeps the events of a run, each with whether the loops of val and of test are built."""

    events = []

    def before_run(self, runner):
        self.keep(runner, 'before_run')

    def after_load_checkpoint(self, runner, checkpoint):
        self.keep(runner, 'after_load_checkpoint')

    def after_run(self, runner):
        self.keep(runner, 'after_run')

    def keep(self, runner, event):
        has_val_loop = isinstance(runner._val_loop, BaseLoop)
        has_test_loop = isinstance(runner._test_loop, BaseLoop)
        self.events.append((event, has_val_loop, has_test_loop))


def test_calibrate_builds_all_loops_before_hooks_run(digits, calibrate):
    """Hooks compare the checkpoint with all the data."""
    Path('hook.py').write_text(f"_base_ = '{DIGITS}'\ncustom_hooks = [dict(type='EventHook')]\n")
    calibrate('hook.py', digits, '--test', cfg=FEW[DIGITS])
    assert EventHook.events == [
        ('before_run', True, True),
        ('after_load_checkpoint', True, True),
        ('after_run', True, True),
    ]


@pytest.mark.parametrize(('config', 'method'), [(DIGITS, 'temperature'), (SCENES, 'ets')])
def test_calibrate_two_processes_equal_one(
    config, method, digits, scenes, calibrate, tmp_path, free_port
):
    """The number of images is odd, so that one process predicts one image twice."""
    if config == DIGITS:
        checkpoint = digits
        num_images = 61
    else:
        checkpoint = scenes
        num_images = 7
    loader = dict(batch_size=2, dataset=dict(split='val', indices=num_images))
    Path('cross.py').write_text(
        f"_base_ = '{config}'\nval_dataloader = {loader}\ntest_dataloader = {loader}\n"
    )
    options = ['--method', method, '--samples', 50]
    calibrate('cross.py', checkpoint, *options, out='one.pth')
    run_forked(
        'calibrate.py', 'cross.py', checkpoint, '--out', 'two.pth', *options, cwd=tmp_path,
        ranks=2, port=free_port,
    )  # fmt: skip
    expected_content = load('one.pth')
    actual_content = load('two.pth')
    for key, expected_tensor in expected_content['state_dict'].items():
        actual_tensor = actual_content['state_dict'][key]
        # Two processes add up in another order, and the optimiser of ETS ends within 1e-6.
        torch.testing.assert_close(actual_tensor, expected_tensor, rtol=1e-6, atol=1e-6)
    expected = record_in(expected_content)
    actual = record_in(actual_content)
    assert expected['num_fitted'] == actual['num_fitted'] == 50
    assert expected['folds'] == actual['folds'] == 5
    assert actual['num_predictions'] == expected['num_predictions'] > 50
    assert actual['dataset'] == expected['dataset']
    for key in ('num_predictions', 'changed'):
        assert actual['fitted'][key] == expected['fitted'][key]
    for key in ('before', 'after'):
        assert actual['fitted'][key] == pytest.approx(expected['fitted'][key], rel=1e-6)
