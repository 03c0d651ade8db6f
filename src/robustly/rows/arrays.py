"""Rows that live in memory: arrays with a common leading axis, weights, and how they are cut into chunks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from robustly.errors import DataError

CHUNK = 2048


@dataclass(frozen=True, eq=False)
class Rows:
    """`data` is a tuple of arrays whose leading axis counts rows; `weight` says how often each row counts."""

    data: tuple[np.ndarray, ...]
    weight: np.ndarray
    chunk: int = CHUNK
    labels: Sequence[str] = field(default=())

    def __len__(self) -> int:
        return len(self.weight)

    @property
    def bucket(self) -> int:
        """Rows in a compiled chunk: a power of two, so that few different sizes are ever compiled."""
        return min(self.chunk, max(8, 1 << (len(self) - 1).bit_length()))

    @property
    def total_weight(self) -> float:
        return float(self.weight.sum())

    def places(self) -> Iterator[slice]:
        """Where the rows are cut."""
        for start in range(0, len(self), self.bucket):
            yield slice(start, min(start + self.bucket, len(self)))

    def chunk_at(self, place: slice) -> tuple[tuple[Any, ...], np.ndarray]:
        """Data and weights of some rows, filled up to a whole chunk with a repeated row of weight zero."""
        return self._whole if place.stop - place.start == len(self) else self._cut(place)

    def _cut(self, place: slice) -> tuple[tuple[Any, ...], np.ndarray]:
        size = self.bucket
        return tuple(pad(a[place], size) for a in self.data), pad(self.weight[place], size, 0.0)

    @cached_property
    def _whole(self) -> tuple[tuple[Any, ...], np.ndarray]:
        """The only chunk, where there is but one: every pass reads it again."""
        return self._cut(slice(0, len(self)))

    def chunks(self) -> Iterator[tuple[slice, tuple[Any, ...], np.ndarray]]:
        """All rows, chunk by chunk."""
        for place in self.places():
            yield place, *self.chunk_at(place)

    def take(self, index: Any) -> Rows:
        """Some of the rows."""
        return Rows(tuple(a[index] for a in self.data), self.weight[index], self.chunk, self.labels)


def pad(array: np.ndarray, size: int, value: float | None = None) -> np.ndarray:
    """Fill the leading axis up to `size`, with copies of the last entry or with `value`."""
    missing = size - len(array)
    if missing <= 0:
        return array
    last = array[-1:] if value is None else np.full_like(array[-1:], value)
    return np.concatenate([array, np.repeat(last, missing, axis=0)])


def make_rows(data: Sequence[Any], labels: Sequence[str], *, weights: Any = None, chunk: int | None = None) -> Rows:
    """Read arrays as rows; name the array and the row when something cannot be used."""
    arrays = []
    for label, given in zip(labels, data):
        array = np.asarray(given)
        if array.dtype == object or array.dtype.kind in "USMm":
            raise DataError(
                f"{label} holds {array.dtype if array.dtype != object else 'mixed objects'}, but numbers are needed. "
                "Encode texts and dates as numbers first."
            )
        if array.ndim == 0:
            raise DataError(f"{label} is a single number, but rows need an array with a leading axis.")
        if array.dtype.kind in "fc":
            array = array.astype(np.float64, copy=False)
            _refuse_missing(array, label)
        elif array.dtype.kind in "iu":
            array = array.astype(np.int64, copy=False)
        arrays.append(np.ascontiguousarray(array))
    lengths = {label: len(array) for label, array in zip(labels, arrays)}
    if len(set(lengths.values())) > 1:
        listed = ", ".join(f"{label} has {length}" for label, length in lengths.items())
        raise DataError(f"all row arguments need the same number of rows, but {listed}.")
    n = len(arrays[0]) if arrays else 0
    if n == 0:
        raise DataError("there are no rows to fit: the data are empty.")
    return Rows(tuple(arrays), read_weights(weights, n), chunk or CHUNK, tuple(labels))


def read_weights(weights: Any, n: int) -> np.ndarray:
    """Row weights as floats; one each when none are given."""
    if weights is None:
        return np.ones(n)
    weight = np.asarray(weights, dtype=np.float64)
    if weight.shape != (n,):
        raise DataError(f"weights have shape {weight.shape}, but there are {n} rows. Give one weight a row.")
    bad = np.flatnonzero(~np.isfinite(weight) | (weight < 0))
    if bad.size:
        raise DataError(f"weights hold {weight[bad[0]]} in row {bad[0]}; a weight is a finite number of at least 0.")
    if not weight.any():
        raise DataError("all weights are 0, so no row counts. Give at least one row a positive weight.")
    return weight


def _refuse_missing(array: np.ndarray, label: str) -> None:
    # One cheap pass: a sum of finite numbers is finite, unless it overflows, and then the slow look decides.
    with np.errstate(over="ignore", invalid="ignore"):
        total = array.sum()
    if np.isfinite(total):
        return
    bad = np.argwhere(~np.isfinite(array))
    if bad.size == 0:
        return
    place = tuple(int(i) for i in bad[0])
    where = f"row {place[0]}" + (f", column {place[1]}" if len(place) > 1 else "")
    kind = "a missing value (NaN)" if np.isnan(array[place]) else f"{array[place]}"
    more = f" and {len(bad) - 1} more" if len(bad) > 1 else ""
    raise DataError(f"{label} holds {kind} in {where}{more}. Drop or fill these rows, or mask them in the model.")
