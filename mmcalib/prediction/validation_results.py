"""Results of a validation of the same model, for expected accuracies and a threshold at a risk."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from mmcalib.metrics.bins.image_bins import predicted_in_cells
from mmcalib.metrics.functional.expected_accuracy import ExpectedAccuracy
from mmcalib.metrics.functional.risk_threshold import RiskThreshold, threshold_at_risk
from mmcalib.metrics.saved_statistics import CalibrationStatistics
from mmcalib.prediction.image_predictor import ImagePredictor
from mmcalib.runs.checkpoint_io import file_digest
from mmcalib.runs.ensemble_identity import difference_of_means
from mmcalib.runs.ensemble_record import members_of
from mmcalib.runs.model_settings import difference_of_settings
from mmcalib.runs.unlabelled_pipeline import without_labels
from mmcalib.work_dir_files import RESULTS, STATISTICS, of_split

TEST_AGAIN = (
    'test again with tools/test.py CONFIG CHECKPOINT… --split val --work-dir DIR, and what else '
    'the mean is made of'
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
    """

    file: Path
    num_images: int
    unlabelled: float
    accuracy: ExpectedAccuracy
    bound: RiskThreshold | None = None


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
    cells = statistics.image_cells
    if cells is None:
        raise ValueError(
            f'{file} (protocol {statistics.protocol!r}) does not tell images apart, as the .npz '
            f"file of a test by the protocols 'pooled' and 'image' does: {TEST_AGAIN}"
        )
    accuracy = ExpectedAccuracy(cells, coverage=probability)
    unlabelled = cells[:, 2].sum(dim=1) / predicted_in_cells(cells).sum(dim=1)
    bound = None
    if risk is not None:
        bound = threshold_at_risk(cells, risk, probability=probability)
        if bound is None:
            raise ValueError(
                f'the {len(cells):,} images of {file} prove for no threshold that at most '
                f'{100 * risk:g} % of what it keeps is wrong, with a probability of '
                f'{100 * probability:g} %: allow a larger risk, or validate on more images'
            )
    return ValidationResults(file, len(cells), unlabelled.mean().item(), accuracy, bound)


def _statistics_file(path: Path) -> Path:
    if path.is_file():
        return path
    for name in (of_split(STATISTICS, 'val'), STATISTICS):
        if (path / name).is_file():
            return path / name
    raise FileNotFoundError(f'no test has left {STATISTICS} in {str(path)!r}: {TEST_AGAIN}')


def _check_same_model(file: Path, predictor: ImagePredictor) -> None:
    """Raise a ValueError if the results beside statistics are of another model or pipeline."""
    split = 'val' if file.stem.endswith('_val') else 'test'
    results = file.with_name(of_split(RESULTS, split))
    if not results.is_file():
        raise FileNotFoundError(
            f'{results}, which belongs to {file.name}, is missing: {TEST_AGAIN}'
        )
    tested = json.loads(results.read_text(encoding='utf-8'))
    if tested['limit']:
        raise ValueError(
            f'{file} is of a smoke run, --limit {tested["limit"]} in the test or in the training, '
            f'which is evidence of nothing: without it, {TEST_AGAIN}'
        )
    if file_digest(file) not in tested['statistics'].values():
        raise ValueError(
            f'{file} is not of the test of {results}, which was stopped before it had written '
            f'both: {TEST_AGAIN}'
        )
    evaluated = tested['evaluation']
    if evaluated['tta']:
        raise ValueError(f'{file} was measured under test-time augmentation: {TEST_AGAIN}')
    problem = _difference(tested, predictor)
    if problem:
        there, here = (
            ', '.join(members_of(m)) for m in (tested['checkpoint'], predictor.checkpoints)
        )
        raise ValueError(f'{file} is of {there}, and not of {here}: {problem}. {TEST_AGAIN}')
    steps = without_labels(evaluated['pipeline'][0]) if evaluated['pipeline'] else []
    if steps != predictor.pipeline:
        raise ValueError(
            f'{file} was measured by another test pipeline, {steps}, than images go through now, '
            f'{predictor.pipeline}: {TEST_AGAIN}'
        )


def _difference(tested: Mapping, predictor: ImagePredictor) -> str:
    """Return in what a tested model differs from another, nothing if it does not."""
    there, here = tested.get('averaged'), predictor.averaged
    if there and not here:
        return 'it was of the mean of several predictions, and this is a model alone'
    if here and not there:
        return 'it was of a model alone, and this is the mean of several predictions'
    if here:
        wrong = difference_of_means(there['mean_of'], here['mean_of'])
        if wrong:
            return f'it was of another mean, of {wrong}'
        if there['temperature'] != here['temperature']:
            return f'its temperature was {there["temperature"]}, not {here["temperature"]}'
        return ''
    (checkpoint,) = predictor.checkpoints
    if tested['checkpoint_digest'] is None:  # of weights that were in no local file
        return '' if tested['checkpoint'] == checkpoint else 'its weights were in no file'
    digest = file_digest(checkpoint)
    if tested['checkpoint_digest'] != digest:
        return f'the content of the file was {tested["checkpoint_digest"]}, and is {digest}'
    wrong = difference_of_settings(tested['settings'], predictor.settings[0])
    return wrong and f'it was tested with {wrong}'
