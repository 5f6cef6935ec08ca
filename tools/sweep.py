"""Choose a parameter of the loss on validation data.

Trains every value, evaluates each one's best checkpoint on the validation split, chooses the least
ECE, and tests only that one. Leaves sweep.json, sweep.md, sweep.png and sweep.pdf in the work dir.
Call it again to go on where it stopped, or with further values. --plot overlays finished sweeps.
"""

import argparse
import sys
from pathlib import Path

from mmcalib.checks import check_integer
from mmcalib.reports.sweep_summary import read_sweep, sweep_table, write_sweep_figure
from mmcalib.runs.command_line import ToolParser, add_limit_argument
from mmcalib.sweep.execute_sweep import run_sweep
from mmcalib.sweep.sweep_plan import SweepPlan, default_work_dir, parse_parameter

STOPPED = 130  # what a shell reports after Ctrl-C


def parse_args() -> tuple[ToolParser, argparse.Namespace]:
    parser = ToolParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('config', nargs='?', help='config file, of mmcalib, mmpretrain or mmseg')
    parser.add_argument(
        '--param',
        action='append',
        metavar='NAME=VALUE,VALUE,…',
        help='constructor parameter of the loss and its values, such as margin=0,2,4,6,8,10,15,20',
    )
    parser.add_argument('--work-dir', help='where everything goes (work_dirs/sweeps/… by default)')
    parser.add_argument('--seeds', nargs='+', type=int, help='average over these training seeds')
    parser.add_argument('--jobs', type=int, default=1, help='trainings at a time')
    parser.add_argument('--gpus', type=int, help='processes of each training, by dist_train.sh')
    parser.add_argument(
        '--test-all', action='store_true', help='test every value, for a figure; not for the choice'
    )
    add_limit_argument(parser, 'N samples of each split, and one epoch of each value')
    parser.add_argument('--amp', action='store_true', help='mixed precision (GPU only)')
    parser.add_argument('--auto-scale-lr', action='store_true', help='as in tools/train.py')
    parser.add_argument('--no-pin-memory', action='store_true', help='do not pin loaded batches')
    parser.add_argument(
        '--cfg-options', nargs='+', default=[], metavar='KEY=VALUE', help='replace config values'
    )
    parser.add_argument('--plot', nargs='+', metavar='DIR', help='draw these work dirs of sweeps')
    parser.add_argument('--out', help='file of the figure that --plot draws (.png, .pdf, .svg)')
    return parser, parser.parse_args()


def prepare(args: argparse.Namespace) -> SweepPlan:
    """Return the sweep that the arguments ask for."""
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
    folder = args.work_dir or default_work_dir(args.config, parameter, limit=args.limit)
    both = [*(['--amp'] if args.amp else []), *(['--no-pin-memory'] if args.no_pin_memory else [])]
    if args.limit is not None:
        both += ['--limit', str(check_integer('--limit', args.limit))]
    return SweepPlan(
        args.config,
        parameter,
        values,
        tools=Path(__file__).resolve().parent,
        work_dir=Path(folder),
        seeds=args.seeds,
        options=args.cfg_options,
        arguments=both,
        train_arguments=['--auto-scale-lr'] if args.auto_scale_lr else [],
        gpus=args.gpus,
        jobs=args.jobs,
        test_all=args.test_all,
    )


def main() -> None:
    parser, args = parse_args()
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
            return
        plan = prepare(args)
        summary, failed = run_sweep(plan)
        write_sweep_figure([summary], [plan.work_dir / f'sweep.{kind}' for kind in ('png', 'pdf')])
    print(sweep_table(summary))
    if failed:
        sys.exit(f'FAILED: {", ".join(failed)}; the same command tries them again')


if __name__ == '__main__':
    main()
