"""Checkpoints that a run must not use, and what is left of them when it is stopped."""

import json
import os
import pickle
import shutil
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import numpy as np
import pytest
import torch
from commands import ROOT, call_here
from tested import test_checkpoint

from mmcalib.checks import UserError
from mmcalib.record import Record
from mmcalib.runs import checkpoint as checkpoint_module
from mmcalib.runs.checkpoint import ONLY_WEIGHTS, load_file
from mmcalib.runs.config import load_config, set_loader_defaults
from mmcalib.runs.runner import build_runner
from mmcalib.runs.train import resume_from, train_and_test
from mmcalib.work_dir import locked, set_aside


def config(folder, name='mbls/digits', **options):
    """A training of one epoch on few images; dots in options are written as two underscores."""
    short = {
        'train_cfg.max_epochs': 1,
        'train_cfg.val_interval': 1,
        'train_dataloader.dataset.indices': 16,
        'val_dataloader.dataset.indices': 20,
        'test_dataloader.dataset.indices': 20,
    }
    options = {key.replace('__', '.'): value for key, value in options.items()}
    cfg = load_config(str(ROOT / f'configs/{name}.py'), {**short, **options})
    cfg.work_dir, cfg.launcher = str(folder), 'none'
    # Else mmengine gives two runs that start in one second the same message hub.
    cfg.experiment_name = folder.name
    set_loader_defaults(cfg)
    return cfg


@pytest.fixture(scope='module')
def trained(tmp_path_factory):
    """The checkpoint of a training, with all that a resume needs."""
    folder = tmp_path_factory.mktemp('trained')
    train_and_test(config(folder), test=False)
    return folder / 'epoch_1.pth'


def changed(path, folder, change):
    """Save a checkpoint again after `change` was made to it."""
    content = torch.load(path, weights_only=False)
    change(content)
    torch.save(content, folder / 'changed.pth')
    return str(folder / 'changed.pth')


def resume(folder, checkpoint, **options):
    options = {'train_cfg.max_epochs': 2, **options}
    build_runner(config(folder, resume=True, load_from=str(checkpoint), **options)).train()


def evaluate(folder, checkpoint, **options):
    return test_checkpoint(config(folder, **options), checkpoint)


BOTH = pytest.mark.parametrize('run', [resume, evaluate], ids=['resume', 'test'])


@BOTH
def test_another_architecture_is_refused(run, trained, tmp_path):
    with pytest.raises(UserError, match=r'size mismatch.*Use the config|another training, model\.'):
        run(tmp_path, trained, model__backbone__base_channels=16, model__head__in_channels=64)
    assert not list(tmp_path.glob('*.json')) and not list(tmp_path.glob('*.pth'))


def test_another_loss_is_refused(trained, tmp_path):
    for name, options, text in (
        ('ce/digits', {}, r'loss\.type MarginLabelSmoothingLoss \(here: CrossEntropyLoss\)'),
        ('mbls/digits', {'model.head.loss.margin': 4}, r'loss\.margin 8 \(here: 4\): resume'),
    ):
        cfg = config(tmp_path, name, resume=True, load_from=str(trained), **options)
        with pytest.raises(UserError, match=text):
            build_runner(cfg).train()
    cfg = config(tmp_path, 'ce/digits', load_from=str(trained))
    cfg.experiment_name += '_anew'
    build_runner(cfg).train()


@BOTH
def test_missing_statistics_of_batch_normalisation_are_refused(run, trained, tmp_path):
    def change(content):
        for key in [key for key in content['state_dict'] if key.endswith('running_var')]:
            del content['state_dict'][key]

    with pytest.raises(UserError, match=r'lacks \d+ tensors, .*running_var'):
        run(tmp_path, changed(trained, tmp_path, change))


@BOTH
def test_counters_of_batches_may_lack(run, trained, tmp_path):
    def change(content):
        for key in [key for key in content['state_dict'] if key.endswith('num_batches_tracked')]:
            del content['state_dict'][key]

    run(tmp_path, changed(trained, tmp_path, change))


