"""The parser of every tool: its help, its errors, and the errors of what it runs."""

from __future__ import annotations

import errno
import os
import sys
import warnings
from argparse import (
    SUPPRESS,
    Action,
    ArgumentError,
    ArgumentParser,
    Namespace,
    RawDescriptionHelpFormatter,
)
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from typing import NoReturn

from mmcalib.checks import UserError, suggestion
from mmcalib.cli.files import STACKS

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # on the disk, for whatever a tool writes


class HelpFormatter(RawDescriptionHelpFormatter):
    """Shows the default of every option that has one."""

    def _get_help_string(self, action: Action) -> str:
        text, value = action.help or '', action.default
        given = value not in (None, SUPPRESS, [], {}) and not isinstance(value, bool)
        shown = action.option_strings and given and '(default' not in text
        return f'{text} (default: %(default)s)' if shown else text


class ToolParser(ArgumentParser):
    """Ends a tool with one line for what its user can mend.

    Args:
        examples: Arguments of example calls, for the end of the help.
        runs: Whether the tool runs a model, for which it needs mmengine.
    """

    def __init__(self, *, examples: Sequence[str] = (), runs: bool = True, **options) -> None:
        self.runs = runs
        options.setdefault('prog', os.path.basename(sys.argv[0]))
        super().__init__(formatter_class=HelpFormatter, **options)
        if examples:
            command = f'python tools/{self.prog}' if self.prog.endswith('.py') else self.prog
            head = 'examples' if len(examples) > 1 else 'example'
            self.epilog = '\n'.join([f'{head}:', *(f'  {command} {each}' for each in examples)])

    def _check_value(self, action: Action, value: object) -> None:
        try:
            super()._check_value(action, value)
        except ArgumentError as error:
            error.message += suggestion(str(value), map(str, action.choices))
            raise

    def parse_known_args(self, *args, **kwargs) -> tuple[Namespace, list[str]]:
        """Return the arguments, if what the tool runs is installed."""
        found = super().parse_known_args(*args, **kwargs)
        if self.runs and find_spec('mmengine') is None:
            self.refuse(f'mmcalib needs mmengine for this: {STACKS}')
        return found

    def error(self, message: str) -> NoReturn:
        """Print the usage and an error in the arguments, with the option that may be meant."""
        _, _, arguments = message.partition('unrecognized arguments: ')
        known = [name for name in self._option_string_actions if name.startswith('--')]
        options = [text.split('=')[0] for text in arguments.split() if text.startswith('--')]
        super().error(message + ''.join(dict.fromkeys(suggestion(x, known) for x in options)))

    @contextmanager
    def ending_with_errors(self, stopped: str = 'Stopped.') -> Iterator[None]:
        """End the tool with one line, in place of a traceback, for errors that its user can mend.

        These are a UserError, and what the system says of files. `stopped` is the line after an
        interruption.
        """
        # mmcv without its compiled operators, as the extra [onedl] installs it.
        warnings.filterwarnings('ignore', message='Fail to import')
        # Without the place in another's source, and its line.
        warnings.formatwarning = lambda text, *_, **__: f'{self.prog}: warning: {text}\n'
        try:
            yield
        except UserError as error:
            self.refuse(error.reason)
        except OSError as error:
            remedy = ': make room, then run this again' if error.errno in NO_ROOM else ''
            self.refuse(f'{error}{remedy}')
        except RuntimeError as error:  # of gloo; NCCL waits until the launcher ends this process
            if 'closed by peer' not in str(error):
                raise
            sys.exit('Stopped: another process of this run has ended.')
        except KeyboardInterrupt:
            sys.exit(stopped)

    def report(self, message: str) -> None:
        """Print a line on stderr, as errors are."""
        self._print_message(f'{self.prog}: {message}\n', sys.stderr)

    def refuse(self, message: str) -> NoReturn:
        """End the tool with an error in the config, the data or a file."""
        self.exit(2, f'{self.prog}: error: {message}\n')
