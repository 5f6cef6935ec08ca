"""Arguments and errors that the command-line tools share."""

from __future__ import annotations

import sys
import time
from argparse import Action, ArgumentError, ArgumentParser, Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NoReturn

from mmengine.config import Config, DictAction

from mmcalib.checks import UserError
from mmcalib.distributed import is_first_process
from mmcalib.runs.config import SPLITS
from mmcalib.runs.ensemble_config import load_member_configs, split_members

PATIENCE = 30.0  # seconds for the first process to say what is wrong


class ConfigOptions(DictAction):
    """``KEY=VALUE …`` as a dict; any other form is an error of the command line."""

    def __call__(self, parser, namespace, values, option_string=None) -> None:
        for value in values:
            if not value.partition('=')[0] or '=' not in value:
                raise ArgumentError(self, f'takes KEY=VALUE, got {value!r}')
            if 'dict(' in value or '{' in value:  # mmengine would make a text of it, or loop
                raise ArgumentError(
                    self,
                    f'takes no dict, got {value!r}: write a config with this one as _base_, or '
                    'replace single values, such as model.head.loss.type=X',
                )
        try:
            super().__call__(parser, namespace, values, option_string)
        except AssertionError as error:
            raise ArgumentError(self, str(error)) from error


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


class ToolParser(ArgumentParser):
    """Ends a tool with an error for people, printed by the first of several processes.

    All come to the same, and the launcher ends the others as soon as one has failed. Those that it
    leaves alone, as on another machine, say it themselves in the end.
    """

    def error(self, message: str) -> NoReturn:
        """Print the usage and an error in the arguments."""
        _wait_for_the_first_process()
        super().error(message)

    @contextmanager
    def ending_with_errors(
        self, *others: type[Exception], stopped: str = 'Stopped.'
    ) -> Iterator[None]:
        """End the tool with one line, in place of a traceback, for errors that its user can mend.

        Args:
            others: Further errors to print; those of a config's own code, for example.
            stopped: The line after an interruption.
        """
        try:
            yield
        except UserError as error:
            self.refuse(error.reason, at_once=error.one_process)
        except others as error:
            self.refuse(str(error))
        except RuntimeError as error:  # of gloo; NCCL waits until the launcher ends this process
            if 'closed by peer' not in str(error):
                raise
            sys.exit('Stopped: another process of this run has ended.')
        except KeyboardInterrupt:
            sys.exit(stopped)

    def refuse(self, message: str, *, at_once: bool = False) -> NoReturn:
        """Print an error in the config, the data or a file, which all processes meet.

        Args:
            message: Problem, value and remedy.
            at_once: Print it although other processes may not meet it.
        """
        if not at_once:
            _wait_for_the_first_process()
        self.exit(2, f'{self.prog}: error: {message}\n')


def _wait_for_the_first_process() -> None:
    if not is_first_process():
        time.sleep(PATIENCE)


def add_runner_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of everything that builds a Runner."""
    parser.add_argument('--no-pin-memory', action='store_true', help='do not pin loaded batches')
    parser.add_argument(
        '--cfg-options',
        nargs='+',
        action=ConfigOptions,
        metavar='KEY=VALUE',
        help='replace config values, such as randomness.seed=1 or key="[a,b]"',
    )
    add_launcher_arguments(parser)


def add_launcher_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of everything that runs on several processes."""
    parser.add_argument(
        '--launcher',
        choices=['none', 'pytorch', 'slurm', 'mpi'],
        default='none',
        help='launcher',
    )
    parser.add_argument('--local_rank', '--local-rank', type=int, default=0, help='set by launcher')


def add_member_arguments(parser: ToolParser) -> None:
    """Add config and checkpoints, and the options of an ensemble."""
    parser.add_argument(
        'config',
        help='config file, of mmcalib, mmpretrain or mmseg; or CONFIG.py:CHECKPOINT',
    )
    parser.add_argument(
        'checkpoint',
        nargs='*',
        help='checkpoint file; several, of which one may have a config of its own as '
        'CONFIG.py:CHECKPOINT, for the mean of their probabilities',
    )
    add_ensemble_arguments(parser)


