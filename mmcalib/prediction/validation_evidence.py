"""What a validation proves of predictions without labels, if it was of the same model."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from mmcalib.hooks.checkpoint_meta_hook import TRAINED
from mmcalib.metrics.bins.image_bins import predicted_in_cells, with_unlabelled
from mmcalib.metrics.functional.expected_accuracy import ExpectedAccuracy
from mmcalib.metrics.functional.risk_threshold import RiskThreshold, threshold_at_risk
from mmcalib.metrics.saved_statistics import CalibrationStatistics
from mmcalib.prediction.image_predictor import ImagePredictor
from mmcalib.runs.checkpoint_io import file_digest
from mmcalib.runs.ensemble_identity import difference_of_means
from mmcalib.runs.ensemble_record import members_of
from mmcalib.runs.model_settings import difference_of_settings
from mmcalib.runs.record import describe_calibration
from mmcalib.runs.training_fingerprint import comparable, digest
from mmcalib.runs.unlabelled_pipeline import without_labels
from mmcalib.work_dir_files import RESULTS, STATISTICS, of_split

TEST_AGAIN = (
    'test again with tools/test.py CONFIG CHECKPOINT… --split val --work-dir DIR, and what else '
    'the mean is made of'
)


@dataclass(frozen=True)
class ValidationEvidence:
    """What a validation with labels says of images without.

    Attributes:
        file: The statistics that it was read from.
        num_images: How many images there were.
        unlabelled: Which share of their pixels has no label, the mean over images.
        accuracy: What to expect of others.
        bound: The threshold for a risk; None if no risk was asked for.
    """

    file: Path
    num_images: int
    unlabelled: float
    accuracy: ExpectedAccuracy
    bound: RiskThreshold | None = None


def read_validation(
    path: str | Path,
    predictor: ImagePredictor,
    *,
    risk: float | None = None,
    probability: float = 0.95,
) -> ValidationEvidence:
    """Read what a test with labels has left in a work dir.

    Args:
        path: The work dir, of whose tests that of the validation split is taken if there is one; or
            the ``.npz`` file of one.
        predictor: What predicts now.
        risk: What share of the predictions that are kept may be wrong.
        probability: Of the bound on it, and of the intervals of accuracies.

    Raises:
        FileNotFoundError: If no test has left anything.
        ValueError: If it was of another checkpoint, mean or pipeline, or lacks what is needed; if
            no threshold is proven for the risk; if it was a smoke run.
    """
    file = _statistics_file(Path(path))
    _check_same_model(file, predictor)
    statistics = CalibrationStatistics.load(file)
    cells = statistics.image_cells
    if cells is None:
        why = (
            f'it was measured by the protocol {statistics.protocol!r}, which leaves out pixels by '
            'their labels'
            if statistics.protocol not in ('pooled', 'image')
            else 'an older version measured it, or it is a .json file'
        )
        raise ValueError(f'{file} does not tell images apart: {why}. {TEST_AGAIN}')
    try:
        cells = with_unlabelled(cells)
    except ValueError as error:
        raise ValueError(f'{file}: {error}. {TEST_AGAIN}') from error
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
    return ValidationEvidence(file, len(cells), unlabelled.mean().item(), accuracy, bound)


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
            f'{results} is not there, which says what {file.name} was measured of: {TEST_AGAIN}'
        )
    try:
        tested = json.loads(results.read_text(encoding='utf-8'))
        name = tested['checkpoint']
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise ValueError(f'{results} holds no results of a test: {error!r}') from error
    if tested.get('limit'):
        raise ValueError(
            f'{file} is of a smoke run, --limit {tested["limit"]} in the test or in the training, '
            f'which is evidence of nothing: without it, {TEST_AGAIN}'
        )
    kept = tested.get('statistics')  # an older version names none
    if kept is not None and file_digest(file) not in kept.values():
        why = 'was stopped before it had written both' if kept else 'measured no calibration'
        raise ValueError(f'{file} is not of the test of {results}, which {why}: {TEST_AGAIN}')
    problem = _difference(tested, name, predictor)
    if not problem and not predictor.averaged:  # the members of a mean have theirs with them
        problem = difference_of_settings(tested.get('settings'), predictor.settings[0])
        problem = problem and f'it was tested with {problem}'
    if problem:
        there, here = (', '.join(members_of(each)) for each in (name, predictor.checkpoints))
        raise ValueError(f'{file} is of {there}, and not of {here}: {problem}. {TEST_AGAIN}')
    evaluated = tested.get('evaluation') or {}
    if evaluated.get('tta'):
        raise ValueError(f'{file} was measured under test-time augmentation: {TEST_AGAIN}')
    steps = evaluated.get('pipeline') or []
    if steps and without_labels(steps[0]) != predictor.pipeline:
        raise ValueError(
            f'{file} was measured by another test pipeline, {without_labels(steps[0])}, than '
            f'images go through now, {predictor.pipeline}: {TEST_AGAIN}'
        )


def _difference(tested: Mapping, name: str, predictor: ImagePredictor) -> str:
    """Return in what tested predictions differ from others, nothing if they may be the same."""
    there, here = tested.get('averaged'), predictor.averaged
    if there or here:
        return _difference_of_means(there or {}, here or {})
    (checkpoint,), meta = predictor.checkpoints, predictor.meta
    # None of an older version, and what is elsewhere has none.
    written = None if '://' in checkpoint else tested.get('checkpoint_digest')
    digested = file_digest(checkpoint) if written else None
    if digested == written and (written or os.path.realpath(name) == os.path.realpath(checkpoint)):
        return ''
    trained = meta.get(TRAINED)
    here = {
        'seed': meta.get('seed'),
        'epoch': meta.get('epoch'),
        'training': digest(comparable(trained)) if isinstance(trained, Mapping) else None,
    }
    there = {
        'seed': tested.get('seed'),
        'epoch': (tested.get('training') or {}).get('epoch'),
        'training': (tested.get('trained') or {}).get('digest'),
    }
    known = [key for key in here if here[key] is not None and there[key] is not None]
    for key in known:
        if here[key] != there[key]:
            return f'the {key} was {there[key]}, not {here[key]}'
    if comparable(describe_calibration(meta)) != tested.get('calibration'):
        return 'one of the two was calibrated after its training, or otherwise'
    if written:
        return f'the content of the file was {written}, and is {digested}'
    if not known and os.path.basename(name) != os.path.basename(checkpoint):
        return 'neither says how it was trained'
    return ''


def _difference_of_means(there: Mapping, here: Mapping) -> str:
    if not here:
        return 'it was of the mean of several predictions, and this is a model alone'
    if not there:
        return 'it was of a model alone, and this is the mean of several predictions'
    if not there.get('mean_of'):
        return 'an older version tested it, which does not say of which predictions'
    wrong = difference_of_means(there['mean_of'], here['mean_of'])
    if wrong:
        return f'it was of another mean, of {wrong}'
    if there.get('temperature') != here['temperature']:
        return f'its temperature was {there.get("temperature")}, not {here["temperature"]}'
    return ''
