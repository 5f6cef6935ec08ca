"""The folder of predictions: the scores of an image, written last, say that it is finished."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from mmcalib.errors import UserError
from mmcalib.files import TEMPORARY_NAME, whole_file, without_nan, write_csv, write_json, write_text
from mmcalib.runs.record import differences, read_json

SETTINGS = 'settings.json'
SUMMARY = 'summary.json'
GALLERY = 'gallery.html'
PREDICTIONS_TABLE = 'predictions.csv'
OBJECTS_TABLE = 'objects.csv'
SCORES_FOLDER = 'scores'
ARRAYS_FOLDER = 'arrays'
PICTURES_FOLDER = 'pictures'
# Scores are written last and removed last.
SUFFIXES = {SCORES_FOLDER: '.json', ARRAYS_FOLDER: '.npz', PICTURES_FOLDER: '.png'}
TABLE_COLUMNS = (
    'image',
    'label',
    'name',
    'confidence',
    'kept',
    'expected_accuracy',
    'accuracy_low',
    'accuracy_high',
    'mutual_information',
    'note',
    'files',
)
OBJECT_COLUMNS = (
    'image',
    'object',
    'label',
    'name',
    'pixels',
    'share',
    'confidence',
    'expected_iou',
    'found',
    'calibrated_iou',
    'top',
    'bottom',
    'left',
    'right',
    'files',
)


class PredictionFolder:
    """Folder whose finished predictions stay, whatever happens to the rest.

    The scores of an image are written after its other files. An image without scores is predicted,
    and so is one that has changed since, or lacks a file that is asked for. So any number of
    processes may share the folder.

    Args:
        folder: Path of the folder.
        arrays: Whether images have their arrays there.
        pictures: Whether images have a picture there.
    """

    def __init__(self, folder: str | Path, *, arrays: bool, pictures: bool) -> None:
        self.folder = Path(folder)
        self.arrays = arrays
        self.pictures = pictures

    def open(self, settings: Mapping, *, overwrite: bool = False) -> None:
        """Begin, or go on where an earlier call stopped.

        It prevents wrong numbers: predictions of other settings do not mix.

        Args:
            settings: Values that predictions depend on, for JSON.
            overwrite: Whether to remove earlier predictions.

        Raises:
            UserError: If the folder has predictions of other settings, or scores of another tool.
        """
        file = self.folder / SETTINGS
        scores_folder = self.folder / SCORES_FOLDER
        settings = without_nan(settings)
        if not file.is_file() and scores_folder.exists():
            raise UserError(f'{scores_folder} is not from this tool: name another --out')
        if file.is_file() and overwrite:
            self.remove_predictions()
        elif file.is_file():
            difference = next(differences(read_json(file, 'add --overwrite'), settings), None)
            if difference is not None:
                raise UserError(
                    f'{self.folder} has predictions with {difference}: name another folder, or add '
                    '--overwrite to start again'
                )
        write_json(file, settings)

    def remove_predictions(self) -> None:
        """Remove the files of all finished images, and the tables of all of them."""
        for row in self.read_rows():
            # Until its scores are gone, an interrupted removal finds the other files again.
            for subfolder in reversed(SUFFIXES):
                self.image_file(subfolder, row['files']).unlink(missing_ok=True)
        for name in (PREDICTIONS_TABLE, OBJECTS_TABLE, SUMMARY, GALLERY):
            (self.folder / name).unlink(missing_ok=True)

    def image_file(self, subfolder: str, name: str) -> Path:
        """Return the path of a file of an image."""
        return self.folder / subfolder / f'{name}{SUFFIXES[subfolder]}'

    def read_rows(self) -> list[dict]:
        """Return the scores of all images that are finished."""
        return [
            read_json(path, 'remove it, and run this again')
            for path in sorted((self.folder / SCORES_FOLDER).rglob('*.json'))
            if not TEMPORARY_NAME.fullmatch(path.name)
        ]

    def find_unfinished(self, images: Sequence[Path]) -> list[dict]:
        """Return the images to predict, each with its path, its state and the name of its files.

        Raises:
            UserError: If two images would have the same files.
        """
        finished = {row['path']: row for row in self.read_rows()}
        taken_names = {row['files'] for row in finished.values()}
        paths = {os.path.abspath(image): image for image in images}
        root = os.path.commonpath([os.path.dirname(path) for path in paths])
        relative_paths = {path: Path(os.path.relpath(path, root)) for path in paths}
        times = Counter(relative.with_suffix('') for relative in relative_paths.values())
        unfinished = []
        for path, image in paths.items():
            state = file_state(path)
            row = finished.get(path)
            if row is None:
                stem = relative_paths[path].with_suffix('')
                name = stem.as_posix()
                if times[stem] > 1 or name in taken_names:  # 13.png and 13.jpg share a stem.
                    name = relative_paths[path].as_posix()
                    if name in taken_names:
                        raise UserError(
                            f'{image} and another image would share a file {stem} in '
                            f'{self.folder}: predict them into two folders'
                        )
            else:
                name = row['files']
                if self.has_files(name) and row | state == row:
                    continue
                self.image_file(SCORES_FOLDER, name).unlink()
            taken_names.add(name)
            unfinished.append({'image': str(image), 'path': path, 'files': name, **state})
        return unfinished

    def has_files(self, name: str) -> bool:
        """Return whether an image has all files that are asked for."""
        if self.arrays and not self.image_file(ARRAYS_FOLDER, name).is_file():
            return False
        return not self.pictures or self.image_file(PICTURES_FOLDER, name).is_file()

    def write(
        self,
        row: Mapping,
        arrays: Mapping[str, np.ndarray],
        picture: Image.Image | None,
        item: Mapping,
    ) -> None:
        """Write the files of an image, its scores last.

        Args:
            row: Scores of the image.
            arrays: Arrays of the prediction.
            picture: Picture of it; None if pictures are not asked for.
            item: Entry of the image in :meth:`find_unfinished`.

        Raises:
            OSError: If the disk is full; the next call goes on here.
        """
        name = item['files']
        if self.arrays:
            narrow_arrays = {key: narrow(values) for key, values in arrays.items()}
            with whole_file(self.image_file(ARRAYS_FOLDER, name)) as path:
                np.savez_compressed(path, **narrow_arrays)
        if self.pictures:
            with whole_file(self.image_file(PICTURES_FOLDER, name)) as path:
                picture.save(path)
        write_json(self.image_file(SCORES_FOLDER, name), {**row, **item})

    def close(self, rows: Sequence[Mapping], summary: Mapping, *, gallery: str = '') -> None:
        """Write the tables of all rows, the summary, and the page of pictures if there is one."""
        table_rows = []
        object_rows = []
        for row in rows:
            low, high = row['accuracy_interval']
            table_rows.append({**row, 'accuracy_low': low, 'accuracy_high': high})
            for item in row['objects']:
                top, bottom, left, right = item['box']
                box = {'top': top, 'bottom': bottom, 'left': left, 'right': right}
                object_rows.append({**row, **item, **box})
        columns = list(TABLE_COLUMNS)
        if all(row['mutual_information'] is None for row in rows):
            columns.remove('mutual_information')
        write_table(self.folder / PREDICTIONS_TABLE, columns, table_rows)
        if object_rows:
            write_table(self.folder / OBJECTS_TABLE, OBJECT_COLUMNS, object_rows)
        write_json(self.folder / SUMMARY, summary)
        if gallery:
            write_text(self.folder / GALLERY, gallery)


def file_state(path: str) -> dict:
    """Return size and time of a file, which tell whether it was replaced; nothing if it is gone."""
    try:
        status = os.stat(path)
    except OSError:  # The error is reported when the file is to be read.
        return {}
    return {'bytes': status.st_size, 'modified': status.st_mtime_ns}


def write_table(file: Path, columns: Sequence[str], rows: Sequence[Mapping]) -> None:
    """Write a table of some columns of rows, whole or not at all."""
    write_csv(file, [columns, *([row.get(column) for column in columns] for row in rows)])


def narrow(values: np.ndarray) -> np.ndarray:
    """Return integers in the fewest bytes that hold them, and other values as they are."""
    if values.dtype.kind != 'i':
        return values
    return values.astype(np.min_scalar_type(int(values.max(initial=0))))
