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

from mmcalib.prediction.captions import captions_of
from mmcalib.prediction.image_predictor import UnreadableImage
from mmcalib.prediction.predict_images import ImagePrediction
from mmcalib.prediction.prediction_rows import (
    KINDS,
    ROWS,
    STATE,
    append_row,
    files_of,
    follow_moved,
    join_rows,
    name_for_files,
    path_of,
    read_rows,
    remove_files,
    remove_rows,
    rows_file,
    state_of,
    write_rows,
)
from mmcalib.prediction.prediction_scores import FolderScores, ImageScores, Mask
from mmcalib.samples.probabilities import MEASURES
from mmcalib.visualization.prediction_picture import draw_classification, draw_segmentation
from mmcalib.work_dir_files import whole_file

TABLE = 'predictions.csv'
MASKS = 'masks.csv'
SUMMARY = 'summary.json'
SETTINGS = 'settings.json'
ARRAYS, PICTURES = KINDS
MOST_MASKS = 20  # in the legend of a picture


class PredictionFolder:
    """Writes predictions so that what is finished stays, whatever happens to the rest.

    An image's array and picture come first, and last its line of ``predictions.jsonl``; a line that
    was cut off is one that is not there. The tables and ``summary.json`` are made of the lines. A
    line also goes, with its files, if its image was replaced or a file that is wanted is not there.

    Of several processes, each writes the files of some images, with a file of lines of its own; the
    first one takes the folder up before the others do, and joins all lines in the end.

    Args:
        folder: To write to; what it holds is taken up again.
        images: The files that are to be predicted.
        settings: What the predictions depend on, for JSON.
        arrays: Whether to write an ``.npz`` file for each image.
        pictures: Whether to write a ``.png`` file for each.
        overwrite: Begin anew in a folder that has predictions, whose files go.
        rank: Of this process.
        processes: How many there are.

    Attributes:
        rows: The lines, each with the scores of an image, where it is, and what its files are
            called.
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
        overwrite: bool = False,
        rank: int = 0,
        processes: int = 1,
    ) -> None:
        self.folder, self.arrays, self.pictures = Path(folder), arrays, pictures
        if self.folder.is_file():
            raise ValueError(f'--out {folder} is a file: name a folder')
        self._images, self._lines = images, rows_file(self.folder, rank)
        if rank == 0:
            if overwrite:
                self._clear()
            self._check_settings(json.loads(json.dumps(settings)))
            self._drop_unfinished(follow_moved(self.folder, join_rows(self.folder, images), images))
        self.rows = read_rows(self.folder / ROWS)
        done = {path_of(row) for row in self.rows}
        self.left = [image for image in images if os.path.abspath(image) not in done]
        self.own = self.left[rank::processes]
        # As they are before they are read: one that is replaced meanwhile is predicted anew.
        self._states = {str(image): state_of(image) for image in self.own}
        self._names = self._name_files()

    def write(
        self,
        prediction: ImagePrediction,
        *,
        threshold: float,
        classes: Sequence[str],
        palette: Sequence[Sequence[int]] | None = None,
    ) -> None:
        """Write the files of an image, and its line.

        Raises:
            OSError: If there is no room; what was there before is as it was.
        """
        scores = prediction.scores
        name = self._names[scores.image]
        if self.arrays:
            arrays = {
                'predicted': _narrow(prediction.predicted),
                'confidence': prediction.confidence,
                **prediction.disagreement,
            }
            if prediction.probabilities is not None:
                arrays['probabilities'] = prediction.probabilities
            with whole_file(self.folder / ARRAYS / f'{name}.npz') as path:
                np.savez_compressed(path, **arrays)
        if self.pictures:
            captions = captions_of(scores, threshold)
            if prediction.probabilities is None:
                masks = sorted(scores.masks, key=lambda mask: -mask.pixels)[:MOST_MASKS]
                picture = draw_segmentation(
                    prediction.pixels,
                    prediction.predicted,
                    prediction.confidence,
                    threshold=threshold,
                    classes=classes,
                    palette=palette,
                    captions=captions,
                    scores=[(mask.label, f'{100 * mask.score:.1f} %') for mask in masks],
                )
            else:
                picture = draw_classification(
                    prediction.pixels,
                    prediction.probabilities,
                    classes=classes,
                    captions=captions,
                )
            with whole_file(self.folder / PICTURES / f'{name}.png') as path:
                picture.save(path)
        row = {**_without_nan(asdict(scores)), 'files': name, **self._states[scores.image]}
        append_row(self._lines, row)
        self.rows.append(row)

    def join(self) -> None:
        """Take the lines of all processes together, once they have written all."""
        self.rows = join_rows(self.folder, self._images)

    def scores(self) -> list[ImageScores]:
        """Return the scores of all images that have a line."""
        return [_scores_of(row) for row in self.rows]

    def close(self, scores: FolderScores, unreadable: Sequence[UnreadableImage]) -> None:
        """Write the tables in the order of the files, and the summary with what was unreadable."""
        self.join()
        _write_table(self.folder / TABLE, [_flat(row) for row in self.rows])
        if any(row['masks'] for row in self.rows):
            masks = [
                {'image': row['image'], **mask, 'files': row['files']}
                for row in self.rows
                for mask in row['masks']
            ]
            _write_table(self.folder / MASKS, masks)
        summary = {
            **_without_nan(asdict(scores)),
            'unreadable': [{'image': str(u.image), 'reason': u.reason} for u in unreadable],
        }
        with whole_file(self.folder / SUMMARY) as path:
            path.write_text(json.dumps(summary, indent=2) + '\n', encoding='utf-8')

    def _clear(self) -> None:
        """Remove what earlier calls have left, and nothing else."""
        if any((self.folder / name).is_file() for name in (SETTINGS, ROWS)):
            remove_rows(self.folder)
            self._remove_tables()
            (self.folder / SETTINGS).unlink(missing_ok=True)

    def _remove_tables(self) -> None:
        for name in (TABLE, MASKS, SUMMARY):
            (self.folder / name).unlink(missing_ok=True)

    def _drop_unfinished(self, rows: Sequence[Mapping]) -> None:
        """Take out the lines of images that are to be predicted anew, and their files."""
        states = {state['path']: state for state in map(state_of, self._images)}
        kept, dropped = [], []
        for row in rows:
            finished = self._is_finished(row, states.get(path_of(row)))
            (kept if finished else dropped).append(row)
        if dropped:
            self._remove_tables()
            remove_files(self.folder, dropped)
            write_rows(self.folder, kept)

    def _is_finished(self, row: Mapping, state: Mapping | None) -> bool:
        """Return whether an image needs no other line, as does none that is not asked for."""
        if state is None:
            return True
        same = all(row.get(key) == value for key, value in state.items())
        wanted = [kind for kind in KINDS if getattr(self, kind)]
        return same and all(path.is_file() for path in files_of(self.folder, row, wanted))

    def _check_settings(self, settings: dict) -> None:
        """Raise a ValueError if the lines that are there are of others; without any, write them."""
        file, rows = self.folder / SETTINGS, self.folder / ROWS
        if not file.is_file():
            if rows.is_file():
                raise ValueError(f'{rows} is of something else, as {SETTINGS} is not beside it')
            with whole_file(file) as path:
                path.write_text(json.dumps(settings, indent=2) + '\n', encoding='utf-8')
            return
        try:
            before = json.loads(file.read_text(encoding='utf-8'))
        except json.JSONDecodeError as error:
            raise ValueError(f'{file} cannot be read: {error}. --overwrite begins anew') from error
        for key in settings:
            if key not in before:
                raise ValueError(
                    f'{self.folder} has predictions of an older version, which does not say of '
                    f'which {key}: name another folder, or --overwrite begins anew'
                )
            if before[key] != settings[key]:
                raise ValueError(
                    f'{self.folder} has predictions of another {key}, {before[key]} rather '
                    f'than {settings[key]}: name another folder, or --overwrite begins anew'
                )

    def _name_files(self) -> dict[str, str]:
        """Return what the files of the images that are left are called.

        It is their path below the folder that all have in common.
        """
        parents = [os.path.dirname(os.path.abspath(image)) for image in self._images]
        root = os.path.commonpath(parents) if parents else ''
        names, taken = {}, {row['files'] for row in self.rows}
        for image in self.left:
            path = Path(os.path.relpath(os.path.abspath(image), root)).as_posix()
            name = free = name_for_files(path)
            number = 1
            while free in taken:  # by an image of an earlier call, from another folder
                number += 1
                free = f'{name}-{number}'
            taken.add(free)
            names[str(image)] = free
        return names


def _scores_of(row: Mapping) -> ImageScores:
    values = {key: math.nan if value is None else value for key, value in row.items()}
    for key in ('files', *STATE):
        values.pop(key, None)
    values['label'], values['name'] = row['label'], row['name']
    values['masks'] = tuple(Mask(**mask) for mask in row['masks'])
    values['accuracy_interval'] = tuple(
        math.nan if end is None else end for end in row['accuracy_interval']
    )
    return ImageScores(**values)


def _flat(row: Mapping) -> dict:
    """Return the row of the table of images, in which a segmentor has no class and no masks."""
    low, high = row['accuracy_interval']
    found = {key: row[key] for key in ('image', 'label', 'name', 'confidence', 'kept')}
    found |= {'expected_accuracy': row['expected_accuracy'], 'accuracy_low': low}
    found['accuracy_high'] = high
    # Of a mean, in all rows if in one.
    found |= {key: row[key] for key in MEASURES if row.get(key) is not None}
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
