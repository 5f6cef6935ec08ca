import json
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from commands import ROOT, call

from mmcalib.hooks import ConfidenceMapHook, ReliabilityDiagramHook
from mmcalib.metrics import CalibrationStatistics
from mmcalib.metrics.data_samples import read_map, read_prediction
from mmcalib.runs.config import load_config, set_loader_defaults
from mmcalib.runs.runner import build_runner, run_test, train_and_test
from mmcalib.visualization import ConfidenceMaps

CHECKPOINT = 'random.pth'
FOLDERS = ('one', 'two')


def config(name, folder, **options):
    """An untrained network of a demo, to be tested on some images."""
    cfg = load_config(str(ROOT / f'configs/mbls/{name}.py'))
    cfg.test_dataloader.dataset.indices = 11
    cfg.test_dataloader.batch_size = 4
    cfg.merge_from_dict(options)
    cfg.launcher, cfg.work_dir = 'none', str(folder)
    cfg.experiment_name = cfg.visualizer.name = str(folder).replace('/', '_')
    set_loader_defaults(cfg)
    return cfg


def test(name, folder, **options):
    runner = build_runner(config(name, folder, **options))
    return run_test(runner, CHECKPOINT), runner


test.__test__ = False


def drawn(folder):
    return sorted(path.name for path in Path(folder).rglob('vis_image/*.png'))


def test_a_test_leaves_a_diagram(tmp_path):
    test('digits', tmp_path)
    assert drawn(tmp_path) == ['reliability_diagram_test_0.png']
    (path,) = tmp_path.rglob('*.png')
    assert cv2.imread(str(path)).std() > 10
    assert CalibrationStatistics.load(tmp_path / 'calibration.npz').num_predictions == 11


def test_a_test_of_a_segmentor_leaves_maps_of_the_chosen_and_the_worst(tmp_path):
    metrics, _ = test('digit_scenes', tmp_path, **{'default_hooks.confidence_map.interval': 5})
    assert drawn(tmp_path) == [
        'confidence_map_0_0.png', 'confidence_map_10_0.png', 'confidence_map_5_0.png',
        'confidence_map_worst_0.png', 'reliability_diagram_test_0.png',
    ]  # fmt: skip
    maps = ConfidenceMaps.load(tmp_path / 'confidence_maps.npz')
    assert [view.index for view in maps.views] == [0, 5, 10]
    bins = CalibrationStatistics.load(tmp_path / 'calibration.npz').image_bins
    errors = 100 * (bins[:, 1] - bins[:, 2]).abs().sum(dim=1) / bins[:, 0].sum(dim=1)
    worst = sorted(range(11), key=lambda index: -errors[index])[:3]
    assert [view.index for view in maps.worst] == worst
    assert [view.error for view in maps.worst] == pytest.approx(errors[worst].tolist())
    # A view holds what was evaluated.
    view = maps.views[1]
    count, correct, _ = bins[5].sum(dim=1).tolist()
    assert view.valid.sum() == count
    assert (view.predicted == view.label)[view.valid].sum() == correct
    assert view.image.shape == (40, 40, 3) and view.image.min() == 0 and view.image.max() == 255
    assert metrics['calibration/ECE'] >= 0


def test_chosen_images_and_no_gallery(tmp_path):
    hook = {'indices': [3, 7, 99], 'worst': 0, 'max_images': 5, 'max_size': 16}
    options = {f'default_hooks.confidence_map.{key}': value for key, value in hook.items()}
    test('digit_scenes', tmp_path, **options)
    maps = ConfidenceMaps.load(tmp_path / 'confidence_maps.npz')
    assert [view.index for view in maps.views] == [3, 7] and maps.worst == []
    assert maps.views[0].conf.shape == (14, 14)  # every third of 40


def test_two_processes_draw_each_figure_once(tmp_path, free_port):
    """And the same figures as one: the ranks have every other image."""
    options = {'test_dataloader.dataset.indices': 11, 'default_hooks.confidence_map.interval': 5}
    runner = build_runner(config('digit_scenes', tmp_path / 'one', **options))
    torch.save({'state_dict': runner.model.state_dict(), 'meta': {}}, tmp_path / CHECKPOINT)
    run_test(runner, CHECKPOINT)
    call(
        'dist_test.sh', ROOT / 'configs/mbls/digit_scenes.py', CHECKPOINT, 2,
        '--work-dir', tmp_path / 'two',
        '--cfg-options', *(f'{key}={value}' for key, value in options.items()),
        cwd=tmp_path, PORT=free_port,
    )  # fmt: skip
    assert drawn(tmp_path / 'one') == drawn(tmp_path / 'two')
    one, two = (ConfidenceMaps.load(tmp_path / name / 'confidence_maps.npz') for name in FOLDERS)
    for kind in ('views', 'worst'):
        for mine, theirs in zip(getattr(one, kind), getattr(two, kind), strict=True):
            assert mine.index == theirs.index
            np.testing.assert_array_equal(mine.predicted, theirs.predicted)


