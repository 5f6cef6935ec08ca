"""From images to a folder of predictions and a page of words: behind tools/predict.py."""

from __future__ import annotations

import errno
import math
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mmengine.dist import all_gather_object, barrier, get_dist_info

from mmcalib.runs.checkpoint_io import file_digest
from mmcalib.runs.tested_model import OF_SETTINGS
from mmcalib.runs.training_fingerprint import comparable
from mmcalib.tasks.predict.captions import printable
from mmcalib.tasks.predict.gallery import GALLERY, write_gallery
from mmcalib.tasks.predict.image_predictor import ImagePredictor, UnreadableImage
from mmcalib.tasks.predict.predict_images import (
    PredictionOptions,
    image_prediction,
    none_predicted,
    predicted,
    prepare_prediction,
)
from mmcalib.tasks.predict.prediction_folder import (
    ARRAYS,
    OBJECTS,
    PICTURES,
    ROWS,
    SUMMARY,
    TABLE,
    UNSURE,
    PredictionFolder,
)
from mmcalib.tasks.predict.prediction_scores import FolderScores, Scorer
from mmcalib.work_dir import check_writable

MOST_NAMED = 20
WRITTEN = (TABLE, OBJECTS, ROWS, SUMMARY, ARRAYS, PICTURES, GALLERY)
MOST_LABELS = 254  # classes that a mask has room for


@dataclass
class FolderReport:
    """The outcome of a prediction.

    Attributes:
        scores: Of all images that have been predicted, in earlier calls too.
        unreadable: The files that have not, and why.
        segmented: Whether the model segments.
        before: How many had been predicted by earlier calls.
        notes: How many files were read with each note, such as grey ones.
        classes: Of masks of labels, how much of each class they keep.
        empty: How many of these masks keep nothing.
        stopped: Why it ended before the last image, empty if it did not.
    """

    scores: FolderScores
    unreadable: list[UnreadableImage]
    segmented: bool
    before: int
    notes: Mapping[str, int]
    classes: Sequence[Mapping] = ()
    empty: int = 0
    stopped: str = ''


def predict_to_folder(
    config: str | os.PathLike,
    checkpoint: str | os.PathLike | Sequence[str | os.PathLike],
    images: str | os.PathLike | Sequence[str | os.PathLike],
    out: str | os.PathLike,
    *,
    arrays: bool = True,
    pictures: bool = True,
    labels: str | os.PathLike | None = None,
    overwrite: bool = False,
    **options,
) -> FolderReport | None:
    """Predict image files into a folder, going on where an earlier call has stopped.

    Of several processes each takes some of the files, and the first one gets the report.

    Args:
        config, checkpoint, images: As of :func:`~mmcalib.tasks.predict.predict_images.predict`.
        out: The folder.
        arrays, pictures, labels, overwrite: See
            :class:`~mmcalib.tasks.predict.prediction_folder.PredictionFolder`.
        options: The attributes of :class:`~mmcalib.tasks.predict.predict_images.PredictionOptions`.

    Raises:
        OSError: If a file that is named is not there, or nothing can be written.
        ValueError: For what does not fit together; if no file can be predicted.
    """
    check_writable(Path(out, ROWS))
    asked = PredictionOptions(**options)
    predictor, scorer, files = prepare_prediction(config, checkpoint, images, asked)
    if labels is not None:
        _check_labels(predictor, scorer, asked)
    settings = settings_of(predictor, scorer, asked)
    rank, processes = get_dist_info()
    for first in (True, False):  # takes up what the others then read
        if (rank == 0) == first:
            folder = PredictionFolder(
                out,
                files,
                settings,
                arrays=arrays,
                pictures=pictures,
                labels=labels,
                overwrite=overwrite,
                rank=rank,
                processes=processes,
            )
        barrier()
    before = len(folder.rows)
    ends = all_gather_object(_predict_own(folder, predictor, scorer, show_progress=rank == 0))
    if rank:
        return None
    places = {image: number for number, image in enumerate(files)}
    unreadable = [item for some, _ in ends for item in some]
    unreadable.sort(key=lambda item: places[item.image])
    stopped = next((text for _, text in ends if text), '')
    try:
        folder.join()
    except OSError as error:
        stopped = stopped or f'{error.strerror or error}: cannot write {ROWS}.'
    if not folder.rows and unreadable and not stopped:
        raise none_predicted(unreadable)
    rows = folder.scores()
    segmented = any(row.label is None for row in rows)
    notes = Counter(row.note for row in rows if row.note)
    classes = class_summary(folder.rows, scorer) if labels is not None else ()
    report = FolderReport(scorer.folder(rows), unreadable, segmented, before, notes, classes)
    if labels is not None:
        kept = [sum(share['kept'] for share in row['classes']) for row in folder.rows]
        report.empty = kept.count(0)
    try:
        folder.close(report.scores, unreadable, classes)
        if pictures and rows:
            write_gallery(folder.folder)
    except OSError as error:
        stopped = stopped or f'{error.strerror or error}: cannot write {TABLE}.'
    if stopped:
        missing = len(folder.left) - (len(rows) - before) - len(unreadable)
        report.stopped = (
            f'{stopped} {len(rows):,} images are finished, {missing:,} are not: run the same '
            'command again to continue.'
        )
    return report


