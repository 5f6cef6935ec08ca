"""What tools/train.py and tools/test.py do: from a config file and options to a finished Runner."""

from __future__ import annotations

import os
import zipfile
from argparse import ArgumentParser
from copy import deepcopy
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path

import mmengine
import torch
from mmengine import fileio
from mmengine.config import Config, ConfigDict, DictAction
from mmengine.config.utils import MODULE2PACKAGE
from mmengine.dist import barrier, is_main_process
from mmengine.hooks import CheckpointHook
from mmengine.logging import print_log
from mmengine.model import MMDistributedDataParallel, revert_sync_batchnorm
from mmengine.registry import MODEL_WRAPPERS, RUNNERS
from mmengine.runner import Runner, find_latest_checkpoint

from mmcalib.checks import CompleteWeights
from mmcalib.metrics import CalibrationMetric
from mmcalib.record import RESULTS, VALIDATION_RESULTS, CheckpointMeta, describe

# Since 2.6, torch.load refuses mmengine's own checkpoints, since they hold more than tensors.
# The onedl fork works around that; the classic mmengine 0.10.7 needs this before it can resume or
# test what it has just trained. As ever: load checkpoints only from people you trust.
if 'TORCH_FORCE_WEIGHTS_ONLY_LOAD' not in os.environ:
    os.environ.setdefault('TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD', '1')

DATALOADERS = ('train_dataloader', 'val_dataloader', 'test_dataloader')
SPLITS = ('test', 'val')
LAST_WEIGHTS = 'last weights'


