"""Choose a parameter of the loss on validation data.

Trains the model with every value, by the same seed, and evaluates the best checkpoints on the
validation split. The value with the lowest NLL is chosen, and it alone is tested; the table names
the values within its noise. Run the same command again to continue, or with more values to add
them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mmcalib.cli.options import Options, option, positional
from mmcalib.cli.shared import AMP_HELP, CONFIG_HELP, limit_option


@dataclass(frozen=True, kw_only=True)
class SweepOptions(Options):
    """Options of the command ``sweep``, which its help describes."""

    examples = (
        'configs/mbls/digits.py --param margin=0,4,8,12 --seeds 0 1 2',
        '--plot work_dirs/sweeps/mbls/digits/margin --out margin.pdf',
    )
    stopped = 'Stopped: the same command goes on from here.'

    config: str | None = positional(CONFIG_HELP, None, nargs='?')
    param: Sequence[str] | None = option(
        'parameter of the loss and its values, such as margin=0,2,4,6,8,10,15,20',
        action='append',
        metavar='NAME=VALUE,VALUE,…',
    )
    work_dir: str | None = option(
        'folder for the trainings and sweep.json, .md, .png and .pdf '
        '(default: work_dirs/sweeps/CONFIG/NAME)'
    )
    by: str = option(
        'metric that the value is chosen by on validation data; the ECE prefers networks that '
        'have learned little',
        'NLL',
        choices=('NLL', 'ECE'),
    )
    seeds: Sequence[int] | None = option(
        "average over these training seeds (default: the config's seed, or 0, for all values)",
        metavar='SEED',
        group='trainings',
    )
    jobs: int = option('trainings at a time', 1, metavar='N')
    gpus: int | None = option('GPUs for each training', metavar='N')
    test_all: bool = option('test every value, for a figure; the choice ignores these tests', False)
    limit: int | None = limit_option('train each value for one epoch on N samples of each split')
    amp: bool = option(AMP_HELP, False)
    auto_scale_lr: bool = option('as in the command train', False)
    cfg_options: Sequence[str] | None = option('replace values of the config', metavar='KEY=VALUE')
    plot: Sequence[str] | None = option(
        'draw the sweeps in these work dirs', metavar='DIR', group='figure of finished sweeps'
    )
    out: str | None = option('file that --plot draws: .png, .pdf or .svg', metavar='FILE')
