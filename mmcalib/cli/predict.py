"""Predict images without labels: classes, confidences, and the accuracy to expect.

Run the same command again to continue where it stopped. On several GPUs or processes:
torchrun --nproc_per_node=GPUS -m mmcalib predict … --launcher pytorch
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mmcalib.cli.options import REQUIRED, Options, option
from mmcalib.cli.parser import ToolParser
from mmcalib.cli.shared import MeanOptions, RunnerOptions, temperature_option
from mmcalib.members import tell_checkpoints_from_images


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
    temperature: str | None = temperature_option(group='')
    disagreement: bool = option(
        'report how far the members of an ensemble disagree, for each image and in the arrays',
        False,
    )
    threshold: float | None = option(
        'keep predictions above it (default: 0.9, or the threshold that --risk finds)',
        metavar='CONFIDENCE',
    )
    validation: str | None = option(
        'work dir of a test of the same model on labelled data, which expected accuracies '
        'and --risk require',
        metavar='WORK_DIR',
    )
    risk: float | None = option(
        'keep as many predictions as possible with at most this share of errors, such as 0.05',
        metavar='SHARE',
    )
    probability: float = option(
        'probability with which the bound of --risk and the intervals hold', 0.95
    )
    device: str | None = option('such as cuda:1 or cpu (default: a GPU, if any)')
    workers: int = option('processes that read files', 0, metavar='N')
    cfg_options: dict | None = None


@dataclass(frozen=True, kw_only=True)
class PredictFolderOptions(RunnerOptions, PredictOptions):
    """Options of the command ``predict``, which its help describes."""

    examples = (
        'CONFIG CHECKPOINT photos/ more/*.jpg list.txt --out DIR',
        'CONFIG CHECKPOINT photos/ --out DIR --validation WORK_DIR --risk 0.05',
        'CONFIG A.pth B.pth photos/ --out DIR',
    )
    stopped = 'Stopped: run the same command again to continue.'

    out: str = option('folder for the predictions', REQUIRED, metavar='DIR', before='threshold')
    arrays: bool = option('write no .npz files', True, before='device')
    pictures: bool = option('write no .png files', True, before='device')
    overwrite: bool = option('start over: remove the predictions in --out', False, before='device')

    @classmethod
    def add_checkpoints(cls, parser: ToolParser) -> None:
        """Give a parser the argument that has the images, and the checkpoints before them."""
        parser.add_argument(
            'images',
            nargs='+',
            metavar='CHECKPOINT | IMAGES',
            help='a checkpoint, or a work dir for the best checkpoint in it; more checkpoints for '
            'an ensemble, as .pth files or CONFIG.py:CHECKPOINT; then images: files, folders, '
            'patterns, or .txt files with a path per line',
        )

    @classmethod
    def from_values(cls, values: dict) -> Options:
        """Return the options, with config and checkpoints as members.

        Raises:
            UserError: If there is no checkpoint, or one twice.
        """
        checkpoints, images = tell_checkpoints_from_images(values['config'], values['images'])
        return super().from_values({**values, 'checkpoint': checkpoints, 'images': tuple(images)})
