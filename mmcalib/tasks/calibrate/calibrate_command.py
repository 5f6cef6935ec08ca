"""From the arguments of tools/calibrate.py to a calibrated checkpoint or a temperature."""

from __future__ import annotations

import argparse
import inspect
from collections.abc import Mapping

from mmcalib.cli.parser import ToolParser
from mmcalib.cli.processes import is_first_process
from mmcalib.datasets.same_data import same_data
from mmcalib.posthoc import SCALERS
from mmcalib.runs.checkpoint_choice import check_checkpoint
from mmcalib.runs.command_line import asks_for_ensemble, ensemble_options
from mmcalib.runs.config import load_config, set_loader_defaults, set_work_dir
from mmcalib.runs.config_checks import check_config
from mmcalib.runs.ensemble_config import average_predictions, leave_out_averaging
from mmcalib.runs.runner import build_runner
from mmcalib.tasks.calibrate.calibrate_checkpoint import CalibrationOptions, calibrate_checkpoint
from mmcalib.tasks.calibrate.calibrate_ensemble import fit_temperature
from mmcalib.tasks.calibrate.calibration_checks import check_out, check_splits


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


def prepare(args: argparse.Namespace, options: CalibrationOptions):
    """Return the config that the arguments ask for."""
    for config, checkpoint in args.members:
        check_checkpoint(checkpoint)
        check_out(args.out, config, checkpoint, overwrite=args.overwrite)
    if asks_for_ensemble(args) and not writes_temperature(args):
        raise ValueError(
            f'--out {args.out}: a temperature of the mean of several predictions is kept in a file '
            'of its own, which tools/test.py --temperature reads: name a .json file'
        )
    cfg = load_evaluated(args.members[0][0], args)
    same = same_data(cfg.get('val_dataloader'), cfg.get('test_dataloader'))
    if same and options.split == 'val' and not options.force:
        options.cross_fit, options.test = True, False
        if is_first_process():
            print(
                'Validation and test data are the same: before and after are cross-fitted over '
                f'folds of the images (seed {options.seed}), and the scaling that is written is '
                'fitted on all of them.'
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


def run(parser: ToolParser, args: argparse.Namespace) -> Mapping:
    """Calibrate a checkpoint or an ensemble, and return what was measured."""
    with parser.ending_with_errors(
        ImportError, OSError, ValueError, stopped='Stopped: nothing was written.'
    ):
        options = CalibrationOptions(
            split=args.split,
            test=args.test,
            num_samples=args.samples,
            seed=args.seed,
            num_bins=args.num_bins,
            force=args.force,
            groups=args.groups,
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
    return result
