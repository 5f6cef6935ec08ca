"""Tests under shift: placed right, tested once, resumed, and alike on any number of processes."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import shifted
import torch
from commands import run_in_process
from forked import run_forked
from shifted import needs_extra
from test_corrupted_sets import write_arrays

from mmcalib.commands.robustness import command
from mmcalib.metrics import CalibrationStatistics
from mmcalib.reports.reported_runs import read_runs
from mmcalib.runs.record import Record

pytestmark = needs_extra
SHIFTS = ['--corruptions', 'gaussian_noise', 'fog', '--severities', '0', '1', '5']
TESTS = [('clean', 0), ('gaussian_noise', 1), ('gaussian_noise', 5), ('fog', 1), ('fog', 5)]
DIGITS = 'mmcalib::ce/digits.py'


@pytest.fixture(scope='module')
def project(tmp_path_factory):
    """Folder with a config and two checkpoints, the second one calibrated."""
    folder = tmp_path_factory.mktemp('project')
    shifted.write_project(folder, 'classifier')
    return folder


@pytest.fixture
def run_folder(project):
    return project


@pytest.fixture
def run_shifts(project, monkeypatch):
    """Function that tests checkpoints and returns what all tests in the work dir measured."""
    monkeypatch.chdir(project)

    def run_tool(work_dir, *arguments, config='tiny.py', checkpoints=('plain.pth',), code=0):
        arguments = [config, *checkpoints, *(arguments or SHIFTS), '--work-dir', work_dir]
        run_in_process('test_robustness.py', *arguments, code=code)
        return read_models(work_dir)

    return run_tool


def read_models(folder):
    models = []
    for path in sorted(Path(folder).glob('*/clean/results.json')):
        models += read_runs(path)
    return models


def shift_names(model):
    return [(test['name'], test['severity']) for test in model.tests]


def all_metrics(models):
    """Return label, tests and metrics of each model, in the order of their labels."""
    metrics = []
    for model in models:
        metrics.append((model.label, shift_names(model), [test['metrics'] for test in model.tests]))
    return sorted(metrics)


@pytest.fixture(scope='module')
def tested(project):
    """The tests of both checkpoints on all shifts."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.chdir(project)
        arguments = ['tiny.py', 'plain.pth', 'warm.pth', *SHIFTS, '--work-dir', 'one']
        run_in_process('test_robustness.py', *arguments)
        return read_models(project / 'one')


class StartedTests(list):
    """Name and severity of each test that a call starts.

    Attributes:
        most: Number of tests after which an interruption comes.
        workers: Number of data loader workers that a test has.
    """

    most = 99
    workers = 0


@pytest.fixture
def started(monkeypatch):
    """The tests that calls start."""
    tests = StartedTests()
    run_test = command.run_test

    def run_counted_test(runner, *arguments, shift, **options):
        if len(tests) == tests.most:
            raise KeyboardInterrupt
        tests.append((shift['name'], shift['severity']))
        assert runner.cfg.test_dataloader.num_workers == tests.workers
        return run_test(runner, *arguments, shift=shift, **options)

    monkeypatch.setattr(command, 'run_test', run_counted_test)
    return tests


def interrupt(*_):
    raise KeyboardInterrupt


def test_robustness_two_checkpoints_tested_on_every_shift(tested, project):
    assert [model.label for model in tested] == ['CE', 'CE + temperature']
    keys = {'accuracy/top1', 'calibration/AECE', 'calibration/NLL', 'calibration/AUGRC'}
    for model in tested:
        assert shift_names(model) == TESTS
        for test in model.tests:
            assert keys <= test['metrics'].keys()
            assert np.isfinite(list(test['metrics'].values())).all()
    files = list((project / 'one').glob('*/*/calibration.npz'))
    assert len(files) == 10
    for file in files:
        statistics = CalibrationStatistics.load(file)
        assert statistics.num_predictions == 12
        assert statistics.num_bins == 10
        record = json.loads((file.parent / 'results.json').read_text())
        assert statistics.metrics['ECE'] == pytest.approx(record['metrics']['calibration/ECE'])
    plain, calibrated = tested
    assert plain.record.evaluation['dataset']['samples'] == 12
    assert plain.tests[0]['metrics'] != calibrated.tests[0]['metrics']


