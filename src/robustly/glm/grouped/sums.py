"""How are rows added up within their groups, at every point of a quadrature rule? Loops compiled to machine code."""

from __future__ import annotations

import numpy as np

from robustly._runtime.numba_loops import compiled


@compiled()
def sums_by_group(each: np.ndarray, columns: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Of values (rows, points) and columns (rows, c): their products added up within groups, (groups, points, c)."""
    groups, points, size = len(starts) - 1, each.shape[1], columns.shape[1]
    found = np.zeros((groups, points, size))
    for group in range(groups):
        for row in range(starts[group], starts[group + 1]):
            for point in range(points):
                value = each[row, point]
                for column in range(size):
                    found[group, point, column] += value * columns[row, column]
    return found


@compiled()
def means_by_row(each: np.ndarray, share: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Of values (rows, points) and the points' shares (groups, points, c): each row's means, (rows, c)."""
    groups, points, size = share.shape
    found = np.zeros((len(each), size))
    for group in range(groups):
        for row in range(starts[group], starts[group + 1]):
            for point in range(points):
                value = each[row, point]
                for column in range(size):
                    found[row, column] += value * share[group, point, column]
    return found


@compiled()
def predictors_at(m: np.ndarray, columns: np.ndarray, effects: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Each row's predictor with its group's effects (groups, points, q) at every point: (rows, points)."""
    groups, points, size = effects.shape
    found = np.empty((len(m), points))
    for group in range(groups):
        for row in range(starts[group], starts[group + 1]):
            for point in range(points):
                value = m[row]
                for column in range(size):
                    value += columns[row, column] * effects[group, point, column]
                found[row, point] = value
    return found
