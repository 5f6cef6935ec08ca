"""From a config file and options to a config."""

from __future__ import annotations

import inspect
import os
import sys
import warnings
from collections.abc import Mapping
from contextlib import redirect_stdout
from copy import deepcopy
from importlib import import_module
from io import StringIO
from pathlib import Path

from mmengine.config import Config
from mmengine.evaluator import BaseMetric
from mmengine.registry import METRICS
from mmengine.runner import Runner
from mmengine.utils import import_modules_from_strings

from mmcalib import register
from mmcalib.cli.files import STACKS, find_config
from mmcalib.errors import UserError, nearest
from mmcalib.runs.config_tree import find_class, find_toolbox, walk

# Hooks of mmengine that a Runner has unless the config turns them off by None.
RUNNER_HOOKS = ('runtime_info', 'timer', 'sampler_seed', 'logger', 'param_scheduler', 'checkpoint')


def _find_base(name: str, inheriting: str) -> tuple[str, str | None]:
    """Return the path of a ``_base_``, and the package that ships it."""
    package, separator, _ = name.partition('::')
    if not separator:
        return find_config(os.path.join(os.path.dirname(inheriting), name)), None
    # mmengine takes a package for a toolbox, the scope of every dict; ours registers in the root.
    return find_config(name), None if package == 'mmcalib' else package


# mmengine's own look-up knows neither mmcalib nor mmseg of the onedl stack.
Config._get_cfg_path = staticmethod(_find_base)


def load_config(path: str, options: dict | None = None) -> Config:
    """Read a config, which may inherit ``mmcalib::…``, ``mmpretrain::…`` or ``mmseg::…`` ones.

    Args:
        path: The config file, or one that a package ships as ``mmcalib::mbls/digits.py``.
        options: Dotted keys and the values that replace those of the file.

    Raises:
        UserError: If there is no such file, it cannot be read, its toolbox is not installed, or an
            option is like one that the config has.
    """
    register()
    path = find_config(path)
    try:
        cfg = read_config(path)
    except ImportError as error:
        reason = str(error)
        if error.__context__ is not None:
            reason = f'{reason}: {error.__context__}'
        raise UserError(
            f'{path}: {reason}. A module of your own is looked for beside the config and on '
            f'PYTHONPATH; for the toolboxes: {STACKS}'
        ) from error
    except UserError as error:  # A _base_ cannot be found.
        raise UserError(f'{path}: {error.reason}') from error
    except Exception as error:  # A config is code and may raise anything.
        raise UserError(f'{path} cannot be read: {type(error).__name__}: {error}') from error
    if options:
        replace_options(cfg, options)
    list_single_metrics(cfg)
    remove_absent_hooks(cfg)
    return cfg


def read_config(path: str) -> Config:
    """Read a config file, and import the modules that it needs."""
    folder = str(Path(path).resolve().parent)
    if folder not in sys.path:
        sys.path.append(folder)  # Modules of custom_imports may lie there.
    cfg = Config.fromfile(path, import_custom_modules=False)
    if cfg.get('custom_imports'):  # mmengine's own error would list the path of Python.
        import_modules_from_strings(**cfg.custom_imports)
    for _ in walk(cfg._cfg_dict):  # A config of the new style imports its classes when visited.
        pass
    toolbox = find_toolbox(cfg)
    if toolbox:
        with warnings.catch_warnings(), redirect_stdout(StringIO()):
            # The toolboxes warn of each operator that is not installed.
            warnings.filterwarnings('ignore', message='Fail to import')
            import_module(f'{toolbox}.datasets')
    return cfg


def replace_options(cfg: Config, options: dict) -> None:
    """Replace values of a config by those of ``--cfg-options``."""
    before = deepcopy(cfg)
    try:
        cfg.merge_from_dict(options)
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f'--cfg-options {" ".join(options)}: {error.args[0]}') from error
    for key in options:
        check_option_key(before, key)


def check_option_key(cfg: Config, key: str) -> None:
    """Refuse an option that a config has by a similar name, and warn of any other new one.

    A misspelt ``train_cfgg.max_epochs=1`` would train 350 epochs.
    """
    node = cfg._cfg_dict
    known = {*cfg, *inspect.signature(Runner).parameters}
    for part in key.split('.'):
        if isinstance(node, (list, tuple)):
            node = node[int(part)]
        elif not isinstance(node, Mapping):
            return  # The value is replaced as a whole.
        elif part in node:
            node = node[part]
        else:
            if part in known:
                return
            if meant := nearest(part, known, likeness=0.85):
                raise UserError(f'--cfg-options {key}: did you mean {meant}?')
            if part != '_delete_':
                warnings.warn(f'--cfg-options {key}: the config had no such key', stacklevel=1)
            return
        known = set(node) if isinstance(node, Mapping) else set()


def list_single_metrics(cfg: Config) -> None:
    """Put an evaluator that is one metric into a list.

    mmengine takes any dict with a key `metrics` for an evaluator that holds metrics.
    """
    for key in ('val_evaluator', 'test_evaluator'):
        evaluator = cfg.get(key)
        if isinstance(evaluator, Mapping) and 'type' in evaluator:
            kind = find_class(evaluator, cfg.get('default_scope'), METRICS)
            if inspect.isclass(kind) and issubclass(kind, BaseMetric):
                cfg[key] = [evaluator]


def remove_absent_hooks(cfg: Config) -> None:
    """Remove the hooks that are None, which a Runner knows only of its own ones."""
    hooks = cfg.get('default_hooks') or {}
    for name in list(hooks):
        if hooks[name] is None and name not in RUNNER_HOOKS:
            del hooks[name]
