"""Changes of a config by the options of a command: work dir, split, evaluation, samples, views."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from mmengine.config import Config

from mmcalib.errors import UserError, did_you_mean
from mmcalib.files import experiment_name
from mmcalib.openmmlab.splits import OWN_TEST_LOADER, TESTED_SPLIT
from mmcalib.options import check_integer, check_number
from mmcalib.runs.config import list_single_metrics, load_config
from mmcalib.runs.config_tree import find_pipelines, find_toolbox, type_name
from mmcalib.runs.facts import plain

# Endings of the names of hooks that ask for the training, or average its weights.
TRAINING_HOOKS = ('EMAHook', 'EarlyStoppingHook', 'ProfilerHook')
# Packages that mmengine's trackers of a training need.
TRACKERS = {
    'AimVisBackend': 'aim',
    'ClearMLVisBackend': 'clearml',
    'DVCLiveVisBackend': 'dvclive',
    'MLflowVisBackend': 'mlflow',
    'NeptuneVisBackend': 'neptune',
    'TensorboardVisBackend': 'tensorboard',
    'WandbVisBackend': 'wandb',
}
PIPELINES_BEFORE_VIEWS = 'pipelines_before_views'  # the key in a config
# Scales relative to the size that the pipeline gives; many classifiers take one size only.
SEGMENTATION_SCALES = (1.0, 0.75, 1.25)
# Models of the toolboxes that average probabilities, as ours does.
AVERAGING_MODELS = ('AverageClsScoreTTA', 'SegTTAModel')
DATALOADERS = ('train_dataloader', 'val_dataloader', 'test_dataloader')


def load_run_config(path: str, options: Any) -> Config:
    """Read a config for a run, with the launcher and the work dir that its command was given.

    Without one it is the config's work dir, else one named after the experiment. A smoke run that
    is given none has one below it, and leaves the files of real runs alone.
    """
    cfg = load_config(path, options.cfg_options)
    cfg.launcher = options.launcher
    folder = cfg.get('work_dir') or f'work_dirs/{experiment_name(cfg.filename)}'
    if options.limit:
        folder = str(Path(folder, f'limit{options.limit}'))
    cfg.work_dir = options.work_dir or folder
    return cfg


def load_test_config(path: str, options: Any) -> Config:
    """Read a config for a test on the split, and by the named evaluation, of a command.

    Raises:
        UserError: If the config has no such evaluation, or no data of the split.
    """
    cfg = load_run_config(path, options)
    if options.evaluation:
        use_evaluation(cfg, options.evaluation)
    if options.split == 'val':
        use_validation_split(cfg)
    if cfg.get('test_dataloader') is None:
        raise UserError('the config has no test_dataloader: --split val takes its validation data')
    return cfg


def use_evaluation(cfg: Config, name: str) -> None:
    """Test by one of the config's named ``evaluations``, in a folder of its own in the work dir.

    Raises:
        UserError: If the config has none of that name.
    """
    evaluations = cfg.get('evaluations', {})
    if name not in evaluations:
        known = did_you_mean(name, evaluations) if evaluations else ', and none at all'
        raise UserError(f'--evaluation {name}: the config has no such evaluation{known}')
    cfg.merge_from_dict(evaluations[name])
    list_single_metrics(cfg)
    cfg.work_dir = str(Path(cfg.work_dir, name))


def use_validation_split(cfg: Config) -> None:
    """Have a test take the validation split, as a choice between models has to.

    Raises:
        UserError: If the config has none.
    """
    if cfg.get('val_dataloader') is None:
        raise UserError('--split val needs a val_dataloader in the config')
    cfg[OWN_TEST_LOADER] = cfg.get('test_dataloader')
    cfg.test_dataloader = deepcopy(cfg.val_dataloader)
    cfg.test_evaluator = deepcopy(cfg.val_evaluator)
    cfg.setdefault('test_cfg', dict())
    cfg[TESTED_SPLIT] = 'val'


def limit_samples(cfg: Config, limit: int | None) -> None:
    """Make a smoke run of a config: a few samples of each split, and one epoch at most.

    Results and checkpoints say so, and reports leave them out.

    Args:
        cfg: Config of the run.
        limit: Number of samples of each split; None for all of them.

    Raises:
        UserError: If it is below 1.
    """
    if limit is None:
        return
    cfg.limit = check_integer('--limit', limit)
    for loader in dataloaders(cfg):
        loader.dataset = dict(type='EvenSubset', dataset=loader.dataset, samples=limit)
        loader.pop('num_batch_per_epoch', None)
    loader = cfg.get('train_dataloader')
    schedule = cfg.get('train_cfg')
    if not loader or not schedule:
        return
    if 'batch_size' in loader:  # A sampler that drops the last batch would have none.
        loader.batch_size = min(loader.batch_size, limit)
    schedule.pop('dynamic_intervals', None)
    schedule.pop('val_begin', None)
    if schedule.get('max_epochs'):
        schedule.update(max_epochs=1, val_interval=1)
    else:
        iterations = -(-limit // (loader.get('batch_size') or 1))
        schedule.update(max_iters=iterations, val_interval=iterations)


def set_views(cfg: Config, split: str, scales: Sequence[float] | None = None) -> list[list]:
    """Have a split's data come in several views of each image, for a ``MeanProbabilityModel``.

    They are those of the config's ``tta_pipeline``. Without one, or with scales, the last transform
    of the pipeline is applied to the image and its mirror image, for segmentation at the scales 1,
    0.75 and 1.25 each.

    Args:
        cfg: Config of the run.
        split: ``'val'`` or ``'test'``.
        scales: Scales relative to the size that the pipeline gives, in any order.

    Returns:
        The alternatives of each step in which the views differ, for JSON.

    Raises:
        UserError: If the config's ``tta_model`` merges predictions in a way of its own, scales are
            none above 0 or lack 1 for a segmentation, or the data have no pipeline.
    """
    tta_model = cfg.get('tta_model') or {}
    kind = type_name(tta_model.get('type', AVERAGING_MODELS[0]))
    if kind not in AVERAGING_MODELS:  # It prevents a wrong number.
        raise UserError(
            f'--tta: the tta_model {kind} of the config merges predictions in its own way, and '
            'only the mean of probabilities can be measured: remove it (tta_model=None)'
        )
    is_segmentation = find_toolbox(cfg) == 'mmseg'
    pipeline = None
    if scales is None:
        scales = SEGMENTATION_SCALES if is_segmentation else (1.0,)
        pipeline = cfg.get('tta_pipeline')
    check_scales(scales, is_segmentation=is_segmentation)
    holders = find_pipelines(cfg[f'{split}_dataloader'].dataset)
    if not holders:
        raise UserError(f'--tta: {split}_dataloader.dataset has no pipeline to add views to')
    for holder in holders:
        if pipeline:
            holder.pipeline = deepcopy(pipeline)
        else:
            *before, last = holder.pipeline
            transforms = [*scales_and_flips(scales), [last]]
            holder.pipeline = [*before, dict(type='TestTimeAug', transforms=transforms)]
    return describe_views(holders[0].pipeline)


def check_scales(scales: Sequence[float], *, is_segmentation: bool) -> None:
    """Refuse scales of no image, and those without the size of the labels, for a wrong number."""
    for scale in scales:
        check_number('--tta-scales', scale, least=0.01)
    if is_segmentation and 1 not in scales:
        raise UserError(
            f'--tta-scales {" ".join(map(str, scales))}: labels are those of the view at scale 1, '
            'since other scales resize them too: add 1'
        )


def scales_and_flips(scales: Sequence[float]) -> list[list[dict]]:
    """Return the steps of a ``TestTimeAug`` that scale and mirror an image."""
    flips = [dict(type='RandomFlip', prob=probability) for probability in (0.0, 1.0)]
    # The first view is the image as it would be without the others.
    scales = sorted(scales, key=lambda scale: scale != 1)
    if scales == [1]:
        return [flips]
    sizes = [dict(type='Resize', scale_factor=scale, keep_ratio=True) for scale in scales]
    return [sizes, flips]


def describe_views(pipeline: Sequence[dict]) -> list[list]:
    """Return the alternatives of each step of a pipeline that has several, for JSON."""
    views = []
    for transform in pipeline:
        if type_name(transform['type']) == 'TestTimeAug':
            views += [list(step) for step in transform['transforms'] if len(step) > 1]
    return plain(views)


def remove_training_parts(cfg: Config) -> None:
    """Remove what a config has for its training, which a test cannot use or need not have.

    An EMAHook would copy weights that a checkpoint has averaged already; other hooks ask for the
    loop of the training, and so for its images. A tracker may not be installed.
    """
    hooks = cfg.get('custom_hooks') or ()
    cfg.custom_hooks = [hook for hook in hooks if not is_training_hook(hook)]
    default_hooks = cfg.get('default_hooks') or {}
    for name, hook in list(default_hooks.items()):
        if hook is not None and is_training_hook(hook):
            del default_hooks[name]
    visualizer = cfg.get('visualizer') or {}
    backends = visualizer.get('vis_backends') or ()
    if backends:
        visualizer.vis_backends = [backend for backend in backends if is_installed(backend)]


def is_training_hook(hook: Mapping) -> bool:
    """Return whether the config of a hook is one that only a training can have."""
    return type_name(hook['type']).endswith(TRAINING_HOOKS)


def is_installed(backend: Mapping) -> bool:
    """Return whether the config of a visualizer's backend is one that can be used here."""
    package = TRACKERS.get(type_name(backend['type']))
    return package is None or find_spec(package) is not None


