"""Choose a parameter of the loss on validation data.

Trains the model with every value, evaluates the best checkpoints on the validation split, chooses
the value with the lowest ECE, and tests only that one. Run the same command again to continue, or
with more values to add them.
"""

from pathlib import Path

from mmcalib.cli.arguments import CONFIG_HELP, add_limit_argument
from mmcalib.cli.parser import ToolParser


def main() -> None:
    parser = ToolParser(
        description=__doc__,
        examples=[
            'configs/mbls/digits.py --param margin=0,4,8,12 --seeds 0 1 2',
            '--plot work_dirs/sweeps/mbls/digits/margin --out margin.pdf',
        ],
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

    group = parser.add_argument_group('trainings')
    group.add_argument(
        '--seeds', nargs='+', type=int, metavar='SEED', help='average over these training seeds'
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
    group.add_argument('--auto-scale-lr', action='store_true', help='as in tools/train.py')
    group.add_argument(
        '--cfg-options',
        nargs='+',
        default=[],
        metavar='KEY=VALUE',
        help='replace values of the config',
    )

    group = parser.add_argument_group('figure of finished sweeps')
    group.add_argument(
        '--plot', nargs='+', metavar='DIR', help='draw the sweeps in these work dirs'
    )
    group.add_argument('--out', metavar='FILE', help='file that --plot draws: .png, .pdf or .svg')
    args = parser.parse_args()

    from mmcalib.commands.sweep.command import run  # takes seconds, which a help need not

    run(parser, args, Path(__file__).resolve().parent)


if __name__ == '__main__':
    main()
