"""The folder that predictions of images are written to, one after the other, and taken up again."""

from __future__ import annotations

import csv
import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
from PIL import Image

from mmcalib.tasks.predict.captions import captions_of
from mmcalib.tasks.predict.gallery import GALLERY
from mmcalib.tasks.predict.image_predictor import UnreadableImage
from mmcalib.tasks.predict.predict_images import ImagePrediction
from mmcalib.tasks.predict.prediction_scores import FolderScores, ImageScores
from mmcalib.visualization.prediction_picture import draw_classification, draw_segmentation
from mmcalib.work_dir import whole_file

ROWS = 'predictions.jsonl'
PARTS = 'predictions.*.jsonl'  # of the processes other than the first
TABLE = 'predictions.csv'
OBJECTS = 'objects.csv'
SUMMARY = 'summary.json'
SETTINGS = 'settings.json'
ARRAYS, PICTURES = 'arrays', 'pictures'  # folders with a file for each image
LABELS = 'labels'  # likewise, of any name
SUFFIXES = {ARRAYS: '.npz', PICTURES: '.png', LABELS: '.png'}
MOST_OBJECTS = 20  # in the legend of a picture
UNSURE = 255  # in a mask of labels


class PredictionFolder:
    """Writes predictions so that what is finished stays, whatever happens to the rest.

    An image's array and picture come first, and last its line of ``predictions.jsonl``; a line that
    was cut off is one that is not there. The tables and ``summary.json`` are made of the lines. A
    line goes, with its files, if its image has another size or time of change now, or a file that
    is wanted is not there.

    Of several processes, each writes the files of some images, with a file of lines of its own; the
    first one takes the folder up before the others do, and joins all lines in the end.

    Args:
        folder: To write to; what it holds is taken up again.
        images: The files that are to be predicted.
        settings: What the predictions depend on, for JSON.
        arrays: Whether to write an ``.npz`` file for each image.
        pictures: Whether to write a ``.png`` file for each.
        labels: Folder for masks with the classes of the pixels, and 255 where a class is not above
            its threshold; None for none.
        overwrite: Begin anew in a folder that has predictions, whose files go.
        rank: Of this process.
        processes: How many there are.

    Attributes:
        rows: The lines, each with the scores of an image, where it is, and the name of its files.
        left: Which images have no line yet.
        own: Those among them that this process is to write.

    Raises:
        OSError: If nothing can be written there.
        ValueError: If it holds predictions of other settings, or files that are none of ours.
    """

    def __init__(
        self,
        folder: str | Path,
        images: Sequence[Path],
        settings: Mapping,
        *,
        arrays: bool = True,
        pictures: bool = True,
        labels: str | Path | None = None,
        overwrite: bool = False,
        rank: int = 0,
        processes: int = 1,
    ) -> None:
        self.folder = Path(folder)
        self.kinds = [ARRAYS] * arrays + [PICTURES] * pictures + [LABELS] * (labels is not None)
        self.labels = labels and Path(labels)
        self._images = {os.path.abspath(image): image for image in images}
        self._lines = self.folder / (PARTS.replace('*', str(rank)) if rank else ROWS)
        if rank == 0:
            if overwrite and (self.folder / SETTINGS).is_file():
                self._clear()
            self._check_settings(json.loads(json.dumps(settings)))
            self._take_up()
        self.rows = _read_rows(self.folder / ROWS)
        done = {row['path'] for row in self.rows}
        left = [path for path in self._images if path not in done]
        self.left = [self._images[path] for path in left]
        self.own = self.left[rank::processes]
        names = self._name_files(left)
        # As they are before they are read: one that is replaced meanwhile is predicted anew.
        self._places = {
            str(self._images[path]): {'files': names[path], **_state_of(path)}
            for path in left[rank::processes]
        }

    def write(
        self,
        prediction: ImagePrediction,
        *,
        threshold: float,
        classes: Sequence[str],
        palette: Sequence[Sequence[int]] | None = None,
        class_thresholds: Sequence[float] = (),
    ) -> None:
        """Write the files of an image, and its line.

        Args:
            prediction: Of the image.
            threshold: What the picture keeps.
            classes: K names.
            palette: Their colours.
            class_thresholds: What the mask of labels keeps of each class.

        Raises:
            OSError: If there is no room; the next call goes on here.
        """
        scores = prediction.scores
        place = self._places[scores.image]
        if ARRAYS in self.kinds:
            arrays = {
                'predicted': _narrow(prediction.predicted),
                'confidence': prediction.confidence,
                **prediction.disagreement,
            }
            if prediction.objects is not None:
                arrays['objects'] = _narrow(prediction.objects)
            if prediction.probabilities is not None:
                arrays['probabilities'] = prediction.probabilities
            with whole_file(self._file(ARRAYS, place)) as path:
                np.savez_compressed(path, **arrays)
        if PICTURES in self.kinds:
            captions = captions_of(scores, threshold)
            if prediction.probabilities is None:
                shown = sorted(scores.objects, key=lambda found: -found.pixels)[:MOST_OBJECTS]
                picture = draw_segmentation(
                    prediction.pixels,
                    prediction.predicted,
                    prediction.confidence,
                    threshold=threshold,
                    classes=classes,
                    palette=palette,
                    captions=captions,
                    scores=[(o.label, f'{100 * o.score:.1f} %') for o in shown],
                    objects=prediction.objects,
                    numbers=[o.object for o in shown],
                )
            else:
                picture = draw_classification(
                    prediction.pixels,
                    prediction.probabilities,
                    classes=classes,
                    captions=captions,
                )
            with whole_file(self._file(PICTURES, place)) as path:
                picture.save(path)
        if LABELS in self.kinds:
            self._write_labels(prediction, place, class_thresholds)
        row = {**_without_nan(asdict(scores)), **place}
        with self._lines.open('a', encoding='utf-8') as file:
            file.write(_line(row))
        self.rows.append(row)

    def _write_labels(
        self, prediction: ImagePrediction, place: Mapping, thresholds: Sequence[float]
    ) -> None:
        kept = prediction.confidence > np.array(thresholds)[prediction.predicted]
        labels = np.where(kept, prediction.predicted, UNSURE).astype(np.uint8)
        with whole_file(self._file(LABELS, place)) as path:
            Image.fromarray(labels).save(path)

    def join(self) -> None:
        """Bring the lines of all processes into one file, in the order of the images."""
        parts, found = sorted(self.folder.glob(PARTS)), {}
        for file in (self.folder / ROWS, *parts):
            for row in _read_rows(file):  # twice of a process killed before it removed the parts
                found.setdefault(row['path'], row)
        order = {path: number for number, path in enumerate(self._images)}
        self._replace_rows(sorted(found.values(), key=lambda row: order.get(row['path'], -1)))
        for part in parts:
            part.unlink()

    def scores(self) -> list[ImageScores]:
        """Return those scores of all images that have a line that a folder's are made of."""
        keys = ('image', 'confidence', 'kept', 'label', 'note')
        return [
            ImageScores(
                **{key: row[key] for key in keys},
                expected_accuracy=_or_nan(row['expected_accuracy']),
            )
            for row in self.rows
        ]

    def close(
        self,
        scores: FolderScores,
        unreadable: Sequence[UnreadableImage],
        classes: Sequence[Mapping] = (),
    ) -> None:
        """Write the tables of the lines, and the summary with classes and what was unreadable."""
        _write_table(self.folder / TABLE, [_flat(row) for row in self.rows])
        objects = [_object_row(row, found) for row in self.rows for found in row['objects']]
        if objects:
            _write_table(self.folder / OBJECTS, objects)
        summary = {
            **_without_nan(asdict(scores)),
            **({'classes': classes} if classes else {}),
            'unreadable': [{'image': str(u.image), 'reason': u.reason} for u in unreadable],
        }
        with whole_file(self.folder / SUMMARY) as path:
            path.write_text(json.dumps(summary, indent=2) + '\n', encoding='utf-8')

    def _clear(self) -> None:
        """Remove what earlier calls have left, and nothing else."""
        for lines in (self.folder / ROWS, *self.folder.glob(PARTS)):
            self._remove_files(_read_rows(lines))
            lines.unlink(missing_ok=True)
        for name in (TABLE, OBJECTS, SUMMARY, SETTINGS, GALLERY):
            (self.folder / name).unlink(missing_ok=True)

    def _check_settings(self, settings: dict) -> None:
        """Raise a ValueError if the lines that are there are of others; without any, write them."""
        file, rows = self.folder / SETTINGS, self.folder / ROWS
        if not file.is_file():
            if rows.is_file():
                raise ValueError(
                    f'{rows} is not from this tool, which writes {SETTINGS} beside it: name '
                    'another folder'
                )
            with whole_file(file) as path:
                path.write_text(json.dumps(settings, indent=2) + '\n', encoding='utf-8')
            return
        before = json.loads(file.read_text(encoding='utf-8'))
        for key in settings:
            if before.get(key) != settings[key]:
                raise ValueError(
                    f'{self.folder} has predictions with another {key}, {before.get(key)} instead '
                    f'of {settings[key]}: name another folder, or add --overwrite to start again'
                )

    def _take_up(self) -> None:
        """Join the lines; take out those of images to be predicted anew, with their files."""
        self.join()
        kept, dropped = [], []
        for row in self.rows:
            (kept if self._is_finished(row) else dropped).append(row)
        if dropped:
            self._remove_files(dropped)
            self._replace_rows(kept)

    def _is_finished(self, row: Mapping) -> bool:
        """Return whether an image needs no other line, as does none that is not asked for."""
        if row['path'] not in self._images:
            return True
        unchanged = row | _state_of(row['path']) == row
        return unchanged and all(self._file(kind, row).is_file() for kind in self.kinds)

    def _file(self, kind: str, row: Mapping) -> Path:
        if kind == LABELS:
            return (self.labels / row['files']).with_suffix(SUFFIXES[LABELS])
        return self.folder / kind / f'{row["files"]}{SUFFIXES[kind]}'

    def _remove_files(self, rows: Sequence[Mapping]) -> None:
        for row in rows:
            for kind in (ARRAYS, PICTURES, *([LABELS] if self.labels else [])):
                self._file(kind, row).unlink(missing_ok=True)

    def _replace_rows(self, rows: list[dict]) -> None:
        with whole_file(self.folder / ROWS) as path:
            path.write_text(''.join(map(_line, rows)), encoding='utf-8')
        self.rows = rows

    def _name_files(self, paths: Sequence[str]) -> dict[str, str]:
        """Return the names of images' files: their path below the folder common to all."""
        root = os.path.commonpath(map(os.path.dirname, self._images))
        names, taken = {}, {row['files'] for row in self.rows}
        for path in paths:
            name = free = Path(os.path.relpath(path, root)).as_posix()
            number = 1
            while free in taken:  # by an image of an earlier call, from another folder
                number += 1
                free = f'{name}-{number}'
            taken.add(free)
            names[path] = free
        if LABELS in self.kinds:
            _check_stems([*names.values(), *(row['files'] for row in self.rows)])
        return names


