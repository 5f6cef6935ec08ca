"""Predict images without labels: classes, confidences, and the accuracy to expect.

Run the same command again to continue where it stopped. On several GPUs or processes:
python tools/torchrun.py --nproc_per_node=GPUS tools/predict.py … --launcher pytorch
"""

import os
import sys

from mmcalib.cli.arguments import (
    CONFIG_HELP,
    add_ensemble_arguments,
    add_runner_arguments,
    add_temperature_argument,
)
from mmcalib.cli.files import tell_checkpoints_from_images
from mmcalib.cli.parser import ToolParser

INCOMPLETE = 3  # the exit status where not all images could be predicted


def main() -> None:
    parser = ToolParser(
        description=__doc__,
        examples=[
            'CONFIG CHECKPOINT photos/ more/*.jpg list.txt --out DIR',
            'CONFIG CHECKPOINT photos/ --out DIR --validation WORK_DIR --risk 0.05',
            'CONFIG A.pth B.pth photos/ --out DIR',
        ],
    )
    parser.add_argument('config', help=f'{CONFIG_HELP}; or CONFIG.py:CHECKPOINT')
    parser.add_argument(
        'checkpoints_and_images',
        nargs='+',
        metavar='CHECKPOINT | IMAGES',
        help='a checkpoint, or a work dir for the best checkpoint in it; more checkpoints for an '
        'ensemble, as .pth files or CONFIG.py:CHECKPOINT; then images: files, folders, patterns, '
        'or .txt files with a path per line',
    )
    add_ensemble_arguments(parser)
    add_temperature_argument(parser)
    parser.add_argument(
        '--disagreement',
        action='store_true',
        help='report how far the members of an ensemble disagree, for each image and in the arrays',
    )
    parser.add_argument('--out', required=True, metavar='DIR', help='folder for the predictions')
    parser.add_argument(
        '--threshold',
        type=float,
        metavar='CONFIDENCE',
        help='keep predictions above it (default: 0.9, or the threshold that --risk finds)',
    )
    parser.add_argument(
        '--validation',
        metavar='WORK_DIR',
        help='work dir of a test of the same model on labelled data, which expected accuracies '
        'and --risk require',
    )
    parser.add_argument(
        '--risk',
        type=float,
        metavar='SHARE',
        help='keep as many predictions as possible with at most this share of errors, such as 0.05',
    )
    parser.add_argument(
        '--probability',
        type=float,
        default=0.95,
        help='probability with which the bound of --risk and the intervals hold',
    )
    for name, kind in (('arrays', '.npz'), ('pictures', '.png')):
        parser.add_argument(
            f'--no-{name}', dest=name, action='store_false', help=f'write no {kind} files'
        )
    parser.add_argument(
        '--overwrite',
        action='store_true',
        help='start over: remove the predictions in --out',
    )
    parser.add_argument('--device', help='such as cuda:1 or cpu (default: a GPU, if any)')
    parser.add_argument(
        '--workers', type=int, default=0, metavar='N', help='processes that read files'
    )
    add_runner_arguments(parser)
    args = parser.parse_intermixed_args()

    options = dict(vars(args))
    options['checkpoint'], options['images'] = tell_checkpoints_from_images(
        args.config, options.pop('checkpoints_and_images')
    )
    # Takes seconds, which a help need not.
    from mmcalib.commands.predict.command import predict_to_folder
    from mmcalib.commands.predict.words import report_in_words
    from mmcalib.runs.processes import join_processes

    stopped = 'Stopped: run the same command again to continue.'
    with parser.ending_with_errors(stopped):
        join_processes(options.pop('launcher'))
        report = predict_to_folder(**options)
    if report is None:  # of several processes, the first one reports
        return
    print(report_in_words(report))
    print(f'{args.out}: {", ".join(sorted(os.listdir(args.out)))}')
    sys.exit(INCOMPLETE if report.unreadable else 0)


if __name__ == '__main__':
    main()
