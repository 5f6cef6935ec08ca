"""Calibrate a trained model: fit a scaling on held-out data and fold it into a checkpoint.

The new checkpoint is one of the same model, for every tool that reads the old one.
"""

import argparse
import inspect

from rich.console import Console
from rich.table import Table

from mmcalib.posthoc import SCALERS
from mmcalib.posthoc.temperature_scaler import CRITERIA
from mmcalib.runs.checkpoint_calibration import (
    Calibration,
    Options,
    calibrate,
    check_options,
    check_out,
)
from mmcalib.runs.checkpoints import check_checkpoint
from mmcalib.runs.command_line import add_runner_arguments
from mmcalib.runs.config import SPLITS, load_config, set_loader_defaults, set_work_dir
from mmcalib.runs.model_logits import NUM_SAMPLES
from mmcalib.runs.predicting_layer import METRICS
from mmcalib.runs.preflight import check_data
from mmcalib.runs.runner import build_runner


def parse_args() -> tuple[argparse.ArgumentParser, argparse.Namespace]:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('config', help='config file, of mmcalib, mmpretrain or mmseg')
    parser.add_argument('checkpoint', help='checkpoint file')
    parser.add_argument('--out', required=True, help='checkpoint to write')
    parser.add_argument('--overwrite', action='store_true', help='also if --out exists')
    parser.add_argument(
        '--method',
        choices=list(SCALERS),
        default='temperature',
        help='one temperature (default); a scale and a shift per class; a matrix and shifts',
    )
    parser.add_argument(
        '--criterion',
        choices=CRITERIA,
        help="of a temperature: least NLL (default), or the paper's 0.1, 0.2, … 10.0 by least ECE",
    )
    for name, what in (
        ('diagonal', 'the scales of vector and matrix'),
        ('off-diagonal', 'what a matrix has off its diagonal'),
        ('intercept', 'the shifts of vector and matrix'),
    ):
        parser.add_argument(f'--{name}', type=float, metavar='LAMBDA', help=f'penalty on {what}')
    parser.add_argument(
        '--split',
        choices=SPLITS[::-1],
        default='val',
        help='what to fit on (default: val); test is refused without --force',
    )
    parser.add_argument('--test', action='store_true', help='before and after on test, too')
    parser.add_argument(
        '--samples',
        type=int,
        default=NUM_SAMPLES,
        metavar='N',
        help='how many predictions (pixels) to draw for the fit (default: %(default)s)',
    )
    parser.add_argument(
        '--all', action='store_true', help='fit on all predictions, in several passes'
    )
    parser.add_argument('--seed', type=int, default=0, help='of the draw (default: 0)')
    parser.add_argument(
        '--num-bins', type=int, default=15, help='of ECE and AECE (default: %(default)s)'
    )
    parser.add_argument(
        '--force',
        action='store_true',
        help='fit on test, or on top of an earlier calibration; the checkpoint will say so',
    )
    parser.add_argument('--work-dir', help='where the log goes')
    add_runner_arguments(parser)
    return parser, parser.parse_args()


def make_scaler(args: argparse.Namespace):
    """Return the scaler that the arguments ask for."""
    given = {
        name: getattr(args, name)
        for name in ('criterion', 'diagonal', 'off_diagonal', 'intercept')
        if getattr(args, name) is not None
    }
    taken = inspect.signature(SCALERS[args.method]).parameters
    wrong = [f'--{name.replace("_", "-")}' for name in given if name not in taken]
    if wrong:
        raise ValueError(f'--method {args.method} does not take {", ".join(wrong)}')
    return SCALERS[args.method](**given)


def prepare(args: argparse.Namespace, options: Options):
    """Return the config that the arguments ask for."""
    check_checkpoint(args.checkpoint)
    check_out(args.out, args.checkpoint, overwrite=args.overwrite)
    cfg = load_config(args.config, args.cfg_options)
    cfg.launcher = args.launcher
    set_work_dir(cfg, args.work_dir)
    cfg.load_from = args.checkpoint
    cfg.resume = False
    check_options(cfg, options)
    set_loader_defaults(cfg, not args.no_pin_memory)
    splits = {options.split, 'test'} if options.test else {options.split}
    check_data(cfg, tuple(f'{split}_dataloader' for split in sorted(splits)))
    return cfg


def show(result: Calibration) -> None:
    """Print what was found as a table, before and after, and as sentences."""
    units = {name: '' if name in ('NLL', 'Brier') else ' (%)' for name in METRICS}
    table = Table('split', '', *(f'{name}{unit}' for name, unit in units.items()))
    comparisons = {result.meta['split']: result.fitted}
    if result.tested is not None:
        comparisons['test'] = result.tested
    for split, comparison in comparisons.items():
        for when, values in (('before', comparison.before), ('after', comparison.after)):
            table.add_row(
                split,
                when,
                *(
                    f'{values[name]:.2f}' if unit else f'{values[name]:.4f}'
                    for name, unit in units.items()
                ),
            )
    Console().print(table)
    for note in result.notes:
        print(note)


def main() -> None:
    parser, args = parse_args()
    try:
        options = Options(
            split=args.split,
            test=args.test,
            num_samples=args.samples,
            every_prediction=args.all,
            seed=args.seed,
            num_bins=args.num_bins,
            force=args.force,
        )
        scaler = make_scaler(args)
        cfg = prepare(args, options)
        runner = build_runner(cfg, complete_weights=True)
        result = calibrate(runner, scaler, args.checkpoint, args.out, options)
    except (FileNotFoundError, ImportError, ValueError) as error:
        parser.error(str(error))
    show(result)
    print(f'Written: {args.out}')


if __name__ == '__main__':
    main()
