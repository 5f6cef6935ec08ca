"""Screen output of a run; its log file has all of it, and pages more."""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from io import StringIO
from traceback import walk_tb

from mmengine.config import Config
from mmengine.logging import MMLogger
from mmengine.runner import Runner
from torch import nn

from mmcalib.checks import UserError
from mmcalib.metrics.keys import ERRORS_WITH_ACCURACY, PREFIX, base_name, better_rule
from mmcalib.record import ensemble_label, loss_label
from mmcalib.runs.checks import reason_of
from mmcalib.runs.config_checks import calibration_keys, checkpoint_hook, kept_checkpoints
from mmcalib.runs.config_tree import main_loss, type_name
from mmcalib.work_dir import experiment_name

# Lines that come with every run, or every epoch, and tell a reader nothing.
NOISE = (
    'Exp name: ',
    'Distributed training is not used',
    '"FileClient" will be deprecated',
    '"HardDiskBackend" is the alias',
    'Loads checkpoint by ',  # and then 'Load checkpoint from '
    'Saving checkpoint at ',
    'The previous best checkpoint ',
    'The prefix is not set in metric class ',  # of mmseg's own IoUMetric
    'paramwise_options -- ',  # three lines for each parameter
    'backbone feature_info',  # of mmpretrain's TIMMBackbone, a line for each stage
)
# Lines that every evaluation repeats word for word, of which the first is shown.
ONCE = ('CalibrationMetric: ', 'OODMetric: ')
# What a test has measured, which its closing table shows; lines of its progress have an eta.
MEASURED = re.compile(r'Epoch\(test\) (?!.* eta: )')
# Where hooks look at what they are to work on.
BEFORE = ('before_run', 'before_train', 'before_val', 'before_test')
# Of torch's errors of a layer that gets tensors of another size than it was built for.
MISFITS = ('shapes cannot be multiplied', 'channels, but got', 'running_mean should contain')
# What mmengine warns of in every run on several processes, from each of them.
WARNINGS = (r'Setting \w+_NUM_THREADS', '`broadcast_buffers` is deprecated')


class QuietRunner(Runner):
    """mmengine's Runner, whose pages of environment, config and hooks go to the log file alone.

    So do the tracebacks of what cannot be built, or what a hook refuses before a loop starts, which
    say no more than their last line; and lines that repeat others.

    Raises:
        UserError: If a part of the config cannot be built; for what a hook refuses.
    """

    def __init__(self, *args, **kwargs) -> None:
        self._starting, self._shown = True, set()
        try:
            with warnings.catch_warnings():
                for text in WARNINGS:
                    warnings.filterwarnings('ignore', message=text)
                super().__init__(*args, **kwargs)
        except (AssertionError, KeyError, TypeError, ValueError) as error:
            raise self._config_error('the config cannot be built: ', error) from error
        self._starting = False

    def train(self) -> nn.Module:
        with self._naming_misfits():
            return super().train()

    def test(self) -> dict:
        with self._naming_misfits():
            return super().test()

    @contextmanager
    def _naming_misfits(self) -> Iterator[None]:
        """Raise a UserError with the layer's name, in place of forty lines, if two do not fit."""
        try:
            yield
        except RuntimeError as error:
            if not any(text in str(error) for text in MISFITS):
                raise
            names = {module: name for name, module in self.model.named_modules()}
            frames = [frame.f_locals.get('self') for frame, _ in walk_tb(error.__traceback__)]
            layers = [
                names[owner] for owner in frames if isinstance(owner, nn.Module) and owner in names
            ]
            raise self._config_error(
                f'model.{layers[-1]} does not fit what comes before it (see its in_channels): ',
                error,
            ) from error

    def call_hook(self, fn_name: str, **kwargs) -> None:
        try:
            super().call_hook(fn_name, **kwargs)
        except UserError:
            raise
        except (TypeError, ValueError) as error:
            if fn_name not in BEFORE:
                raise
            raise self._config_error('', error) from error

    def _config_error(self, start: str, error: Exception) -> UserError:
        where = ''
        if hasattr(self, 'logger'):
            self.logger.info('', exc_info=True, extra={'screen': False})
            where = f' (the traceback is in {log_file(self)})'
        return UserError(f'{start}{reason_of(error)}{where}')

    def build_logger(self, *args, **kwargs) -> MMLogger:
        logger = super().build_logger(*args, **kwargs)
        for handler in logger.handlers:
            if not isinstance(handler, logging.FileHandler):
                handler.addFilter(self._belongs_on_the_screen)
        return logger

    def load_checkpoint(self, *args, **kwargs) -> dict:
        with _without_noise():
            return super().load_checkpoint(*args, **kwargs)

    def _init_model_weights(self) -> None:
        with _without_noise():
            super()._init_model_weights()

    def _belongs_on_the_screen(self, record: logging.LogRecord) -> bool:
        message = record.getMessage()
        if message.startswith(NOISE) or not getattr(record, 'screen', True):
            return False
        if record.levelno >= logging.WARNING:
            return True
        if message.startswith(ONCE):
            again = message in self._shown
            self._shown.add(message)
            return not again
        return not MEASURED.match(message) and not (self._starting and '\n' in message)


