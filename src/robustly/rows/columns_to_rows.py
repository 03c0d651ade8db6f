"""How do columns of a file become rows? Laid side by side, four at a time, so that what is written to memory is written once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from robustly._runtime.numba_loops import compiled

AT_A_TIME = 4


def matrix_of_columns(columns: Sequence[np.ndarray], *, by_loop: bool) -> tuple[np.ndarray, float]:
    """A matrix of columns of 64-bit floats, and a number that is finite only if all of theirs are."""
    found = np.empty((len(columns[0]), len(columns)))
    if not by_loop or len(columns) < AT_A_TIME:
        for place, column in enumerate(columns):
            found[:, place] = column
        with np.errstate(over="ignore", invalid="ignore"):
            return found, float(found.sum())
    total = 0.0
    for column in columns:
        column.flags.writeable = False  # as those of a file are: the loop is compiled for one kind of array
    for start in range(0, len(columns), AT_A_TIME):
        first = min(start, len(columns) - AT_A_TIME)
        total += _lay(*columns[first : first + AT_A_TIME], found, first)
    return found, total


@compiled(fastmath={"reassoc"})
def _lay(a: np.ndarray, b: np.ndarray, c: np.ndarray, d: np.ndarray, found: np.ndarray, first: int) -> float:
    """Put four columns into a matrix from its column `first` on, and add up their numbers."""
    total = 0.0
    for i in range(len(a)):
        found[i, first], found[i, first + 1], found[i, first + 2], found[i, first + 3] = a[i], b[i], c[i], d[i]
    for i in range(len(a)):
        total += (a[i] + b[i]) + (c[i] + d[i])
    return total
