"""The folder of predictions: the scores of an image, written last, say that it is finished."""

from __future__ import annotations

import csv
import json
import os
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
from PIL import Image

from mmcalib.checks import UserError
from mmcalib.record import differences
from mmcalib.tasks.predict.predictor import Prediction, Predictor
from mmcalib.tasks.predict.scores import Scorer
from mmcalib.tasks.predict.summary import captions_of
from mmcalib.visualization.prediction_picture import draw_classification, draw_segmentation
from mmcalib.work_dir import whole_file

SETTINGS, SUMMARY, GALLERY = 'settings.json', 'summary.json', 'gallery.html'
TABLE, OBJECTS = 'predictions.csv', 'objects.csv'
SCORES, ARRAYS, PICTURES, LABELS = 'scores', 'arrays', 'pictures', 'labels'
SUFFIXES = {SCORES: '.json', ARRAYS: '.npz', PICTURES: '.png', LABELS: '.png'}
INTERVAL, BOX = ('accuracy_low', 'accuracy_high'), ('top', 'bottom', 'left', 'right')
COLUMNS = ('image', 'label', 'name', 'confidence', 'kept', 'expected_accuracy', *INTERVAL,
           'mutual_information', 'note', 'files')  # fmt: skip
OBJECT_COLUMNS = ('image', 'object', 'label', 'name', 'pixels', 'share', 'confidence',
                  'expected_iou', 'found', 'calibrated_iou', *BOX, 'files')  # fmt: skip
OF_A_KILLED_PROCESS = re.compile(r'\..*\.\d+\.json')  # see whole_file
MOST_OBJECTS = 20  # in the legend of a picture
UNSURE = 255  # in a mask of labels


class PredictionFolder:
    """Writes predictions so that what is finished stays, whatever happens to the rest.

    The file of an image's scores comes after its other files. An image without one is predicted,
    and so is one that has changed since, or lacks a file that is wanted. So any number of processes
    may share the folder.

    Args:
        folder: To write to.
        kinds: Of ``'arrays'``, ``'pictures'`` and ``'labels'``, those that are wanted.
    """

    def __init__(self, folder: str | Path, kinds: Collection[str]) -> None:
        self.folder, self.kinds = Path(folder), kinds

    def open(self, settings: Mapping, *, overwrite: bool = False) -> None:
        """Begin, or go on where an earlier call stopped.

        Args:
            settings: What predictions depend on, for JSON.
            overwrite: Remove what is there.

        Raises:
            UserError: If the folder has predictions of other settings, or scores of another tool.
        """
        file, settings = self.folder / SETTINGS, json.loads(json.dumps(settings))
        if not file.is_file() and (self.folder / SCORES).exists():
            raise UserError(f'{self.folder / SCORES} is not from this tool: name another --out')
        if file.is_file() and overwrite:
            for kind, row in ((kind, row) for row in self.rows() for kind in reversed(SUFFIXES)):
                self.file(kind, row['files']).unlink(missing_ok=True)
            for name in (TABLE, OBJECTS, SUMMARY, GALLERY):
                (self.folder / name).unlink(missing_ok=True)
        elif file.is_file():
            there = json.loads(file.read_text(encoding='utf-8'))
            for wrong in differences(there, settings):
                raise UserError(
                    f'{self.folder} has predictions with {wrong}: name another folder, or add '
                    '--overwrite to start again'
                )
        _write(file, settings)

    def file(self, kind: str, name: str) -> Path:
        """Return the path of a file of an image."""
        return self.folder / kind / f'{name}{SUFFIXES[kind]}'

    def rows(self) -> list[dict]:
        """Return the scores of all images that are finished."""
        paths = sorted((self.folder / SCORES).rglob('*.json'))
        paths = [path for path in paths if not OF_A_KILLED_PROCESS.fullmatch(path.name)]
        return [json.loads(path.read_text(encoding='utf-8')) for path in paths]

    def left(self, images: Sequence[Path]) -> list[dict]:
        """Return the images that are not finished, where they are, and the names of their files."""
        rows = {row['path']: row for row in self.rows()}
        taken, left = {row['files'] for row in rows.values()}, []
        root = os.path.commonpath([os.path.dirname(os.path.abspath(image)) for image in images])
        names = {image: Path(os.path.relpath(os.path.abspath(image), root)) for image in images}
        stems = Counter(str(name.with_suffix('')) for name in names.values())
        for image, name in names.items():
            state = _state_of(os.path.abspath(image))
            row = rows.get(state['path'])
            if row is None:
                files = str(name.with_suffix(''))
                if stems[files] > 1 or files in taken:  # as 13.png and 13.jpg have one
                    files = str(name)
                    self._check_name(image, files, taken)
            else:
                files = row['files']
                wanted = (self.file(kind, files) for kind in self.kinds)
                if row | state == row and all(map(Path.is_file, wanted)):
                    continue
                self.file(SCORES, files).unlink()
            taken.add(files)
            left.append({'image': str(image), 'files': files, **state})
        return left

    def _check_name(self, image: Path, files: str, taken: Collection[str]) -> None:
        if files in taken:
            raise UserError(
                f'{files} in {self.folder} is of another image than {image}: name another --out'
            )
        if LABELS in self.kinds:
            raise UserError(
                f'{image} would share a mask of labels with another image, since a data set finds '
                "it by the image's name without its suffix: predict them into two folders"
            )

    def write(
        self, found: Prediction, place: Mapping, scorer: Scorer, predictor: Predictor
    ) -> None:
        """Write the files of an image, its scores last.

        Raises:
            OSError: If there is no room; the next call goes on here.
        """
        files = place['files']
        if ARRAYS in self.kinds:
            arrays = {
                'predicted': _narrow(found.predicted),
                'confidence': found.confidence,
                **found.disagreement,
            }
            if found.objects is not None:
                arrays['objects'] = _narrow(found.objects)
            if found.probabilities is not None:
                arrays['probabilities'] = found.probabilities
            with whole_file(self.file(ARRAYS, files)) as path:
                np.savez_compressed(path, **arrays)
        if PICTURES in self.kinds:
            with whole_file(self.file(PICTURES, files)) as path:
                _picture(found, scorer, predictor).save(path)
        if LABELS in self.kinds:
            kept = found.confidence > np.array(scorer.class_thresholds)[found.predicted]
            mask = np.where(kept, found.predicted, UNSURE).astype(np.uint8)
            with whole_file(self.file(LABELS, files)) as path:
                Image.fromarray(mask).save(path)
        _write(self.file(SCORES, files), {**asdict(found.scores), **place})

    def close(self, rows: Sequence[Mapping], summary: Mapping, *, page: str = '') -> None:
        """Write the tables of all scores, the summary, and the page of pictures if there is one."""
        objects = [
            {**row, **found, **dict(zip(BOX, found['box'], strict=True))}
            for row in rows
            for found in row['objects']
        ]
        rows = [
            {**row, **dict(zip(INTERVAL, row['accuracy_interval'], strict=True))} for row in rows
        ]
        of_means = any(row['mutual_information'] is not None for row in rows)
        columns = [key for key in COLUMNS if of_means or key != 'mutual_information']
        _table(self.folder / TABLE, columns, rows)
        if objects:
            _table(self.folder / OBJECTS, OBJECT_COLUMNS, objects)
        _write(self.folder / SUMMARY, summary)
        if page:
            with whole_file(self.folder / GALLERY) as path:
                path.write_text(page, encoding='utf-8', errors='backslashreplace')


