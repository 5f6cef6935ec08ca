"""Before a run: its data and metrics are built, and what was built is asked.

Each check prevents a wrong number, or an error that would come hours later.
"""

from __future__ import annotations

import inspect
import re
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from traceback import walk_tb

import torch
from mmengine import registry
from mmengine.config import Config
from mmengine.evaluator import BaseMetric
from mmengine.hooks import CheckpointHook
from mmengine.model import BaseTTAModel, is_model_wrapper
from mmengine.runner import BaseLoop, Runner
from torch import nn

from mmcalib.errors import UserError, did_you_mean, nearest, suggestion
from mmcalib.losses import AdaFocalLoss, CalibrationLoss, CALSLoss
from mmcalib.metrics.names import AACC, INTERVAL, MIOU, better_rule
from mmcalib.openmmlab.calibrated_model import is_calibrated
from mmcalib.openmmlab.heads import classes_of_head, takes_several_labels
from mmcalib.openmmlab.hooks import LearnFromValidationHook
from mmcalib.openmmlab.hooks.broken_samples_hook import name_samples, trainable_labels
from mmcalib.openmmlab.metrics import CalibrationMetric, ForegroundIoU, ImageScoreMetric, OODMetric
from mmcalib.runs.checkpoint import check_classes, class_names
from mmcalib.runs.config_tree import constructor_options
from mmcalib.runs.missing_data import missing_data_message
from mmcalib.tensors import unchanged_randomness

# What parts of a config raise that cannot be built.
NOT_BUILT = (AssertionError, AttributeError, KeyError, OSError, RuntimeError, TypeError, ValueError)
# As mmengine writes the errors of its registries, and Python those of constructors.
UNKNOWN_TYPE = re.compile(
    r"([\w.]+) is not in the (?:\w+::)?([\w ]+) registry\. Please check .*? found at [^\s'\")]+"
)
UNKNOWN_OPTION = re.compile(r"unexpected keyword argument '(\w+)'")
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
    message = missing_data_message(loader_configs(runner.cfg, splits))
    if message is not None:
        raise UserError(message)
    for split in present_splits(runner, splits):
        with building(f'the {split} data or their metrics: '):
            getattr(runner, f'{split}_loop')  # built when it is first asked for


def loader_configs(cfg: Config, splits: Iterable[str]) -> dict[str, Mapping | None]:
    """Return the dataloaders of splits by their keys, as the config's file has them."""
    loaders = {f'{split}_dataloader': cfg.get(f'{split}_dataloader') for split in splits}
    if cfg.get('limit'):  # The dataset of a smoke run wraps that of the file.
        loaders = {key: loader['dataset'] for key, loader in loaders.items() if loader}
    return loaders


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
    model = innermost(runner.model)
    classes = classes_of_head(model)
    loops = {split: getattr(runner, f'{split}_loop') for split in present_splits(runner, splits)}
    first_loop = next(iter(loops.values()), None)
    for split, loop in loops.items():
        check_metrics(split, loop, classes)
        check_samples(split, loop, classes, first_loop)
    if 'train' in loops:
        if isinstance(runner, Runner):  # mmengine's FlexibleRunner leaves it to its strategy.
            with building('optim_wrapper: '):
                runner.optim_wrapper = runner.build_optim_wrapper(runner.optim_wrapper)
        check_selection(runner)
        check_learning(runner, model)
        check_targets(model)
        check_padding(model)


def check_amp() -> None:
    """Refuse mixed precision where it cannot run."""
    if not torch.cuda.is_available():
        raise UserError('--amp needs a CUDA device, and none is available: leave it out')


def innermost(model: nn.Module) -> nn.Module:
    """Return the model in its wrappers."""
    while is_model_wrapper(model) or isinstance(model, BaseTTAModel):
        model = model.module
    return model


