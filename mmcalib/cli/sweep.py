"""Choose a parameter of the loss on validation data.

Trains the model with every value, by the same seed, and evaluates the best checkpoints on the
validation split. The value with the lowest NLL is chosen, and it alone is tested; the table names
the values within its noise. Run the same command again to continue, or with more values to add
them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mmcalib.cli.arguments import CONFIG_HELP, add_limit_argument
from mmcalib.cli.parser import ToolParser

# Metrics that a value may be chosen by.
CRITERIA = ('NLL', 'ECE')


@dataclass(frozen=True, kw_only=True)
class SweepOptions:
    """Options of the command ``sweep``, which its help describes.

    Attributes:
        config: Config of the experiment; None for a figure of finished sweeps.
        param: Parameter and its values, such as ``['margin=0,2,4']``; a sweep has one.
        work_dir: Folder of the sweep; None for one named after the experiment and the parameter.
        by: Metric that a value is chosen by, one of :data:`CRITERIA`.
        seeds: Seeds of the trainings of each value, None for one training by the config's seed,
            which is 0 if it has none.
        jobs: Number of trainings at a time.
        gpus: Number of GPUs of each training, None for a training without a launcher.
        test_all: Whether to test every value, not only the chosen one.
        limit: Number of samples per split in a smoke run; None for all.
        amp: Whether to train in mixed precision.
        auto_scale_lr: Whether to scale the learning rate by the total batch size.
        cfg_options: ``KEY=VALUE`` texts, which the trainings and tests get too; None for none.
        plot: Work dirs of finished sweeps to draw, None to run one.
        out: File of their figure.
    """

    config: str | None = None
    param: Sequence[str] | None = None
    work_dir: str | None = None
    by: str = 'NLL'
    seeds: Sequence[int] | None = None
    jobs: int = 1
    gpus: int | None = None
    test_all: bool = False
    limit: int | None = None
    amp: bool = False
    auto_scale_lr: bool = False
    cfg_options: Sequence[str] | None = None
    plot: Sequence[str] | None = None
    out: str | None = None


def build_parser() -> ToolParser:
    """Return the parser of the command line."""
    parser = ToolParser(
        description=__doc__,
        examples=[
            'configs/mbls/digits.py --param margin=0,4,8,12 --seeds 0 1 2',
            '--plot work_dirs/sweeps/mbls/digits/margin --out margin.pdf',
        ],
        stopped='Stopped: the same command goes on from here.',
    )
    parser.add_argument('config', nargs='?', help=CONFIG_HELP)
    parser.add_argument(
        '--param',
        action='append',
        metavar='NAME=VALUE,VALUE,…',
        help='parameter of the loss and its values, such as margin=0,2,4,6,8,10,15,20',
    )
    parser.add_argument(
        '--work-dir',
        help='folder for the trainings and sweep.json, .md, .png and .pdf '
        '(default: work_dirs/sweeps/CONFIG/NAME)',
    )
    parser.add_argument(
        '--by',
        choices=CRITERIA,
        default='NLL',
        help='metric that the value is chosen by on validation data; the ECE prefers networks that '
        'have learned little',
    )

    group = parser.add_argument_group('trainings')
    group.add_argument(
        '--seeds',
        nargs='+',
        type=int,
        metavar='SEED',
        help="average over these training seeds (default: the config's seed, or 0, for all values)",
    )
    group.add_argument('--jobs', type=int, default=1, metavar='N', help='trainings at a time')
    group.add_argument('--gpus', type=int, metavar='N', help='GPUs for each training')
    group.add_argument(
        '--test-all',
        action='store_true',
        help='test every value, for a figure; the choice ignores these tests',
    )
    add_limit_argument(group, 'train each value for one epoch on N samples of each split')
    group.add_argument('--amp', action='store_true', help='train in mixed precision (GPU only)')
    group.add_argument('--auto-scale-lr', action='store_true', help='as in the command train')
    group.add_argument(
        '--cfg-options',
        nargs='+',
        metavar='KEY=VALUE',
        help='replace values of the config',
    )

    group = parser.add_argument_group('figure of finished sweeps')
    group.add_argument(
        '--plot', nargs='+', metavar='DIR', help='draw the sweeps in these work dirs'
    )
    group.add_argument('--out', metavar='FILE', help='file that --plot draws: .png, .pdf or .svg')
    return parser


def parse(parser: ToolParser, arguments: Sequence[str]) -> SweepOptions:
    """Return the options on a command line."""
    return SweepOptions(**vars(parser.parse_args(arguments)))
