"""Options that several commands share."""

from __future__ import annotations

import os
import re
from argparse import SUPPRESS, Action, ArgumentError, ArgumentParser
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mmcalib.choices import EVALUATIONS
from mmcalib.cli.options import Options, option
from mmcalib.cli.parser import ToolParser
from mmcalib.members import Averaging, split_members

CONFIG_HELP = 'config file of mmcalib, mmpretrain or mmseg; or mmcalib::mbls/digits.py'
AMP_HELP = 'train in mixed precision (GPU only)'


class SetLocalRank(Action):
    """Keeps the rank that a launcher passes where PyTorch looks for it; it is no option."""

    def __call__(self, parser, namespace, values, option_string=None) -> None:
        os.environ.setdefault('LOCAL_RANK', values)


class ConfigOptions(Action):
    """``KEY=VALUE …`` as a dict; any other form is an error of the command line."""

    def __call__(self, parser, namespace, values, option_string=None) -> None:
        for value in values:
            if not value.partition('=')[0] or '=' not in value:
                raise ArgumentError(self, f'takes KEY=VALUE, got {value!r}')
            if 'dict(' in value or '{' in value:  # mmengine would make a text of it, or loop.
                raise ArgumentError(
                    self,
                    f'takes no dict, got {value!r}: write a config with this one as _base_, or '
                    'replace single values, such as model.head.loss.type=X',
                )
        from mmengine.config import DictAction  # It takes seconds, which a help need not.

        try:
            DictAction(self.option_strings, self.dest)(parser, namespace, values, option_string)
        except AssertionError as error:
            raise ArgumentError(self, str(error)) from error
        for value in values:
            key, _, text = value.partition('=')
            if ' ' not in re.sub(r' *([,()\[\]]) *', r'\1', text.strip()):
                continue
            if text.startswith(('[', '(')):
                raise ArgumentError(
                    self,
                    f'{value!r} has a space, which would be lost: write a config with this one as '
                    '_base_',
                )
            # mmengine takes the spaces out, and a path is another one then.
            getattr(namespace, self.dest)[key] = text.strip('"\'')


def parse_options(options: list[str]) -> dict:
    """Return ``KEY=VALUE`` arguments as ``--cfg-options`` reads them."""
    parser = ArgumentParser()
    parser.add_argument('--cfg-options', nargs='*', action=ConfigOptions, default={})
    return parser.parse_args(['--cfg-options', *options]).cfg_options


def config_option(**place) -> Any:
    """Return the option ``--cfg-options``."""
    return option(
        'replace values of the config, such as randomness.seed=1 or key="[a,b]"',
        nargs='+',
        action=ConfigOptions,
        metavar='KEY=VALUE',
        **place,
    )


def limit_option(task: str) -> Any:
    """Return the option ``--limit``, for a run that only shows that all works.

    Args:
        task: Text about what a smoke run does, such as ``'test N samples'``.
    """
    return option(
        f'smoke run: {task}. Results are marked, reports leave them out, and they go to '
        'WORK_DIR/limitN unless --work-dir is given',
        metavar='N',
    )


def split_option() -> Any:
    """Return the option ``--split``, the split that training and testing test on."""
    return option(
        'split to test on; val writes results_val.json instead of results.json',
        'test',
        choices=('test', 'val'),
    )


def evaluation_option(**place) -> Any:
    """Return the option ``--evaluation``."""
    return option(
        "one of the config's named evaluations, whose results go to WORK_DIR/NAME; shipped "
        f'configs have {", ".join(EVALUATIONS)}',
        metavar='NAME',
        **place,
    )


def temperature_option(**place) -> Any:
    """Return the option ``--temperature``, of commands that predict."""
    return option(
        'scale an ensemble by the temperature in the .json file that calibrate has written',
        metavar='FILE',
        **place,
    )


