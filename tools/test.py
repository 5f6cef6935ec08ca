"""Test a checkpoint, or an ensemble of several predictions."""

from mmcalib.cli.arguments import (
    add_evaluation_argument,
    add_limit_argument,
    add_member_arguments,
    add_runner_arguments,
    add_split_argument,
    add_temperature_argument,
    parse_member_arguments,
)
from mmcalib.cli.parser import ToolParser


def main() -> None:
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
        help='measure ECE, AECE, the gap between confidence and accuracy, NLL and Brier score '
        'with intervals, and draw them; a CalibrationMetric of the config keeps its options',
    )
    group.add_argument(
        '--objects',
        action='store_true',
        help='also count each class and each object, as tools/predict.py needs for the scores of '
        'objects and for --labels',
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
    args = parse_member_arguments(parser)

    from mmcalib.runs.test import run  # takes seconds, which a help need not

    run(parser, args)


if __name__ == '__main__':
    main()
