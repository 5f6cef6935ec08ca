"""Checkpoints that a run must not use, and those that an interrupted run leaves."""

import hashlib
import os
import pickle
import re
import shutil
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import numpy as np
import pytest
import torch
from commands import ROOT
from mmengine.config import Config
from tested import small_config, test_checkpoint

from mmcalib.commands.train import train_and_test
from mmcalib.errors import UserError
from mmcalib.runs import safe_loading
from mmcalib.runs.checkpoint import read_checkpoint
from mmcalib.runs.record import Record
from mmcalib.runs.resume import resume_from
from mmcalib.runs.runner import build_runner
from mmcalib.runs.safe_loading import ONLY_WEIGHTS, load_file
from mmcalib.runs.work_dir import locked, set_aside

MBLS = ROOT / 'configs/mbls/digits.py'


@pytest.fixture(scope='module')
def trained(tmp_path_factory):
    """The checkpoint of a training, with all that a resume needs."""
    folder = tmp_path_factory.mktemp('trained')
    train_and_test(small_config(folder), test=False)
    return folder / 'epoch_1.pth'


def changed(path, folder, *changes):
    """Save a checkpoint again after changes to its content."""
    content = torch.load(path, weights_only=False)
    for change in changes:
        change(content)
    torch.save(content, folder / 'changed.pth')
    return str(folder / 'changed.pth')


def without(end):
    def change(content):
        for key in [key for key in content['state_dict'] if key.endswith(end)]:
            del content['state_dict'][key]

    return change


def with_classes(names):
    return lambda content: content['meta']['dataset_meta'].update(classes=tuple(names))


def with_old_classes(names):
    """As mmseg and mmcls 0.x wrote them."""

    def change(content):
        del content['meta']['dataset_meta']
        content['meta'].update(CLASSES=tuple(names), PALETTE=None)

    return change


def resume(folder, checkpoint, **options):
    options = {'train_cfg.max_epochs': 2, **options}
    build_runner(small_config(folder, resume=True, load_from=str(checkpoint), **options)).train()


def evaluate(folder, checkpoint, **options):
    return test_checkpoint(small_config(folder, **options), checkpoint)


WIDER = dict(model__backbone__base_channels=16, model__head__in_channels=64)
OTHER = "class 4 is '4', not '5'"


@pytest.mark.parametrize('run', [resume, evaluate])
@pytest.mark.parametrize(
    ('change', 'options', 'message'),
    [
        (None, WIDER, r'size mismatch.*Use the config|another training, model\.'),
        (without('running_var'), {}, r'lacks .*running_var.*, one of \d+ missing tensors'),
        (with_classes('0123567894'), {}, OTHER),
        (with_classes('012356789'), {}, f'it has 10 classes, not 9; {OTHER}'),
        (with_old_classes('0123567894'), {}, OTHER),
    ],
)
def test_checkpoint_of_another_model_refused(run, change, options, message, trained, tmp_path):
    path = changed(trained, tmp_path, change) if change else trained
    with pytest.raises(UserError, match=message):
        run(tmp_path, path, **options)
    assert not list(tmp_path.glob('*.json'))
    assert not list(tmp_path.glob('epoch_*.pth'))


def test_checkpoint_of_older_version_is_read(trained, tmp_path):
    """It has no counters of batches, and a config as text, which must not be executed."""
    code = dict(config=f"x = open({str(tmp_path / 'made')!r}, 'w')")
    old = changed(
        trained, tmp_path, without('num_batches_tracked'), lambda c: c['meta'].update(code)
    )
    resume(tmp_path / 'resumed', old)
    assert not (tmp_path / 'made').exists()
    # The data have the first ten of twelve classes.
    assert evaluate(tmp_path / 'tested', changed(old, tmp_path, with_classes('0123456789ab')))
    assert evaluate(tmp_path / 'old', changed(old, tmp_path, with_old_classes('0123456789')))


def test_resume_other_loss_refused(trained, tmp_path):
    for name, options, text in (
        ('ce/digits', {}, r'loss\.type MarginLabelSmoothingLoss \(here: CrossEntropyLoss\)'),
        ('mbls/digits', {'model.head.loss.margin': 4}, r'loss\.margin 8 \(here: 4\): resume'),
    ):
        cfg = small_config(tmp_path, name, resume=True, load_from=str(trained), **options)
        with pytest.raises(UserError, match=text):
            build_runner(cfg).train()
    build_runner(small_config(tmp_path, 'ce/digits', load_from=str(trained))).train()
    # A resumed training keeps the checkpoint that it first started from.
    resumed = small_config(tmp_path, 'ce/digits', train_cfg__max_epochs=2)
    resume_from(resumed, 'auto')
    build_runner(resumed).train()
    facts = load_file(str(tmp_path / 'epoch_2.pth'))['meta']['facts']
    assert facts['training']['load_from'] == 'epoch_1.pth'


