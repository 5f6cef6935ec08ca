"""Images of a fit that the training or the test has too."""

from pathlib import Path

import pytest
from commands import ROOT
from overconfident_checkpoints import DIGITS, FEW, SAME, record_in

from mmcalib.openmmlab.same_data import same_data
from mmcalib.runs.config import load_config
from mmcalib.runs.record import Record

# Indices of test images of digit 0, and one of digit 1.
ZEROS_AND_A_ONE = [7, 23, 32, 44, 58, 72, 79, 80, 82, 85, 89, 0]
PACK = [dict(type='PackInputs')]


def write_config(*val_parts, train_dataset=None):
    """Write a config that validates on parts of the digits, one after the other.

    Args:
        val_parts: Split and number of images of each part.
        train_dataset: Config of the training data; None for that of the digits.
    """
    datasets = []
    for split, num_images in val_parts:
        datasets.append(dict(type='Digits', split=split, indices=num_images, pipeline=PACK))
    val_dataset = dict(_delete_=True, type='ConcatDataset', datasets=datasets)
    lines = [
        f"_base_ = '{DIGITS}'",
        f'val_dataloader = dict(dataset={val_dataset})',
        'test_dataloader = dict(dataset=dict(indices=60))',
    ]
    if train_dataset is not None:
        lines.append(f'train_dataloader = dict(dataset={train_dataset})')
    Path('joined.py').write_text('\n'.join(lines))
    return 'joined.py'


def test_calibrate_training_images_refused_unless_forced(digits, calibrate):
    """The network has learned these images, on which its temperature would be too low."""
    cfg = ['val_dataloader.dataset.split=train']
    error = calibrate(DIGITS, digits, cfg=cfg, code=2)
    assert '60 of the 60 val images are training images' in error
    assert not Path('out.pth').exists()
    content, output = calibrate(DIGITS, digits, '--force', cfg=cfg, out='forced.pth')
    assert 'training images' in record_in(content)['forced'][0]
    assert 'Warning: 60 of the 60' in output


def test_calibrate_many_training_images_refused_few_warned(digits, calibrate):
    error = calibrate(write_config(('val', 60), ('train', 30)), digits, code=2)
    assert '30 of the 90 val images are training images' in error
    content, output = calibrate(write_config(('val', 60), ('train', 3)), digits)
    assert '3 of the 63 val images are training images' in output
    assert record_in(content)['shared'] == {'images': 63, 'train': 3, 'test': 0, 'test_images': 60}


def test_calibrate_parts_of_k_folds_share_no_image(digits, calibrate, run):
    """Its part of 60 images has other indices than those images have in the whole."""
    whole = dict(type='Digits', split='train', indices=120, pipeline=PACK)
    folds = dict(_delete_=True, type='KFoldDataset', fold=1, num_splits=2, dataset=whole)
    parts = [f"_base_ = '{DIGITS}'", f'train_dataloader = dict(dataset={folds})']
    for split in ('val', 'test'):
        part = {**folds, 'test_mode': split == 'val'}
        parts.append(f'{split}_dataloader = dict(dataset={part})')
    Path('folds.py').write_text('\n'.join(parts))
    content, output = calibrate('folds.py', digits, '--test')
    shared = {'images': 60, 'train': 0, 'test': 0, 'test_images': 60}
    assert record_in(content)['shared'] == shared
    assert 'the same' not in output
    run('test.py', 'folds.py', 'out.pth', '--split', 'val', '--work-dir', 'tested')


def test_calibrate_validation_that_contains_test_warns(digits, calibrate, run):
    config = write_config(('val', 60), ('test', 60))
    content, output = calibrate(config, digits, '--test')
    assert '60 of the 120 val images are test images' in output
    assert record_in(content)['groups'] == record_in(content)['dataset']['samples'] == 120
    # A test warns of the images that the temperature was fitted on.
    output = run('test.py', config, 'out.pth', '--work-dir', 'tested')
    assert 'fitted on these images' in output
    assert Record.read('tested/results.json').fitted_images == 60
    assert '+ temperature, measured on images of its fit' in run('report.py', 'tested')
    more_images = ['--cfg-options', 'test_dataloader.dataset.indices=100']
    output = run('test.py', config, 'out.pth', '--work-dir', 'more', *more_images)
    assert 'fitted on 60 of these 100 images' in output
    assert Record.read('more/results.json').fitted_images == 60


def test_test_other_config_on_images_of_the_fit_marks_them(digits, calibrate, run):
    """The validation of the config of the test is another one; the checkpoint tells the fit's."""
    calibrate(write_config(('val', 60)), digits)
    calibrate(write_config(('val', 30)), 'out.pth', '--force', out='twice.pth')
    Path('other.py').write_text(
        f"_base_ = '{DIGITS}'\n"
        "val_dataloader = dict(dataset=dict(split='test', indices=50))\n"
        "test_dataloader = dict(dataset=dict(split='val', indices=60))\n"
    )
    for file in ('out.pth', 'twice.pth'):
        output = run('test.py', 'other.py', file, '--work-dir', 'tested')
        assert 'fitted on these images' in output
        assert Record.read('tested/results.json').fitted_images == 60
    others = ['--cfg-options', 'test_dataloader.dataset.split=train']
    run('test.py', 'other.py', 'out.pth', '--work-dir', 'tested', *others)
    assert Record.read('tested/results.json').fitted_images == 0


