"""From the config of a run to a finished training or test."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path

import torch
from mmengine import fileio
from mmengine.config import Config
from mmengine.dist import barrier, get_world_size, is_main_process
from mmengine.hooks import EMAHook
from mmengine.logging import print_log
from mmengine.model import MMDistributedDataParallel, revert_sync_batchnorm
from mmengine.registry import MODEL_WRAPPERS, RUNNERS
from mmengine.runner import Runner

from mmcalib.distributed import is_first_process, join_processes
from mmcalib.hooks.checkpoint_meta_hook import CheckpointMeta
from mmcalib.hooks.drawing_hook import kept_statistics
from mmcalib.hooks.name_broken_samples_hook import BrokenSamples
from mmcalib.hooks.require_complete_weights_hook import CompleteWeights
from mmcalib.hooks.require_same_classes_hook import SameClasses
from mmcalib.hooks.resume_hook import ResumeHook
from mmcalib.metrics import CalibrationMetric, CalibrationStatistics
from mmcalib.record import paths_of, read_record, write_record
from mmcalib.runs.checkpoint_choice import LAST_WEIGHTS, best_checkpoint
from mmcalib.runs.checkpoint_io import file_digest, use_safe_files
from mmcalib.runs.checks import check_run
from mmcalib.runs.closing import find_diagram, summary
from mmcalib.runs.evaluation_record import record_of, tested_model
from mmcalib.runs.loss_config import type_name
from mmcalib.runs.terminal_output import QuietRunner, log_start
from mmcalib.runs.training_record import training_facts
from mmcalib.work_dir import (
    RESULTS,
    STATISTICS,
    VALIDATION_RESULTS,
    check_writable,
    locked,
    of_split,
    set_aside,
    whole_file,
)


def build_runner(cfg: Config, *, complete_weights: bool = False) -> Runner:
    """Build the Runner of a config, on one process or many, with or without a GPU.

    Args:
        cfg: As :func:`load_config` and what follows it made it.
        complete_weights: Whether a checkpoint that is loaded must hold the whole model, as for a
            test; for a training that is resumed it must in any case.

    Raises:
        ValueError: If a launcher other than ``pytorch`` is asked for without a GPU.
    """
    check_writable(Path(cfg.work_dir, RESULTS))
    if cfg.get('num_threads'):
        torch.set_num_threads(min(cfg.num_threads, torch.get_num_threads()))
    if cfg.launcher != 'none' and not torch.cuda.is_available():
        join_processes(cfg.launcher)  # mmengine keeps a process group that is there
        cfg.model_wrapper_cfg = dict(
            type='CPUDistributedDataParallel',
            device_ids=None,
            broadcast_buffers=False,
            find_unused_parameters=cfg.get('find_unused_parameters', False),
        )
    if cfg.launcher != 'none':
        share_buffers(cfg)
    runner = RUNNERS.build(cfg) if 'runner_type' in cfg else QuietRunner.from_cfg(cfg)
    runner.register_hook(CheckpointMeta(training_facts(cfg, processes=get_world_size())))
    runner.register_hook(ResumeHook())
    if complete_weights or cfg.get('resume'):
        runner.register_hook(CompleteWeights())
    runner.register_hook(SameClasses())
    runner.register_hook(BrokenSamples())
    use_safe_files(runner)
    return runner


@MODEL_WRAPPERS.register_module()
class CPUDistributedDataParallel(MMDistributedDataParallel):
    """mmengine's DDP without GPUs: SyncBN, which only runs on them, becomes BN."""

    def __init__(self, module: torch.nn.Module, **kwargs) -> None:
        super().__init__(revert_sync_batchnorm(module), **kwargs)


def share_buffers(cfg: Config) -> None:
    """Have all processes of a training validate the model that is saved."""

    def shares(hook: object) -> bool:
        names = ('SyncBuffersHook', 'SameBuffersHook')
        return isinstance(hook, dict) and type_name(hook['type']) in names

    default = cfg.get('default_hooks') or {}
    default = {key: None if shares(hook) else hook for key, hook in default.items()}
    others = [hook for hook in cfg.get('custom_hooks') or () if not shares(hook)]
    cfg.default_hooks, cfg.custom_hooks = default, [*others, dict(type='SameBuffersHook')]


