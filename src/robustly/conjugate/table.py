"""What may a row hold? Columns are read, checked against their support, and repeated rows are counted once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from robustly.errors import DataError, SupportError
from robustly.rows.arrays import Rows, make_rows, read_weights

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

    @property
    def rows(self) -> Rows:
        width = sum(int(np.prod(column.shape[1:])) for column in self.columns.values())
        chunk = max(8, 1 << ((CHUNK * 2 // max(width, 2)).bit_length() - 1))
        return Rows(tuple(self.columns.values()), self.weight, chunk, tuple(self.columns))

    @property
    def total(self) -> float:
        return float(self.weight.sum())

    def spread_out(self, values: np.ndarray) -> np.ndarray:
        """Values of distinct rows, one for every given row."""
        return values if self.place is None else values[self.place]

    def mean(self, values: np.ndarray) -> Any:
        """Weighted mean over rows."""
        return np.tensordot(self.weight, values, 1) / self.total

    def some(self, count: int) -> Table:
        """A random sample of the distinct rows, the same one every time."""
        chosen = np.random.default_rng(0).choice(len(self.weight), count, replace=False)
        columns = {name: column[chosen] for name, column in self.columns.items()}
        return Table(columns, self.weight[chosen], None, self.weight[chosen])


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


# ---------------------------------------------------------------------------------------------------- reading


def read_numbers(name: str, values: Any, *, rows: int | None = None) -> np.ndarray:
    """One number a row, finite; a single number stands for all rows when their count is known."""
    if rows is not None and np.ndim(values) == 0:
        values = np.full(rows, values)
    (array,) = make_rows([values], [name]).data
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1:
        raise DataError(f"{name} has shape {array.shape}, but one number a row is needed. Pass one column.")
    if rows is not None and len(array) != rows:
        raise DataError(f"{name} has {len(array)} rows, but the data have {rows}. Give one number a row.")
    return array.astype(np.int64) if array.dtype.kind == "b" else array


def read_matrix(name: str, values: Any, *, rows: int | None = None) -> np.ndarray:
    """A row of numbers a row, finite."""
    (array,) = make_rows([values], [name]).data
    if array.ndim == 1:
        array = array[:, None]
    if array.ndim != 2:
        raise DataError(f"{name} has shape {array.shape}, but a table of rows and columns is needed.")
    if rows is not None and len(array) != rows:
        raise DataError(f"{name} has {len(array)} rows, but the data have {rows}.")
    return array.astype(float)


def read_counts(name: str, values: Any, *, rows: int | None = None, least: int = 0, what: str = "counts") -> np.ndarray:
    """Whole numbers from `least` on."""
    array = read_numbers(name, values, rows=rows)
    refuse(name, array, array < least, f"{what} start at {least}")
    if array.dtype.kind == "f":
        refuse(name, array, array != np.floor(array), f"{what} are whole numbers")
        refuse(name, array, array > 2.0**53, "whole numbers are exact only up to 2**53")
        array = array.astype(np.int64)
    return array


def read_positive(name: str, values: Any, *, rows: int | None = None, what: str) -> np.ndarray:
    """Numbers above 0."""
    array = read_numbers(name, values, rows=rows)
    refuse(name, array, array <= 0, f"{what} are above 0")
    return array.astype(float)


def refuse(name: str, array: np.ndarray, bad: np.ndarray, rule: str, advice: str = "Correct or drop that row.") -> None:
    """Raise a SupportError that names the first bad row."""
    found = np.flatnonzero(bad)
    if found.size:
        more = f" (and {found.size - 1} more rows)" if found.size > 1 else ""
        raise SupportError(f"{name} holds {array[found[0]]} in row {found[0]}{more}, but {rule}. {advice}")


def read_design(values: Any, rows: int | None) -> np.ndarray:
    """Covariates, one line a row."""
    return read_matrix("design", values, rows=rows)


def refuse_collinear(design: np.ndarray) -> None:
    """Columns must not repeat each other, or coefficients mean nothing."""
    rank = int(np.linalg.matrix_rank(design))
    if rank < design.shape[1]:
        raise DataError(
            f"design has {design.shape[1]} columns but rank {rank}: some column is a sum of others, so coefficients "
            "are not defined. Drop it (often one level of a categorical variable, next to a constant column)."
        )
