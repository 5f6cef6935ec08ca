"""What people read of predictions: words, the captions of pictures, and a page of all."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from mmcalib.commands.predict.predictor import Prediction
from mmcalib.commands.predict.scores import FolderScores, ImageScores
from mmcalib.reports.page import environment
from mmcalib.texts import printable

MOST_NAMED = 20
PIXELS = 'of the pixels'


@dataclass
class Report:
    """The outcome of a prediction into a folder.

    Attributes:
        scores: Of all images that have been predicted, in earlier calls too.
        rows: Of each of these, in the order in which the images were named.
        unreadable: The files that have not, and why.
        before: How many had been predicted by earlier calls.
        others: How many of all are not among those that were named now.
    """

    scores: FolderScores
    rows: Sequence[Mapping]
    unreadable: Sequence[Prediction]
    before: int
    others: int


def captions_of(scores: ImageScores, threshold: float) -> list[str]:
    """Return the lines below the picture of an image."""
    words = _shares(scores, threshold, PIXELS)
    if scores.label is not None:
        side = 'above' if scores.kept else 'not above'
        words = f'{scores.name}, {100 * scores.confidence:.1f} %, {side} {threshold:.6g}'
    note = [f'the file: {scores.note}'] * bool(scores.note)
    return [f'{printable(Path(scores.image).name)}: {words}', *_accuracy(scores), *note]


def _shares(scores: ImageScores | FolderScores, threshold: float, what: str) -> str:
    return (
        f'mean confidence {100 * scores.confidence:.1f} %, {100 * scores.kept:.1f} % {what} above '
        f'{threshold:.6g}'
    )


def _accuracy(scores: ImageScores | FolderScores) -> list[str]:
    """Return a line with the expected accuracy, none without a validation."""
    if math.isnan(scores.expected_accuracy):
        return []
    low, high = (100 * end for end in scores.accuracy_interval)
    between = '' if math.isnan(low) else f', between {low:.1f} and {high:.1f} %'
    return [f'expected accuracy {100 * scores.expected_accuracy:.1f} %{between}']


def report_in_words(report: Report) -> str:
    """Return the findings of a prediction in words."""
    scores, rows = report.scores, report.rows
    earlier = f' ({report.before:,} of them before)' if report.before else ''
    what = PIXELS if rows[0]['label'] is None else 'of the images'
    number = f'{len(rows):,} image{"s" * (len(rows) != 1)}{earlier}'
    lines = [f'{number}: {_shares(scores, scores.threshold, what)}']
    if report.others:
        verb = 'is' if report.others == 1 else 'are'
        lines.append(
            f'{report.others:,} of these images {verb} of earlier calls, and not named now'
        )
    resembling = f'if these images resemble the {scores.validation_images:,} of the validation'
    lines += [f'{line}, {resembling}' for line in _accuracy(scores)]
    bound, unlabelled = scores.bound, 100 * scores.validation_unlabelled
    if bound:
        lines.append(
            f'threshold {bound.threshold:.6g}: at most {100 * bound.risk:g} % of what it keeps is '
            f'wrong, on average over such images (with {100 * bound.probability:g} % probability); '
            f'on the validation it kept {100 * bound.coverage:.1f} % {what}, and '
            f'{100 * bound.observed_risk:.1f} % of these were wrong'
        )
    if unlabelled:
        lines.append(
            f'{unlabelled:.2g} % of the validation pixels have no label: accuracies'
            f'{" and errors" if bound else ""} refer to pixels that would get one, confidences '
            'and shares kept to all pixels'
        )
    notes = Counter(row['note'] for row in rows if row['note'])
    lines += [f'{_files(count)}: {note}' for note, count in sorted(notes.items())]
    left_out = [printable(f'  {item.image}: {item.reason}') for item in report.unreadable]
    if left_out:
        lines += [f'{_files(len(left_out))} without a prediction:', *left_out[:MOST_NAMED]]
    if len(left_out) > MOST_NAMED:
        lines.append('  … summary.json lists all of them')
    return '\n'.join(lines)


def _files(count: int) -> str:
    return f'{count:,} file{"s" * (count != 1)}'


def gallery_of(rows: Sequence[Mapping]) -> str:
    """Return a page of the pictures of a folder, which opens without a server.

    Images come in the order of how well they are expected to be predicted, the worst first: by
    their expected accuracy where a validation gives one, then by their mean confidence. Above each
    are the largest objects that are rather wrong than right.
    """
    measured = all(row['expected_accuracy'] is not None for row in rows)
    key = 'expected_accuracy' if measured else 'confidence'
    objects = [found for row in rows for found in row['objects']]
    calibrated = objects and objects[0]['found'] is not None
    count = Counter(Path(row['path']).name for row in rows)
    paths = {row['files']: Path(row['path']) for row in rows}
    names = {files: path.name if count[path.name] == 1 else path for files, path in paths.items()}
    links = {row['files']: quote(f'{row["files"]}.png', errors='surrogateescape') for row in rows}
    return (
        environment(Path(__file__).parent)
        .get_template('gallery.html')
        .render(
            title='Predictions to look at',
            rows=sorted(rows, key=lambda row: (row[key], row['confidence'])),
            names=names,
            links=links,
            key=key,
            score='found' if calibrated else 'expected_iou',
            has_objects=bool(objects),
        )
    )
