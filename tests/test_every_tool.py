"""Every tool with its default options on the data that come with the package."""

import json
import resource
from pathlib import Path

import numpy as np
import pytest
from commands import ROOT, call_here
from forked import ForkedCommand, call_forked
from PIL import Image
from shifted import needs_extra

from mmcalib.metrics import CalibrationStatistics
from mmcalib.record import view_count
from mmcalib.reports.runs import read_runs

# The second also measures what visualize.py boundary draws, as a newcomer's config may.
CONFIGS = {
    'digits': ("_base_ = '{}/configs/mbls/digits.py'\n", 'PackInputs', 8),
    'scenes': (
        "_base_ = '{}/configs/mbls/digit_scenes.py'\n"
        "metric = dict(type='CalibrationMetric', metrics=['ECE', 'AECE'], per_distance=True)\n"
        "test_evaluator = [dict(type='IoUMetric', iou_metrics=['mIoU']), metric]\n",
        'PackSegInputs',
        40,
    ),
}
FEW = """
train_cfg = dict(max_epochs=1, val_interval=1)
train_dataloader = dict(dataset=dict(indices=16))
val_dataloader = dict(dataset=dict(indices=10))
test_dataloader = dict(dataset=dict(indices=10))
"""
COARSE = ['--dpi', '50']  # figures are drawn sooner
OF_FILES = """
_base_ = 'mine.py'
test_dataloader = dict(dataset=dict(pipeline=[
    dict(type='LoadImageFromFile', color_type='grayscale'),
    dict(type='Normalize', mean=[95.625], std=[63.75], to_rgb=False),
    dict(type='{}')]))
"""


@pytest.fixture(scope='module', params=list(CONFIGS))
def trained(request, tmp_path_factory):
    """A folder with a config, its trained model, and image files."""
    folder = tmp_path_factory.mktemp(request.param)
    config, pack, size = CONFIGS[request.param]
    (folder / 'mine.py').write_text(config.format(ROOT) + FEW)
    (folder / 'files.py').write_text(OF_FILES.format(pack))
    (folder / 'images').mkdir()
    image = np.random.default_rng(0).integers(0, 256, (size, size), dtype=np.uint8)
    Image.fromarray(image).save(folder / 'images/a.png')
    (folder / 'log').write_text(call_forked('train.py', 'mine.py', cwd=folder))
    (best,) = folder.glob('work_dirs/mine/best_*.pth')
    best.rename(folder / 'best.pth')
    return folder


@pytest.fixture
def run(trained, monkeypatch, capsys):
    """Run a tool in the folder, and return what it prints."""
    monkeypatch.chdir(trained)

    def run(tool, *arguments):
        call_here(tool, *arguments, monkeypatch=monkeypatch)
        return capsys.readouterr().out

    run.errors = lambda: capsys.readouterr().err
    return run


def of_scenes():
    return Path('work_dirs/mine/confidence_maps.npz').exists()


def test_training_tests(trained):
    metrics = json.loads((trained / 'work_dirs/mine/results.json').read_text())['metrics']
    assert (trained / 'log').read_text().endswith('\nFiles: work_dirs/mine\n')
    assert {'calibration/ECE', 'calibration/AECE'} <= metrics.keys()


def test_test(run):
    said = run('test.py', 'mine.py', 'best.pth', '--work-dir', 'tested')
    assert said.endswith('\nFiles: tested\n')
    one, two = (Path(f'{folder}/results.json') for folder in ('work_dirs/mine', 'tested'))
    assert json.loads(one.read_text())['metrics'] == json.loads(two.read_text())['metrics']


def test_several_views_and_their_temperature(run):
    run('calibrate.py', 'mine.py', 'best.pth', '--tta', '--out', 'temperature.json')
    run('test.py', 'mine.py', 'best.pth', '--tta', '--temperature', 'temperature.json')
    (path,) = Path('work_dirs/mine').glob('best_tta_temperature-*/results.json')
    results = json.loads(path.read_text())
    assert view_count(results['model']) == (6 if of_scenes() else 2)


def test_calibrate(run):
    said = run('calibrate.py', 'mine.py', 'best.pth', '--out', 'calibrated.pth', '--test')
    assert 'Written: calibrated.pth' in said
    run('test.py', 'mine.py', 'calibrated.pth', '--work-dir', 'calibrated')


def test_predict(run):
    with pytest.raises(SystemExit) as end:
        run('predict.py', 'files.py', 'best.pth', 'images', '--out', 'predicted')
    assert end.value.code == 0
    assert len(Path('predicted/predictions.csv').read_text().splitlines()) == 2


