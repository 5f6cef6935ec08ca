"""Predictions for images without labels, with their confidence and expected accuracy."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from mmengine.config import Config

from mmcalib.checks import check_integer, check_number
from mmcalib.cli.members import split_members
from mmcalib.posthoc.draw import progress
from mmcalib.runs.checkpoint_choice import check_checkpoint
from mmcalib.runs.config import load_config
from mmcalib.runs.ensemble_config import average_predictions, load_member_configs
from mmcalib.runs.unlabelled_pipeline import unlabelled_steps
from mmcalib.tasks.predict.image_files import find_image_files
from mmcalib.tasks.predict.image_predictor import ImagePredictor, PredictedImage, UnreadableImage
from mmcalib.tasks.predict.prediction_scores import FolderScores, ImageScores, Scorer
from mmcalib.tasks.predict.validation_results import read_validation_results


@dataclass(frozen=True)
class PredictionOptions:
    """Options for predicting images and for scoring the predictions.

    Attributes:
        tta: Whether to predict the mean over views of each image, see
            :func:`~mmcalib.runs.test_time_augmentation.add_views`.
        tta_scales: Mirror images at these scales, in place of the config's own views.
        mc_dropout: Over how many passes with random dropout to predict the mean; 0 for none.
        dropout_seed: Seed of the dropout.
        temperature: The file that a calibration of this mean left.
        disagreement: Whether to tell how far the predictions of the mean disagree.
        one_at_a_time: Whether members wait in the memory of the CPU for their turn.
        validation: The work dir of a test with labels of the same model or mean, for expected
            accuracies.
        risk: What share of what the threshold keeps may be wrong, which sets the threshold; needs a
            validation.
        probability: Of the bound on the risk, and of the intervals.
        threshold: Of the share that is kept, 0.9 if neither this nor a risk is given.
        device: A GPU if there is one.
        workers: Processes that read files.
        cfg_options: Dotted keys and the values that replace those of the config.

    Raises:
        TypeError: If `workers` is no integer, or `probability` no number.
        ValueError: For a risk without a validation, a negative number of workers, a probability
            that is not between 0 and 1, or a device that is not there.
    """

    tta: bool = False
    tta_scales: Sequence[float] | None = None
    mc_dropout: int = 0
    dropout_seed: int = 0
    temperature: str | os.PathLike | None = None
    disagreement: bool = False
    one_at_a_time: bool = False
    validation: str | os.PathLike | None = None
    risk: float | None = None
    probability: float = 0.95
    threshold: float | None = None
    device: str | None = None
    workers: int = 0
    cfg_options: dict | None = None

    def __post_init__(self) -> None:
        if self.risk is not None and self.validation is None:
            raise ValueError(
                'a risk requires a validation: give the work dir of a test with labels'
            )
        check_integer('workers', self.workers, least=0)
        if not 0 < check_number('probability', self.probability) < 1:
            raise ValueError(
                f'probability must be above 0 and below 1, such as 0.95, got {self.probability!r}'
            )
        if self.device is not None:
            _check_device(self.device)

    @property
    def asks_for_views(self) -> bool:
        """Whether several views of each image are averaged."""
        return self.tta or self.tta_scales is not None

    @property
    def asks_for_ensemble(self) -> bool:
        """Whether the model is an ensemble, even of one checkpoint."""
        return bool(self.asks_for_views or self.mc_dropout or self.temperature or self.disagreement)


@dataclass(frozen=True)
class ImagePrediction:
    """The prediction of an image and its scores.

    Attributes:
        scores: See :class:`ImageScores`.
        predicted: ``(H, W)`` classes of the pixels; of a classifier, one.
        confidence: Their probabilities, float32, of the same shape.
        probabilities: ``(K,)`` of all classes of a classifier, None of a segmentor.
        disagreement: Of the predictions of a mean, see
            :class:`~mmcalib.tasks.predict.image_predictor.PredictedImage`.
        pixels: ``(H, W, 3)`` uint8, RGB, as the file was read; None if not asked for.
        objects: ``(H, W)`` of a segmentor, the number of the object that each pixel is of, as in
            its scores, 0 for none; None of a classifier.
    """

    scores: ImageScores
    predicted: np.ndarray
    confidence: np.ndarray
    probabilities: np.ndarray | None = None
    disagreement: Mapping[str, np.ndarray] = field(default_factory=dict)
    pixels: np.ndarray | None = None
    objects: np.ndarray | None = None


@dataclass(frozen=True)
class Predictions:
    """The result of :func:`predict`.

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
    config: str | os.PathLike,
    checkpoint: str | os.PathLike | Sequence[str | os.PathLike],
    images: str | os.PathLike | Sequence[str | os.PathLike],
    *,
    show_progress: bool = False,
    **options,
) -> Predictions:
    """Predict image files with their confidences, and what to expect of them.

    All arrays stay in memory; ``tools/predict.py`` writes them to files, one image after the other.

    Args:
        config: Config file, of mmcalib, mmpretrain or mmseg.
        checkpoint: Its checkpoint; or several, of which some may have a config of their own as
            ``CONFIG.py:CHECKPOINT``, for the mean of their probabilities.
        images: Files, folders, patterns or lists, as
            :func:`~mmcalib.tasks.predict.image_files.find_image_files` takes them.
        show_progress: Whether to show a bar on stderr.
        options: The attributes of :class:`PredictionOptions`.

    Raises:
        FileNotFoundError: If the config, the checkpoint, an image or a validation is not there.
        TypeError: For an option that there is not.
        ValueError: For what does not fit together; if the model can predict none of the images.
    """
    predictor, scorer, files = prepare_prediction(
        config, checkpoint, images, PredictionOptions(**options)
    )
    found, unreadable = [], []
    for item in predicted(predictor, files, show_progress=show_progress):
        if isinstance(item, UnreadableImage):
            unreadable.append(item)
        else:
            found.append(image_prediction(item, scorer.image(item)))
    if predictor.failed and not found:
        raise none_predicted(unreadable)
    scores = scorer.folder([image.scores for image in found])
    return Predictions(found, unreadable, scores, predictor.classes)


