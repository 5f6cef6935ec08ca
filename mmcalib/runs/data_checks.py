"""Checks of a run's data, made when they are listed and before they are used."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from mmengine.config import Config
from mmengine.model import BaseTTAModel, is_model_wrapper
from mmengine.registry import DATASETS, MODELS
from mmengine.runner import Runner
from torch import nn

from mmcalib.checks import UserError, check_labels
from mmcalib.hooks.drawing_hook import DrawingHook, calibration_metrics
from mmcalib.hooks.name_broken_samples_hook import (
    IGNORED,
    file_problem,
    name_samples,
    sample_files,
    wrapped,
)
from mmcalib.models.predicting_head import classes_of_head, head_of
from mmcalib.runs.constructor_arguments import quiet_imports
from mmcalib.runs.unseen_labels import UnseenLabels

# Of large data sets, every n-th sample is looked at, so that it takes seconds.
MOST_LABELS = 100_000
MOST_FILES = 10_000
# What datasets raise that cannot be listed, and parts of a config that cannot be built.
NOT_BUILT = (AssertionError, KeyError, TypeError, ValueError)
NOT_LISTED = (*NOT_BUILT, OSError, RuntimeError)


def check_run_data(runner: Runner, splits: Iterable[str], *, training: bool) -> None:
    """List the data of a run, and raise the errors that would end it, or train nonsense, later.

    mmengine builds the test's data and metrics only after the training. Here they are built, and
    used when the time comes.

    Args:
        runner: Before it trains or tests.
        splits: Of ``'train'``, ``'val'`` and ``'test'``; those that the config lacks are skipped.
        training: Whether the data must have as many classes as the model. A trained model may be
            tested on fewer.

    Raises:
        UserError: If a split is empty, cannot be listed or measured, or has other classes, labels
            out of range, missing or empty files, or a first sample that cannot be loaded.
    """
    classes = num_classes(runner.model)
    for split in splits:
        if runner.cfg.get(f'{split}_dataloader') is None:
            continue
        try:
            dataset = getattr(runner, f'{split}_dataloader').dataset
        except NOT_LISTED as error:
            runner.logger.info('', exc_info=True, extra={'screen': False})
            raise _not_listed(split, error) from error
        ignored = None if split == 'train' else ignored_by_metrics(runner, split)
        unseen = _unseen(runner.cfg, split)
        _check_dataset(split, dataset, classes, unseen, training=training, ignored=ignored)


def check_drawn_metrics(runner: Runner, splits: Iterable[str]) -> None:
    """Raise a UserError if a hook is to draw an evaluation that measures no calibration."""
    for split in splits:
        if split == 'train' or runner.cfg.get(f'{split}_dataloader') is None:
            continue
        for hook in runner.hooks:
            if isinstance(hook, DrawingHook) and hook.draws(split):
                try:
                    calibration_metrics(getattr(runner, f'{split}_evaluator'), hook)
                except ValueError as error:
                    raise UserError(str(error)) from error


def check_config_data(cfg: Config, splits: Iterable[str]) -> None:
    """Do the same without a Runner, for a tool that starts trainings as processes of their own.

    It builds the model on the CPU.

    Raises:
        UserError: As :func:`check_run_data`.
        ValueError: If the model cannot be built.
    """
    scope = cfg.get('default_scope')
    with quiet_imports(), MODELS.switch_scope_and_registry(scope) as registry:
        try:
            classes = num_classes(registry.build(cfg.model))
        except NOT_BUILT as error:
            raise ValueError(f'the model cannot be built: {error}') from error
    with DATASETS.switch_scope_and_registry(scope) as registry:
        for split in splits:
            loader = cfg.get(f'{split}_dataloader')
            if loader is None:
                continue
            try:
                dataset = registry.build(loader.dataset)
                if hasattr(dataset, 'full_init'):
                    dataset.full_init()
            except NOT_LISTED as error:
                raise _not_listed(split, error) from error
            _check_dataset(split, dataset, classes, _unseen(cfg, split), training=True)


def _not_listed(split: str, error: Exception) -> UserError:
    # Which is what mmengine's datasets say of an empty list.
    if 'need at least one array to concatenate' in str(error):
        return UserError(f'the {split} data have no samples')
    return UserError(f'the {split} data or their metrics: {error}')


def _unseen(cfg: Config, split: str) -> UnseenLabels:
    return UnseenLabels(cfg.get(f'{split}_evaluator'))


def _check_dataset(
    split: str,
    dataset: object,
    classes: int | None,
    unseen: UnseenLabels,
    *,
    training: bool,
    ignored: Sequence[tuple[str, int]] | None = None,
) -> None:
    if len(dataset) == 0:
        raise UserError(f'the {split} data have no samples')
    if classes is not None:
        _check_classes(split, dataset, classes, training)
        if reason := unseen.misread(classes):
            raise UserError(f'{split}_evaluator: {reason}')
    _check_samples(split, dataset, classes, unseen)
    if split != 'train':  # its transforms are random, and may be a GPU's
        _check_first(split, dataset, classes, unseen, ignored)


def ignored_by_metrics(runner: Runner, split: str) -> list[tuple[str, int]]:
    """Return metrics of a split and the labels that they ignore; warn of others than the head's."""
    metrics = getattr(runner, f'{split}_evaluator').metrics
    ignored = [(type(each).__name__, getattr(each, 'ignore_index', None)) for each in metrics]
    ignored = [(name, label) for name, label in ignored if label is not None]
    own = getattr(head_of(innermost(runner.model)), 'ignore_index', None)
    others = [f'{name} {label}' for name, label in ignored if label != own]
    if own is not None and others:
        runner.logger.warning(
            f'The head ignores the label {own}, and in the {split} data {", ".join(others)}: set '
            'ignore_index alike, unless this is meant'
        )
    return ignored


