"""The command ``train``: from its options to a trained and tested model."""

from __future__ import annotations

from pathlib import Path

from mmengine.config import Config
from mmengine.dist import barrier, is_main_process
from mmengine.hooks import CheckpointHook, EMAHook
from mmengine.logging import print_log
from mmengine.runner import Runner

from mmcalib.cli.processes import is_first_process
from mmcalib.cli.train import TrainOptions
from mmcalib.errors import UserError
from mmcalib.runs.checkpoint import (
    Checkpoint,
    checkpoint_of,
    choose_validated_weights,
    read_checkpoint,
)
from mmcalib.runs.checks import check_amp, check_data, check_run
from mmcalib.runs.config import limit_samples, prepare
from mmcalib.runs.evaluation import classes_in, run_test
from mmcalib.runs.model import describe, load
from mmcalib.runs.processes import leave_processes
from mmcalib.runs.resume import continues_in_work_dir, newest_checkpoint, resume_from
from mmcalib.runs.runner import build_runner, log_start
from mmcalib.runs.work_dir import locked, set_aside

UNSAVED = 'last weights'  # in place of the path of a checkpoint


def train_model(options: TrainOptions) -> None:
    """Train, and test the best checkpoint."""
    cfg = configure(options)
    train_and_test(cfg, test=not options.no_test)
    if is_main_process():
        print(f'Files: {cfg.work_dir}')
    leave_processes()


def configure(options: TrainOptions) -> Config:
    """Return the config as the options change it."""
    cfg = prepare(options.config, options)
    if options.no_validate:
        cfg.val_cfg = cfg.val_dataloader = cfg.val_evaluator = None
        # There is no metric to select a checkpoint by.
        ((cfg.get('default_hooks') or {}).get('checkpoint') or {}).pop('save_best', None)
    if options.amp:
        check_amp()
        cfg.optim_wrapper.type = 'AmpOptimWrapper'
        cfg.optim_wrapper.setdefault('loss_scale', 'dynamic')
    if options.auto_scale_lr:
        if 'base_batch_size' not in (cfg.get('auto_scale_lr') or {}):
            raise UserError('--auto-scale-lr needs auto_scale_lr.base_batch_size in the config')
        cfg.auto_scale_lr.enable = True
    if options.limit is not None:
        limit_samples(cfg, options.limit)
    if options.resume:  # last, since it compares the settings
        resume_from(cfg, options.resume)
    return cfg


def train_and_test(cfg: Config, test: bool = True) -> dict | None:
    """Train, then test the best checkpoint if the config has a test split and `test` is set.

    Args:
        cfg: As :func:`load_config` and what follows it made it.
        test: Whether to test at all.

    Returns:
        The metrics of the test, or None without one.

    Raises:
        UserError: If another training or test runs in the work dir.
    """
    splits = ('train', 'val', 'test') if test else ('train', 'val')
    check_data(cfg, splits)  # before there is a work dir
    with locked(cfg.work_dir, first=is_first_process(cfg.launcher)):
        runner = build_runner(cfg)
        check_run(runner, splits)
        log_start(runner, splits)
        if is_main_process() and not continues_in_work_dir(cfg):
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
        weights = getattr(runner.model, 'module', runner.model)
        if best is None or not Path(best).is_file():  # a resumed run may have been moved
            print_log('No best checkpoint was kept: testing the last weights.', logger='current')
            best = last_checkpoint(runner)
        else:
            print_log('Testing the best checkpoint.', logger='current')
        checkpoint = unsaved_checkpoint(runner) if best is None else read_checkpoint(best)
        load(weights, [checkpoint], classes_in(runner))
        runner._hooks = [hook for hook in runner.hooks if not isinstance(hook, EMAHook)]
        runner._resume = False
        model = describe([runner.cfg], [checkpoint], ['test'])
        model['members'][0]['finished'] = True
        return run_test(runner, model, [checkpoint])


def last_checkpoint(runner: Runner) -> Path | None:
    """Return the file with the weights that a training has ended with, None without one."""
    path = newest_checkpoint(runner.work_dir)
    if path is None:
        return None
    unit, _, number = path.stem.rpartition('_')
    reached = runner.epoch if unit == 'epoch' else runner.iter
    return path if int(number) == reached else None


def unsaved_checkpoint(runner: Runner) -> Checkpoint:
    """Return a checkpoint, in no file, of the weights that a training has ended with."""
    weights = getattr(runner.model, 'module', runner.model)
    meta = {'epoch': runner.epoch, 'seed': runner.seed, 'cfg': runner.cfg.pretty_text}
    content = {'state_dict': weights.state_dict(), 'meta': meta}
    runner.call_hook('before_save_checkpoint', checkpoint=content)  # puts in averages
    return checkpoint_of(choose_validated_weights(content, UNSAVED), UNSAVED)


def best_checkpoint(runner: Runner) -> str | None:
    """Return the checkpoint that ``CheckpointHook(save_best=…)`` kept, the first if several."""
    hook = next((hook for hook in runner.hooks if isinstance(hook, CheckpointHook)), None)
    several = getattr(hook, 'best_ckpt_path_dict', {}).values()
    return next(filter(None, [getattr(hook, 'best_ckpt_path', None), *several]), None)
