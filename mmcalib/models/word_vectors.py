"""Word vectors such as GloVe's, from files."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from mmcalib.datasets.download_sources import missing_file_message


def vector_size(vectors: str | Sequence[str]) -> int:
    """Return the numbers per vector of a file, of which little is read; see `load_vectors`."""
    table, _ = _paths(vectors)
    if table.endswith('.npy'):
        return _load_table(table).shape[1]
    with open(table, encoding='utf-8') as file:
        return len(file.readline().split()) - 1


def load_vectors(vectors: str | Sequence[str], words: Sequence[str]) -> tuple[Tensor, list[str]]:
    """Return the vectors of some words, float32 ``(len(words), D)``, and the words without one.

    Words without a vector get zeros, as in the paper's published code.

    Args:
        vectors: A text file with a word and its D numbers per line, such as ``glove.6B.100d.txt``;
            or two files, ``[table, words]``: an ``.npy`` of the shape (V, D) and the V words, one
            per line.
        words: The words to look up.

    Raises:
        FileNotFoundError: If a file is not there.
        ValueError: If the files do not have this form.
    """
    table, names = _paths(vectors)
    wanted = {word: row for row, word in enumerate(words)}
    found = _from_text(table, wanted) if names is None else _from_table(table, names, wanted)
    result = torch.zeros(len(words), vector_size(vectors))
    for word, vector in found.items():
        result[wanted[word]] = torch.from_numpy(vector)
    return result, [word for word in words if word not in found]


def _paths(vectors: str | Sequence[str]) -> tuple[str, str | None]:
    paths = [vectors] if isinstance(vectors, str) else list(vectors)
    paths = [os.path.expanduser(path) for path in paths]
    if len(paths) != (2 if paths and paths[0].endswith('.npy') else 1):
        raise ValueError(
            'vectors must be a text file such as glove.6B.100d.txt, or a table and its words, '
            f'[vectors.npy, words.txt]; got {vectors!r}'
        )
    for path in paths:
        if not os.path.isfile(path):
            raise FileNotFoundError(missing_file_message(path))
    return paths[0], paths[1] if len(paths) == 2 else None


def _from_text(path: str, wanted: dict) -> dict[str, np.ndarray]:
    found = {}
    size = vector_size(path)
    with open(path, encoding='utf-8') as file:
        for number, line in enumerate(file, 1):
            word, _, rest = line.partition(' ')
            if word not in wanted or word in found:
                continue
            try:
                found[word] = np.array(rest.split(), dtype=np.float32)
            except ValueError as error:
                raise ValueError(f'{path}, line {number}: {error}') from error
            if len(found[word]) != size:
                raise ValueError(
                    f'{path}, line {number}: {len(found[word])} numbers, but the first line has '
                    f'{size}'
                )
    return found


def _from_table(path: str, names_path: str, wanted: dict) -> dict[str, np.ndarray]:
    table, names = _load_table(path), _load_words(names_path)
    if len(names) != len(table):
        raise ValueError(f'{names_path} has {len(names)} words, but {path} {len(table)} vectors')
    rows = {}
    for row, name in enumerate(names):
        if name in wanted:
            rows.setdefault(name, row)
    return {name: table[row].astype(np.float32) for name, row in rows.items()}


def _load_table(path: str) -> np.ndarray:
    table = np.load(path, mmap_mode='r')
    if table.ndim != 2 or not np.issubdtype(table.dtype, np.floating):
        raise ValueError(
            f'{path} must be a float table (words, numbers); it is {table.dtype} {table.shape}'
        )
    return table


def _load_words(path: str) -> list[str]:
    with open(path, encoding='utf-8') as file:
        return file.read().rstrip('\n').split('\n')