def add_runner_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of everything that builds a Runner."""
    parser.add_argument('--no-pin-memory', action='store_true', help='do not pin loaded batches')
    parser.add_argument(
        '--cfg-options',
        nargs='+',
        action=DictAction,
        metavar='KEY=VALUE',
        help='replace config values, such as randomness.seed=1 or key="[a,b]"',
    )
    parser.add_argument(
        '--launcher', choices=['none', 'pytorch', 'slurm', 'mpi'], default='none', help='of the job'
    )
    parser.add_argument('--local_rank', '--local-rank', type=int, default=0, help='set by launcher')


def add_split_argument(parser: ArgumentParser) -> None:
    """Add ``--split``, which says what training and testing test on."""
    parser.add_argument(
        '--split',
        choices=SPLITS,
        default='test',
        help='what to test on: val leaves results_val.json in place of results.json',
    )


def parse_options(options: list[str]) -> dict:
    """Return what ``--cfg-options`` makes of ``KEY=VALUE`` arguments."""
    parser = ArgumentParser()
    parser.add_argument('--cfg-options', nargs='*', action=DictAction, default={})
    return parser.parse_args(['--cfg-options', *options]).cfg_options


def load_config(path: str, options: dict | None = None) -> Config:
    """Read a config, which may inherit ``mmcalib::…``, ``mmpretrain::…`` or ``mmseg::…`` ones.

    Args:
        path: The config file.
        options: Dotted keys and the values that replace those of the file.

    Raises:
        FileNotFoundError: If there is no such file.
        ImportError: If the toolbox that the config belongs to is not installed.
    """
    if not Path(path).is_file():
        raise FileNotFoundError(f'there is no config {path!r} in {os.getcwd()}')
    # mmengine refuses prefixes of packages that it does not list.
    MODULE2PACKAGE.setdefault('mmcalib', 'mmcalib')
    # It also looks for mmseg in the distribution mmsegmentation, which the onedl stack lacks.
    try:
        distribution('mmsegmentation')
    except PackageNotFoundError:
        MODULE2PACKAGE['mmseg'] = 'mmseg'
    hint = 'pip install "mmcalib[onedl]", or "mmcalib[openmmlab]" beside a classic OpenMMLab'
    try:
        cfg = Config.fromfile(path)
    except ImportError as error:
        raise ImportError(f'{path}: {error}. For the toolboxes: {hint}') from error
    _drop_own_scope(cfg._cfg_dict)
    scope = cfg.get('default_scope', 'mmengine')
    if find_spec(scope) is None:
        raise ImportError(f'{path} needs {scope}, which is not installed: {hint}')
    if options:
        cfg.merge_from_dict(options)
    return cfg


def _drop_own_scope(node: object) -> None:
    """Take out the ``_scope_='mmcalib'`` that inheriting from ``mmcalib::`` puts into every dict.

    mmengine takes the package for a toolbox, and would look for all classes in registries named
    mmcalib. But ours are in the root ones, and all others in those of the config's own toolbox.
    """
    if isinstance(node, dict):
        if node.get('_scope_') == 'mmcalib':
            del node['_scope_']
        node = list(node.values())
    if isinstance(node, (list, tuple)):
        for item in node:
            _drop_own_scope(item)


def experiment_name(config_path: str) -> str:
    """Return ``mbls/digits`` for ``configs/mbls/digits.py``, the bare name outside of a `configs`.

    The folder is kept since the same experiment has the same file name under every loss.
    """
    path = Path(config_path).resolve().with_suffix('')
    parts = path.parts
    if 'configs' in parts[:-1]:
        last = len(parts) - 1 - parts[::-1].index('configs')
        return '/'.join(parts[last + 1 :])
    return path.name


def set_work_dir(cfg: Config, work_dir: str | None) -> None:
    """Set the work dir: the given one, else the config's, else one named after the experiment.

    Raises:
        ValueError: If it is a file.
    """
    cfg.work_dir = work_dir or cfg.get('work_dir') or f'work_dirs/{experiment_name(cfg.filename)}'
    if os.path.isfile(cfg.work_dir):
        raise ValueError(f'the work dir {cfg.work_dir!r} is a file: name a folder')


def keep_other_results(cfg: Config, checkpoint: str, split: str) -> None:
    """Move the work dir of a test to a folder below, if it has the results of another checkpoint.

    So the uncalibrated result outlives that of the calibrated checkpoint, for example.
    """
    name = VALIDATION_RESULTS if split == 'val' else RESULTS
    try:
        earlier = mmengine.load(Path(cfg.work_dir, name))['checkpoint']
    except (FileNotFoundError, KeyError, TypeError, ValueError):
        return
    # A run that was moved still has its own results.
    moved = not os.path.exists(earlier) and Path(earlier).name == Path(checkpoint).name
    if os.path.realpath(earlier) == os.path.realpath(checkpoint) or moved:
        return
    folder = str(Path(cfg.work_dir, Path(checkpoint).stem))
    print(f'{cfg.work_dir} has the results of {earlier}: the new ones go to {folder}')
    cfg.work_dir = folder
    keep_other_results(cfg, checkpoint, split)  # of another run, it may have the same name


def test_on_validation(cfg: Config) -> None:
    """Have a test take the validation split, as a choice between models has to.

    Raises:
        ValueError: If the config has none.
    """
    if cfg.get('val_dataloader') is None:
        raise ValueError('--split val needs a val_dataloader in the config')
    cfg.test_dataloader = deepcopy(cfg.val_dataloader)
    cfg.test_evaluator = deepcopy(cfg.val_evaluator)
    cfg.setdefault('test_cfg', dict())


def set_loader_defaults(
    cfg: Config, pin_memory: bool = True, persistent_workers: bool = True
) -> None:
    """Fill in what mmpretrain's own tools do for its configs, and what the machine rules out."""
    for key in DATALOADERS:
        loader = cfg.get(key)
        if loader is None:
            continue
        if cfg.get('default_scope') == 'mmpretrain':
            loader.setdefault('collate_fn', dict(type='default_collate'))
            loader.setdefault('pin_memory', True)
            loader.setdefault('persistent_workers', True)
        if not pin_memory or not torch.cuda.is_available():
            loader.pin_memory = False
        if not persistent_workers or not loader.get('num_workers'):
            loader.persistent_workers = False