@BOTH
@pytest.mark.parametrize(
    ('classes', 'message'),
    [
        ('0123567894', "class 4 is '4', not '5'"),
        ('012356789', "it has 10 classes, not 9; class 4 is '4', not '5'"),
        ('0123456789ab', None),
    ],
)
def test_data_of_other_classes_are_refused(run, classes, message, trained, tmp_path):
    def change(content):
        content['meta']['dataset_meta']['classes'] = tuple(classes)

    path = changed(trained, tmp_path, change)
    if message is None:
        if run is evaluate:  # it has the first ten of twelve classes
            assert evaluate(tmp_path, path)
        return
    with pytest.raises(UserError, match=message):
        run(tmp_path, path)


@pytest.mark.parametrize('split', ['val', 'test'])
def test_a_training_is_not_validated_or_tested_on_other_classes(split, tmp_path):
    options = {f'{split}_dataloader__dataset__metainfo': dict(classes=list('abcdefghij'))}
    with pytest.raises(UserError, match=rf"the {split} set: class 0 is 'a', not '0'"):
        train_and_test(config(tmp_path, **options))
    assert not (tmp_path / 'results.json').exists()


def test_a_damaged_last_checkpoint_is_said_with_the_best_one(tmp_path):
    cfg = config(tmp_path)
    for name in ('epoch_1.pth', 'best_top1_epoch_1.pth'):
        (tmp_path / name).write_bytes(b'PK cut off')
    (tmp_path / 'last_checkpoint').write_text(str(tmp_path / 'epoch_1.pth'))
    with pytest.raises(UserError, match=r'missing or damaged.*best_top1_epoch_1'):
        resume_from(cfg, 'auto')


class Command:
    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return os.mkdir, (self.path,)


class Globals:
    def __reduce__(self):
        from mmengine.logging import HistoryBuffer

        return getattr, (HistoryBuffer.mean, '__globals__')


def test_what_mmengine_saves_is_loaded_as_data(trained, tmp_path, monkeypatch):
    monkeypatch.setenv(ONLY_WEIGHTS, '1')
    if not hasattr(torch.serialization, 'safe_globals'):
        with pytest.raises(UserError, match=r'PyTorch before 2\.5 cannot tell from code'):
            load_file(str(trained))
        return
    for path in (trained, *trained.parent.glob('best_*.pth')):
        content = load_file(str(path))
        assert content['message_hub']['log_scalars']['train/loss'].mean() > 0
    torch.save({'state_dict': {}, 'meta': {'a': np.float32(1), 'b': np.eye(2)}}, tmp_path / 'a.pth')
    assert load_file(str(tmp_path / 'a.pth'))['meta']['b'][1, 1] == 1
    # Some PyTorch allow a function by one of these names, some by the other.
    for name in ('__module__', '__name__', '__qualname__'):
        assert getattr(checkpoint_module._statistic, name) == getattr(getattr, name)


@pytest.mark.parametrize('what', [Command, Globals])
def test_code_in_a_checkpoint_is_said_or_refused(what, tmp_path, monkeypatch):
    (tmp_path / 'made').mkdir()
    value = Command(tmp_path / 'made/it') if what is Command else Globals()
    torch.save({'state_dict': {}, 'meta': {'a': value}}, tmp_path / 'a.pth')
    monkeypatch.setenv(ONLY_WEIGHTS, '1')
    with pytest.raises(UserError, match=f'more than data.*{ONLY_WEIGHTS} is set'):
        load_file(str(tmp_path / 'a.pth'))
    assert not (tmp_path / 'made/it').exists()
    monkeypatch.delenv(ONLY_WEIGHTS)
    said = []
    monkeypatch.setattr(checkpoint_module, 'print_log', lambda text, logger: said.append(text))
    load_file(str(tmp_path / 'a.pth'))
    assert len(said) == 1 and f'{ONLY_WEIGHTS}=1 refuses it' in said[0]


