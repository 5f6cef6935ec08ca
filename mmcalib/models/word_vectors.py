"""Word vectors such as GloVe's, from files."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from mmcalib.datasets.download_sources import missing_file_message


def vector_size(vectors: str | Sequence[str]) -> int:
    """Return the numbers per vector of a file, of which little is read; see `load_vectors`."""
    table, _ = _paths(vectors)
    if table.endswith('.npy'):
        return np.load(table, mmap_mode='r').shape[1]
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
    result = torch.zeros(len(words), vector_size(vectors))
    wanted = {word: row for row, word in enumerate(words)}
    missing = set(words)
    for word, numbers in _from_text(table) if names is None else _from_table(table, names):
        if word in missing:
            values = np.array(numbers.split() if isinstance(numbers, str) else numbers)
            if values.shape != result.shape[1:]:
                raise ValueError(
                    f'{table}: the vector of {word!r} has {len(values)} numbers, but the first '
                    f'has {result.shape[1]}'
                )
            result[wanted[word]] = torch.from_numpy(values.astype(np.float32))
            missing.remove(word)
    return result, [word for word in words if word in missing]


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


def _from_text(path: str) -> Iterator[tuple[str, str]]:
    with open(path, encoding='utf-8') as file:
        for line in file:
            word, _, numbers = line.partition(' ')
            yield word, numbers


def _from_table(path: str, names_path: str) -> Iterator[tuple[str, np.ndarray]]:
    table = np.load(path, mmap_mode='r')
    with open(names_path, encoding='utf-8') as file:
        names = file.read().rstrip('\n').split('\n')
    if len(names) != len(table):
        raise ValueError(f'{names_path} has {len(names)} words, but {path} {len(table)} vectors')
    return zip(names, table, strict=True)
