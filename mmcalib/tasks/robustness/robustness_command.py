"""From the arguments of tools/test_robustness.py to tests on shifted data."""

from __future__ import annotations

import argparse
from contextlib import nullcontext
from pathlib import Path

from mmengine.dist import is_main_process

from mmcalib.checks import check_integer
from mmcalib.cli.files import find_checkpoint
from mmcalib.cli.parser import ToolParser
from mmcalib.distributed import leave_processes
from mmcalib.reports.robustness_results import robustness_table, shifts_text
from mmcalib.runs.checkpoint import read_checkpoint
from mmcalib.runs.config import (
    limit_samples,
    load_config,
    set_loader_defaults,
    set_work_dir,
    test_on_validation,
    use_evaluation,
)
from mmcalib.runs.runner import build_runner
from mmcalib.runs.terminal_output import log_start
from mmcalib.tasks.robustness.evaluate_under_shift import measure_robustness, run_robustness
from mmcalib.tasks.robustness.shifts import plan_shifts
from mmcalib.work_dir import ROBUSTNESS, locked


def prepare(args: argparse.Namespace):
    """Return the config and the shifts that the arguments ask for."""
    args.checkpoints = [read_checkpoint(find_checkpoint(text)) for text in args.checkpoints]
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
    cfg.test_dataloader.persistent_workers = False  # each test has a loader of its own
    set_loader_defaults(cfg)
    shifts = plan_shifts(
        cfg,
        args.corruptions,
        args.severities,
        seed=args.seed,
        stored=args.stored,
        data=args.data,
        before=args.corrupt_before,
    )
    return cfg, shifts


def run(parser: ToolParser, args: argparse.Namespace) -> None:
    """Test checkpoints on shifted data."""
    with parser.ending_with_errors(ImportError, OSError, ValueError):
        cfg, shifts = prepare(args)
    goes_on = 'Stopped: the same call goes on with the test that was not finished.'
    with parser.ending_with_errors(stopped=goes_on):
        runner = build_runner(cfg)
        log_start(runner, ('test',))
        with locked(cfg.work_dir) if is_main_process() else nullcontext():
            content = run_robustness(runner, shifts, args.checkpoints, index=args.image)
    if is_main_process():
        print(robustness_table(content))
        if any(shift.kind == 'corruption' for shift in shifts):
            how = 'Images of the' if args.stored else 'Corrupted by'
            print(f'{how} {shifts_text(content["checkpoints"][0])}.')
        print(f'Files: {Path(cfg.work_dir, ROBUSTNESS)}')
    leave_processes()
