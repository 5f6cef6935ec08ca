"""Calibrate a trained model: fit a scaling on held-out data and fold it into a checkpoint.

The new checkpoint fits the same config and every tool that reads the old one. A scaling that no
layer can absorb is attached instead: calibrate writes a config beside the checkpoint; test and run
the checkpoint with that one.
"""

from mmcalib.cli.arguments import (
    add_limit_argument,
    add_member_arguments,
    add_runner_arguments,
    parse_member_arguments,
)
from mmcalib.cli.parser import ToolParser
from mmcalib.names import CRITERIA, METHODS, NUM_SAMPLES

AUTO = 'auto'


def main() -> None:
    parser = ToolParser(
        description=__doc__,
        examples=[
            'CONFIG CHECKPOINT --out calibrated.pth --test',
            'CONFIG CHECKPOINT --out calibrated.pth --method auto',
            'CONFIG A.pth B.pth C.pth --out temperature.json',
        ],
    )
    add_member_arguments(parser)

    group = parser.add_argument_group('scaling')
    group.add_argument(
        '--method',
        choices=[AUTO, *METHODS],
        default='temperature',
        metavar='METHOD',
        help='%(choices)s; auto takes the simplest method within one standard error of the best '
        'cross-validated likelihood (default: %(default)s)',
    )
    group.add_argument(
        '--criterion',
        choices=CRITERIA,
        help="for a temperature: the lowest NLL, or the lowest ECE on the paper's grid 0.1, 0.2, … "
        '10.0 (default: nll)',
    )
    for name, what in (
        ('diagonal', 'the scales of vector and matrix'),
        ('off-diagonal', 'the off-diagonal elements of matrix'),
        ('intercept', 'the shifts of vector and matrix'),
    ):
        group.add_argument(
            f'--{name}', type=float, metavar='LAMBDA', help=f'weight of the penalty on {what}'
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
    args = parse_member_arguments(parser)

    # Takes seconds, which a help need not.
    from mmengine.dist import is_main_process

    from mmcalib.runs.processes import leave_processes
    from mmcalib.tasks.calibrate.calibrate import run
    from mmcalib.tasks.calibrate.summary import print_calibration

    result = run(parser, args)
    if is_main_process():
        print_calibration(result, args.out)
    status = 0
    if result['method'] == 'none':
        status = 1
        if is_main_process():
            parser.report(
                f'no scaling was chosen, so {args.out} was not written: use the model as it is'
            )
    leave_processes(status)


if __name__ == '__main__':
    main()
