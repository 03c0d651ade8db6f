"""Columns times what rows say of their predictors, in one look at memory: loops for many rows with few dense columns.

A chunk of rows is multiplied with coefficients, and with its own slopes and curvatures, several times over. Done by whole
arrays every product goes through memory again. Loops take a block of rows at a time, turn it so that columns lie side by
side, and do all that is to be done with it while it is in the nearest cache.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from robustly._runtime.numba_loops import compiled

# Beyond so many columns, multiplying whole chunks is faster.
FEW_COLUMNS = 24
BLOCK = 256
# Sums may be taken in any order; what is not a number stays so.
IN_ANY_ORDER = {"contract", "reassoc", "nsz"}


class ColumnSums(NamedTuple):
    """Weighted sums over rows of a one and the columns without their centre, and of rows' own slopes and curvatures."""

    gram: np.ndarray
    """Columns times each other and the first curvature; the upper half is not filled."""
    cross: np.ndarray
    """Columns times the first slope, then times the curvatures between the first number and each other."""
    slopes: np.ndarray
    curves: np.ndarray
    """Curvatures are the entries on and below the diagonal, line by line."""
    value: np.ndarray
    """One number: the sum of evidences, where a loop has them."""

    @classmethod
    def empty(cls, columns: int, size: int) -> ColumnSums:
        """Of so many columns, for rows with slopes in so many numbers."""
        width = columns + 1
        by_number = np.zeros(size), np.zeros(size * (size + 1) // 2)
        return cls(np.zeros((width, width)), np.zeros((size, width)), *by_number, np.zeros(1))

    def by_name(self, intercept: bool) -> dict[str, np.ndarray]:
        """As passes name them; without an intercept, the one counts for nothing."""
        first = 0 if intercept else 1
        gram = np.tril(self.gram) + np.tril(self.gram, -1).T
        return {
            "slope_w": self.cross[0, first:],
            "curve_w": gram[first:, first:],
            "mixed": self.cross[1:, first:].T.copy(),
            "slope": self.slopes[1:],
            "curve": self.curves,
        }


def predictors(matrix: np.ndarray, centre: np.ndarray, beta: np.ndarray, offset: np.ndarray) -> np.ndarray:
    """``offset + beta[0] + (matrix - centre) @ beta[1:]``."""
    found = np.empty(len(matrix))
    _predictors(*loop_arrays(matrix, centre, beta, offset), found)
    return found


def column_sums(
    matrix: np.ndarray, centre: np.ndarray, slope: np.ndarray, curve: np.ndarray, weight: np.ndarray
) -> ColumnSums:
    """Sums of rows whose slopes and curvatures are known."""
    sums = ColumnSums.empty(matrix.shape[1], slope.shape[1])
    _column_sums(*loop_arrays(matrix, centre, slope, curve, weight), *sums[:4])
    return sums


def summed_by(
    loop: Callable[..., None],
    matrix: np.ndarray,
    centre: np.ndarray,
    beta: np.ndarray,
    given: tuple[np.ndarray, ...],
    more: tuple[Any, ...],
    size: int,
) -> ColumnSums:
    """Sums of rows by a loop of their own, that has evidences and their slopes and curvatures in so many numbers.

    It is called with the matrix, its centre, the coefficients, what is `given` by row (offset, weight, …) and the rest, then
    with where sums go; see :func:`enter_block` and :func:`add_block`.
    """
    sums = ColumnSums.empty(matrix.shape[1], size)
    loop(*loop_arrays(matrix, centre, beta, *given), *more, *sums)
    return sums


def column_moments(matrix: np.ndarray, idea: np.ndarray, weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Weighted sums of a one and the columns, less `idea`, times each other; and the largest distances from it."""
    gram, furthest = np.zeros((len(idea) + 1, len(idea) + 1)), np.zeros(len(idea))
    _column_moments(*loop_arrays(matrix, idea, weight), gram, furthest)
    return np.tril(gram) + np.tril(gram, -1).T, furthest


def loop_arrays(*arrays: np.ndarray) -> list[np.ndarray]:
    """Arrays of the one kind that loops are compiled for."""
    found = [np.asarray(array, dtype=np.float64) for array in arrays]
    return [a if a.flags.c_contiguous and a.flags.writeable else np.array(a, order="C") for a in found]


@compiled(fastmath=IN_ANY_ORDER)
def enter_block(
    matrix: np.ndarray,
    centre: np.ndarray,
    beta: np.ndarray,
    offset: np.ndarray,
    start: int,
    count: int,
    x: np.ndarray,
    m: np.ndarray,
) -> None:
    """Columns of some rows without their centre, below a line of ones, and the rows' predictors."""
    turn_block(matrix, centre, start, count, x)
    for i in range(count):
        m[i] = offset[start + i] + beta[0]
    for j in range(len(centre)):
        for i in range(count):
            m[i] += beta[j + 1] * x[j + 1, i]


@compiled()
def turn_block(matrix: np.ndarray, centre: np.ndarray, start: int, count: int, x: np.ndarray) -> None:
    """Columns of some rows without their centre, below a line of ones."""
    for i in range(count):
        for j in range(len(centre)):
            x[j + 1, i] = matrix[start + i, j] - centre[j]


@compiled(fastmath=IN_ANY_ORDER)
def weigh_block(values: np.ndarray, weight: np.ndarray, start: int, count: int, sums: np.ndarray) -> None:
    """Weigh what some rows say (number, row), and add it to the sums."""
    for k in range(len(values)):
        total = 0.0
        for i in range(count):
            # What rows say that count for nothing may be no number.
            values[k, i] = weight[start + i] * values[k, i] if weight[start + i] > 0.0 else 0.0
            total += values[k, i]
        sums[k] += total


@compiled(fastmath=IN_ANY_ORDER)
def add_block(
    x: np.ndarray,
    weight: np.ndarray,
    start: int,
    count: int,
    slope: np.ndarray,
    curve: np.ndarray,
    gram: np.ndarray,
    cross: np.ndarray,
    slopes: np.ndarray,
    curves: np.ndarray,
) -> None:
    """Add some rows' slopes and curvatures (number, row), which are weighted and not kept, to the sums."""
    weigh_block(slope, weight, start, count, slopes)
    weigh_block(curve, weight, start, count, curves)
    bent = slope[len(slope) - 1] if len(slope) > 1 else np.empty(BLOCK)  # its sums are taken, and its place is free
    for a in range(len(x)):
        total = 0.0
        for i in range(count):
            total += slope[0, i] * x[a, i]
        cross[0, a] += total
        for k in range(1, len(slope)):
            total = 0.0
            for i in range(count):
                total += curve[k * (k + 1) // 2, i] * x[a, i]
            cross[k, a] += total
        for i in range(count):
            bent[i] = curve[0, i] * x[a, i]
        for b in range(a + 1):
            total = 0.0
            for i in range(count):
                total += bent[i] * x[b, i]
            gram[a, b] += total


@compiled(fastmath=IN_ANY_ORDER)
def add_values(each: np.ndarray, weight: np.ndarray, start: int, count: int, value: np.ndarray) -> None:
    """Add some rows' evidences to their sum."""
    total = 0.0
    for i in range(count):
        total += weight[start + i] * each[i] if weight[start + i] > 0.0 else 0.0
    value[0] += total


@compiled(fastmath=IN_ANY_ORDER)
def _predictors(
    matrix: np.ndarray, centre: np.ndarray, beta: np.ndarray, offset: np.ndarray, found: np.ndarray
) -> None:
    x = np.ones((len(centre) + 1, BLOCK))
    for start in range(0, len(matrix), BLOCK):
        count = min(BLOCK, len(matrix) - start)
        enter_block(matrix, centre, beta, offset, start, count, x, found[start : start + count])


@compiled(fastmath=IN_ANY_ORDER)
def _column_sums(
    matrix: np.ndarray,
    centre: np.ndarray,
    slope: np.ndarray,
    curve: np.ndarray,
    weight: np.ndarray,
    gram: np.ndarray,
    cross: np.ndarray,
    slopes: np.ndarray,
    curves: np.ndarray,
) -> None:
    x = np.ones((len(centre) + 1, BLOCK))
    some, more = np.empty((len(slopes), BLOCK)), np.empty((len(curves), BLOCK))
    for start in range(0, len(matrix), BLOCK):
        count = min(BLOCK, len(matrix) - start)
        turn_block(matrix, centre, start, count, x)
        for i in range(count):
            for k in range(len(slopes)):
                some[k, i] = slope[start + i, k]
            for k in range(len(curves)):
                more[k, i] = curve[start + i, k]
        add_block(x, weight, start, count, some, more, gram, cross, slopes, curves)


@compiled(fastmath=IN_ANY_ORDER)
def _column_moments(
    matrix: np.ndarray, idea: np.ndarray, weight: np.ndarray, gram: np.ndarray, furthest: np.ndarray
) -> None:
    x, bent = np.ones((len(idea) + 1, BLOCK)), np.empty(BLOCK)
    for start in range(0, len(matrix), BLOCK):
        count = min(BLOCK, len(matrix) - start)
        turn_block(matrix, idea, start, count, x)
        for a in range(len(idea)):
            most = furthest[a]
            for i in range(count):
                most = max(most, abs(x[a + 1, i]))
            furthest[a] = most
        for a in range(len(x)):
            for i in range(count):
                bent[i] = weight[start + i] * x[a, i]
            for b in range(a + 1):
                total = 0.0
                for i in range(count):
                    total += bent[i] * x[b, i]
                gram[a, b] += total
