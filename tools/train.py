"""Train a model, then test its best checkpoint."""

import argparse
import os

from mmcalib.distributed import leave_processes
from mmcalib.runs.checkpoint_choice import check_checkpoint, resume_latest
from mmcalib.runs.command_line import (
    ToolParser,
    add_limit_argument,
    add_runner_arguments,
    add_split_argument,
)
from mmcalib.runs.config import (
    DATALOADERS,
    limit_samples,
    load_config,
    set_loader_defaults,
    set_work_dir,
    test_on_validation,
)
from mmcalib.runs.config_checks import (
    check_amp,
    check_auto_scale_lr,
    check_config,
    check_learning,
)
from mmcalib.runs.resumed_loss_check import check_resumed_loss
from mmcalib.runs.runner import train_and_test


def parse_args() -> tuple[ToolParser, argparse.Namespace]:
    parser = ToolParser(description=__doc__)
    parser.add_argument('config', help='config file, of mmcalib, mmpretrain or mmseg')
    parser.add_argument('--work-dir', help='where logs and checkpoints go')
    parser.add_argument(
        '--resume',
        nargs='?',
        const='auto',
        help='resume from a checkpoint; without one, from the latest in the work dir',
    )
    parser.add_argument('--amp', action='store_true', help='train in mixed precision (GPU only)')
    parser.add_argument(
        '--auto-scale-lr',
        action='store_true',
        help='scale the learning rate by the real batch size over auto_scale_lr.base_batch_size',
    )
    parser.add_argument('--no-validate', action='store_true', help='do not validate while training')
    parser.add_argument('--no-test', action='store_true', help='do not test after training')
    parser.add_argument(
        '--no-persistent-workers', action='store_true', help='restart dataloader workers each epoch'
    )
    add_limit_argument(parser, 'N samples of each split, and one epoch')
    add_split_argument(parser)
    add_runner_arguments(parser)
    return parser, parser.parse_args()


def prepare(args: argparse.Namespace):
    """Return the config that the arguments ask for."""
    cfg = load_config(args.config, args.cfg_options)
    cfg.launcher = args.launcher
    set_work_dir(cfg, args.work_dir, limit=args.limit)
    if args.no_validate:
        cfg.val_cfg = cfg.val_dataloader = cfg.val_evaluator = None
        # There is no metric to select a checkpoint by.
        cfg.get('default_hooks', {}).get('checkpoint', {}).pop('save_best', None)
    if args.amp:
        check_amp()
        cfg.optim_wrapper.type = 'AmpOptimWrapper'
        cfg.optim_wrapper.setdefault('loss_scale', 'dynamic')
    if args.resume:
        if args.resume == 'auto':
            resume_latest(cfg)
        else:
            check_checkpoint(args.resume)
            cfg.resume, cfg.load_from = True, args.resume
        check_resumed_loss(cfg)
    if args.auto_scale_lr:
        check_auto_scale_lr(cfg)
        cfg.auto_scale_lr.enable = True
    if args.split == 'val':
        test_on_validation(cfg)
    if args.limit is not None:
        limit_samples(cfg, args.limit)
    set_loader_defaults(cfg, not args.no_pin_memory, not args.no_persistent_workers)
    check_config(cfg, DATALOADERS[: 2 if args.no_test else 3])
    check_learning(cfg)
    return cfg


def main() -> None:
    parser, args = parse_args()
    os.environ.setdefault('LOCAL_RANK', str(args.local_rank))
    with parser.ending_with_errors(ImportError, OSError, ValueError):
        cfg = prepare(args)
    goes_on = 'Stopped: the same command with --resume goes on from the last checkpoint.'
    with parser.ending_with_errors(stopped=goes_on):
        train_and_test(cfg, test=not args.no_test, split=args.split)
    leave_processes()


if __name__ == '__main__':
    main()
