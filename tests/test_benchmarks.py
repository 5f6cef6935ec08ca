"""The benchmarks run, and their baselines compute what our losses compute."""

import json
import runpy
import sys
from pathlib import Path

import pytest
import torch
from mmengine.registry import MODELS, init_default_scope
from samples import classified, image_confidences, image_narrow_bins, segmented

from mmcalib.metrics import CalibrationMetric, CalibrationStatistics
from mmcalib.posthoc import TemperatureScaler
from mmcalib.posthoc.draw import DrawnPredictions
from mmcalib.runs.config import load_config

BENCHMARKS = Path(__file__).resolve().parents[1] / 'tools' / 'benchmarks'
LOSSES = runpy.run_path(str(BENCHMARKS / 'losses.py'))['LOSSES']


@pytest.mark.parametrize('name', [name for name, (_, published) in LOSSES.items() if published])
@pytest.mark.parametrize('shape', [(7, 5), (2, 5, 3, 4)])
def test_the_published_arithmetic_equals_ours(name, shape):
    loss, published = LOSSES[name]
    generator = torch.Generator().manual_seed(0)
    logits = 9 * torch.randn(shape, generator=generator)
    target = torch.randint(5, (shape[0], *shape[2:]), generator=generator)
    torch.testing.assert_close(loss()(logits, target), published(logits, target))


def test_losses_prints_a_table(capsys, monkeypatch):
    options = '--rounds 1 --sizes 2x3x8x8 9x3 --cpu-seconds --losses FLSD Brier SVLS'
    monkeypatch.setattr(sys, 'argv', ['losses.py', *options.split()])
    runpy.run_path(str(BENCHMARKS / 'losses.py'), run_name='__main__')
    rows = [line.split(' | ') for line in capsys.readouterr().out.splitlines() if '×' in line]
    assert [row[1] for row in rows] == ['FLSD', 'Brier', 'SVLS', 'FLSD', 'Brier']
    assert all(float(row[5]) > 0 for row in rows)


def test_upsampling_prints_a_table(capsys, monkeypatch):
    pytest.importorskip('mmseg.models')
    options = ['--rounds', '1', '--sizes', '1x3x32x32', '--threads', '1', '--losses', 'FL']
    monkeypatch.setattr(sys, 'argv', ['upsampling.py', *options])
    module = runpy.run_path(str(BENCHMARKS / 'upsampling.py'))
    monkeypatch.setitem(module['main'].__globals__, 'alone', lambda threads, f, *args: f(*args))
    module['main']()
    rows = [line.split(' | ') for line in capsys.readouterr().out.splitlines() if ' | ' in line]
    assert [row[0] for row in rows] == ['| loss', '| cross-entropy (mmseg)', '| FL']
    assert all(float(cell) > 0 for cell in rows[2][1:4])
    assert rows[1][1] == '1.00'


def test_metrics_prints_ratios_and_memory(capsys, monkeypatch):
    options = '--rounds 1 --sizes 3x20x30 --images --classifier 20 30'
    monkeypatch.setattr(sys, 'argv', ['metrics.py', *options.split()])
    module = runpy.run_path(str(BENCHMARKS / 'metrics.py'))
    monkeypatch.setitem(module['main'].__globals__, 'alone', lambda f, *args: f(*args))
    module['main']()
    lines = capsys.readouterr().out.splitlines()
    rows = [line.split(' | ') for line in lines if 'mmcalib' in line]
    assert len(rows) == 5
    assert all(float(row[1]) > 0 for row in rows)
    assert any(line.startswith('| 30 samples of 20 classes |') for line in lines)
    assert len(module['growth_of_images'](['ECE'], {}, '3x20x30', (1, 9))) == 2


def test_intervals_prints_how_often_they_hold(capsys, monkeypatch):
    options = '--sets 2 --draws 20 --predictions 50 --images 3 --errors 3'
    monkeypatch.setattr(sys, 'argv', ['intervals.py', *options.split()])
    threads = torch.get_num_threads()
    runpy.run_path(str(BENCHMARKS / 'intervals.py'), run_name='__main__')
    torch.set_num_threads(threads)
    rows = [line for line in capsys.readouterr().out.splitlines() if '%' in line]
    assert len(rows) == 3
    assert all('| 3 | 100 % (' in row or '| 3 | 50 % (' in row for row in rows)


