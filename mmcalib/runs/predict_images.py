"""Predictions of images without labels: how sure, and how often right one may expect them to be."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mmcalib.argument_checks import check_integer
from mmcalib.runs.image_files import find_image_files
from mmcalib.runs.image_predictor import ImagePredictor, PredictedImage, UnreadableImage
from mmcalib.runs.load_config import load_config
from mmcalib.runs.model_logits import progress
from mmcalib.runs.prediction_scores import FolderScores, ImageScores, Scorer
from mmcalib.runs.validation_evidence import read_validation


@dataclass(frozen=True)
class PredictionOptions:
    """How images are predicted, and what is said of their predictions.

    Attributes:
        validation: The work dir of a test with labels of the same checkpoint, for expected
            accuracies.
        risk: What share of what the threshold keeps may be wrong, which sets the threshold; needs a
            validation.
        probability: Of the bound on the risk, and of the intervals.
        threshold: Of the share that is kept, 0.9 if neither this nor a risk is given.
        device: A GPU if there is one.
        workers: Processes that read files.
        cfg_options: Dotted keys and the values that replace those of the config.

    Raises:
        TypeError: If `workers` is no integer.
        ValueError: For a risk without a validation, or a negative number of workers.
    """

    validation: str | Path | None = None
    risk: float | None = None
    probability: float = 0.95
    threshold: float | None = None
    device: str | None = None
    workers: int = 0
    cfg_options: dict | None = None

    def __post_init__(self) -> None:
        if self.risk is not None and self.validation is None:
            raise ValueError(
                'a risk needs the work dir of a validation, whose labels it is proven by'
            )
        check_integer('workers', self.workers, least=0)


@dataclass(frozen=True)
class ImagePrediction:
    """The prediction of an image and its scores.

    Attributes:
        scores: See :class:`ImageScores`.
        predicted: ``(H, W)`` classes of the pixels; of a classifier, one.
        confidence: Their probabilities, float32, of the same shape.
        probabilities: ``(K,)`` of all classes of a classifier, None of a segmentor.
        pixels: ``(H, W, 3)`` uint8, RGB, as the file was read; None if not asked for.
    """

    scores: ImageScores
    predicted: np.ndarray
    confidence: np.ndarray
    probabilities: np.ndarray | None = None
    pixels: np.ndarray | None = None


@dataclass(frozen=True)
class Predictions:
    """What :func:`predict` returns.

    Attributes:
        images: In the order in which they were named.
        unreadable: The files without a prediction, each with its reason.
        scores: Of all images together.
        classes: K names.
    """

    images: list[ImagePrediction]
    unreadable: list[UnreadableImage]
    scores: FolderScores
    classes: list[str]


def predict(
    config: str,
    checkpoint: str,
    images: str | Path | Sequence[str | Path],
    *,
    show_progress: bool = False,
    **options,
) -> Predictions:
    """Predict image files with their confidences, and what to expect of them.

    All arrays stay in memory; ``tools/predict.py`` writes them to files, one image after the other.

    Args:
        config: Config file, of mmcalib, mmpretrain or mmseg.
        checkpoint: Its checkpoint.
        images: Files, folders, patterns or lists, as
            :func:`~mmcalib.runs.image_files.find_image_files` takes them.
        show_progress: Whether to show a bar on stderr.
        options: The attributes of :class:`PredictionOptions`.

    Raises:
        FileNotFoundError: If the config, the checkpoint, an image or a validation is not there.
        TypeError: For an option that there is not.
        ValueError: For what does not fit together.
    """
    images = [images] if isinstance(images, (str, Path)) else images
    predictor, scorer, files = prepare_prediction(
        config, checkpoint, images, PredictionOptions(**options)
    )
    found, unreadable = [], []
    for item in predicted(predictor, files, show_progress=show_progress):
        if isinstance(item, UnreadableImage):
            unreadable.append(item)
        else:
            found.append(image_prediction(item, scorer.image(item)))
    scores = scorer.folder([image.scores for image in found])
    return Predictions(found, unreadable, scores, predictor.classes)


def prepare_prediction(
    config: str, checkpoint: str, images: Sequence[str | Path], options: PredictionOptions
) -> tuple[ImagePredictor, Scorer, list[Path]]:
    """Return model, scorer and files, or raise the errors of :func:`predict`, before the first."""
    files = find_image_files(images)
    cfg = load_config(config, options.cfg_options)
    predictor = ImagePredictor(cfg, checkpoint, device=options.device, workers=options.workers)
    evidence = None
    if options.validation is not None:
        evidence = read_validation(
            options.validation,
            checkpoint,
            predictor.meta,
            predictor.steps,
            risk=options.risk,
            probability=options.probability,
        )
    scorer = Scorer(predictor.classes, threshold=options.threshold, validation=evidence)
    return predictor, scorer, files


def predicted(
    predictor: ImagePredictor, files: Sequence[Path], *, show_progress: bool
) -> Iterator[PredictedImage | UnreadableImage]:
    """Yield the prediction of each file."""
    found = predictor(files)
    return progress(found, 'Predicting', total=len(files)) if show_progress else found


def image_prediction(
    found: PredictedImage, scores: ImageScores, *, pixels: bool = False
) -> ImagePrediction:
    """Return a prediction as arrays."""
    prediction = found.prediction
    return ImagePrediction(
        scores=scores,
        predicted=prediction.predicted.numpy(),
        confidence=prediction.conf.numpy(),
        probabilities=None if prediction.probs is None else prediction.probs.numpy(),
        pixels=found.pixels if pixels else None,
    )
