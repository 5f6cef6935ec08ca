"""Tests under shift: placed right, tested once, resumed, and alike on any number of processes."""

import json
import shutil
import sys

import numpy as np
import pytest
import shifted
import torch
from commands import call_here
from forked import call_forked
from shifted import needs_extra
from tested import test_checkpoint

from mmcalib.metrics import CalibrationStatistics
from mmcalib.reports.robustness_results import read_robustness
from mmcalib.runs.config import load_config, set_loader_defaults
from mmcalib.tasks.robustness import evaluate_under_shift
from mmcalib.tasks.robustness.result_files import collect
from mmcalib.tasks.robustness.shifts import plan_shifts
from mmcalib.visualization import ConfidenceMaps

pytestmark = needs_extra
SHIFTS = ['--corruptions', 'gaussian_noise', 'fog', '--severities', '0', '1', '5']
TESTS = [('clean', 0), *((name, s) for name in ('gaussian_noise', 'fog') for s in (1, 5))]


@pytest.fixture(scope='module')
def project(tmp_path_factory):
    folder = tmp_path_factory.mktemp('project')
    shifted.write_project(folder, 'classifier')
    return folder


def run(folder, work_dir, monkeypatch, *arguments, checkpoints=('plain.pth', 'warm.pth')):
    monkeypatch.chdir(folder)
    (config,) = folder.glob('tiny*.py')
    options = arguments or SHIFTS
    call_here(
        'test_robustness.py', config, *checkpoints, *options, '--work-dir', work_dir,
        monkeypatch=monkeypatch,
    )  # fmt: skip
    return read_robustness(folder / work_dir)


def numbers(content):
    return [
        (entry['label'], test['name'], test['severity'], test['metrics'])
        for entry in content['checkpoints']
        for test in entry['tests']
    ]


@pytest.fixture(scope='module')
def tested(project):
    with pytest.MonkeyPatch.context() as monkeypatch:
        return run(project, 'one', monkeypatch)


def test_every_checkpoint_is_tested_on_every_shift_once(tested, project):
    plain, warm = tested['checkpoints']
    assert (plain['label'], warm['label']) == ('CE', 'CE + temperature')
    for entry in (plain, warm):
        assert [(test['name'], test['severity']) for test in entry['tests']] == TESTS
        for test in entry['tests']:
            names = {'accuracy/top1', 'calibration/AECE', 'calibration/NLL', 'calibration/AUGRC'}
            assert names <= set(test['metrics'])
            statistics = CalibrationStatistics.load(project / 'one' / test['statistics'])
            assert statistics.num_predictions == 12 and statistics.num_bins == 10
            ece = test['metrics']['calibration/ECE']
            assert statistics.metrics['ECE'] == pytest.approx(ece)
    assert plain['evaluation']['dataset']['samples'] == 12
    assert plain['tests'][0]['metrics'] != warm['tests'][0]['metrics']


def test_a_test_under_shift_is_a_test_with_the_transform(tested, project, monkeypatch):
    monkeypatch.chdir(project)
    cfg = load_config('tiny.py')
    corrupt = dict(type='Corrupt', corruption='fog', severity=5)
    cfg.test_dataloader.dataset.pipeline.insert(1, corrupt)
    cfg.launcher, cfg.work_dir, cfg.load_from = 'none', 'by_hand', 'plain.pth'
    set_loader_defaults(cfg)
    metrics = test_checkpoint(cfg, 'plain.pth')
    found = tested['checkpoints'][0]['tests'][-1]['metrics']
    assert found['accuracy/top1'] == metrics['accuracy/top1']
    assert found['calibration/ECE'] == pytest.approx(metrics['calibration/ECE'])


def test_a_call_that_was_stopped_goes_on(tested, project, monkeypatch, capsys):
    original, count = evaluate_under_shift._test, []

    def stopped(*arguments):
        if len(count) == 2:
            raise KeyboardInterrupt
        count.append(1)
        return original(*arguments)

    monkeypatch.setattr(evaluate_under_shift, '_test', stopped)
    with pytest.raises(SystemExit, match='goes on'):
        run(project, 'stopped', monkeypatch, checkpoints=['plain.pth'])
    monkeypatch.setattr(evaluate_under_shift, '_test', original)
    assert '(2 of 5' in capsys.readouterr().out
    (folder,) = (project / 'stopped/tests').iterdir()
    # And one test as a kill while it was written by other means would leave it.
    (folder / 'clean.json').write_text('{"key": "')
    again = run(project, 'stopped', monkeypatch, *SHIFTS, '--workers', 2, checkpoints=['plain.pth'])
    assert '(4 of 4)' in capsys.readouterr().out
    assert numbers(again) == [row for row in numbers(tested) if row[0] == 'CE']


