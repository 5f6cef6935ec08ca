"""Predictions in words: captions and legends of pictures, sentences, and a page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import quote

from mmcalib.reports.page import environment
from mmcalib.texts import printable

MOST_LISTED = 20  # unreadable files on the screen
MOST_OBJECTS = 20  # in the legend of a picture
OF_PIXELS = 'of the pixels'
OF_IMAGES = 'of the images'


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
    template = environment(Path(__file__).parent).get_template('gallery.html')
    return template.render(
        title='Predictions to look at',
        rows=sorted(rows, key=lambda row: (row[key], row['confidence'])),
        names=names,
        links=links,
        key=key,
        score=object_score(objects),
        has_objects=bool(objects),
    )
