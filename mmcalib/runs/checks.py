"""Checks before a run: its data and metrics are built, and what was built is asked.

The docstring of each check names the harm that it prevents: a wrong number, or lost hours.
"""

from __future__ import annotations

import logging
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from mmengine.dataset import BaseDataset, InfiniteSampler
from mmengine.dist import is_main_process
from mmengine.evaluator import BaseMetric, Evaluator
from mmengine.hooks import CheckpointHook
from mmengine.logging import print_log
from mmengine.runner import BaseLoop, Runner
from torch import nn
from torch.utils.data import BatchSampler, DataLoader

from mmcalib.errors import UserError, did_you_mean, nearest
from mmcalib.losses import AdaFocalLoss, CalibrationLoss, CALSLoss
from mmcalib.metrics.metric_text import AACC, INTERVAL, MIOU, better_rule
from mmcalib.openmmlab.calibrated_model import is_calibrated
from mmcalib.openmmlab.heads import classes_of_head, innermost_model, takes_several_labels
from mmcalib.openmmlab.hooks import LearnFromValidationHook
from mmcalib.openmmlab.hooks.broken_samples_hook import (
    file_problem,
    name_samples,
    sample_files,
    trainable_labels,
    with_inner_datasets,
)
from mmcalib.openmmlab.hooks.head_options_hook import set_head_options
from mmcalib.openmmlab.hooks.learn_from_validation_hook import check_validations
from mmcalib.openmmlab.metrics import CalibrationMetric, ForegroundIoU, ImageScoreMetric, OODMetric
from mmcalib.openmmlab.metrics.list_metric import ListMetric
from mmcalib.openmmlab.same_data import sample_ids
from mmcalib.runs.checkpoint import check_classes, class_names
from mmcalib.runs.missing_data import missing_data_message
from mmcalib.tensors import unchanged_randomness

# Errors of parts of a config that cannot be built.
NOT_BUILT = (AssertionError, AttributeError, KeyError, OSError, RuntimeError, TypeError, ValueError)
# A run looks at no more samples of a list before it begins.
MOST_LISTED = 20_000
# The metrics that mmseg's IoUMetric measures beside aAcc, by each of its `iou_metrics`.
NAMES_BY_IOU_METRIC = {
    'mIoU': (MIOU, 'mAcc'),
    'mDice': ('mDice', 'mAcc'),
    'mFscore': ('mFscore', 'mPrecision', 'mRecall'),
}


def build_data(runner: Runner, splits: Iterable[str]) -> None:
    """Build the data and the metrics of a run, so that their errors come before hours of work.

    Args:
        runner: Runner before it trains or tests.
        splits: Some of ``'train'``, ``'val'`` and ``'test'``; those that the config lacks are
            skipped.

    Raises:
        UserError: For the first that cannot be built; if its data are missing, with their source.
    """
    cfg = runner.cfg
    loaders = {f'{split}_dataloader': cfg.get(f'{split}_dataloader') for split in splits}
    if cfg.get('limit'):  # The dataset of a smoke run wraps that of the file.
        loaders = {key: loader['dataset'] for key, loader in loaders.items() if loader}
    message = missing_data_message(loaders, cfg.get('default_scope'))
    if message is not None:
        raise UserError(message)
    for split in present_splits(runner, splits):
        with building(f'the {split} data, metrics or {split}_cfg: '):
            getattr(runner, f'{split}_loop')  # built when it is first asked for


def present_splits(runner: Runner, splits: Iterable[str]) -> list[str]:
    """Return the splits that a config has data of."""
    return [split for split in splits if runner.cfg.get(f'{split}_dataloader')]