@pytest.fixture
def served(tmp_path, monkeypatch):
    """Folder that is served by HTTP, and its address; files are downloaded to ``downloads``."""
    monkeypatch.setattr(torch.hub, 'get_dir', lambda: str(tmp_path / 'downloads'))
    folder = tmp_path / 'served'
    folder.mkdir()
    handler = partial(SimpleHTTPRequestHandler, directory=folder)
    with ThreadingHTTPServer(('127.0.0.1', 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield folder, f'http://127.0.0.1:{server.server_port}'
        server.shutdown()


class Command:
    """A value that makes a folder when it is unpickled."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return os.mkdir, (self.path,)


class Globals:
    """A value that becomes the globals of a module of mmengine when it is unpickled."""

    def __reduce__(self):
        from mmengine.logging import HistoryBuffer

        return getattr, (HistoryBuffer.mean, '__globals__')


def test_load_file_of_mmengine_executes_nothing(trained, tmp_path, monkeypatch):
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
        assert getattr(safe_loading._statistic, name) == getattr(getattr, name)


@pytest.mark.parametrize('kind', [Command, Globals])
def test_checkpoint_with_code_refused_or_warned_of(kind, tmp_path, monkeypatch):
    made_folder = tmp_path / 'made'
    value = Command(made_folder) if kind is Command else Globals()
    torch.save({'state_dict': {}, 'meta': {'a': value}}, tmp_path / 'a.pth')
    monkeypatch.setenv(ONLY_WEIGHTS, '1')
    with pytest.raises(UserError, match=f'more than data.*{ONLY_WEIGHTS}'):
        load_file(str(tmp_path / 'a.pth'))
    assert not made_folder.exists()
    monkeypatch.delenv(ONLY_WEIGHTS)
    messages = []
    monkeypatch.setattr(safe_loading, 'print_log', lambda text, logger: messages.append(text))
    load_file(str(tmp_path / 'a.pth'))
    (message,) = messages
    assert f'{ONLY_WEIGHTS}=1' in message


@pytest.mark.skipif(
    torch.__version__ < '2.5', reason='needs PyTorch 2.5, which tells logged values from code'
)
def test_checkpoint_at_address_with_code_refused(trained, run, served, tmp_path):
    folder, url = served
    content = load_file(str(trained))
    content['meta']['a'] = Command(tmp_path / 'made')
    torch.save(content, folder / 'bad.pth')
    for name, reason in (('bad.pth', 'more than data'), ('none.pth', '404')):
        error = run('test.py', MBLS, f'{url}/{name}', code=2)
        assert reason in error
        assert name in error
    assert not (tmp_path / 'made').exists()


@pytest.mark.skipif(
    torch.__version__ < '2.5', reason='needs PyTorch 2.5, which tells logged values from code'
)
def test_checkpoints_of_one_name_at_two_addresses_told_apart(trained, run, served):
    folder, url = served
    few = ['--cfg-options', 'test_dataloader.dataset.indices=40']
    content = load_file(str(trained))
    digests = set()
    for scale in (1, 0):
        name = f'scale_{scale}'
        (folder / name).mkdir()
        content['state_dict']['head.fc.weight'] *= scale
        torch.save(content, folder / name / 'best.pth')
        run('test.py', MBLS, f'{url}/{name}/best.pth', '--work-dir', name, *few)
        (member,) = Record.read(f'{name}/results.json').model['members']
        digests.add(member['digest'])
    assert len(digests) == 2


@pytest.mark.parametrize('name', ['model_20210831-{}.pth', 'model-{}.pth'])
def test_download_other_hash_than_name_refused(name, trained, run, served, tmp_path):
    folder, url = served
    name = name.format('0a1b2c3d')
    shutil.copy(trained, folder / name)
    error = run('test.py', MBLS, f'{url}/{name}', code=2)
    assert f'{url}/{name}' in error
    assert '0a1b2c3d' in error
    assert not list((tmp_path / 'downloads').rglob('*.pth'))


@pytest.mark.parametrize('name', ['model_20210831-{}.pth', 'model-{}.pth', 'model-20210831.pth'])
def test_download_hash_of_name_or_none_tested(name, trained, run, served, tmp_path):
    """A date looks like a hash, but is none."""
    folder, url = served
    name = name.format(hashlib.sha256(trained.read_bytes()).hexdigest()[:8])
    shutil.copy(trained, folder / name)
    few = ['--work-dir', 'tested', '--cfg-options', 'test_dataloader.dataset.indices=20']
    run('test.py', MBLS, f'{url}/{name}', *few)
    assert list((tmp_path / 'downloads').rglob('*.pth'))


BROKEN = {
    'a list': ([1, 2], 'it holds a list'),
    'no state': ({'state_dict': [1]}, 'it holds a list'),
    'no meta': ({'state_dict': {}, 'meta': 'x'}, 'it holds a str'),
    'cut pickle': (pickle.dumps({'a': 1})[:-3], r"a\.pth' is no readable checkpoint"),
    'text': (b'# text', 'another kind of file'),
    'folder': (None, 'no checkpoint'),
}


@pytest.mark.parametrize('name', BROKEN)
def test_load_file_no_checkpoint_raises(name, tmp_path):
    content, message = BROKEN[name]
    path = tmp_path if content is None else tmp_path / 'a.pth'
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content is not None:
        torch.save(content, path)
    with pytest.raises(UserError, match=message):
        read_checkpoint(path)


def test_digest_same_weights_equal_in_either_format(tmp_path):
    whole = tmp_path / 'whole.pth'
    legacy = tmp_path / 'legacy.pth'
    torch.save({'a': torch.zeros(3)}, whole)
    torch.save({'module.a': torch.zeros(3)}, legacy, _use_new_zipfile_serialization=False)
    assert read_checkpoint(whole).digest == read_checkpoint(legacy).digest
    torch.save({'a': torch.ones(3)}, legacy)
    assert read_checkpoint(whole).digest != read_checkpoint(legacy).digest
    whole.write_bytes(whole.read_bytes()[:-30])
    with pytest.raises(UserError, match='not written to its end'):
        read_checkpoint(str(whole))


@pytest.mark.parametrize(
    'writer', ['mmcalib.runs.record.Record.write', 'mmcalib.metrics.CalibrationStatistics.save']
)
def test_test_interrupted_leaves_no_mixed_results(writer, trained, tmp_path, monkeypatch):
    evaluate(tmp_path, trained)

    def stop(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(writer, stop)
        with pytest.raises(KeyboardInterrupt):
            evaluate(tmp_path, trained)
    assert not (tmp_path / 'results.json').exists()


def test_locked_work_dir_in_use_raises(run, monkeypatch):
    monkeypatch.setenv('SLURM_PROCID', '1')  # Each task of Slurm may train by itself.
    Path('file').touch()
    for folder, text in (
        ('used', 'a training, a test or a sweep'),
        ('file', 'file/results.json cannot be written: Not a directory'),
        ('file/w', 'file/w/results.json cannot be written: Not a directory'),
    ):
        with locked('used'):
            assert text in run('train.py', MBLS, '--work-dir', folder, code=2)
    assert [path.name for path in Path('used').iterdir()] == ['.lock']


def test_train_without_checkpoints_tests_last_weights(run, tmp_path):
    options = ['default_hooks.checkpoint=None', 'train_cfg.max_epochs=1']
    few = 'train_dataloader.dataset.indices=16'
    run('train.py', MBLS, '--no-validate', '--work-dir', '.', '--cfg-options', *options, few)
    (member,) = Record.read('results.json').model['members']
    assert member['file'] == 'last weights'
    assert member['finished'] is True
    assert not list(tmp_path.glob('*.pth'))


def test_train_without_best_checkpoint_tests_last_by_its_name(tmp_path):
    hook = dict(save_best=None, filename_tmpl='model_{}.pth')
    options = {f'default_hooks__checkpoint__{key}': value for key, value in hook.items()}
    train_and_test(small_config(tmp_path, **options))
    (member,) = Record.read(tmp_path / 'results.json').model['members']
    assert member['file'] == 'model_1.pth'


def test_train_in_used_work_dir_moves_earlier_files(tmp_path, capsys):
    train_and_test(small_config(tmp_path, train_cfg__max_epochs=3))
    first = {path.name for path in tmp_path.glob('*.pth')} | {'results.json', 'calibration.npz'}
    (tmp_path / 'notes.txt').touch()
    (config,) = tmp_path.glob('*.py')
    earlier_config = config.read_text()
    # A test of one of its checkpoints goes with it, and that of another stays.
    record = (tmp_path / 'results.json').read_text()
    for name in ('mine/temperature', 'others'):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / 'mine/temperature/results.json').write_text(record)
    (tmp_path / 'others/results.json').write_text(record.replace('best_', 'other_'))
    train_and_test(small_config(tmp_path, randomness__seed=1), test=False)
    earlier = tmp_path / 'earlier_1'
    names = {*first, 'last_checkpoint', config.name, 'mine'}
    assert {path.name for path in earlier.iterdir()} == names
    assert (earlier / config.name).read_text() == earlier_config != config.read_text()
    assert (tmp_path / 'others/results.json').exists() and not (tmp_path / 'mine').exists()
    assert len(list(tmp_path.glob('best_*.pth'))) == 1
    assert str(earlier) in capsys.readouterr().out
    assert (tmp_path / 'notes.txt').exists()
    # A resume goes on with the second training, although the first has later epochs.
    resumed = small_config(tmp_path, train_cfg__max_epochs=2, randomness__seed=1)
    resume_from(resumed, 'auto')
    assert resumed.load_from == str(tmp_path / 'epoch_1.pth')
    train_and_test(resumed, test=False)
    assert not (tmp_path / 'earlier_2').exists()


def test_train_refused_moves_no_earlier_files(trained, tmp_path):
    for name in ('results.json', 'robustness.json', 'best_x_epoch_9.pth'):
        (tmp_path / name).touch()
    (tmp_path / 'digits.py').write_text('the config of a finished training')
    with pytest.raises(UserError, match='class'):
        train_and_test(small_config(tmp_path, **{'model.head.num_classes': 3}))
    assert not (tmp_path / 'earlier_1').exists()
    assert (tmp_path / 'digits.py').read_text() == 'the config of a finished training'
    resumed = small_config(tmp_path, resume=True, load_from=str(trained), train_cfg__max_epochs=2)
    train_and_test(resumed, test=False)
    assert len(list((tmp_path / 'earlier_1').iterdir())) == 4
    start = str(tmp_path / 'epoch_2.pth')
    assert set_aside(tmp_path, keep=start) == tmp_path / 'earlier_2'
    assert [path.name for path in tmp_path.glob('*.pth')] == ['epoch_2.pth']
    assert set_aside(tmp_path, keep=start) is None
    assert set_aside(tmp_path / 'none') is None


def test_set_aside_checkpoint_that_was_cut_off_is_kept(tmp_path):
    torch.save({}, tmp_path / 'whole.pth')
    part = (tmp_path / 'whole.pth').read_bytes()[:100]
    (tmp_path / 'whole.pth').rename(tmp_path / 'epoch_1.pth')
    (tmp_path / 'epoch_1.pth').write_bytes(part)
    assert set_aside(tmp_path) == tmp_path / 'earlier_1'
    assert (tmp_path / 'earlier_1/epoch_1.pth').read_bytes() == part


@pytest.mark.parametrize('work_dir', ['first/run', 'other/run'])
def test_train_out_dir_with_checkpoints_of_other_training_refused(work_dir, tmp_path):
    """mmengine joins `out_dir` and the last part of the work dir, which trainings may share."""
    out_dir = dict(default_hooks__checkpoint__out_dir=str(tmp_path / 'disk'))
    train_and_test(small_config(tmp_path / 'first/run', **out_dir), test=False)
    folder = tmp_path / 'disk/run'
    before = {path.name: path.read_bytes() for path in folder.glob('*.pth')}
    assert len(before) == 2  # the last and the best
    files = sorted((tmp_path / 'first/run').iterdir())
    with pytest.raises(UserError, match=r'disk/run has checkpoints.*out_dir to another folder'):
        train_and_test(small_config(tmp_path / work_dir, randomness__seed=1, **out_dir))
    assert {path.name: path.read_bytes() for path in folder.glob('*.pth')} == before
    assert sorted((tmp_path / 'first/run').iterdir()) == files


def test_train_out_dir_resumed_goes_on_there(tmp_path):
    out_dir = dict(default_hooks__checkpoint__out_dir=str(tmp_path / 'disk'))
    work_dir = tmp_path / 'run'
    train_and_test(small_config(work_dir, **out_dir), test=False)
    start = str(tmp_path / 'disk/run/epoch_1.pth')
    (work_dir / 'results.json').touch()
    changes = dict(resume=True, load_from=start, train_cfg__max_epochs=2)
    train_and_test(small_config(work_dir, **out_dir, **changes), test=False)
    assert (tmp_path / 'disk/run/epoch_2.pth').is_file()
    assert not (work_dir / 'earlier_1').exists()
    # In another work dir, it would replace what the first one still names.
    with pytest.raises(UserError, match='has checkpoints of an earlier training'):
        train_and_test(small_config(tmp_path / 'other/run', **out_dir, **changes))


def test_train_out_dir_in_use_refused(tmp_path):
    out_dir = dict(default_hooks__checkpoint__out_dir=str(tmp_path / 'disk'))
    with locked(tmp_path / 'disk/run'), pytest.raises(UserError, match='disk/run is in use'):
        train_and_test(small_config(tmp_path / 'other/run', **out_dir))


def test_resume_damaged_last_takes_newest_whole(tmp_path, capsys):
    cfg = Config(dict(work_dir=str(tmp_path)))
    resume_from(cfg, 'auto')
    # Without a checkpoint the training starts anew, and says so.
    assert 'starts anew' in capsys.readouterr().out
    assert 'resume' not in cfg
    assert 'load_from' not in cfg
    torch.save({}, tmp_path / 'epoch_9.pth')
    (tmp_path / 'epoch_10.pth').write_bytes((tmp_path / 'epoch_9.pth').read_bytes()[:100])
    (tmp_path / 'last_checkpoint').write_text(str(tmp_path / 'epoch_10.pth'))
    resume_from(cfg, 'auto')
    assert cfg.load_from == str(tmp_path / 'epoch_9.pth')
    for path in tmp_path.glob('epoch_*'):
        path.unlink()
    (tmp_path / 'best_top1_epoch_7.pth').touch()
    with pytest.raises(UserError, match=r'is missing or damaged.*best_top1_epoch_7'):
        resume_from(cfg, 'auto')


@pytest.mark.parametrize(
    ('hook', 'name'),
    [
        (dict(filename_tmpl='model_{}.pth'), 'run/model_{}.pth'),
        (dict(filename_tmpl='{:03d}_of_my[2].ckpt'), 'run/{:03d}_of_my[2].ckpt'),
        (dict(out_dir='disk'), 'disk/run/epoch_{}.pth'),
        (dict(out_dir='disk', filename_tmpl='model_{}.pth'), 'disk/run/model_{}.pth'),
    ],
)
def test_resume_takes_checkpoint_that_hook_of_config_wrote(hook, name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options = {f'default_hooks__checkpoint__{key}': value for key, value in hook.items()}
    train_and_test(small_config('run', **options), test=False)
    for start, epochs in (('auto', 2), ('run', 3)):
        cfg = small_config('run', train_cfg__max_epochs=epochs, **options)
        resume_from(cfg, start)
        assert Path(cfg.load_from) == Path(name.format(epochs - 1))
        train_and_test(cfg, test=False)
    assert Path(name.format(3)).is_file()
    assert not Path('run/earlier_1').exists()
    # One that was cut off is passed over, and one that is not there is named.
    Path(name.format(3)).write_bytes(b'PK')
    resume_from(cfg, 'auto')
    assert Path(cfg.load_from) == Path(name.format(2))
    for epoch in (1, 2):
        Path(name.format(epoch)).unlink(missing_ok=True)
    last = re.escape(name.format(3))
    with pytest.raises(UserError, match=f'the last checkpoint, .*{last}, is missing or damaged'):
        resume_from(cfg, 'auto')


def test_resume_without_filename_tmpl_of_training_takes_its_last(tmp_path):
    cfg = small_config(tmp_path, default_hooks__checkpoint__filename_tmpl='model_{}.pth')
    train_and_test(cfg, test=False)
    cfg = small_config(tmp_path, train_cfg__max_epochs=2)
    resume_from(cfg, 'auto')
    assert cfg.load_from == str(tmp_path / 'model_1.pth')


def test_resume_copied_work_dir_needs_no_original(tmp_path):
    """Two checkpoints are kept, since mmengine removes the last before it writes the next."""
    keep_one = dict(default_hooks__checkpoint__max_keep_ckpts=1)
    original = tmp_path / 'original'
    copy = tmp_path / 'copy'
    train_and_test(small_config(original, **keep_one), test=False)
    shutil.copytree(original, copy)
    before = sorted(original.glob('*.pth'))
    cfg = small_config(copy, train_cfg__max_epochs=3, **keep_one)
    resume_from(cfg, 'auto')
    train_and_test(cfg, test=False)
    assert sorted(original.glob('*.pth')) == before
    assert len(list(copy.glob('best_*.pth'))) == 1
    assert len(list(copy.glob('epoch_*.pth'))) == 2
    runtime_info = load_file(str(copy / 'epoch_3.pth'))['message_hub']['runtime_info']
    best = Path(runtime_info['best_ckpt'])
    assert best.parent == copy
    assert best.exists()
