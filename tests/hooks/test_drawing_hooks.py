import json
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from commands import ROOT
from forked import call_forked
from tested import test_weights

from mmcalib.hooks import ConfidenceMapHook, ReliabilityDiagramHook
from mmcalib.hooks.confidence_map_hook import image_of
from mmcalib.metrics import CalibrationStatistics
from mmcalib.runs.config import load_config, set_loader_defaults
from mmcalib.runs.config import test_on_validation as validate_in_test
from mmcalib.runs.runner import build_runner
from mmcalib.runs.train import train_and_test
from mmcalib.samples.reading import read_image, read_map
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
    return test_weights(runner), runner


test.__test__ = False


def drawn(folder):
    return sorted(path.name for path in Path(folder).rglob('vis_image/*.png'))


def test_a_test_leaves_a_diagram(tmp_path):
    test('digits', tmp_path)
    assert drawn(tmp_path) == ['reliability_diagram_test_0.png']
    (path,) = tmp_path.rglob('*.png')
    assert cv2.imread(str(path)).std() > 10
    assert CalibrationStatistics.load(tmp_path / 'calibration.npz').num_predictions == 11


def test_figures_are_written_in_other_formats_too(tmp_path):
    test('digits', tmp_path, **{'default_hooks.reliability_diagram.formats': ['pdf', 'svg']})
    written = sorted(tmp_path.rglob('figures/*'))
    assert [path.name for path in written] == [
        'reliability_diagram_test_0.pdf',
        'reliability_diagram_test_0.svg',
    ]
    assert written[0].read_bytes().startswith(b'%PDF')
    assert '<svg' in written[1].read_text()
    assert drawn(tmp_path) == ['reliability_diagram_test_0.png']


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


def test_classes_and_distances_are_in_the_results(tmp_path):
    options = {
        'test_evaluator.1.per_class': True,
        'test_evaluator.1.per_distance': True,
        'default_hooks.confidence_map.interval': 0,
        'default_hooks.confidence_map.worst': 0,
    }
    test('digit_scenes', tmp_path, **options)
    assert drawn(tmp_path) == ['reliability_diagram_test_0.png']
    content = json.loads((tmp_path / 'results.json').read_text())
    statistics = CalibrationStatistics.load(tmp_path / 'calibration.npz')
    by_class = content['strata']['per_class']['calibration']
    assert by_class['classes'] == statistics.classes == ['background', *map(str, range(10))]
    count, correct, _ = statistics.class_bins.sum(dim=2)
    assert by_class['count'] == count.tolist() and sum(count) == statistics.num_predictions
    assert None in by_class['ECE']  # an untrained network predicts few classes
    for name, expected in zip(by_class['accuracy'], 100 * correct / count, strict=True):
        assert expected.isnan() if name is None else name == pytest.approx(expected.item())
    at = content['strata']['per_distance']['calibration']
    assert at['pixels'][:3] == ['1', '2', '3–4'] and sum(at['count']) == sum(count)
    (log,) = tmp_path.rglob('*.log')
    assert '| background ' in log.read_text() and '| over 64 ' in log.read_text()


def test_classes_of_a_classifier_are_in_the_results(tmp_path):
    cfg = config('digits', tmp_path)
    # The second has the options of the first, so they share a file.
    cfg.test_evaluator = [dict(type='ECE'), dict(type='AECE', per_class=True)]
    test_weights(build_runner(cfg))
    content = json.loads((tmp_path / 'results.json').read_text())
    by_class = content['strata']['per_class']['calibration']
    assert len(by_class['classes']) == 10 and sum(by_class['count']) == 11
    assert 'per_distance' not in content
    assert CalibrationStatistics.load(tmp_path / 'calibration.npz').classes == by_class['classes']


def test_chosen_images_and_no_gallery(tmp_path):
    hook = {'indices': [3, 7, 99], 'worst': 0, 'max_images': 5, 'max_size': 16}
    options = {f'default_hooks.confidence_map.{key}': value for key, value in hook.items()}
    test('digit_scenes', tmp_path, **options)
    maps = ConfidenceMaps.load(tmp_path / 'confidence_maps.npz')
    assert [view.index for view in maps.views] == [3, 7] and maps.worst == []
    assert maps.views[0].conf.shape == (14, 14)  # every third of 40


