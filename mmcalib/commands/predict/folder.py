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

from mmcalib.commands.predict.predictor import Prediction
from mmcalib.commands.predict.scores import Scorer
from mmcalib.commands.predict.words import Report, captions_of
from mmcalib.errors import UserError
from mmcalib.files import whole_file
from mmcalib.runs.record import differences, read_json
from mmcalib.visualization.prediction_picture import draw_classification, draw_segmentation

SETTINGS, SUMMARY, GALLERY = 'settings.json', 'summary.json', 'gallery.html'
TABLE, OBJECTS = 'predictions.csv', 'objects.csv'
SCORES, ARRAYS, PICTURES = 'scores', 'arrays', 'pictures'
SUFFIXES = {SCORES: '.json', ARRAYS: '.npz', PICTURES: '.png'}
KEPT = ('predicted', 'confidence', 'objects', 'probabilities')  # of a prediction, in arrays
BOX = ('top', 'bottom', 'left', 'right')
COLUMNS = ('image', 'label', 'name', 'confidence', 'kept', 'expected_accuracy', 'accuracy_low',
           'accuracy_high', 'mutual_information', 'note', 'files')  # fmt: skip
OBJECT_COLUMNS = ('image', 'object', 'label', 'name', 'pixels', 'share', 'confidence',
                  'expected_iou', 'found', 'calibrated_iou', *BOX, 'files')  # fmt: skip
OF_A_KILLED_PROCESS = re.compile(r'\..*\.[0-9a-f]+\.json')  # see whole_file
MOST_OBJECTS = 20  # in the legend of a picture


class PredictionFolder:
    """Writes predictions so that what is finished stays, whatever happens to the rest.

    The file of an image's scores comes after its other files. An image without one is predicted,
    and so is one that has changed since, or lacks a file that is wanted. So any number of processes
    may share the folder.

    Args:
        folder: To write to.
        kinds: Of ``'arrays'`` and ``'pictures'``, those that are wanted.
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
        file, settings = self.folder / SETTINGS, _plain(settings)
        if not file.is_file() and (self.folder / SCORES).exists():
            raise UserError(f'{self.folder / SCORES} is not from this tool: name another --out')
        if file.is_file() and overwrite:
            for row in self.rows():
                for kind in reversed(SUFFIXES):
                    self.file(kind, row['files']).unlink(missing_ok=True)
            for name in (TABLE, OBJECTS, SUMMARY, GALLERY):
                (self.folder / name).unlink(missing_ok=True)
        elif file.is_file():
            for wrong in differences(read_json(file, 'add --overwrite'), settings):
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
        return [read_json(path, 'remove it, and run this again') for path in paths]

    def left(self, images: Sequence[Path]) -> list[dict]:
        """Return the images that are not finished, where they are, and the names of their files.

        Raises:
            UserError: If two images would have the same files.
        """
        rows = {row['path']: row for row in self.rows()}
        taken, left = {row['files'] for row in rows.values()}, []
        paths = {os.path.abspath(image): image for image in images}
        root = os.path.commonpath([os.path.dirname(path) for path in paths])
        names = {path: Path(os.path.relpath(path, root)) for path in paths}
        stems = Counter(name.with_suffix('') for name in names.values())
        for path, image in paths.items():
            row, name = rows.get(path), names[path].with_suffix('')
            files = row['files'] if row else name.as_posix()
            if row:
                there = all(self.file(kind, files).is_file() for kind in self.kinds)
                if there and row | _state_of(path) == row:
                    continue
                self.file(SCORES, files).unlink()
            elif stems[name] > 1 or files in taken:  # as 13.png and 13.jpg have one
                files = names[path].as_posix()
                if files in taken:
                    raise UserError(
                        f'{image} and another image would share a file {name} in {self.folder}: '
                        'predict them into two folders'
                    )
            taken.add(files)
            left.append({'image': str(image), 'path': path, 'files': files, **_state_of(path)})
        return left

    def write(
        self, found: Prediction, place: Mapping, scorer: Scorer, palette: Sequence | None
    ) -> None:
        """Write the files of an image, its scores last.

        Raises:
            OSError: If there is no room; the next call goes on here.
        """
        arrays = {key: getattr(found, key) for key in KEPT} | found.disagreement
        for kind in self.kinds:
            with whole_file(self.file(kind, place['files'])) as path:
                if kind == ARRAYS:
                    kept = {key: _narrow(a) for key, a in arrays.items() if a is not None}
                    np.savez_compressed(path, **kept)
                else:
                    _picture(found, scorer, palette).save(path)
        _write(self.file(SCORES, place['files']), {**asdict(found.scores), **place})

    def close(self, report: Report, *, page: str = '') -> None:
        """Write the tables of all scores, the summary, and the page of pictures if there is one."""
        rows, summary = report.rows, asdict(report.scores)
        summary['unreadable'] = [
            {'image': str(item.image), 'reason': item.reason} for item in report.unreadable
        ]
        of_means = any(row['mutual_information'] is not None for row in rows)
        columns = [key for key in COLUMNS if of_means or key != 'mutual_information']
        objects = []
        for row in rows:
            row['accuracy_low'], row['accuracy_high'] = row['accuracy_interval']
            for found in row['objects']:
                objects.append(row | found | dict(zip(BOX, found['box'], strict=True)))
        _table(self.folder / TABLE, columns, rows)
        if objects:
            _table(self.folder / OBJECTS, OBJECT_COLUMNS, objects)
        _write(self.folder / SUMMARY, summary)
        if page:
            with whole_file(self.folder / GALLERY) as path:
                path.write_text(page, encoding='utf-8', errors='backslashreplace')


def _picture(found: Prediction, scorer: Scorer, palette: Sequence | None) -> Image.Image:
    texts = dict(classes=scorer.classes, captions=captions_of(found.scores, scorer.threshold))
    if found.probabilities is not None:
        return draw_classification(found.pixels, found.probabilities, **texts)
    shown = sorted(found.scores.objects, key=lambda o: -o.pixels)[:MOST_OBJECTS]
    texts['scores'] = {o.object: (o.label, f'{100 * o.score:.1f} %') for o in shown}
    texts['objects'] = found.objects
    texts |= dict(threshold=scorer.threshold, palette=palette)
    return draw_segmentation(found.pixels, found.predicted, found.confidence, **texts)


def _state_of(path: str) -> dict:
    """Return what tells whether an image was replaced; nothing of one that is not there."""
    try:
        status = os.stat(path)
    except OSError:  # which is said when it is to be read
        return {}
    return {'bytes': status.st_size, 'modified': status.st_mtime_ns}


def _plain(content: object) -> dict:
    """Return content as JSON has it, where NaN and infinity are null."""
    return json.loads(json.dumps(content), parse_constant=lambda _: None)


def _write(file: Path, content: Mapping) -> None:
    with whole_file(file) as path:
        path.write_text(json.dumps(_plain(content), indent=2) + '\n', encoding='utf-8')


def _table(file: Path, columns: Sequence[str], rows: Sequence[Mapping]) -> None:
    # What is no text in a file's name is written as an escape.
    text = dict(newline='', encoding='utf-8', errors='backslashreplace')
    with whole_file(file) as path, path.open('w', **text) as table:
        writer = csv.DictWriter(table, columns, extrasaction='ignore')
        writer.writeheader()
        writer.writerows(rows)


def _narrow(values: np.ndarray) -> np.ndarray:
    """Return classes in the fewest bytes that hold them, and other values as they are."""
    if values.dtype.kind != 'i':
        return values
    return values.astype(np.min_scalar_type(int(values.max(initial=0))))
