"""The benchmarks run, and the tables that they print are consistent."""

import json
import runpy

import numpy as np
import pytest
import torch
from commands import ROOT, run_in_process
from mmengine.registry import MODELS, init_default_scope
from samples import classified, segmented

from mmcalib.losses import MarginLabelSmoothingLoss
from mmcalib.openmmlab.metrics import CalibrationMetric
from mmcalib.runs.config import load_config

CONFIG = str(ROOT / 'configs/ce/digit_scenes.py')


@pytest.fixture(autouse=True)
def _same_threads():
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def run_benchmark(capsys):
    """Function that runs a benchmark and returns its tables as rows of cells."""

    def run(tool, *arguments):
        run_in_process(f'benchmarks/{tool}.py', *arguments)
        rows = []
        for line in capsys.readouterr().out.splitlines():
            cells = [cell.strip() for cell in line.strip('|').split('|')]
            is_rule = set(cells[0]) <= set(':-')
            if line.startswith('|') and not is_rule:
                rows.append(cells)
        return rows

    return run


@pytest.fixture
def checkpoints(tmp_path):
    """Paths of two checkpoints with random weights."""
    cfg = load_config(CONFIG)
    init_default_scope(cfg.default_scope)
    torch.manual_seed(0)
    paths = [str(tmp_path / f'{number}.pth') for number in range(2)]
    for path in paths:
        torch.save(MODELS.build(cfg.model).state_dict(), path)
    return paths


def test_speed_losses_prints_ratios(run_benchmark):
    names = ('MarginLabelSmoothingLoss', 'SVLSLoss', 'MDCALoss')
    options = '--rounds 1 --sizes 2x3x8x8 --cpu-seconds --losses'
    rows = run_benchmark('speed', 'losses', *options.split(), *names)
    assert [row[0] for row in rows] == ['2×3×8×8', *names]
    mbls, svls, mdca = rows[1:]
    assert all(float(cell) > 0 for cell in mbls[1:])
    assert svls[2] == mdca[2] == mdca[4] == '–'


def test_speed_published_margin_loss_equals_ours():
    published = runpy.run_path(str(ROOT / 'tools/benchmarks/speed.py'))['published']
    for shape in ((7, 5), (2, 5, 3, 4)):
        logits = 9 * torch.randn(shape)
        target = torch.randint(5, (shape[0], *shape[2:]))
        expected = MarginLabelSmoothingLoss(margin=10.0, alpha=0.1)(logits, target)
        torch.testing.assert_close(published(logits, target), expected)


def test_speed_metrics_prints_ratios_and_memory(run_benchmark):
    head, *rows = run_benchmark('speed', 'metrics', '--rounds', '1', '--sizes', '3x20x30')
    assert head[3] == 'kB an image' and len(rows) == 8
    assert all(float(row[2]) > 0 and 0 < float(row[3]) < 200 for row in rows)


def test_arrays_prints_ratios(run_benchmark):
    pytest.importorskip('torchmetrics')
    rows = run_benchmark('arrays', 'map', '--size', '3x16x16', '--rounds', '1')
    assert rows[1][0] == 'torchmetrics: ECE' and rows[1][2] == '1.00'
    assert [row[0] for row in rows[2:4]] == ['measure: ECE', 'measure: five metrics']
    assert all(float(row[2]) > 0 for row in rows[1:])
    assert len(run_benchmark('arrays', 'rows', '--size', '20x3', '--rounds', '1')) == 6
    stream = run_benchmark('arrays', 'stream', '--size', '2x20x3', '--rounds', '1')
    assert [row[0] for row in stream[2:]] == [
        'StreamingMetrics: ECE', 'StreamingMetrics: five metrics'
    ]  # fmt: skip


def test_fits_print_the_nll_of_each_scaling(run_benchmark):
    options = '--rows 200 --classes 3 --kinds mixture --epochs 20'
    rows = run_benchmark('fits', *options.split())
    assert rows[1][:2] == ['mixture', '200×3']
    assert rows[1][3].startswith('+0.0000, ')
    differences = [float(cell.split(',')[0]) for cell in rows[1][3:6]]
    assert all(abs(difference) < 0.2 for difference in differences)


def write_predictions(path, sharpness=1):
    """Write the file of a network's predictions of 400 images."""
    generator = np.random.default_rng(0)
    labels = generator.integers(3, size=400)
    logits = sharpness * (2 * np.eye(3)[labels] + generator.normal(size=(400, 3)))
    probs = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    np.savez(path, predictions=probs, ground_truth=labels)


def test_fits_to_predictions_of_a_file(run_benchmark, tmp_path):
    write_predictions(tmp_path / 'network.npz')
    rows = run_benchmark('fits', '--rows', '200', '1000', '--predictions', tmp_path / 'network.npz')
    assert [row[:2] for row in rows[1:]] == [['network', '200×3']]


