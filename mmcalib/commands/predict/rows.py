"""The row of an image, the summary of all rows, and both in words.

Rows and summary are what their files hold, ``scores/NAME.json`` and ``summary.json``; unknown
values are None.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import quote

import numpy as np
import torch

from mmcalib.commands.predict.evidence import Evidence, ObjectCurves
from mmcalib.commands.predict.predictor import Prediction
from mmcalib.metrics.risk_threshold import RiskThreshold
from mmcalib.pages import page_templates
from mmcalib.texts import printable

MOST_LISTED = 20  # unreadable files on the screen
MOST_OBJECTS = 20  # in the legend of a picture
OF_PIXELS = 'of the pixels'
OF_IMAGES = 'of the images'


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
    return [
        item | {'found': item_found, 'calibrated_iou': item_iou}
        for item, item_found, item_iou in zip(objects, found, calibrated_iou, strict=True)
    ]


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


def picture_captions(row: Mapping, threshold: float) -> list[str]:
    """Return the lines below the picture of an image."""
    if row['label'] is None:
        text = confidence_phrase(row, threshold, OF_PIXELS)
    else:
        side = 'above' if row['kept'] else 'not above'
        text = f'{row["name"]}, {100 * row["confidence"]:.1f} %, {side} {threshold:.6g}'
    lines = [f'{printable(Path(row["image"]).name)}: {text}']
    if row['expected_accuracy'] is not None:
        lines.append(accuracy_phrase(row))
    if row['note']:
        lines.append(f'the file: {row["note"]}')
    return lines


def legend_texts(objects: Sequence[Mapping]) -> dict[int, tuple[int, str]]:
    """Return class and score of the largest objects of an image, by their numbers."""
    largest = sorted(objects, key=lambda item: item['pixels'], reverse=True)[:MOST_OBJECTS]
    key = object_score(objects)
    return {item['object']: (item['label'], f'{100 * item[key]:.1f} %') for item in largest}


def object_score(objects: Sequence[Mapping]) -> str:
    """Return the key of the score that trusts objects: ``found``, if a validation has it."""
    is_calibrated = bool(objects) and objects[0]['found'] is not None
    return 'found' if is_calibrated else 'expected_iou'


def confidence_phrase(scores: Mapping, threshold: float, unit: str) -> str:
    """Return the mean confidence and the share above the threshold, of a row or a summary."""
    return (
        f'mean confidence {100 * scores["confidence"]:.1f} %, {100 * scores["kept"]:.1f} % {unit} '
        f'above {threshold:.6g}'
    )


def accuracy_phrase(scores: Mapping) -> str:
    """Return the expected accuracy of a row or a summary, with its interval if it has one."""
    phrase = f'expected accuracy {100 * scores["expected_accuracy"]:.1f} %'
    low, high = scores['accuracy_interval']
    if low is not None:
        phrase += f', between {100 * low:.1f} and {100 * high:.1f} %'
    return phrase


def summary_lines(
    summary: Mapping, rows: Sequence[Mapping], *, num_earlier: int, num_unnamed: int
) -> list[str]:
    """Return what the command prints of its predictions.

    Args:
        summary: Scores of all images.
        rows: Rows of all images.
        num_earlier: Number of the images that earlier calls predicted.
        num_unnamed: Number of the images that this call does not name.
    """
    unit = OF_PIXELS if rows[0]['label'] is None else OF_IMAGES
    count = '1 image' if len(rows) == 1 else f'{len(rows):,} images'
    if num_earlier:
        count += f' ({num_earlier:,} of them before)'
    lines = [f'{count}: {confidence_phrase(summary, summary["threshold"], unit)}']
    if num_unnamed:
        verb = 'is' if num_unnamed == 1 else 'are'
        lines.append(f'{num_unnamed:,} of these images {verb} of earlier calls, and not named now')
    if summary['expected_accuracy'] is not None:
        lines.append(
            f'{accuracy_phrase(summary)}, if these images resemble the '
            f'{summary["validation_images"]:,} of the validation'
        )
    if summary['bound'] is not None:
        lines.append(bound_sentence(summary['bound'], unit))
    if summary['validation_unlabelled']:
        subject = 'accuracies' if summary['bound'] is None else 'accuracies and errors'
        lines.append(
            f'{100 * summary["validation_unlabelled"]:.2g} % of the validation pixels have no '
            f'label: {subject} refer to pixels that would get one, confidences and shares kept to '
            'all pixels'
        )
    notes = Counter(row['note'] for row in rows if row['note'])
    for note, num_files in sorted(notes.items()):
        lines.append(f'{count_files(num_files)}: {note}')
    return lines + unreadable_lines(summary['unreadable'])


def bound_sentence(bound: Mapping, unit: str) -> str:
    """Return what a threshold was proven to keep to."""
    return (
        f'threshold {bound["threshold"]:.6g}: at most {100 * bound["risk"]:g} % of what it keeps '
        f'is wrong, on average over such images (with {100 * bound["probability"]:g} % '
        f'probability); on the validation it kept {100 * bound["coverage"]:.1f} % {unit}, and '
        f'{100 * bound["found_risk"]:.1f} % of these were wrong'
    )


def unreadable_lines(unreadable: Sequence[Mapping]) -> list[str]:
    """Return the files without a prediction, each with its reason; nothing without any."""
    if not unreadable:
        return []
    lines = [f'{count_files(len(unreadable))} without a prediction:']
    for item in unreadable[:MOST_LISTED]:
        lines.append(printable(f'  {item["image"]}: {item["reason"]}'))
    if len(unreadable) > MOST_LISTED:
        lines.append('  … summary.json lists all of them')
    return lines


def count_files(count: int) -> str:
    """Return a number of files in words."""
    return '1 file' if count == 1 else f'{count:,} files'


def gallery_page(rows: Sequence[Mapping]) -> str:
    """Return a page of the pictures of a folder, which opens without a server.

    Images are sorted by their expected accuracy where a validation gives one, and then by their
    mean confidence, the worst first. Above each are its largest objects that are rather wrong than
    right.
    """
    has_accuracy = all(row['expected_accuracy'] is not None for row in rows)
    key = 'expected_accuracy' if has_accuracy else 'confidence'
    objects = [item for row in rows for item in row['objects']]
    # A name that two images share is shown with its folder.
    times = Counter(Path(row['path']).name for row in rows)
    names = {}
    links = {}
    for row in rows:
        path = Path(row['path'])
        names[row['files']] = path.name if times[path.name] == 1 else path
        links[row['files']] = quote(f'{row["files"]}.png', errors='surrogateescape')
    template = page_templates(Path(__file__).parent).get_template('gallery.html')
    return template.render(
        title='Predictions to look at',
        rows=sorted(rows, key=lambda row: (row[key], row['confidence'])),
        names=names,
        links=links,
        key=key,
        score=object_score(objects),
        has_objects=bool(objects),
    )