def test_scalers_are_no_worse_than_published_ones(capsys, monkeypatch):
    options = '--data 2 --counts 300 --methods temperature platt isotonic'
    monkeypatch.setattr(sys, 'argv', ['scalers.py', *options.split()])
    runpy.run_path(str(BENCHMARKS / 'scalers.py'), run_name='__main__')
    lines = [line.split(' | ') for line in capsys.readouterr().out.splitlines()]
    ratios = {(row[2], row[3]): float(row[9]) for row in lines if len(row) == 11 and '/' in row[10]}
    assert {('platt', 'scikit-learn'), ('isotonic', 'scikit-learn')} <= ratios.keys()
    assert max(ratios.values()) < 1.001


def test_risk_bound_prints_how_often_it_holds(capsys, monkeypatch, tmp_path):
    cells = image_narrow_bins(*image_confidences(120, pixels=20, spread=0.3))
    table = torch.zeros(3, 1)
    statistics = CalibrationStatistics({}, 'pooled', 15, table, image_narrow_bins=cells)
    statistics.save(tmp_path / 'run' / 'calibration.npz')
    options = [str(tmp_path / 'run'), '--splits', '3', '--risks', '0.4']
    monkeypatch.setattr(sys, 'argv', ['risk_bound.py', *options])
    threads = torch.get_num_threads()
    runpy.run_path(str(BENCHMARKS / 'risk_bound.py'), run_name='__main__')
    torch.set_num_threads(threads)
    rows = [line.split(' | ') for line in capsys.readouterr().out.splitlines() if '| run |' in line]
    assert [row[3] for row in rows[:3]] == ['ours', 'Hoeffding-Bentkus', 'no proof']
    assert rows[0][4] == '100.0%' and rows[0][1] == '60'
    assert float(rows[3][2]) > 0 and rows[3][4].endswith('%')


def test_ensembles_print_a_table(capsys, monkeypatch, tmp_path):
    config = str(BENCHMARKS.parents[1] / 'configs/ce/digit_scenes.py')
    cfg = load_config(config)
    init_default_scope(cfg.default_scope)
    for number in range(2):
        torch.save(MODELS.build(cfg.model).state_dict(), tmp_path / f'{number}.pth')
    paths = [str(tmp_path / f'{number}.pth') for number in range(2)]
    options = ['--images', '1', '--cfg-options', 'model.decode_head.dropout_ratio=0.5']
    monkeypatch.setattr(sys, 'argv', ['ensembles.py', config, *paths, *options])
    runpy.run_path(str(BENCHMARKS / 'ensembles.py'), run_name='__main__')
    rows = [line.split(' | ') for line in capsys.readouterr().out.splitlines()[-4:]]
    assert [row[0] for row in rows] == [
        '| one model', '| image and mirror image', '| MC dropout, 10 passes', '| ensemble of 2'
    ]  # fmt: skip
    assert all(float(row[1]) > 0 for row in rows)
    assert float(rows[2][2].rstrip(' |')) > 2


def test_methods_are_cross_fitted_and_written(capsys, monkeypatch, tmp_path):
    config = str(BENCHMARKS.parents[1] / 'configs/ce/digit_scenes.py')
    cfg = load_config(config)
    init_default_scope(cfg.default_scope)
    torch.manual_seed(0)
    torch.save(MODELS.build(cfg.model).state_dict(), tmp_path / 'random.pth')
    monkeypatch.chdir(tmp_path)
    options = '--methods temperature platt class-temperatures --images 5 20 --out of.json'
    few = 'test_dataloader.dataset.indices=20'
    argv = ['methods.py', config, 'random.pth', *options.split(), '--cfg-options', few]
    monkeypatch.setattr(sys, 'argv', argv)
    module = runpy.run_path(str(BENCHMARKS / 'methods.py'))
    monkeypatch.setitem(module['main'].__globals__, 'alone', lambda f, *args: f(*args))
    threads = torch.get_num_threads()
    module['main']()
    torch.set_num_threads(threads)
    lines = capsys.readouterr().out.splitlines()
    none, temperature, platt, classes = (line.split(' | ') for line in lines[-4:])
    assert float(temperature[1]) < float(none[1]) and float(classes[1]) < float(none[1])
    assert temperature[5:7] == none[5:7] == classes[5:7]
    assert 'takes logits of two classes' in platt[1]
    _, first = json.loads((tmp_path / 'of.json').read_text())
    assert first['name'] == 'digit_scenes, 20 images' and len(first['rows']) == 3
    written = first['rows'][1]['runs'][0]['metrics']
    assert f'{written["calibration/NLL"]:.4f}' == temperature[1]


