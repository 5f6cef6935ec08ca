"""Test checkpoints on corrupted images, and on other data sets with the same classes.

Each test saves its result when it ends. Run the same command again to continue, or with more
checkpoints, corruptions or severities to test only the new ones.
"""

from mmcalib.cli.arguments import (
    CONFIG_HELP,
    NamedFiles,
    add_evaluation_argument,
    add_limit_argument,
    add_runner_arguments,
    add_split_argument,
)
from mmcalib.cli.parser import ToolParser
from mmcalib.names import CORRUPTION_GROUPS, SEVERITIES


def corruption_help() -> str:
    """Return the sets of corruptions with their members."""
    groups = '; '.join(f'{name} ({", ".join(them)})' for name, them in CORRUPTION_GROUPS.items())
    return (
        f'corruptions or sets of them: {groups}; benchmark, all sets but holdout; all; or None for '
        'the data of --data alone (default: benchmark)'
    )


def main() -> None:
    parser = ToolParser(
        description=__doc__,
        examples=[
            'CONFIG best.pth calibrated.pth',
            'CONFIG best.pth --corruptions noise fog --severities 1 3 5',
            'CONFIG best.pth --stored data/CIFAR-10-C',
        ],
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
        '--corruptions', nargs='+', default=['benchmark'], metavar='NAME', help=corruption_help()
    )
    group.add_argument(
        '--severities',
        nargs='+',
        type=int,
        default=[0, *SEVERITIES],
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
        default={},
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
    args = parser.parse_args()

    # Takes seconds, which a help need not.
    from mmcalib.commands.test_robustness.command import run

    run(parser, args)


if __name__ == '__main__':
    main()