def test_validation_has_diagrams_by_epoch_and_tensorboard_gets_them(tmp_path):
    accumulator = pytest.importorskip('tensorboard.backend.event_processing.event_accumulator')
    options = {
        'default_hooks.reliability_diagram.splits': ['val'],
        'train_cfg.max_epochs': 2,
        'train_cfg.val_interval': 1,
        'train_dataloader.dataset.indices': 64,
    }
    cfg = config('digits', tmp_path, **options)
    cfg.visualizer.vis_backends.append(dict(type='TensorboardVisBackend'))
    train_and_test(cfg)
    assert drawn(tmp_path) == [f'reliability_diagram_val_{epoch}.png' for epoch in (1, 2)]
    (events,) = tmp_path.rglob('events.out.tfevents*')
    log = accumulator.EventAccumulator(str(events), size_guidance={'images': 0}).Reload()
    assert [image.step for image in log.Images('reliability_diagram_val')] == [1, 2]


def test_nothing_measured_is_not_drawn(tmp_path):
    _, runner = test('digits', tmp_path)
    runner.test_evaluator.metrics[1].statistics.cells.zero_()
    ReliabilityDiagramHook().after_test_epoch(runner)
    (log,) = tmp_path.rglob('*.log')
    assert 'nothing was evaluated, so there is no diagram' in log.read_text()


def test_an_evaluator_without_a_metric_is_refused(tmp_path):
    evaluator = [dict(type='Accuracy')]
    cfg = config('digits', tmp_path)
    cfg.test_evaluator = evaluator
    with pytest.raises(ValueError, match=r'ReliabilityDiagramHook draws .* has Accuracy'):
        build_runner(cfg).test()


def test_a_classifier_has_no_confidence_maps(tmp_path):
    cfg = config('digits', tmp_path)
    cfg.custom_hooks = [dict(type='ConfidenceMapHook')]
    with pytest.raises(ValueError, match="mmseg's samples, which have seg_logits"):
        build_runner(cfg).test()


@pytest.mark.parametrize(
    ('hook', 'options', 'message'),
    [
        (ReliabilityDiagramHook, dict(splits='train'), "got \\('train',\\)"),
        (ReliabilityDiagramHook, dict(num_bins=0), 'at least 1, got 0'),
        (ReliabilityDiagramHook, dict(zoom=(50, 20)), r'got \(50, 20\)'),
        (ConfidenceMapHook, dict(interval=-1), 'interval must be .* at least 0, got -1'),
        (ConfidenceMapHook, dict(max_size=0), 'max_size must be .* at least 1, got 0'),
    ],
)
def test_bad_options_are_refused(hook, options, message):
    with pytest.raises(ValueError, match=message):
        hook(**options)


def test_images_come_from_their_files_where_they_fit(tmp_path):
    from mmcalib.hooks.confidence_map import _image

    bgr = np.zeros((6, 8, 3), np.uint8)
    bgr[..., 0] = 200
    path = tmp_path / 'a b.png'
    cv2.imwrite(str(path), bgr)
    inputs = torch.zeros(3, 6, 8, dtype=torch.uint8)
    image = _image(str(path), inputs, (6, 8), (3, 4))
    assert image.shape == (3, 4, 3) and (image == (0, 0, 200)).all()
    assert not _image(str(path), inputs, (5, 8), (5, 8)).any()  # evaluated at another size
    assert not _image(str(tmp_path / 'gone.png'), inputs, (6, 8), (6, 8)).any()


@pytest.mark.parametrize('classes', [1, 5])
def test_a_map_is_the_prediction(classes):
    torch.manual_seed(0)
    logits = torch.randn(classes, 9, 7) if classes > 1 else torch.rand(1, 9, 7)
    predicted = logits.argmax(0) if classes > 1 else (logits[0] > 0.3).long()
    sample = {
        'seg_logits': {'data': logits},
        'pred_sem_seg': {'data': predicted[None]},
        'gt_sem_seg': {'data': torch.ones(1, 9, 7, dtype=torch.long)},
    }
    expected = read_prediction(sample, ignore_index=255, name='it')
    pixels = read_map(sample)
    torch.testing.assert_close(pixels.conf.flatten(), expected.conf)
    torch.testing.assert_close(read_map(sample, step=4).conf, pixels.conf[::4, ::4])


def test_results_do_not_depend_on_drawing(tmp_path):
    options = {
        'default_hooks.confidence_map.interval': 0,
        'default_hooks.confidence_map.worst': 0,
        'default_hooks.reliability_diagram.splits': [],
    }
    runner = build_runner(config('digit_scenes', tmp_path / 'with'))
    state = runner.model.state_dict()
    with_figures = run_test(runner, CHECKPOINT)
    runner = build_runner(config('digit_scenes', tmp_path / 'without', **options))
    runner.model.load_state_dict(state)
    assert run_test(runner, CHECKPOINT) == with_figures
    assert drawn(tmp_path / 'without') == []
    assert not (tmp_path / 'without' / 'confidence_maps.npz').exists()
    assert json.loads((tmp_path / 'without/results.json').read_text())
