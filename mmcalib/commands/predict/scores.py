"""Scores of predictions without labels: for images, their objects and a folder.

A test with labels says what to expect of them, and which threshold keeps to a risk.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from mmcalib.commands.predict.evidence import TEST_AGAIN
from mmcalib.errors import UserError
from mmcalib.metrics.expected_accuracy import ExpectedAccuracy
from mmcalib.metrics.log_bins import count_in_log_bins
from mmcalib.metrics.risk_threshold import (
    RiskThreshold,
    least_provable_risk,
    threshold_at_risk,
)
from mmcalib.metrics.statistics import CalibrationStatistics
from mmcalib.options import check_number
from mmcalib.predictions.objects import RIGHT_IOU, Objects

if TYPE_CHECKING:
    from sklearn.isotonic import IsotonicRegression

    from mmcalib.commands.predict.predictor import Prediction

THRESHOLD = 0.9
NOTHING = (math.nan, math.nan)


@dataclass(frozen=True)
class ObjectScores:
    """An object of a segmented image, see :mod:`~mmcalib.predictions.objects`.

    Attributes:
        object: Its number in the image, from 1 on.
        label: The class.
        name: Of the class.
        pixels: How many there are.
        share: Of the image, in [0, 1].
        confidence: The mean of their confidences.
        expected_iou: By the probabilities.
        found: How often such objects have an IoU above 0.5, by the validation; NaN without one that
            counted objects.
        calibrated_iou: Their mean IoU, likewise.
        box: First and last row, first and last column.
    """

    object: int
    label: int
    name: str
    pixels: int
    share: float
    confidence: float
    expected_iou: float
    found: float
    calibrated_iou: float
    box: tuple[int, int, int, int]

    @property
    def score(self) -> float:
        """How far to trust the object: `found` if that is known, else the expected IoU."""
        return self.expected_iou if math.isnan(self.found) else self.found


@dataclass(frozen=True)
class ImageScores:
    """Scores of a prediction without labels. All shares are in [0, 1].

    Attributes:
        image: The file.
        confidence: The probability of the predicted class, of a segmentor its mean over pixels.
        kept: Which share of the predictions is above the threshold: of a classifier, 0 or 1.
        label: The predicted class of a classifier, None of a segmentor.
        name: Of this class.
        objects: Of a segmentor.
        expected_accuracy: The mean calibrated confidence, see
            :class:`~mmcalib.metrics.expected_accuracy.ExpectedAccuracy`; NaN without a
            validation.
        accuracy_interval: Where a segmentor's accuracy on this image lies with the probability that
            was asked for; NaN of a classifier, whose one prediction is right or wrong.
        mutual_information: Of the predictions of a mean, in nats, the mean over pixels; NaN if it
            was not asked for.
        note: What became of the file while it was read, such as of grey pixels; else empty.
    """

    image: str
    confidence: float
    kept: float
    label: int | None = None
    name: str | None = None
    objects: tuple[ObjectScores, ...] = ()
    expected_accuracy: float = math.nan
    accuracy_interval: tuple[float, float] = NOTHING
    mutual_information: float = math.nan
    note: str = ''


@dataclass(frozen=True)
class FolderScores:
    """Scores of the predictions for several images, each image alike.

    Attributes:
        num_images: How many there are.
        confidence: The mean over images.
        threshold: Above which confidence predictions are kept.
        kept: The mean share that is.
        expected_accuracy: The mean over images, of pixels that get a label as the validation's did;
            NaN without a validation.
        accuracy_interval: Where the mean accuracy lies, likewise.
        bound: What the threshold was proven to keep to, None if no risk was asked for.
        validation_images: Of the validation, 0 without one.
        validation_unlabelled: Which share of its pixels has no label, 0 without one.
    """

    num_images: int
    confidence: float
    threshold: float
    kept: float
    expected_accuracy: float
    accuracy_interval: tuple[float, float]
    bound: RiskThreshold | None
    validation_images: int
    validation_unlabelled: float


class Scorer:
    """Scores predictions without labels, by a threshold and perhaps a test with labels.

    Args:
        classes: K names.
        threshold: Above which confidence predictions are kept; 0.9 if None, unless a risk sets it.
        validation: The statistics of a test with labels, of
            :func:`~mmcalib.commands.predict.evidence.statistics_of`; None for no expected
            accuracies.
        risk: The share of the predictions that are kept which may be wrong.
        probability: That of the bound on the risk, and of the intervals of accuracies.

    Attributes:
        num_images: How many images the validation has, 0 without one.
        unlabelled: The share of their pixels without a label, the mean over images.
        accuracy: Accuracies to expect of other images; None without a validation.
        objects: Two isotonic regressions of objects on their expected IoU: of an IoU above 0.5, and
            of the IoU; None if the validation counted no objects. Source: Zadrozny and Elkan, KDD
            2002.
        bound: The threshold for the risk; None without one.

    Raises:
        ValueError: If the threshold is outside [0, 1], or is to be two; if the validation does not
            tell images apart, or proves no threshold for the risk.
    """

    def __init__(
        self,
        classes: Sequence[str],
        *,
        threshold: float | None = None,
        validation: Path | None = None,
        risk: float | None = None,
        probability: float = 0.95,
    ) -> None:
        self.classes, self.validation = classes, validation
        self.num_images, self.unlabelled = 0, 0.0
        self.accuracy: ExpectedAccuracy | None = None
        self.objects: tuple[IsotonicRegression, IsotonicRegression] | None = None
        self.bound: RiskThreshold | None = None
        if validation:
            self._learn(CalibrationStatistics.load(validation), risk, probability)
        if self.bound and threshold is not None:
            raise UserError('a risk sets the threshold: give either a risk or a threshold')
        threshold = THRESHOLD if threshold is None else threshold
        threshold = self.bound.threshold if self.bound else threshold
        self.threshold = check_number('threshold', threshold, most=1)

    def _learn(
        self, statistics: CalibrationStatistics, risk: float | None, probability: float
    ) -> None:
        bins = statistics.image_narrow_bins
        if bins is None:
            raise UserError(
                f'{self.validation} has no statistics for each image: its protocol, '
                f'{statistics.protocol!r}, leaves out pixels by their labels. {TEST_AGAIN}'
            )
        self.num_images, self.accuracy = len(bins), ExpectedAccuracy(bins, coverage=probability)
        unlabelled = bins[:, 2].sum(dim=1) / count_in_log_bins(bins).sum(dim=1)
        self.unlabelled = unlabelled.mean().item()
        self.objects = _calibrated_objects(statistics.objects)
        if risk is None:
            return
        self.bound = threshold_at_risk(bins, risk, probability=probability)
        if self.bound is None:
            least = least_provable_risk(bins, risk, probability=probability)
            remedy = 'validate on more images'
            if least is not None:
                remedy = f'{100 * least:g} % could be promised (--risk {least:g}), or {remedy}'
            raise UserError(
                f'no threshold is proven to keep at most {100 * risk:g} % wrong predictions (with '
                f'{100 * probability:g} % probability) by the {len(bins):,} images of '
                f'{self.validation}: {remedy}'
            )

    @property
    def settings(self) -> dict:
        """What scores depend on besides the model."""
        file = self.validation
        return {
            'threshold': self.threshold,
            'validation': file and sha256(file.read_bytes()).hexdigest()[:16],
            'probability': self.accuracy and self.accuracy.coverage,
        }

    def image(self, image: Prediction, objects: Objects | None) -> ImageScores:
        """Return the scores of an image; `objects` are those of a segmentor."""
        accuracy = self.accuracy
        conf = torch.from_numpy(np.asarray(image.confidence))
        expected = accuracy.image_accuracy(conf) if accuracy else math.nan
        shared = dict(
            image=str(image.image),
            confidence=conf.double().mean().item(),
            kept=(conf > self.threshold).double().mean().item(),
            expected_accuracy=expected,
            note=image.note,
            **{key: float(a.mean(dtype=np.float64)) for key, a in image.disagreement.items()},
        )
        if objects is None:
            label = int(image.predicted)
            return ImageScores(**shared, label=label, name=self.classes[label])
        return ImageScores(
            **shared,
            objects=self._objects(objects, image.predicted.size),
            accuracy_interval=accuracy.image_interval(expected) if accuracy else NOTHING,
        )

    def folder(self, images: Sequence[Mapping]) -> FolderScores:
        """Return the scores of several images together, of which each has its own as a dict."""
        confidence, kept, expected = (
            float(np.mean([image[key] for image in images], dtype=float)) if images else math.nan
            for key in ('confidence', 'kept', 'expected_accuracy')
        )
        interval = NOTHING
        if self.accuracy and images:
            interval = self.accuracy.folder_interval(expected, len(images))
        means = confidence, self.threshold, kept, expected
        evidence = self.bound, self.num_images, self.unlabelled
        return FolderScores(len(images), *means, interval, *evidence)

    def _objects(self, found: Objects, count: int) -> tuple[ObjectScores, ...]:
        right = iou = np.full(len(found), math.nan)
        if len(found) and self.objects:
            right, iou = (curve.predict(found.expected_iou) for curve in self.objects)
        columns = found.label, found.pixels, found.confidence, found.expected_iou, right, iou
        rows = zip(*(column.tolist() for column in (*columns, found.box)), strict=True)
        return tuple(
            ObjectScores(n, k, self.classes[k], pixels, pixels / count, *rest, tuple(box))
            for n, (k, pixels, *rest, box) in enumerate(rows, 1)
        )


def _calibrated_objects(rows: Tensor | None) -> tuple | None:
    """Return the two regressions of ``(O, 6)`` objects of a validation."""
    from sklearn.isotonic import IsotonicRegression  # takes a second to import, and few need it

    rows = None if rows is None else rows[~rows[:, 5].isnan()]
    if rows is None or not len(rows):
        return None
    scores, ious = rows[:, 4:6].numpy().T
    return tuple(
        IsotonicRegression(out_of_bounds='clip').fit(scores, y) for y in (ious > RIGHT_IOU, ious)
    )