@dataclass(frozen=True, kw_only=True)
class RunnerOptions(Options):
    """Options of every command that builds a Runner."""

    cfg_options: Mapping[str, Any] | None = config_option(group='config and processes', last=True)
    launcher: str = option(
        'what starts the processes of a distributed run',
        'none',
        choices=['none', 'pytorch', 'slurm', 'mpi'],
        last=True,
    )

    @classmethod
    def add_arguments(cls, parser: ToolParser) -> None:
        """Give a parser the arguments of the fields, and the rank that a launcher passes."""
        super().add_arguments(parser)
        last_group = parser._action_groups[-1]
        last_group.add_argument(
            '--local_rank',
            '--local-rank',
            action=SetLocalRank,
            dest=SUPPRESS,
            default=SUPPRESS,
            metavar='N',
            help='set by the launcher',
        )


@dataclass(frozen=True, kw_only=True)
class MeanOptions(Options, Averaging):
    """Options of a model that may average several predictions.

    A command line names its members by a config and checkpoints.
    """

    tta: bool = option(
        "test-time augmentation: average over the views of the config's tta_pipeline; without "
        'one, over the image and its mirror image, and for segmentation over three scales',
        False,
        group='ensembles: The mean of several predictions of an image.',
    )
    tta_scales: Sequence[float] | None = option(
        "average over images and mirror images at these scales, instead of the config's "
        'tta_pipeline',
        metavar='S',
    )
    mc_dropout: int = option(
        'average over N passes with random dropout (default: 0, no dropout)', 0, metavar='N'
    )
    dropout_seed: int = option('seed of the dropout', 0, metavar='SEED')

    @classmethod
    def add_arguments(cls, parser: ToolParser) -> None:
        """Give a parser config and checkpoints, and the arguments of the fields."""
        parser.add_argument('config', help=f'{CONFIG_HELP}; or CONFIG.py:CHECKPOINT')
        cls.add_checkpoints(parser)
        super().add_arguments(parser)

    @classmethod
    def add_checkpoints(cls, parser: ToolParser) -> None:
        """Give a parser the argument that has the checkpoints."""
        parser.add_argument(
            'checkpoint',
            nargs='*',
            help='checkpoint file, or a work dir for the best checkpoint in it; several form '
            'an ensemble, whose members may have their own configs as CONFIG.py:CHECKPOINT',
        )

    @classmethod
    def from_values(cls, values: dict) -> Options:
        """Return the options, with config and checkpoints as members.

        Raises:
            UserError: If there is no checkpoint, or one twice.
        """
        members = split_members(values.pop('config'), values.pop('checkpoint'))
        return cls(members=tuple(members), **values)


@dataclass(frozen=True, kw_only=True)
class PredictionFileOptions(Options):
    """Options of a command that reads predictions from files."""

    predictions: Sequence[str] = option(
        "key or columns of the predictions, also as a pattern such as 'p_*', whose columns "
        'are classes by what the star stands for (default: the key probs, or logits)',
        (),
        metavar='NAME',
    )
    logits: bool = option('the predictions are logits, not probabilities', False)
    labels: Sequence[str] = option(
        'key or column of the labels, integers or names of classes; several columns of 0 and '
        '1 for several labels (default: labels)',
        (),
        metavar='NAME',
    )
    groups: str | None = option(
        'key or column of the groups that are independent, such as patients or videos',
        metavar='NAME',
    )
    metrics: Sequence[str] | None = option('metrics in place of the usual ones', metavar='NAME')
    bins: int = option('number of bins', 15, metavar='B')
    ignore_index: int | None = option('label of what does not count, as 255', metavar='LABEL')
    interval: float = option('coverage of the intervals', 0.95, metavar='COVERAGE')
    require: Sequence[str] | None = option(
        'end with exit status 1 unless this holds of the end of the interval, such as "ECE<3" '
        'or "accuracy>90"; may be repeated',
        action='append',
        metavar='LIMIT',
    )
    json: str | None = option('write the numbers as JSON too', metavar='FILE')