def _check_stems(files: Sequence[str]) -> None:
    """Raise a ValueError if two images would have the same mask of labels."""
    found: dict[str, str] = {}
    for file in files:
        other = found.setdefault(str(Path(file).with_suffix('')), file)
        if other != file:
            raise ValueError(
                f'{other} and {file} would share a mask of labels, since a data set finds it by '
                "the image's name without its suffix: predict them into two folders"
            )


def _object_row(row: Mapping, found: Mapping) -> dict:
    """Return the row of the table of objects."""
    values = {key: value for key, value in found.items() if key != 'box'}
    box = dict(zip(('top', 'bottom', 'left', 'right'), found['box'], strict=True))
    return {'image': row['image'], **values, **box, 'files': row['files']}


def _read_rows(file: Path) -> list[dict]:
    """Return the rows of a file, none if it is not there, without a line that was cut off."""
    text = file.read_text(encoding='utf-8') if file.is_file() else ''
    return [json.loads(line) for line in text.split('\n')[:-1]]


def _line(row: Mapping) -> str:
    return json.dumps(row) + '\n'


def _state_of(path: str) -> dict:
    """Return the path of an image, and what tells whether it was replaced."""
    try:
        status = os.stat(path)
    except OSError:  # which is said when it is to be read
        return {'path': path}
    return {'path': path, 'bytes': status.st_size, 'modified': status.st_mtime_ns}


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else value


