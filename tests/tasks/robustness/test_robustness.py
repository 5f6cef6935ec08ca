"""Tests under shift: placed right, tested once, resumed, and alike on any number of processes."""

import json
import shutil
from argparse import Namespace
from pathlib import Path

import numpy as np
import pytest
import shifted
import torch
from commands import call_here
from forked import call_forked
from shifted import needs_extra

from mmcalib.metrics import CalibrationStatistics
from mmcalib.reports.shifted import shifted_tests
from mmcalib.runs.config import load_config
from mmcalib.tasks.robustness import robustness
from mmcalib.tasks.robustness.shifts import plan_shifts

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
    return shifted_tests(folder / work_dir)


def numbers(models):
    return [
        (model.name, test['name'], test['severity'], test['metrics'])
        for model in sorted(models, key=lambda model: model.name)
        for test in model.tests
    ]


@pytest.fixture(scope='module')
def tested(project):
    with pytest.MonkeyPatch.context() as monkeypatch:
        return run(project, 'one', monkeypatch)


@pytest.fixture
def count(monkeypatch):
    """The tests that calls run."""
    found, original = [], robustness.run_test

    def run_test(*arguments, shift, **options):
        found.append((shift['name'], shift['severity']))
        return original(*arguments, shift=shift, **options)

    monkeypatch.setattr(robustness, 'run_test', run_test)
    return found


def test_every_checkpoint_is_tested_on_every_shift_once(tested, project):
    assert [model.name for model in tested] == ['CE', 'CE + temperature']
    for model in tested:
        assert [(test['name'], test['severity']) for test in model.tests] == TESTS
        for test in model.tests:
            names = {'accuracy/top1', 'calibration/AECE', 'calibration/NLL', 'calibration/AUGRC'}
            assert (
                names <= set(test['metrics']) and np.isfinite(list(test['metrics'].values())).all()
            )
    for file in (project / 'one').glob('*/*/calibration.npz'):
        statistics = CalibrationStatistics.load(file)
        assert statistics.num_predictions == 12 and statistics.num_bins == 10
        record = json.loads((file.parent / 'results.json').read_text())
        ece = record['metrics']['calibration/ECE']
        assert statistics.metrics['ECE'] == pytest.approx(ece)
    plain, warm = tested
    assert plain.clean.evaluation['dataset']['samples'] == 12
    assert plain.tests[0]['metrics'] != warm.tests[0]['metrics']


def test_a_test_under_shift_is_a_test_with_the_transform(tested, project, monkeypatch):
    monkeypatch.chdir(project)
    corrupt = "dict(type='Corrupt', corruption='fog', severity=5)"
    (project / 'by_hand.py').write_text(
        f"_base_ = 'tiny.py'\npipeline = [dict(type='LoadImageFromFile'), {corrupt}, "
        "dict(type='PackInputs')]\ntest_dataloader = dict(dataset=dict(pipeline=pipeline))\n"
    )
    call_here(
        'test.py', 'by_hand.py', 'plain.pth', '--work-dir', 'by_hand', monkeypatch=monkeypatch
    )
    metrics = json.loads((project / 'by_hand/results.json').read_text())['metrics']
    found = tested[0].tests[-1]['metrics']
    assert found['accuracy/top1'] == metrics['accuracy/top1']
    assert found['calibration/ECE'] == pytest.approx(metrics['calibration/ECE'])


def test_a_call_that_was_stopped_goes_on(tested, project, monkeypatch, count):
    original = robustness.run_test

    def stopped(*arguments, **options):
        if len(count) == 2:
            raise KeyboardInterrupt
        return original(*arguments, **options)

    with monkeypatch.context() as context:
        context.setattr(robustness, 'run_test', stopped)
        with pytest.raises(SystemExit, match='goes on'):
            run(project, 'stopped', monkeypatch, checkpoints=['plain.pth'])
    # And one test as a kill while it was written by other means would leave it.
    (record,) = (project / 'stopped').glob('*/clean/results.json')
    record.write_text('{"metrics": ')
    again = run(project, 'stopped', monkeypatch, *SHIFTS, '--workers', 2, checkpoints=['plain.pth'])
    assert count == [*TESTS[:2], TESTS[0], *TESTS[2:]]
    assert numbers(again) == [row for row in numbers(tested) if row[0] == 'CE']


