"""From a config file and options to a config."""

from __future__ import annotations

import ast
import inspect
import os
import re
import sys
import warnings
from collections.abc import Collection, Mapping
from contextlib import redirect_stdout, suppress
from copy import deepcopy
from importlib import import_module
from io import StringIO
from pathlib import Path
from textwrap import shorten

from mmengine.config import Config
from mmengine.evaluator import BaseMetric
from mmengine.registry import METRICS
from mmengine.runner import Runner
from mmengine.utils import import_modules_from_strings

import mmcalib.openmmlab.register  # noqa: F401  It registers the plug-in.
from mmcalib.errors import UserError, nearest, suggestion
from mmcalib.members import STACKS, find_config
from mmcalib.runs.config_tree import find_class, find_toolbox, walk, walk_values

# Keys of configs for the toolboxes' versions 0.x.
OLD_KEYS = ('data', 'optimizer', 'lr_config', 'runner', 'checkpoint_config', 'log_config')
# Hooks of mmengine that a Runner has unless the config turns them off by None.
RUNNER_HOOKS = ('runtime_info', 'timer', 'sampler_seed', 'logger', 'param_scheduler', 'checkpoint')
# Keys at the top of a config, beside the arguments of a Runner, that it or one of our tools reads.
FURTHER_KEYS = (
    'custom_imports',
    'activation_checkpointing', 'compile', 'efficient_conv_bn_eval', 'evaluations',
    'find_unused_parameters', 'init_weights_for_test_or_val', 'model_wrapper_cfg', 'num_threads',
    'runner_type', 'strategy', 'sync_bn', 'tta_model', 'tta_pipeline',
)  # fmt: skip
MOST_KEYS = 6  # in an error
KNOWN_PACKAGES = ('mmcalib', 'mmengine', 'mmpretrain', 'mmseg')
# The name of a key where code reads it from a config.
READING = re.compile(r"""\bcfg(?:\.get\(|\[|\.)['"]?(\w+)""")


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
    check_config(cfg, path)
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


def check_config(cfg: Config, path: str) -> None:
    """Refuse what mmengine would end with pages of its own code, or with a wrong remedy.

    Raises:
        UserError: For a config of the toolboxes' versions 0.x, for a scope that does not exist, and
            for a value that mmengine cannot write into its copy of the config.
    """
    old_keys = [key for key in OLD_KEYS if key in cfg]
    if len(old_keys) > 1 and not any(key.endswith('_dataloader') for key in cfg):
        raise UserError(
            f'{path} is a config for version 0.x of a toolbox, with {", ".join(old_keys)}: inherit '
            "a config of its version 1, or translate it by the toolbox's page on migration"
        )
    for part_path, part in walk(cfg.to_dict()):
        scope, _, name = str(part.get('type')).partition('.')
        if scope == 'mmcalib' and name.isidentifier():  # A lazy config names the module, too.
            raise UserError(
                f'{path}: {part_path}.type is {part["type"]!r}, but mmcalib has no scope: name it '
                f'{name!r}'
            )
        for key, value in part.items():
            for item in value if isinstance(value, (list, tuple)) else [value]:
                if not is_writable(item):
                    full_key = f'{part_path}.{key}'.lstrip('.')
                    raise UserError(
                        f'{path}: {full_key} has {item!r}, which mmengine cannot write into its '
                        'copy of the config: put it into a class of a module in custom_imports'
                    )


def is_writable(value: object) -> bool:
    """Return whether mmengine writes a value of a config as Python code."""
    if value is None or isinstance(value, (str, int, float, type, Mapping, list, tuple)):
        return True
    try:
        ast.parse(str(value), mode='eval')
    except SyntaxError:
        return False
    return True


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
    """Refuse an option that nothing reads, or that a config has by a similar name.

    A misspelt ``train_cfgg.max_epochs=1`` would train 350 epochs, and so does ``epochs=1`` where
    the file made ``train_cfg`` from it. Of any other new key it warns.
    """
    node = cfg._cfg_dict
    known = {*cfg, *inspect.signature(Runner).parameters, *FURTHER_KEYS}
    check_is_read(cfg, key, known)
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


def check_is_read(cfg: Config, key: str, known: Collection[str]) -> None:
    """Refuse an option that no Runner and no tool reads, and name the keys that have its value.

    It prevents hours of another training than the one that was asked for.

    Args:
        cfg: Config without the options.
        key: Key of the option.
        known: Keys that the config has, or that something reads.
    """
    name, dot, rest = key.partition('.')
    if name in keys_read(cfg) or (name not in cfg and nearest(name, known, likeness=0.85)):
        return
    if name not in cfg:
        raise UserError(
            f'--cfg-options {key}: the config has no key {name}, and nothing reads such a key'
            f'{suggestion(name, known)}'
        )
    value = cfg[name]
    keys = [f'{path}{dot}{rest}' for path in keys_with_value(cfg, name)]
    text = shorten(str(value), 60, placeholder='…')
    remedy = f'no key has its value {text} today: change it in a config that inherits this one'
    if keys:
        more = f' and {len(keys) - MOST_KEYS} more' if len(keys) > MOST_KEYS else ''
        remedy = f'set what has its value {text} today, {", ".join(keys[:MOST_KEYS])}{more}'
    raise UserError(
        f'--cfg-options {key}: {name} is a variable that only the config file reads, so nothing '
        f'would change; {remedy}'
    )


def keys_read(cfg: Config) -> set[str]:
    """Return the keys at the top of a config that a Runner, one of our tools, or own code reads."""
    keys = {*inspect.signature(Runner).parameters, *FURTHER_KEYS, *keys_of_own_modules(cfg)}
    if 'data_preprocessor' in (cfg.get('model') or {}):
        keys.remove('data_preprocessor')  # A Runner gives it to a model that has none.
    return keys


def keys_of_own_modules(cfg: Config) -> set[str]:
    """Return the keys that the modules of ``custom_imports`` read by name from a ``cfg``.

    A hook of the user's own reads ``runner.cfg['my_note']``, for instance.
    """
    imports = (cfg.get('custom_imports') or {}).get('imports') or ()
    if isinstance(imports, str):
        imports = [imports]
    packages = {name.split('.')[0] for name in imports} - {*KNOWN_PACKAGES}
    keys = set()
    for name, module in list(sys.modules.items()):
        if name.split('.')[0] in packages:
            with suppress(OSError, TypeError):  # It has no source.
                keys.update(READING.findall(inspect.getsource(module)))
    return keys


def keys_with_value(cfg: Config, name: str) -> list[str]:
    """Return the keys that are read and that have the value of a variable of a config.

    Many keys have the value of a number by chance. So if some are named like the variable, no
    others count.
    """
    value = cfg[name]
    roots = {key: node for key, node in cfg._cfg_dict.items() if key in keys_read(cfg)}
    paths = [path for path, node in walk_values(roots) if is_equal(node, value)]
    if isinstance(value, (Mapping, list, tuple, str)) and value:
        return paths
    last_parts = {path: path.rpartition('.')[2] for path in paths}
    same = [path for path in paths if last_parts[path] == name]
    alike = [path for path in paths if name in last_parts[path] or last_parts[path] in name]
    return same or alike or ([] if value is None else paths)


def is_equal(node: object, value: object) -> bool:
    """Return whether two values of a config are equal and of one type, unlike 1 and True.

    The scope that mmengine notes in the variables of a config of another package does not count.
    """
    if type(node) is not type(value):
        return False
    if isinstance(node, Mapping):
        return {**node, '_scope_': None} == {**value, '_scope_': None}
    return node == value


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
