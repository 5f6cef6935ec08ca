"""Every tool, with its default options, on the data that every installation has.

The sweep over the digits is in ``sweep/test_sweep.py``.
"""

import json
import shutil

import numpy as np
import pytest
from commands import ROOT
from forked import call_forked
from PIL import Image

FEW = [
    'train_cfg.max_epochs=1',
    'train_cfg.val_interval=1',
    'train_dataloader.dataset.indices=32',
    'val_dataloader.dataset.indices=20',
    'test_dataloader.dataset.indices=20',
]


@pytest.fixture(scope='module', params=['digits', 'digit_scenes'])
def trained(request, tmp_path_factory):
    """A config, the folder of a short training of it, and its best checkpoint."""
    folder = tmp_path_factory.mktemp(request.param)
    config = str(ROOT / f'configs/mbls/{request.param}.py')
    log = call_forked('train.py', config, '--cfg-options', *FEW, cwd=folder)
    assert 'ECE' in log
    (best,) = (folder / 'work_dirs/mbls' / request.param).glob('best_*.pth')
    shutil.copy(best, folder / 'best.pth')
    return config, folder


def run(tool, trained, *arguments, few=True):
    options = ['--cfg-options', *FEW[2:]] if few else []
    return call_forked(tool, *arguments, *options, cwd=trained[1])


@pytest.mark.parametrize('views', [[], ['--tta'], ['--calibration', '--split', 'val']])
def test_test(trained, views):
    log = run('test.py', trained, trained[0], 'best.pth', *views)
    assert 'mean confidence' in log


def test_calibrate(trained):
    arguments = trained[0], 'best.pth', '--out', 'calibrated.pth', '--overwrite', '--test'
    assert 'ECE' in run('calibrate.py', trained, *arguments)
    assert (trained[1] / 'calibrated.pth').exists()


def test_test_robustness(trained):
    arguments = trained[0], 'best.pth', '--severities', '1', '--work-dir', 'shift', '--limit', '4'
    assert 'gaussian_noise' in run('test_robustness.py', trained, *arguments, few=False)
    tests = json.loads((trained[1] / 'shift/robustness.json').read_text())['checkpoints'][0]
    assert len(tests['tests']) > 4  # the others need larger images than the digits


def test_predict(trained):
    config, folder = trained
    images = folder / 'images'
    images.mkdir(exist_ok=True)
    grey = np.random.default_rng(0).integers(0, 256, (32, 32), dtype=np.uint8)
    Image.fromarray(grey).save(images / 'one.png')
    with pytest.raises(AssertionError, match='predicts no image files'):
        call_forked('predict.py', config, 'best.pth', 'images', '--out', 'p', cwd=folder)
    pack = 'PackSegInputs' if 'scenes' in config else 'PackInputs'
    (folder / 'files.py').write_text(
        f'_base_ = {config!r}\n'
        'pipeline = [\n'
        "    dict(type='LoadImageFromFile', color_type='grayscale'),\n"
        f'    dict(type={pack!r})]\n'
        'test_dataloader = dict(dataset=dict(pipeline=pipeline))\n'
    )
    call_forked('predict.py', 'files.py', 'best.pth', 'images', '--out', 'p', cwd=folder)
    assert (folder / 'p/summary.json').exists()


def test_report_and_visualize(trained):
    _, folder = trained
    assert 'MbLS' in call_forked('report.py', 'work_dirs', cwd=folder)
    (results,) = (folder / 'work_dirs/mbls').glob('*/results.json')
    for kind in ('reliability', 'risk'):
        call_forked('visualize.py', kind, results.parent, '--out', f'{kind}.png', cwd=folder)
        assert (folder / f'{kind}.png').stat().st_size > 1000