def check_run(runner: Runner, splits: Iterable[str]) -> None:
    """Ask what was built, and raise the errors that a run would meet hours later.

    Args:
        runner: Runner whose data are built, see :func:`build_data`.
        splits: Splits as of :func:`build_data`.

    Raises:
        UserError: For the first error.
    """
    model = innermost_model(runner.model)
    loops = {split: getattr(runner, f'{split}_loop') for split in present_splits(runner, splits)}
    first_loop = next(iter(loops.values()), None)
    for split, loop in loops.items():
        if split != 'train':
            check_all_samples(split, loop.dataloader)
            check_metrics(split, loop.evaluator.metrics, model)
        check_samples(split, loop, model, first_loop)
    if 'train' in loops:
        if isinstance(runner, Runner):  # mmengine's FlexibleRunner leaves it to its strategy.
            with building('optim_wrapper: '):
                runner.optim_wrapper = runner.build_optim_wrapper(runner.optim_wrapper)
        check_selection(runner)
        check_learning(runner, model)
        check_targets(model)
        check_padding(model)
        warn_of_training_images(loops)


def check_amp() -> None:
    """Refuse mixed precision without a GPU: bfloat16 of a CPU gives a wrong number."""
    if not torch.cuda.is_available():
        raise UserError('--amp needs a CUDA device, and none is available: leave it out')


def check_all_samples(split: str, loader: DataLoader) -> None:
    """Refuse a loader that leaves samples out of an evaluation, or never ends: lost hours."""
    if isinstance(loader.sampler, InfiniteSampler):
        raise UserError(
            f'{split}_dataloader: an InfiniteSampler never ends, and an evaluation has to: set '
            "sampler=dict(type='DefaultSampler', shuffle=False)"
        )
    batches = loader.batch_sampler
    if not isinstance(batches, BatchSampler) or not batches.drop_last:
        return
    num_samples = len(batches.sampler)
    num_left_out = num_samples % batches.batch_size
    if num_left_out:
        raise UserError(
            f'{split}_dataloader: drop_last=True leaves out the last {num_left_out} of '
            f'{num_samples} samples, and an evaluation needs all: set drop_last=False'
        )


def check_samples(split: str, loop: BaseLoop, model: nn.Module, first: BaseLoop) -> None:
    """Refuse no samples, other classes than those of the training, and a sample that breaks.

    Classes that the head has no logit for, and logits that no sample trains, give a wrong number; a
    broken sample costs hours.

    Args:
        split: Name of the split.
        loop: Loop with its data.
        model: The model.
        first: Loop of the run's first split, which trains where the run does.
    """
    dataset = loop.dataloader.dataset
    classes = classes_of_head(model)
    if not len(dataset):
        raise UserError(f'the {split} data have no samples')
    check_class_names(split, dataset)
    names = class_names(dataset)
    count = len(names)
    if count and classes and (count > classes or (split == 'train' and count < classes)):
        raise UserError(
            f'the {split} data have {count} classes, but the head of the model has {classes}. Is '
            f'the data set complete? If so, set num_classes of the head to {count}'
        )
    trained_names = class_names(first.dataloader.dataset)
    check_classes(trained_names, names, f'the training and the {split} set')
    metrics = [] if split == 'train' else loop.evaluator.metrics
    unseen = any(isinstance(metric, OODMetric) for metric in metrics)
    check_listed_samples(split, dataset, model, unseen=unseen)
    if split == 'train':  # Its transforms are random, and may be a GPU's.
        return
    name_samples(dataset)
    with unchanged_randomness():
        try:
            dataset[0]
        except UserError as error:
            raise UserError(f'the {split} data: {error.reason}') from error


def warn_of_training_images(loops: Mapping[str, BaseLoop]) -> None:
    """Warn of evaluated images that are trained on too, a wrong number.

    It knows them by their paths, since millions of files are not looked at.
    """
    if not is_main_process():
        return
    images = {}
    for split, loop in loops.items():
        samples = sample_ids(loop.dataloader.dataset, follow_links=False)
        images[split] = {sample.key for sample in samples}
    for split in loops:
        if split == 'train':
            continue
        num_shared = len(images[split] & images['train'])
        if num_shared:
            print_log(
                f'{num_shared:,} of the {len(images[split]):,} {split} images are training images '
                'too, on which figures are too good: take others',
                'current',
                logging.WARNING,
            )


