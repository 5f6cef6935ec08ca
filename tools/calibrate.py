"""Calibrate a trained model: fit a scaling on held-out data and fold it into a checkpoint.

The new checkpoint is one of the same model, for every tool that reads the old one. A scaling that
no layer can absorb is attached: a config is written beside the checkpoint, to be used with it.
"""

import argparse
import inspect
import os

from mmengine.dist import is_main_process

from mmcalib.calibrate.calibrate_checkpoint import SPLITS, CalibrationOptions, calibrate_checkpoint
from mmcalib.calibrate.calibrate_ensemble import fit_temperature
from mmcalib.calibrate.calibration_checks import check_out, check_splits, hold_out
from mmcalib.calibrate.cross_fitting import FOLDS
from mmcalib.checks import check_number
from mmcalib.datasets.same_data import same_data
from mmcalib.distributed import is_first_process, leave_processes
from mmcalib.posthoc import SCALERS
from mmcalib.posthoc.sampled_logits import NUM_SAMPLES
from mmcalib.posthoc.temperature_scaler import CRITERIA
from mmcalib.reports.before_after_table import print_calibration
from mmcalib.runs.checkpoint_choice import check_checkpoint
from mmcalib.runs.command_line import (
    ToolParser,
    add_member_arguments,
    add_runner_arguments,
    asks_for_ensemble,
    ensemble_options,
    parse_member_arguments,
)
from mmcalib.runs.config import load_config, set_loader_defaults, set_work_dir
from mmcalib.runs.config_checks import check_config
from mmcalib.runs.ensemble_config import average_predictions, leave_out_averaging
from mmcalib.runs.runner import build_runner

AUTO = 'auto'