def test_new_options_or_weights_are_tested_anew(tested, project, monkeypatch, count):
    arguments = ['--corruptions', 'fog', '--severities', '1', '--cfg-options']
    state = torch.load(project / 'plain.pth', weights_only=False)
    shutil.copytree(project / 'one', project / 'anew')
    more = run(project, 'anew', monkeypatch, *arguments, 'test_evaluator.1.num_bins=5',
               checkpoints=['plain.pth'])  # fmt: skip
    assert len(count) == 2
    changed = next(model for model in more if model.name == 'CE')
    assert changed.clean.evaluation['num_bins'] == 5
    # What was measured otherwise is in no table with it.
    assert [(test['name'], test['severity']) for test in changed.tests] == [TESTS[0], ('fog', 1)]
    state['state_dict']['head.fc.bias'] += 1
    torch.save(state, project / 'plainer.pth')
    shutil.copytree(project / 'one', project / 'more')
    run(project, 'more', monkeypatch, *arguments[:4], checkpoints=['plain.pth', 'plainer.pth'])
    assert len(count) == 4


def test_a_narrower_call_keeps_what_earlier_ones_found(tested, project, monkeypatch):
    shutil.copytree(project / 'one', project / 'narrow')
    narrow = ['--corruptions', 'fog', '--severities', '3', '--seed']
    more = run(project, 'narrow', monkeypatch, *narrow, 0, checkpoints=['plain.pth'])
    assert [model.name for model in more] == ['CE', 'CE + temperature']
    assert more[1].tests == tested[1].tests
    names = [(test['name'], test['severity']) for test in more[0].tests]
    assert names == [*TESTS[:4], ('fog', 3), TESTS[4]]
    # Corruptions of another seed are no more tests of the same.
    other = run(project, 'narrow', monkeypatch, *narrow, 1, checkpoints=['plain.pth'])
    assert [test.get('seed') for test in other[0].tests] == [None, 1]


def test_two_processes_equal_one(tested, project, free_port):
    shifts = ['--corruptions', 'gaussian_noise', '--severities', '5']
    call_forked(
        'test_robustness.py', 'tiny.py', 'plain.pth', 'warm.pth', *shifts, '--work-dir', 'two',
        cwd=project, ranks=2, port=free_port,
    )  # fmt: skip
    expected = [row for row in numbers(tested) if row[1:3] in (TESTS[0], TESTS[2])]
    for one, two in zip(expected, numbers(shifted_tests(project / 'two')), strict=True):
        assert one[:3] == two[:3]
        assert one[3] == pytest.approx(two[3], rel=1e-6)  # float32 in other batches


def test_what_is_done_is_printed_again_without_a_test(project, tested, monkeypatch, capsys, count):
    again = run(project, 'one', monkeypatch, *SHIFTS)
    assert numbers(again) == numbers(tested) and not count
    said, progress = capsys.readouterr()
    assert '10 tests are finished already' in progress
    for text in ('CE + temperature', 'top-1 (%)', 'NLL (nats)', 'noise, mean', 'fog'):
        assert text in said
    assert 'weather, worst' in said and 'overall, worst' in said
    assert 'Corrupted by gaussian_noise, fog at severity 1, 5.' in said


def test_a_stored_set_of_some_samples(tmp_path, monkeypatch, capsys):
    shifted.write_project(tmp_path, 'classifier')
    (tmp_path / 'c').mkdir()
    rng = np.random.default_rng(0)
    for name in ('fog', 'snow'):
        np.save(tmp_path / f'c/{name}.npy', rng.integers(0, 256, (60, 32, 32, 3), dtype=np.uint8))
    np.save(tmp_path / 'c/labels.npy', np.tile(np.repeat(np.arange(4), 3), 5))
    arguments = ['--stored', 'c', '--corruptions', 'fog', 'snow', '--severities', '1', '5']
    (model,) = run(tmp_path, 'out', monkeypatch, *arguments, '--limit', '8',
                   checkpoints=['plain.pth'])  # fmt: skip
    assert len(model.tests) == 5 and model.clean.limit == 8
    assert [test.get('stored') for test in model.tests] == [None, *['c'] * 4]
    assert 'Images of the stored set c: snow, fog at severity 1, 5.' in capsys.readouterr().out


