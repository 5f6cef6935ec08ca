"""Predict images without labels: classes, confidences, and the accuracy to expect.

Run the same command again to continue where it stopped. On several GPUs or processes:
torchrun --nproc_per_node=GPUS -m mmcalib predict … --launcher pytorch
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mmcalib.cli.arguments import (
    CONFIG_HELP,
    MeanOptions,
    RunnerOptions,
    add_ensemble_arguments,
    add_runner_arguments,
    add_temperature_argument,
)
from mmcalib.cli.files import split_members, tell_checkpoints_from_images
from mmcalib.cli.parser import ToolParser
from mmcalib.errors import UserError


@dataclass(frozen=True, kw_only=True)
class PredictOptions(MeanOptions):
    """Options of :func:`mmcalib.predict`.

    Attributes:
        images: Files, folders, patterns and lists of the images.
        disagreement: Whether to measure how far the members of an ensemble disagree.
        threshold: Confidence above which predictions are kept; None for 0.9, or for the threshold
            that `risk` proves.
        validation: Work dir of a test of the same model on labelled data, None for no expected
            accuracies.
        risk: Largest share of wrong predictions among those that are kept, such as 0.05, which sets
            the threshold by the validation; None for no such bound.
        probability: Probability of the bound on the risk and of the intervals of accuracies.
        device: Device of the model, such as ``'cuda:1'``; None for a GPU if there is one.
        workers: Number of processes that read files, 0 for none beside the main one.
        cfg_options: Dotted keys of the config and their new values.
    """

    images: Sequence[str]
    disagreement: bool = False
    threshold: float | None = None
    validation: str | None = None
    risk: float | None = None
    probability: float = 0.95
    device: str | None = None
    workers: int = 0
    cfg_options: dict | None = None


@dataclass(frozen=True, kw_only=True)
class PredictFolderOptions(RunnerOptions, PredictOptions):
    """Options of the command ``predict``, which its help describes.

    Attributes:
        out: Folder for the predictions.
        arrays: Whether to write the arrays of each image.
        pictures: Whether to write a picture of each image, and the page of all.
        overwrite: Whether to remove earlier predictions in the folder.
    """

    out: str
    arrays: bool = True
    pictures: bool = True
    overwrite: bool = False


def build_parser() -> ToolParser:
    """Return the parser of the command line."""
    parser = ToolParser(
        description=__doc__,
        examples=[
            'CONFIG CHECKPOINT photos/ more/*.jpg list.txt --out DIR',
            'CONFIG CHECKPOINT photos/ --out DIR --validation WORK_DIR --risk 0.05',
            'CONFIG A.pth B.pth photos/ --out DIR',
        ],
        stopped='Stopped: run the same command again to continue.',
    )
    parser.add_argument('config', help=f'{CONFIG_HELP}; or CONFIG.py:CHECKPOINT')
    parser.add_argument(
        'images',  # and the checkpoints before them, which become `members`
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
    for name, suffix in (('arrays', '.npz'), ('pictures', '.png')):
        parser.add_argument(
            f'--no-{name}', dest=name, action='store_false', help=f'write no {suffix} files'
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
    return parser


def parse(parser: ToolParser, arguments: Sequence[str]) -> PredictFolderOptions:
    """Return the options on a command line."""
    values = vars(parser.parse_intermixed_args(arguments))
    config = values.pop('config')
    checkpoints, images = tell_checkpoints_from_images(config, values.pop('images'))
    try:
        members = split_members(config, checkpoints)
    except UserError as error:
        parser.error(str(error))
    return PredictFolderOptions(members=tuple(members), images=tuple(images), **values)