def parse_args() -> tuple[ToolParser, argparse.Namespace]:
    parser = ToolParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_member_arguments(parser)
    parser.add_argument(
        '--out',
        required=True,
        help='checkpoint to write; for an ensemble, whose temperature no layer can take up, a '
        '.json file',
    )
    parser.add_argument('--overwrite', action='store_true', help='also if --out exists')
    parser.add_argument(
        '--method',
        choices=[AUTO, *SCALERS],
        default='temperature',
        help='the scaling (default: temperature); auto takes the simplest that is within one '
        'standard error of the best, by cross-validated likelihood',
    )
    parser.add_argument(
        '--criterion',
        choices=CRITERIA,
        help="for a temperature: least NLL (default), or the paper's 0.1, 0.2, … 10.0 by least ECE",
    )
    for name, what in (
        ('diagonal', 'the scales of vector and matrix'),
        ('off-diagonal', 'the off-diagonal elements of a matrix'),
        ('intercept', 'the shifts of vector and matrix'),
    ):
        parser.add_argument(
            f'--{name}', type=float, metavar='LAMBDA', help=f'times the penalty on {what}'
        )
    parser.add_argument(
        '--split',
        choices=SPLITS,
        default='val',
        help='data to fit on (default: val); test is refused without --force',
    )
    parser.add_argument(
        '--holdout',
        type=float,
        metavar='SHARE',
        help='where validation and test data are the same: fit on this share of the images and '
        'test on the others, in place of cross-fitting',
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
    parser.add_argument('--seed', type=int, default=0, help='seed of the draw (default: 0)')
    parser.add_argument(
        '--num-bins', type=int, default=15, help='bins for ECE and AECE (default: %(default)s)'
    )
    parser.add_argument(
        '--force',
        action='store_true',
        help='fit on test, or on top of an earlier calibration; the checkpoint will say so',
    )
    parser.add_argument('--work-dir', help='where the log goes')
    add_runner_arguments(parser)
    return parser, parse_member_arguments(parser)


def make_scaler(args: argparse.Namespace):
    """Return the scaler that the arguments ask for, None if it is to be chosen."""
    given = {
        name: getattr(args, name)
        for name in ('criterion', 'diagonal', 'off_diagonal', 'intercept')
        if getattr(args, name) is not None
    }
    kind = SCALERS.get(args.method)
    taken = inspect.signature(kind).parameters if kind else ()
    wrong = [f'--{name.replace("_", "-")}' for name in given if name not in taken]
    if wrong:
        raise ValueError(f'--method {args.method} does not take {", ".join(wrong)}')
    return kind(**given) if kind else None


def writes_temperature(args: argparse.Namespace) -> bool:
    """Return whether a temperature is to be kept in a file of its own."""
    return args.out.endswith('.json')


def load_evaluated(path: str, args: argparse.Namespace):
    """Return a config with the arguments that apply to every member."""
    cfg = load_config(path, args.cfg_options)
    cfg.launcher = args.launcher
    set_work_dir(cfg, args.work_dir)
    cfg.load_from, cfg.resume = args.members[0][1], False
    return cfg


def divide_images(cfg, share: float | None, options: CalibrationOptions) -> None:
    """Keep the images that score a scaling apart from those it is fitted on."""
    if share is not None:
        hold_out(cfg, share, seed=options.seed)
        done = (
            f'the scaling is fitted on {100 * share:g} % of the images (seed {options.seed}), and '
            '--test measures it on the others. A test on all of them would see those it was '
            'fitted on.'
        )
    else:
        options.cross_fit, options.test = True, False
        done = (
            f'before and after are cross-fitted over {FOLDS} folds of the images (seed '
            f'{options.seed}), and the scaling that is written is fitted on all of them.'
        )
    if is_first_process():
        print(f'Validation and test data are the same: {done}')


def prepare(args: argparse.Namespace, options: CalibrationOptions):
    """Return the config that the arguments ask for."""
    for _, checkpoint in args.members:
        check_checkpoint(checkpoint)
        check_out(args.out, checkpoint, overwrite=args.overwrite)
    if asks_for_ensemble(args) and not writes_temperature(args):
        raise ValueError(
            f'--out {args.out}: a temperature of the mean of several predictions is kept in a file '
            'of its own, which tools/test.py --temperature reads: name a .json file'
        )
    cfg = load_evaluated(args.members[0][0], args)
    if args.holdout is not None:
        check_number('--holdout', args.holdout, least=0.01, most=0.99)
    same = same_data(cfg.get('val_dataloader'), cfg.get('test_dataloader'))
    if same and options.split == 'val' and not options.force:
        divide_images(cfg, args.holdout, options)
    elif args.holdout is not None:
        raise ValueError(
            '--holdout divides the images where validation and test data are the same; here they '
            'are not, or the fit is forced: leave it out'
        )
    check_splits(cfg, options)
    if writes_temperature(args):
        average_predictions(
            cfg,
            splits=sorted({options.split, 'test'} if options.test else {options.split}),
            **ensemble_options(args, cfg, lambda path: load_evaluated(path, args)),
        )
    leave_out_averaging(cfg)  # mmpretrain's EMAHook loads what was not averaged
    set_loader_defaults(cfg, not args.no_pin_memory)
    splits = {options.split, 'test'} if options.test else {options.split}
    check_config(cfg, tuple(f'{split}_dataloader' for split in sorted(splits)))
    return cfg


def main() -> None:
    parser, args = parse_args()
    os.environ.setdefault('LOCAL_RANK', str(args.local_rank))
    with parser.ending_with_errors(
        ImportError, OSError, TypeError, ValueError, stopped='Stopped: nothing was written.'
    ):
        options = CalibrationOptions(
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
        if writes_temperature(args):
            result = fit_temperature(runner, scaler, args.out, options)
        else:
            checkpoint = args.members[0][1]
            config = load_config(args.members[0][0], args.cfg_options)
            result = calibrate_checkpoint(
                runner, scaler, checkpoint, args.out, options, config=config
            )
    if is_main_process():
        print_calibration(result, args.out)
    leave_processes()


if __name__ == '__main__':
    main()
