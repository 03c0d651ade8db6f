"""Do rows repeat? Equal rows of whole numbers are put together, with how often each counts; of rows elsewhere, piece by piece."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from robustly.rows.anywhere import along, as_stored, rows_from
from robustly.rows.arrays import ArrayRows, read_weights
from robustly.rows.store import Data
from robustly.rows.stored import Layout, Stored

CHUNK = 1 << 15
# Rows elsewhere with more distinct values than these are brought into memory.
MOST_DISTINCT = 1 << 18

Read = Callable[..., dict[str, np.ndarray]]


@dataclass(frozen=True, eq=False)
class Table:
    """Distinct rows with their weights, and which of them each given row is."""

    columns: dict[str, np.ndarray]
    weight: np.ndarray
    found_place: np.ndarray | Callable[[], np.ndarray] | None
    row_weight: np.ndarray

    @cached_property
    def place(self) -> np.ndarray | None:
        """Number of its distinct row for every given row; None when nothing was put together."""
        return self.found_place() if callable(self.found_place) else self.found_place

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
    varied = {name: one for name, one in columns.items() if one.ndim > 1 or np.any(one != one[0])}
    apart = n < 64 or not varied or any(one.ndim > 1 or one.dtype.kind not in "iu" for one in varied.values())
    lowest = {} if apart else {name: int(one.min()) for name, one in varied.items()}
    counts = {name: int(varied[name].max()) - low + 1 for name, low in lowest.items()}
    size = math.prod(counts.values())
    if apart or size > max(4 * n, 1_000_000):
        # The fits of XLA want floats; whole numbers were checked before.
        return Table({name: np.asarray(one, dtype=float) for name, one in columns.items()}, weight, None, weight)
    key = np.zeros(n, dtype=np.int64)
    for name, count in counts.items():
        key = key * count + (varied[name] - lowest[name])
    weighted = np.bincount(key, weights=None if weights is None else weight, minlength=size).astype(float)
    seen = np.bincount(key, minlength=size) > 0 if weights is not None else weighted > 0
    left = np.flatnonzero(seen)
    distinct = {name: np.full(len(left), float(one[0])) for name, one in columns.items() if name not in varied}
    for name in reversed(counts):
        distinct[name] = (left % counts[name] + lowest[name]).astype(float)
        left = left // counts[name]
    # Where each row went is asked for by questions about rows, not by a fit.
    return Table({name: distinct[name] for name in columns}, weighted[seen], lambda: (np.cumsum(seen) - 1)[key], weight)


def stored_table(read: Read, given: Sequence[Any], weights: Any) -> Table | None:
    """The table of columns that are elsewhere and hold whole numbers, without their rows ever being here; else None.

    `read` makes checked columns of what was `given`: columns of the same rows, and things common to all rows.
    """
    first = as_stored(given[0])
    if first is None:
        return None
    asked: list[Stored] = []
    common: dict[int, Any] = {}
    for number, one in enumerate(given):
        if as_stored(one) is not None or isinstance(one, str):
            asked.append(along(first, one, f"argument {number}"))
        elif one is None or np.ndim(one) == 0:
            common[number] = one
        else:
            return None
    if weights is not None:
        asked.append(along(first, weights, "weights"))
    reading = _Reading(read, common, len(given), weights is not None)
    rows = rows_from(asked, Layout(_as_they_are, tuple(f"{i}" for i in range(len(asked)))))
    pieces = rows.each_piece(reading.distinct)
    if any(piece is None for piece in pieces):
        return None
    names = pieces[0][0]
    each = np.concatenate([piece[1] for piece in pieces])
    found, place = np.unique(each, axis=0, return_inverse=True)
    weight = np.bincount(place.reshape(-1), weights=np.concatenate([piece[2] for piece in pieces]))
    if len(found) > MOST_DISTINCT:
        return None
    numbers = _Numbers(reading, found)
    counted = np.broadcast_to(1.0, len(rows)) if weights is None else asked[-1].gathered().astype(float)
    columns = {name: np.ascontiguousarray(found[:, i]) for i, name in enumerate(names)}
    return Table(columns, weight, lambda: np.concatenate(rows.each_piece(numbers)), counted)


def _as_they_are(*columns: Any) -> tuple[Data, None]:
    return tuple(np.asarray(column) for column in columns), None


@dataclass(frozen=True, eq=False)
class _Reading:
    """Columns of a piece, with what is common to all rows in its place among them."""

    read: Read
    common: Mapping[int, Any]
    count: int
    weighed: bool

    def columns(self, data: Data) -> dict[str, np.ndarray]:
        parts = iter(data)
        return self.read(*(self.common[i] if i in self.common else next(parts) for i in range(self.count)))

    def distinct(self, data: Data) -> tuple[tuple[str, ...], np.ndarray, np.ndarray] | None:
        """Distinct rows of a piece and their weights; None where numbers are not whole, or hardly repeat."""
        columns = self.columns(data)
        if any(
            column.ndim > 1 or (column.dtype.kind not in "iu" and np.any(column != 1.0)) for column in columns.values()
        ):
            return None
        table = np.column_stack([np.asarray(column, dtype=float) for column in columns.values()])
        found, place = np.unique(table, axis=0, return_inverse=True)
        if len(found) > MOST_DISTINCT:
            return None
        weight = read_weights(data[-1] if self.weighed else None, len(table))
        return tuple(columns), found, np.bincount(place.reshape(-1), weights=weight, minlength=len(found))


@dataclass(frozen=True, eq=False)
class _Numbers:
    """Which of the distinct rows each row of a piece is."""

    reading: _Reading
    found: np.ndarray

    def __call__(self, data: Data) -> np.ndarray:
        columns = self.reading.columns(data)
        table = np.column_stack([np.asarray(column, dtype=float) for column in columns.values()])
        place = np.unique(np.concatenate([self.found, table]), axis=0, return_inverse=True)[1].reshape(-1)
        return place[len(self.found) :].astype(np.int32)
