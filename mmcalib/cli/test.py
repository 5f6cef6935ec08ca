"""Test a checkpoint, or an ensemble of several predictions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mmcalib.cli.arguments import (
    MeanOptions,
    RunnerOptions,
    add_evaluation_argument,
    add_limit_argument,
    add_member_arguments,
    add_runner_arguments,
    add_split_argument,
    add_temperature_argument,
    parse_members,
)
from mmcalib.cli.parser import ToolParser


@dataclass(frozen=True, kw_only=True)
class TestOptions(RunnerOptions, MeanOptions):
    """Options of the command ``test``, which its help describes.

    Attributes:
        calibration: Whether to measure and draw the calibration.
        objects: Whether to count each class and each object.
        evaluation: Name of one of the config's evaluations; None for its test_evaluator.
        split: Split to test on, ``'test'`` or ``'val'``.
        limit: Number of samples of a smoke run; None for all.
        amp: Whether to test in mixed precision.
        work_dir: Folder for the log and the record; None for one named after the checkpoint.
        out: File for the predictions, None for no file.
        disagreement: Folder for the disagreement of an ensemble, None to not measure it.
        show_dir: Folder for drawn predictions, None to draw none.
    """

    __test__ = False  # pytest would take it for a class of tests.

    calibration: bool = False
    objects: bool = False
    evaluation: str | None = None
    split: str = 'test'
    limit: int | None = None
    amp: bool = False
    work_dir: str | None = None
    out: str | None = None
    disagreement: str | None = None
    show_dir: str | None = None


def build_parser() -> ToolParser:
    """Return the parser of the command line."""
    parser = ToolParser(
        description=__doc__,
        examples=[
            'CONFIG CHECKPOINT --calibration',
            'CONFIG A.pth B.pth C.pth --temperature temperature.json',
        ],
    )
    add_member_arguments(parser)

    group = parser.add_argument_group('evaluation')
    group.add_argument(
        '--calibration',
        action='store_true',
        help='measure ECE, AECE, the gap between confidence and accuracy, NLL, Brier score and '
        'the rates of the classes, of two classes the ECE of P(y = 1) too, with intervals, and '
        'draw them; a CalibrationMetric of the config keeps its options',
    )
    group.add_argument(
        '--objects',
        action='store_true',
        help='also count each class and each object, as predict needs for the scores of objects',
    )
    add_evaluation_argument(group)
    add_split_argument(group)
    add_limit_argument(group, 'test N samples')
    group.add_argument('--amp', action='store_true', help='test in mixed precision (GPU only)')
    add_temperature_argument(group)

    group = parser.add_argument_group('output')
    group.add_argument(
        '--work-dir',
        help='folder for the log and results.json (default: a folder in work_dirs/CONFIG that is '
        'named after the checkpoint)',
    )
    group.add_argument('--out', metavar='FILE', help='file for the predictions (.pkl)')
    group.add_argument(
        '--disagreement',
        metavar='DIR',
        help='measure how far the members of an ensemble disagree, and write it to DIR for each '
        'image and pixel',
    )
    group.add_argument('--show-dir', metavar='DIR', help='folder for drawn predictions')

    add_runner_arguments(parser)
    return parser


def parse(parser: ToolParser, arguments: Sequence[str]) -> TestOptions:
    """Return the options on a command line."""
    return TestOptions(**parse_members(parser, arguments))
