"""Measure the calibration of predictions in files, with no model, config or toolbox.

The files have probabilities or logits, and labels. A limit that is not met ends with exit status 1,
so that a build can stop there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mmcalib.choices import AUTO, METHODS
from mmcalib.cli.options import Options, option, positional
from mmcalib.cli.shared import PredictionFileOptions
from mmcalib.errors import UserError


@dataclass(frozen=True, kw_only=True)
class MeasureOptions(PredictionFileOptions):
    """Options of the command ``measure``, which its help describes."""

    examples = (
        'predictions.npz',
        'probs.npy labels.npy --diagram diagram.png',
        "test.csv --predictions 'p_*' --labels label --groups patient",
        'test.csv --predictions p --labels y --require "ClasswiseECE<5" --require "rate_gap<3"',
        'val.npz --calibrate temperature --out scaler.json',
        'new.npz --scaler scaler.json --out calibrated.npz',
    )
    runs = False

    files: Sequence[str] = positional(
        'an .npz, .csv or .parquet file; or .npy files of predictions, of labels and, if '
        'there are any, of groups',
        nargs='+',
        metavar='FILE',
    )
    diagram: str | None = option(
        'write a reliability diagram, as .png, .pdf or .svg', metavar='FILE'
    )
    calibrate: str | None = option(
        f'fit a scaling to these predictions: {", ".join((*METHODS, AUTO))}',
        choices=(*METHODS, AUTO),
        metavar='METHOD',
    )
    scaler: str | None = option(
        'scale the predictions first, by the .json file of a scaling', metavar='FILE'
    )
    out: str | None = option(
        'write the scaling of --calibrate to a .json file, or the probabilities of --scaler to an '
        '.npz file, or to a .csv file beside all columns of the table; no labels are needed then',
        metavar='FILE',
    )

    @classmethod
    def from_values(cls, values: dict) -> Options:
        """Return the options of the values on a command line.

        Raises:
            UserError: If there is a file to write and nothing for it, or a scaling for predictions
                that are scaled already.
        """
        out = values['out']
        if values['scaler'] is not None and values['calibrate'] is not None:
            raise UserError('--calibrate fits to predictions as they are: leave --scaler out')
        is_scaled = out is not None and values['scaler'] is not None
        if is_scaled and not out.endswith(('.npz', '.csv')):
            raise UserError(f'--out {out}: name an .npz or .csv file for what --scaler has scaled')
        if out is not None and values['calibrate'] is not None and not out.endswith('.json'):
            raise UserError(f'--out {out}: name a .json file for the scaling of --calibrate')
        if out is not None and values['scaler'] is None and values['calibrate'] is None:
            raise UserError('--out is for the scaling of --calibrate METHOD: name a method')
        return cls(**values)
