"""Diagrams, confidence maps and statistics of tests of untrained networks."""

import inspect
import json
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from commands import ROOT, run_in_process
from drawings import draw_runs, words
from forked import run_forked
from mmengine.evaluator import Evaluator
from mmengine.registry import EVALUATOR
from tested import run_config, test_weights

from mmcalib.commands.train import train_and_test
from mmcalib.metrics import CalibrationStatistics
from mmcalib.openmmlab.hooks import ConfidenceMapHook, ReliabilityDiagramHook
from mmcalib.openmmlab.hooks.drawing_hooks import read_pixels
from mmcalib.runs.run_config import use_validation_split as validate_in_test
from mmcalib.runs.runner import build_runner
from mmcalib.visualization import ConfidenceMaps
from mmcalib.visualization.pixels import as_rgb

MAPS = 'default_hooks.confidence_map'
DIAGRAM = 'default_hooks.reliability_diagram'
FEW = {'test_dataloader.dataset.indices': 11, 'test_dataloader.batch_size': 4}
SCENES = {
    'test_evaluator.1.per_class': True,
    'test_evaluator.1.per_distance': True,
    f'{MAPS}.interval': 5,
}
OFF = {f'{MAPS}.interval': 0, f'{MAPS}.worst': 0, f'{DIAGRAM}.splits': []}
DIAGRAMS = 'reliability_diagram_test'


def config(name, folder, **options):
    return run_config(f'mbls/{name}', folder, **FEW | options)


def drawn(folder):
    return sorted(path.stem for path in Path(folder).rglob('vis_image/*.png'))


@pytest.fixture(scope='module')
def scenes(tmp_path_factory):
    """The folder of a test of a segmentor, its metrics, and the Runner.

    Here the hooks draw, which `quick_toolboxes` leaves out elsewhere.
    """
    folder = tmp_path_factory.mktemp('scenes')
    runner = build_runner(config('digit_scenes', folder, **SCENES))
    with pytest.MonkeyPatch.context() as monkeypatch:
        for hook in (ConfidenceMapHook, ReliabilityDiagramHook):
            monkeypatch.setattr(hook, '_draw', inspect.unwrap(hook._draw))
        metrics = test_weights(runner)
    return folder, metrics, runner


def test_confidence_map_hook_keeps_the_chosen_and_the_worst(scenes):
    folder, _, runner = scenes
    assert drawn(folder) == [
        'confidence_map_0_0', 'confidence_map_10_0', 'confidence_map_5_0',
        'confidence_map_worst_0', f'{DIAGRAMS}_0',
    ]  # fmt: skip
    for path in folder.rglob('vis_image/*.png'):
        assert path.stat().st_size > 3000  # An empty figure has 300.
    maps = ConfidenceMaps.load(folder / 'confidence_maps.npz')
    assert [view.index for view in maps.views] == [0, 5, 10]
    bins = CalibrationStatistics.load(folder / 'calibration.npz').image_bins
    errors = 100 * (bins[:, 1] - bins[:, 2]).abs().sum(dim=1) / bins[:, 0].sum(dim=1)
    worst = sorted(range(11), key=lambda index: -errors[index])[:3]
    assert [view.index for view in maps.worst] == worst
    assert [view.error for view in maps.worst] == pytest.approx(errors[worst].tolist())
    # A view has the evaluated predictions.
    view = maps.views[1]
    count, correct, conf = bins[5].sum(dim=1).tolist()
    assert view.valid.sum() == count
    assert (view.predicted == view.label)[view.valid].sum() == correct
    assert view.conf[view.valid].sum(dtype=float) == pytest.approx(conf, rel=1e-4)
    inputs = runner.test_dataloader.dataset[5]['inputs'].numpy().transpose(1, 2, 0)
    np.testing.assert_array_equal(view.image, as_rgb(inputs))


def test_strata_are_in_the_results_and_the_log(scenes):
    folder, *_ = scenes
    strata = json.loads((folder / 'results.json').read_text())['strata']
    per_class = strata['per_class']['calibration']
    per_distance = strata['per_distance']['calibration']
    statistics = CalibrationStatistics.load(folder / 'calibration.npz')
    assert per_class['classes'] == statistics.classes == ['background', *map(str, range(10))]
    count, correct, _ = statistics.class_bins.sum(dim=2)
    assert per_class['count'] == count.tolist()
    assert sum(per_distance['count']) == statistics.num_predictions
    accuracy = [np.nan if value is None else value for value in per_class['accuracy']]
    assert accuracy == pytest.approx((100 * correct / count).tolist(), nan_ok=True)
    assert per_distance['pixels'][:3] == ['1', '2', '3–4']
    assert None in per_class['ECE']
    (log,) = folder.rglob('*.log')
    first_words = {line.split('  ')[0].strip() for line in log.read_text().splitlines()}
    assert {'background', 'over 64'} <= first_words


