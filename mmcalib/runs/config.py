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

# mmengine's default hooks, which None turns off.
OWN_HOOKS = ('runtime_info', 'timer', 'sampler_seed', 'logger', 'param_scheduler', 'checkpoint')


def _path_of_base(name: str, inheriting: str) -> tuple[str, str | None]:
    """Return the path of a ``_base_``, and the package that ships it."""
    package, shipped, _ = name.partition('::')
    path = name if shipped else os.path.join(os.path.dirname(inheriting), name)
    # mmengine takes a package for a toolbox, the scope of every dict; ours registers in the root.
    return find_config(path), package if shipped and package != 'mmcalib' else None


# mmengine's own look-up knows neither mmcalib nor mmseg of the onedl stack.
Config._get_cfg_path = staticmethod(_path_of_base)


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
    folder = str(Path(path).resolve().parent)
    if folder not in sys.path:
        sys.path.append(folder)  # for custom_imports
    try:
        cfg = Config.fromfile(path, import_custom_modules=False)
        if cfg.get('custom_imports'):  # in place of mmengine, whose error lists the path of Python
            import_modules_from_strings(**cfg.custom_imports)
        for _ in walk(cfg._cfg_dict):  # A config of the new style imports its classes when visited.
            pass
        with warnings.catch_warnings(), redirect_stdout(StringIO()):  # of what is not installed
            warnings.filterwarnings('ignore', message='Fail to import')
            if toolbox := find_toolbox(cfg):
                import_module(f'{toolbox}.datasets')
    except ImportError as error:
        reason = ': '.join(str(each) for each in (error, error.__context__) if each)
        raise UserError(
            f'{path}: {reason}. A module of your own is looked for beside the config and on '
            f'PYTHONPATH; for the toolboxes: {STACKS}'
        ) from error
    except UserError as error:  # of a _base_
        raise UserError(f'{path}: {error.reason}') from error
    except Exception as error:  # of whatever its code led to
        raise UserError(f'{path} cannot be read: {type(error).__name__}: {error}') from error
    if options:
        before = deepcopy(cfg)
        try:
            cfg.merge_from_dict(options)
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(f'--cfg-options {" ".join(options)}: {error.args[0]}') from error
        check_option_keys(before, options)
    list_single_metrics(cfg)
    hooks = cfg.get('default_hooks') or {}
    for name in [name for name, hook in hooks.items() if hook is None and name not in OWN_HOOKS]:
        del hooks[name]
    return cfg


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


def check_option_keys(cfg: Config, options: Mapping) -> None:
    """Refuse an option that a config has by a similar name, and say of others that they are new."""
    for key in options:
        node, known = cfg._cfg_dict, {*cfg, *inspect.signature(Runner).parameters}
        for part in key.split('.'):
            if isinstance(node, (list, tuple)):
                node = node[int(part)]
            elif not isinstance(node, Mapping):
                break  # replaced as a whole
            elif part not in node:
                if part not in known and (meant := nearest(part, known, likeness=0.85)):
                    raise UserError(f'--cfg-options {key}: did you mean {meant}?')
                if part not in known and part != '_delete_':
                    warnings.warn(f'--cfg-options {key}: the config had no such key', stacklevel=1)
                break
            else:
                node = node[part]
            known = set(node) if isinstance(node, Mapping) else set()
