"""From the arguments of tools/test.py to the results of a test."""

from __future__ import annotations

import argparse
from contextlib import nullcontext
from pathlib import Path

import mmengine
from mmengine.dist import is_main_process
from mmengine.evaluator import DumpResults

from mmcalib.checks import UserError
from mmcalib.cli.parser import ToolParser
from mmcalib.distributed import leave_processes
from mmcalib.runs.checkpoint_choice import check_checkpoint
from mmcalib.runs.checks import check_amp, check_run
from mmcalib.runs.command_line import asks_for_ensemble, ensemble_options
from mmcalib.runs.config import (
    add_calibration,
    count_objects,
    enable_drawing,
    limit_samples,
    load_config,
    set_loader_defaults,
    set_work_dir,
    test_on_validation,
    use_evaluation,
)
from mmcalib.runs.ensemble_config import (
    average_predictions,
    folder_suffix,
    measure_disagreement,
)
from mmcalib.runs.evaluation_record import keep_other_results
from mmcalib.runs.runner import build_runner, run_test
from mmcalib.runs.terminal_output import log_start
from mmcalib.runs.tested_model import ENSEMBLE
from mmcalib.work_dir import check_writable, locked, whole_file

METRICS_FILES = ('.json', '.yaml', '.yml', '.pkl')


def checkpoints_of(args: argparse.Namespace) -> list[str]:
    """Return the checkpoint, or those of an ensemble."""
    return [checkpoint for _, checkpoint in args.members]


def load_evaluated(path: str, args: argparse.Namespace):
    """Return a config with the evaluation that the arguments ask for."""
    cfg = load_config(path, args.cfg_options)
    cfg.launcher = args.launcher
    set_work_dir(cfg, args.work_dir, limit=args.limit)
    if args.evaluation:
        use_evaluation(cfg, args.evaluation)
    if args.split == 'val':
        test_on_validation(cfg)
    cfg.load_from, cfg.resume = args.members[0][1], False
    return cfg


def average(cfg, args: argparse.Namespace) -> None:
    """Have a config test the mean that the arguments ask for, in a work dir of its own."""
    average_predictions(
        cfg,
        temperature=args.temperature,
        disagreement=args.disagreement is not None,
        **ensemble_options(args, cfg, lambda path: load_evaluated(path, args)),
    )
    if args.disagreement is not None:
        measure_disagreement(cfg, args.disagreement)
    if not args.work_dir:
        cfg.work_dir = str(Path(cfg.work_dir, folder_suffix(cfg[ENSEMBLE]['model'])))


def prepare(args: argparse.Namespace):
    """Return the config that the arguments ask for."""
    if args.out_item and not args.out:
        raise ValueError('--out-item needs --out')
    if args.out and args.out_item != 'metrics' and not args.out.endswith(('.pkl', '.pickle')):
        raise ValueError(
            f'--out {args.out}: predictions go to a .pkl file; for the metrics add '
            '--out-item metrics'
        )
    if args.out_item == 'metrics' and not args.out.endswith(METRICS_FILES):
        raise ValueError(f'--out {args.out}: metrics go to a {", ".join(METRICS_FILES)} file')
    if args.out and Path(args.out).is_dir():
        raise ValueError(f'--out {args.out} is a folder: name a file')
    if args.out:
        check_writable(args.out)
    if (args.tta or args.tta_scales is not None) and (args.show or args.show_dir):
        raise ValueError('--show and --show-dir draw one view of an image: leave out --tta')
    for _, checkpoint in args.members:
        check_checkpoint(checkpoint)
    cfg = load_evaluated(args.members[0][0], args)
    if args.amp:
        check_amp()
        cfg.test_cfg.fp16 = True
    if args.show or args.show_dir:
        enable_drawing(cfg, args.show, args.show_dir, args.interval, args.wait_time)
    if args.calibration:
        add_calibration(cfg)
    if args.objects:
        count_objects(cfg)
    if asks_for_ensemble(args) or args.temperature or args.disagreement:
        average(cfg, args)
    if not args.work_dir:
        keep_other_results(cfg, checkpoints_of(args), args.split)
    if args.limit is not None:
        limit_samples(cfg, args.limit)
    set_loader_defaults(cfg)
    return cfg


def refuse_overtaken(cfg, args: argparse.Namespace) -> None:
    """Raise an error if a test of something else has ended in the work dir since it was chosen."""
    chosen = cfg.work_dir
    if not args.work_dir and is_main_process():
        keep_other_results(cfg, checkpoints_of(args), args.split)
    if cfg.work_dir != chosen:
        raise UserError(f'another test has just written its results to {chosen}: run this again')


def run(parser: ToolParser, args: argparse.Namespace) -> None:
    """Test a checkpoint or an ensemble."""
    with parser.ending_with_errors(ImportError, OSError, ValueError):
        cfg = prepare(args)
    with parser.ending_with_errors():
        runner = build_runner(cfg, complete_weights=True)
        check_run(runner, ['test'])
        if args.out and args.out_item != 'metrics':
            runner.test_evaluator.metrics.append(DumpResults(out_file_path=args.out))
        log_start(runner, ('test',))
        with locked(cfg.work_dir) if is_main_process() else nullcontext():
            refuse_overtaken(cfg, args)
            metrics = run_test(runner, checkpoints_of(args)[0], split=args.split)
        if args.out_item == 'metrics' and is_main_process():
            with whole_file(args.out) as path:
                mmengine.dump(metrics, path)
    if is_main_process():
        print(f'Files: {", ".join(filter(None, [cfg.work_dir, args.out, args.disagreement]))}')
    leave_processes()
