"""From the config of a run to its Runner."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from traceback import walk_tb

import torch
from mmengine.config import Config
from mmengine.dist import get_world_size
from mmengine.hooks import CheckpointHook
from mmengine.logging import MMLogger
from mmengine.model import MMDistributedDataParallel, revert_sync_batchnorm
from mmengine.registry import RUNNERS
from mmengine.runner import Runner
from torch import nn

from mmcalib.errors import UserError
from mmcalib.files import RESULTS, check_writable
from mmcalib.openmmlab.hooks import SameBuffersHook
from mmcalib.openmmlab.hooks.broken_samples_hook import BrokenSamples
from mmcalib.openmmlab.hooks.several_labels_hook import SeveralLabelsHook
from mmcalib.runs.checks import reason_of
from mmcalib.runs.config_tree import walk
from mmcalib.runs.processes import join_processes
from mmcalib.runs.resume import ResumeHook, SameTrainingHook
from mmcalib.runs.run_config import set_loader_defaults
from mmcalib.runs.safe_loading import load_safely
from mmcalib.runs.training import TrainingFactsHook, config_facts

# Lines of every checkpoint, and of each parameter, that tell a reader nothing.
NOISE = ('Saving checkpoint at ', 'The previous best checkpoint ', 'paramwise_options -- ')
# Of torch's errors of a layer that gets tensors of another size than it was built for.
MISFITS = ('shapes cannot be multiplied', 'channels, but got', 'running_mean should contain')


def build_runner(cfg: Config) -> Runner:
    """Build the Runner of a config, on one process or many, with or without a GPU.

    Args:
        cfg: As :func:`load_config` and what follows it made it.

    Raises:
        ValueError: If a launcher other than ``pytorch`` is asked for without a GPU.
    """
    check_writable(Path(cfg.work_dir, RESULTS))
    set_loader_defaults(cfg)
    if cfg.get('num_threads'):
        torch.set_num_threads(min(cfg.num_threads, torch.get_num_threads()))
    if cfg.launcher != 'none' and not torch.cuda.is_available():
        join_processes(cfg.launcher)  # mmengine keeps a process group that is there
    runner = RUNNERS.build(cfg) if 'runner_type' in cfg else QuietRunner.from_cfg(cfg)
    facts = config_facts(cfg, processes=get_world_size())
    runner.register_hook(SameTrainingHook(facts))
    runner.register_hook(TrainingFactsHook(facts))
    runner.register_hook(ResumeHook())
    runner.register_hook(BrokenSamples())
    runner.register_hook(SeveralLabelsHook())
    if cfg.launcher != 'none':  # all validate the model that is saved
        runner.register_hook(SameBuffersHook())
    for hook in runner.hooks:  # mmengine removes the last one before it writes the next
        if isinstance(hook, CheckpointHook) and hook.max_keep_ckpts == 1:
            hook.max_keep_ckpts = 2
    load_safely()
    return runner


class QuietRunner(Runner):
    """mmengine's Runner, whose pages of environment, config and hooks go to the log file alone.

    So does the traceback of what cannot be built. Several processes need no GPU.

    Raises:
        UserError: If a part of the config cannot be built, or a layer does not fit.
    """

    _starting = True

    def __init__(self, *args, **kwargs) -> None:
        try:
            super().__init__(*args, **kwargs)
        except UserError:
            raise
        except (AssertionError, KeyError, TypeError, ValueError) as error:
            raise self._refusal('the config cannot be built: ', error) from error
        self._starting = False

    def wrap_model(self, wrapper: dict | None, model: nn.Module) -> nn.Module:
        if not self.distributed or torch.cuda.is_available():
            return super().wrap_model(wrapper, model)
        return MMDistributedDataParallel(
            revert_sync_batchnorm(model),  # SyncBN runs on GPUs alone
            broadcast_buffers=False,
            find_unused_parameters=self.cfg.get('find_unused_parameters', False),
        )

    def train(self) -> nn.Module:
        with self._naming_misfits():
            return super().train()

    def test(self) -> dict:
        with self._naming_misfits():
            return super().test()

    def _init_model_weights(self) -> None:
        try:
            super()._init_model_weights()
        except UserError as error:  # of a file or an address of pretrained weights
            raise UserError(f'{error.reason}{_remedy_for_weights(self.cfg)}') from error

    def _refusal(self, start: str, error: Exception) -> UserError:
        """Return an error in one line, whose traceback goes to the log if there is one yet."""
        where = ''
        if hasattr(self, 'logger'):
            self.logger.info('', exc_info=error, extra={'screen': False})
            where = f' (the traceback is in {log_file(self)})'
        return UserError(f'{start}{reason_of(error)}{where}')

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
            raise self._refusal(start, error) from error

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


def _remedy_for_weights(cfg: Config) -> str:
    """Return the end of an error about pretrained weights that cannot be had, with their keys."""
    parts = walk(cfg.get('model'), 'model')
    keys = {}  # of the weights, and of the file
    for path, part in parts:
        if part.get('type') == 'Pretrained':
            keys[path] = f'{path}.checkpoint'
        if isinstance(part.get('pretrained'), str):
            keys[f'{path}.pretrained'] = f'{path}.pretrained'
    if not keys:
        return ''
    without = ' '.join(f'{key}=None' for key in keys)
    own = ' '.join(f'{key}=FILE' for key in keys.values())
    return (
        f'. Name a file of your own by --cfg-options {own}, or start from random weights by '
        f'--cfg-options {without}'
    )


def log_file(runner: Runner) -> str:
    """Return the path of a run's log."""
    return f'{runner.log_dir}/{runner.timestamp}.log'


def log_start(runner: Runner, splits: tuple[str, ...]) -> None:
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
