import gc
import logging
import os
import socket
import sys
from types import SimpleNamespace

import pytest
from commands import ROOT, call_here
from quick_toolboxes import quicken_mmengine

# Before torch is imported: the tests' own processes share the cores.
os.environ.setdefault('OMP_NUM_THREADS', '1')


@pytest.fixture(autouse=True, scope='session')
def quick_mmengine():
    with pytest.MonkeyPatch.context() as monkeypatch:
        quicken_mmengine(monkeypatch, ROOT / 'configs')
        yield


@pytest.fixture(autouse=True, scope='module')
def scope_of_before():
    """A file of tests leaves no default scope of mmengine to the next one, whichever that is."""
    from mmengine.registry import DefaultScope

    before = DefaultScope._instance_dict.copy()
    yield
    DefaultScope._instance_dict.clear()
    DefaultScope._instance_dict.update(before)


@pytest.fixture(autouse=True)
def no_logger_of_an_earlier_test():
    """A logger that writes to what pytest captured of another test would print a traceback.

    Its log file is closed, so that no later test gets the warning of the garbage collector.
    """
    from mmengine.logging import MMLogger

    for name, logger in MMLogger._instance_dict.copy().items():
        streams = [getattr(handler, 'stream', None) for handler in logger.handlers]
        if any(getattr(stream, 'closed', False) for stream in streams):
            del MMLogger._instance_dict[name]
    yield
    for logger in MMLogger._instance_dict.values():
        for handler in logger.handlers:
            if isinstance(handler, logging.FileHandler):
                handler.close()


@pytest.fixture(autouse=True, scope='module')
def less_garbage_to_search():
    """What some tests collect garbage for takes 0.5 s among pytest's objects."""
    gc.collect()
    gc.freeze()


def pytest_addoption(parser):
    parser.addoption(
        '--all-configs',
        action='store_true',
        help='all configs and architectures that mmseg and mmpretrain ship, which takes long',
    )


def pytest_unconfigure():
    gc.unfreeze()


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Run a tool in an empty folder and return what it says; of one that fails, its error."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, 'path', list(sys.path))

    def run_tool(tool, *arguments, code=0):
        status = 0
        try:
            call_here(tool, *arguments, monkeypatch=monkeypatch)
        except SystemExit as end:
            status = end.code or 0
        said = capsys.readouterr()
        assert status == code and 'Traceback' not in said.err + said.out, said.err
        return said.err if code else said.err + said.out

    return run_tool


@pytest.fixture
def no_pause(monkeypatch):
    """mmengine's loop of iterations sleeps for two seconds wherever the data start anew."""
    monkeypatch.setattr('mmengine.runner.loops.time', SimpleNamespace(sleep=lambda seconds: None))


@pytest.fixture
def free_port():
    """A TCP port that no process listens on, as a string."""
    with socket.socket() as listener:
        listener.bind(('localhost', 0))
        return str(listener.getsockname()[1])


# They start first, so that no process is left with one of them at the end.
LONGEST = (
    'test_all.py',
    'test_lazy_configs.py',
    'test_configs.py',
    'test_calibrate.py',
    'test_all_metrics.py',
    'test_drawing_hooks.py',
    'test_command_lines.py',
    'test_pages.py',
    'test_package.py',
)


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: item.path.name not in LONGEST)


def pytest_configure(config):
    config.option.loadscopereorder = False  # by which xdist starts with the most tests