def build_runner(cfg: Config, *, complete_weights: bool = False) -> Runner:
    """Build the Runner of a config, on one process or many, with or without a GPU.

    Args:
        cfg: As :func:`load_config` and what follows it made it.
        complete_weights: Whether a checkpoint that is loaded must hold the whole model, as for a
            test.

    Raises:
        ValueError: If a launcher other than ``pytorch`` is asked for without a GPU.
    """
    if cfg.launcher != 'none' and not torch.cuda.is_available():
        if cfg.launcher != 'pytorch':
            raise ValueError(
                f'--launcher {cfg.launcher} needs GPUs, and this machine has none: use '
                'tools/dist_train.sh or tools/dist_test.sh, which run on the CPU too'
            )
        # mmengine would call torch.cuda.set_device; it keeps a process group that is there.
        if not torch.distributed.is_initialized():
            torch.distributed.init_process_group('gloo')
        cfg.model_wrapper_cfg = dict(
            type='CPUDistributedDataParallel',
            device_ids=None,
            broadcast_buffers=False,
            find_unused_parameters=cfg.get('find_unused_parameters', False),
        )
    runner = RUNNERS.build(cfg) if 'runner_type' in cfg else Runner.from_cfg(cfg)
    runner.register_hook(CheckpointMeta())
    if complete_weights:
        runner.register_hook(CompleteWeights())
    return runner


@MODEL_WRAPPERS.register_module()
class CPUDistributedDataParallel(MMDistributedDataParallel):
    """mmengine's DDP without GPUs: SyncBN, which only runs on them, becomes BN."""

    def __init__(self, module: torch.nn.Module, **kwargs) -> None:
        super().__init__(revert_sync_batchnorm(module), **kwargs)


def train(cfg: Config, test: bool = True, split: str = 'test') -> dict | None:
    """Train, then test the best checkpoint if the config has a test split and `test` is set.

    Args:
        cfg: As :func:`load_config` and what follows it made it.
        test: Whether to test at all.
        split: What the config tests on, ``'val'`` after :func:`test_on_validation`.

    Returns:
        The metrics of the test, or None without one.
    """
    runner = build_runner(cfg)
    runner.train()
    if not test:
        return None
    if cfg.get('test_dataloader') is None:
        print_log('The config has no test_dataloader, so there is no test.', logger='current')
        return None
    best = best_checkpoint(runner)
    barrier()  # until the main process has written it
    if best is None or not fileio.exists(best):  # a resumed run may have been moved
        best = None
        print_log('No best checkpoint was kept: testing the last weights.', logger='current')
    else:
        print_log(f'Testing the best checkpoint, {best}.', logger='current')
        runner.load_checkpoint(best)
    return run_test(runner, best or LAST_WEIGHTS, split=split, finished=True)


def run_test(
    runner: Runner, checkpoint: str, *, split: str = 'test', finished: bool | None = None
) -> dict:
    """Test, and leave what later tools read in the work dir.

    That is ``results.json`` with the metrics and what :func:`~mmcalib.record.describe` says, and
    the statistics of each ``CalibrationMetric`` in ``calibration.npz``, or the name of its prefix
    and protocol. Of the split ``'val'`` both names end in ``_val``.
    """
    ours = [m for m in runner.test_evaluator.metrics if isinstance(m, CalibrationMetric)]
    for metric in ours:
        metric.keep_statistics = True
    metrics = runner.test()
    if is_main_process():
        _save_statistics(ours, Path(runner.work_dir), '_val' if split == 'val' else '')
        result = {
            'experiment': experiment_name(runner.cfg.filename),
            'checkpoint': str(checkpoint),
            'split': split,
            'metrics': metrics,
            **describe(runner, checkpoint, finished=finished),
        }
        name = VALIDATION_RESULTS if split == 'val' else RESULTS
        mmengine.dump(result, Path(runner.work_dir, name), indent=2)
    return metrics


def _save_statistics(metrics: list[CalibrationMetric], folder: Path, ending: str) -> None:
    saved = {}
    for metric in metrics:
        name, statistics = metric.prefix, metric.statistics
        if statistics.protocol != 'pooled':
            name += f'_{statistics.protocol}'
        if name in saved:  # as ECE and AECE are when listed one by one
            statistics.metrics = saved[name].metrics | statistics.metrics
        saved[name] = statistics
        statistics.save(folder / f'{name}{ending}.npz')


