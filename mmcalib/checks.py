"""The error for a user's mistake, which every tool prints without a traceback."""

from __future__ import annotations


class UserError(ValueError):
    """A mistake in a config, a checkpoint, a file or the data that the user can mend.

    Args:
        message: Problem, value and remedy.
        one_process: Whether other processes of the run may not meet it.
    """

    def __init__(self, message: str, *, one_process: bool = False) -> None:
        super().__init__(message)
        # A data loader passes on the text alone, and a worker's errors are those of one process.
        self.one_process = one_process or message.startswith('Caught ')

    @property
    def reason(self) -> str:
        """The message without the traceback that a worker process puts around it."""
        return str(self).rpartition(f'{type(self).__name__}: ')[2].strip()
