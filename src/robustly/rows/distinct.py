"""Do rows repeat? Equal rows of whole numbers are put together, with how often each counts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from robustly.rows.arrays import ArrayRows, read_weights

CHUNK = 1 << 15


@dataclass(frozen=True, eq=False)
class Table:
    """Distinct rows with their weights, and which of them each given row is."""

    columns: dict[str, np.ndarray]
    weight: np.ndarray
    place: np.ndarray | None
    """Number of its distinct row for every given row; None when nothing was put together."""
    row_weight: np.ndarray

    def __len__(self) -> int:
        return len(self.row_weight)

    @cached_property
    def rows(self) -> ArrayRows:
        width = sum(int(np.prod(column.shape[1:])) for column in self.columns.values())
        chunk = max(8, 1 << ((CHUNK * 2 // max(width, 2)).bit_length() - 1))
        return ArrayRows(tuple(self.columns.values()), self.weight, chunk, tuple(self.columns))

    @property
    def total(self) -> float:
        return float(self.weight.sum())

    def spread_out(self, values: np.ndarray) -> np.ndarray:
        """Values of distinct rows, one for every given row."""
        return values if self.place is None else values[self.place]

    def mean(self, values: np.ndarray) -> Any:
        """Weighted mean over rows."""
        return np.tensordot(self.weight, values, 1) / self.total

    def with_rows(self, rows: ArrayRows) -> Table:
        """Some of the distinct rows, as a table of their own."""
        return Table(dict(zip(self.columns, rows.data)), rows.weight, None, rows.weight)


def make_table(columns: Mapping[str, np.ndarray], weights: Any) -> Table:
    """Rows as they are fitted: equal rows of whole numbers are put together, with the sum of their weights."""
    columns = dict(columns)
    n = len(next(iter(columns.values())))
    weight = read_weights(weights, n)
    # The fits of XLA want floats; whole numbers were checked before.
    floats = {name: np.asarray(column, dtype=float) for name, column in columns.items()}
    varied = [column for column in columns.values() if column.ndim > 1 or np.any(column != column[0])]
    if n < 64 or any(column.ndim > 1 or column.dtype.kind not in "iu" for column in varied) or not varied:
        return Table(floats, weight, None, weight)
    key, size = np.zeros(n, dtype=np.int64), 1
    for column in varied:
        low, high = int(column.min()), int(column.max())
        if size * (high - low + 1) > max(4 * n, 1_000_000):
            return Table(floats, weight, None, weight)
        key = key * (high - low + 1) + (column - low)
        size *= high - low + 1
    weighted = np.bincount(key, weights=None if weights is None else weight, minlength=size).astype(float)
    seen = np.bincount(key, minlength=size) > 0 if weights is not None else weighted > 0
    number = np.cumsum(seen) - 1
    place = number[key]
    first = np.empty(int(seen.sum()), dtype=np.int64)
    first[place] = np.arange(n)
    return Table({name: column[first] for name, column in floats.items()}, weighted[seen], place, weight)
