"""A trained model on image files: the prediction for each, or the reason why there is none."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import cv2
import numpy as np
import torch
from mmengine.config import Config
from mmengine.dataset import Compose, pseudo_collate
from mmengine.registry import MODELS
from torch.utils.data import DataLoader, Dataset

from mmcalib.checks import UserError
from mmcalib.hooks.require_same_classes_hook import classes_of
from mmcalib.posthoc.full_precision import full_precision
from mmcalib.runs.constructor_arguments import quiet_imports
from mmcalib.runs.data_checks import NOT_BUILT, num_classes
from mmcalib.runs.tested_model import ENSEMBLE, describe_model
from mmcalib.runs.unlabelled_pipeline import unlabelled_steps
from mmcalib.samples.reading import background_of
from mmcalib.samples.unlabelled import UnlabelledPrediction, read_unlabelled
from mmcalib.samples.writing import disagreement_in
from mmcalib.tasks.predict.image_files import look_at
from mmcalib.tasks.predict.load_model import load_predicting_model

# What a model raises at an image that it does not take.
NOT_PREDICTED = (AssertionError, RuntimeError, ValueError)
# In errors of no single image: a broken device, and scores that no head with a softmax has.
OF_ALL_IMAGES = ('CUDA error', 'the softmax over all classes')
OUT_OF_MEMORY = ('out of memory', "can't allocate memory")


@dataclass(frozen=True)
class PredictedImage:
    """A model's prediction for an image file.

    Attributes:
        image: The file.
        prediction: Of all its pixels, or of the image.
        pixels: ``(H, W, 3)`` uint8, RGB, as the file was read.
        disagreement: How far the predictions of a mean disagree, of all its pixels or of the image,
            as ``mutual_information``; else empty.
        note: What became of the file while it was read, such as of 16-bit pixels; else empty.
    """

    image: Path
    prediction: UnlabelledPrediction
    pixels: np.ndarray
    disagreement: Mapping[str, np.ndarray] = field(default_factory=dict)
    note: str = ''


@dataclass(frozen=True)
class UnreadableImage:
    """A file without a prediction, and why."""

    image: Path
    reason: str


@dataclass(frozen=True)
class LoadedImage:
    """A file as the model takes it; `data` is of the toolbox's test pipeline."""

    image: Path
    data: dict
    pixels: np.ndarray
    note: str


