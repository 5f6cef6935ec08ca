"""Compare two models by their predictions in files, of the same images.

Differences of the metrics have intervals that are paired over the images, and a sentence says which
can be told from 0. A limit of --require is one of B − A.
"""

from __future__ import annotations

from collections.abc import Sequence

from mmcalib.cli.arguments import PredictionFileOptions, add_prediction_file_arguments
from mmcalib.cli.parser import ToolParser


def build_parser() -> ToolParser:
    """Return the parser of the command line."""
    parser = ToolParser(
        runs=False,
        description=__doc__,
        examples=[
            'last.npz new.npz',
            'last.npy new.npy labels.npy --require "NLL<0.01"',
            "last.csv new.csv --predictions 'p_*' --labels label --json comparison.json",
        ],
    )
    parser.add_argument(
        'files',
        nargs='+',
        metavar='FILE',
        help='A and B, each an .npz, .csv or .parquet file with the same labels; or .npy files of '
        'the predictions of A, of those of B, of labels and, if there are any, of groups',
    )
    add_prediction_file_arguments(parser)
    return parser


def parse(parser: ToolParser, arguments: Sequence[str]) -> PredictionFileOptions:
    """Return the options on a command line."""
    return PredictionFileOptions(**vars(parser.parse_intermixed_args(arguments)))
