"""Arguments that several tools share."""

from __future__ import annotations

import os
from argparse import SUPPRESS, Action, ArgumentError, ArgumentParser, _ArgumentGroup
from collections.abc import Sequence
from dataclasses import dataclass

from mmcalib.cli.files import Member, split_members
from mmcalib.cli.parser import ToolParser
from mmcalib.errors import UserError
from mmcalib.names import EVALUATIONS

CONFIG_HELP = 'config file of mmcalib, mmpretrain or mmseg; or mmcalib::mbls/digits.py'
SPLITS = ('test', 'val')


@dataclass(frozen=True, kw_only=True)
class RunnerOptions:
    """Options of every command that builds a Runner, see :func:`add_runner_arguments`.

    Attributes:
        cfg_options: Dotted keys of the config and their new values.
        launcher: Name of the program that started the processes, ``'none'`` for a single one.
    """

    cfg_options: dict | None = None
    launcher: str = 'none'


@dataclass(frozen=True, kw_only=True)
class MeanOptions:
    """Options of a model that may average several predictions, see :func:`add_member_arguments`.

    Attributes:
        members: Config and checkpoint of each network.
        tta: Whether to average over views of each image.
        tta_scales: Scales of the views; None for those of the config.
        mc_dropout: Number of passes with random dropout, 0 for none.
        dropout_seed: Seed of the dropout.
        temperature: File with the temperature of this mean, None to not scale it.
    """

    members: tuple[Member, ...]
    tta: bool = False
    tta_scales: Sequence[float] | None = None
    mc_dropout: int = 0
    dropout_seed: int = 0
    temperature: str | None = None

    @property
    def has_views(self) -> bool:
        """Whether each image is predicted in several views."""
        return self.tta or self.tta_scales is not None


@dataclass(frozen=True, kw_only=True)
class PredictionFileOptions:
    """Options of a command that reads predictions, see :func:`add_prediction_file_arguments`.

    Attributes:
        files: Files of predictions, and of labels and groups.
        predictions: Keys or columns of the predictions.
        logits: Whether the predictions are logits.
        labels: Keys or columns of the labels.
        groups: Key or column of the groups.
        metrics: Names of the metrics; None for the usual ones.
        bins: The number of bins.
        ignore_index: Label of predictions that do not count.
        interval: Coverage of the intervals.
        require: Limits, such as ``ECE<3``.
        json: File for the numbers.
    """

    files: Sequence[str]
    predictions: Sequence[str] = ()
    logits: bool = False
    labels: Sequence[str] = ()
    groups: str | None = None
    metrics: Sequence[str] | None = None
    bins: int = 15
    ignore_index: int | None = None
    interval: float = 0.95
    require: Sequence[str] = ()
    json: str | None = None


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


def parse_options(options: list[str]) -> dict:
    """Return ``KEY=VALUE`` arguments as ``--cfg-options`` reads them."""
    parser = ArgumentParser()
    parser.add_argument('--cfg-options', nargs='*', action=ConfigOptions, default={})
    return parser.parse_args(['--cfg-options', *options]).cfg_options


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


def add_config_options(group: ArgumentParser | _ArgumentGroup) -> None:
    """Add ``--cfg-options``."""
    group.add_argument(
        '--cfg-options',
        nargs='+',
        action=ConfigOptions,
        metavar='KEY=VALUE',
        help='replace values of the config, such as randomness.seed=1 or key="[a,b]"',
    )


