import gc
import os
import socket
from types import SimpleNamespace

import pytest
from commands import ROOT
from quick_toolboxes import quicken_mmengine

# Before torch is imported: the tests' own processes share the cores.
os.environ.setdefault('OMP_NUM_THREADS', '1')

# A machine of the README's has no GPU, and some packages that mmcalib allows an older PyTorch;
# whatever else is skipped, a broken installation hides.
EXPECTED_SKIPS = ('needs a GPU', 'needs PyTorch 2.', 'needs --all-configs')
_unexpected = pytest.StashKey[list]()


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
    """A logger that writes to what pytest captured of another test would print a traceback."""
    from mmengine.logging import MMLogger

    for name, logger in MMLogger._instance_dict.copy().items():
        streams = (getattr(handler, 'stream', None) for handler in logger.handlers)
        if any(getattr(stream, 'closed', False) for stream in streams):
            del MMLogger._instance_dict[name]


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
    'test_tools.py',
    'test_every_tool.py',
    'test_configs.py',
    'test_calibrate.py',
    'test_all_metrics.py',
    'test_drawing_hooks.py',
    'test_package.py',
)


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: item.path.name not in LONGEST)


def pytest_configure(config):
    config.option.loadscopereorder = False  # by which xdist starts with the most tests
    config.stash[_unexpected] = []
    config.pluginmanager.register(SkipWatch(config))


class SkipWatch:
    """Fails a run of continuous integration in which a test was skipped that should have run."""

    def __init__(self, config):
        self.unexpected = config.stash[_unexpected]

    def pytest_runtest_logreport(self, report):
        self._note(report)

    def pytest_collectreport(self, report):
        self._note(report)

    def _note(self, report):
        if report.skipped and not hasattr(report, 'wasxfail'):
            reason = str(report.longrepr[2] if isinstance(report.longrepr, tuple) else '')
            if not reason.removeprefix('Skipped: ').startswith(EXPECTED_SKIPS):
                self.unexpected.append(f'{report.nodeid}: {reason}')

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session):
        if os.environ.get('CI') and self.unexpected and session.exitstatus == 0:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter):
        if os.environ.get('CI') and self.unexpected:
            terminalreporter.section('skipped, though this environment should run them')
            terminalreporter.write_line('\n'.join(self.unexpected))