def add_ensemble_arguments(parser: ToolParser) -> None:
    """Add the options of an ensemble besides its checkpoints."""
    parser.add_argument(
        '--tta',
        action='store_true',
        help="mean over views of each image: of the config's tta_pipeline, else its mirror image "
        'and, for segmentation, three scales',
    )
    parser.add_argument(
        '--tta-scales',
        nargs='+',
        type=float,
        metavar='S',
        help="mirror images at these scales, in place of the config's tta_pipeline",
    )
    parser.add_argument(
        '--mc-dropout',
        type=int,
        default=0,
        metavar='N',
        help='mean over N predictions with random dropout',
    )
    parser.add_argument('--dropout-seed', type=int, default=0, help='seed of dropout (default: 0)')
    parser.add_argument(
        '--one-at-a-time',
        action='store_true',
        help='keep one model at a time on the GPU, where they do not fit together',
    )


def add_temperature_argument(parser: ToolParser) -> None:
    """Add the temperature of an ensemble, for tools that predict."""
    parser.add_argument(
        '--temperature',
        metavar='FILE',
        help='divide the logarithm of the mean by what tools/calibrate.py has fitted to it',
    )


def parse_member_arguments(parser: ToolParser) -> Namespace:
    """Return the arguments, with config and checkpoint of each member as ``members``.

    Checkpoints may come after options too, as those of ``tools/dist_test.sh`` do.
    """
    args = parser.parse_intermixed_args()
    try:
        args.members = split_members(args.config, args.checkpoint)
    except ValueError as error:
        parser.error(str(error))
    return args


def tell_checkpoints_from_images(
    config: str, arguments: Sequence[str]
) -> tuple[list[str], list[str]]:
    """Return the checkpoints and the images among the arguments after a config.

    The first is a checkpoint unless that of the config is named with it, and so are those that end
    in ``.pth`` or have a config of their own as ``CONFIG.py:CHECKPOINT``.
    """
    own = 0 if '.py:' in config else 1
    checkpoints, images = list(arguments[:own]), []
    for text in arguments[own:]:
        (checkpoints if text.endswith('.pth') or '.py:' in text else images).append(text)
    return checkpoints, images


def asks_for_ensemble(args: Namespace) -> bool:
    """Return whether the arguments ask for more than one prediction of an image."""
    views = args.tta or args.tta_scales is not None
    return len(args.members) > 1 or views or args.mc_dropout != 0


def ensemble_options(args: Namespace, cfg: Config, load: Callable[[str], Config]) -> dict:
    """Return the arguments of :func:`average_predictions`.

    Args:
        args: Of :func:`parse_member_arguments`.
        cfg: That of the first member.
        load: Returns the config of another, made as `cfg` was.
    """
    return {
        'checkpoints': [checkpoint for _, checkpoint in args.members],
        'member_configs': load_member_configs(cfg, args.members, load),
        'tta': args.tta or args.tta_scales is not None,
        'scales': args.tta_scales,
        'mc_dropout': args.mc_dropout,
        'seed': args.dropout_seed,
        'one_at_a_time': args.one_at_a_time,
    }


def add_limit_argument(parser: ArgumentParser, what: str) -> None:
    """Add ``--limit``, for a run that only shows that all works."""
    parser.add_argument(
        '--limit',
        type=int,
        metavar='N',
        help=f'smoke run: {what}; results say so, reports leave them out, and they go to '
        'WORK_DIR/limitN unless --work-dir is given',
    )


def add_split_argument(parser: ArgumentParser) -> None:
    """Add ``--split``, the split that training and testing test on."""
    parser.add_argument(
        '--split',
        choices=SPLITS,
        default='test',
        help='what to test on: val leaves results_val.json in place of results.json',
    )


def parse_options(options: list[str]) -> dict:
    """Return ``KEY=VALUE`` arguments as ``--cfg-options`` reads them."""
    parser = ArgumentParser()
    parser.add_argument('--cfg-options', nargs='*', action=ConfigOptions, default={})
    return parser.parse_args(['--cfg-options', *options]).cfg_options
