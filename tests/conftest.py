import gc
import logging
import os
import socket
import sys
from types import SimpleNamespace

import pytest
from commands import ROOT, run_in_process

# The processes of the tests share the cores; torch reads this when it is imported.
os.environ.setdefault('OMP_NUM_THREADS', '1')


@pytest.fixture(autouse=True, scope='session')
def quick_mmengine():
    with pytest.MonkeyPatch.context() as monkeypatch:
        if 'quick_toolboxes' in sys.modules:
            sys.modules['quick_toolboxes'].quicken_mmengine(monkeypatch, ROOT / 'configs')
            sys.modules['quick_toolboxes'].quicken_seeds(monkeypatch)
            sys.modules['quick_toolboxes'].quicken_runs(monkeypatch)
        yield


@pytest.fixture(autouse=True, scope='module')
def restored_scopes():
    """Restore mmengine's default scopes, so that no file of tests changes those of the next."""
    from mmengine.registry import DefaultScope

    before = DefaultScope._instance_dict.copy()
    yield
    DefaultScope._instance_dict.clear()
    DefaultScope._instance_dict.update(before)


@pytest.fixture(autouse=True)
def closed_loggers_removed():
    """Remove loggers that write to the closed capture of another test, and would print errors.

    Their log files are closed, so that no later test gets the warning of the garbage collector.
    """
    from mmengine.logging import MMLogger

    for name, logger in MMLogger._instance_dict.copy().items():
        streams = [getattr(handler, 'stream', None) for handler in logger.handlers]
        if any(getattr(stream, 'closed', False) for stream in streams):
            del MMLogger._instance_dict[name]
    yield
    for name, logger in MMLogger._instance_dict.copy().items():
        files = [handler for handler in logger.handlers if isinstance(handler, logging.FileHandler)]
        for file in files:
            file.close()
        if files:
            del MMLogger._instance_dict[name]


@pytest.fixture(autouse=True, scope='module')
def frozen_garbage():
    """Freeze pytest's objects, among which a collection of garbage takes 0.5 s."""
    gc.collect()
    gc.freeze()


def pytest_addoption(parser):
    parser.addoption(
        '--all-configs',
        action='store_true',
        help='all configs and architectures that mmseg and mmpretrain ship, which takes long',
    )
    parser.addoption(
        '--real-toolboxes',
        action='store_true',
        help='mmengine as users have it, without what the suite replaces in it to be quick',
    )


def pytest_unconfigure():
    gc.unfreeze()


@pytest.fixture
def run_folder(tmp_path):
    """The folder in which `run` runs tools; a file of tests may override it."""
    return tmp_path


@pytest.fixture
def run(run_folder, monkeypatch, capsys):
    """Function that runs a tool in the `run_folder`; returns its output, or the error it prints."""
    monkeypatch.chdir(run_folder)

    def run_tool(tool, *arguments, code=0):
        run_in_process(tool, *arguments, code=code)
        output = capsys.readouterr()
        assert 'Traceback' not in output.err + output.out
        return output.err if code else output.err + output.out

    return run_tool


@pytest.fixture
def no_pause(monkeypatch):
    """Replace the sleep of two seconds of mmengine's loop at each new epoch of its data."""
    monkeypatch.setattr('mmengine.runner.loops.time', SimpleNamespace(sleep=lambda seconds: None))


@pytest.fixture
def torchscript(monkeypatch):
    """Take away what torch.export needs, by which an export takes ten times as long."""
    monkeypatch.setitem(sys.modules, 'onnxscript', None)


@pytest.fixture
def free_port():
    """A TCP port that no process listens on, as a string."""
    with socket.socket() as listener:
        listener.bind(('localhost', 0))
        return str(listener.getsockname()[1])


# The longest files start first, so that no process is left with one of them at the end.
LONGEST = (
    'test_all.py',
    'test_lazy_configs.py',
    'test_configs.py',
    'test_calibrate_command.py',
    'test_sinks.py',
    'test_held_out.py',
    'test_all_metrics.py',
    'test_drawing_hooks.py',
    'test_command_lines.py',
    'test_pages.py',
    'test_package.py',
)


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: item.path.name not in LONGEST)


def pytest_configure(config):
    # xdist would start with the file that has the most tests.
    config.option.loadscopereorder = False
    if not config.getoption('--real-toolboxes'):
        import quick_toolboxes  # noqa: F401  Before mmengine, whose yapf it replaces.