def none_predicted(unreadable: Sequence[UnreadableImage]) -> ValueError:
    """Return an error that says why no image has been predicted, by the first."""
    first, count = unreadable[0], len(unreadable)
    return ValueError(f'none of the {count} files can be predicted; {first.image}: {first.reason}')


def prepare_prediction(
    config: str | os.PathLike,
    checkpoint: str | os.PathLike | Sequence[str | os.PathLike],
    images: str | os.PathLike | Sequence[str | os.PathLike],
    options: PredictionOptions,
) -> tuple[ImagePredictor, Scorer, list[Path]]:
    """Return model, scorer and files, or raise the errors of :func:`predict`, before the first."""
    files = find_image_files(_paths(images))
    members = split_members(os.fspath(config), _paths(checkpoint))
    for _, path in members:
        check_checkpoint(path)
    cfg = _load(members, options)
    predictor = ImagePredictor(
        cfg, [path for _, path in members], device=options.device, workers=options.workers
    )
    evidence = None
    if options.validation is not None:
        evidence = read_validation_results(
            options.validation, predictor, risk=options.risk, probability=options.probability
        )
    scorer = Scorer(predictor.classes, threshold=options.threshold, validation=evidence)
    return predictor, scorer, files


def _paths(named: str | os.PathLike | Sequence[str | os.PathLike]) -> list[str]:
    """Return paths as texts, of one or of several."""
    return [os.fspath(p) for p in ([named] if isinstance(named, (str, os.PathLike)) else named)]


def _check_device(device: str) -> None:
    """Raise a ValueError if nothing can be put on a device."""
    try:
        torch.empty(0, device=device)
    except (AssertionError, RuntimeError) as error:  # the first of a PyTorch without CUDA
        reason = str(error).partition('\n')[0]
        raise ValueError(f'device {device!r} is not available: {reason}') from error


def _load(members: Sequence[tuple[str, str]], options: PredictionOptions) -> Config:
    """Return the config of a model, or of a mean."""

    def load(path: str) -> Config:
        return load_config(path, options.cfg_options)

    cfg = load(members[0][0])
    if len(members) > 1 or options.asks_for_ensemble:
        split = 'test' if cfg.get('test_dataloader') else 'val'
        unlabelled_steps((cfg.get(f'{split}_dataloader') or {}).get('dataset'))
        average_predictions(
            cfg,
            [path for _, path in members],
            member_configs=load_member_configs(cfg, members, load),
            splits=[split],
            tta=options.asks_for_views,
            scales=options.tta_scales,
            mc_dropout=options.mc_dropout,
            seed=options.dropout_seed,
            temperature=options.temperature and os.fspath(options.temperature),
            disagreement=options.disagreement,
            one_at_a_time=options.one_at_a_time,
        )
    return cfg


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
        disagreement=found.disagreement,
        pixels=found.pixels if pixels else None,
        objects=None if prediction.objects is None else prediction.objects.number + 1,
    )
