"""Mistakes that tools/calibrate.py refuses, and files that it does not overwrite."""

import os
import shutil
from pathlib import Path

import pytest
from overconfident_checkpoints import DIGITS, FEW, SAME, record_in

from mmcalib.runs.checkpoint import short_calibration


def test_calibrate_calibrated_checkpoint_refused_unless_forced(digits, calibrate):
    first, _ = calibrate(DIGITS, digits, out='first.pth')
    error = calibrate(DIGITS, 'first.pth', code=2)
    assert 'calibrated before' in error
    assert 'ce.pth' in error
    second, output = calibrate(DIGITS, 'first.pth', '--force', '--method', 'vector')
    record = record_in(second)
    assert record['earlier'] == record_in(first)
    assert short_calibration(record)['methods'] == ['temperature', 'vector']
    assert record['forced'] == ['calibrated before']
    assert 'Warning: calibrated before' in output


def test_calibrate_same_images_twice_fits_temperature_one(digits, calibrate):
    calibrate(DIGITS, digits, out='first.pth')
    content, output = calibrate(DIGITS, 'first.pth', '--force')
    assert record_in(content)['parameters']['temperature'] == pytest.approx(1, abs=1e-3)
    assert 'No gain expected' in output


@pytest.fixture
def present_files(digits, run):
    """Files in the folder of a test, with their content. There are links to some of them."""
    shutil.copy(digits, 'model.pth')
    Path('config.py').write_text(f"_base_ = '{DIGITS}'\n")
    Path('other.pth').write_text('other')
    Path('ets.py').write_text('other')
    os.link('model.pth', 'hard.pth')
    os.symlink('model.pth', 'soft.pth')
    os.symlink('config.py', 'soft.py')
    os.symlink('other.pth', 'link.pth')
    paths = [Path(name) for name in ('model.pth', 'config.py', 'other.pth', 'ets.py')]
    return {path: path.read_bytes() for path in paths}


@pytest.mark.parametrize(
    ('checkpoint', 'out', 'options', 'message'),
    [
        ('model.pth', 'model.pth', ['--overwrite'], 'is read, and would be overwritten'),
        ('model.pth', 'hard.pth', ['--overwrite'], 'is read, and would be overwritten'),
        ('soft.pth', 'model.pth', ['--overwrite'], 'is read, and would be overwritten'),
        ('model.pth', 'other.pth', [], 'other.pth exists'),
        ('model.pth', 'ets.pth', ['--method', 'ets'], 'ets.py exists'),
        ('model.pth', '.', ['--overwrite'], 'is a folder'),
        (
            'model.pth',
            'config.pth',
            ['--method', 'ets', '--overwrite'],
            'config.py is read, and would be overwritten',
        ),
        (
            'model.pth',
            'soft.pth',
            ['--method', 'ets', '--overwrite'],
            'is read, and would be overwritten',
        ),
        ('model.pth', 'x.py', [], 'name a .pth file'),
    ],
)
def test_calibrate_out_that_is_other_file_refused(
    checkpoint, out, options, message, present_files, calibrate
):
    assert message in calibrate('config.py', checkpoint, *options, out=out, code=2)
    for path, content in present_files.items():
        assert path.read_bytes() == content


def test_calibrate_out_that_is_link_replaces_link(present_files, calibrate):
    # The second one has the name of the config, which a folded scaling does not write.
    for out in ('link.pth', 'config.pth', 'new/folder/out.pth'):
        calibrate('config.py', 'model.pth', '--overwrite', out=out, cfg=FEW[DIGITS])
    for path, content in present_files.items():
        assert path.read_bytes() == content
    assert not Path('link.pth').is_symlink()


ONE_IMAGE = [option.replace('60', '1') for option in FEW[DIGITS]]
SHUFFLED_BATCHES = [
    'val_dataloader.sampler.shuffle=True',
    'val_dataloader.batch_sampler.type=torch.utils.data.BatchSampler',
    'val_dataloader.batch_sampler.drop_last=False',
]
# Arguments, changes of the config, and what the error names.
REFUSED = [
    (['--method', 'vector', '--criterion', 'nll'], [], 'vector does not take --criterion'),
    (['--diagonal', '1'], [], 'temperature does not take --diagonal'),
    (['--method', 'matrix', '--off-diagonal', '-1'], [], 'off_diagonal must be'),
    (['--method', 'ets', '--out', 'a.json'], [], 'only a temperature can calibrate a mean'),
    (['--groups', '(x'], [], '--groups (x'),
    (['--groups', 'x'], [], 'the images have no file names'),
    ([], ['val_dataloader.sampler.shuffle=True'], 'val_dataloader.sampler.shuffle=False'),
    ([], SHUFFLED_BATCHES, 'take out a batch_sampler'),
    (
        [],
        ['val_dataloader.num_workers=2', 'val_dataloader.in_order=False'],
        'give one with in_order=True',
    ),
    (['--samples', '0'], [], '--samples must be'),
    (['--num-bins', '0'], [], '--num-bins must be'),
    (['--seed', '-1'], [], '--seed must be'),
    (['--split', 'test'], [], 'fitted on the test split'),
    ([], ['val_dataloader.dataset.indices=0'], 'there are no samples'),
    ([], ['model.head.num_classes=7'], 'the head of the model has 7'),
    ([], ['model.head=None'], 'ImageClassifier has no head'),
    ([], ['val_evaluator.1.num_bin=9'], "argument 'num_bin'"),
    (['--test'], ['test_evaluator.1.num_bins=0'], 'num_bins must be'),
    ([], ['model.backbone.depth=19'], 'the config cannot be built: '),
    ([], [SAME, *ONE_IMAGE], 'two or more independent ones'),
    (['--out', 'file/out.pth'], [], 'file/out.pth cannot be written: Not a directory'),
    (['--out', 'n' * 300 + '.pth'], [], 'cannot be written: File name too long'),
]


@pytest.mark.parametrize(('arguments', 'cfg', 'message'), REFUSED)
def test_calibrate_invalid_option_refused(arguments, cfg, message, digits, calibrate, tmp_path):
    Path('file').write_text('mine')
    assert message in calibrate(DIGITS, digits, *arguments, cfg=cfg, code=2)
    assert {path.name for path in tmp_path.iterdir()} <= {'file', 'work'}
    if 'cannot be written' in message:
        assert not Path('work').exists()  # It is refused before the fit.