@contextmanager
def _without_noise() -> Iterator[None]:
    """Drop the noise that is printed past the log; what else is printed comes at the end."""
    printed = StringIO()
    try:
        with redirect_stdout(printed):
            yield
    finally:
        for line in printed.getvalue().splitlines():
            if not line.startswith(NOISE):
                print(line)


def log_file(runner: Runner) -> str:
    """Return the path of a run's log."""
    return f'{runner.log_dir}/{runner.timestamp}.log'


def log_start(runner: Runner, splits: tuple[str, ...], tested: dict | None = None) -> None:
    """Log the plan of a run in a few lines, with notes on likely mistakes.

    Args:
        runner: With its data listed.
        splits: Which data it uses.
        tested: The model that is tested, as its record has it.
    """
    cfg, log = runner.cfg, runner.logger
    model = getattr(runner.model, 'module', runner.model)
    backbone = (cfg.model.get('module') or cfg.model).get('backbone') or cfg.model
    size = sum(parameter.numel() for parameter in model.parameters())
    loss = main_loss({**cfg, 'model': cfg.model.get('module', cfg.model)})
    log.info(
        f'{experiment_name(cfg.filename or "run")}: {type_name(backbone["type"])}, {size:,} '
        f'parameters{f", {loss_label(loss)}" if loss else ""}'
        f'{ensemble_label(tested) if tested else ""}; {processes(runner)}'
    )
    doing = {'train': 'train on', 'val': 'validate on', 'test': 'test on'}
    counts = [
        f'{doing[split]} {len(getattr(runner, f"{split}_dataloader").dataset):,}'
        for split in splits
        if cfg.get(f'{split}_dataloader') is not None
    ]
    smoke = f'; SMOKE RUN with --limit {cfg.limit}' if cfg.get('limit') else ''
    log.info(f'Samples: {", ".join(counts)}{smoke}')
    if 'train' in splits:
        by_epoch = cfg.train_cfg.get('max_epochs')
        number, unit = (by_epoch, 'epoch') if by_epoch else (runner.max_iters, 'iteration')
        kept = ' and '.join(key for key, _ in kept_checkpoints(cfg))
        log.info(
            f'{number:,} {unit}{"s" * (number != 1)} in batches of {batch_size(runner)}'
            + (f'; the checkpoint of the best {kept} is kept' if kept else '')
        )
        for note in notes(cfg, batch_size(runner)):
            log.warning(note)
    log.info(f'Environment, config and hooks are in {log_file(runner)}')


def processes(runner: Runner) -> str:
    """Return the devices of a run in words."""
    kind = next(runner.model.parameters()).device.type.upper()
    return kind if runner.world_size == 1 else f'{runner.world_size} processes with a {kind} each'


def batch_size(runner: Runner) -> int:
    """Return the samples of a training step, over all processes."""
    return runner.world_size * (runner.cfg.train_dataloader.get('batch_size') or 1)


def notes(cfg: Config, batch_size: int) -> list[str]:
    """Return notes on settings that are likely mistakes, but may be meant.

    Args:
        cfg: Of the run.
        batch_size: Over all processes.
    """
    found = []
    scaling = cfg.get('auto_scale_lr') or {}
    base = scaling.get('base_batch_size')
    if base and base != batch_size and not scaling.get('enable'):
        found.append(
            f'A step has {batch_size} samples, and the learning rate is for {base}: add '
            '--auto-scale-lr, or change the number of processes or the batch_size'
        )
    by_hook = checkpoint_hook(cfg).get('type', 'CheckpointHook')
    for key, _ in kept_checkpoints(cfg):
        error = key in calibration_keys(cfg) and better_rule(key) == 'less'
        if by_hook == 'CheckpointHook' and error and base_name(key) not in ERRORS_WITH_ACCURACY:
            found.append(
                f'save_best={key!r}: barely trained networks often have the lowest '
                f'{key.rpartition("/")[2]}. Choose by {PREFIX + "NLL"!r}, or set '
                "default_hooks.checkpoint.type='AccuracyFloorCheckpointHook' and its accuracy"
            )
    return found