def _picture(found: Prediction, scorer: Scorer, predictor: Predictor) -> Image.Image:
    captions, classes = captions_of(found.scores, scorer.threshold), predictor.classes
    if found.probabilities is not None:
        probabilities = found.probabilities
        return draw_classification(found.pixels, probabilities, classes=classes, captions=captions)
    shown = sorted(found.scores.objects, key=lambda o: -o.pixels)[:MOST_OBJECTS]
    return draw_segmentation(
        found.pixels,
        found.predicted,
        found.confidence,
        threshold=scorer.threshold,
        classes=classes,
        palette=predictor.palette,
        captions=captions,
        scores=[(o.label, f'{100 * o.score:.1f} %') for o in shown],
        objects=found.objects,
        numbers=[o.object for o in shown],
    )


def _state_of(path: str) -> dict:
    """Return the path of an image, and what tells whether it was replaced."""
    try:
        status = os.stat(path)
    except OSError:  # which is said when it is to be read
        return {'path': path}
    return {'path': path, 'bytes': status.st_size, 'modified': status.st_mtime_ns}


def _write(file: Path, content: Mapping) -> None:
    with whole_file(file) as path:
        path.write_text(json.dumps(without_nan(content), indent=2) + '\n', encoding='utf-8')


def _table(file: Path, columns: Sequence[str], rows: Sequence[Mapping]) -> None:
    # What is no text in a file's name is written as an escape.
    text = dict(newline='', encoding='utf-8', errors='backslashreplace')
    with whole_file(file) as path, path.open('w', **text) as table:
        writer = csv.DictWriter(table, columns, extrasaction='ignore')
        writer.writeheader()
        writer.writerows(rows)


def _narrow(classes: np.ndarray) -> np.ndarray:
    """Return classes in the fewest bytes that hold them."""
    return classes.astype(np.min_scalar_type(int(classes.max(initial=0))))


def without_nan(values: object) -> object:
    """Return values for JSON, which has no NaN."""
    if isinstance(values, dict):
        return {key: without_nan(value) for key, value in values.items()}
    if isinstance(values, (list, tuple)):
        return [without_nan(value) for value in values]
    return None if isinstance(values, float) and values != values else values
