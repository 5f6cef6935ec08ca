"""Screen output of a run; its log file has all of it, and pages more."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from traceback import walk_tb

from mmengine.logging import MMLogger
from mmengine.runner import Runner
from torch import nn

from mmcalib.checks import UserError
from mmcalib.runs.checks import reason_of

# Lines of every checkpoint, and of each parameter, that tell a reader nothing.
NOISE = ('Saving checkpoint at ', 'The previous best checkpoint ', 'paramwise_options -- ')
# Where hooks look at what they are to work on.
BEFORE = ('before_run', 'before_train', 'before_val', 'before_test')
# Of torch's errors of a layer that gets tensors of another size than it was built for.
MISFITS = ('shapes cannot be multiplied', 'channels, but got', 'running_mean should contain')


class QuietRunner(Runner):
    """mmengine's Runner, whose pages of environment, config and hooks go to the log file alone.

    So do the tracebacks of what cannot be built, or what a hook refuses before a loop starts.

    Raises:
        UserError: If a part of the config cannot be built; for what a hook refuses.
    """

    _starting = True

    def __init__(self, *args, **kwargs) -> None:
        kinds = (AssertionError, KeyError, TypeError, ValueError)
        with self._in_one_line('the config cannot be built: ', *kinds):
            super().__init__(*args, **kwargs)
        self._starting = False

    def train(self) -> nn.Module:
        with self._naming_misfits():
            return super().train()

    def test(self) -> dict:
        with self._naming_misfits():
            return super().test()

    def call_hook(self, fn_name: str, **kwargs) -> None:
        before = fn_name in BEFORE
        with self._in_one_line('', TypeError, ValueError) if before else nullcontext():
            super().call_hook(fn_name, **kwargs)

    @contextmanager
    def _in_one_line(self, start: str, *kinds: type[Exception]) -> Iterator[None]:
        try:
            yield
        except UserError:
            raise
        except kinds as error:
            where = ''
            if hasattr(self, 'logger'):
                self.logger.info('', exc_info=True, extra={'screen': False})
                where = f' (the traceback is in {log_file(self)})'
            raise UserError(f'{start}{reason_of(error)}{where}') from error

    @contextmanager
    def _naming_misfits(self) -> Iterator[None]:
        """Name the layer, in place of forty lines, that does not fit what comes before it."""
        try:
            yield
        except RuntimeError as error:
            if not any(text in str(error) for text in MISFITS):
                raise
            names = {module: name for name, module in self.model.named_modules()}
            owners = [frame.f_locals.get('self') for frame, _ in walk_tb(error.__traceback__)]
            layer = [names[x] for x in owners if isinstance(x, nn.Module) and x in names][-1]
            start = f'model.{layer} does not fit what comes before it (see its in_channels): '
            with self._in_one_line(start, RuntimeError):
                raise

    def build_logger(self, *args, **kwargs) -> MMLogger:
        logger = super().build_logger(*args, **kwargs)
        for handler in logger.handlers:
            if not isinstance(handler, logging.FileHandler):
                handler.addFilter(self._belongs_on_the_screen)
        return logger

    def _belongs_on_the_screen(self, record: logging.LogRecord) -> bool:
        if record.levelno >= logging.WARNING:
            return True
        quiet = self._starting or not getattr(record, 'screen', True)
        return not quiet and not record.getMessage().startswith(NOISE)


def log_file(runner: Runner) -> str:
    """Return the path of a run's log."""
    return f'{runner.log_dir}/{runner.timestamp}.log'


def log_start(runner: Runner, splits: tuple[str, ...], tested: dict | None = None) -> None:
    """Log the samples of a run, whose data are listed, and where the rest is."""
    doing = {'train': 'train on', 'val': 'validate on', 'test': 'test on'}
    counts = ', '.join(
        f'{doing[split]} {len(getattr(runner, f"{split}_dataloader").dataset):,}'
        for split in splits
        if runner.cfg.get(f'{split}_dataloader') is not None
    )
    limit = runner.cfg.get('limit')
    smoke = f'; SMOKE RUN with --limit {limit}' if limit else ''
    runner.logger.info(f'Samples: {counts}{smoke}')
    runner.logger.info(f'Environment, config and hooks are in {log_file(runner)}')
