"""Test checkpoints on corrupted images, and on other data sets with the same classes.

Each test saves its result when it ends. Run the same command again to continue, or with more
checkpoints, corruptions or severities to test only the new ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mmcalib.cli.arguments import (
    CONFIG_HELP,
    NamedFiles,
    RunnerOptions,
    add_evaluation_argument,
    add_limit_argument,
    add_runner_arguments,
    add_split_argument,
)
from mmcalib.cli.parser import ToolParser
from mmcalib.names import CORRUPTION_GROUPS, SEVERITIES


@dataclass(frozen=True, kw_only=True)
class RobustnessOptions(RunnerOptions):
    """Options of the command ``robustness``, which its help describes.

    Attributes:
        config: Config of the models.
        checkpoints: Checkpoint files, or work dirs for the best checkpoints in them.
        corruptions: Names of corruptions or of sets of them; ``['None']`` for none.
        severities: Severities from 0 to 5; 0 is the clean data, which is always tested.
        seed: Seed of the corruptions.
        corrupt_before: Transform before which images are corrupted, None to find it.
        stored: Folder of a stored set of corrupted images, None to corrupt the clean ones.
        data: Configs with other test data, by their names in tables; None for none.
        evaluation: Name of one of the config's evaluations; None for its test_evaluator.
        split: Split to test on, ``'test'`` or ``'val'``.
        limit: Number of samples of a smoke run; None for all.
        workers: Number of data loader workers, None for the config's.
        work_dir: Folder for the tests; None for one in the config's own.
    """

    config: str
    checkpoints: Sequence[str]
    corruptions: Sequence[str] = ('benchmark',)
    severities: Sequence[int] = (0, *SEVERITIES)
    seed: int = 0
    corrupt_before: str | None = None
    stored: str | None = None
    data: Mapping[str, str] | None = None
    evaluation: str | None = None
    split: str = 'test'
    limit: int | None = None
    workers: int | None = None
    work_dir: str | None = None


def build_parser() -> ToolParser:
    """Return the parser of the command line."""
    parser = ToolParser(
        description=__doc__,
        examples=[
            'CONFIG best.pth calibrated.pth',
            'CONFIG best.pth --corruptions noise fog --severities 1 3 5',
            'CONFIG best.pth --stored data/CIFAR-10-C',
        ],
        stopped='Stopped: the same call goes on where it was.',
    )
    parser.add_argument('config', help=CONFIG_HELP)
    parser.add_argument(
        'checkpoints',
        nargs='+',
        metavar='checkpoint',
        help='checkpoint file, or a work dir for the best checkpoint in it',
    )

    group = parser.add_argument_group('shifts')
    group.add_argument(
        '--corruptions', nargs='+', default=('benchmark',), metavar='NAME', help=corruption_help()
    )
    group.add_argument(
        '--severities',
        nargs='+',
        type=int,
        default=(0, *SEVERITIES),
        metavar='N',
        help='severities to test; 0, clean data, is always tested (default: 0 1 2 3 4 5)',
    )
    group.add_argument('--seed', type=int, default=0, help='seed of the corruptions')
    group.add_argument(
        '--corrupt-before',
        metavar='TRANSFORM',
        help='corrupt images before this transform, if the test pipeline has one that mmcalib does '
        'not know',
    )
    group.add_argument(
        '--stored',
        metavar='FOLDER',
        help='read corrupted images from the arrays of CIFAR-10-C or the folders of ImageNet-C',
    )
    group.add_argument(
        '--data',
        nargs='+',
        action=NamedFiles,
        metavar='NAME=CONFIG',
        help='also test on the test data of other configs with the same classes',
    )

    group = parser.add_argument_group('evaluation')
    add_evaluation_argument(group)
    add_split_argument(group)
    add_limit_argument(group, 'test N samples')
    group.add_argument(
        '--workers', type=int, metavar='N', help="data loader workers (default: the config's)"
    )
    group.add_argument(
        '--work-dir',
        help='folder for the tests (default: work_dirs/CONFIG/robustness)',
    )

    add_runner_arguments(parser)
    return parser


def corruption_help() -> str:
    """Return the sets of corruptions with their members."""
    groups = [f'{name} ({", ".join(members)})' for name, members in CORRUPTION_GROUPS.items()]
    return (
        f'corruptions or sets of them: {"; ".join(groups)}; benchmark, all sets but holdout; all; '
        'or None for the data of --data alone (default: benchmark)'
    )


def parse(parser: ToolParser, arguments: Sequence[str]) -> RobustnessOptions:
    """Return the options on a command line."""
    return RobustnessOptions(**vars(parser.parse_args(arguments)))