def test_other_data_of_the_same_classes(project, monkeypatch, capsys):
    other = project / 'night.py'
    other.write_text((project / 'tiny.py').read_text().replace("'data'", "'night'"))
    shifted.write_folders(project / 'night', classes=4, per_class=2)
    arguments = ['--corruptions', 'None', '--data', f'night={other}']
    for model in run(project, 'night_run', monkeypatch, *arguments):
        assert [(test['kind'], test['name']) for test in model.tests] == [
            ('clean', 'clean'), ('data', 'night')
        ]  # fmt: skip
    assert 'night' in capsys.readouterr().out
    shifted.write_folders(project / 'three', classes=3, per_class=2)
    other.write_text((project / 'tiny.py').read_text().replace("'data'", "'three'"))
    with pytest.raises(SystemExit):
        run(project, 'night_run', monkeypatch, *arguments)
    assert '--data night has other classes: it has 3 classes, not 4' in (
        ' '.join(capsys.readouterr().err.split())
    )


@pytest.mark.parametrize(
    ('options', 'message'),
    [
        ('to_rgb=False', 'to_rgb=False'),
        ('mean=[0.0] * 3', 'mean=[0.0, 0.0, 0.0]'),
        ('std=None', 'std=None'),
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
    assert message in said.partition(', that of the model')[0]


@pytest.mark.parametrize(
    ('arguments', 'message'),
    [
        (['--corruptions', 'rain'], "no corruption 'rain': take benchmark, all, noise"),
        (['--corruptions', 'None', 'fog'], '--corruptions None must stand alone'),
        (['--severities', '6'], '--severities are from 0 to 5, got 6'),
        (['--data', 'fog=tiny.py'], '--data fog=tiny.py: a name has letters'),
        (['--data', 'mean=tiny.py'], 'none of clean, mean, worst, overall, benchmark'),
        (['--data', 'night'], 'takes NAME=CONFIG'),
        (['--data', 'night=a.py', 'night=b.py'], 'has night twice: a.py and b.py'),
        (['--data', 'night=5'], "no config '5'"),
        (['--seed', '-1'], '--seed must be an integer of at least 0, got -1'),
        (['--data', 'night=no.py'], "no config 'no.py'"),
        (
            ['--stored', 'nowhere'],
            '--stored nowhere, gaussian_noise 1: there is neither',
        ),
    ],
)
def test_wrong_arguments(arguments, message, project, monkeypatch, capsys):
    with pytest.raises(SystemExit):
        run(project, 'wrong', monkeypatch, *arguments)
    assert message in ' '.join(capsys.readouterr().err.split())


def test_hooks_of_ones_own_do_not_draw_each_test(project, monkeypatch):
    monkeypatch.chdir(project)
    (project / 'drawing.py').write_text(
        "_base_ = 'tiny.py'\ncustom_hooks = [dict(type='ReliabilityDiagramHook')]\n"
    )
    call_here(
        'test_robustness.py', 'drawing.py', 'plain.pth', '--corruptions', 'contrast',
        '--severities', '1', '--work-dir', 'drawing', monkeypatch=monkeypatch,
    )  # fmt: skip
    assert len(list(Path('drawing').rglob('results.json'))) == 2
    assert not list(Path('drawing').rglob('*.png'))


def test_a_segmentor_is_drawn(tmp_path, monkeypatch):
    shifted.write_project(tmp_path, 'segmentor')
    arguments = ['--corruptions', 'contrast', '--severities', '5']
    (plain,) = run(tmp_path, 'seg', monkeypatch, *arguments, checkpoints=['plain.pth'])
    assert {'mIoU', 'calibration/ECE'} <= set(plain.tests[1]['metrics'])
    options = ['seg', '--figure', 'lines', '--out', 'lines.png', '--dpi', '50']
    call_here('visualize.py', 'robustness', *options, monkeypatch=monkeypatch)
    assert (tmp_path / 'lines.png').stat().st_size > 3000


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


def plan(cfg, names):
    options = dict(severities=[1], seed=0, stored=None, data={}, corrupt_before=None)
    return plan_shifts(cfg, Namespace(corruptions=names, **options))


def test_of_sets_of_corruptions_those_that_small_images_cannot_have_are_left_out(capsys):
    cfg = load_config(str(shifted.ROOT / 'configs/ce/digits.py'))
    shifts = plan(cfg, ['digital', 'holdout'])
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
            plan(cfg, names)