class ImagePredictor:
    """Predicts image files by the test pipeline of a config, without the steps for labels.

    Args:
        cfg: As :func:`~mmcalib.runs.config.load_config` read it, of either toolbox, or as
            :func:`~mmcalib.runs.ensemble_config.average_predictions` made it of that.
        checkpoints: Its file, or that of each member; they must fill the model.
        device: Such as ``'cuda:1'``; a GPU if there is one.
        workers: Processes that read files.

    Attributes:
        classes: K names, as the first checkpoint has them; numbers if it names none, or not as
            many.
        palette: Their RGB colours, None if unknown.
        checkpoints: The files.
        toolbox: ``'mmseg'`` or ``'mmpretrain'``.
        description: What decides on the predictions, see
            :func:`~mmcalib.runs.tested_model.describe_model`.
        steps: The transforms that images go through.
        failed: Whether the model has failed at an image that could be read.

    Raises:
        UserError: If a checkpoint is of another model.
        ValueError: If the model cannot be built, or the pipeline loads no files.
    """

    def __init__(
        self,
        cfg: Config,
        checkpoints: Sequence[str],
        *,
        device: str | None = None,
        workers: int = 0,
    ) -> None:
        loader = cfg.get('test_dataloader') or cfg.get('val_dataloader') or {}
        self.batch_size = loader.get('batch_size') or 1
        self.workers = workers
        self.toolbox = cfg.get('default_scope')
        self.steps = unlabelled_steps(loader.get('dataset'))
        # Before the model is built, which adds to its config.
        self.description = (
            cfg[ENSEMBLE]['model']
            if ENSEMBLE in cfg
            else describe_model([cfg], checkpoints, pipelines=[self.steps])
        )
        self.device = device or ('cuda' if torch.cuda.is_available() else 'cpu')
        with quiet_imports(), MODELS.switch_scope_and_registry(cfg.get('default_scope')):
            try:
                self._read, self._transform = Compose(self.steps[:1]), Compose(self.steps[1:])
                model, metas = load_predicting_model(cfg, checkpoints)
            except UserError:
                raise
            except NOT_BUILT as error:
                raise ValueError(f'the model or its pipeline cannot be built: {error}') from error
        self.model = model.to(self.device)
        self.checkpoints = list(checkpoints)
        dataset = metas[0].get('dataset_meta') or {}
        self.classes, self.palette = classes_of(dataset), dataset.get('palette')
        count = num_classes(self.model)
        if len(self.classes) != count and count is not None:
            self.classes, self.palette = [str(k) for k in range(count)], None

    def __call__(self, images: Sequence[Path]) -> Iterator[PredictedImage | UnreadableImage]:
        """Yield each file's prediction, in their order; images of one size share a batch.

        An image that the model fails at, such as one of a size that it does not take, is as one
        that cannot be read.

        Raises:
            RuntimeError: If the device is broken.
            ValueError: If the model's scores are not the softmax over all classes.
        """
        loader = DataLoader(
            _Files(images, self.load),
            batch_size=None,
            num_workers=self.workers,
            collate_fn=_unchanged,
        )
        self.failed = False
        batch: list[LoadedImage] = []
        for item in loader:
            ends = isinstance(item, UnreadableImage) or (batch and _size(item) != _size(batch[0]))
            if batch and (ends or len(batch) == self.batch_size):
                yield from self._predict(batch)
                batch = []
            if isinstance(item, UnreadableImage):
                yield item
            else:
                batch.append(item)
        if batch:
            yield from self._predict(batch)

    def load(self, image: str | Path) -> LoadedImage | UnreadableImage:
        """Read a file and bring it to the form that the model takes."""
        image = Path(image)
        try:
            reason, note = look_at(image)
            if reason:
                return UnreadableImage(image, reason)
            results = self._read(
                dict(img_path=str(image), sample_idx=0, seg_fields=[], reduce_zero_label=False)
            )
            pixels = as_rgb(results['img'])
            return LoadedImage(image, self._transform(results), pixels, note)
        except Exception as error:  # of whatever a decoder or a transform does not take
            return UnreadableImage(image, f'{type(error).__name__}: {error}')

    def test_step(self, data: dict) -> Sequence:
        """Return the model's data samples of a batch."""
        return self.model.test_step(data)

    def _predict(self, batch: list[LoadedImage]) -> Iterator[PredictedImage | UnreadableImage]:
        data = pseudo_collate(
            [{key: item.data[key] for key in ('inputs', 'data_samples')} for item in batch]
        )
        try:
            with torch.no_grad(), full_precision():
                samples = [sample.to_dict() for sample in self.test_step(data)]
        except NOT_PREDICTED as error:
            if len(batch) > 1 and not _of_all_images(error):
                for item in batch:
                    yield from self._predict([item])
            else:
                yield self._failure(batch[0], error)
            return
        for item, sample in zip(batch, samples, strict=True):
            try:
                found = read_unlabelled(
                    sample, name=str(item.image), background=background_of(self.classes)
                )
            except ValueError as error:
                yield self._failure(item, error)
                continue
            disagreement = disagreement_in(sample)
            disagreement.pop('predictions', None)
            yield PredictedImage(item.image, found, item.pixels, disagreement, item.note)

    def _failure(self, item: LoadedImage, error: Exception) -> UnreadableImage:
        if _of_all_images(error):
            raise error
        self.failed = True
        if any(text in str(error) for text in OUT_OF_MEMORY):
            height, width = item.pixels.shape[:2]
            size = f'{width} x {height} pixels do not fit into memory'
            return UnreadableImage(item.image, f'{size} ({self.device})')
        kind = '' if isinstance(error, ValueError) else f'{type(error).__name__}: '
        return UnreadableImage(item.image, f'{kind}{error}')


def as_rgb(image: np.ndarray) -> np.ndarray:
    """Return what a loader read, BGR or grey, as ``(H, W, 3)`` uint8 RGB."""
    image = np.asarray(image)
    if image.dtype != np.uint8:
        low, high = float(image.min()), float(image.max())
        image = ((image - low) * (255 / max(high - low, 1e-12))).astype(np.uint8)
    if image.ndim == 2 or image.shape[2] < 3:
        return np.repeat(image.reshape(*image.shape[:2], -1)[..., :1], 3, axis=2)
    return cv2.cvtColor(np.ascontiguousarray(image[..., :3]), cv2.COLOR_BGR2RGB)


class _Files(Dataset):
    def __init__(self, images: Sequence[Path], load) -> None:
        self.images, self.load = images, load

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> LoadedImage | UnreadableImage:
        return self.load(self.images[index])


def _of_all_images(error: Exception) -> bool:
    return any(text in str(error) for text in OF_ALL_IMAGES)


def _unchanged(item: object) -> object:
    return item


def _size(item: LoadedImage) -> tuple[int, ...]:
    inputs = item.data['inputs']
    views = inputs if isinstance(inputs, (list, tuple)) else [inputs]
    return tuple(extent for view in views for extent in view.shape)
