"""Calibrate a trained model: fit a scaling on held-out data and fold it into a checkpoint.

The new checkpoint fits the same config and every tool that reads the old one. A scaling that no
layer can absorb is attached instead: calibrate writes a config beside the checkpoint; test and run
the checkpoint with that one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mmcalib.cli.arguments import (
    MeanOptions,
    RunnerOptions,
    add_limit_argument,
    add_member_arguments,
    add_runner_arguments,
    parse_members,
)
from mmcalib.cli.parser import ToolParser
from mmcalib.names import AUTO, CRITERIA, METHODS, NUM_SAMPLES


@dataclass(frozen=True, kw_only=True)
class CalibrateOptions(RunnerOptions, MeanOptions):
    """Options of the command ``calibrate``, which its help describes.

    Attributes:
        out: File to write, a checkpoint or the ``.json`` file of a temperature.
        method: Name of the method, ``'auto'`` to choose it, None for the default of the head.
        criterion: Criterion that a temperature minimises, None for its default.
        diagonal: Weight of the penalty on scales, None for the default of the method.
        off_diagonal: Weight of the penalty on off-diagonal elements, None for the default.
        intercept: Weight of the penalty on shifts, None for the default.
        class_prior: Frequencies of the classes in use, of one sigmoid those of 0 and of 1; None if
            they are those of the data.
        split: Split to fit on, ``'val'`` or ``'test'``.
        groups: Regular expression that finds the group of an image in its path; None if the data
            set names the groups, or every image is one.
        samples: Number of predictions to draw for the fit.
        seed: Seed of the draw and of the folds.
        limit: Number of images of a smoke run; None for all.
        force: Whether to fit to test images, and on top of an earlier calibration.
        overwrite: Whether to replace an existing file.
        test: Whether to measure on the test split too.
        num_bins: Number of bins of ECE and AECE.
        work_dir: Folder for the log; None for one named after the config.
    """

    out: str
    method: str | None = None
    criterion: str | None = None
    diagonal: float | None = None
    off_diagonal: float | None = None
    intercept: float | None = None
    class_prior: Sequence[float] | None = None
    split: str = 'val'
    groups: str | None = None
    samples: int = NUM_SAMPLES
    seed: int = 0
    limit: int | None = None
    force: bool = False
    overwrite: bool = False
    test: bool = False
    num_bins: int = 15
    work_dir: str | None = None

    @property
    def writes_temperature(self) -> bool:
        """Whether the file is for the temperature of a mean."""
        return self.out.endswith('.json')

    @property
    def averages(self) -> bool:
        """Whether the model is a mean of several predictions."""
        return len(self.members) > 1 or self.has_views or self.mc_dropout > 0

    @property
    def config_beside(self) -> str:
        """The file of the config of an attached scaling."""
        return str(Path(self.out).with_suffix('.py'))


def build_parser() -> ToolParser:
    """Return the parser of the command line."""
    parser = ToolParser(
        description=__doc__,
        examples=[
            'CONFIG CHECKPOINT --out calibrated.pth --test',
            'CONFIG CHECKPOINT --out calibrated.pth --method auto',
            'CONFIG A.pth B.pth C.pth --out temperature.json',
            'CONFIG CHECKPOINT --out calibrated.pth --class-prior 0.95 0.05',
        ],
        stopped='Stopped: nothing was written.',
    )
    add_member_arguments(parser)

    group = parser.add_argument_group('scaling')
    group.add_argument(
        '--method',
        choices=[AUTO, *METHODS],
        metavar='METHOD',
        help='%(choices)s; auto takes the simplest method within one standard error of the best '
        'cross-validated likelihood (default: temperature, for sigmoids platt)',
    )
    group.add_argument(
        '--criterion',
        choices=CRITERIA,
        help="for a temperature: the lowest NLL, or the lowest ECE on the paper's grid 0.1, 0.2, … "
        '10.0 (default: nll)',
    )
    for name, parameters in (
        ('diagonal', 'the scales of vector and matrix'),
        ('off-diagonal', 'the off-diagonal elements of matrix'),
        ('intercept', 'the shifts of vector and matrix'),
    ):
        group.add_argument(
            f'--{name}', type=float, metavar='LAMBDA', help=f'weight of the penalty on {parameters}'
        )

    group.add_argument(
        '--class-prior',
        nargs='+',
        type=float,
        metavar='F',
        help='frequencies of the classes where the model will be used, if they are not those of '
        'the split: 0.95 0.05 for one sigmoid of which 5 %% will be 1. Before and after are '
        'without this shift',
    )

    group = parser.add_argument_group('data')
    group.add_argument(
        '--split',
        choices=('val', 'test'),
        default='val',
        help='split to fit on; test requires --force',
    )
    group.add_argument(
        '--groups',
        metavar='PATTERN',
        help='which images belong together, as frames of a video or scans of a patient do: those '
        "in whose paths this regular expression finds the same; '(seq[0-9]+)_' for "
        'seq01_000.png. Folds and standard errors are of groups',
    )
    group.add_argument(
        '--samples',
        type=int,
        default=NUM_SAMPLES,
        metavar='N',
        help='number of predictions (pixels) to draw for the fit',
    )
    group.add_argument('--seed', type=int, default=0, help='seed of the draw')
    add_limit_argument(group, 'fit on, and measure, N images of each split')
    group.add_argument(
        '--force',
        action='store_true',
        help='fit on the test split, or on top of an earlier calibration; the checkpoint records '
        'it',
    )

    group = parser.add_argument_group('output')
    group.add_argument(
        '--out',
        required=True,
        metavar='FILE',
        help='checkpoint to write; for an ensemble, a .json file for its temperature',
    )
    group.add_argument('--overwrite', action='store_true', help='replace an existing --out')
    group.add_argument(
        '--test', action='store_true', help='also measure on the test split, before and after'
    )
    group.add_argument('--num-bins', type=int, default=15, metavar='N', help='bins of ECE and AECE')
    group.add_argument('--work-dir', help='folder for the log (default: work_dirs/CONFIG)')

    add_runner_arguments(parser)
    return parser


def parse(parser: ToolParser, arguments: Sequence[str]) -> CalibrateOptions:
    """Return the options on a command line."""
    return CalibrateOptions(**parse_members(parser, arguments))
