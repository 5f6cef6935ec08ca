"""From the config of a run to its Runner."""

from __future__ import annotations

from pathlib import Path

import torch
from mmengine.config import Config
from mmengine.dist import get_world_size
from mmengine.hooks import CheckpointHook
from mmengine.model import MMDistributedDataParallel, revert_sync_batchnorm
from mmengine.registry import MODEL_WRAPPERS, RUNNERS
from mmengine.runner import Runner

from mmcalib.distributed import join_processes
from mmcalib.hooks.name_broken_samples_hook import BrokenSamples
from mmcalib.hooks.resume_hook import ResumeHook
from mmcalib.runs.checkpoint import load_safely
from mmcalib.runs.config_tree import type_name
from mmcalib.runs.model import facts_in
from mmcalib.runs.run_facts_hook import RunFactsHook
from mmcalib.runs.terminal_output import QuietRunner
from mmcalib.work_dir import RESULTS, check_writable


def build_runner(cfg: Config) -> Runner:
    """Build the Runner of a config, on one process or many, with or without a GPU.

    Args:
        cfg: As :func:`load_config` and what follows it made it.

    Raises:
        ValueError: If a launcher other than ``pytorch`` is asked for without a GPU.
    """
    check_writable(Path(cfg.work_dir, RESULTS))
    if cfg.get('num_threads'):
        torch.set_num_threads(min(cfg.num_threads, torch.get_num_threads()))
    if cfg.launcher != 'none' and not torch.cuda.is_available():
        join_processes(cfg.launcher)  # mmengine keeps a process group that is there
        cfg.model_wrapper_cfg = dict(
            type='CPUDistributedDataParallel',
            device_ids=None,
            broadcast_buffers=False,
            find_unused_parameters=cfg.get('find_unused_parameters', False),
        )
    if cfg.launcher != 'none':
        share_buffers(cfg)
    runner = RUNNERS.build(cfg) if 'runner_type' in cfg else QuietRunner.from_cfg(cfg)
    runner.register_hook(RunFactsHook(facts_in(cfg, processes=get_world_size())))
    runner.register_hook(ResumeHook())
    runner.register_hook(BrokenSamples())
    for hook in runner.hooks:  # mmengine removes the last one before it writes the next
        if isinstance(hook, CheckpointHook) and hook.max_keep_ckpts == 1:
            hook.max_keep_ckpts = 2
    load_safely()
    return runner


@MODEL_WRAPPERS.register_module()
class CPUDistributedDataParallel(MMDistributedDataParallel):
    """mmengine's DDP without GPUs: SyncBN, which only runs on them, becomes BN."""

    def __init__(self, module: torch.nn.Module, **kwargs) -> None:
        super().__init__(revert_sync_batchnorm(module), **kwargs)


def share_buffers(cfg: Config) -> None:
    """Have all processes of a training validate the model that is saved."""

    def shares(hook: object) -> bool:
        names = ('SyncBuffersHook', 'SameBuffersHook')
        return isinstance(hook, dict) and type_name(hook['type']) in names

    default = cfg.get('default_hooks') or {}
    default = {key: None if shares(hook) else hook for key, hook in default.items()}
    others = [hook for hook in cfg.get('custom_hooks') or () if not shares(hook)]
    cfg.default_hooks, cfg.custom_hooks = default, [*others, dict(type='SameBuffersHook')]