def test_predict_labels_by_the_objects_of_a_validation(run):
    run('test.py', 'mine.py', 'best.pth', '--objects', '--work-dir', 'counted')
    kept = CalibrationStatistics.load('counted/calibration.npz')
    assert kept.image_class_bins is not None and (kept.objects is not None) == of_scenes()
    with pytest.raises(SystemExit) as end:
        run('predict.py', 'files.py', 'best.pth', 'images', '--out', 'out', '--labels')
    assert end.value.code == (0 if of_scenes() else 2)
    assert Path('out/labels/a.png').is_file() == of_scenes()


def test_sweep(run, monkeypatch):
    monkeypatch.setattr('mmcalib.tasks.sweep.jobs.subprocess.Popen', ForkedCommand)
    said = run('sweep.py', 'mine.py', '--param', 'margin=8')
    assert 'chosen' in said
    folder = Path(said.splitlines()[-1].removeprefix('Files: ').partition(',')[0]).parent
    assert {'.json', '.md', '.png', '.pdf'} <= {path.suffix for path in folder.glob('sweep.*')}


@needs_extra
def test_test_robustness_and_its_figures(run):
    run('test_robustness.py', 'mine.py', 'best.pth', '--limit', '1', '--work-dir', 'shifted')
    (path,) = Path('shifted').glob('*/clean/results.json')
    (model,) = read_runs(path)
    assert len(model.tests) == (76 if of_scenes() else 26)
    for figure in ('boxes', 'lines'):
        out = f'{figure}.png'
        run('visualize.py', 'robustness', 'shifted', '--figure', figure, '--out', out, *COARSE)
        assert Path(out).stat().st_size > 3000


def test_report(run):
    assert 'MbLS m=8 α=0.1' in run('report.py', 'work_dirs')
    for kind in ('txt', 'md', 'csv', 'json', 'html'):
        run('report.py', 'work_dirs', '--out', f'table.{kind}')
        assert 'MbLS m=8' in Path(f'table.{kind}').read_text(encoding='utf-8')


def test_images_in_the_order_of_their_scores(run):
    Path('images.py').write_text(
        "_base_ = 'mine.py'\n"
        'default_hooks = dict(reliability_diagram=None, confidence_map=None)\n'
        "test_evaluator = [dict(type='ImageScoreMetric', out_file='images.csv')]\n"
    )
    run('test.py', 'images.py', 'best.pth', '--work-dir', 'images')
    run('visualize.py', 'images', 'images.csv', '--out', 'order.png', *COARSE)
    assert Path('order.png').stat().st_size > 3000


@pytest.mark.parametrize(
    ('tool', 'arguments', 'out', 'room'),
    [
        ('calibrate.py', ['mine.py', 'best.pth', '--tta', '--overwrite', '--out'], 'a.json', 5e4),
        ('test.py', ['mine.py', 'best.pth', '--work-dir'], 'full/results.json', 5e4),
        ('export.py', ['mine.py', 'best.pth', '--overwrite', '--out'], 'a.onnx', 5e4),
        ('report.py', ['work_dirs', '--html'], 'a.html', 500),
        ('visualize.py', ['reliability', 'work_dirs/mine', *COARSE, '--out'], 'a.png', 500),
    ],
)
def test_a_full_disk_is_one_line_and_leaves_what_was_there(
    tool, arguments, out, room, trained, run
):
    """A limit on the size of a file fails where a full disk does."""
    old = trained / out
    old.parent.mkdir(exist_ok=True)
    old.write_text('mine')
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(room), limits[1]))
    try:
        with pytest.raises(SystemExit) as end:
            run(tool, *arguments, Path(out).parts[0])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    line = run.errors().splitlines()[-1]
    assert end.value.code == 2 and line.startswith(f'{tool}: error: ')
    assert out in line and 'File too large' in line
    assert old.read_text() == 'mine'


@pytest.mark.parametrize('kind', ['reliability', 'risk', 'boundary', 'maps', 'worst'])
def test_visualize(kind, run):
    if kind in ('boundary', 'maps', 'worst') and not of_scenes():
        with pytest.raises(SystemExit) as end:
            run('visualize.py', kind, 'work_dirs/mine', '--out', f'{kind}.png', *COARSE)
        assert end.value.code == 2
    else:
        run('visualize.py', kind, 'work_dirs/mine', '--out', f'{kind}.png', *COARSE)
        assert Path(f'{kind}.png').stat().st_size > 3000
