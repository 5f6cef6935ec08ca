"""Arguments that several of the command-line tools share."""

from __future__ import annotations

from argparse import ArgumentParser

from mmengine.config import DictAction

from mmcalib.runs.config import SPLITS


def add_runner_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of everything that builds a Runner."""
    parser.add_argument('--no-pin-memory', action='store_true', help='do not pin loaded batches')
    parser.add_argument(
        '--cfg-options',
        nargs='+',
        action=DictAction,
        metavar='KEY=VALUE',
        help='replace config values, such as randomness.seed=1 or key="[a,b]"',
    )
    parser.add_argument(
        '--launcher', choices=['none', 'pytorch', 'slurm', 'mpi'], default='none', help='of the job'
    )
    parser.add_argument('--local_rank', '--local-rank', type=int, default=0, help='set by launcher')


def add_split_argument(parser: ArgumentParser) -> None:
    """Add ``--split``, which says what training and testing test on."""
    parser.add_argument(
        '--split',
        choices=SPLITS,
        default='test',
        help='what to test on: val leaves results_val.json in place of results.json',
    )


def parse_options(options: list[str]) -> dict:
    """Return what ``--cfg-options`` makes of ``KEY=VALUE`` arguments."""
    parser = ArgumentParser()
    parser.add_argument('--cfg-options', nargs='*', action=DictAction, default={})
    return parser.parse_args(['--cfg-options', *options]).cfg_options