def check_samples(split: str, loop: BaseLoop, classes: int | None, first: BaseLoop) -> None:
    """Refuse no samples, other classes than those of the training, and a sample that breaks.

    So are classes that the head has no logit for, and logits that no sample trains.
    """
    data = loop.dataloader.dataset
    if not len(data):
        raise UserError(f'the {split} data have no samples')
    trained, here = class_names(first.dataloader.dataset), class_names(data)
    found = len(here)
    if found and classes and (found > classes or (split == 'train' and found < classes)):
        raise UserError(
            f'the {split} data have {found} classes, but the head of the model has {classes}. Is '
            f'the data set complete? If so, set num_classes of the head to {found}'
        )
    check_classes(trained, here, f'the training and the {split} set')
    if split != 'train':  # whose transforms are random, and may be a GPU's
        name_samples(data)
        with unchanged_randomness():
            try:
                data[0]
            except UserError as error:
                raise UserError(f'the {split} data: {error.reason}') from error


def check_metrics(split: str, loop: BaseLoop, classes: int | None) -> None:
    """Refuse metrics of one key, and those that count predictions of unseen classes as wrong."""
    metrics = loop.evaluator.metrics if split != 'train' else ()
    for metric in metrics:
        if type(metric).__name__ == 'Accuracy' and max(metric.topk) > (classes or max(metric.topk)):
            raise UserError(
                f'{split}_evaluator: Accuracy has topk={metric.topk}, but the head {classes} '
                'classes: set topk=(1,)'
            )
    measured = Counter(key for metric in metrics for key in keys_of(metric) or ())
    if twice := sorted(key for key, count in measured.items() if count > 1):
        raise UserError(
            f'{split}_evaluator measures {", ".join(twice)} twice: give one of the two metrics '
            "another prefix, such as dict(type='ECE', num_bins=25, prefix='ece25')"
        )
    for index in [metric.ood_index for metric in metrics if isinstance(metric, OODMetric)]:
        trained = index is not None and 0 <= index < (classes or 0)
        blind = [
            type(metric).__name__
            for metric in metrics
            if not isinstance(metric, OODMetric | ImageScoreMetric)
            and (index is None or getattr(metric, 'ignore_index', None) != index)
        ]
        if blind and not trained:
            raise UserError(
                f'{split}_evaluator: OODMetric treats some labels as unseen, but '
                f'{", ".join(blind)} would count all their predictions as wrong. Test these in a '
                'separate run'
            )


def check_selection(runner: Runner) -> None:
    """Refuse a checkpoint that is to be chosen by what is not measured, or by the worst."""
    if not runner.cfg.get('val_dataloader'):
        return
    found = {metric: keys_of(metric) for metric in runner.val_evaluator.metrics}
    known = set().union(*filter(None, found.values()))
    for hook in runner.hooks:
        if not isinstance(hook, CheckpointHook) or not hook.save_best:
            continue
        kept = [*zip(hook.key_indicators, hook.rules, strict=True)]
        kept += [(key, None) for key in [getattr(hook, 'accuracy', None)] if key]
        for key, rule in kept:
            unknown = key != 'auto' and key not in known
            if unknown and (None not in found.values() or nearest(key, known)):
                raise UserError(
                    f'default_hooks.checkpoint: val_evaluator does not measure {key!r}'
                    f'{did_you_mean(key, known)}'
                )
            if key in known and rule and better_rule(key) not in (None, rule):
                raise UserError(
                    f'save_best={key!r}: set rule={better_rule(key)!r}; rule={rule!r} would keep '
                    'the worst checkpoint'
                )


def keys_of(metric: BaseMetric) -> set[str] | None:
    """Return the keys that a metric measures, None where that is not known."""
    names = None
    if isinstance(metric, CalibrationMetric):
        ends = INTERVAL if metric.confidence_interval is not None else ()
        names = [f'{name}{end}' for name in metric.metrics for end in ('', *ends)]
    elif isinstance(metric, ForegroundIoU):
        names = [MIOU]
    elif type(metric).__name__ == 'Accuracy' and len(metric.thrs) == 1:
        names = [f'top{k}' for k in metric.topk]
    elif type(metric).__name__ == 'IoUMetric':
        names = [AACC]
        for name in metric.metrics:
            names += NAMES_BY_IOU_METRIC.get(name, ())
    prefix = f'{metric.prefix}/' if metric.prefix else ''
    return names and {f'{prefix}{name}' for name in names}