def innermost(model: nn.Module) -> nn.Module:
    """Return the model in its wrappers."""
    while is_model_wrapper(model) or isinstance(model, BaseTTAModel):
        model = model.module
    return model


def num_classes(model: nn.Module) -> int | None:
    """Return the classes of a model's head, also in wrappers, None if it has no such thing."""
    return classes_of_head(innermost(model))


def _check_classes(split: str, dataset: object, classes: int, training: bool) -> None:
    names = (getattr(dataset, 'metainfo', None) or {}).get('classes')
    if names is None or len(names) == classes or (len(names) < classes and not training):
        return
    raise UserError(
        f'the {split} data have {len(names)} classes, but the head of the model has {classes}. Is '
        f'the data set complete? If so, set num_classes of the head to {len(names)}'
    )


def _check_samples(split: str, dataset: object, classes: int | None, unseen: UnseenLabels) -> None:
    """Look at the labels and the files that a dataset lists."""
    if not hasattr(dataset, 'get_data_info'):
        return
    size = len(dataset)
    step = -(-size // MOST_LABELS)
    every_file = -(-size // MOST_FILES)
    read = {'img_path', 'seg_map_path'} if _reads_masks(dataset) else {'img_path'}
    out_of_range, broken, looked_at = [], [], 0
    for index in range(0, size, step):
        info = dataset.get_data_info(index)
        label = info.get('gt_label')
        is_class = classes is not None and isinstance(label, (int, np.integer))
        if is_class and not 0 <= label < classes and label not in unseen:
            out_of_range.append((index, label))
        if index % every_file < step:
            looked_at += 1
            files = [path for key, path in sample_files(info).items() if key in read]
            broken += [problem for problem in map(file_problem, files) if problem]
    if out_of_range:
        index, label = out_of_range[0]
        raise UserError(
            f'the {split} data have {len(out_of_range):,} labels outside [0, {classes}), the '
            f'classes of the model: sample {index} has {label}{unseen.remedy()}'
        )
    if broken:
        more = f', and {len(broken) - 1:,} more of {looked_at:,} samples' if broken[1:] else ''
        raise UserError(f'the {split} data: {broken[0]}{more}')


def _reads_masks(dataset: object) -> bool:
    steps = [
        getattr(getattr(part, 'pipeline', None), 'transforms', ()) for part in wrapped(dataset)
    ]
    return any('LoadAnnotations' in type(step).__name__ for each in steps for step in each)


def _check_first(
    split: str,
    dataset: object,
    classes: int | None,
    unseen: UnseenLabels,
    ignored: Sequence[tuple[str, int]] | None,
) -> None:
    """Load the first sample, and look at the labels of its mask, if it is known what is ignored."""
    name_samples(dataset)
    with unchanged_randomness():
        try:
            sample = dataset[0]
        except UserError as error:
            raise UserError(f'the {split} data: {error.reason}') from error
    labelled = sample.get('data_samples')
    if isinstance(labelled, (list, tuple)):  # several views of the image
        labelled = labelled[0]
    labelled = getattr(labelled, 'gt_sem_seg', None)
    if classes is not None and labelled is not None and ignored is not None:
        void = {label for _, label in ignored} or {IGNORED}
        void = void if len(void) == 1 else set()  # what a metric counts, is a label
        known = [x for x in labelled.data.unique().tolist() if x not in void and x not in unseen]
        labels = labelled.data[torch.isin(labelled.data, torch.tensor(known))]
        try:
            check_labels(labels, classes, name=f'the mask of the first of the {split} data')
        except ValueError as error:
            who = ''.join(f', {name} ignores {label}' for name, label in ignored)
            raise UserError(f'{error}; the model has {classes} classes{who}') from error


@contextmanager
def unchanged_randomness() -> Iterator[None]:
    """Put the states of the random number generators back, so that a run stays the same."""
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_rng_state(states[2])
