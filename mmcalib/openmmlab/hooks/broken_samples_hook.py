"""Names the file of a sample that cannot be loaded, or not be trained on."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping

import torch
from mmengine.dataset import Compose
from mmengine.hooks import Hook
from mmengine.runner import Runner
from torch import nn

from mmcalib.errors import UserError
from mmcalib.losses import CalibrationLoss
from mmcalib.openmmlab.heads import classes_of_head
from mmcalib.openmmlab.samples import check_mask
from mmcalib.tensors import check_labels

# Where the toolboxes' samples say what is to be read.
FILES = ('img_path', 'seg_map_path')
IGNORED = 255  # by mmseg's heads and ours, unless told otherwise


class BrokenSamples(Hook):
    """Has errors while loading data name the file, as OpenCV's of an empty image does not.

    So do labels that the model cannot be trained on, which are looked for where data are loaded: a
    loss names no file, and on a GPU fails some steps later.
    """

    def before_train(self, runner: Runner) -> None:
        name_samples(runner.train_dataloader.dataset, *labels_known_to(runner.model))

    def before_val(self, runner: Runner) -> None:
        name_samples(runner.val_dataloader.dataset)

    def before_test(self, runner: Runner) -> None:
        name_samples(runner.test_dataloader.dataset)


def labels_known_to(model: nn.Module) -> tuple[int | None, list[int]]:
    """Return how many classes a model has, None if it has none, and the labels that it ignores.

    mmseg's heads pass their ignored label to the loss. It replaces that of mmseg's own losses, such
    as DiceLoss, which would train on any other label as on the last class.
    """
    classes = classes_of_head(getattr(model, 'module', model))
    modules = [module for module in model.modules() if hasattr(module, 'ignore_index')]
    heads = [module for module in modules if hasattr(module, 'loss_decode')]
    if heads:  # A few heads pass nothing, and leave it to the loss.
        modules = [*heads, *(module for module in modules if isinstance(module, CalibrationLoss))]
    labels = {module.ignore_index for module in modules if isinstance(module.ignore_index, int)}
    # A single logit tells two classes apart.
    return classes and max(classes, 2), sorted(labels) or [IGNORED]


def name_samples(
    dataset: object, classes: int | None = None, ignored: Collection[int] = ()
) -> None:
    """Have the pipelines of a dataset, and of those that it wraps, name what they cannot load.

    Args:
        dataset: With transforms of its own, or a wrapper such as ConcatDataset.
        classes: How many its labels may be of; None for any.
        ignored: Other labels that they may be.
    """
    # Pipelines of other classes may have methods that others call.
    if type(getattr(dataset, 'pipeline', None)) is Compose:
        dataset.pipeline = NamingPipeline(dataset.pipeline, classes, ignored)
    held = getattr(dataset, '__dict__', {})  # not what __getattr__ finds further in
    for part in [held.get('dataset'), held.get('_dataset'), *held.get('datasets', ())]:
        if part is not None:
            name_samples(part, classes, ignored)


class NamingPipeline(Compose):
    """A dataset's transforms, whose errors name the sample; see :func:`name_samples`.

    Raises:
        UserError: If one of them fails, or the sample has other labels.
    """

    def __init__(
        self, pipeline: Compose, classes: int | None = None, ignored: Collection[int] = ()
    ) -> None:
        super().__init__(pipeline.transforms)
        self.classes = classes
        self.ignored = torch.tensor([*ignored], dtype=torch.long, device='cpu')

    def __call__(self, data: dict) -> dict | None:
        files = sample_files(data)
        name = ', '.join(files.values()) or data.get('path') or f'sample {data.get("sample_idx")}'
        try:
            packed = super().__call__(data)
        except Exception as error:
            empty = [problem for problem in map(file_problem, files.values()) if problem]
            reason = ', '.join(empty) or f'{type(error).__name__}: {error}'
            raise UserError(f'cannot load {name}: {reason}') from error
        if isinstance(packed, Mapping):
            mask = getattr(packed.get('data_samples'), 'gt_sem_seg', None)
            if mask is not None:
                check_mask(mask.data, files.get('seg_map_path', name))
        if self.classes and isinstance(packed, Mapping):
            self._check_labels(packed.get('data_samples'), files.get('seg_map_path', name))
        return packed

    def _check_labels(self, sample: object, name: str) -> None:
        mask = getattr(sample, 'gt_sem_seg', None)
        labels = getattr(sample, 'gt_label', None) if mask is None else mask.data
        if not isinstance(labels, torch.Tensor) or labels.is_floating_point():
            return
        outside = labels[(labels < 0) | (labels >= self.classes)]  # few, or the rest takes long
        outside = outside[~torch.isin(outside, self.ignored)]
        ignored = ', '.join(map(str, self.ignored.tolist()))
        hint = f'The model has {self.classes} classes and ignores {ignored}: check the file, or '
        try:
            check_labels(outside, self.classes, name=name, hint=hint + 'num_classes')
        except ValueError as error:
            raise UserError(str(error)) from error


def sample_files(data: Mapping) -> dict[str, str]:
    """Return the local files that a sample is read from, by their keys."""
    files = {key: data.get(key) for key in FILES}
    return {k: path for k, path in files.items() if isinstance(path, str) and '://' not in path}


def file_problem(path: str) -> str | None:
    """Return the reason why a file cannot be read, None if a look finds none."""
    if not os.path.isfile(path):
        return f'there is no file {path}'
    return None if os.path.getsize(path) else f'{path} is empty (0 bytes)'
