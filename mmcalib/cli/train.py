"""Train a model, then test its best checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mmcalib.cli.arguments import (
    CONFIG_HELP,
    RunnerOptions,
    add_limit_argument,
    add_runner_arguments,
    add_split_argument,
)
from mmcalib.cli.parser import ToolParser


@dataclass(frozen=True, kw_only=True)
class TrainOptions(RunnerOptions):
    """Options of the command ``train``, which its help describes.

    Attributes:
        config: Config of the experiment.
        work_dir: Folder for logs, checkpoints and the record; None for the config's own.
        resume: Checkpoint or work dir to resume from, ``'auto'`` for the newest checkpoint in the
            work dir, None for a new training.
        amp: Whether to train in mixed precision.
        auto_scale_lr: Whether to scale the learning rate by the total batch size.
        no_validate: Whether to skip validation.
        limit: Number of samples per split in a smoke run; None for all.
        no_test: Whether to skip the test after training.
        split: Split to test on, ``'test'`` or ``'val'``.
    """

    config: str
    work_dir: str | None = None
    resume: str | None = None
    amp: bool = False
    auto_scale_lr: bool = False
    no_validate: bool = False
    limit: int | None = None
    no_test: bool = False
    split: str = 'test'


def build_parser() -> ToolParser:
    """Return the parser of the command line."""
    parser = ToolParser(
        description=__doc__,
        examples=[
            'configs/mbls/digits.py',
            'configs/mbls/digits.py --work-dir seed1 --cfg-options randomness.seed=1',
        ],
        stopped='Stopped: the same command with --resume goes on from the last checkpoint, '
        'or begins anew if there is none.',
    )
    parser.add_argument('config', help=CONFIG_HELP)
    parser.add_argument(
        '--work-dir', help='folder for logs, checkpoints and results (default: work_dirs/CONFIG)'
    )

    group = parser.add_argument_group('training')
    group.add_argument(
        '--resume',
        nargs='?',
        const='auto',
        metavar='CHECKPOINT',
        help='resume from a checkpoint; without one, from the latest in the work dir',
    )
    group.add_argument('--amp', action='store_true', help='train in mixed precision (GPU only)')
    group.add_argument(
        '--auto-scale-lr',
        action='store_true',
        help='scale the learning rate by the total batch size over auto_scale_lr.base_batch_size',
    )
    group.add_argument('--no-validate', action='store_true', help='skip validation while training')
    add_limit_argument(group, 'train one epoch on N samples of each split')

    group = parser.add_argument_group('test')
    group.add_argument('--no-test', action='store_true', help='skip the test after training')
    add_split_argument(group)

    add_runner_arguments(parser)
    return parser


def parse(parser: ToolParser, arguments: Sequence[str]) -> TrainOptions:
    """Return the options on a command line."""
    return TrainOptions(**vars(parser.parse_args(arguments)))
