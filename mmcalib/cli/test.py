"""Test a checkpoint, or an ensemble of several predictions."""

from __future__ import annotations

from dataclasses import dataclass

from mmcalib.cli.options import option
from mmcalib.cli.shared import (
    MeanOptions,
    RunnerOptions,
    evaluation_option,
    limit_option,
    split_option,
    temperature_option,
)


@dataclass(frozen=True, kw_only=True)
class EvaluationOptions(RunnerOptions, MeanOptions):
    """Options of the command ``test``, which its help describes."""

    examples = (
        'CONFIG CHECKPOINT --calibration',
        'CONFIG A.pth B.pth C.pth --temperature temperature.json',
    )

    calibration: bool = option(
        'measure ECE, AECE, the gap between confidence and accuracy, NLL, Brier score and '
        'the rates of the classes, of two classes the ECE of P(y = 1) too, with intervals, and '
        'draw them; a CalibrationMetric of the config keeps its options',
        False,
        group='evaluation',
    )
    objects: bool = option(
        'also count each class and each object, as predict needs for the scores of objects', False
    )
    evaluation: str | None = evaluation_option()
    split: str = split_option()
    limit: int | None = limit_option('test N samples')
    amp: bool = option('test in mixed precision (GPU only)', False)
    temperature: str | None = temperature_option(before='work_dir')
    work_dir: str | None = option(
        'folder for the log and results.json (default: a folder in work_dirs/CONFIG that is '
        'named after the checkpoint)',
        group='output',
    )
    out: str | None = option('file for the predictions (.pkl)', metavar='FILE')
    disagreement: str | None = option(
        'measure how far the members of an ensemble disagree, and write it to DIR for each '
        'image and pixel',
        metavar='DIR',
    )
    show_dir: str | None = option('folder for drawn predictions', metavar='DIR')