def test_robustness_corruption_equals_test_with_transform(tested, project, run):
    transform = "dict(type='Corrupt', corruption='fog', severity=5)"
    (project / 'by_hand.py').write_text(
        f"_base_ = 'tiny.py'\npipeline = [dict(type='LoadImageFromFile'), {transform}, "
        "dict(type='PackInputs')]\ntest_dataloader = dict(dataset=dict(pipeline=pipeline))\n"
    )
    run('test.py', 'by_hand.py', 'plain.pth', '--work-dir', 'by_hand')
    expected = json.loads((project / 'by_hand/results.json').read_text())['metrics']
    actual = tested[0].tests[-1]['metrics']
    assert actual['accuracy/top1'] == expected['accuracy/top1']
    assert actual['calibration/ECE'] == pytest.approx(expected['calibration/ECE'])


def test_robustness_interrupted_continues_where_it_stopped(
    tested, run_shifts, started, monkeypatch, capsys
):
    with monkeypatch.context() as patch:
        patch.setattr(Record, 'write', interrupt)  # The clean test has not ended then.
        run_shifts('stopped', code=1)
    assert started == TESTS[:1]
    started.clear()
    started.most = 2
    run_shifts('stopped', code=1)
    assert started == TESTS[:2]
    assert 'goes on' in capsys.readouterr().err
    started.clear()
    started.most = 99
    started.workers = 2
    # A record that was written by other means may be cut off.
    (record,) = Path('stopped').glob('*/clean/results.json')
    record.write_text('{"metrics": ')
    models = run_shifts('stopped', *SHIFTS, '--workers', 2)
    assert started == [TESTS[0], *TESTS[2:]]
    assert all_metrics(models) == all_metrics(tested[:1])


def test_robustness_repeated_tests_nothing_twice(tested, run_shifts, started, capsys):
    models = run_shifts('one', checkpoints=('plain.pth', 'warm.pth'))
    assert not started
    assert all_metrics(models) == all_metrics(tested)
    output, progress = capsys.readouterr()
    assert '10 tests are finished already' in progress
    for text in (
        'CE + temperature', 'top-1 (%)', 'NLL (nats)', 'noise, mean', 'weather, worst',
        'overall, worst', 'Corrupted by gaussian_noise, fog at severity 1, 5.',
    ):  # fmt: skip
        assert text in output


def test_robustness_other_test_or_model_tested_again(tested, project, run_shifts, started):
    shutil.copytree(project / 'one', project / 'more')
    fog = ['--corruptions', 'fog', '--severities']
    models = run_shifts('more', *fog, '3', '--seed', 0)
    assert [model.label for model in models] == ['CE', 'CE + temperature']
    assert models[1].tests == tested[1].tests
    assert started == [('fog', 3)]
    assert shift_names(models[0]) == [*TESTS[:4], ('fog', 3), TESTS[4]]
    # Another seed makes other images.
    models = run_shifts('more', *fog, '3', '--seed', 1)
    assert [test.get('seed') for test in models[0].tests] == [None, 1]
    assert len(started) == 2
    # Other bins give another ECE.
    arguments = [*fog, '1', '--seed', 0, '--cfg-options', 'test_evaluator.1.num_bins=5']
    models = run_shifts('more', *arguments)
    changed = next(model for model in models if model.label == 'CE')
    assert len(started) == 4
    assert changed.record.evaluation['num_bins'] == 5
    assert shift_names(changed) == [TESTS[0], ('fog', 1)]
    # Other weights are another model.
    checkpoint = torch.load('plain.pth', weights_only=False)
    checkpoint['state_dict']['head.fc.bias'] += 1
    torch.save(checkpoint, 'plainer.pth')
    run_shifts('one', *fog, '1', '--seed', 0, checkpoints=('plain.pth', 'plainer.pth'))
    assert len(started) == 6


def test_robustness_two_processes_equals_one(tested, project, free_port):
    shifts = ['--corruptions', 'gaussian_noise', '--severities', '5']
    run_forked(
        'test_robustness.py', 'tiny.py', 'plain.pth', 'warm.pth', *shifts, '--work-dir', 'two',
        cwd=project, ranks=2, port=free_port,
    )  # fmt: skip
    for expected, actual in zip(tested, read_models(project / 'two'), strict=True):
        assert actual.label == expected.label
        assert shift_names(actual) == [TESTS[0], TESTS[2]]
        expected_tests = [expected.tests[0], expected.tests[2]]
        for expected_test, actual_test in zip(expected_tests, actual.tests, strict=True):
            # Two processes have other batches, so float32 rounds differently.
            assert actual_test['metrics'] == pytest.approx(expected_test['metrics'], rel=1e-6)


