"""Products of many sparse columns, an intercept before them, with coefficients in units of the columns, and back."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np


class SparseColumns:
    """Rows of a sparse matrix, with a one before each where there is an intercept, times a unit for each column."""

    def __init__(self, matrix: Any, intercept: bool, unit: np.ndarray) -> None:
        self.matrix, self.intercept, self.unit = matrix, intercept, unit
        self._back = matrix.T

    @cached_property
    def _squares(self) -> Any:
        one = self.matrix
        if not one.has_canonical_format:  # an entry may be the sum of several
            return one.multiply(one).T
        return type(one)((one.data**2, one.indices, one.indptr), shape=one.shape).T

    def rows_of(self, u: np.ndarray) -> np.ndarray:
        """Each row times coefficients, one vector or several side by side."""
        beta = (self.unit * u.T).T
        return self.matrix @ beta[1:] + beta[0] if self.intercept else self.matrix @ beta

    def columns_of(self, each: np.ndarray) -> np.ndarray:
        """Each column times a number by row, or several."""
        return (self.unit * self._with_intercept(self._back @ each, each).T).T

    def squares_of(self, each: np.ndarray) -> np.ndarray:
        """The squares of each column times a number by row."""
        return self.unit**2 * self._with_intercept(self._squares @ each, each)

    def written_out(self, each: np.ndarray) -> np.ndarray:
        """Columns times columns, each row weighted: an array."""
        found = weighted_gram(self.matrix, each, self.intercept)
        found *= self.unit[:, None]
        found *= self.unit
        return found

    def _with_intercept(self, inner: np.ndarray, each: np.ndarray) -> np.ndarray:
        return np.concatenate([each.sum(axis=0)[None], inner]) if self.intercept else inner


def weighted_gram(matrix: Any, each: np.ndarray, intercept: bool) -> np.ndarray:
    """Sparse columns times sparse columns, each row weighted, as an array."""
    inner = matrix.T @ matrix.multiply(each[:, None])
    if not intercept:
        return inner.toarray()
    found = np.empty((matrix.shape[1] + 1, matrix.shape[1] + 1))
    found[1:, 1:] = inner.toarray()
    found[0, 0] = each.sum()
    found[0, 1:] = found[1:, 0] = matrix.T @ each
    return found
