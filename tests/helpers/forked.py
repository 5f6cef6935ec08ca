"""Processes forked from one that has torch and the toolboxes, whose import takes 8 s each time."""

import gc
import multiprocessing
import os
import runpy
import sys
import tempfile
from multiprocessing import forkserver
from pathlib import Path

import pytest
from commands import ROOT
from torch import distributed
from torch.multiprocessing.spawn import ProcessException, start_processes

# Not with --real-toolboxes.
QUICK = ['quick_toolboxes'] if 'quick_toolboxes' in sys.modules else []
multiprocessing.get_context('forkserver').set_forkserver_preload([
    *QUICK, 'mmpretrain.models', 'mmpretrain.datasets', 'mmseg.models',
    'mmseg.datasets', 'mmcalib', 'matplotlib.pyplot', 'sklearn.datasets',
    'imagecorruptions',
])  # fmt: skip


def start_ranks(function, arguments, world_size):
    """Run `function(rank, *arguments)` in forked processes, and wait for them."""
    # The server looks for modules where a new Python does, and leaves out what it does not find.
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setenv('PYTHONPATH', os.pathsep.join(sys.path))
        forkserver.ensure_running()
    start_processes(function, arguments, world_size, start_method='forkserver')


def on_ranks(function, world_size, *arguments):
    """Run `function(rank, *arguments)` on the ranks of a gloo group."""
    with tempfile.TemporaryDirectory() as folder:
        start_ranks(_rank, (function, world_size, folder, arguments), world_size)


def _rank(rank, function, world_size, folder, arguments):
    store = f'file://{folder}/store'
    distributed.init_process_group('gloo', store, rank=rank, world_size=world_size)
    function(rank, *arguments)
    # No destroy_process_group: in torch 2.6 it can hang once another rank has left.
    distributed.barrier()


def run_forked(tool, *arguments, cwd, ranks=1, port=None, check=True):
    """Run a tool as `commands.run_in_subprocess` does; with ranks as its ``dist_*.sh`` does.

    What a tool imports itself, only `run_in_subprocess` shows.
    """
    arguments = [tool, *map(str, arguments)]
    environment = {}
    if ranks > 1:
        arguments += ['--launcher', 'pytorch']
        environment = dict(MASTER_ADDR='127.0.0.1', MASTER_PORT=port, WORLD_SIZE=str(ranks))
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / 'log'
        try:
            start_ranks(_tool, (arguments, cwd, environment, log), ranks)
        except ProcessException as error:
            if check:
                raise AssertionError(log.read_text()[-3000:]) from error
        return log.read_text()


class ForkedCommand:
    """Stand-in for ``subprocess.Popen`` where the command is ``python tools/NAME.py …``."""

    def __init__(self, command, *, stdout, **options):
        python, tool, *arguments = command
        assert python == sys.executable
        log = run_forked(Path(tool).name, *arguments, cwd=os.getcwd())
        stdout.write(log.encode())

    def poll(self):
        return 0


def _tool(rank, arguments, cwd, environment, log):
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.environ.update(environment)
    if environment:
        os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank))
    os.chdir(cwd)
    tool = ROOT / 'tools' / arguments[0]
    sys.path.insert(0, str(tool.parent))
    gc.freeze()  # see conftest.py
    if 'quick_toolboxes' in sys.modules:
        sys.modules['quick_toolboxes'].quicken_mmengine(pytest.MonkeyPatch(), ROOT / 'configs')
        sys.modules['quick_toolboxes'].quicken_runs(pytest.MonkeyPatch())
    sys.argv = [str(tool), *arguments[1:]]
    runpy.run_path(str(tool), run_name='__main__')
