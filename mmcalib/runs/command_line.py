"""Parsed arguments that several tasks share."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable

from mmengine.config import Config

from mmcalib.cli.arguments import ConfigOptions
from mmcalib.runs.ensemble_config import load_member_configs


def asks_for_ensemble(args: Namespace) -> bool:
    """Return whether the arguments ask for more than one prediction of an image."""
    views = args.tta or args.tta_scales is not None
    return len(args.members) > 1 or views or args.mc_dropout != 0


def ensemble_options(args: Namespace, cfg: Config, load: Callable[[str], Config]) -> dict:
    """Return the arguments of :func:`average_predictions`.

    Args:
        args: Of :func:`mmcalib.cli.arguments.parse_member_arguments`.
        cfg: That of the first member.
        load: Returns the config of another, made as `cfg` was.
    """
    return {
        'checkpoints': [checkpoint for _, checkpoint in args.members],
        'member_configs': load_member_configs(cfg, args.members, load),
        'tta': args.tta or args.tta_scales is not None,
        'scales': args.tta_scales,
        'mc_dropout': args.mc_dropout,
        'seed': args.dropout_seed,
        'one_at_a_time': args.one_at_a_time,
    }


def parse_options(options: list[str]) -> dict:
    """Return ``KEY=VALUE`` arguments as ``--cfg-options`` reads them."""
    parser = ArgumentParser()
    parser.add_argument('--cfg-options', nargs='*', action=ConfigOptions, default={})
    return parser.parse_args(['--cfg-options', *options]).cfg_options