def _predict_own(
    folder: PredictionFolder, predictor: ImagePredictor, scorer: Scorer, *, show_progress: bool
) -> tuple[list[UnreadableImage], str]:
    """Predict the images of this process; return those without a prediction, and why it stopped."""
    unreadable: list[UnreadableImage] = []
    try:
        for item in predicted(predictor, folder.own, show_progress=show_progress):
            if isinstance(item, UnreadableImage):
                unreadable.append(item)
                continue
            prediction = image_prediction(item, scorer.image(item), pixels=True)
            try:
                folder.write(
                    prediction,
                    threshold=scorer.threshold,
                    classes=predictor.classes,
                    palette=predictor.palette,
                    class_thresholds=scorer.class_thresholds,
                )
            except OSError as error:
                if error.errno != errno.ENAMETOOLONG:
                    raise
                unreadable.append(UnreadableImage(item.image, f'its files: {error.strerror}'))
    except OSError as error:
        reason = error.strerror or error
        return unreadable, f'{reason}: cannot write to {folder.folder}.'
    except KeyboardInterrupt:
        return unreadable, 'Stopped.'
    return unreadable, ''


def _check_labels(predictor: ImagePredictor, scorer: Scorer, options: PredictionOptions) -> None:
    """Raise a ValueError if masks of labels cannot be written."""
    if predictor.toolbox != 'mmseg':
        raise ValueError(
            '--labels requires a segmentor, and this model is a classifier: leave it out'
        )
    if len(predictor.classes) > MOST_LABELS:
        raise ValueError(
            f'masks of labels hold up to {MOST_LABELS} classes, and the model has '
            f'{len(predictor.classes)}: leave out --labels'
        )
    if options.risk is not None and not scorer.bounds:
        raise ValueError(
            f'{scorer.validation.file} has no counts of each class, so no threshold of a class can '
            'be proven: test again with tools/test.py … --split val --objects --calibration, or '
            'give --threshold instead of --risk'
        )


def class_summary(rows: Sequence[Mapping], scorer: Scorer) -> list[dict]:
    """Return, for each class, how many of the predicted pixels its threshold keeps, and why none.

    Args:
        rows: Of a folder.
        scorer: That they are of.
    """
    found = []
    for k, (name, threshold) in enumerate(
        zip(scorer.classes, scorer.class_thresholds, strict=True)
    ):
        shares = [share for row in rows for share in row['classes'] if share['label'] == k]
        bound = scorer.bounds[k] if scorer.bounds else None
        found.append({
            'name': name,
            'threshold': None if math.isinf(threshold) else threshold,
            'reason': bound.reason if bound else '',
            'images': len(shares),
            'pixels': sum(share['pixels'] for share in shares),
            'kept': sum(share['kept'] for share in shares),
        })  # fmt: skip
    return found