def set_loader_defaults(cfg: Config) -> None:
    """Fill in the defaults of mmpretrain's own tools, and turn off what needs a GPU or workers."""
    is_classification = find_toolbox(cfg) == 'mmpretrain'
    for loader in dataloaders(cfg):
        if is_classification:
            loader.setdefault('collate_fn', dict(type='default_collate'))
            loader.setdefault('pin_memory', True)
            loader.setdefault('persistent_workers', True)
        if not torch.cuda.is_available():
            loader.pin_memory = False
        if not loader.get('num_workers'):
            loader.persistent_workers = False


def dataloaders(cfg: Config) -> list[Config]:
    """Return the configs of the dataloaders that a config has."""
    return [cfg[name] for name in DATALOADERS if cfg.get(name)]


def show_predictions(cfg: Config, folder: str) -> None:
    """Have the toolbox's own visualization hook draw the predictions of a test into a folder.

    Raises:
        UserError: If the config has no such hook.
    """
    hook = cfg.get('default_hooks', {}).get('visualization')
    if hook is None:
        raise UserError(
            '--show-dir needs default_hooks.visualization in the config; the digits have none, '
            'because their images are not files'
        )
    if find_toolbox(cfg) == 'mmpretrain':
        hook.update(interval=1, enable=True, out_dir=folder)
    else:
        hook.update(interval=1, draw=True)
        cfg.visualizer.save_dir = folder
