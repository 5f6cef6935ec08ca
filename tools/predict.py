"""Predict images without labels: classes, confidences, and the accuracy to expect.

tools/predict.py CONFIG CHECKPOINT photos/ more/*.jpg list.txt --out DIR
tools/predict.py CONFIG CHECKPOINT photos/ --out DIR --validation WORK_DIR --risk 0.05
tools/predict.py CONFIG A.pth B.pth photos/ --out DIR

The same command again goes on where it stopped. On several GPUs or processes:

tools/torchrun.py --nproc_per_node=GPUS tools/predict.py … --launcher pytorch
"""

import argparse
import os
import sys

from mmcalib.distributed import join_processes
from mmcalib.prediction.predict_to_folder import predict_to_folder, report_in_words
from mmcalib.runs.command_line import (
    ConfigOptions,
    ToolParser,
    add_ensemble_arguments,
    add_launcher_arguments,
    add_temperature_argument,
    tell_checkpoints_from_images,
)

INCOMPLETE = 3  # the exit status where not all images have been predicted


def parse_args() -> tuple[ToolParser, argparse.Namespace]:
    parser = ToolParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        'config', help='config file, of mmcalib, mmpretrain or mmseg; or CONFIG.py:CHECKPOINT'
    )
    parser.add_argument(
        'checkpoints_and_images',
        nargs='+',
        metavar='CHECKPOINT | IMAGES',
        help='a checkpoint, others that end in .pth or are CONFIG.py:CHECKPOINT, for the mean of '
        'their probabilities, and images: files, folders, patterns, or .txt files with a path a '
        'line',
    )
    add_ensemble_arguments(parser)
    add_temperature_argument(parser)
    parser.add_argument(
        '--disagreement',
        action='store_true',
        help='report for each image, and in the arrays, how far the predictions disagree',
    )
    parser.add_argument('--out', required=True, metavar='DIR', help='folder for the predictions')
    parser.add_argument(
        '--threshold',
        type=float,
        metavar='CONFIDENCE',
        help='predictions above it are kept (default: 0.9, or what --risk proves)',
    )
    parser.add_argument(
        '--validation',
        metavar='WORK_DIR',
        help='work dir of a labelled test of the same model: for expected accuracies and --risk',
    )
    parser.add_argument(
        '--risk',
        type=float,
        metavar='SHARE',
        help='keep as much as is proven to be wrong in at most this share, such as 0.05',
    )
    parser.add_argument(
        '--probability',
        type=float,
        default=0.95,
        help='probability of the bound on the risk and of the intervals (default: %(default)s)',
    )
    parser.add_argument(
        '--labels',
        metavar='DIR',
        help='write masks for training: PNG files with the class of each pixel, and 255 where it '
        "is not above its class's threshold, which --risk proves for each class",
    )
    parser.add_argument('--no-arrays', action='store_true', help='no .npz file for each image')
    parser.add_argument('--no-pictures', action='store_true', help='no .png file for each image')
    parser.add_argument(
        '--overwrite',
        action='store_true',
        help='begin anew in --out: predictions in it are removed',
    )
    parser.add_argument('--device', help='such as cuda:1 or cpu (default: a GPU if there is one)')
    parser.add_argument(
        '--workers', type=int, default=0, help='processes that read files (default: %(default)s)'
    )
    parser.add_argument(
        '--cfg-options',
        nargs='+',
        action=ConfigOptions,
        metavar='KEY=VALUE',
        help='replace config values',
    )
    add_launcher_arguments(parser)
    return parser, parser.parse_intermixed_args()


def main() -> None:
    parser, args = parse_args()
    options = dict(vars(args))
    options['checkpoint'], options['images'] = tell_checkpoints_from_images(
        args.config, options.pop('checkpoints_and_images')
    )
    for name in ('arrays', 'pictures'):
        options[name] = not options.pop(f'no_{name}')
    os.environ.setdefault('LOCAL_RANK', str(options.pop('local_rank')))
    with parser.ending_with_errors(ImportError, OSError, TypeError, ValueError):
        join_processes(options.pop('launcher'))
        report = predict_to_folder(**options)
    if report is None:  # of several processes, the first one reports
        return
    print(report_in_words(report, args.out))
    if report.stopped:
        print(report.stopped, file=sys.stderr)
    sys.exit(INCOMPLETE if report.stopped or report.unreadable else 0)


if __name__ == '__main__':
    main()