def add_runner_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of everything that builds a Runner."""
    group = parser.add_argument_group('config and processes')
    add_config_options(group)
    group.add_argument(
        '--launcher',
        choices=['none', 'pytorch', 'slurm', 'mpi'],
        default='none',
        help='what starts the processes of a distributed run',
    )
    group.add_argument(
        '--local_rank',
        '--local-rank',
        action=SetLocalRank,
        dest=SUPPRESS,
        default=SUPPRESS,
        metavar='N',
        help='set by the launcher',
    )


def add_member_arguments(parser: ToolParser) -> None:
    """Add config and checkpoints, and the options of an ensemble."""
    parser.add_argument('config', help=f'{CONFIG_HELP}; or CONFIG.py:CHECKPOINT')
    parser.add_argument(
        'checkpoint',
        nargs='*',
        help='checkpoint file, or a work dir for the best checkpoint in it; several form '
        'an ensemble, whose members may have their own configs as CONFIG.py:CHECKPOINT',
    )
    add_ensemble_arguments(parser)


def add_ensemble_arguments(parser: ToolParser) -> None:
    """Add the options of an ensemble besides its checkpoints."""
    group = parser.add_argument_group('ensembles', 'The mean of several predictions of an image.')
    group.add_argument(
        '--tta',
        action='store_true',
        help="test-time augmentation: average over the views of the config's tta_pipeline; without "
        'one, over the image and its mirror image, and for segmentation over three scales',
    )
    group.add_argument(
        '--tta-scales',
        nargs='+',
        type=float,
        metavar='S',
        help="average over images and mirror images at these scales, instead of the config's "
        'tta_pipeline',
    )
    group.add_argument(
        '--mc-dropout',
        type=int,
        default=0,
        metavar='N',
        help='average over N passes with random dropout (default: 0, no dropout)',
    )
    group.add_argument(
        '--dropout-seed', type=int, default=0, metavar='SEED', help='seed of the dropout'
    )


def add_temperature_argument(parser: ToolParser) -> None:
    """Add the temperature of an ensemble, for tools that predict."""
    parser.add_argument(
        '--temperature',
        metavar='FILE',
        help='scale an ensemble by the temperature in the .json file that calibrate has written',
    )


def parse_members(parser: ToolParser, arguments: Sequence[str]) -> dict:
    """Return the values on a command line, with config and checkpoints as ``members``.

    Checkpoints may come after options too, as those of ``tools/dist_test.sh`` do.
    """
    values = vars(parser.parse_intermixed_args(arguments))
    try:
        members = split_members(values.pop('config'), values.pop('checkpoint'))
    except UserError as error:
        parser.error(str(error))
    return {'members': tuple(members), **values}


def add_limit_argument(parser: ArgumentParser | _ArgumentGroup, task: str) -> None:
    """Add ``--limit``, for a run that only shows that all works.

    Args:
        parser: Parser or group that gets the argument.
        task: Text about what a smoke run does, such as ``'test N samples'``.
    """
    parser.add_argument(
        '--limit',
        type=int,
        metavar='N',
        help=f'smoke run: {task}. Results are marked, reports leave them out, and they go to '
        'WORK_DIR/limitN unless --work-dir is given',
    )


def add_split_argument(parser: ArgumentParser | _ArgumentGroup) -> None:
    """Add ``--split``, the split that training and testing test on."""
    parser.add_argument(
        '--split',
        choices=SPLITS,
        default='test',
        help='split to test on; val writes results_val.json instead of results.json',
    )


def add_evaluation_argument(parser: ArgumentParser | _ArgumentGroup) -> None:
    """Add ``--evaluation``."""
    parser.add_argument(
        '--evaluation',
        metavar='NAME',
        help="one of the config's named evaluations, whose results go to WORK_DIR/NAME; shipped "
        f'configs have {", ".join(EVALUATIONS)}',
    )


def add_prediction_file_arguments(parser: ToolParser) -> None:
    """Add what names the predictions in files, and what is measured of them."""
    parser.add_argument(
        '--predictions',
        nargs='+',
        default=(),
        metavar='NAME',
        help="key or columns of the predictions, also as a pattern such as 'p_*', whose columns "
        'are classes by what the star stands for (default: the key probs, or logits)',
    )
    parser.add_argument(
        '--logits', action='store_true', help='the predictions are logits, not probabilities'
    )
    parser.add_argument(
        '--labels',
        nargs='+',
        default=(),
        metavar='NAME',
        help='key or column of the labels, integers or names of classes; several columns of 0 and '
        '1 for several labels (default: labels)',
    )
    parser.add_argument(
        '--groups',
        metavar='NAME',
        help='key or column of the groups that are independent, such as patients or videos',
    )
    parser.add_argument(
        '--metrics', nargs='+', metavar='NAME', help='metrics in place of the usual ones'
    )
    parser.add_argument('--bins', type=int, default=15, metavar='B', help='number of bins')
    parser.add_argument(
        '--ignore-index', type=int, metavar='LABEL', help='label of what does not count, as 255'
    )
    parser.add_argument(
        '--interval',
        type=float,
        default=0.95,
        metavar='COVERAGE',
        help='coverage of the intervals',
    )
    parser.add_argument(
        '--require',
        action='append',
        default=[],
        metavar='LIMIT',
        help='end with exit status 1 unless this holds of the end of the interval, such as "ECE<3" '
        'or "accuracy>90"; may be repeated',
    )
    parser.add_argument('--json', metavar='FILE', help='write the numbers as JSON too')
