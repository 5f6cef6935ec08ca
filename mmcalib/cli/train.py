"""Train a model, then test its best checkpoint."""

from __future__ import annotations

from dataclasses import dataclass

from mmcalib.cli.options import option, positional
from mmcalib.cli.shared import AMP_HELP, CONFIG_HELP, RunnerOptions, limit_option, split_option


@dataclass(frozen=True, kw_only=True)
class TrainOptions(RunnerOptions):
    """Options of the command ``train``, which its help describes."""

    examples = (
        'configs/mbls/digits.py',
        'configs/mbls/digits.py --work-dir seed1 --cfg-options randomness.seed=1',
    )
    stopped = (
        'Stopped: the same command with --resume goes on from the last checkpoint, '
        'or begins anew if there is none.'
    )

    config: str = positional(CONFIG_HELP)
    work_dir: str | None = option(
        'folder for logs, checkpoints and results (default: work_dirs/CONFIG)'
    )
    resume: str | None = option(
        'resume from a checkpoint; without one, from the latest in the work dir',
        nargs='?',
        const='auto',
        metavar='CHECKPOINT',
        group='training',
    )
    amp: bool = option(AMP_HELP, False)
    auto_scale_lr: bool = option(
        'scale the learning rate by the total batch size over auto_scale_lr.base_batch_size', False
    )
    no_validate: bool = option('skip validation while training', False)
    limit: int | None = limit_option('train one epoch on N samples of each split')
    no_test: bool = option('skip the test after training', False, group='test')
    split: str = split_option()
