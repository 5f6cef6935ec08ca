"""Scores of predictions without labels: the row of an image, and the summary of all rows.

Both are what their files hold, ``scores/NAME.json`` and ``summary.json``; unknown values are None.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from mmcalib.commands.predict.evidence import Evidence, ObjectCurves
from mmcalib.commands.predict.predictor import Prediction
from mmcalib.metrics.risk_threshold import RiskThreshold


def image_row(prediction: Prediction, evidence: Evidence, classes: Sequence[str]) -> dict:
    """Return the scores of an image; shares and confidences lie in [0, 1].

    Args:
        prediction: Prediction with its arrays.
        evidence: Threshold and validation.
        classes: K names.

    Returns:
        ``image``; ``confidence``, of a segmentor the mean over pixels; ``kept``, the share of the
        predictions above the threshold; ``label`` and ``name``, the predicted class of a
        classifier; ``objects`` of a segmentor; ``expected_accuracy``, the mean calibrated
        confidence, see :class:`~mmcalib.metrics.expected_accuracy.ExpectedAccuracy`;
        ``accuracy_interval`` of a segmentor, since the single prediction of a classifier is correct
        or not; ``mutual_information``, the mean over pixels; ``note``.
    """
    conf = torch.from_numpy(np.asarray(prediction.arrays['confidence']))
    is_classifier = 'probabilities' in prediction.arrays
    row = {
        'image': str(prediction.image),
        'confidence': conf.double().mean().item(),
        'kept': (conf > evidence.threshold).double().mean().item(),
        'label': None,
        'name': None,
        'objects': calibrate_objects(prediction.objects, evidence.object_curves),
        'expected_accuracy': None,
        'accuracy_interval': [None, None],
        'mutual_information': None,
        'note': prediction.note,
    }
    if is_classifier:
        row['label'] = int(prediction.arrays['predicted'])
        row['name'] = classes[row['label']]
    if evidence.accuracy is not None:
        expected_accuracy = evidence.accuracy.image_accuracy(conf)
        row['expected_accuracy'] = expected_accuracy
        if not is_classifier:
            row['accuracy_interval'] = list(evidence.accuracy.image_interval(expected_accuracy))
    if 'mutual_information' in prediction.arrays:
        information = prediction.arrays['mutual_information']
        row['mutual_information'] = float(information.mean(dtype=np.float64))
    return row


def calibrate_objects(objects: Sequence[dict], curves: ObjectCurves | None) -> list[dict]:
    """Return objects with how often such ones are found, and with their mean IoU.

    Args:
        objects: Objects of a prediction.
        curves: Calibration of the objects, None if there is none.
    """
    if curves is None or not objects:
        return list(objects)
    expected_iou = np.array([item['expected_iou'] for item in objects])
    found = curves.found.predict(expected_iou).tolist()
    calibrated_iou = curves.iou.predict(expected_iou).tolist()
    calibrated = []
    for item, item_found, item_iou in zip(objects, found, calibrated_iou, strict=True):
        calibrated.append(item | {'found': item_found, 'calibrated_iou': item_iou})
    return calibrated


def summarize_rows(
    rows: Sequence[dict], evidence: Evidence, unreadable: Sequence[Prediction]
) -> dict:
    """Return the scores of all images together, each image alike.

    Args:
        rows: Rows of the images.
        evidence: Threshold and validation.
        unreadable: Files without a prediction.

    Returns:
        ``num_images``; the means of ``confidence``, ``kept`` and ``expected_accuracy``;
        ``threshold``; ``accuracy_interval``, in which the mean accuracy lies; ``bound``, what the
        threshold was proven to keep to; ``validation_images`` and ``validation_unlabelled``, the
        number of images of the validation and the share of their pixels without a label;
        ``unreadable``, the files without a prediction and the reasons.
    """
    expected_accuracy = None
    accuracy_interval = [None, None]
    if evidence.accuracy is not None:
        expected_accuracy = mean_of_rows(rows, 'expected_accuracy')
        interval = evidence.accuracy.folder_interval(expected_accuracy, len(rows))
        accuracy_interval = list(interval)
    return {
        'num_images': len(rows),
        'confidence': mean_of_rows(rows, 'confidence'),
        'threshold': evidence.threshold,
        'kept': mean_of_rows(rows, 'kept'),
        'expected_accuracy': expected_accuracy,
        'accuracy_interval': accuracy_interval,
        'bound': None if evidence.bound is None else bound_content(evidence.bound),
        'validation_images': evidence.num_images,
        'validation_unlabelled': evidence.unlabelled,
        'unreadable': [
            {'image': str(prediction.image), 'reason': prediction.reason}
            for prediction in unreadable
        ],
    }


def bound_content(bound: RiskThreshold) -> dict:
    """Return a proven threshold as ``summary.json`` has it."""
    return {
        'threshold': bound.threshold,
        'risk': bound.risk,
        'probability': bound.probability,
        'coverage': bound.coverage,
        'found_risk': bound.observed_risk,
        'num_images': bound.num_groups,
    }


def mean_of_rows(rows: Sequence[dict], key: str) -> float:
    """Return the mean of a score over images."""
    return float(np.mean([row[key] for row in rows]))
