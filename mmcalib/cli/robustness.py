"""Test checkpoints on corrupted images, and on other data sets with the same classes.

Each test saves its result when it ends. Run the same command again to continue, or with more
checkpoints, corruptions or severities to test only the new ones.
"""

from __future__ import annotations

from argparse import Action, ArgumentError
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mmcalib.choices import CORRUPTION_GROUPS, SEVERITIES
from mmcalib.cli.options import option, positional
from mmcalib.cli.shared import (
    CONFIG_HELP,
    RunnerOptions,
    evaluation_option,
    limit_option,
    split_option,
)


class NamedFiles(Action):
    """``NAME=FILE …`` as a dict of texts, each name once."""

    def __call__(self, parser, namespace, values, option_string=None) -> None:
        files = dict(getattr(namespace, self.dest) or {})
        for value in values:
            name, _, file = value.partition('=')
            if not name or not file:
                raise ArgumentError(self, f'takes {self.metavar}, got {value!r}')
            if name in files:
                raise ArgumentError(self, f'has {name} twice: {files[name]} and {file}')
            files[name] = file
        setattr(namespace, self.dest, files)


def corruption_help() -> str:
    """Return the sets of corruptions with their members."""
    groups = [f'{name} ({", ".join(members)})' for name, members in CORRUPTION_GROUPS.items()]
    return (
        f'corruptions or sets of them: {"; ".join(groups)}; benchmark, all sets but holdout; all; '
        'or None for the data of --data alone (default: benchmark)'
    )


@dataclass(frozen=True, kw_only=True)
class RobustnessOptions(RunnerOptions):
    """Options of the command ``robustness``, which its help describes."""

    examples = (
        'CONFIG best.pth calibrated.pth',
        'CONFIG best.pth --corruptions noise fog --severities 1 3 5',
        'CONFIG best.pth --stored data/CIFAR-10-C',
    )
    stopped = 'Stopped: the same call goes on where it was.'

    config: str = positional(CONFIG_HELP)
    checkpoints: Sequence[str] = positional(
        'checkpoint file, or a work dir for the best checkpoint in it', metavar='checkpoint'
    )
    corruptions: Sequence[str] = option(
        corruption_help(), ('benchmark',), metavar='NAME', group='shifts'
    )
    severities: Sequence[int] = option(
        'severities to test; 0, clean data, is always tested (default: 0 1 2 3 4 5)',
        (0, *SEVERITIES),
        metavar='N',
    )
    seed: int = option('seed of the corruptions', 0)
    corrupt_before: str | None = option(
        'corrupt images before this transform, if the test pipeline has one that mmcalib does '
        'not know',
        metavar='TRANSFORM',
    )
    stored: str | None = option(
        'read corrupted images from the arrays of CIFAR-10-C or the folders of ImageNet-C',
        metavar='FOLDER',
    )
    data: Mapping[str, str] | None = option(
        'also test on the test data of other configs with the same classes',
        nargs='+',
        action=NamedFiles,
        metavar='NAME=CONFIG',
    )
    evaluation: str | None = evaluation_option(group='evaluation')
    split: str = split_option()
    limit: int | None = limit_option('test N samples')
    workers: int | None = option("data loader workers (default: the config's)", metavar='N')
    work_dir: str | None = option('folder for the tests (default: work_dirs/CONFIG/robustness)')
