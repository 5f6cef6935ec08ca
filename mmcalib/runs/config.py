"""From a config file and options to the config of a run."""

from __future__ import annotations

import argparse
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

import torch
from mmengine.config import Config
from mmengine.evaluator import BaseMetric
from mmengine.registry import METRICS
from mmengine.runner import Runner
from mmengine.utils import import_modules_from_strings

from mmcalib import register
from mmcalib.cli.files import STACKS, find_config
from mmcalib.errors import UserError, did_you_mean, nearest
from mmcalib.files import experiment_name
from mmcalib.openmmlab.splits import TESTED_SPLIT
from mmcalib.options import check_integer
from mmcalib.runs.config_tree import find_class, find_toolbox, walk

DATALOADERS = ('train_dataloader', 'val_dataloader', 'test_dataloader')
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


def prepare(path: str, args: argparse.Namespace) -> Config:
    """Return a config as the arguments of a tool ask for it, but for a limit on its samples."""
    cfg = load_config(path, args.cfg_options)
    cfg.launcher = args.launcher
    set_work_dir(cfg, args.work_dir, limit=args.limit)
    if getattr(args, 'evaluation', None):
        use_evaluation(cfg, args.evaluation)
    if args.split == 'val':
        test_on_validation(cfg)
    return cfg


def set_work_dir(cfg: Config, work_dir: str | None, *, limit: int | None = None) -> None:
    """Set the work dir: the given one, else the config's, else one named after the experiment.

    A smoke run that is given none has one below it, and leaves the files of real runs alone.
    """
    cfg.work_dir = work_dir or cfg.get('work_dir') or f'work_dirs/{experiment_name(cfg.filename)}'
    if limit and not work_dir:
        cfg.work_dir = str(Path(cfg.work_dir, f'limit{limit}'))


def limit_samples(cfg: Config, limit: int) -> None:
    """Make a smoke run of a config: a few samples of each split, and one epoch at most.

    Results and checkpoints say so, and reports leave them out.

    Args:
        cfg: Of the run.
        limit: Samples of each split.

    Raises:
        UserError: If it is below 1.
    """
    cfg.limit = check_integer('--limit', limit)
    for loader in filter(None, map(cfg.get, DATALOADERS)):
        loader.dataset = dict(type='EvenSubset', dataset=loader.dataset, samples=limit)
        loader.pop('num_batch_per_epoch', None)
    loader, schedule = cfg.get('train_dataloader'), cfg.get('train_cfg')
    if not loader or not schedule:
        return
    if 'batch_size' in loader:  # a sampler that drops the last batch would have none
        loader.batch_size = min(loader.batch_size, limit)
    schedule.pop('dynamic_intervals', None)
    schedule.pop('val_begin', None)
    key = 'max_epochs' if schedule.get('max_epochs') else 'max_iters'
    length = 1 if key == 'max_epochs' else -(-limit // (loader.get('batch_size') or 1))
    schedule.update({key: length, 'val_interval': length})


def test_on_validation(cfg: Config) -> None:
    """Have a test take the validation split, as a choice between models has to.

    Raises:
        UserError: If the config has none.
    """
    if cfg.get('val_dataloader') is None:
        raise UserError('--split val needs a val_dataloader in the config')
    cfg.test_dataloader = deepcopy(cfg.val_dataloader)
    cfg.test_evaluator = deepcopy(cfg.val_evaluator)
    cfg.setdefault('test_cfg', dict())
    cfg[TESTED_SPLIT] = 'val'


def set_loader_defaults(cfg: Config) -> None:
    """Fill in the defaults of mmpretrain's own tools, and turn off what needs a GPU or workers."""
    classifies = find_toolbox(cfg) == 'mmpretrain'
    for loader in filter(None, map(cfg.get, DATALOADERS)):
        if classifies:
            loader.setdefault('collate_fn', dict(type='default_collate'))
            loader.setdefault('pin_memory', True)
            loader.setdefault('persistent_workers', True)
        if not torch.cuda.is_available():
            loader.pin_memory = False
        if not loader.get('num_workers'):
            loader.persistent_workers = False


def use_evaluation(cfg: Config, name: str) -> None:
    """Test by one of the config's named ``evaluations``, in a folder of its own in the work dir.

    Raises:
        UserError: If the config has none of that name.
    """
    named = cfg.get('evaluations', {})
    if name not in named:
        known = did_you_mean(name, named) if named else ', and none at all'
        raise UserError(f'--evaluation {name}: the config has no such evaluation{known}')
    cfg.merge_from_dict(named[name])
    list_single_metrics(cfg)
    cfg.work_dir = str(Path(cfg.work_dir, name))


def show_predictions(cfg: Config, folder: str) -> None:
    """Have the toolbox's own visualization hook draw the predictions of a test into a folder.

    Raises:
        UserError: If the config has no such hook.
    """
    hook = cfg.get('default_hooks', {}).get('visualization')
    if hook is None:
        raise UserError(
            '--show-dir needs default_hooks.visualization in the config; the digits have none, '
            'because their images are not files'
        )
    if find_toolbox(cfg) == 'mmpretrain':
        hook.update(interval=1, enable=True, out_dir=folder)
    else:
        hook.update(interval=1, draw=True)
        cfg.visualizer.save_dir = folder