def test_new_options_data_or_weights_are_tested_anew(tested, project, monkeypatch, capsys):
    arguments = ['--corruptions', 'fog', '--severities', '1', '--cfg-options']
    state = torch.load(project / 'plain.pth', weights_only=False)
    shutil.copytree(project / 'one', project / 'anew')
    more = run(project, 'anew', monkeypatch, *arguments, 'test_evaluator.1.num_bins=5',
               checkpoints=['plain.pth'])  # fmt: skip
    assert '(2 of 2)' in capsys.readouterr().out
    assert more['checkpoints'][0]['evaluation']['num_bins'] == 5
    state['state_dict']['head.fc.bias'] += 1
    torch.save(state, project / 'plainer.pth')
    shutil.copytree(project / 'one', project / 'more')
    run(project, 'more', monkeypatch, *arguments[:4], checkpoints=['plain.pth', 'plainer.pth'])
    assert '(2 of 2)' in capsys.readouterr().out


def test_replaced_data_are_tested_anew_and_moved_ones_are_not(tmp_path, monkeypatch, capsys):
    shifted.write_project(tmp_path, 'classifier')

    def call(root):
        run(tmp_path, 'out', monkeypatch, '--corruptions', 'fog', '--severities', '5',
            '--cfg-options', f'test_dataloader.dataset.data_root={root}',
            checkpoints=['plain.pth'])  # fmt: skip
        return ' of 2' in capsys.readouterr().out

    assert call('data')
    (tmp_path / 'data').rename(tmp_path / 'moved')
    assert not call('moved')
    image = tmp_path / 'moved/class_1/0.jpg'
    image.write_bytes((tmp_path / 'moved/class_2/0.jpg').read_bytes())
    assert call('moved')
    # As an ann_file that gives another label.
    image.rename(tmp_path / 'moved/class_0/9.jpg')
    assert call('moved')


def test_a_narrower_call_keeps_what_earlier_ones_found(tested, project, monkeypatch):
    shutil.copytree(project / 'one', project / 'narrow')
    narrow = ['--corruptions', 'fog', '--severities', '3', '--seed']
    more = run(project, 'narrow', monkeypatch, *narrow, 0, checkpoints=['plain.pth'])
    warm, plain = more['checkpoints']
    assert [entry['label'] for entry in (warm, plain)] == ['CE + temperature', 'CE']
    assert warm['tests'] == tested['checkpoints'][1]['tests']
    names = [(test['name'], test['severity']) for test in plain['tests']]
    assert names == [*TESTS[:4], ('fog', 3), TESTS[4]]
    # Corruptions of another seed are no more tests of the same.
    other = run(project, 'narrow', monkeypatch, *narrow, 1, checkpoints=['plain.pth'])
    assert [test.get('seed') for test in other['checkpoints'][1]['tests']] == [None, 1]
    # Nor is what was measured otherwise: nothing of it is left when the first test begins.
    monkeypatch.setattr(evaluate_under_shift, '_test', lambda *arguments: sys.exit('killed'))
    with pytest.raises(SystemExit, match='killed'):
        run(project, 'narrow', monkeypatch, *narrow, 0, checkpoints=['plain.pth'])
    (left,) = read_robustness(project / 'narrow')['checkpoints'][:1]
    assert left['label'] == 'CE + temperature'
    bins = ['--cfg-options', 'test_evaluator.1.num_bins=5']
    with pytest.raises(SystemExit, match='killed'):
        run(project, 'narrow', monkeypatch, *narrow, 0, *bins, checkpoints=['plain.pth'])
    assert not (project / 'narrow/robustness.json').exists()


def left(checkpoint, digest, name, asked, *, seed=0, settings='same'):
    kind = 'clean' if name == 'clean' else 'corruption'
    test = dict(kind=kind, name=name, severity=0 if kind == 'clean' else 3, seed=seed, metrics={})
    return dict(checkpoint=checkpoint, digest=digest, asked=asked, settings=settings, about={},
                test=test)  # fmt: skip


