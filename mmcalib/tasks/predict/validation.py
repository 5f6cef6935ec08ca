"""A labelled test of the same model: expected accuracies, and a threshold at a risk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor

from mmcalib.checks import UserError
from mmcalib.metrics.counts import predicted_in_narrow_bins
from mmcalib.metrics.expected_accuracy import ExpectedAccuracy
from mmcalib.metrics.risk_threshold import (
    ClassThreshold,
    RiskThreshold,
    class_thresholds,
    threshold_at_risk,
)
from mmcalib.metrics.statistics import CalibrationStatistics
from mmcalib.record import Record, differences, identity, paths_of
from mmcalib.samples.objects import RIGHT
from mmcalib.work_dir import RESULTS, STATISTICS, of_split

if TYPE_CHECKING:
    from sklearn.isotonic import IsotonicRegression

TEST_AGAIN = (
    'test again with tools/test.py CONFIG CHECKPOINT… --split val --work-dir DIR, with the same '
    'options for views, dropout and temperature'
)


@dataclass(frozen=True)
class Validation:
    """What a test with labels says of images without.

    Attributes:
        file: The statistics that it was read from.
        num_images: How many images there were.
        unlabelled: The share of their pixels without a label, the mean over images.
        accuracy: Accuracies to expect of other images.
        bound: The threshold for a risk; None if no risk was asked for.
        objects: Two isotonic regressions of objects on their expected IoU: of an IoU above 0.5, and
            of the IoU; None of a validation that counted no objects. Source: Zadrozny and Elkan,
            KDD 2002.
        class_thresholds: Those of each class for the risk; None if no risk was asked for, or the
            validation did not count classes.
    """

    file: Path
    num_images: int
    unlabelled: float
    accuracy: ExpectedAccuracy
    bound: RiskThreshold | None
    objects: tuple[IsotonicRegression, IsotonicRegression] | None
    class_thresholds: list[ClassThreshold] | None


def read_validation(
    path: str | Path,
    model: Mapping,
    classes: Sequence[str],
    *,
    risk: float | None = None,
    probability: float = 0.95,
) -> Validation:
    """Read what a test with labels has left in its work dir.

    Args:
        path: The work dir, of whose tests that of the validation split is taken if there is one; or
            the ``.npz`` file of one.
        model: The one that predicts now, as a record has it; it must be the one that was tested.
        classes: K names.
        risk: The share of the predictions that are kept which may be wrong.
        probability: That of the bound on the risk, and of the intervals of accuracies.

    Raises:
        UserError: If there is no such test, or it was of another model or pipeline, does not tell
            images apart, proves no threshold for the risk, or was a smoke run.
    """
    file = _statistics_of(Path(path), model)
    statistics = CalibrationStatistics.load(file)
    bins, counted = statistics.image_narrow_bins, statistics.image_class_bins
    if bins is None:
        raise UserError(
            f'{file} has no statistics for each image: its protocol, {statistics.protocol!r}, '
            f'leaves out pixels by their labels. {TEST_AGAIN}'
        )
    accuracy = ExpectedAccuracy(bins, coverage=probability)
    unlabelled = bins[:, 2].sum(dim=1) / predicted_in_narrow_bins(bins).sum(dim=1)
    bound = of_classes = None
    if risk is not None:
        bound = threshold_at_risk(bins, risk, probability=probability)
        if bound is None:
            raise UserError(
                f'no threshold is proven to keep at most {100 * risk:g} % wrong predictions (with '
                f'{100 * probability:g} % probability) by the {len(bins):,} images of {file}: '
                'allow a larger risk, or validate on more images'
            )
        if counted is not None:
            of_classes = class_thresholds(
                statistics.image_class, counted, classes, 1 - risk, probability=probability
            )
    objects = calibrated_objects(statistics.objects)
    unlabelled = unlabelled.mean().item()
    return Validation(file, len(bins), unlabelled, accuracy, bound, objects, of_classes)


def calibrated_objects(rows: Tensor | None) -> tuple | None:
    """Return the two regressions of ``(O, 6)`` objects of a validation."""
    from sklearn.isotonic import IsotonicRegression  # takes a second to import, and few need it

    rows = None if rows is None else rows[~rows[:, 5].isnan()]
    if rows is None or not len(rows):
        return None
    scores, ious = rows[:, 4:6].numpy().T
    return tuple(
        IsotonicRegression(out_of_bounds='clip').fit(scores, y) for y in (ious > RIGHT, ious)
    )


def _statistics_of(path: Path, model: Mapping) -> Path:
    """Return the file of statistics, or raise an error unless its record is of the model."""
    places = (path / of_split(STATISTICS, 'val'), path / STATISTICS)
    file = path if path.is_file() else next(filter(Path.is_file, places), None)
    if file is None:
        raise UserError(f'there is no {STATISTICS} of a test in {str(path)!r}: {TEST_AGAIN}')
    results = file.with_name(of_split(RESULTS, 'val' if file.stem.endswith('_val') else 'test'))
    try:
        record = Record.read(results)
    except (FileNotFoundError, ValueError) as error:
        raise UserError(
            f'{results}, which belongs to {file.name}: {error}. {TEST_AGAIN}'
        ) from error
    if record.limit:
        raise UserError(f'{file} is from a smoke run with --limit {record.limit}: {TEST_AGAIN}')
    problem = next(differences(identity(record.model), identity(model)), None)
    if problem:
        there, here = (', '.join(paths_of(each)) for each in (record.model, model))
        raise UserError(f'{file} is from {there}, not from {here}: it has {problem}. {TEST_AGAIN}')
    if record.evaluation.get('tta'):
        raise UserError(f'{file} was measured under test-time augmentation: {TEST_AGAIN}')
    return file
