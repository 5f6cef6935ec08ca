"""Evidence of a test with labels for the predictions of the same model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor

from mmcalib.cli.predict import PredictOptions
from mmcalib.errors import UserError, warn
from mmcalib.files import RESULTS, STATISTICS, file_name_for_split
from mmcalib.metrics.expected_accuracy import ExpectedAccuracy
from mmcalib.metrics.log_bins import count_in_log_bins
from mmcalib.metrics.risk_threshold import RiskThreshold, least_provable_risk, threshold_at_risk
from mmcalib.metrics.statistics import CalibrationStatistics
from mmcalib.options import check_number, check_share
from mmcalib.predictions.objects import RIGHT_IOU
from mmcalib.runs.model import check_same_model
from mmcalib.runs.record import Record
from mmcalib.texts import command_text

if TYPE_CHECKING:
    from sklearn.isotonic import IsotonicRegression

DEFAULT_THRESHOLD = 0.9


def how_to_test() -> str:
    """Return how to make the test that a prediction needs."""
    return (
        f'test again with {command_text("test")} CONFIG CHECKPOINT… --split val --work-dir DIR, '
        'with the same options for views, dropout and temperature'
    )


@dataclass(frozen=True)
class ObjectCurves:
    """Isotonic regressions of the objects of a validation on their expected IoU.

    Source: Zadrozny and Elkan, KDD 2002.

    Attributes:
        found: Regression of whether the IoU is above 0.5.
        iou: Regression of the IoU.
    """

    found: IsotonicRegression
    iou: IsotonicRegression


@dataclass(frozen=True)
class Evidence:
    """The threshold of the predictions, and what a validation says of them.

    Attributes:
        threshold: Confidence above which predictions are kept.
        bound: Bound on the risk that sets the threshold; None without a risk.
        accuracy: Accuracies to expect of other images; None without a validation.
        object_curves: Calibration of the objects; None if the validation counted no objects.
        num_images: Number of images of the validation, 0 without one.
        unlabelled: Share of their pixels without a label, the mean over images.
        digest: Digest of the validation's statistics; None without a validation.
    """

    threshold: float = DEFAULT_THRESHOLD
    bound: RiskThreshold | None = None
    accuracy: ExpectedAccuracy | None = None
    object_curves: ObjectCurves | None = None
    num_images: int = 0
    unlabelled: float = 0.0
    digest: str | None = None


def check_options(options: PredictOptions) -> None:
    """Refuse a threshold and a risk that exclude each other or lack a validation."""
    if options.risk is not None and options.validation is None:
        raise UserError('a risk requires a validation: give the work dir of a test with labels')
    if options.risk is not None and options.threshold is not None:
        raise UserError('a risk sets the threshold: give either a risk or a threshold')
    if options.threshold is not None:
        check_number('threshold', options.threshold, most=1)
    check_share('probability', options.probability)


def read_evidence(options: PredictOptions, model: Mapping) -> Evidence:
    """Return what is known of the predictions of a model.

    Args:
        options: Options with the validation, the risk and the threshold.
        model: Description of the model, see :func:`~mmcalib.runs.model.describe_model`.

    Raises:
        UserError: If the validation is of another model, has no statistics of each image, or proves
            no threshold for the risk.
    """
    threshold = DEFAULT_THRESHOLD if options.threshold is None else options.threshold
    if options.validation is None:
        return Evidence(threshold=threshold)
    file = find_statistics(options.validation, model, risk=options.risk)
    statistics = CalibrationStatistics.load(file)
    log_bins = statistics.image_narrow_bins
    if log_bins is None:
        raise UserError(
            f'{file} has no statistics for each image: its protocol, {statistics.protocol!r}, '
            f'leaves out pixels by their labels. {how_to_test()}'
        )
    accuracy = ExpectedAccuracy(log_bins, level=options.probability)
    bound = None
    if options.risk is not None:
        bound = prove_threshold(log_bins, options.risk, options.probability, file)
        threshold = bound.threshold
    unlabelled = log_bins[:, 2].sum(dim=1) / count_in_log_bins(log_bins).sum(dim=1)
    return Evidence(
        threshold=threshold,
        bound=bound,
        accuracy=accuracy,
        object_curves=fit_object_curves(statistics.objects),
        num_images=len(log_bins),
        unlabelled=unlabelled.mean().item(),
        digest=sha256(file.read_bytes()).hexdigest()[:16],
    )


def find_statistics(path: str | Path, model: Mapping, *, risk: float | None = None) -> Path:
    """Return the statistics that a test with labels has left.

    It prevents a wrong number: what another model's test found says nothing of this one.

    Args:
        path: Work dir of the test, whose test of the validation split is preferred; or a file of
            statistics.
        model: Description of the model that predicts.
        risk: Risk that the test is to prove a threshold for, None for none.

    Raises:
        UserError: If there is no such test, or it was of another model, a smoke run, or under
            test-time augmentation of mmengine; if it is to prove a risk, and the scaling of the
            model was fitted to its images.
    """
    path = Path(path)
    file = path
    if not path.is_file():
        names = (file_name_for_split(STATISTICS, 'val'), STATISTICS)
        files = [path / name for name in names if (path / name).is_file()]
        if not files:
            raise UserError(f'there is no {STATISTICS} of a test in {str(path)!r}: {how_to_test()}')
        file = files[0]
    split = 'val' if file.stem.endswith('_val') else 'test'
    record_file = file.with_name(file_name_for_split(RESULTS, split))
    try:
        record = Record.read(record_file)
    except (FileNotFoundError, ValueError) as error:
        raise UserError(
            f'{record_file}, which belongs to {file.name}: {error}. {how_to_test()}'
        ) from error
    if record.limit:
        raise UserError(f'{file} is from a smoke run with --limit {record.limit}: {how_to_test()}')
    check_same_model(record.model, model, file)
    check_fitted_images(record, file, risk)
    if record.evaluation.get('tta'):
        raise UserError(f'{file} was measured under test-time augmentation: {how_to_test()}')
    return file


def check_fitted_images(record: Record, file: Path, risk: float | None) -> None:
    """Refuse a promise by images that the model's scaling was fitted to, and warn without one.

    Args:
        record: Record of the validation's test.
        file: File of its statistics.
        risk: Risk to prove; None if accuracies are only estimated.

    Raises:
        UserError: If a risk is to be proven by such images.
    """
    if not record.has_fitted_images:
        return
    fact = f'the scaling of the model was fitted to images of the test in {file}'
    remedy = (
        f'test other images with labels by {command_text("test")}, and name the folder of that '
        'test; or predict with the checkpoint before its calibration'
    )
    if risk is not None:
        raise UserError(f'{fact}, so they prove no risk of others: {remedy}')
    warn(
        f'{fact}, so expected accuracies are better there than on other images. A temperature '
        f'changes little, a scaling with many parameters more: {remedy}'
    )


def prove_threshold(log_bins: Tensor, risk: float, probability: float, file: Path) -> RiskThreshold:
    """Return the threshold that keeps the most predictions at a risk.

    Args:
        log_bins: ``(n, 3, 98)`` log bins of the images of a validation.
        risk: Largest share of wrong predictions among those that are kept.
        probability: Probability with which the bound holds.
        file: File of the statistics, for the error.

    Raises:
        UserError: If no threshold is proven; it names the least risk that is.
    """
    bound = threshold_at_risk(log_bins, risk, probability=probability)
    if bound.threshold is not None:
        return bound
    remedy = f'validate on more images ({bound.remedy()})'
    least_risk = least_provable_risk(log_bins, risk, probability=probability)
    if least_risk is not None:
        remedy += (
            f'. These images would prove {100 * least_risk:g} %, but a risk that they chose is no '
            'promise: prove it by others'
        )
    raise UserError(
        f'no threshold is proven to keep at most {100 * risk:g} % wrong predictions (with '
        f'{100 * probability:g} % probability) by the {len(log_bins):,} images of {file}: {remedy}'
    )


def fit_object_curves(objects: Tensor | None) -> ObjectCurves | None:
    """Return the calibration of objects, None without labelled objects.

    Args:
        objects: ``(O, 6)`` objects of :class:`~mmcalib.metrics.statistics.CalibrationStatistics`.
    """
    if objects is None:
        return None
    has_iou = ~objects[:, 5].isnan()
    if not has_iou.any():
        return None
    from sklearn.isotonic import IsotonicRegression  # The import takes a second, and few need it.

    expected_iou, iou = objects[has_iou, 4:6].numpy().T
    return ObjectCurves(
        found=IsotonicRegression(out_of_bounds='clip').fit(expected_iou, iou > RIGHT_IOU),
        iou=IsotonicRegression(out_of_bounds='clip').fit(expected_iou, iou),
    )