@pytest.mark.parametrize(
    ('tests', 'expected'),
    [
        # Calls with different shifts are one table; the first asked for comes first.
        ([left('a', 2, 'clean', 1), left('b', 1, 'clean', 2), left('a', 2, 'fog', 3)],
         {'a': ['clean', 'fog'], 'b': ['clean']}),
        ([left('b', 2, 'clean', 2), left('a', 1, 'clean', 1), left('a', 1, 'snow', 3),
          left('a', 1, 'fog', 4), left('a', 1, 'frost', 5, settings='others')],
         {'a': ['clean', 'snow', 'fog'], 'b': ['clean']}),
        # A path whose weights were replaced stands for the new ones.
        ([left('a', 1, 'clean', 1), left('a', 1, 'fog', 2), left('a', 3, 'clean', 3)],
         {'a': ['clean']}),
        ([left('a', 1, 'clean', 1), left('a', 1, 'fog', 2), left('a', 1, 'snow', 3, seed=1)],
         {'a': ['clean', 'snow']}),
        ([left('a', 1, 'fog', 1)], {}),
    ],
)  # fmt: skip
def test_the_table_collects_what_tests_have_left(tests, expected, tmp_path):
    for number, test in enumerate(tests):
        (tmp_path / f'tests/{test["digest"]}').mkdir(parents=True, exist_ok=True)
        (tmp_path / f'tests/{test["digest"]}/{number}.json').write_text(json.dumps(test))
    found = collect(tmp_path, {}, 'same')['checkpoints']
    names = [(each['checkpoint'], [test['name'] for test in each['tests']]) for each in found]
    assert names == list(expected.items())
    assert (tmp_path / 'robustness.json').exists() == bool(expected)


def test_two_processes_equal_one(tested, project, free_port):
    shifts = ['--corruptions', 'gaussian_noise', '--severities', '5']
    call_forked(
        'test_robustness.py', 'tiny.py', 'plain.pth', 'warm.pth', *shifts, '--work-dir', 'two',
        cwd=project, ranks=2, port=free_port,
    )  # fmt: skip
    expected = [row for row in numbers(tested) if row[1:3] in (TESTS[0], TESTS[2])]
    for one, two in zip(expected, numbers(read_robustness(project / 'two')), strict=True):
        assert one[:3] == two[:3]
        assert one[3] == pytest.approx(two[3], rel=1e-6)  # float32 in other batches


def test_what_is_done_is_printed_again_without_a_test(project, tested, monkeypatch, capsys):
    again = run(project, 'one', monkeypatch, *SHIFTS)
    assert numbers(again) == numbers(tested)
    said = capsys.readouterr().out
    assert ' of 10' not in said
    for text in ('CE + temperature', 'top-1 (%)', 'NLL (nats)', 'noise, mean', 'fog'):
        assert text in said
    assert 'weather, worst' in said and 'overall, worst' in said
    assert 'Corrupted by gaussian_noise, fog at severity 1, 5.' in said


def test_other_data_of_the_same_classes(project, monkeypatch, capsys):
    other = project / 'night.py'
    other.write_text((project / 'tiny.py').read_text().replace("'data'", "'night'"))
    shifted.write_folders(project / 'night', classes=4, per_class=2)
    arguments = ['--corruptions', 'None', '--data', f'night={other}']
    content = run(project, 'night_run', monkeypatch, *arguments)
    for entry in content['checkpoints']:
        assert [(test['kind'], test['name']) for test in entry['tests']] == [
            ('clean', 'clean'), ('data', 'night')
        ]  # fmt: skip
        assert entry['tests'][1]['statistics'].endswith('data_night.npz')  # which may be fog_3
    assert 'night' in capsys.readouterr().out
    shifted.write_folders(project / 'three', classes=3, per_class=2)
    other.write_text((project / 'tiny.py').read_text().replace("'data'", "'three'"))
    with pytest.raises(SystemExit):
        run(project, 'night_run', monkeypatch, *arguments)
    assert "--data night has other classes: it has 3 classes, not 4; it lacks 'class_3'" in (
        ' '.join(capsys.readouterr().err.split())
    )


@pytest.mark.parametrize(
    ('options', 'message'),
    [
        ('to_rgb=False', "'red and blue exchanged': False"),
        ('mean=[0.0] * 3', "'mean': [0.0, 0.0, 0.0]"),
        ('std=None', "'std': None"),
    ],
)
def test_other_data_that_are_prepared_otherwise_are_refused(
    options, message, project, monkeypatch, capsys
):
    (project / 'otherwise.py').write_text(
        f"_base_ = 'tiny.py'\nmodel = dict(data_preprocessor=dict({options}))"
    )
    arguments = ['--corruptions', 'None', '--data', 'night=otherwise.py']
    with pytest.raises(SystemExit):
        run(project, 'wrong', monkeypatch, *arguments)
    said = ' '.join(capsys.readouterr().err.split())
    assert message in said.partition(', but that of the model')[0]