@pytest.fixture
def served(tmp_path, monkeypatch):
    """A folder, and the address at which it can be read."""
    monkeypatch.setenv('TORCH_HOME', str(tmp_path / 'downloads'))
    (tmp_path / 'served').mkdir()
    handler = partial(SimpleHTTPRequestHandler, directory=tmp_path / 'served')
    with ThreadingHTTPServer(('127.0.0.1', 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield tmp_path / 'served', f'http://127.0.0.1:{server.server_port}'
        server.shutdown()


# PyTorch before 2.5 allows no logged values in data, and code at an address is never run.
of_data = pytest.mark.skipif(
    torch.__version__ < '2.5', reason='needs torch.serialization.safe_globals'
)


@of_data
@pytest.mark.parametrize('tool', ['test.py', 'export.py', 'calibrate.py'])
def test_a_checkpoint_at_an_address_is_read_as_data(
    tool, trained, served, tmp_path, monkeypatch, capsys
):
    folder, address = served
    shutil.copy(trained, folder / 'good.pth')
    content = load_file(str(trained))
    content['meta']['a'] = Command(tmp_path / 'made')
    torch.save(content, folder / 'bad.pth')
    arguments = {
        'test.py': ['--work-dir', tmp_path / 'w'],
        'export.py': ['--out', tmp_path / 'm.onnx'],
        'calibrate.py': ['--out', tmp_path / 'c.pth', '--work-dir', tmp_path / 'w'],
    }
    config = ROOT / 'configs/mbls/digits.py'

    def call(name):
        url = f'{address}/{name}'
        call_here(tool, config, url, *arguments[tool], monkeypatch=monkeypatch)

    for name in ('bad.pth', 'none.pth'):
        with pytest.raises(SystemExit):
            call(name)
        said = capsys.readouterr().err
        assert ('more than data' if name == 'bad.pth' else '404') in said and name in said
    assert not (tmp_path / 'made').exists()
    if tool == 'test.py':
        call('good.pth')
        assert (tmp_path / 'w/results.json').is_file()


@of_data
def test_two_addresses_of_one_name_are_two_checkpoints(trained, served, tmp_path, monkeypatch):
    folder, address = served
    content = load_file(str(trained))
    for name, scale in (('one', 1), ('other', 0)):
        (folder / name).mkdir()
        content['state_dict']['head.fc.weight'] *= scale
        torch.save(content, folder / name / 'best.pth')
        call_here(
            'test.py', ROOT / 'configs/mbls/digits.py', f'{address}/{name}/best.pth',
            '--work-dir', tmp_path / name, '--cfg-options',
            'test_dataloader.dataset.indices=40', monkeypatch=monkeypatch,
        )  # fmt: skip
    one, other = (Record.read(tmp_path / name / 'results.json') for name in ('one', 'other'))
    assert one.model['members'][0]['digest'] != other.model['members'][0]['digest']


def test_the_config_of_an_old_checkpoint_is_not_executed(trained, tmp_path):
    def change(content):
        content['meta']['config'] = f"x = open({str(tmp_path / 'made')!r}, 'w')"

    resume(tmp_path, changed(trained, tmp_path, change), train_cfg__max_epochs=1)
    assert not (tmp_path / 'made').exists()


@pytest.mark.parametrize(
    ('content', 'message'),
    [
        ([1, 2], 'it holds a list'),
        ({'state_dict': [1]}, 'it holds a list'),
        ({'state_dict': {}, 'meta': 'x'}, 'it holds a str'),
    ],
)
def test_other_contents_are_named(content, message, tmp_path):
    torch.save(content, tmp_path / 'a.pth')
    with pytest.raises(UserError, match=message):
        evaluate(tmp_path, tmp_path / 'a.pth')


def test_what_cannot_be_read_is_named(tmp_path):
    (tmp_path / 'a.pth').write_bytes(pickle.dumps({'a': 1})[:-3])
    with pytest.raises(UserError, match=r"a\.pth' is no readable checkpoint"):
        load_file(str(tmp_path / 'a.pth'))


def test_importing_changes_no_environment():
    for path in (ROOT / 'mmcalib').rglob('*.py'):
        assert 'FORCE_NO_WEIGHTS_ONLY' not in path.read_text()


@pytest.mark.parametrize(
    'writer', ['mmcalib.record.Record.write', 'mmcalib.metrics.CalibrationStatistics.save']
)
def test_a_stop_while_results_are_written_leaves_no_mixed_ones(
    writer, trained, tmp_path, monkeypatch
):
    evaluate(tmp_path, trained)

    def stop(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(writer, stop)
        with pytest.raises(KeyboardInterrupt):
            evaluate(tmp_path, trained)
    assert not (tmp_path / 'results.json').exists()
    evaluate(tmp_path, trained)
    assert Record.read(tmp_path / 'results.json').metrics


def test_two_checkpoints_are_kept_where_one_is_asked_for(tmp_path):
    """Since mmengine removes the last before it writes the next."""
    options = {'train_cfg__max_epochs': 3, 'default_hooks__checkpoint__max_keep_ckpts': 1}
    train_and_test(config(tmp_path, **options), test=False)
    kept = sorted(path.name.rstrip('0123456789.pth') for path in tmp_path.glob('*.pth'))
    assert kept == ['best_accuracy_top1_epoch_', 'epoch_', 'epoch_']
    assert (tmp_path / 'epoch_3.pth').exists()


def test_a_second_training_in_a_work_dir_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv('SLURM_PROCID', '1')  # a task that trains by itself
    with (
        locked(tmp_path),
        pytest.raises(UserError, match='a training, a test or a sweep'),
    ):
        train_and_test(config(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ['.lock']


def test_a_work_dir_that_cannot_be_made_is_one_line(tmp_path, monkeypatch, capsys):
    (tmp_path / 'file').touch()
    with pytest.raises(SystemExit):
        call_here(
            'train.py', ROOT / 'configs/mbls/digits.py', '--work-dir', tmp_path / 'file/w',
            monkeypatch=monkeypatch,
        )  # fmt: skip
    assert 'file/w/results.json cannot be written: Not a directory' in capsys.readouterr().err


@pytest.mark.parametrize('options', [[], ['--no-validate']])
def test_a_training_may_keep_no_checkpoints(options, tmp_path, monkeypatch):
    call_here(
        'train.py', ROOT / 'configs/mbls/digits.py', *options, '--work-dir', tmp_path,
        '--cfg-options', 'default_hooks.checkpoint=None', 'train_cfg.max_epochs=1',
        'train_dataloader.dataset.indices=16', monkeypatch=monkeypatch,
    )  # fmt: skip
    (member,) = Record.read(tmp_path / 'results.json').model['members']
    assert member['file'] == 'last weights'
    assert not list(tmp_path.glob('*.pth'))


@pytest.mark.parametrize('left', [{}, {'members': [{'checkpoint': 'a.pth'}]}])
def test_a_record_that_lacks_a_part_costs_no_test(left, trained, tmp_path, monkeypatch):
    (tmp_path / 'results.json').write_text(json.dumps(dict(metrics={}, model=left)))
    monkeypatch.chdir(tmp_path)
    shutil.copy(trained, 'a.pth')
    call_here(
        'test.py', ROOT / 'configs/mbls/digits.py', 'a.pth', '--work-dir', '.', '--cfg-options',
        'test_dataloader.dataset.indices=20', monkeypatch=monkeypatch,
    )  # fmt: skip
    assert Record.read('results.json').metrics


def test_a_second_training_sets_the_first_aside(tmp_path, capsys):
    train_and_test(config(tmp_path, train_cfg__max_epochs=3))
    first = {path.name for path in tmp_path.glob('*.pth')} | {'results.json', 'calibration.npz'}
    (tmp_path / 'notes.txt').touch()
    cfg = config(tmp_path, randomness__seed=1)
    cfg.experiment_name += '_again'
    train_and_test(cfg, test=False)
    aside = tmp_path / 'earlier_1'
    assert {path.name for path in aside.iterdir()} == {*first, 'last_checkpoint'}
    assert len(list(tmp_path.glob('best_*.pth'))) == 1
    assert str(aside) in capsys.readouterr().out and (tmp_path / 'notes.txt').exists()
    assert not (tmp_path / 'results.json').exists()
    # A resume goes on with the second one, although the first has later epochs.
    again = config(tmp_path, train_cfg__max_epochs=2, randomness__seed=1)
    again.experiment_name += '_resumed'
    resume_from(again, 'auto')
    assert again.load_from == str(tmp_path / 'epoch_1.pth')
    train_and_test(again, test=False)
    assert not (tmp_path / 'earlier_2').exists()


def test_a_training_may_start_from_a_checkpoint_in_its_work_dir(trained, tmp_path):
    for name in ('epoch_1.pth', 'epoch_2.pth'):
        (tmp_path / name).write_bytes(trained.read_bytes())
    assert set_aside(tmp_path, keep=str(tmp_path / 'epoch_1.pth')) == tmp_path / 'earlier_1'
    assert (tmp_path / 'epoch_1.pth').exists() and (tmp_path / 'earlier_1/epoch_2.pth').exists()
    assert set_aside(tmp_path, keep=str(tmp_path / 'epoch_1.pth')) is None
    assert set_aside(tmp_path / 'none') is None


def test_a_resume_from_elsewhere_sets_what_is_there_aside(trained, tmp_path):
    for name in ('results.json', 'robustness.json', 'best_x_epoch_9.pth'):
        (tmp_path / name).touch()
    resume_into = config(tmp_path, resume=True, load_from=str(trained), train_cfg__max_epochs=2)
    train_and_test(resume_into, test=False)
    assert len(list((tmp_path / 'earlier_1').iterdir())) == 3
    assert (tmp_path / 'epoch_2.pth').exists()


def test_a_training_that_is_refused_sets_nothing_aside(tmp_path):
    (tmp_path / 'results.json').touch()
    options = {'model.head.num_classes': 3, 'test_dataloader.dataset.indices': 16}
    with pytest.raises(Exception, match='class'):
        train_and_test(config(tmp_path, **options))
    assert not (tmp_path / 'earlier_1').exists()


@pytest.mark.parametrize('floor', [False, True])
def test_a_copied_work_dir_goes_on_without_the_original(floor, tmp_path):
    options = dict(default_hooks__checkpoint__max_keep_ckpts=1)
    if floor:
        options |= {
            'default_hooks.checkpoint.type': 'AccuracyFloorCheckpointHook',
            'default_hooks.checkpoint.save_best': 'calibration/ECE',
            'default_hooks.checkpoint.rule': 'less',
            'default_hooks.checkpoint.accuracy': 'accuracy/top1',
        }
    original, copy = tmp_path / 'original', tmp_path / 'copy'
    train_and_test(config(original, **options), test=False)
    shutil.copytree(original, copy)
    before = sorted(original.glob('*.pth'))
    cfg = config(copy, train_cfg__max_epochs=3, **options)
    resume_from(cfg, 'auto')
    train_and_test(cfg, test=False)
    assert sorted(original.glob('*.pth')) == before
    assert len(list(copy.glob('best_*.pth'))) == 1 and (copy / 'epoch_3.pth').exists()
    named = load_file(str(copy / 'epoch_3.pth'))['message_hub']['runtime_info']['best_ckpt']
    assert Path(named).parent == copy and Path(named).exists()


def test_a_resumed_training_started_from_what_it_first_did(trained, tmp_path):
    cfg = config(tmp_path, load_from=str(trained))
    train_and_test(cfg, test=False)
    cfg = config(tmp_path, resume=True, load_from=str(tmp_path / 'epoch_1.pth'))
    cfg.train_cfg.max_epochs = 2
    train_and_test(cfg, test=False)
    content = load_file(str(tmp_path / 'epoch_2.pth'))
    assert content['meta']['facts']['training']['load_from'] == 'epoch_1.pth'
