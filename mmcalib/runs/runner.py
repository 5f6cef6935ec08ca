"""From the config of a run to its Runner, and the weights of checkpoints in its model."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import torch
from mmengine.config import Config
from mmengine.dist import get_world_size
from mmengine.hooks import CheckpointHook
from mmengine.logging import MMLogger
from mmengine.model import MMDistributedDataParallel, is_model_wrapper, revert_sync_batchnorm
from mmengine.registry import MODELS, RUNNERS
from mmengine.runner import Runner
from torch import nn

from mmcalib.errors import UserError
from mmcalib.files import RESULTS, check_writable
from mmcalib.openmmlab.ensembles import MeanProbabilityModel
from mmcalib.openmmlab.hooks import SameBuffersHook
from mmcalib.openmmlab.hooks.batch_of_one_hook import BatchOfOneHook
from mmcalib.openmmlab.hooks.broken_samples_hook import BrokenSamples
from mmcalib.openmmlab.hooks.head_options_hook import HeadOptionsHook
from mmcalib.runs.checkpoint import Checkpoint, check_classes, fill, read_checkpoint
from mmcalib.runs.checks import building, error_reason
from mmcalib.runs.config_tree import walk
from mmcalib.runs.facts import config_facts
from mmcalib.runs.labelled_classes import LabelledClassesHook
from mmcalib.runs.model import model_config
from mmcalib.runs.processes import join_processes
from mmcalib.runs.record import LOCATIONS
from mmcalib.runs.resume import check_settings
from mmcalib.runs.run_config import set_loader_defaults
from mmcalib.runs.safe_loading import load_safely
from mmcalib.runs.training_hooks import ResumeHook, TrainingFactsHook

# Starts of lines for every checkpoint, and each parameter, that tell a reader nothing.
NOISE = ('Saving checkpoint at ', 'The previous best checkpoint ', 'paramwise_options -- ')
SPLIT_TASKS = {'train': 'train on', 'val': 'validate on', 'test': 'test on'}


def build_runner(cfg: Config) -> Runner:
    """Build the Runner of a config, on one process or many, with or without a GPU.

    Args:
        cfg: Config of the run.

    Raises:
        UserError: If a launcher other than ``pytorch`` is asked for without a GPU; if a part of the
            config cannot be built; if the config resumes a training by other settings.
    """
    check_writable(Path(cfg.work_dir, RESULTS))
    set_loader_defaults(cfg)
    if cfg.get('num_threads'):
        torch.set_num_threads(min(cfg.num_threads, torch.get_num_threads()))
    if cfg.launcher != 'none' and not torch.cuda.is_available():
        join_processes(cfg.launcher)  # mmengine keeps a process group that is there.
    facts = config_facts(cfg, processes=1 if cfg.launcher == 'none' else None)
    if cfg.get('resume') and cfg.get('load_from'):
        # Where the data lie does not matter if they are the same, as check_resumed_data finds out.
        check_settings(read_checkpoint(cfg.load_from), facts, cfg, ignored=LOCATIONS)
    runner = RUNNERS.build(cfg) if 'runner_type' in cfg else QuietRunner.from_cfg(cfg)
    facts['training']['processes'] = get_world_size()
    hooks = [
        TrainingFactsHook(facts),
        ResumeHook(),
        BrokenSamples(),
        BatchOfOneHook(),
        LabelledClassesHook(),
        HeadOptionsHook(),
        SameBuffersHook(),
    ]
    for hook in hooks:
        runner.register_hook(hook)
    for hook in runner.hooks:
        # mmengine removes the last checkpoint before it writes the next: with two, one is whole.
        if isinstance(hook, CheckpointHook) and hook.max_keep_ckpts == 1:
            hook.max_keep_ckpts = 2
    load_safely()
    return runner


class QuietRunner(Runner):
    """mmengine's Runner, whose pages of environment, config and hooks go to the log file alone.

    So does the traceback of what cannot be built. Several processes need no GPU.

    Raises:
        UserError: If a part of the config cannot be built.
    """

    _is_starting = True

    def __init__(self, *args, **kwargs) -> None:
        try:
            super().__init__(*args, **kwargs)
        except UserError:
            raise
        except (AssertionError, ImportError, KeyError, TypeError, ValueError) as error:
            raise UserError(self._not_built_message(error)) from error
        self._is_starting = False

    def wrap_model(self, wrapper: dict | None, model: nn.Module) -> nn.Module:
        if not self.distributed or torch.cuda.is_available():
            return super().wrap_model(wrapper, model)
        return MMDistributedDataParallel(
            revert_sync_batchnorm(model),  # SyncBN runs on GPUs alone.
            broadcast_buffers=False,
            find_unused_parameters=self.cfg.get('find_unused_parameters', False),
        )

    def _init_model_weights(self) -> None:
        try:
            super()._init_model_weights()
        except UserError as error:  # A file or an address of pretrained weights cannot be read.
            raise UserError(f'{error.reason}{weights_remedy(self.cfg)}') from error

    def _not_built_message(self, error: Exception) -> str:
        """Return an error in one line; its traceback goes to the log if there is one yet."""
        message = f'the config cannot be built: {error_reason(error)}'
        if not hasattr(self, 'logger'):
            return message
        self.logger.info('', exc_info=error, extra={'screen': False})
        return f'{message} (the traceback is in {log_file(self)})'

    def build_logger(self, *args, **kwargs) -> MMLogger:
        logger = super().build_logger(*args, **kwargs)
        for handler in logger.handlers:
            if not isinstance(handler, logging.FileHandler):
                handler.addFilter(self._belongs_on_the_screen)
        return logger

    def _belongs_on_the_screen(self, record: logging.LogRecord) -> bool:
        if record.levelno >= logging.WARNING:
            return True
        if self._is_starting or not getattr(record, 'screen', True):
            return False
        return not record.getMessage().startswith(NOISE)


def weights_remedy(cfg: Config) -> str:
    """Return the end of an error about pretrained weights that cannot be had, with their keys."""
    file_keys = {}  # by the key that None turns off
    for path, part in walk(cfg.get('model'), 'model'):
        if part.get('type') == 'Pretrained':
            file_keys[path] = f'{path}.checkpoint'
        if isinstance(part.get('pretrained'), str):
            file_keys[f'{path}.pretrained'] = f'{path}.pretrained'
    if not file_keys:
        return ''
    with_files = ' '.join(f'{key}=FILE' for key in file_keys.values())
    without = ' '.join(f'{key}=None' for key in file_keys)
    return (
        f'. Name a file of your own by --cfg-options {with_files}, or start from random weights by '
        f'--cfg-options {without}'
    )


def log_file(runner: Runner) -> str:
    """Return the path of a run's log."""
    return f'{runner.log_dir}/{runner.timestamp}.log'


