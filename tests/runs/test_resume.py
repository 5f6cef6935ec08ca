"""A training that was killed and resumed ends as one that was not."""

import re
from pathlib import Path

import pytest
from commands import call_here
from forked import call_forked

from mmcalib.record import Record

CONFIG = """
_base_ = 'mmcalib::ce/digits.py'
custom_imports = dict(imports=['mmcalib', 'kills'])
custom_hooks = [dict(type='KillBeforeSave', number={number})]
"""
KINDS = {
    'epochs': """
train_cfg = dict(max_epochs=4, val_interval=1)
train_dataloader = dict(dataset=dict(indices=128))
""",
    'iterations': """
train_cfg = dict(_delete_=True, by_epoch=False, max_iters=12, val_interval=3)
train_dataloader = dict(dataset=dict(indices=128), sampler=dict(type='InfiniteSampler'))
default_hooks = dict(checkpoint=dict(by_epoch=False, interval=3))
log_processor = dict(by_epoch=False)
""",
}


@pytest.mark.parametrize(('kind', 'number'), [('epochs', 9), ('iterations', 6)])
def test_it_takes_the_same_best_checkpoint(kind, number, tmp_path, monkeypatch):
    """Killed where a best one is there, and the checkpoint of its step does not know of it yet."""
    monkeypatch.chdir(tmp_path)

    def train(folder, *options, kill=0):
        Path('config.py').write_text(CONFIG.format(number=kill) + KINDS[kind])
        command = ['train.py', 'config.py', '--work-dir', folder, *options]
        if kill:
            with pytest.raises(AssertionError):
                call_forked(*command, cwd=tmp_path)
            assert not Path(folder, 'results.json').exists()
            return None
        call_here(*command, monkeypatch=monkeypatch)
        metrics = Record.read(Path(folder, 'results.json')).metrics
        return [path.name for path in sorted(Path(folder).glob('best_*'))], metrics

    (best,), metrics = train('whole')
    train('run', kill=number)
    # Left where a kill came between the two writes and the removal of what they replace.
    Path('run', re.sub(r'\d+\.', '0.', best)).touch()
    Path('run/best_of_mine.pth').touch()
    assert train('run', '--resume') == (sorted([best, 'best_of_mine.pth']), metrics)


def test_resuming_what_was_never_started_keeps_the_weights_to_start_from(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options = ['train_cfg.max_epochs=1', 'train_dataloader.dataset.indices=64']
    frozen = ['load_from=first/epoch_1.pth', 'optim_wrapper.optimizer.lr=0.0']
    config = 'mmcalib::ce/digits.py'

    def train(folder, *arguments):
        call_here('train.py', config, '--work-dir', folder, *arguments, monkeypatch=monkeypatch)

    train('first', '--no-test', '--cfg-options', *options)
    for folder, more in (('plain', []), ('resumed', ['--resume'])):
        train(folder, *more, '--cfg-options', *options, *frozen)
    found = [Record.read(Path(folder, 'results.json')).metrics for folder in ('plain', 'resumed')]
    assert found[0] == found[1]
