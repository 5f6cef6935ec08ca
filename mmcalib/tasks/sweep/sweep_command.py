"""From the arguments of tools/sweep.py to a finished sweep."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from mmcalib.checks import check_integer
from mmcalib.cli.files import find_config
from mmcalib.cli.parser import ToolParser
from mmcalib.tasks.sweep.execute_sweep import run_sweep
from mmcalib.tasks.sweep.summary import read_sweep, sweep_table, write_sweep_figure
from mmcalib.tasks.sweep.sweep_plan import SweepPlan, default_work_dir, parse_parameter


def prepare(args: argparse.Namespace, tools: Path) -> SweepPlan:
    """Return the sweep that the arguments ask for, to be run by the scripts in `tools`."""
    if args.config is None or not args.param:
        raise ValueError('give a config and --param, or --plot and --out')
    if len(args.param) > 1:
        raise ValueError(
            'a sweep is over one parameter: set others with --cfg-options model.head.loss.alpha=… '
            f'or a sweep of their own; got {" ".join(args.param)}'
        )
    check_integer('--jobs', args.jobs)
    if args.gpus is not None:
        check_integer('--gpus', args.gpus)
    parameter, values = parse_parameter(args.param[0])
    config = find_config(args.config)
    folder = args.work_dir or default_work_dir(config, parameter, limit=args.limit)
    both = [*(['--amp'] if args.amp else []), *(['--no-pin-memory'] if args.no_pin_memory else [])]
    if args.limit is not None:
        both += ['--limit', str(check_integer('--limit', args.limit))]
    return SweepPlan(
        config,
        parameter,
        values,
        tools=tools,
        work_dir=Path(folder),
        seeds=args.seeds,
        options=args.cfg_options,
        arguments=both,
        train_arguments=['--auto-scale-lr'] if args.auto_scale_lr else [],
        gpus=args.gpus,
        jobs=args.jobs,
        test_all=args.test_all,
    )


def run(parser: ToolParser, args: argparse.Namespace, tools: Path) -> None:
    """Run a sweep, or draw finished ones."""
    with parser.ending_with_errors(
        ImportError,
        OSError,
        RuntimeError,
        ValueError,
        stopped='Stopped: the same command goes on from here.',
    ):
        if args.plot:
            if not args.out:
                raise ValueError('--plot needs --out')
            write_sweep_figure([read_sweep(folder) for folder in args.plot], [args.out])
            print(f'Files: {args.out}')
            return
        plan = prepare(args, tools)
        summary, failed = run_sweep(plan)
        write_sweep_figure([summary], [plan.work_dir / f'sweep.{kind}' for kind in ('png', 'pdf')])
    print(sweep_table(summary))
    if failed:
        sys.exit(f'FAILED: {", ".join(failed)}; the same command tries them again')
    print(f'Files: {plan.work_dir}/sweep.json, .md, .png and .pdf')
