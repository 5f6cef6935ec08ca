"""Tests under shift: placed right, tested once, resumed, and alike on any number of processes."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import shifted
import torch
from commands import call_here
from forked import call_forked
from shifted import needs_extra
from test_corruption_places import write_arrays

from mmcalib.commands.test_robustness import command
from mmcalib.metrics import CalibrationStatistics
from mmcalib.reports.tested_runs import read_runs
from mmcalib.runs.record import Record

pytestmark = needs_extra
SHIFTS = ['--corruptions', 'gaussian_noise', 'fog', '--severities', '0', '1', '5']
TESTS = [('clean', 0), *((name, s) for name in ('gaussian_noise', 'fog') for s in (1, 5))]
DIGITS = 'mmcalib::ce/digits.py'


@pytest.fixture(scope='module')
def project(tmp_path_factory):
    folder = tmp_path_factory.mktemp('project')
    shifted.write_project(folder, 'classifier')
    return folder


@pytest.fixture
def run(project, monkeypatch):
    """``run('work', …)`` tests the plain checkpoint, and returns what it has found there."""
    monkeypatch.chdir(project)

    def call_tool(work_dir, *arguments, config='tiny.py', checkpoints=('plain.pth',)):
        arguments = [config, *checkpoints, *(arguments or SHIFTS), '--work-dir', work_dir]
        call_here('test_robustness.py', *arguments, monkeypatch=monkeypatch)
        return models_in(work_dir)

    return call_tool


def models_in(folder):
    paths = sorted(Path(folder).glob('*/clean/results.json'))
    return [run for path in paths for run in read_runs(path)]


def names(model):
    return [(test['name'], test['severity']) for test in model.tests]


def numbers(models):
    return sorted(
        (model.label, names(model), [test['metrics'] for test in model.tests]) for model in models
    )


@pytest.fixture(scope='module')
def tested(project):
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.chdir(project)
        arguments = ['tiny.py', 'plain.pth', 'warm.pth', *SHIFTS, '--work-dir', 'one']
        call_here('test_robustness.py', *arguments, monkeypatch=monkeypatch)
        return models_in(project / 'one')


@pytest.fixture
def count(monkeypatch):
    """The tests that calls run; set ``count.most`` for an interruption after as many."""

    class Count(list):
        most, workers = 99, 0

    found, original = Count(), command.run_test

    def run_test(runner, *arguments, shift, **options):
        if len(found) == found.most:
            raise KeyboardInterrupt
        found.append((shift['name'], shift['severity']))
        assert runner.cfg.test_dataloader.num_workers == found.workers
        return original(runner, *arguments, shift=shift, **options)

    monkeypatch.setattr(command, 'run_test', run_test)
    return found


def _interrupted(*_):
    raise KeyboardInterrupt


def test_every_checkpoint_is_tested_on_every_shift_once(tested, project):
    assert [model.label for model in tested] == ['CE', 'CE + temperature']
    wanted = {'accuracy/top1', 'calibration/AECE', 'calibration/NLL', 'calibration/AUGRC'}
    for model in tested:
        assert names(model) == TESTS
        for test in model.tests:
            assert wanted <= test['metrics'].keys()
            assert np.isfinite(list(test['metrics'].values())).all()
    files = list((project / 'one').glob('*/*/calibration.npz'))
    assert len(files) == 10
    for file in files:
        statistics = CalibrationStatistics.load(file)
        assert statistics.num_predictions == 12 and statistics.num_bins == 10
        record = json.loads((file.parent / 'results.json').read_text())
        assert statistics.metrics['ECE'] == pytest.approx(record['metrics']['calibration/ECE'])
    plain, warm = tested
    assert plain.record.evaluation['dataset']['samples'] == 12
    assert plain.tests[0]['metrics'] != warm.tests[0]['metrics']


def test_a_test_under_shift_is_a_test_with_the_transform(tested, project, monkeypatch):
    monkeypatch.chdir(project)
    corrupt = "dict(type='Corrupt', corruption='fog', severity=5)"
    (project / 'by_hand.py').write_text(
        f"_base_ = 'tiny.py'\npipeline = [dict(type='LoadImageFromFile'), {corrupt}, "
        "dict(type='PackInputs')]\ntest_dataloader = dict(dataset=dict(pipeline=pipeline))\n"
    )
    arguments = ['by_hand.py', 'plain.pth', '--work-dir', 'by_hand']
    call_here('test.py', *arguments, monkeypatch=monkeypatch)
    metrics = json.loads((project / 'by_hand/results.json').read_text())['metrics']
    found = tested[0].tests[-1]['metrics']
    assert found['accuracy/top1'] == metrics['accuracy/top1']
    assert found['calibration/ECE'] == pytest.approx(metrics['calibration/ECE'])


def test_a_call_that_was_stopped_goes_on(tested, run, count, capsys, monkeypatch):
    with monkeypatch.context() as patch, pytest.raises(SystemExit, match='goes on'):
        patch.setattr(Record, 'write', _interrupted)  # before the clean test has ended
        run('stopped')
    assert count == [TESTS[0]]
    count.clear()
    count.most = 2
    with pytest.raises(SystemExit, match='goes on'):
        run('stopped')
    count.most, count.workers = 99, 2
    # And one test as a kill while it was written by other means would leave it.
    (record,) = Path('stopped').glob('*/clean/results.json')
    record.write_text('{"metrics": ')
    again = run('stopped', *SHIFTS, '--workers', 2)
    assert count == [*TESTS[:2], TESTS[0], *TESTS[2:]]
    assert numbers(again) == numbers(tested[:1])

    # What is done is printed again without a test.
    count.workers = 0
    again = run('one', checkpoints=('plain.pth', 'warm.pth'))
    assert numbers(again) == numbers(tested) and len(count) == 6
    said, progress = capsys.readouterr()
    assert '10 tests are finished already' in progress
    for text in (
        'CE + temperature', 'top-1 (%)', 'NLL (nats)', 'noise, mean', 'weather, worst',
        'overall, worst', 'Corrupted by gaussian_noise, fog at severity 1, 5.',
    ):  # fmt: skip
        assert text in said


def test_only_what_was_tested_alike_is_kept(tested, project, run, count):
    shutil.copytree(project / 'one', project / 'more')
    narrow = ['--corruptions', 'fog', '--severities', '3', '--seed']
    more = run('more', *narrow, 0)
    assert [model.label for model in more] == ['CE', 'CE + temperature']
    assert more[1].tests == tested[1].tests and count == [('fog', 3)]
    assert names(more[0]) == [*TESTS[:4], ('fog', 3), TESTS[4]]
    # Corruptions of another seed are no more tests of the same, nor what has other bins.
    other = run('more', *narrow, 1)
    assert [test.get('seed') for test in other[0].tests] == [None, 1] and len(count) == 2
    narrow[3] = '1'
    more = run('more', *narrow, 0, '--cfg-options', 'test_evaluator.1.num_bins=5')
    changed = next(model for model in more if model.label == 'CE')
    assert len(count) == 4 and changed.record.evaluation['num_bins'] == 5
    assert names(changed) == [TESTS[0], ('fog', 1)]
    # Nor are other weights the same model.
    state = torch.load('plain.pth', weights_only=False)
    state['state_dict']['head.fc.bias'] += 1
    torch.save(state, 'plainer.pth')
    run('one', *narrow, 0, checkpoints=('plain.pth', 'plainer.pth'))
    assert len(count) == 6


def test_two_processes_equal_one(tested, project, free_port):
    shifts = ['--corruptions', 'gaussian_noise', '--severities', '5']
    call_forked(
        'test_robustness.py', 'tiny.py', 'plain.pth', 'warm.pth', *shifts, '--work-dir', 'two',
        cwd=project, ranks=2, port=free_port,
    )  # fmt: skip
    for one, two in zip(tested, models_in(project / 'two'), strict=True):
        assert (one.label, [TESTS[0], TESTS[2]]) == (two.label, names(two))
        for ours, theirs in zip((one.tests[0], one.tests[2]), two.tests, strict=True):
            # float32 in other batches
            assert ours['metrics'] == pytest.approx(theirs['metrics'], rel=1e-6)


def test_a_stored_set_of_some_samples(project, run, capsys):
    shutil.copy(write_arrays(project / 'c') / 'fog.npy', project / 'c/snow.npy')
    shifts = ['--corruptions', 'fog', 'snow', '--severities', '1', '5']
    (model,) = run('stored', '--stored', 'c', *shifts, '--limit', '8')
    assert len(model.tests) == 5 and model.record.limit == 8
    assert [test.get('stored') for test in model.tests] == [None, *['c'] * 4]
    assert 'Images of the stored set c: snow, fog at severity 1, 5.' in capsys.readouterr().out


def test_other_data_of_the_same_classes(project, run, count, capsys):
    count.workers = 1
    for name, classes in (('night', 4), ('three', 3)):
        shifted.write_folders(project / name, classes=classes, per_class=2)
        text = (project / 'tiny.py').read_text().replace("'data'", f"'{name}'")
        (project / f'{name}.py').write_text(text)
    arguments = ['night_run', '--corruptions', 'None', '--workers', 1, '--data']
    (model,) = run(*arguments, 'night=night.py')
    kinds = [(test['kind'], test['name']) for test in model.tests]
    assert kinds == [('clean', 'clean'), ('data', 'night')]
    assert 'night' in capsys.readouterr().out
    with pytest.raises(SystemExit):
        run(*arguments, 'night=three.py')
    said = ' '.join(capsys.readouterr().err.split())
    assert '--data night has other classes: it has 3 classes, not 4' in said


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
def test_wrong_arguments(arguments, message, run, capsys):
    for number, options in enumerate(('to_rgb=False', 'mean=[0.0] * 3', 'std=None'), 1):
        Path(f'{number}.py').write_text(
            f"_base_ = 'tiny.py'\nmodel = dict(data_preprocessor=dict({options}))"
        )
    with pytest.raises(SystemExit):
        run('wrong', *arguments)
    assert message in ' '.join(capsys.readouterr().err.split())


def test_hooks_of_ones_own_do_not_draw_each_test(project, run):
    hook = "custom_hooks = [dict(type='ReliabilityDiagramHook')]"
    (project / 'drawing.py').write_text(f"_base_ = 'tiny.py'\n{hook}\n")
    run('drawing', '--corruptions', 'contrast', '--severities', '1', config='drawing.py')
    assert len(list(Path('drawing').rglob('results.json'))) == 2
    assert not list(Path('drawing').rglob('*.png'))


def test_corruptions_that_small_images_cannot_have(run, capsys):
    """Of sets they are left out, and refused where nothing else is left, or by their names."""
    for wanted, message in (  # before the weights, which are others
        (['digital', 'holdout'], 'pixels and these have 8×8: elastic_transform, pixelate, '),
        (['noise', 'fog'], 'leave out fog'),
        (['blur'], 'leave out defocus_blur, glass_blur, '),
    ):
        with pytest.raises(SystemExit):
            run('small', '--corruptions', *wanted, '--severities', '1', config=DIGITS)
        said = capsys.readouterr()
        assert message in ' '.join(f'{said.out}{said.err}'.split())