def check_learning(runner: Runner, model: nn.Module) -> None:
    """Refuse a loss, or an attached calibration, that would not learn."""
    learns = any(isinstance(hook, LearnFromValidationHook) for hook in runner.hooks)
    validates = runner.cfg.get('val_dataloader')
    for module in model.modules():
        name = type(module).__name__
        if is_calibrated(module):
            raise UserError(
                'the config has a calibration attached, which would not follow the training: '
                'train with the config that was calibrated, load this checkpoint with load_from, '
                'and calibrate again'
            )
        if isinstance(module, CALSLoss | AdaFocalLoss) and not (learns and validates):
            raise UserError(
                f'{name} learns from validations, but this training has none: set val_cfg, '
                'val_dataloader and val_evaluator, and leave out --no-validate'
                if learns
                else f'{name} learns nothing without its hook: add '
                "custom_hooks=[dict(type='LearnFromValidationHook')]"
            )


def check_targets(model: nn.Module) -> None:
    """Refuse losses that do not fit the targets of the training.

    Without this, a softmax trains on several labels, where it has no lower bound; a loss that needs
    one label for each image ends with its own error in the first step of Mixup.
    """
    for name, head in model.named_modules():
        if not takes_several_labels(head):
            continue
        wrong = [type(loss).__name__ for loss in head.modules() if _needs_one_class(loss)]
        if wrong:
            raise UserError(
                f'model.{name}: {type(head).__name__} takes several labels for each image, but '
                f'{wrong[0]} trains a softmax, of which one class is right. Set '
                "loss=dict(type='CrossEntropyLoss', use_sigmoid=True), or take a head for one "
                'label, such as LinearClsHead'
            )
    mixing = getattr(getattr(model, 'data_preprocessor', None), 'batch_augments', None)
    augments = [type(each).__name__ for each in getattr(mixing, 'augments', ()) if each is not None]
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


def _needs_one_class(loss: nn.Module) -> bool:
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
def building(what: str) -> Iterator[None]:
    """Raise what cannot be built as a UserError, with the names that may be meant."""
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings('ignore', message='Fail to import')
            yield
    except NOT_BUILT as error:
        raise UserError(f'{what}{reason_of(error)}') from error


def reason_of(error: Exception) -> str:
    """Return why a part of a config cannot be built, with the name that may be meant."""
    reason = str(error.args[0] if error.args else error) or type(error).__name__
    if 'need at least one array to concatenate' in reason:  # of mmengine's datasets
        return 'there are no samples'
    frames = [frame for frame, _ in walk_tb(error.__traceback__)]
    kinds = [f.f_locals['obj_cls'] for f in frames if inspect.isclass(f.f_locals.get('obj_cls'))]
    option = UNKNOWN_OPTION.search(reason)
    if option and kinds:
        kind, name = kinds[-1], kinds[-1].__name__
        return (
            f'{name} has no option {option[1]}'
            f'{did_you_mean(option[1], constructor_options(kind))} '
            '(if the _base_ has set it, add _delete_=True beside the new type; in a config with '
            'read_base, assign the whole dict: model.head.loss = dict(type=…))'
        )
    return UNKNOWN_TYPE.sub(lambda found: _no_such_type(*found.groups()), reason)


def _no_such_type(kind: str, name: str) -> str:
    roots = [each for each in vars(registry).values() if isinstance(each, registry.Registry)]
    roots = [root for root in roots if root.name == name]
    known = {kind for r in roots for each in (r, *r.children.values()) for kind in each.module_dict}
    near = suggestion(kind.split('.')[-1], known)
    return (
        f'there is no {name} of type={kind!r}{near or "."} A class of your own needs '
        "custom_imports=dict(imports=['ITS.MODULE']) in the config"
    )