def log_start(runner: Runner, splits: Sequence[str]) -> None:
    """Log the samples of a run, whose data are listed, and where the rest is."""
    counts = []
    for split in splits:
        if runner.cfg.get(f'{split}_dataloader') is not None:
            dataset = getattr(runner, f'{split}_dataloader').dataset
            counts.append(f'{SPLIT_TASKS[split]} {len(dataset):,}')
    line = f'Samples: {", ".join(counts)}'
    if runner.cfg.get('limit'):
        line = f'{line}; SMOKE RUN with --limit {runner.cfg.limit}'
    runner.logger.info(line)
    runner.logger.info(f'Environment, config and hooks are in {log_file(runner)}')


def load_weights(
    model: nn.Module, checkpoints: Sequence[Checkpoint], classes: Sequence[str] = ()
) -> None:
    """Fill a model, or each member of a mean, with weights of the same classes as the data.

    Args:
        model: Model as the config of :func:`~mmcalib.runs.model.prepare_model` builds it.
        checkpoints: Checkpoint of each member.
        classes: Classes of the data; without any, those that the first checkpoint was trained on.

    Raises:
        UserError: If a checkpoint does not fill its model, or is of other classes.
    """
    model = model.module if is_model_wrapper(model) else model
    networks = [model]
    if isinstance(model, MeanProbabilityModel):
        networks = model.members
        model.names = [checkpoint.path for checkpoint in checkpoints]
    classes = classes or checkpoints[0].classes
    for network, checkpoint in zip(networks, checkpoints, strict=True):
        fill(network, checkpoint)
        check_classes(checkpoint.classes, classes, f'{checkpoint.path} and these data')


def tell_hooks(runner: Runner, checkpoints: Sequence[Checkpoint]) -> None:
    """Call the hooks that look at loaded checkpoints, as a Runner does that loads one itself."""
    for checkpoint in checkpoints:
        content = {'state_dict': checkpoint.weights, 'meta': dict(checkpoint.meta)}
        runner.call_hook('after_load_checkpoint', checkpoint=content)


def build_model(cfg: Config, checkpoints: Sequence[Checkpoint]) -> nn.Module:
    """Return a config's model with its weights, in evaluation mode, without a Runner.

    Raises:
        UserError: If it cannot be built, or the checkpoints do not fill it.
    """
    with building('the model cannot be built: '):
        model = MODELS.build(model_config(cfg))
    load_weights(model, checkpoints)
    return revert_sync_batchnorm(model).eval()
