"""Imported for its effect: runs of the toolboxes take half of their time in short tests."""

import copy
import functools
import itertools
import os
import time
from types import SimpleNamespace

import pytest
from yapf.yapflib import yapf_api

# mmengine formats the text of a config for each file and log that holds it, a third of a short run.
# It takes this name when it is imported itself.
yapf_api.FormatCode = lambda text, **style: (text, False)


def quicken_mmengine(monkeypatch, configs):
    """Replace slow parts of mmengine that short tests repeat.

    - It reads a base config again for each config that inherits from it; those below `configs` are
      read once.
    - It collects garbage after it loads a data set, among all objects of pytest; not here.
    - It looks for mmcv's extension at every layer of a network; here once.
    - It sleeps for a millisecond at everything it builds, so that names differ; here they count.
    - It names a run by its second, and two runs of one second share a scope, a log and a folder of
      pictures; here each run has its own second.
    """
    from mmengine.config import Config
    from mmengine.dataset import base_dataset
    from mmengine.model import utils
    from mmengine.optim.optimizer import default_constructor
    from mmengine.registry import default_scope
    from mmengine.runner import runner

    read_config = Config._file2dict
    cached_configs = {}

    def read_once(filename, *args, **options):
        path = os.path.realpath(filename)
        if not path.startswith(f'{configs}{os.sep}'):
            return read_config(filename, *args, **options)
        key = path, args, tuple(options.items())
        if key not in cached_configs:
            cached_configs[key] = read_config(filename, *args, **options)
        return copy.deepcopy(cached_configs[key])

    monkeypatch.setattr(Config, '_file2dict', staticmethod(read_once))
    monkeypatch.setattr(base_dataset, 'gc', SimpleNamespace(collect=lambda: 0))
    for module in (utils, default_constructor):
        is_available = functools.cache(module.mmcv_full_available)
        monkeypatch.setattr(module, 'mmcv_full_available', is_available)
    counting_clock = SimpleNamespace(time=itertools.count().__next__, sleep=lambda seconds: None)
    monkeypatch.setattr(default_scope, 'time', counting_clock)
    run_count = itertools.count()
    clock_by_run = SimpleNamespace(
        time=lambda: time.time() + next(run_count),
        strftime=time.strftime,
        localtime=time.localtime,
    )
    monkeypatch.setattr(runner, 'time', clock_by_run)


def quicken_seeds(monkeypatch):
    """Keep torch from formatting the stack three times at each seed, for errors of absent devices.

    Below pytest a stack is deep: this was half of the time of many tests.
    """
    import torch

    empty_traceback = SimpleNamespace(format_stack=list)
    for device in ('cuda', 'mtia', 'xpu'):  # Older versions do not have all of them.
        if hasattr(torch, device):
            module = getattr(torch, device)
            monkeypatch.setattr(module, 'traceback', empty_traceback, raising=False)


def quicken_runs(monkeypatch):
    """Replace what runs on the scanned digits repeat, and pauses.

    - Each split is made once.
    - Hooks draw empty figures, but where a test takes `inspect.unwrap` of their `_draw`.
    - A process gives the first one three seconds to say an error, not ten.
    - A loader that is left behind waits for its workers for less than five seconds each.
    """
    from mmcalib.openmmlab.datasets.digits import Digits, DigitScenes
    from mmcalib.openmmlab.hooks import ConfidenceMapHook, ReliabilityDiagramHook

    monkeypatch.setattr('mmcalib.cli.parser.PATIENCE', 3)
    monkeypatch.setattr('torch.utils.data._utils.MP_STATUS_CHECK_INTERVAL', 0.2)
    cached_samples = {}

    def load_once(load):
        def load_data_list(dataset):
            key = type(dataset), dataset.split, dataset.noise
            if key not in cached_samples:
                cached_samples[key] = load(dataset)
            return list(cached_samples[key])

        return load_data_list

    for dataset in (Digits, DigitScenes):
        monkeypatch.setattr(dataset, 'load_data_list', load_once(dataset.load_data_list))
    for hook in (ConfidenceMapHook, ReliabilityDiagramHook):
        monkeypatch.setattr(hook, '_draw', draw_empty_figures(hook._draw))


def draw_empty_figures(draw):
    """Return a hook's `_draw` that has empty figures in place of diagrams and maps."""

    @functools.wraps(draw)
    def draw_quickly(*arguments):
        from matplotlib.figure import Figure

        with pytest.MonkeyPatch.context() as monkeypatch:
            for name in ('draw_reliability', 'draw_confidence_maps'):
                empty = lambda *_, **__: Figure((1, 1))  # noqa: E731
                monkeypatch.setattr(f'mmcalib.visualization.{name}', empty)
            draw(*arguments)

    return draw_quickly
