"""The command ``train``: from its options to a trained and tested model."""

from __future__ import annotations

from pathlib import Path

from mmengine.config import Config
from mmengine.dist import barrier, is_main_process
from mmengine.hooks import EMAHook
from mmengine.logging import print_log
from mmengine.runner import Runner

from mmcalib.cli.train import TrainOptions
from mmcalib.errors import UserError
from mmcalib.launchers import is_first_process
from mmcalib.runs.checkpoint import (
    Checkpoint,
    checkpoint_from_content,
    choose_validated_weights,
    read_checkpoint,
)
from mmcalib.runs.checks import build_data, check_amp, check_run
from mmcalib.runs.evaluation import load_and_test
from mmcalib.runs.model import Network, PredictingModel, describe_model
from mmcalib.runs.processes import leave_processes
from mmcalib.runs.resume import continues_in_work_dir, resume_from
from mmcalib.runs.run_config import limit_samples, load_run_config, use_validation_split
from mmcalib.runs.runner import build_runner, log_start
from mmcalib.runs.training_hooks import (
    best_checkpoints,
    check_resumed_data,
    checkpoint_hooks,
    early_stop,
)
from mmcalib.runs.work_dir import checkpoint_hook, locked, locked_checkpoint_folder, set_aside

LAST_WEIGHTS = 'last weights'  # in place of the path of a checkpoint


def train_model(options: TrainOptions) -> None:
    """Train, and test the best checkpoint."""
    cfg = config_for_training(options)
    start = options.resume
    if start is None and cfg.get('resume') and not cfg.get('load_from'):
        start = 'auto'  # mmengine would look for the checkpoint later, behind the checks.
    if start is not None:
        resume_from(cfg, start)
    train_and_test(cfg, test=not options.no_test)
    if is_main_process():
        print(f'Files: {cfg.work_dir}')
    leave_processes()


def config_for_training(options: TrainOptions) -> Config:
    """Return the config as the options change it."""
    cfg = load_run_config(options.config, options)
    if options.split == 'val':
        use_validation_split(cfg)
    if options.no_validate:
        cfg.val_cfg = None
        cfg.val_dataloader = None
        cfg.val_evaluator = None
        # There is no metric to select a checkpoint by.
        checkpoint_hook(cfg).pop('save_best', None)
    if options.amp:
        check_amp()
        cfg.optim_wrapper.type = 'AmpOptimWrapper'
        cfg.optim_wrapper.setdefault('loss_scale', 'dynamic')
    if options.auto_scale_lr:
        if 'base_batch_size' not in (cfg.get('auto_scale_lr') or {}):
            raise UserError('--auto-scale-lr needs auto_scale_lr.base_batch_size in the config')
        cfg.auto_scale_lr.enable = True
    limit_samples(cfg, options.limit)
    return cfg


def train_and_test(cfg: Config, test: bool = True) -> dict | None:
    """Train, then test the best checkpoint if the config has a test split and `test` is set.

    Args:
        cfg: Config of the run.
        test: Whether to test at all.

    Returns:
        The metrics of the test, or None without one.

    Raises:
        UserError: If another training or test runs in the work dir; if the checkpoints go to a
            folder with those of another training.
    """
    splits = ['train', 'val', 'test'] if test else ['train', 'val']
    is_first = is_first_process(cfg.launcher)
    with locked(cfg.work_dir, first=is_first), locked_checkpoint_folder(cfg, first=is_first):
        config_file = Path(cfg.work_dir, Path(cfg.filename or 'config.py').name)
        earlier_config = config_file.read_bytes() if config_file.is_file() else None
        try:
            runner = build_runner(cfg)
            build_data(runner, splits)
            check_run(runner, splits)
            check_resumed_data(runner)
        except BaseException:
            if is_first and earlier_config is not None:  # The Runner has replaced it.
                config_file.write_bytes(earlier_config)
            raise
        log_start(runner, splits)
        if is_main_process() and not continues_in_work_dir(cfg):
            backup_dir = set_aside(cfg.work_dir, keep=cfg.get('load_from'))
            if backup_dir is not None:
                if earlier_config is not None:
                    Path(backup_dir, config_file.name).write_bytes(earlier_config)
                print_log(f'Moved the files of an earlier run to {backup_dir}.', logger='current')
        runner.train()
        if not test:
            return None
        if cfg.get('test_dataloader') is None:
            print_log('The config has no test_dataloader, so there is no test.', logger='current')
            return None
        checkpoint = final_checkpoint(runner)
        end = {'finished': True, 'stopped_at': early_stop(runner)}
        description = describe_model([Network(runner.cfg, checkpoint)], ['test'], end=end)
        model = PredictingModel([checkpoint], description)
        # An EMAHook would copy weights that the checkpoint has averaged already.
        runner._hooks = [hook for hook in runner.hooks if not isinstance(hook, EMAHook)]
        runner._resume = False
        return load_and_test(runner, model)


def final_checkpoint(runner: Runner) -> Checkpoint:
    """Return the best checkpoint of a training, or its last weights where none was kept."""
    barrier()  # The main process may still be writing it.
    hooks = checkpoint_hooks(runner)
    for hook in hooks:
        for path in best_checkpoints(hook):
            print_log('Testing the best checkpoint.', logger='current')
            return read_checkpoint(path)
    # That of a resumed run which was moved may be elsewhere.
    print_log('No best checkpoint was kept: testing the last weights.', logger='current')
    for hook in hooks:
        reached = runner.epoch if hook.by_epoch else runner.iter
        path = Path(hook.out_dir, hook.filename_tmpl.format(reached))
        if path.is_file():
            return read_checkpoint(path)
    model = getattr(runner.model, 'module', runner.model)
    meta = {'epoch': runner.epoch, 'seed': runner.seed, 'cfg': runner.cfg.pretty_text}
    content = {'state_dict': model.state_dict(), 'meta': meta}
    runner.call_hook('before_save_checkpoint', checkpoint=content)  # An EMAHook puts in averages.
    content = choose_validated_weights(content, LAST_WEIGHTS)
    return checkpoint_from_content(content, LAST_WEIGHTS)