def test_robustness_stored_set_with_limit_replaces_images(project, run_shifts, capsys):
    shutil.copy(write_arrays(project / 'c') / 'fog.npy', project / 'c/snow.npy')
    shifts = ['--corruptions', 'fog', 'snow', '--severities', '1', '5']
    (model,) = run_shifts('stored', '--stored', 'c', *shifts, '--limit', '8')
    assert len(model.tests) == 5
    assert model.record.limit == 8
    assert [test.get('stored') for test in model.tests] == [None, 'c', 'c', 'c', 'c']
    assert 'Images of the stored set c: snow, fog at severity 1, 5.' in capsys.readouterr().out


def test_robustness_other_data_tested_or_refused_by_classes(project, run_shifts, started, capsys):
    started.workers = 1
    for name, classes in (('night', 4), ('three', 3)):
        shifted.write_folders(project / name, classes=classes, per_class=2)
        text = (project / 'tiny.py').read_text().replace("'data'", f"'{name}'")
        (project / f'{name}.py').write_text(text)
    arguments = ['night_run', '--corruptions', 'None', '--workers', 1, '--data']
    (model,) = run_shifts(*arguments, 'night=night.py')
    kinds = [(test['kind'], test['name']) for test in model.tests]
    assert kinds == [('clean', 'clean'), ('data', 'night')]
    assert 'night' in capsys.readouterr().out
    run_shifts(*arguments, 'night=three.py', code=2)
    error = ' '.join(capsys.readouterr().err.split())
    assert '--data night has other classes: it has 3 classes, not 4' in error


@pytest.mark.parametrize(
    ('arguments', 'message'),
    [
        (['--corruptions', 'None', 'fog'], "got 'None'"),
        (['--severities', '6'], '--severities are from 0 to 5, got 6'),
        (['--data', 'fog=tiny.py'], '--data fog=tiny.py: a name has letters'),
        (['--data', 'mean=tiny.py'], 'none of clean, mean, worst, overall, benchmark'),
        (['--data', 'night'], 'takes NAME=CONFIG'),
        (['--data', 'night=a.py', 'night=b.py'], 'has night twice: a.py and b.py'),
        (['--data', 'night=no.py'], "no config 'no.py'"),
        (['--data', 'x=1.py'], 'data_preprocessor has to_rgb=False, that of the model True'),
        (['--data', 'x=2.py'], 'mean=[0.0, 0.0, 0.0], that of the model'),
        (['--data', 'x=3.py'], 'std=None, that of the model'),
        (['--seed', '-1'], 'seed must be an integer of at least 0, got -1'),
        (['--stored', 'nowhere'], '--stored nowhere, gaussian_noise 1: there is neither'),
    ],
)
def test_robustness_invalid_arguments_refused(arguments, message, run_shifts, capsys):
    for number, options in enumerate(('to_rgb=False', 'mean=[0.0] * 3', 'std=None'), 1):
        Path(f'{number}.py').write_text(
            f"_base_ = 'tiny.py'\nmodel = dict(data_preprocessor=dict({options}))"
        )
    run_shifts('wrong', *arguments, code=2)
    assert message in ' '.join(capsys.readouterr().err.split())


def test_robustness_drawing_hook_draws_nothing(project, run_shifts):
    hook = "custom_hooks = [dict(type='ReliabilityDiagramHook')]"
    (project / 'drawing.py').write_text(f"_base_ = 'tiny.py'\n{hook}\n")
    run_shifts('drawing', '--corruptions', 'contrast', '--severities', '1', config='drawing.py')
    assert len(list(Path('drawing').rglob('results.json'))) == 2
    assert not list(Path('drawing').rglob('*.png'))


@pytest.mark.parametrize(
    ('corruptions', 'message'),
    [
        # Those of sets are left out; the error is of the weights, which come later.
        (['digital', 'holdout'], 'pixels and these have 8×8: elastic_transform, pixelate, '),
        (['noise', 'fog'], 'leave out fog'),
        (['blur'], 'leave out defocus_blur, glass_blur, '),
    ],
)
def test_robustness_small_images_leave_out_or_refuse_corruptions(
    corruptions, message, run_shifts, capsys
):
    arguments = ['--corruptions', *corruptions, '--severities', '1']
    run_shifts('small', *arguments, config=DIGITS, code=2)
    output = capsys.readouterr()
    assert message in ' '.join(f'{output.out}{output.err}'.split())