def test_held_out_fits_to_more_images_are_better(run_benchmark, tmp_path):
    write_predictions(tmp_path / 'network.npz', sharpness=3)
    options = ('--numbers', '20', '150', '--draws', '4', '--predictions', tmp_path / 'network.npz')
    rows = run_benchmark('held_out', *options, '--out', tmp_path / 'out.json')
    assert [row[0] for row in rows].count('20 images') == 3  # two simulated networks, and this
    simulated = [float(row[3]) for row in rows[1:4]]
    assert simulated[0] > simulated[1] > simulated[2] > 0
    tables = json.loads((tmp_path / 'out.json').read_text())
    labels_of_file = [row['label'] for row in tables[-1]['rows']]
    assert labels_of_file == [f'network, {n}' for n in ('no scaling', '20 images', '150 images')]


def test_speed_upsampling_prints_ratios(run_benchmark):
    options = '--rounds 1 --sizes 1x3x32x32 --losses SoftmaxFocalLoss'
    _, row = run_benchmark('speed', 'upsampling', *options.split())
    assert all(float(cell) > 0 for cell in row[1:])


def test_speed_ensembles_prints_ratios(run_benchmark, checkpoints):
    options = ['--cpu-seconds', '--images', '1']
    options += ['--cfg-options', 'model.decode_head.dropout_ratio=0.5']
    rows = run_benchmark('speed', 'ensembles', CONFIG, *checkpoints, *options)[1:]
    assert [row[0] for row in rows] == [
        'one model', 'image and mirror image', 'MC dropout, 10 passes', 'ensemble of 2'
    ]  # fmt: skip
    assert float(rows[2][2]) > 2


def test_guarantees_without_work_dirs_prints_intervals(run_benchmark):
    rows = run_benchmark('guarantees', '--sets', '2', '--draws', '20')[1:]
    assert len(rows) == 27
    assert all(row[2].startswith(('100 % (', '50 % (')) for row in rows[:9])


def test_guarantees_thresholds_keep_to_their_risk(run_benchmark):
    rows = run_benchmark('guarantees', '--table', 'thresholds', '--sets', '3')[1:]
    assert len(rows) == 36
    assert all(row[4] == '100.0%' for row in rows)


def test_guarantees_comparisons_of_ece_are_wider_than_without_bias(run_benchmark):
    rows = run_benchmark('guarantees', '--table', 'comparisons', '--sets', '2', '--draws', '50')[1:]
    assert len(rows) == 20
    for row in rows:
        width, width_without_bias = (float(cell.split('(')[1][:-1]) for cell in row[-2:])
        assert row[-2].startswith('100.0 %') and width > width_without_bias


def test_guarantees_of_work_dirs_prints_thresholds(run_benchmark, tmp_path):
    data = {'segmented': segmented(30, size=(8, 9)), 'classified': classified(60)}
    for name, samples in data.items():
        metric = CalibrationMetric('ECE')
        metric.process(None, samples)
        metric.evaluate(len(samples))
        metric.statistics.save(tmp_path / name / 'calibration.npz')
    options = '--splits 3 --risks 0.9'
    rows = run_benchmark('guarantees', *(tmp_path / name for name in data), *options.split())
    classified_rows = [row for row in rows if row[0] == 'classified']
    segmented_rows = [row for row in rows if row[0] == 'segmented']
    methods = [row[3] for row in classified_rows[:3]]
    assert methods == ['ours', 'Hoeffding-Bentkus', 'no proof']
    assert classified_rows[2][4] == '100.0%' and classified_rows[0][1] == '30'
    assert [len(row) for row in segmented_rows] == [8, 8, 8, 6]


def test_methods_cross_fits_and_writes_tables(run_benchmark, checkpoints, tmp_path):
    out = tmp_path / 'methods.json'
    options = '--methods temperature class-temperatures --images 5 20'
    few_images = ['--cfg-options', 'test_dataloader.dataset.indices=20']
    rows = run_benchmark(
        'methods', CONFIG, checkpoints[0], '--out', out, *options.split(), *few_images
    )
    none, temperature, classes = rows[-3:]
    assert float(temperature[1]) < float(none[1]) and float(classes[1]) < float(none[1])
    assert temperature[5:7] == none[5:7]
    few_table, table = json.loads(out.read_text())
    assert few_table['name'] == 'digit_scenes, 5 images'
    assert table['name'] == 'digit_scenes, 20 images'
    assert len(few_table['rows']) == len(table['rows']) == 3
    written = table['rows'][1]['runs'][0]['metrics']
    assert f'{written["calibration/NLL"]:.4f}' == temperature[1]
