"""The hook whose errors name the file of a sample that cannot be loaded or trained on."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence

import torch
from mmengine.dataset import Compose
from mmengine.hooks import Hook
from mmengine.runner import Runner
from torch import nn

from mmcalib.errors import UserError
from mmcalib.losses import CalibrationLoss
from mmcalib.misfits import Row, add_row
from mmcalib.openmmlab.heads import classes_of_head
from mmcalib.openmmlab.samples import IGNORE_INDEX, check_mask
from mmcalib.tensors import check_labels

# The keys of the toolboxes' samples that name files.
FILE_KEYS = ('img_path', 'seg_map_path')
add_row(
    'class',
    Row(
        'classes of a file',
        'The model has {num_classes} classes and ignores {ignored}: check the file, or num_classes',
        door='file',
    ),
)


class BrokenSamples(Hook):
    """Hook whose errors while loading data name the file, as OpenCV's of an empty image do not.

    Labels that the model cannot be trained on are looked for at the same place: a loss names no
    file, and on a GPU fails some steps later. It prevents lost hours.
    """

    def before_train(self, runner: Runner) -> None:
        num_classes, ignored_labels = trainable_labels(runner.model)
        name_samples(runner.train_dataloader.dataset, num_classes, ignored_labels)

    def before_val(self, runner: Runner) -> None:
        name_samples(runner.val_dataloader.dataset)

    def before_test(self, runner: Runner) -> None:
        name_samples(runner.test_dataloader.dataset)


def trainable_labels(model: nn.Module) -> tuple[int | None, list[int]]:
    """Return the number of classes of a model, None if it has none, and the labels it ignores.

    mmseg's heads pass their ignored label to the loss. It replaces that of mmseg's own losses, such
    as DiceLoss, which would train on any other label as on the last class.
    """
    num_classes = classes_of_head(getattr(model, 'module', model))
    if num_classes:
        num_classes = max(num_classes, 2)  # A single logit tells two classes apart.
    modules = [module for module in model.modules() if hasattr(module, 'ignore_index')]
    heads = [module for module in modules if hasattr(module, 'loss_decode')]
    if heads:  # A few heads pass nothing, and leave it to the loss.
        losses = [module for module in modules if isinstance(module, CalibrationLoss)]
        modules = heads + losses
    ignored = {module.ignore_index for module in modules if isinstance(module.ignore_index, int)}
    return num_classes, sorted(ignored) or [IGNORE_INDEX]


def name_samples(
    dataset: object, num_classes: int | None = None, ignored: Collection[int] = ()
) -> None:
    """Make the pipelines of a dataset, and of those that it wraps, name what they cannot load.

    Args:
        dataset: Dataset with transforms of its own, or a wrapper such as ConcatDataset.
        num_classes: Number of classes that labels may have; None to check no labels.
        ignored: Other labels that are allowed.
    """
    for part in with_inner_datasets(dataset):
        # Pipelines of other classes may have methods that others call.
        if type(getattr(part, 'pipeline', None)) is Compose:
            part.pipeline = NamingPipeline(part.pipeline, num_classes, ignored)


def with_inner_datasets(dataset: object) -> Iterator[object]:
    """Yield a dataset and those that it wraps, as a ConcatDataset does."""
    yield dataset
    attributes = getattr(dataset, '__dict__', {})  # __getattr__ would find those of inner datasets.
    inner = [attributes.get('dataset'), attributes.get('_dataset')]
    for part in [*inner, *attributes.get('datasets', ())]:
        if part is not None:
            yield from with_inner_datasets(part)


class NamingPipeline(Compose):
    """A dataset's transforms, whose errors name the sample; see :func:`name_samples`.

    Raises:
        UserError: If one of them fails, or the sample has other labels.
    """

    def __init__(
        self, pipeline: Compose, num_classes: int | None = None, ignored: Collection[int] = ()
    ) -> None:
        super().__init__(pipeline.transforms)
        self.num_classes = num_classes
        self.ignored = torch.tensor([*ignored], dtype=torch.long, device='cpu')

    def __call__(self, data: dict) -> dict | None:
        files = sample_files(data)
        name = ', '.join(files.values()) or data.get('path') or f'sample {data.get("sample_idx")}'
        try:
            packed = self._transform(data)
        except Exception as error:
            problems = [file_problem(path) for path in files.values()]
            is_told = isinstance(error, UserError)
            reason = error.reason if is_told else f'{type(error).__name__}: {error}'
            reason = ', '.join(filter(None, problems)) or reason
            raise UserError(f'cannot load {name}: {reason}') from error
        if isinstance(packed, Mapping):
            label_file = files.get('seg_map_path', name)
            self._check_labels(packed.get('data_samples'), label_file)
            check_packed_size(packed, label_file)
        return packed

    def _transform(self, data: dict) -> dict | None:
        """Return a sample after all transforms; a crop takes an image and a mask of one size."""
        for transform in self.transforms:
            if 'Crop' in type(transform).__name__ and 'gt_seg_map' in data:
                check_mask_size('the mask', data['gt_seg_map'].shape, data['img'].shape[:2])
            data = transform(data)
            if data is None:
                return None
        return data

    def _check_labels(self, sample: object, name: str) -> None:
        """Raise a UserError for a mask in colours, or for labels of no class."""
        mask = getattr(sample, 'gt_sem_seg', None)
        if mask is not None:
            check_mask(mask.data, name)
        labels = getattr(sample, 'gt_label', None) if mask is None else mask.data
        if not self.num_classes or not isinstance(labels, torch.Tensor):
            return
        if labels.is_floating_point():
            return
        # Most masks have only few such labels, which are all that is left to look at.
        outside = labels[(labels < 0) | (labels >= self.num_classes)]
        wrong = outside[~torch.isin(outside, self.ignored)]
        ignored = ', '.join(map(str, self.ignored.tolist()))
        check_labels(
            wrong,
            self.num_classes,
            name=name,
            door='file',
            ignored=ignored,
        )


def check_packed_size(packed: Mapping, name: str) -> None:
    """Raise a UserError for a mask that has neither the size of its image nor that of the file's.

    It prevents lost hours, and wrong numbers: mmseg trains on such masks, and a metric fails.

    Args:
        packed: Packed sample.
        name: File of the mask.
    """
    sample = packed.get('data_samples')
    mask = getattr(sample, 'gt_sem_seg', None)
    inputs = packed.get('inputs')
    if mask is None or not isinstance(inputs, torch.Tensor):
        return
    size = tuple(inputs.shape[-2:])
    original_size = tuple(sample.metainfo.get('ori_shape', size)[:2])
    if tuple(mask.shape) not in (size, original_size):
        check_mask_size(f'the mask {name}', mask.shape, original_size)


def check_mask_size(name: str, size: Sequence[int], image_size: Sequence[int]) -> None:
    """Raise a UserError if a mask has another size than its image."""
    if tuple(size) != tuple(image_size):
        raise UserError(
            f'{name} has the size {tuple(size)}, and its image {tuple(image_size)}: give both '
            'files one size'
        )


def sample_files(data: Mapping) -> dict[str, str]:
    """Return the local files that a sample is read from, by their keys."""
    files = {}
    for key in FILE_KEYS:
        path = data.get(key)
        if isinstance(path, str) and '://' not in path:
            files[key] = path
    return files


def file_problem(path: str) -> str | None:
    """Return the reason why a file cannot be read; None if it is there and not empty."""
    if not os.path.isfile(path):
        return f'there is no file {path}'
    if not os.path.getsize(path):
        return f'{path} is empty (0 bytes)'
    return None