def last_checkpoint(folder: str | Path) -> Path | None:
    """Return the newest checkpoint of a training that was written to its end, None without any."""
    whole = [
        path
        for kind in ('epoch', 'iter')
        for path in Path(folder).glob(f'{kind}_*.pth')
        if zipfile.is_zipfile(path)  # its index comes last
    ]
    return max(whole, key=lambda path: int(path.stem.split('_')[-1]), default=None)


def resume_latest(cfg: Config) -> None:
    """Have a training go on from the newest whole checkpoint in its work dir.

    mmengine's own search trusts a file that names the last one, which may have been cut off or,
    where a single one is kept, deleted before it was replaced.

    Raises:
        FileNotFoundError: If there has been one, and none is left.
    """
    cfg.resume, newest = True, last_checkpoint(cfg.work_dir)
    cfg.load_from = newest and str(newest)
    named = find_latest_checkpoint(cfg.work_dir) if newest is None else None
    if named and not fileio.exists(named):
        best = ', '.join(str(path) for path in sorted(Path(cfg.work_dir).glob('best_*.pth')))
        raise FileNotFoundError(
            f'--resume: {named}, the last checkpoint, is gone, as after a stop while it was '
            f'written. Go on from another by --resume PATH{f", such as {best}" if best else ""}'
        )


def best_checkpoint(runner: Runner) -> str | None:
    """Return the checkpoint that ``CheckpointHook(save_best=…)`` kept, the first if several."""
    for hook in runner.hooks:
        if isinstance(hook, CheckpointHook):
            if getattr(hook, 'best_ckpt_path', None):
                return hook.best_ckpt_path
            kept = getattr(hook, 'best_ckpt_path_dict', {}).values()
            return next((path for path in kept if path), None)
    return None


def use_evaluation(cfg: Config, name: str) -> None:
    """Test by one of the config's named ``evaluations``, in a folder of its own in the work dir.

    Raises:
        ValueError: If the config has none of that name.
    """
    named = cfg.get('evaluations', {})
    if name not in named:
        known = f'it has {", ".join(sorted(named))}' if named else 'it has none'
        raise ValueError(f'--evaluation {name}: the config has no such evaluation; {known}')
    cfg.merge_from_dict(named[name])
    cfg.work_dir = str(Path(cfg.work_dir, name))


def enable_tta(cfg: Config) -> None:
    """Turn on test-time augmentation the way the config's toolbox does.

    Raises:
        ValueError: If an mmseg config defines no ``tta_pipeline`` and ``tta_model``.
    """
    dataset = cfg.test_dataloader.dataset
    if cfg.get('default_scope') == 'mmpretrain':
        cfg.setdefault('tta_model', dict(type='mmpretrain.AverageClsScoreTTA'))
        if 'tta_pipeline' not in cfg:
            # mmpretrain's default: the image and its mirror image.
            pipeline = deepcopy(dataset.pipeline)
            flips = [dict(type='RandomFlip', prob=prob) for prob in (1.0, 0.0)]
            last = dict(type='TestTimeAug', transforms=[flips, [pipeline[-1]]])
            cfg.tta_pipeline = [*pipeline[:-1], last]
    if 'tta_model' not in cfg or 'tta_pipeline' not in cfg:
        raise ValueError('--tta needs tta_model and tta_pipeline in the config')
    dataset.pipeline = cfg.tta_pipeline
    cfg.model = ConfigDict(**cfg.tta_model, module=cfg.model)


def enable_drawing(
    cfg: Config, show: bool, show_dir: str | None, interval: int, wait_time: float
) -> None:
    """Have the toolbox's own visualization hook draw the predictions of a test.

    Raises:
        ValueError: If the config has no such hook.
    """
    hook = cfg.get('default_hooks', {}).get('visualization')
    if hook is None:
        raise ValueError(
            '--show and --show-dir need default_hooks.visualization in the config; the embedded '
            'demos have none, since their images are no files'
        )
    hook.update(show=show, interval=interval, wait_time=wait_time)
    if cfg.get('default_scope') == 'mmpretrain':
        hook.update(enable=True, out_dir=show_dir)
    else:
        hook.draw = True
        if show_dir:
            cfg.visualizer.save_dir = show_dir