def test_drawing_hooks_off_same_metrics(scenes, tmp_path):
    _, metrics, drawing = scenes
    runner = build_runner(config('digit_scenes', tmp_path, **SCENES | OFF))
    runner.model.load_state_dict(drawing.model.state_dict())
    assert test_weights(runner) == metrics
    assert drawn(tmp_path) == [] and not (tmp_path / 'confidence_maps.npz').exists()


def test_drawing_hooks_two_ranks_equal_one(scenes, tmp_path, free_port):
    folder, _, runner = scenes
    torch.save({'state_dict': runner.model.state_dict(), 'meta': {}}, tmp_path / 'random.pth')
    run_forked(
        'test.py', ROOT / 'configs/mbls/digit_scenes.py', 'random.pth', '--work-dir', 'two',
        '--cfg-options', *(f'{key}={value}' for key, value in (FEW | SCENES).items()),
        cwd=tmp_path, ranks=2, port=free_port,
    )  # fmt: skip
    assert drawn(tmp_path) == drawn(folder)
    expected = ConfidenceMaps.load(folder / 'confidence_maps.npz')
    actual = ConfidenceMaps.load(tmp_path / 'two/confidence_maps.npz')
    actual_views = actual.views + actual.worst
    for view, expected_view in zip(actual_views, expected.views + expected.worst, strict=True):
        assert view.index == expected_view.index
        np.testing.assert_array_equal(view.predicted, expected_view.predicted)


def test_confidence_map_hook_indices_of_validation_are_named(tmp_path):
    options = {
        f'{MAPS}.indices': [5, 3, 99, 1],
        f'{MAPS}.worst': 0,
        f'{MAPS}.max_images': 2,
        f'{MAPS}.max_size': 16,
    }
    cfg = config('digit_scenes', tmp_path, **options)
    cfg.val_dataloader.dataset.indices = 6
    validate_in_test(cfg)
    test_weights(build_runner(cfg))
    assert drawn(tmp_path) == [
        'confidence_map_1_0', 'confidence_map_3_0', 'reliability_diagram_val_0',
    ]  # fmt: skip
    files = sorted(path.name for path in tmp_path.glob('*.npz'))
    assert files == ['calibration_val.npz', 'confidence_maps_val.npz']
    maps = ConfidenceMaps.load(tmp_path / files[1])
    assert [view.name for view in maps.views] == ['validation image 1', 'validation image 3']
    assert maps.views[0].conf.shape == (14, 14)  # Every third of 40 pixels is kept.
    assert maps.worst == []


def test_reliability_diagram_hook_validation_has_one_per_epoch(tmp_path):
    accumulator = pytest.importorskip('tensorboard.backend.event_processing.event_accumulator')
    options = {f'{DIAGRAM}.splits': ['val'], 'train_dataloader.dataset.indices': 64}
    options |= {'train_cfg.max_epochs': 2, 'train_cfg.val_interval': 1}
    cfg = config('digits', tmp_path, **options)
    cfg.visualizer.vis_backends.append(dict(type='TensorboardVisBackend'))
    train_and_test(cfg)
    assert drawn(tmp_path) == [f'reliability_diagram_val_{epoch}' for epoch in (1, 2)]
    (events,) = tmp_path.rglob('events.out.tfevents*')
    log = accumulator.EventAccumulator(str(events), size_guidance={'images': 0}).Reload()
    assert [image.step for image in log.Images('reliability_diagram_val')] == [1, 2]


