"""From the arguments of tools/train.py to a trained and tested model."""

from __future__ import annotations

import argparse

from mmengine.dist import is_main_process

from mmcalib.checks import UserError
from mmcalib.cli.parser import ToolParser
from mmcalib.distributed import leave_processes
from mmcalib.runs.checkpoint_choice import check_checkpoint, last_checkpoint, resume_latest
from mmcalib.runs.checks import check_amp
from mmcalib.runs.config import (
    limit_samples,
    load_config,
    set_loader_defaults,
    set_work_dir,
    test_on_validation,
)
from mmcalib.runs.config_checks import checkpoint_hook
from mmcalib.runs.resumed_loss_check import check_resumed_loss
from mmcalib.runs.runner import train_and_test


def prepare(args: argparse.Namespace):
    """Return the config that the arguments ask for."""
    cfg = load_config(args.config, args.cfg_options)
    cfg.launcher = args.launcher
    set_work_dir(cfg, args.work_dir, limit=args.limit)
    if args.no_validate:
        cfg.val_cfg = cfg.val_dataloader = cfg.val_evaluator = None
        # There is no metric to select a checkpoint by.
        checkpoint_hook(cfg).pop('save_best', None)
    if args.amp:
        check_amp()
        cfg.optim_wrapper.type = 'AmpOptimWrapper'
        cfg.optim_wrapper.setdefault('loss_scale', 'dynamic')
    if args.resume:
        if args.resume == 'auto':
            resume_latest(cfg)
        else:
            checkpoint = str(last_checkpoint(args.resume) or args.resume)  # of a work dir
            check_checkpoint(checkpoint)
            cfg.resume, cfg.load_from = True, checkpoint
        check_resumed_loss(cfg)
    if args.auto_scale_lr:
        if 'base_batch_size' not in (cfg.get('auto_scale_lr') or {}):
            raise UserError('--auto-scale-lr needs auto_scale_lr.base_batch_size in the config')
        cfg.auto_scale_lr.enable = True
    if args.split == 'val':
        test_on_validation(cfg)
    if args.limit is not None:
        limit_samples(cfg, args.limit)
    set_loader_defaults(cfg)
    return cfg


def run(parser: ToolParser, args: argparse.Namespace) -> None:
    """Train, and test the best checkpoint."""
    with parser.ending_with_errors(ImportError, OSError, ValueError):
        cfg = prepare(args)
    goes_on = 'Stopped: the same command with --resume goes on from the last checkpoint.'
    with parser.ending_with_errors(stopped=goes_on):
        train_and_test(cfg, test=not args.no_test, split=args.split)
    if is_main_process():
        print(f'Files: {cfg.work_dir}')
    leave_processes()
