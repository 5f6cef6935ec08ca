"""Results of a validation of the same model, for expected accuracies and a threshold at a risk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor

from mmcalib.metrics.class_thresholds import ClassThreshold, class_thresholds
from mmcalib.metrics.expected_accuracy import ExpectedAccuracy
from mmcalib.metrics.image_bins import predicted_in_narrow_bins
from mmcalib.metrics.risk_threshold import RiskThreshold, threshold_at_risk
from mmcalib.metrics.statistics import CalibrationStatistics
from mmcalib.record import paths_of, read_record
from mmcalib.runs.checkpoint_io import file_digest
from mmcalib.runs.tested_model import difference_of_models
from mmcalib.samples.objects import RIGHT
from mmcalib.tasks.predict.image_predictor import ImagePredictor
from mmcalib.work_dir import RESULTS, STATISTICS, of_split

if TYPE_CHECKING:
    from sklearn.isotonic import IsotonicRegression

TEST_AGAIN = (
    'test again with tools/test.py CONFIG CHECKPOINT… --split val --work-dir DIR, with the same '
    'options for views, dropout and temperature'
)


@dataclass(frozen=True)
class ValidationResults:
    """Results of a validation with labels, as they hold for images without.

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
    bound: RiskThreshold | None = None
    objects: tuple[IsotonicRegression, IsotonicRegression] | None = None
    class_thresholds: list[ClassThreshold] | None = None


def read_validation_results(
    path: str | Path,
    predictor: ImagePredictor,
    *,
    risk: float | None = None,
    probability: float = 0.95,
) -> ValidationResults:
    """Read the results of a test with labels from its work dir.

    Args:
        path: The work dir, of whose tests that of the validation split is taken if there is one; or
            the ``.npz`` file of one.
        predictor: The model that predicts now, which must be the one that was tested.
        risk: The share of the predictions that are kept which may be wrong.
        probability: That of the bound on the risk, and of the intervals of accuracies.

    Raises:
        FileNotFoundError: If no test has left anything.
        ValueError: If it was of another checkpoint, mean or pipeline, or does not tell images
            apart; if no threshold is proven for the risk; if it was a smoke run.
    """
    file = _statistics_file(Path(path))
    _check_same_model(file, predictor)
    statistics = CalibrationStatistics.load(file)
    bins = statistics.image_narrow_bins
    if bins is None:
        raise ValueError(
            f'{file} has no statistics for each image: its protocol, {statistics.protocol!r}, '
            f'leaves out pixels by their labels. {TEST_AGAIN}'
        )
    accuracy = ExpectedAccuracy(bins, coverage=probability)
    unlabelled = bins[:, 2].sum(dim=1) / predicted_in_narrow_bins(bins).sum(dim=1)
    bound = None
    if risk is not None:
        bound = threshold_at_risk(bins, risk, probability=probability)
        if bound is None:
            raise ValueError(
                f'no threshold is proven to keep at most {100 * risk:g} % wrong predictions (with '
                f'{100 * probability:g} % probability) by the {len(bins):,} images of {file}: '
                'allow a larger risk, or validate on more images'
            )
    return ValidationResults(
        file,
        len(bins),
        unlabelled.mean().item(),
        accuracy,
        bound,
        objects=calibrated_objects(statistics.objects),
        class_thresholds=_class_thresholds(statistics, predictor.classes, risk, probability),
    )


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


def _class_thresholds(
    statistics: CalibrationStatistics,
    classes: Sequence[str],
    risk: float | None,
    probability: float,
) -> list[ClassThreshold] | None:
    if risk is None or statistics.image_class_bins is None:
        return None
    counted = statistics.image_class, statistics.image_class_bins
    return class_thresholds(*counted, classes, 1 - risk, probability=probability)


def _statistics_file(path: Path) -> Path:
    if path.is_file():
        return path
    for name in (of_split(STATISTICS, 'val'), STATISTICS):
        if (path / name).is_file():
            return path / name
    raise FileNotFoundError(f'there is no {STATISTICS} of a test in {str(path)!r}: {TEST_AGAIN}')


def _check_same_model(file: Path, predictor: ImagePredictor) -> None:
    """Raise a ValueError if the record beside statistics is of another model or pipeline."""
    split = 'val' if file.stem.endswith('_val') else 'test'
    results = file.with_name(of_split(RESULTS, split))
    if not results.is_file():
        raise FileNotFoundError(
            f'{results}, which belongs to {file.name}, is missing: {TEST_AGAIN}'
        )
    try:
        record = read_record(results, 'limit', 'statistics', 'evaluation')
    except ValueError as error:
        raise ValueError(f'{results}: {error}. {TEST_AGAIN}') from error
    if record['limit']:
        raise ValueError(
            f'{file} is from a smoke run: the test or the training had --limit '
            f'{record["limit"]}. Without it, {TEST_AGAIN}'
        )
    kept = record['statistics']
    if file_digest(file) not in kept.values():
        why = 'was stopped before it had written both' if kept else 'measured no calibration'
        raise ValueError(f'{file} is not from the test of {results}, which {why}: {TEST_AGAIN}')
    models = record['model'], predictor.description
    problem = difference_of_models(*models)
    if problem:
        there, here = (', '.join(paths_of(model)) for model in models)
        raise ValueError(f'{file} is from {there}, not from {here}: it has {problem}. {TEST_AGAIN}')
    if record['evaluation']['tta']:
        raise ValueError(f'{file} was measured under test-time augmentation: {TEST_AGAIN}')