def train_and_test(cfg: Config, test: bool = True, split: str = 'test') -> dict | None:
    """Train, then test the best checkpoint if the config has a test split and `test` is set.

    Args:
        cfg: As :func:`load_config` and what follows it made it.
        test: Whether to test at all.
        split: What the config tests on, ``'val'`` after :func:`test_on_validation`.

    Returns:
        The metrics of the test, or None without one.

    Raises:
        UserError: If another training or test runs in the work dir.
    """
    with locked(cfg.work_dir) if is_first_process(cfg.launcher) else nullcontext():
        runner = build_runner(cfg)
        splits = ('train', 'val', 'test') if test else ('train', 'val')
        check_run(runner, splits)
        log_start(runner, splits)
        if is_main_process() and not goes_on(cfg):
            aside = set_aside(cfg.work_dir, keep=cfg.get('load_from'))
            if aside:
                print_log(f'What an earlier run left here is in {aside} now.', logger='current')
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
            for hook in runner.hooks:  # those that it has averaged, as a checkpoint has them
                if isinstance(hook, EMAHook) and getattr(hook, 'evaluate_on_ema', True):
                    hook._swap_ema_parameters()
        else:
            print_log('Testing the best checkpoint.', logger='current')
            # To be loaded behind before_run, where EMAHook copies the model.
            runner._load_from, runner._resume, runner._has_loaded = best, False, False
        return run_test(runner, best or LAST_WEIGHTS, split=split, finished=True)


def goes_on(cfg: Config) -> bool:
    """Return whether a training is resumed from a checkpoint in its own work dir."""
    start = cfg.get('load_from') if cfg.get('resume') else None
    return bool(start) and Path(start).resolve().parent == Path(cfg.work_dir).resolve()


def run_test(
    runner: Runner, checkpoint: str, *, split: str = 'test', finished: bool | None = None
) -> dict:
    """Test, and leave the files that later tools read in the work dir.

    That is ``results.json`` with :func:`~mmcalib.runs.evaluation_record.record_of` and the metrics,
    and ``calibration.npz`` with what the ``CalibrationMetric`` has counted; see
    :func:`~mmcalib.hooks.drawing_hook.kept_statistics` for more than one. Of the split ``'val'``
    their names end in ``_val``. ``statistics`` has the digests of the ``.npz`` files, by their
    names.

    Args:
        runner: Of a config with a test split.
        checkpoint: The path that it loads; of an ensemble, the config names them.
        split: The split that the config tests on.
        finished: See :func:`~mmcalib.runs.evaluation_record.record_of`.
    """
    ours = [m for m in runner.test_evaluator.metrics if isinstance(m, CalibrationMetric)]
    model = tested_model(runner, checkpoint) if is_main_process() else None
    metrics = runner.test()
    if is_main_process():
        path = Path(runner.work_dir, VALIDATION_RESULTS if split == 'val' else RESULTS)
        kept = kept_statistics(ours)
        result = {
            **record_of(runner, model, split=split, finished=finished),
            'metrics': metrics,
            'statistics': _replace_statistics(path, kept, split),
        }
        write_record(result, path)
        statistics = next((m.statistics for m in ours if m.prefix == 'calibration'), None)
        files = {
            'checkpoint': ', '.join(paths_of(model)),
            'results': path,
            'diagram': find_diagram(runner.log_dir, split),
        }
        print_log('\n' + summary(result, statistics, files), logger='current')
    return metrics


def _replace_statistics(
    results: Path, kept: Mapping[str, CalibrationStatistics], split: str
) -> dict[str, str]:
    """Write the statistics of a test beside its results, and return the digests of the files.

    Those of an earlier test go: they would be taken for this one's.
    """
    try:
        earlier = read_record(results, 'statistics')['statistics']
    except (FileNotFoundError, ValueError):
        earlier = ()
    files = {of_split(f'{name}.npz', split): statistics for name, statistics in kept.items()}
    for name in {of_split(STATISTICS, split), *earlier} - files.keys():
        results.with_name(name).unlink(missing_ok=True)
    for name, statistics in files.items():
        with whole_file(results.with_name(name)) as temporary:
            statistics.save(temporary)
    return {name: file_digest(results.with_name(name)) for name in files}