def test_sequences_compares_what_auto_takes(capsys, monkeypatch, tmp_path):
    config = str(BENCHMARKS.parents[1] / 'configs/ce/digit_scenes.py')
    cfg = load_config(config)
    init_default_scope(cfg.default_scope)
    torch.manual_seed(0)
    torch.save(MODELS.build(cfg.model).state_dict(), tmp_path / 'random.pth')
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    command = f'sequences.py {config} random.pth --samples 640 --draws 1'
    threads = torch.get_num_threads()
    for options in ('--videos 2 --out of.json', '--videos 0 2 --orders 2'):
        monkeypatch.setattr(sys, 'argv', [*command.split(), *options.split()])
        runpy.run_path(str(BENCHMARKS / 'sequences.py'), run_name='__main__')
    torch.set_num_threads(threads)
    (table,) = json.loads((tmp_path / 'of.json').read_text())
    found = {row['label']: row['runs'][0]['metrics'] for row in table['rows']}
    tested = {
        label.split(', ', 2)[2]: row for label, row in found.items() if label.endswith(', test')
    }
    assert tested['auto, test'] in (tested['none, test'], tested['temperature, test'])
    assert tested['auto --groups, test'] in (tested['none, test'], tested['temperature, test'])
    assert 'alike in' in capsys.readouterr().out


def test_methods_scores_each_image_by_the_scaling_of_its_fold():
    module = runpy.run_path(str(BENCHMARKS / 'methods.py'))
    fold_of = torch.tensor([3, 1, 0, 4, 2, 0, 1, 2, 3, 4])
    kept = module['some_images'](fold_of, 7, 0)
    assert sorted(fold_of[kept].bincount().tolist()) == [1, 1, 1, 2, 2]
    assert module['some_images'](fold_of, 99, 0).all()
    images = torch.arange(10).repeat_interleave(2)
    logits = torch.randn(20, 3, generator=torch.Generator().manual_seed(0))
    rows = DrawnPredictions(logits, torch.zeros(20, dtype=torch.int64), images, 20, 10)
    folds = [TemperatureScaler.from_parameters({'temperature': 1.0 + f}) for f in range(5)]
    probs = module['Data'](rows, fold_of, False).predict(folds)
    for row, image in enumerate(images.tolist()):
        expected = (logits[row].double() / (1.0 + fold_of[image])).softmax(dim=0)
        torch.testing.assert_close(probs[row], expected.float())


def test_guarantees_prints_what_was_kept(capsys, monkeypatch, tmp_path):
    metric = CalibrationMetric('ECE', per_class=True, per_object=True)
    of_images = CalibrationMetric('ECE', per_class=True)
    runs = [str(tmp_path / name) for name in ('segmented', 'classified')]
    data = segmented(30, size=(8, 9)), classified(60)
    for run, one, samples in zip(runs, (metric, of_images), data, strict=True):
        one.process(None, samples)
        one.evaluate(len(samples))
        one.statistics.save(f'{run}/calibration.npz')
    options = ['--splits', '3', '--precisions', '0.3']
    monkeypatch.setattr(sys, 'argv', ['guarantees.py', *runs, *options])
    runpy.run_path(str(BENCHMARKS / 'guarantees.py'), run_name='__main__')
    rows = [line.split(' | ') for line in capsys.readouterr().out.splitlines()]
    found = {row[0].strip('| '): [] for row in rows if len(row) > 3}
    for row in rows:
        if len(row) > 3:
            found[row[0].strip('| ')].append(row)
    assert [row[3] for row in found['segmented'][1:]] == [
        'mean confidence', 'expected IoU', 'P(IoU > 0.5)', 'calibrated IoU'
    ]  # fmt: skip
    assert len(found['classified']) == 1
    assert all(0 <= float(row[4]) <= 100 for row in found['segmented'][1:])