@pytest.mark.parametrize(
    ('arguments', 'message'),
    [
        (['--corruptions', 'rain'], "no corruption 'rain': take benchmark, all, noise"),
        (['--corruptions', 'None', 'fog'], '--corruptions None must stand alone'),
        (['--severities', '6'], '--severities are from 0 to 5, got 6'),
        (['--data', 'fog=tiny.py'], '--data fog=tiny.py: a name has letters'),
        (['--data', 'mean=tiny.py'], 'none of clean, mean, worst, overall, benchmark'),
        (['--data', 'night_map=tiny.py'], 'does not end in _map'),
        (['--data', 'night'], 'takes NAME=CONFIG'),
        (['--data', 'night=a.py', 'night=b.py'], 'has night twice: a.py and b.py'),
        (['--data', 'night=5'], "no config '5'"),
        (['--seed', '-1'], '--seed must be an integer of at least 0, got -1'),
        (['--image', '-1'], '--image must be an integer of at least 0, got -1'),
        (['--data', 'night=no.py'], "no config 'no.py'"),
        (['--image', '12'], '--image 12: the test data have 12 images, counted from 0'),
        (['--stored', 'nowhere'], '--stored nowhere: there is no such folder'),
    ],
)
def test_wrong_arguments(arguments, message, project, monkeypatch, capsys):
    with pytest.raises(SystemExit):
        run(project, 'wrong', monkeypatch, *arguments)
    assert message in ' '.join(capsys.readouterr().err.split())


def test_a_segmentor_keeps_the_maps_of_one_image_as_it_was_given(tmp_path, monkeypatch):
    shifted.write_project(tmp_path, 'segmentor')
    arguments = ['--corruptions', 'contrast', '--severities', '5', '--image', '1']
    content = run(tmp_path, 'seg', monkeypatch, *arguments, checkpoints=['plain.pth'])
    (plain,) = content['checkpoints']
    clean, corrupted = plain['tests']
    assert {'mIoU', 'calibration/ECE'} <= set(corrupted['metrics'])
    views = [
        ConfidenceMaps.load(tmp_path / 'seg' / test['map']).views[0] for test in (clean, corrupted)
    ]
    assert [view.index for view in views] == [1, 1] and views[0].name == 'b.jpg'
    assert views[1].image.std() < 0.1 * views[0].image.std()
    np.testing.assert_array_equal(views[0].label, views[1].label)
    again = run(tmp_path, 'seg', monkeypatch, *arguments[:-1], '0', checkpoints=['plain.pth'])
    for test in again['checkpoints'][0]['tests']:
        assert ConfidenceMaps.load(tmp_path / 'seg' / test['map']).views[0].index == 0
    for figure in (['lines'], ['sheet', '--severity', '5']):
        out = f'{figure[0]}.png'
        arguments = ['seg', '--figure', *figure, '--out', out, '--dpi', '50']
        call_here('visualize.py', 'robustness', *arguments, monkeypatch=monkeypatch)
        assert (tmp_path / out).stat().st_size > 3000


def test_augmented_segmentation_is_refused_before_a_test(tmp_path, monkeypatch, capsys):
    shifted.write_project(tmp_path, 'segmentor')
    (tmp_path / 'tiny_segmentor.py').rename(tmp_path / 'base.py')
    (tmp_path / 'tiny_tta.py').write_text(
        "_base_ = 'base.py'\n"
        "model = dict(_delete_=True, type='SegTTAModel', module={{_base_.model}})"
    )
    with pytest.raises(SystemExit):
        run(tmp_path, 'tta', monkeypatch, checkpoints=['plain.pth'])
    assert 'under test-time augmentation mmseg keeps only the logits' in capsys.readouterr().err


def test_of_sets_of_corruptions_those_that_small_images_cannot_have_are_left_out(capsys):
    cfg = load_config(str(shifted.ROOT / 'configs/ce/digits.py'))
    shifts = plan_shifts(cfg, ['digital', 'holdout'], [1])
    assert [shift.text for shift in shifts] == [
        'clean',
        'contrast 1',
        'speckle_noise 1',
        'saturate 1',
    ]
    assert capsys.readouterr().out.endswith(
        'Left out, because they require images of 32×32 pixels and these have 8×8: '
        'elastic_transform, pixelate, jpeg_compression, gaussian_blur, spatter.\n'
    )
    for names in (['noise', 'fog'], ['blur']):
        with pytest.raises(ValueError, match=r'leave out (fog|defocus_blur, glass_blur, .*zoom)'):
            plan_shifts(cfg, names, [1])


def test_results_are_json_without_nan_where_all_is_measured(tested, project):
    content = json.loads((project / 'one/robustness.json').read_text())
    values = [v for entry in content['checkpoints'] for t in entry['tests']
              for v in t['metrics'].values()]  # fmt: skip
    assert values and np.isfinite(values).all()
