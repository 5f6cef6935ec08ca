"""Predictions, labels and groups that lie in .npy, .npz, .csv and .parquet files."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.special import expit, logit, softmax

from mmcalib.errors import UserError, did_you_mean
from mmcalib.predictions.contract import FEW_OUTPUTS

LABELS = 'labels'
PROBS = 'probs'
LOGITS = 'logits'
GROUPS = 'groups'
# A message lists no more names than a line holds.
MOST_NAMES = 12


class StoredPredictions(NamedTuple):
    """Predictions of a file, with their labels and groups.

    Attributes:
        values: Probabilities or logits, as :func:`~mmcalib.measure` takes probabilities.
        labels: Labels, integers, as :func:`~mmcalib.measure` takes them; None if there are none.
        groups: Names of the groups of the images; None if none are named.
        are_logits: Whether the values are logits.
        classes: Names of the classes by the columns of a table; empty without several columns.
        columns: Names of the columns of a table, or of the key, that have the values.
    """

    values: np.ndarray
    labels: np.ndarray | None
    groups: list | None
    are_logits: bool
    classes: Sequence[str] = ()
    columns: Sequence[str] = ()

    @property
    def are_of_sigmoids(self) -> bool:
        """Whether each value is of one class of two, or of one of several labels."""
        values = self.values
        if values.ndim == 1 or values.shape[1] == 1:
            return True
        return self.labels is not None and values.shape == self.labels.shape

    @property
    def are_of_several_labels(self) -> bool:
        """Whether each value of a row is of one of several labels."""
        return self.are_of_sigmoids and self.values.ndim == 2 and self.values.shape[1] > 1

    @property
    def are_of_two_classes(self) -> bool:
        """Whether the probability of class 1 tells that of the only other class."""
        return self.are_of_sigmoids or self.values.shape[1] == 2

    def in_order(self, columns: Sequence[int]) -> StoredPredictions:
        """Return the predictions with their columns, and the labels of these, in another order."""
        labels = self.labels
        if labels is not None and labels.ndim == 1:
            new_number = np.argsort(columns)
            is_class = (labels >= 0) & (labels < len(columns))  # others are ignored, or refused
            labels = np.where(is_class, new_number[np.where(is_class, labels, 0)], labels)
        elif labels is not None:
            labels = labels[:, columns]
        return self._replace(
            values=self.values[:, columns],
            labels=labels,
            classes=[self.classes[column] for column in columns],
            columns=[self.columns[column] for column in columns],
        )

    def probabilities(self) -> np.ndarray:
        """Return probabilities, float64 where they are made from logits."""
        if not self.are_logits:
            return self.values
        logits = np.asarray(self.values, dtype=np.float64)
        return expit(logits) if self.are_of_sigmoids else softmax(logits, axis=1)

    def logits(self) -> np.ndarray:
        """Return logits, float64 where they are made from probabilities.

        Raises:
            UserError: For probabilities of 0, whose logarithm is infinite, or of 1 of a sigmoid.
        """
        if self.are_logits:
            return self.values
        probs = np.asarray(self.values, dtype=np.float64)
        is_end = probs == 0
        ends = '0'
        if self.are_of_sigmoids:
            is_end |= probs == 1
            ends = '0 or 1'
        if is_end.any():
            inside = probs[(probs > 0) & (probs < 1)]
            if self.are_of_sigmoids:  # 1 is as far from the others as 0.
                inside = np.minimum(inside, 1 - inside)
            least = inside.min() / 2 if len(inside) else 0.01
            remedy = f'put {least:.2g}, half of the smallest positive one, in place of 0'
            if self.are_of_sigmoids:
                remedy = (
                    f'put {least:.2g}, half of the smallest distance of another one from both, in '
                    f'place of 0, and 1 - {least:.2g} in place of 1'
                )
            raise UserError(
                f'{int(is_end.sum()):,} of {probs.size:,} probabilities are {ends}, and have no '
                f'finite logit: give logits, or {remedy}, here and wherever the scaling is used'
            )
        return logit(probs) if self.are_of_sigmoids else np.log(probs)


class FileColumns(NamedTuple):
    """The named arrays of a file: keys of an .npz archive, or columns of a table."""

    path: str
    arrays: Mapping[str, np.ndarray]
    kind: str

    def find(self, name: str, option: str) -> np.ndarray:
        """Return the array of a name.

        Raises:
            UserError: If there is none, or it holds Python objects.
        """
        if name not in self.arrays:
            raise UserError(
                f'{self.path} has no {self.kind} {name!r}: name one by {option}; it has '
                f'{self._names_text()}'
            )
        try:
            return np.asarray(self.arrays[name])
        except ValueError as error:
            raise UserError(
                f'{self.path}: {self.kind} {name!r} holds Python objects: save arrays of numbers'
            ) from error

    def matching(self, patterns: Sequence[str], option: str) -> dict[str, str]:
        """Return the columns that some names or patterns match, each with the name of its class.

        The class of a pattern ``p_*`` is what the star stands for; that of a name is the name.
        """
        classes: dict[str, str] = {}
        for pattern in patterns:
            if '*' not in pattern:
                self.find(pattern, option)
                classes[pattern] = pattern
                continue
            expression = '(.*)'.join(map(re.escape, pattern.split('*')))
            matches = [re.fullmatch(expression, name) for name in self.arrays]
            class_of_column = {match[0]: match[1] for match in matches if match}
            if not class_of_column:
                raise UserError(
                    f'{self.path} has no {self.kind} like {pattern!r}: it has {self._names_text()}'
                )
            classes |= class_of_column
        return classes

    def _names_text(self) -> str:
        names = list(self.arrays)
        text = ', '.join(names[:MOST_NAMES])
        return text if len(names) <= MOST_NAMES else f'{text} and {len(names) - MOST_NAMES} more'


def read_predictions(
    files: Sequence[str],
    *,
    predictions: Sequence[str] = (),
    labels: Sequence[str] = (),
    groups: str | None = None,
    are_logits: bool = False,
    may_lack_labels: bool = False,
) -> StoredPredictions:
    """Return predictions, labels and groups of one .npz, .csv or .parquet file, or of .npy files.

    Labels of a table that are texts are names of classes: those of the columns of the predictions,
    with or without what all begin or end with, or what the star of a pattern stands for. Labels
    that are integers are such names too, where a pattern's columns are numbered, so that the
    columns may come in any order.

    Args:
        files: One file with names, or two .npy files, of predictions and of labels; a third one may
            have the groups.
        predictions: Key or columns of the predictions, also patterns such as ``p_*``; by default
            the key ``probs``, or ``logits``, which are then logits.
        labels: Key or columns of the labels, by default ``labels``; columns are several labels.
        groups: Key or column of the groups.
        are_logits: Whether the predictions are logits.
        may_lack_labels: Whether predictions without labels are returned, too.

    Raises:
        UserError: If a file cannot be read, a name is missing, or a value is no number.
    """
    suffixes = {Path(file).suffix.lower() for file in files}
    if suffixes == {'.npy'}:
        named = [name for name in (*predictions, *labels, groups) if name]
        if named:
            raise UserError(f'an .npy file has no names, so {named[0]!r} names nothing')
        if may_lack_labels and len(files) == 1:
            return StoredPredictions(read_array(files[0]), None, None, are_logits)
        if len(files) not in (2, 3):
            raise UserError(
                '.npy files come as predictions, labels and, if there are any, groups; got '
                f'{len(files)}'
            )
        values, stored_labels, *others = (read_array(file) for file in files)
        stored_groups = others[0].tolist() if others else None
        return StoredPredictions(values, stored_labels, stored_groups, are_logits)
    if len(files) != 1:
        raise UserError(
            f'got {len(files)} files: give one .npz, .csv or .parquet file, or .npy files of '
            'predictions and of labels'
        )
    (file,) = files
    columns = open_columns(file)
    if not predictions:
        predictions = [default_predictions(columns)]
        are_logits = are_logits or predictions == [LOGITS]
    classes = columns.matching(predictions, '--predictions')
    arrays = [as_numbers(columns, name, '--predictions') for name in classes]
    values = arrays[0] if len(arrays) == 1 else stack_columns(columns, list(classes), arrays)
    names_are_numbers = len(classes) > 1 and any('*' in pattern for pattern in predictions)
    class_names = list(classes.values())
    stored_labels = None
    if labels or LABELS in columns.arrays or not may_lack_labels:
        stored_labels = read_labels(
            columns, labels or [LABELS], class_names, by_name=names_are_numbers
        )
    stored_groups = None
    if groups is not None:
        stored_groups = columns.find(groups, '--groups').tolist()
    if len(class_names) == 1:
        class_names = []
    return StoredPredictions(
        values, stored_labels, stored_groups, are_logits, class_names, list(classes)
    )


def check_kind(stored: StoredPredictions) -> None:
    """Refuse probabilities that are declared as logits, and logits that are not declared.

    This prevents wrong numbers.

    Raises:
        UserError: With the option that is missing, or that is too much.
    """
    values = stored.values
    is_outside = (values < 0) | (values > 1)
    if not stored.are_logits and is_outside.any():
        raise UserError(
            f'{int(is_outside.sum()):,} of {values.size:,} predictions are outside [0, 1], such as '
            f'{values[is_outside][0]:.4g}: say --logits if they are logits, and divide percentages '
            'by 100'
        )
    has_classes = values.ndim > 1 and values.shape[1] > 1
    is_sigmoid = stored.are_of_sigmoids and len(values) >= FEW_OUTPUTS
    if stored.are_logits and is_sigmoid and not is_outside.any():
        raise UserError(
            'the predictions all lie in [0, 1], as probabilities do and logits hardly: leave '
            '--logits out'
        )
    if stored.are_logits and has_classes and not is_outside.any():
        totals = values.sum(axis=1, dtype=np.float64)
        if np.allclose(totals, 1, atol=1e-3):
            raise UserError(
                'the predictions are probabilities, which sum to 1, and no logits: leave --logits '
                'out, or name the key of probabilities probs'
            )


def default_predictions(columns: FileColumns) -> str:
    """Return the key of the predictions where none is named: ``probs`` or ``logits``."""
    keys = [name for name in (PROBS, LOGITS) if name in columns.arrays]
    if len(keys) == 1:
        return keys[0]
    if keys:
        raise UserError(
            f'{columns.path} has probs and logits: say which, --predictions probs, or '
            '--predictions logits --logits'
        )
    names = did_you_mean(PROBS, columns.arrays)
    raise UserError(
        f'{columns.path} has no {columns.kind} probs or logits: name the predictions by '
        f'--predictions, and say --logits if they are logits{names}'
    )


def read_labels(
    columns: FileColumns, names: Sequence[str], classes: Sequence[str], *, by_name: bool
) -> np.ndarray:
    """Return labels as integers: ``(N,)`` of classes, or ``(N, L)`` of several labels.

    Args:
        columns: The file.
        names: Its keys or columns with labels.
        classes: The names of the classes, in the order of the predictions.
        by_name: Whether integers must be names of classes too, whose columns may come in any order.
    """
    label_columns = list(columns.matching(names, '--labels'))
    arrays = [columns.find(name, '--labels') for name in label_columns]
    array = arrays[0] if len(arrays) == 1 else stack_columns(columns, label_columns, arrays)
    text = ', '.join(label_columns)
    if array.dtype.kind == 'b':
        array = array.astype(str)
    if array.dtype.kind in 'US':
        array = _numbers_of_texts(array)
    if array.dtype.kind in 'US':
        lowered = np.char.lower(array)
        if np.isin(lowered, ('true', 'false')).all() and not np.isin(array, classes).any():
            return (lowered == 'true').astype(np.int64)
        return class_numbers(columns, text, array, classes)
    if array.dtype.kind == 'f':
        if not np.isfinite(array).all() or (array % 1 != 0).any():
            wrong = array[~np.isfinite(array) | (array % 1 != 0)][0]
            raise UserError(f'{columns.path}: {columns.kind} {text!r} has the label {wrong}')
        array = array.astype(np.int64)
    if not by_name:
        return array
    if all(re.fullmatch(r'\d+', name) for name in classes):
        return class_numbers(columns, text, array, [int(name) for name in classes])
    raise UserError(
        f'{columns.path}: the labels are numbers, and nothing tells which of the columns of '
        f'{", ".join(classes[:MOST_NAMES])} is class 0: name them one by one in the order of the '
        'classes, in place of a pattern'
    )


def class_numbers(
    columns: FileColumns, name: str, labels: np.ndarray, classes: Sequence[str | int]
) -> np.ndarray:
    """Return the position of each label among the names of classes."""
    empty = (np.char.strip(labels.astype(str)) == '').nonzero()[0]
    if len(empty):
        raise UserError(
            f'{columns.path}: {columns.kind} {name!r} is empty in row {empty[0] + 1}: leave such '
            'rows out'
        )
    if len(classes) == 1:
        raise UserError(
            f'{columns.path}: {columns.kind} {name!r} has the label {labels.ravel()[0]!s}: write '
            'labels as 0 and 1, since the column of the predictions is the probability of 1'
        )
    unique, index = np.unique(labels, return_inverse=True)
    for readings in names_within(classes):
        if set(unique.tolist()) <= set(readings):
            classes = readings
            break
    number_of_class = {known: number for number, known in enumerate(classes)}
    missing = [label for label in unique.tolist() if label not in number_of_class]
    if missing:
        known = ', '.join(map(str, classes[:MOST_NAMES]))
        raise UserError(
            f'{columns.path}: {columns.kind} {name!r} has the label {missing[0]!r}, and the '
            f'predictions are of {known}: mend the label, or name the columns of all classes by '
            "--predictions, as 'p_*'; or give numbers from 0 on"
        )
    numbers = np.array([number_of_class[label] for label in unique.tolist()], dtype=np.int64)
    return numbers[index].reshape(labels.shape)


def names_within(names: Sequence[str | int]) -> Iterator[Sequence[str | int]]:
    """Yield names as they are, and with more and more of what all begin and end with left out.

    So the columns ``p_cat`` and ``p_dog`` are found by the classes ``cat`` and ``dog``.
    """
    yield names
    texts = [name for name in names if isinstance(name, str)]
    if len(texts) != len(names) or len(set(texts)) < 2:
        return
    shortest = min(map(len, texts))
    for begin in range(shortest + 1):
        if len({text[:begin] for text in texts}) > 1:
            return
        for end in range(shortest - begin + 1):
            if len({text[len(text) - end :] for text in texts}) > 1:
                break
            yield [text[begin : len(text) - end] for text in texts]


def columns_of_classes(classes: Sequence[str], names: Sequence[str]) -> list[int] | None:
    """Return the position of each class among the names of columns; None if these are others.

    Either may have a beginning or an end that all have, as ``p_``.
    """
    for known, readings in (
        *((classes, readings) for readings in names_within(names)),
        *((readings, names) for readings in names_within(classes)),
    ):
        if sorted(known) == sorted(readings):
            return [readings.index(name) for name in known]
    return None


def as_numbers(columns: FileColumns, name: str, option: str) -> np.ndarray:
    """Return an array of numbers; texts of a table are read as such."""
    array = columns.find(name, option)
    if array.dtype.kind in 'US':
        numbers = _numbers_of_texts(array)
        if numbers.dtype.kind in 'US':
            row = next(row for row, text in enumerate(array.ravel()) if not _is_number(text))
            raise UserError(
                f'{columns.path}: {columns.kind} {name!r} has {str(array.ravel()[row])!r} in row '
                f'{row + 1}, which is no number'
            )
        array = numbers
    if array.dtype.kind == 'O':
        raise UserError(f'{columns.path}: {columns.kind} {name!r} has cells without a number')
    return array


def stack_columns(
    columns: FileColumns, names: Sequence[str], arrays: Sequence[np.ndarray]
) -> np.ndarray:
    """Return columns ``(N,)`` side by side, ``(N, K)``."""
    for name, array in zip(names, arrays, strict=True):
        if array.shape != arrays[0].shape or array.ndim != 1:
            raise UserError(
                f'{columns.path}: {names[0]!r} has the shape {arrays[0].shape}, and {name!r} '
                f'{array.shape}: several must be columns of one length'
            )
    return np.stack(arrays, axis=1)


def open_columns(file: str) -> FileColumns:
    """Return the named arrays of an .npz archive, or of a table."""
    suffix = Path(file).suffix.lower()
    readers: dict[str, tuple[Callable[[str], Mapping[str, Any]], str]] = {
        '.npz': (np.load, 'key'),
        '.csv': (read_csv, 'column'),
        '.parquet': (read_parquet, 'column'),
    }
    if suffix not in readers:
        raise UserError(f'{file}: give .npy, .npz, .csv or .parquet files')
    read, kind = readers[suffix]
    with saying_unreadable(file):
        return FileColumns(file, read(file), kind)


def read_array(file: str) -> np.ndarray:
    """Return the array of an .npy file."""
    with saying_unreadable(file):
        return np.load(file)


def read_csv(file: str) -> dict[str, np.ndarray]:
    """Return the columns of a table with a heading, as texts."""
    with open(file, newline='', encoding='utf-8-sig') as text:
        rows = csv.reader(text)
        headings = next(rows, [])
        cells = [row for row in rows if row]
    separator = next((mark for mark in ';\t' if len(headings) == 1 and mark in headings[0]), None)
    if separator is not None:
        raise UserError(
            f'{file}: separate cells by a comma, not {separator!r}, and write decimals with a point'
        )
    if len(set(headings)) < len(headings):
        raise UserError(f'{file} has two columns of one name: {", ".join(headings)}')
    for number, row in enumerate(cells, 1):
        if len(row) != len(headings):
            raise UserError(
                f'{file} has {len(headings)} headings, and {len(row)} cells in row {number}'
            )
    if not cells:
        raise UserError(f'{file} has no rows below its headings')
    table = np.array(cells)
    return dict(zip(headings, table.T, strict=True))


def read_parquet(file: str) -> dict[str, np.ndarray]:
    """Return the columns of a table that pandas or another library has written."""
    try:
        from pyarrow import parquet
    except ImportError as error:
        raise UserError(
            f"{file}: pip install 'mmcalib[parquet]' for .parquet files, or write .csv"
        ) from error
    table = parquet.read_table(file)
    arrays = {}
    for name in table.column_names:
        array = table[name].to_numpy()
        is_text = array.dtype.kind == 'O' and all(isinstance(cell, str) for cell in array)
        arrays[name] = array.astype(str) if is_text else array
    return arrays


@contextmanager
def saying_unreadable(file: str) -> Iterator[None]:
    """Raise a UserError that names a file which cannot be read."""
    try:
        yield
    except UserError:
        raise
    except OSError as error:
        reason = error.strerror or str(error)
        raise UserError(f'{file} cannot be read: {reason}') from error
    except Exception as error:  # pyarrow, zipfile and numpy have errors of their own.
        raise UserError(f'{file} cannot be read: {error}') from error


def _numbers_of_texts(texts: np.ndarray) -> np.ndarray:
    """Return texts as integers, or as floats, or as they are if one is no number."""
    for kind in (np.int64, np.float64):
        try:
            return texts.astype(kind)
        except (ValueError, OverflowError):
            pass
    return texts


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
