"""Measure the calibration of predictions in files, with no model, config or toolbox.

The files have probabilities or logits, and labels. A limit that is not met ends with exit status 1,
so that a build can stop there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mmcalib.cli.arguments import PredictionFileOptions, add_prediction_file_arguments
from mmcalib.cli.parser import ToolParser
from mmcalib.names import AUTO, METHODS


@dataclass(frozen=True, kw_only=True)
class MeasureOptions(PredictionFileOptions):
    """Options of the command ``measure``, which its help describes.

    Attributes:
        diagram: File for a reliability diagram.
        calibrate: Method of a scaling to fit.
        out: File for this scaling.
    """

    diagram: str | None = None
    calibrate: str | None = None
    out: str | None = None


def build_parser() -> ToolParser:
    """Return the parser of the command line."""
    parser = ToolParser(
        runs=False,
        description=__doc__,
        examples=[
            'predictions.npz',
            'probs.npy labels.npy --diagram diagram.png',
            "test.csv --predictions 'p_*' --labels label --groups patient",
            'test.csv --predictions p --labels y --require "ECE<5" --require "rate_gap<3"',
            'val.npz --calibrate temperature --out scaler.json',
        ],
    )
    parser.add_argument(
        'files',
        nargs='+',
        metavar='FILE',
        help='an .npz, .csv or .parquet file; or .npy files of predictions, of labels and, if '
        'there are any, of groups',
    )
    add_prediction_file_arguments(parser)
    parser.add_argument(
        '--diagram', metavar='FILE', help='write a reliability diagram, as .png, .pdf or .svg'
    )
    parser.add_argument(
        '--calibrate',
        choices=(*METHODS, AUTO),
        metavar='METHOD',
        help=f'fit a scaling to these predictions: {", ".join((*METHODS, AUTO))}',
    )
    parser.add_argument(
        '--out', metavar='FILE', help='write the scaling of --calibrate to a .json file'
    )
    return parser


def parse(parser: ToolParser, arguments: Sequence[str]) -> MeasureOptions:
    """Return the options on a command line."""
    options = MeasureOptions(**vars(parser.parse_intermixed_args(arguments)))
    if options.out is not None and options.calibrate is None:
        parser.error('--out is for the scaling of --calibrate METHOD: name a method')
    return options