def check_listed_samples(split: str, dataset: object, model: nn.Module, *, unseen: bool) -> None:
    """Refuse lists of files that are missing or empty, and of labels of no class: lost hours.

    The first process looks for them, at evenly spaced samples of a large data set, since a file on
    a server takes a millisecond. A data set without a list was read from its folder.

    Args:
        split: Name of the split.
        dataset: Its data.
        model: The model.
        unseen: Whether images of other classes are measured too.
    """
    num_classes, ignored_labels = trainable_labels(model)
    if not is_main_process():
        return
    for part in with_inner_datasets(dataset):
        has_list = isinstance(part, BaseDataset) and part.ann_file and len(part)
        if not has_list:
            continue
        problems = []
        step = -(-len(part) // MOST_LISTED)
        for index in range(0, len(part), step):
            sample = part.get_data_info(index)
            paths = list(sample_files(sample).values())
            problems += [problem for path in paths if (problem := file_problem(path))]
            label = sample.get('gt_label')
            if unseen or not num_classes or not isinstance(label, int) or label in ignored_labels:
                continue
            if not 0 <= label < num_classes:
                name = paths[0] if paths else f'sample {index}'
                problems.append(f'{name} has the label {label}, of {num_classes} classes')
        if problems:
            raise UserError(
                f'the {split} data: {len(problems):,} of the samples that {part.ann_file} lists '
                f'cannot be used, the first since {problems[0]}: mend them, or shorten the list'
            )


def check_class_names(split: str, dataset: object) -> None:
    """Refuse a text in place of names, and the names of folders in another order than their labels.

    Predictions would have the names of other classes.
    """
    for part in with_inner_datasets(dataset):
        classes = (getattr(part, 'metainfo', None) or {}).get('classes', ())
        if isinstance(classes, str):
            raise UserError(
                f'the {split} data: metainfo.classes is the text {classes!r}, whose letters would '
                'be the classes: write a list of names; one name in brackets is followed by a comma'
            )
        # CustomDataset of mmpretrain numbers its folders by itself.
        label_of_folder = getattr(part, 'folder_to_idx', {})
        for label, name in enumerate(classes):
            if label_of_folder.get(name, label) != label:
                raise UserError(
                    f'the {split} data: class {label} of metainfo.classes is {name!r}, but the '
                    f'images in the folder {name!r} have the label {label_of_folder[name]}: list '
                    f'the names in the order of the folders, {", ".join(label_of_folder)}, or '
                    'leave them out'
                )


def check_metrics(split: str, metrics: Sequence[BaseMetric], model: nn.Module) -> None:
    """Refuse metrics that end in an error after hours, or overwrite or mislead each other."""
    check_probabilities(split, metrics, model)
    classes = classes_of_head(model)
    warn_of_other_ignored_label(split, metrics, set_head_options(model, metrics))
    check_top_k(split, metrics, classes)
    check_distinct_keys(split, metrics)
    check_ood_metrics(split, metrics, classes)


def warn_of_other_ignored_label(
    split: str, metrics: Sequence[BaseMetric], ignore_index: int
) -> None:
    """Warn of a toolbox's metric that counts the label which the model was not trained on.

    Its figures are wrong then, and other ones than those of the metrics beside it.
    """
    for metric in metrics:
        other = getattr(metric, 'ignore_index', None)
        if isinstance(metric, ListMetric) or other is None or other == ignore_index:
            continue
        name = type(metric).__name__
        print_log(
            f'{split}_evaluator: {name} leaves out label {other}, but calibration is measured '
            f'without label {ignore_index}: set ignore_index={ignore_index} of {name}, or '
            f'ignore_index={other} of a CalibrationMetric',
            'current',
            logging.WARNING,
        )


def check_probabilities(split: str, metrics: Sequence[BaseMetric], model: nn.Module) -> None:
    """Refuse metrics of probabilities for a model that retrieves images, an error after hours."""
    # mmpretrain, which has the class, may not be installed.
    if 'BaseRetriever' not in [base.__name__ for base in type(model).__mro__]:
        return
    names = [type(metric).__name__ for metric in metrics if isinstance(metric, ListMetric)]
    if names:
        raise UserError(
            f'{split}_evaluator: {", ".join(names)} needs probabilities of classes, but '
            f'{type(model).__name__} predicts similarities of images: take metrics such as '
            'RetrievalRecall'
        )


def check_top_k(split: str, metrics: Sequence[BaseMetric], classes: int | None) -> None:
    """Refuse an accuracy of more predictions than there are classes, an error after hours."""
    for metric in metrics:
        is_accuracy = type(metric).__name__ == 'Accuracy'
        if is_accuracy and classes and max(metric.topk) > classes:
            raise UserError(
                f'{split}_evaluator: Accuracy has topk={metric.topk}, but the head {classes} '
                'classes: set topk=(1,)'
            )


def check_distinct_keys(split: str, metrics: Sequence[BaseMetric]) -> None:
    """Refuse two metrics of one key, of which the second would overwrite the first."""
    counts = Counter()
    for metric in metrics:
        counts.update(measured_keys(metric) or ())
    repeated_keys = sorted(key for key, count in counts.items() if count > 1)
    if repeated_keys:
        raise UserError(
            f'{split}_evaluator measures {", ".join(repeated_keys)} twice: give one of the two '
            "metrics another prefix, such as dict(type='ECE', num_bins=25, prefix='ece25')"
        )


def check_ood_metrics(split: str, metrics: Sequence[BaseMetric], classes: int | None) -> None:
    """Refuse metrics that count predictions of unseen classes as wrong, a wrong number."""
    for ood_metric in metrics:
        if not isinstance(ood_metric, OODMetric):
            continue
        index = ood_metric.ood_index
        if index is not None and 0 <= index < (classes or 0):
            continue  # It is the label of a class that was trained.
        others = [
            type(metric).__name__
            for metric in metrics
            if not isinstance(metric, OODMetric | ImageScoreMetric)
            and (index is None or getattr(metric, 'ignore_index', None) != index)
        ]
        if others:
            raise UserError(
                f'{split}_evaluator: OODMetric treats some labels as unseen, but '
                f'{", ".join(others)} would count all their predictions as wrong. Test these in a '
                'separate run'
            )


def check_selection(runner: Runner) -> None:
    """Refuse a checkpoint that is to be chosen by what is not measured, or by the worst.

    The first would end a training after hours, the second choose a wrong checkpoint.
    """
    if not runner.cfg.get('val_dataloader'):
        return
    if type(runner.val_evaluator) is not Evaluator:  # It may name the keys of parts of the data.
        return
    known_keys = set()
    has_unknown_metric = False
    for metric in runner.val_evaluator.metrics:
        keys = measured_keys(metric)
        has_unknown_metric = has_unknown_metric or keys is None
        known_keys |= keys or set()
    for hook in runner.hooks:
        if not isinstance(hook, CheckpointHook) or not hook.save_best:
            continue
        for key, rule in zip(hook.key_indicators, hook.rules, strict=True):
            if key == 'auto':
                continue
            if key not in known_keys:
                if not has_unknown_metric or nearest(key, known_keys):
                    raise UserError(
                        f'default_hooks.checkpoint: val_evaluator does not measure {key!r}'
                        f'{did_you_mean(key, known_keys)}'
                    )
            elif rule and better_rule(key) not in (None, rule):
                raise UserError(
                    f'save_best={key!r}: set rule={better_rule(key)!r}; rule={rule!r} would keep '
                    'the worst checkpoint'
                )


def measured_keys(metric: BaseMetric) -> set[str] | None:
    """Return the keys that a metric measures, None where that is not known."""
    kind = type(metric).__name__
    names = []
    if isinstance(metric, CalibrationMetric):
        names += metric.metrics
        if metric.confidence_interval is not None:
            names += [f'{name}{end}' for name in metric.metrics for end in INTERVAL]
    elif isinstance(metric, ForegroundIoU):
        names.append(MIOU)
    elif kind == 'Accuracy' and len(metric.thrs) == 1:
        names += [f'top{k}' for k in metric.topk]
    elif kind == 'IoUMetric':
        names.append(AACC)
        for name in metric.metrics:
            names += NAMES_BY_IOU_METRIC.get(name, ())
    else:
        return None
    prefix = f'{metric.prefix}/' if metric.prefix else ''
    return {f'{prefix}{name}' for name in names}


def check_learning(runner: Runner, model: nn.Module) -> None:
    """Refuse a loss, or an attached calibration, that would not learn, for a wrong number."""
    has_hook = any(isinstance(hook, LearnFromValidationHook) for hook in runner.hooks)
    for module in model.modules():
        if is_calibrated(module):
            raise UserError(
                'the config has a calibration attached, which would not follow the training: '
                'train with the config that was calibrated, load this checkpoint with load_from, '
                'and calibrate again'
            )
        if not isinstance(module, CALSLoss | AdaFocalLoss):
            continue
        name = type(module).__name__
        if not has_hook:
            raise UserError(
                f'{name} learns nothing without its hook: add '
                "custom_hooks=[dict(type='LearnFromValidationHook')]"
            )
        check_validations(runner, name)


def check_targets(model: nn.Module) -> None:
    """Refuse losses that do not fit the targets of the training.

    Without this, a softmax trains on several labels, where it has no lower bound; a loss that needs
    one label for each image ends with its own error in the first step of Mixup.
    """
    for name, head in model.named_modules():
        if takes_several_labels(head):
            check_several_labels(name, head)
    preprocessor = getattr(model, 'data_preprocessor', None)
    batch_augments = getattr(preprocessor, 'batch_augments', None)
    augments = [
        type(augment).__name__
        for augment in getattr(batch_augments, 'augments', ())
        if augment is not None
    ]
    if not augments:
        return
    for name, loss in model.named_modules():
        kind = type(loss).__name__
        if not getattr(loss, 'soft_targets', kind != 'SeesawLoss'):
            raise UserError(
                f'model.{name}: {kind} needs one label for each image, but {" and ".join(augments)}'
                ' (augments of model.train_cfg, or batch_augments of data_preprocessor) mixes '
                'labels. Leave the augments out, or take a loss such as MarginLabelSmoothingLoss'
            )


def check_several_labels(name: str, head: nn.Module) -> None:
    """Refuse a softmax over classes in a head for several labels, which learns a wrong number."""
    for loss in head.modules():
        if is_softmax_loss(loss):
            raise UserError(
                f'model.{name}: {type(head).__name__} takes several labels for each image, but '
                f'{type(loss).__name__} trains a softmax, of which one class is right. Set '
                "loss=dict(type='CrossEntropyLoss', use_sigmoid=True), or take a head for one "
                'label, such as LinearClsHead'
            )


def is_softmax_loss(loss: nn.Module) -> bool:
    """Return whether a loss is known to be one of a softmax over classes."""
    kind = type(loss).__name__
    if kind == 'CrossEntropyLoss':
        return not getattr(loss, 'use_sigmoid', False)
    return kind == 'SeesawLoss' or isinstance(loss, CalibrationLoss)


def check_padding(model: nn.Module) -> None:
    """Refuse padded pixels of a label that is no class and not ignored.

    Images of other sizes may come in a later step, which would end the training after hours.
    """
    label = getattr(getattr(model, 'data_preprocessor', None), 'seg_pad_val', None)
    classes, ignored = trainable_labels(model)
    if label is None or classes is None or 0 <= label < classes or label in ignored:
        return
    raise UserError(
        f'data_preprocessor: seg_pad_val={label} gives padded pixels a label that is none of the '
        f'{classes} classes of the model, and not the label that its head ignores: set '
        f'model.data_preprocessor.seg_pad_val={max(ignored)}'
    )


@contextmanager
def building(start: str) -> Iterator[None]:
    """Raise what cannot be built as a UserError.

    Args:
        start: Start of the message, such as the part of the config.
    """
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings('ignore', message='Fail to import')
            yield
    except NOT_BUILT as error:
        raise UserError(f'{start}{error_reason(error)}') from error


def error_reason(error: Exception) -> str:
    """Return why a part of a config cannot be built."""
    reason = str(error)
    if error.args and not isinstance(error, OSError):  # Its first argument is a number.
        reason = str(error.args[0])
    if 'need at least one array to concatenate' in reason:  # from numpy, in mmengine's datasets
        return 'there are no samples'
    if isinstance(error, TypeError) and 'unexpected keyword argument' in reason:
        return f'{reason}; if it comes from _base_, add _delete_=True to the dict of that type'
    return reason or type(error).__name__