def _flat(row: Mapping) -> dict:
    """Return the row of the table of images, in which a segmentor has no class and no objects."""
    low, high = row['accuracy_interval']
    found = {key: row[key] for key in ('image', 'label', 'name', 'confidence', 'kept')}
    found |= {'expected_accuracy': row['expected_accuracy'], 'accuracy_low': low}
    found['accuracy_high'] = high
    # Of a mean, in all rows if in one.
    if row.get('mutual_information') is not None:
        found['mutual_information'] = row['mutual_information']
    return found | {'note': row['note'], 'files': row['files']}


def _write_table(table: Path, rows: Sequence[Mapping]) -> None:
    # What is no text in a file's name is written as an escape.
    text = dict(newline='', encoding='utf-8', errors='backslashreplace')
    with whole_file(table) as path, path.open('w', **text) as file:
        if rows:
            writer = csv.DictWriter(file, rows[0])
            writer.writeheader()
            writer.writerows(rows)


def _narrow(classes: np.ndarray) -> np.ndarray:
    """Return classes in the fewest bytes that hold them."""
    return classes.astype(np.min_scalar_type(int(classes.max(initial=0))))


def _without_nan(values: object) -> object:
    """Return values for JSON, which has no NaN."""
    if isinstance(values, dict):
        return {key: _without_nan(value) for key, value in values.items()}
    if isinstance(values, (list, tuple)):
        return [_without_nan(value) for value in values]
    return None if isinstance(values, float) and math.isnan(values) else values
