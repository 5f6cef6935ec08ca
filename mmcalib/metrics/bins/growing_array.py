"""An array that grows at its end: one block of memory in place of a list of small tensors."""

from __future__ import annotations

import torch
from torch import Tensor

SMALLEST = 16


class GrowingArray:
    """Rows of numbers that are appended one after the other.

    A small tensor kept for each image lies between the large temporaries of two images, and keeps
    the heap from closing: memory that is free but not given back. Here all rows lie in one block,
    which doubles when it is full.

    Args:
        shape: Of one row; of single numbers if empty.
        dtype: Of the rows; those of a wider type widen all.
    """

    def __init__(self, *shape: int, dtype: torch.dtype = torch.float64) -> None:
        self._data = torch.empty(0, *shape, dtype=dtype)
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def append(self, rows: Tensor) -> GrowingArray:
        """Copy ``(n, *shape)`` rows to the end, and return self."""
        count = self._count + len(rows)
        dtype = torch.promote_types(self._data.dtype, rows.dtype)
        if count > len(self._data) or dtype != self._data.dtype:
            size = max(count, 2 * len(self._data), SMALLEST)
            data = torch.empty(size, *self._data.shape[1:], dtype=dtype)
            data[: self._count] = self.rows
            self._data = data
        self._data[self._count : count] = rows
        self._count = count
        return self

    @property
    def rows(self) -> Tensor:
        """All rows, ``(n, *shape)``: a view, which later rows do not reach."""
        return self._data[: self._count]

    def __getstate__(self) -> dict:
        return {'_data': self.rows.clone(), '_count': self._count}
