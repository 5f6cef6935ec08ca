"""Test checkpoints on corrupted images, and on other data sets of the same classes.

Each test leaves its result when it ends: the same call goes on where one was stopped, and one with
more checkpoints, corruptions or severities tests what is new.
"""

import argparse
import os
from contextlib import nullcontext
from pathlib import Path

from mmengine.dist import is_main_process

from mmcalib.checks import check_integer
from mmcalib.corruption_names import CORRUPTIONS, SETS, SEVERITIES
from mmcalib.distributed import leave_processes
from mmcalib.reports.robustness_results import robustness_table, shifts_text
from mmcalib.robustness.evaluate_under_shift import measure_robustness, run_robustness
from mmcalib.robustness.shifts import plan_shifts
from mmcalib.runs.checkpoint_choice import check_checkpoint
from mmcalib.runs.command_line import (
    NamedFiles,
    ToolParser,
    add_limit_argument,
    add_runner_arguments,
    add_split_argument,
)
from mmcalib.runs.config import (
    limit_samples,
    load_config,
    set_loader_defaults,
    set_work_dir,
    test_on_validation,
    use_evaluation,
)
from mmcalib.runs.config_checks import check_config
from mmcalib.runs.runner import build_runner
from mmcalib.runs.terminal_output import log_start
from mmcalib.work_dir_files import ROBUSTNESS, locked


def parse_args() -> tuple[ToolParser, argparse.Namespace]:
    parser = ToolParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('config', help='config file, of mmcalib, mmpretrain or mmseg')
    parser.add_argument('checkpoints', nargs='+', metavar='checkpoint', help='checkpoint file')
    parser.add_argument(
        '--corruptions',
        nargs='+',
        default=['benchmark'],
        metavar='NAME',
        help=f'any of {", ".join(SETS)} and {", ".join(CORRUPTIONS)}; None for other data alone '
        '(default: benchmark)',
    )
    parser.add_argument(
        '--severities',
        nargs='+',
        type=int,
        default=[0, *SEVERITIES],
        help='severities to test; clean data, 0, are tested in any case (default: 0 to 5)',
    )
    parser.add_argument('--seed', type=int, default=0, help='seed of the draws (default: 0)')
    parser.add_argument(
        '--corrupt-before',
        metavar='TRANSFORM',
        help='transform before which images are corrupted, where the test pipeline has one that '
        'this package does not know',
    )
    parser.add_argument(
        '--stored',
        metavar='FOLDER',
        help='take corrupted images from the arrays of CIFAR-10-C or the folders of ImageNet-C',
    )
    parser.add_argument(
        '--data',
        nargs='+',
        action=NamedFiles,
        default={},
        metavar='NAME=CONFIG',
        help='also test on the test data of other configs, of the same classes',
    )
    parser.add_argument(
        '--image',
        type=int,
        default=0,
        metavar='INDEX',
        help='image whose confidence maps a segmentor keeps, for a figure (default: 0)',
    )
    parser.add_argument(
        '--work-dir', help=f'folder for {ROBUSTNESS} and the tests (default: WORK_DIR/robustness)'
    )
    parser.add_argument(
        '--evaluation', metavar='NAME', help="one of the config's named evaluations"
    )
    parser.add_argument('--workers', type=int, help="loader processes; the config's by default")
    add_limit_argument(parser, 'N samples')
    add_split_argument(parser)
    add_runner_arguments(parser)
    return parser, parser.parse_args()


def prepare(args: argparse.Namespace):
    """Return the config and the shifts that the arguments ask for."""
    for checkpoint in args.checkpoints:
        check_checkpoint(checkpoint)
    check_integer('--image', args.image, least=0)
    cfg = load_config(args.config, args.cfg_options)
    cfg.launcher = args.launcher
    set_work_dir(cfg, args.work_dir, limit=args.limit)
    if args.evaluation:
        use_evaluation(cfg, args.evaluation)
    if not args.work_dir:
        cfg.work_dir = str(Path(cfg.work_dir, 'robustness'))
    cfg.load_from, cfg.resume = None, False
    if args.split == 'val':
        test_on_validation(cfg)
    measure_robustness(cfg)
    if args.limit is not None:
        limit_samples(cfg, args.limit)
    if args.workers is not None:
        cfg.test_dataloader.num_workers = args.workers
    set_loader_defaults(cfg, not args.no_pin_memory, persistent_workers=False)
    check_config(cfg, ('test_dataloader',))
    shifts = plan_shifts(
        cfg,
        args.corruptions,
        args.severities,
        seed=args.seed,
        stored=args.stored,
        data=args.data,
        before=args.corrupt_before,
        pin_memory=not args.no_pin_memory,
    )
    return cfg, shifts


def main() -> None:
    parser, args = parse_args()
    os.environ.setdefault('LOCAL_RANK', str(args.local_rank))
    with parser.ending_with_errors(ImportError, OSError, TypeError, ValueError):
        cfg, shifts = prepare(args)
    goes_on = 'Stopped: the same call goes on with the test that was not finished.'
    with parser.ending_with_errors(stopped=goes_on):
        runner = build_runner(cfg, complete_weights=True)
        log_start(runner, ('test',))
        with locked(cfg.work_dir) if is_main_process() else nullcontext():
            content = run_robustness(runner, shifts, args.checkpoints, index=args.image)
    if is_main_process():
        print(robustness_table(content))
        if any(shift.kind == 'corruption' for shift in shifts):
            how = 'Images of the' if args.stored else 'Corrupted by'
            print(f'{how} {shifts_text(content["checkpoints"][0])}.')
        print(Path(cfg.work_dir, ROBUSTNESS))
    leave_processes()


if __name__ == '__main__':
    main()