def test_two_processes_draw_each_figure_once(tmp_path, free_port):
    """And the same figures as one: the ranks have every other image."""
    options = {
        'test_dataloader.dataset.indices': 5,
        'default_hooks.confidence_map.interval': 3,
        'default_hooks.confidence_map.worst': 2,
    }
    runner = build_runner(config('digit_scenes', tmp_path / 'one', **options))
    torch.save({'state_dict': runner.model.state_dict(), 'meta': {}}, tmp_path / CHECKPOINT)
    test_weights(runner)
    call_forked(
        'test.py', ROOT / 'configs/mbls/digit_scenes.py', CHECKPOINT,
        '--work-dir', tmp_path / 'two',
        '--cfg-options', *(f'{key}={value}' for key, value in options.items()),
        cwd=tmp_path, ranks=2, port=free_port,
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


def test_what_is_drawn_of_validation_data_says_so(tmp_path):
    cfg = config('digit_scenes', tmp_path)
    cfg.val_dataloader.dataset.indices = 6
    validate_in_test(cfg)
    set_loader_defaults(cfg)
    runner = build_runner(cfg)
    test_weights(runner, split='val')
    assert [name for name in drawn(tmp_path) if 'reliability' in name] == [
        'reliability_diagram_val_0.png'
    ]
    assert sorted(path.name for path in tmp_path.glob('*.npz')) == [
        'calibration_val.npz', 'confidence_maps_val.npz',
    ]  # fmt: skip
    assert ConfidenceMaps.load(tmp_path / 'confidence_maps_val.npz').views[0].name == (
        'validation image 0'
    )


def test_metrics_of_equal_options_share_a_file_and_a_diagram(tmp_path):
    cfg = config('digits', tmp_path)
    cfg.test_evaluator = [dict(type='ECE', num_bins=25), dict(type='AECE', num_bins=25)]
    metrics = test_weights(build_runner(cfg))
    assert drawn(tmp_path) == ['reliability_diagram_test_0.png']
    (path,) = tmp_path.glob('*.npz')
    statistics = CalibrationStatistics.load(path)
    assert (path.name, statistics.num_bins) == ('calibration.npz', 25)
    assert statistics.metrics == {
        key.removeprefix('calibration/'): value for key, value in metrics.items()
    }


def test_metrics_of_other_options_have_their_own(tmp_path):
    cfg = config('digits', tmp_path)
    cfg.test_evaluator = [
        dict(type='ECE', num_bins=25), dict(type='AECE', num_bins=15),
        dict(type='ECE', prefix='a/b'), dict(type='MCE', num_bins=15, ignore_index=254),
    ]  # fmt: skip
    cfg.test_evaluator[-1] |= dict(type='CalibrationMetric', metrics=['MCE'])
    test_weights(build_runner(cfg))
    found = {path.stem: CalibrationStatistics.load(path) for path in tmp_path.glob('*.npz')}
    said = {name: (each.num_bins, sorted(each.metrics)) for name, each in found.items()}
    assert said == {
        'calibration': (25, ['ECE']),
        'calibration_15_bins': (15, ['AECE']),
        'a_b': (15, ['ECE']),
        'calibration_2': (15, ['MCE']),
    }
    said = json.loads((tmp_path / 'results.json').read_text())['evaluation']
    assert (said['num_bins'], sorted(said['other_metrics'])) == (25, ['AECE', 'MCE'])
    assert said['other_metrics']['AECE']['num_bins'] == 15
    assert drawn(tmp_path) == [
        'reliability_diagram_test_0.png', 'reliability_diagram_test_a_b_0.png',
        'reliability_diagram_test_calibration_15_bins_0.png',
        'reliability_diagram_test_calibration_2_0.png',
    ]  # fmt: skip


def test_what_is_not_measured_is_not_drawn(tmp_path):
    cfg = config('digit_scenes', tmp_path)
    cfg.test_evaluator = [dict(type='IoUMetric', iou_metrics=['mIoU'])]
    build_runner(cfg).test()
    assert drawn(tmp_path) == [] and not (tmp_path / 'confidence_maps.npz').exists()
    (log,) = tmp_path.rglob('*.log')
    for hook in ('ReliabilityDiagramHook', 'ConfidenceMapHook'):
        assert f'{hook} draws nothing, since no CalibrationMetric has' in log.read_text()


def test_a_classifier_has_no_confidence_maps(tmp_path):
    cfg = config('digits', tmp_path)
    cfg.custom_hooks = [dict(type='ConfidenceMapHook')]
    with pytest.raises(ValueError, match='maps of segmentors, and this is a classifier'):
        build_runner(cfg).test()


@pytest.mark.parametrize(
    ('hook', 'options', 'message'),
    [
        (ReliabilityDiagramHook, dict(splits='train'), "splits must be one of .*got 'train'"),
        (ReliabilityDiagramHook, dict(formats='jpg'), "formats must be one of .*got 'jpg'"),
        (ConfidenceMapHook, dict(interval=-1), 'interval must be .* at least 0, got -1'),
        (ConfidenceMapHook, dict(max_size=0), 'max_size must be .* at least 1, got 0'),
    ],
)
def test_bad_options_are_refused(hook, options, message):
    with pytest.raises((TypeError, ValueError), match=message):
        hook(**options)


def test_images_come_from_their_files_where_they_fit(tmp_path):
    bgr = np.zeros((6, 8, 3), np.uint8)
    bgr[..., 0] = 200
    path = tmp_path / 'a b.png'
    cv2.imwrite(str(path), bgr)
    inputs = torch.zeros(3, 6, 8, dtype=torch.uint8)
    image = image_of(str(path), inputs, (6, 8))
    assert image.shape == (6, 8, 3) and (image == (0, 0, 200)).all()
    assert not image_of(str(path), inputs[:, :5], (5, 8)).any()  # evaluated at another size
    assert not image_of(str(tmp_path / 'gone.png'), inputs, (6, 8)).any()


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
    probs, own, _ = read_image(sample, ignore_index=255, name='it')
    expected = probs.gather(0, own[None])[0]
    conf = read_map(sample)[0]
    torch.testing.assert_close(conf, expected)
    torch.testing.assert_close(read_map(sample, step=4)[0], conf[::4, ::4])


def test_results_do_not_depend_on_drawing(tmp_path):
    options = {
        'default_hooks.confidence_map.interval': 0,
        'default_hooks.confidence_map.worst': 0,
        'default_hooks.reliability_diagram.splits': [],
    }
    runner = build_runner(config('digit_scenes', tmp_path / 'with'))
    state = runner.model.state_dict()
    with_figures = test_weights(runner)
    runner = build_runner(config('digit_scenes', tmp_path / 'without', **options))
    runner.model.load_state_dict(state)
    assert test_weights(runner) == with_figures
    assert drawn(tmp_path / 'without') == []
    assert not (tmp_path / 'without' / 'confidence_maps.npz').exists()
    assert json.loads((tmp_path / 'without/results.json').read_text())
