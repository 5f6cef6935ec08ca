"""Compare two models by their predictions in files, of the same images.

Differences of the metrics have intervals that are paired over the images, and a sentence says which
can be told from 0. A limit of --require is one of B − A.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mmcalib.cli.options import positional
from mmcalib.cli.shared import PredictionFileOptions


@dataclass(frozen=True, kw_only=True)
class CompareOptions(PredictionFileOptions):
    """Options of the command ``compare``, which its help describes."""

    examples = (
        'last.npz new.npz',
        'last.npy new.npy labels.npy --require "NLL<0.01"',
        "last.csv new.csv --predictions 'p_*' --labels label --json comparison.json",
    )
    runs = False

    files: Sequence[str] = positional(
        'A and B, each an .npz, .csv or .parquet file with the same labels; or .npy files of '
        'the predictions of A, of those of B, of labels and, if there are any, of groups',
        nargs='+',
        metavar='FILE',
    )
