"""Columns times what rows say of their predictors, in one look at memory: loops for many rows with few dense columns.

A chunk of rows is multiplied with coefficients, and with its own slopes and curvatures, several times over. Done by whole
arrays every product goes through memory again; row by row it does not.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from robustly._runtime.numba_loops import compiled

# Beyond so many columns, multiplying whole chunks is faster than row by row, and in chunks of fewer rows it hardly matters. With
# fewer rows in all, loading the loops costs more than they spare: a second, and 110 MB.
FEW_COLUMNS, LONG_CHUNK, MANY_ROWS = 24, 4096, 1 << 18


def looped(matrix: Any, rows: int) -> bool:
    """Whether a chunk of so many rows in all is gone through one by one."""
    few = isinstance(matrix, np.ndarray) and matrix.shape[1] <= FEW_COLUMNS
    return few and len(matrix) >= LONG_CHUNK and rows >= MANY_ROWS


def predictors(matrix: np.ndarray, centre: np.ndarray, beta: np.ndarray, offset: np.ndarray) -> np.ndarray:
    """``offset + beta[0] + (matrix - centre) @ beta[1:]``."""
    found = np.empty(len(matrix))
    _predictors(_loop_array(matrix), _loop_array(centre), _loop_array(beta), _loop_array(offset), found)
    return found


def column_sums(
    matrix: np.ndarray, centre: np.ndarray, slope: np.ndarray, curve: np.ndarray, weight: np.ndarray
) -> tuple[np.ndarray, ...]:
    """Weighted sums over rows of a one and the columns without their centre: times each other and the first curvature,
    times the first slope, times the curvatures between the first number and each other; then of all slopes and curvatures.

    Curvatures come as the entries on and below the diagonal, line by line.
    """
    size, width = slope.shape[1], matrix.shape[1] + 1
    gram, cross = np.zeros((width, width)), np.zeros((size, width))
    slopes, curves = np.zeros(size), np.zeros(curve.shape[1])
    given = (_loop_array(array) for array in (matrix, centre, slope, curve, weight))
    _column_sums(*given, gram, cross, slopes, curves)
    return np.tril(gram) + np.tril(gram, -1).T, cross[0], cross[1:].T.copy(), slopes, curves


def _loop_array(array: np.ndarray) -> np.ndarray:
    """An array of the one kind that loops are compiled for."""
    array = np.asarray(array, dtype=np.float64)
    return array if array.flags.c_contiguous and array.flags.writeable else np.array(array, order="C")


@compiled()
def _predictors(matrix: Any, centre: Any, beta: Any, offset: Any, found: Any) -> None:
    for i in range(len(matrix)):
        m = offset[i] + beta[0]
        for j in range(len(centre)):
            m += (matrix[i, j] - centre[j]) * beta[j + 1]
        found[i] = m


@compiled(fastmath={"contract"})
def _column_sums(
    matrix: Any, centre: Any, slope: Any, curve: Any, weight: Any, gram: Any, cross: Any, slopes: Any, curves: Any
) -> None:
    width, size = len(centre), slope.shape[1]
    x = np.ones(width + 1)
    for i in range(len(matrix)):
        w = weight[i]
        if not w > 0.0:
            continue
        for j in range(width):
            x[j + 1] = matrix[i, j] - centre[j]
        for s in range(size):
            slopes[s] += w * slope[i, s]
        for s in range(len(curves)):
            curves[s] += w * curve[i, s]
        pull, bend = w * slope[i, 0], w * curve[i, 0]
        for a in range(width + 1):
            cross[0, a] += pull * x[a]
            bent = bend * x[a]
            for b in range(a + 1):
                gram[a, b] += bent * x[b]
        for s in range(1, size):
            mixed = w * curve[i, s * (s + 1) // 2]
            for a in range(width + 1):
                cross[s, a] += mixed * x[a]
