"""A training that was killed and resumed ends as one that was not."""

import json
import re

import pytest
from forked import call_forked

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


def train(folder, kind, *options, number=0):
    (folder / 'config.py').write_text(CONFIG.format(number=number) + KINDS[kind])
    call_forked('train.py', 'config.py', '--work-dir', 'run', *options, cwd=folder)
    result = json.loads((folder / 'run/results.json').read_text())
    return [path.name for path in sorted(folder.glob('run/best_*'))], result['metrics']


@pytest.mark.parametrize(('kind', 'number'), [('epochs', 9), ('iterations', 6)])
def test_it_takes_the_same_best_checkpoint(kind, number, tmp_path):
    """Killed where a best one is there, and the checkpoint of its step does not know of it yet."""
    (tmp_path / 'whole').mkdir()
    (best,), metrics = train(tmp_path / 'whole', kind)
    with pytest.raises(AssertionError):
        train(tmp_path, kind, number=number)
    assert not (tmp_path / 'run/results.json').exists()
    # Left where a kill came between the two writes and the removal of what they replace.
    (tmp_path / 'run' / best.replace(re.search(r'\d+\.', best)[0], '0.')).touch()
    (tmp_path / 'run/best_of_mine.pth').touch()
    assert train(tmp_path, kind, '--resume') == (sorted([best, 'best_of_mine.pth']), metrics)