def settings_of(predictor: ImagePredictor, scorer: Scorer, options: PredictionOptions) -> dict:
    """Return the settings behind predictions, for a folder that is to hold those of one kind."""
    validation, model = scorer.validation, predictor.description
    members = sorted(model['members'], key=lambda member: member['digest'])
    return {
        'checkpoint': [member['digest'] for member in members],
        **{key: model[key] for key in ('views', 'mc_dropout', 'dropout_seed', 'temperature')},
        'disagreement': options.disagreement,
        'pipeline': comparable(predictor.steps),
        **{key: [member['settings'][key] for member in members] for key in OF_SETTINGS},
        'threshold': scorer.threshold,
        'class_thresholds': [None if math.isinf(t) else t for t in scorer.class_thresholds],
        'validation': validation and file_digest(str(validation.file)),
        'probability': validation and validation.accuracy.coverage,
    }


def report_in_words(report: FolderReport, out: str | os.PathLike) -> str:
    """Return the findings of a prediction in words."""
    scores = report.scores
    if not scores.num_images:
        return 'No image was predicted.'
    earlier = f' ({report.before:,} of them before)' if report.before else ''
    what = 'of the pixels' if report.segmented else 'of the images'
    images = f'{scores.num_images:,} image{"s" * (scores.num_images != 1)}{earlier}'
    lines = [
        f'{images}: mean confidence {100 * scores.confidence:.1f} %, '
        f'{100 * scores.kept:.1f} % {what} above {scores.threshold:.6g}'
    ]
    if not math.isnan(scores.expected_accuracy):
        low, high = (100 * end for end in scores.accuracy_interval)
        lines.append(
            f'expected accuracy {100 * scores.expected_accuracy:.1f} %, between {low:.1f} and '
            f'{high:.1f} %, if these images resemble the {scores.validation_images:,} of the '
            'validation'
        )
    bound, unlabelled = scores.bound, 100 * scores.validation_unlabelled
    if bound:
        lines.append(
            f'threshold {bound.threshold:.6g}: at most {100 * bound.risk:g} % of what it keeps is '
            f'wrong, on average over such images (with {100 * bound.probability:g} % probability); '
            f'on the validation it kept {100 * bound.coverage:.1f} % {what}, and '
            f'{100 * bound.found_risk:.1f} % of these were wrong'
        )
    if unlabelled:
        lines.append(
            f'{unlabelled:.2g} % of the validation pixels have no label: accuracies'
            f'{" and errors" if bound else ""} refer to pixels that would get one, confidences '
            'and shares kept to all pixels'
        )
    lines += _labels_in_words(report.classes)
    if report.empty:
        lines.append(
            f'{report.empty:,} of {scores.num_images:,} masks hold nothing but {UNSURE}, since no '
            'pixel is above its threshold: lower --threshold, or raise --risk'
        )
    lines += [f'{_files(count)}: {note}' for note, count in sorted(report.notes.items())]
    if report.unreadable:
        lines.append(f'{_files(len(report.unreadable))} without a prediction:')
        lines += [
            printable(f'  {item.image}: {item.reason}') for item in report.unreadable[:MOST_NAMED]
        ]
        if len(report.unreadable) > MOST_NAMED:
            lines.append('  … summary.json lists all of them')
    there = [name for name in WRITTEN if Path(out, name).exists()]
    lines.append(f'{out}: {", ".join(there)}')
    return '\n'.join(lines)


def _labels_in_words(classes: Sequence[Mapping]) -> list[str]:
    lines = ['pixels of each class that the masks keep:'] if classes else []
    for found in classes:
        if found['threshold'] is None:
            text = f'no threshold: {found["reason"]}'
        elif not found['pixels']:
            text = f'above {found["threshold"]:.6g}; not predicted'
        else:
            share = 100 * found['kept'] / found['pixels']
            text = f'{share:.1f} % of {found["pixels"]:,}, above {found["threshold"]:.6g}'
        lines.append(f'  {found["name"]}: {text}')
    return lines


def _files(count: int) -> str:
    return f'{count:,} file{"s" * (count != 1)}'