def test_kept_statistics_equal_options_share_a_file(tmp_path):
    cfg = config('digits', tmp_path)
    cfg.test_evaluator = [
        dict(type='ECE', num_bins=25), dict(type='AECE', num_bins=25, per_class=True),
        dict(type='CalibrationMetric', metrics=['NLL']), dict(type='ECE', prefix='a/b'),
        dict(type='CalibrationMetric', metrics=['MCE'], ignore_index=254),
    ]  # fmt: skip
    metrics = test_weights(build_runner(cfg))
    statistics = {path.stem: CalibrationStatistics.load(path) for path in tmp_path.glob('*.npz')}
    actual = {name: (kept.num_bins, sorted(kept.metrics)) for name, kept in statistics.items()}
    assert actual == {
        'calibration': (25, ['AECE', 'ECE']),
        'calibration_15_bins': (15, ['NLL']),
        'a_b': (15, ['ECE']),
        'calibration_2': (15, ['MCE']),
    }
    for name, value in statistics['calibration'].metrics.items():
        assert value == metrics[f'calibration/{name}']
    content = json.loads((tmp_path / 'results.json').read_text())
    evaluation = content['evaluation']
    assert evaluation['num_bins'] == 25
    assert sorted(evaluation['other_metrics']) == ['MCE', 'NLL']
    assert evaluation['other_metrics']['NLL']['num_bins'] == 15
    assert list(content['strata']) == ['per_class']
    assert sum(content['strata']['per_class']['calibration']['count']) == 11
    names = ('_0', '_a_b_0', '_calibration_15_bins_0', '_calibration_2_0')
    assert drawn(tmp_path) == [f'{DIAGRAMS}{name}' for name in names]


def test_kept_statistics_first_metric_has_the_file_of_the_tools(tmp_path):
    cfg = config('digit_scenes', tmp_path)
    cfg.test_dataloader.dataset.indices = 2
    cfg.test_evaluator = [dict(type='ECE', protocol='paper'), dict(type='AECE')]
    test_weights(build_runner(cfg))
    assert {path.stem for path in tmp_path.glob('calib*')} == {'calibration', 'calibration_pooled'}
    assert 'protocol paper' in words(draw_runs('reliability', [tmp_path]))
    run_in_process('report.py', tmp_path, '--html', tmp_path / 'page.html')
    assert 'Reliability, MbLS' in (tmp_path / 'page.html').read_text()


class PartsEvaluator(Evaluator):
    """An evaluator that measures two parts of the data, as mmdet's of a ConcatDataset does."""

    def evaluate(self, size):
        metrics = {}
        for metric in self.metrics:
            for name, part in (('first', slice(0, 5)), ('second', slice(5, size))):
                for key, value in metric.compute_metrics(metric.results[part]).items():
                    metrics[f'{name}/{metric.prefix}/{key}'] = value
            metric.results.clear()
        return metrics


def test_kept_statistics_of_a_part_are_not_shown_as_those_of_the_test(tmp_path):
    EVALUATOR.register_module('PartsEvaluator', module=PartsEvaluator, force=True)
    cfg = config('digits', tmp_path)
    cfg.test_evaluator = dict(type='PartsEvaluator', metrics=[dict(type='ECE')])
    metrics = test_weights(build_runner(cfg))
    assert list(metrics) == ['first/calibration/ECE', 'second/calibration/ECE']
    assert list(tmp_path.glob('*.npz')) == drawn(tmp_path) == []
    (log,) = tmp_path.rglob('*.log')
    assert 'The test_evaluator measures parts of the 11 samples' in log.read_text()
    assert 'mean confidence' not in log.read_text()


def test_drawing_hooks_without_calibration_metric_draw_nothing(tmp_path):
    cfg = config('digit_scenes', tmp_path)
    cfg.test_evaluator = [dict(type='IoUMetric', iou_metrics=['mIoU'])]
    build_runner(cfg).test()
    assert drawn(tmp_path) == [] and not (tmp_path / 'confidence_maps.npz').exists()
    (log,) = tmp_path.rglob('*.log')
    for hook in ('ReliabilityDiagramHook', 'ConfidenceMapHook'):
        assert f'{hook} draws nothing: add a CalibrationMetric' in log.read_text()
    hook = {'custom_hooks': [dict(type='ConfidenceMapHook')]}
    cfg = config('digits', tmp_path / 'classifier', **hook)
    with pytest.raises(ValueError, match='maps of segmentors, and this is a classifier'):
        build_runner(cfg).test()


def test_read_pixels_file_of_other_size_is_not_read(tmp_path):
    path = str(tmp_path / 'a b.png')
    inputs = torch.zeros(3, 6, 8, dtype=torch.uint8)
    cv2.imwrite(path, np.full((6, 8, 3), (200, 0, 0), np.uint8))
    assert (read_pixels(path, inputs, (6, 8)) == (0, 0, 200)).all()
    assert not read_pixels(path, inputs[:, :5], (5, 8)).any()
    assert not read_pixels(f'{path}.gone', inputs, (6, 8)).any()
