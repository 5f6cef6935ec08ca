"""Calibrate a trained model: fit a scaling on held-out data and fold it into a checkpoint.

The new checkpoint fits the same config and every tool that reads the old one. A scaling that no
layer can absorb is attached instead: calibrate writes a config beside the checkpoint; test and run
the checkpoint with that one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mmcalib.choices import AUTO, CRITERIA, METHODS, NUM_SAMPLES
from mmcalib.cli.options import REQUIRED, option
from mmcalib.cli.shared import MeanOptions, RunnerOptions, limit_option


@dataclass(frozen=True, kw_only=True)
class CalibrateOptions(RunnerOptions, MeanOptions):
    """Options of the command ``calibrate``, which its help describes."""

    examples = (
        'CONFIG CHECKPOINT --out calibrated.pth --test',
        'CONFIG CHECKPOINT --out calibrated.pth --method auto',
        'CONFIG A.pth B.pth C.pth --out temperature.json',
        'CONFIG CHECKPOINT --out calibrated.pth --class-prior 0.95 0.05',
    )
    stopped = 'Stopped: nothing was written.'

    method: str | None = option(
        '%(choices)s; auto takes the simplest method within one standard error of the best '
        'cross-validated likelihood (default: temperature; platt for sigmoids and two classes)',
        choices=[AUTO, *METHODS],
        metavar='METHOD',
        group='scaling',
    )
    criterion: str | None = option(
        "for a temperature: the lowest NLL, or the lowest ECE on the paper's grid 0.1, 0.2, … "
        '10.0 (default: nll)',
        choices=CRITERIA,
    )
    diagonal: float | None = option(
        'weight of the penalty on the scales of vector and matrix', metavar='LAMBDA'
    )
    off_diagonal: float | None = option(
        'weight of the penalty on the off-diagonal elements of matrix', metavar='LAMBDA'
    )
    intercept: float | None = option(
        'weight of the penalty on the shifts of vector and matrix', metavar='LAMBDA'
    )
    class_prior: Sequence[float] | None = option(
        'frequencies of the classes where the model will be used, if they are not those of '
        'the split: 0.95 0.05 for one sigmoid of which 5 %% will be 1. Before and after are '
        'without this shift',
        metavar='F',
    )
    split: str = option(
        'split to fit on; test requires --force', 'val', choices=('val', 'test'), group='data'
    )
    groups: str | None = option(
        'which images belong together, as frames of a video or scans of a patient do: those '
        "in whose paths this regular expression finds the same; '(seq[0-9]+)_' for "
        'seq01_000.png. Folds and standard errors are of groups',
        metavar='PATTERN',
    )
    samples: int = option(
        'number of predictions (pixels) to draw for the fit', NUM_SAMPLES, metavar='N'
    )
    seed: int = option('seed of the draw', 0)
    limit: int | None = limit_option('fit on, and measure, N images of each split')
    force: bool = option(
        'fit on the test split, or on top of an earlier calibration; the checkpoint records it',
        False,
    )
    out: str = option(
        'checkpoint to write; for an ensemble, a .json file for its temperature',
        REQUIRED,
        metavar='FILE',
        group='output',
    )
    overwrite: bool = option('replace an existing --out', False)
    test: bool = option('also measure on the test split, before and after', False)
    num_bins: int = option('bins of ECE and AECE', 15, metavar='N')
    work_dir: str | None = option('folder for the log (default: work_dirs/CONFIG)')

    @property
    def writes_temperature(self) -> bool:
        """Whether the file is for the temperature of a mean."""
        return self.out.endswith('.json')

    @property
    def averages(self) -> bool:
        """Whether the model is a mean of several predictions."""
        return len(self.members) > 1 or self.has_views or self.mc_dropout > 0

    @property
    def config_beside(self) -> str:
        """The file of the config of an attached scaling."""
        return str(Path(self.out).with_suffix('.py'))