def test_calibrate_repeated_images_count_once(digits, calibrate, run):
    config = write_config(('val', 60), ('val', 60))
    content, output = calibrate(config, digits, '--test')
    assert record_in(content)['groups'] == 60
    assert 'test images' not in output
    assert 'fitted on' not in run('test.py', config, 'out.pth', '--work-dir', 'tested')


@pytest.mark.parametrize('options', [['--test'], []])
def test_calibrate_test_images_under_other_config_are_cross_fitted(options, digits, calibrate):
    content, output = calibrate(write_config(('test', 30), ('test', 60)), digits, *options)
    assert 'The images of the fit are those of the test: before and after are cross-' in output
    record = record_in(content)
    assert record['tested'] is None
    assert record['folds'] == 5
    assert record['groups'] == 60


def test_calibrate_test_images_with_fold_of_one_class_refused(digits, calibrate):
    """A shift of the classes, which all folds but one need, cannot be cross-fitted."""
    part = dict(type='Digits', split='test', indices=ZEROS_AND_A_ONE, pipeline=PACK)
    val_dataset = dict(_delete_=True, type='ConcatDataset', datasets=[part, part])
    Path('zeros.py').write_text(
        f"_base_ = '{DIGITS}'\n"
        f'val_dataloader = dict(dataset={val_dataset})\n'
        f'test_dataloader = dict(dataset=dict(indices={ZEROS_AND_A_ONE}))\n'
    )
    error = calibrate('zeros.py', digits, '--method', 'vector', code=2)
    assert 'of 5: all labels have class 0' in error
    assert not Path('out.pth').exists()


def test_calibrate_parts_of_one_split_share_nothing(digits, calibrate):
    digits_train = dict(type='Digits', split='train', pipeline=PACK)
    part = dict(_delete_=True, type='SeededSplit', held_out=100, dataset=digits_train)
    Path('parts.py').write_text(
        f"_base_ = '{DIGITS}'\n"
        f'train_dataloader = dict(dataset={dict(part, part="train")})\n'
        f'val_dataloader = dict(dataset={dict(part, part="held_out")})\n'
    )
    content, output = calibrate('parts.py', digits)
    shared = record_in(content)['shared']
    assert shared == {'images': 100, 'train': 0, 'test': 0, 'test_images': 797}
    assert 'training images' not in output


def test_calibrate_unreadable_training_data_warns(digits, calibrate):
    missing = dict(_delete_=True, type='mmpretrain.CustomDataset', data_root='gone', pipeline=PACK)
    content, output = calibrate(write_config(('val', 60), train_dataset=missing), digits)
    assert 'train data cannot be read' in output
    assert 'train' not in record_in(content)['shared']


def test_calibrate_forced_on_test_split_records_reason(digits, calibrate, run):
    content, output = calibrate(DIGITS, digits, '--force', '--split', 'test', '--test')
    record = record_in(content)
    (reason,) = record['forced']
    assert 'test split' in reason
    assert f'Warning: {reason}' in output
    assert record['folds'] == 5
    assert record['split'] == 'test'
    assert record['tested'] == record['fitted']
    # The validation is held out now.
    few = ['--cfg-options', *FEW[DIGITS]]
    run('test.py', DIGITS, 'out.pth', '--split', 'val', '--work-dir', 'on_val', *few)
    assert Record.read('on_val/results_val.json').fitted_images == 0


def test_calibrate_forced_on_same_data_is_cross_fitted_all_the_same(digits, calibrate):
    content, output = calibrate(DIGITS, digits, '--force', '--test', cfg=[SAME])
    record = record_in(content)
    assert record['forced'] == []
    assert 'cross-fitted' in output
    assert record['folds'] == 5
    assert record['split'] == 'val'
    assert record['tested'] is None


def test_calibrate_same_data_other_seed_has_other_folds_same_scaling(digits, calibrate):
    """That the figures equal those of the function, the table of both doors shows."""
    content, output = calibrate(DIGITS, digits, '--test', cfg=[SAME])
    record = record_in(content)
    assert 'cross-fitted' in output
    assert record['forced'] == []
    assert record['tested'] is None
    assert record['folds'] == 5
    other_content, _ = calibrate(DIGITS, digits, '--seed', 3, out='other.pth', cfg=[SAME])
    other_record = record_in(other_content)
    assert other_record['parameters'] == record['parameters']
    assert other_record['fitted']['after']['NLL'] != record['fitted']['after']['NLL']


def test_calibrate_same_data_three_images_have_three_folds(digits, calibrate):
    three_images = [option.replace('60', '3') for option in FEW[DIGITS]]
    content, _ = calibrate(DIGITS, digits, cfg=[SAME, *three_images])
    assert record_in(content)['folds'] == 3


def test_calibrate_mean_on_test_images_is_cross_fitted(digits, calibrate):
    record, _ = calibrate(DIGITS, digits, '--tta', out='t.json', cfg=[SAME])
    assert record['folds'] == 5
    assert record['fitted']['num_predictions'] == 60
    assert record['fitted']['after']['NLL'] < record['fitted']['before']['NLL']


@pytest.mark.parametrize(
    ('name', 'expected'),
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
def test_same_data_config_without_validation_data_is_true(name, expected):
    cfg = load_config(str(ROOT / f'configs/ce/{name}.py'))
    assert same_data(cfg.val_dataloader, cfg.test_dataloader) is expected
