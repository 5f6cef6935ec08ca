"""Imported for its effect: runs of the toolboxes take half of their time in short tests."""

import copy
import functools
import itertools
import os
import time
from types import SimpleNamespace

from yapf.yapflib import yapf_api

# mmengine formats the text of a config for each file and log that holds it, a third of a short run.
# It takes this name when it is imported itself.
yapf_api.FormatCode = lambda text, **style: (text, False)


def quicken_mmengine(monkeypatch, configs):
    """Spare thousands of tests what mmengine does again and again.

    It reads a config anew for each that inherits from it (here those below `configs` once),
    searches for garbage, among all of pytest's objects, after loading a data set, looks for mmcv's
    extension at every layer of a network, and sleeps for a millisecond at everything it builds, so
    that no two have one name. It names a run by its second, and of two runs in one second it gives
    the other the first one's scope, log and folder of pictures: here each has a second of its own.
    """
    from mmengine.config import Config
    from mmengine.dataset import base_dataset
    from mmengine.model import utils
    from mmengine.optim.optimizer import default_constructor
    from mmengine.registry import default_scope
    from mmengine.runner import runner

    read, known = Config._file2dict, {}

    def read_once(filename, *options, **more):
        path = os.path.realpath(filename)
        if not path.startswith(f'{configs}{os.sep}'):
            return read(filename, *options, **more)
        key = path, options, tuple(more.items())
        if key not in known:
            known[key] = read(filename, *options, **more)
        return copy.deepcopy(known[key])

    monkeypatch.setattr(Config, '_file2dict', staticmethod(read_once))
    monkeypatch.setattr(base_dataset, 'gc', SimpleNamespace(collect=lambda: 0))
    for module in (utils, default_constructor):
        found = functools.cache(module.mmcv_full_available)
        monkeypatch.setattr(module, 'mmcv_full_available', found)
    counted = SimpleNamespace(time=itertools.count().__next__, sleep=lambda seconds: None)
    monkeypatch.setattr(default_scope, 'time', counted)
    runs = itertools.count()
    a_second_each = SimpleNamespace(
        time=lambda: time.time() + next(runs), strftime=time.strftime, localtime=time.localtime
    )
    monkeypatch.setattr(runner, 'time', a_second_each)
