"""The parser of every tool: its help, its errors, and the errors of what it runs."""

from __future__ import annotations

import errno
import os
import signal
import sys
import time
import warnings
from argparse import (
    SUPPRESS,
    Action,
    ArgumentError,
    ArgumentParser,
    Namespace,
    RawDescriptionHelpFormatter,
)
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from types import TracebackType
from typing import NoReturn

from mmcalib.errors import UserError, suggestion
from mmcalib.launchers import find_launcher, is_first_process
from mmcalib.members import STACKS

PATIENCE = 10  # seconds in which a launcher ends the other processes of one that has refused
# Parts of gloo's errors about a process that ended before or after it read what was sent to it.
PEER_ENDED = ('closed by peer', 'reset by peer', 'Broken pipe')
DISK_IS_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class HelpFormatter(RawDescriptionHelpFormatter):
    """Shows the default of every option that has one."""

    def _get_help_string(self, action: Action) -> str:
        text = action.help or ''
        if not action.option_strings or '(default' in text:
            return text
        if action.default in (None, SUPPRESS, [], {}) or isinstance(action.default, bool):
            return text
        return f'{text} (default: %(default)s)'


def was_interrupted(error: BaseException | None) -> bool:
    """Return whether an error is an interruption, or one that other code has made of it.

    mmengine's config, for one, turns any exception in its formatting into a SyntaxError.
    """
    while error is not None:
        if isinstance(error, KeyboardInterrupt):
            return True
        error = error.__cause__ or error.__context__
    return False


class ToolParser(ArgumentParser):
    """Ends a tool with one line for what its user can mend.

    Of several processes, the first one says it; the others only if it goes on.

    Args:
        examples: Arguments of example calls, for the end of the help.
        runs: Whether the tool runs a model, for which it needs mmengine.
        stopped: Line after an interruption; it may say how to go on.
    """

    def __init__(
        self,
        *,
        examples: Sequence[str] = (),
        runs: bool = True,
        stopped: str = 'Stopped.',
        **options,
    ) -> None:
        self.runs = runs
        self.stopped = stopped
        self.launcher = 'none'
        self.is_first = True
        options.setdefault('prog', os.path.basename(sys.argv[0]))
        super().__init__(formatter_class=HelpFormatter, **options)
        if examples:
            command = f'python tools/{self.prog}' if self.prog.endswith('.py') else self.prog
            lines = ['example:' if len(examples) == 1 else 'examples:']
            lines += [f'  {command} {example}' for example in examples]
            self.epilog = '\n'.join(lines)

    def _check_value(self, action: Action, value: object) -> None:
        try:
            super()._check_value(action, value)
        except ArgumentError as error:
            error.message += suggestion(str(value), map(str, action.choices))
            raise

    def parse_known_args(
        self, args: Sequence[str] | None = None, namespace: Namespace | None = None
    ) -> tuple[Namespace, list[str]]:
        """Return the arguments, if what the tool runs is installed."""
        # argparse calls this a second time with the arguments that the first call has left.
        if self.launcher == 'none':
            self.launcher = find_launcher(sys.argv if args is None else args)
            self.is_first = is_first_process(self.launcher)
        values = super().parse_known_args(args, namespace)
        sys.excepthook = self._say_stopped  # while a tool imports what takes seconds
        if self.runs and find_spec('mmengine') is None:
            self.refuse(f'mmcalib needs mmengine for this: {STACKS}')
        return values

    def error(self, message: str) -> NoReturn:
        """Print the usage and an error in the arguments, with the option that may be meant."""
        known = [name for name in self._option_string_actions if name.startswith('--')]
        _, _, unknown = message.partition('unrecognized arguments: ')
        suggestions = []
        for argument in unknown.split():
            if argument.startswith('--'):
                suggestions.append(suggestion(argument.split('=')[0], known))
        self._let_the_first_speak()
        super().error(message + ''.join(dict.fromkeys(suggestions)))

    @contextmanager
    def ending_with_errors(self) -> Iterator[None]:
        """End the tool with one line, in place of a traceback, for errors that its user can mend.

        These are a UserError, and what the system says of files.
        """
        # mmcv warns where it is installed without its operators, as the extra [onedl] does.
        warnings.filterwarnings('ignore', message='Fail to import')
        warnings.formatwarning = self._warning_formatter()
        if not self.is_first:
            warnings.simplefilter('ignore')
        try:
            yield
        except SystemExit:
            raise
        except BaseException as error:
            if was_interrupted(error):
                self._stop(self.stopped)
            if isinstance(error, UserError):
                self.refuse(error.reason)
            if isinstance(error, OSError):
                remedy = ': make room, then run this again' if error.errno in DISK_IS_FULL else ''
                self.refuse(f'{error}{remedy}')
            # gloo raises this; NCCL waits until the launcher ends this process.
            if isinstance(error, RuntimeError) and any(text in str(error) for text in PEER_ENDED):
                self._stop('Stopped: another process of this run has ended.')
            raise

    def _warning_formatter(self) -> Callable[..., str]:
        """Return a formatter that says each warning once, without its place in another's source."""
        shown = set()

        def format_warning(text: Warning | str, *_, **__) -> str:
            line = f'{self.prog}: warning: {text}\n'
            if line in shown:
                return ''
            shown.add(line)
            return line

        return format_warning

    def _stop(self, message: str) -> NoReturn:
        """End the tool with a line."""
        if self.launcher != 'none':  # It repeats the signal that the terminal sends to all.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        sys.exit(message if self.is_first else 1)

    def _say_stopped(self, kind: type, error: BaseException, traceback: TracebackType) -> None:
        """Say in one line that a tool was interrupted; report other errors as Python does."""
        if not was_interrupted(error):
            sys.__excepthook__(kind, error, traceback)
        elif self.is_first:
            print('Stopped.', file=sys.stderr)

    def _let_the_first_speak(self) -> None:
        """Wait, before an error, for the launcher to end this process if the first one says it."""
        if not self.is_first:
            time.sleep(PATIENCE)

    def refuse(self, message: str) -> NoReturn:
        """End the tool with an error in the config, the data or a file."""
        self._let_the_first_speak()
        self.exit(2, f'{self.prog}: error: {message}\n')
