"""Train a model, then test its best checkpoint."""

from mmcalib.cli.arguments import (
    CONFIG_HELP,
    add_limit_argument,
    add_runner_arguments,
    add_split_argument,
)
from mmcalib.cli.parser import ToolParser


def main() -> None:
    parser = ToolParser(
        description=__doc__,
        examples=[
            'configs/mbls/digits.py',
            'configs/mbls/digits.py --work-dir seed1 --cfg-options randomness.seed=1',
        ],
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
    args = parser.parse_args()

    from mmcalib.runs.train import run  # takes seconds, which a help need not

    run(parser, args)


if __name__ == '__main__':
    main()
