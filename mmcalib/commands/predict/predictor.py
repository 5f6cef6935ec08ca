"""A trained model on image files: the prediction for each, or the reason why there is none."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, islice
from pathlib import Path

import numpy as np
import torch
from mmengine.config import Config
from mmengine.dataset import Compose, pseudo_collate
from mmengine.registry import MODELS
from torch.utils.data import DataLoader

from mmcalib.commands.predict.image_files import GREY, look_at
from mmcalib.commands.predict.scores import ImageScores, Scorer
from mmcalib.errors import UserError
from mmcalib.openmmlab.heads import classes_of_head, has_several_labels
from mmcalib.openmmlab.sample_writing import disagreement_in
from mmcalib.openmmlab.samples import background_index, read_samples
from mmcalib.predictions.full_precision import full_precision
from mmcalib.predictions.objects import find_map_objects, map_confidence
from mmcalib.predictions.progress import progress
from mmcalib.runs.checkpoint import Checkpoint
from mmcalib.runs.checks import building, innermost
from mmcalib.runs.config_tree import find_pipelines, type_name, without_labels
from mmcalib.runs.weights import build_model
from mmcalib.visualization.pixels import as_rgb

LOADER_HINT = (
    'give it one that starts with LoadImageFromFile, in a config with this one as _base_; '
    'docs/howto/predict.md has one for the digits'
)
# What a model raises at an image that it does not take.
NOT_PREDICTED = (AssertionError, RuntimeError, ValueError)


@dataclass
class Prediction:
    """An image file and its prediction, or the reason why there is none.

    Attributes:
        image: The file.
        reason: Why there is no prediction, else empty; then the other attributes are empty too.
        note: What became of the file while it was read, such as of grey pixels; else empty.
        scores: Of the prediction.
        predicted: ``(H, W)`` classes of the pixels; of a classifier, one.
        confidence: Their probabilities, float32, of the same shape.
        probabilities: ``(K,)`` of all classes of a classifier, None of a segmentor.
        disagreement: How far the predictions of a mean disagree, of all its pixels or of the image,
            as ``mutual_information`` in nats; else empty.
        objects: ``(H, W)`` of a segmentor, the number of the object that each pixel is of, as in
            its scores, 0 for none; None of a classifier.
        pixels: ``(H, W, 3)`` uint8, RGB, as the file was read; not kept by :func:`mmcalib.predict`.
    """

    image: Path
    reason: str = ''
    note: str = ''
    scores: ImageScores | None = None
    predicted: np.ndarray | None = None
    confidence: np.ndarray | None = None
    probabilities: np.ndarray | None = None
    disagreement: Mapping[str, np.ndarray] = field(default_factory=dict)
    objects: np.ndarray | None = None
    pixels: np.ndarray | None = None


class Predictor:
    """Predicts image files by the test pipeline of a config, without the steps for labels.

    Args:
        cfg: As :func:`~mmcalib.runs.config.load_config` read it, of either toolbox, or as
            :func:`~mmcalib.runs.model.prepare_model` made it of that.
        checkpoints: Of each member; they must fill the model.
        device: Such as ``'cuda:1'``; a GPU if there is one.
        workers: Processes that read files.

    Attributes:
        classes: K names, as the first checkpoint has them; numbers if it names none, or not as
            many.
        palette: Their RGB colours, None if unknown.

    Raises:
        UserError: If a checkpoint is of another model, the model cannot be built, or the pipeline
            loads no files.
    """

    def __init__(
        self,
        cfg: Config,
        checkpoints: Sequence[Checkpoint],
        *,
        device: str | None = None,
        workers: int,
    ) -> None:
        loader = cfg.get('test_dataloader') or cfg.get('val_dataloader') or {}
        self.batch_size, self.workers = loader.get('batch_size') or 1, workers
        steps = unlabelled_steps(loader.get('dataset'))
        with (
            building('the model or its pipeline cannot be built: '),
            MODELS.switch_scope_and_registry(cfg.get('default_scope')),
        ):
            self._read, self._transform = Compose(steps[:1]), Compose(steps[1:])
            model = build_model(cfg, checkpoints)
            self.model = model.to(device or ('cuda' if torch.cuda.is_available() else 'cpu'))
        if has_several_labels(model):
            raise UserError('the head predicts each class by a sigmoid, and only a softmax is read')
        count = classes_of_head(innermost(model))
        self.classes = checkpoints[0].classes
        self.palette = checkpoints[0].dataset_meta.get('palette')
        if count not in (None, len(self.classes)):
            self.classes, self.palette = [str(k) for k in range(count)], None

    def __call__(
        self, images: Sequence[Path], scorer: Scorer, *, show_progress: bool = False
    ) -> Iterator[Prediction]:
        """Yield each file's prediction, in their order; images of one size share a batch."""
        options = dict(batch_size=None, num_workers=self.workers, collate_fn=self._load)
        loaded = DataLoader(images, **options)
        if show_progress:
            loaded = progress(loaded, 'Predicting')
        for size, group in groupby(loaded, key=lambda item: _size(item[1])):
            while batch := list(islice(group, self.batch_size)):
                yield from self._predict(batch, scorer) if size else (found for found, _ in batch)

    def _load(self, image: Path) -> tuple[Prediction, dict]:
        """Read a file; return it with what the model takes, nothing of one that is unreadable."""
        reason, note = look_at(image)
        if not reason:
            results = dict(img_path=str(image), sample_idx=0, seg_fields=[])
            try:
                results = self._read(results | dict(reduce_zero_label=False))
                pixels = as_rgb(results['img'])
                if results['img'].ndim == 2 or results['img'].shape[2] == 1:
                    note = note.replace(GREY, '').strip('; ')  # read as what it is
                return Prediction(image, note=note, pixels=pixels), self._transform(results)
            except Exception as error:  # of whatever a decoder or a transform does not take
                reason = f'{type(error).__name__}: {error}'
        return Prediction(image, reason), {}

    def _predict(
        self, batch: list[tuple[Prediction, dict]], scorer: Scorer
    ) -> Iterator[Prediction]:
        """Yield the predictions of a batch; where that fails, of each image alone."""
        background = background_index(self.classes)
        data = [{key: item[key] for key in ('inputs', 'data_samples')} for _, item in batch]
        try:
            with torch.no_grad(), full_precision():
                samples = self.model.test_step(pseudo_collate(data))
            samples = [sample.to_dict() for sample in samples]
            results = []
            for sample, (image, _) in zip(samples, batch, strict=True):
                (predictions,) = read_samples([sample], [str(image.image)], labelled=False)
                objects = None
                if predictions.are_maps:
                    objects = find_map_objects(predictions, background=background)
                results.append((predictions, objects))
        except NOT_PREDICTED as error:
            if len(batch) == 1:
                kind = '' if isinstance(error, ValueError) else f'{type(error).__name__}: '
                yield Prediction(batch[0][0].image, f'{kind}{error}')
            for item in batch if len(batch) > 1 else ():
                yield from self._predict([item], scorer)
            return
        for sample, (predictions, objects), (image, _) in zip(samples, results, batch, strict=True):
            image.disagreement = disagreement_in(sample)
            image.disagreement.pop('predictions', None)
            image.predicted = predictions.predicted[0].cpu().numpy()
            if objects is not None:
                image.confidence = map_confidence(predictions).cpu().numpy()
                image.objects = objects.number + 1
            else:
                probs = predictions.probs[0].float()
                image.confidence = probs.amax().numpy()
                image.probabilities = probs.numpy()
            image.scores = scorer.image(image, objects)
            yield image


def unlabelled_steps(dataset: object) -> list[Mapping]:
    """Return the transforms of a dataset's config that an image without labels goes through.

    Raises:
        UserError: If the first does not load an image file.
    """
    holders = find_pipelines(dataset)
    pipeline = without_labels(holders[0]['pipeline']) if holders else []
    first = type_name(pipeline[0]['type']) if pipeline else 'nothing'
    if not first.startswith('Load') or not first.endswith('FromFile'):
        raise UserError(
            f"the config's test pipeline starts with {first}, so it reads no image files: "
            f'{LOADER_HINT}'
        )
    return pipeline


def _size(data: Mapping) -> tuple[int, ...]:
    inputs = data.get('inputs', ())
    views = inputs if isinstance(inputs, (list, tuple)) else [inputs]
    return tuple(extent for view in views for extent in view.shape)
