r"""How does a regression with hundreds of sparse columns bend? By products with its rows, without ever writing the matrix out.

The curvature of :math:`p` coefficients has :math:`p^2` entries and takes :math:`p^3` operations to solve, however sparse the
columns. A product with it, :math:`X^\top (h \circ X v)`, goes through the entries of :math:`X` twice. Where rows' evidences are
concave in their predictors the coefficients' own block is negative definite, so conjugate gradients solve it; the few shared
numbers are eliminated (a Schur complement). Asked for as an array (:func:`numpy.asarray`), it is written out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

import numpy as np

# By which share of its size, as the curvature measures both, a step may be off. What it leaves to gain is the square of it.
STEP_ERROR = 1e-4
# A system that takes more products is written out and factored: its columns are too alike.
MOST_PRODUCTS = 60
# A curvature of a row is taken for rounding up to this share of the largest.
ROUNDED = 1e-9


class Columns(Protocol):
    """What a curvature asks of the columns: products with coefficients in their coordinates, and back."""

    def rows_of(self, u: np.ndarray) -> np.ndarray: ...

    def columns_of(self, each: np.ndarray) -> np.ndarray: ...

    def squares_of(self, each: np.ndarray) -> np.ndarray: ...

    def written_out(self, each: np.ndarray) -> np.ndarray: ...


class WideCurvature:
    """The second derivative of an objective in many coefficients, known by their rows, and in a few shared numbers.

    Args:
        columns: the columns, in the coordinates of the coefficients.
        bend: by row, the second derivative of its evidence in its predictor, weighted.
        mixed: second derivatives between coefficients and shared numbers.
        shared: those of the shared numbers.
        diagonal: what is believed of each number beside the rows, on the diagonal.
    """

    def __init__(
        self, columns: Columns, bend: np.ndarray, mixed: np.ndarray, shared: np.ndarray, diagonal: np.ndarray
    ) -> None:
        self.columns, self.bend, self.mixed, self.shared, self.diagonal = columns, bend, mixed, shared, diagonal
        self._across: np.ndarray | None = None

    def with_diagonal(self, more: np.ndarray) -> WideCurvature:
        """The same with more on the diagonal."""
        return WideCurvature(self.columns, self.bend, self.mixed, self.shared, self.diagonal + more)

    @property
    def size(self) -> int:
        """How many coefficients there are."""
        return len(self.mixed)

    def __len__(self) -> int:
        return len(self.diagonal)

    @property
    def is_finite(self) -> bool:
        return all(bool(np.isfinite(part).all()) for part in (self.bend, self.mixed, self.shared, self.diagonal))

    @property
    def is_concave(self) -> bool:
        """Whether every row's evidence is concave in its predictor, so that the coefficients' block has a top."""
        most, least = float(self.bend.max(initial=0.0)), float(self.bend.min(initial=0.0))
        return most <= -ROUNDED * least and bool(np.all(self.diagonal[: self.size] <= 0.0))

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        found, size = np.empty((len(self), len(self))), self.size
        found[:size, :size] = self.columns.written_out(self.bend)
        found[:size, size:] = self.mixed
        found[size:, :size] = self.mixed.T
        found[size:, size:] = self.shared
        found[np.diag_indices_from(found)] += self.diagonal
        return found if dtype is None else found.astype(dtype)

    def __matmul__(self, vector: np.ndarray) -> np.ndarray:
        u, rest = vector[: self.size], vector[self.size :]
        own = self.columns.columns_of(self.bend * self.columns.rows_of(u)) + self.mixed @ rest
        return np.concatenate([own, self.mixed.T @ u + self.shared @ rest]) + self.diagonal * vector

    def eliminated(self, slope: np.ndarray, error: float = STEP_ERROR) -> tuple[np.ndarray, np.ndarray] | None:
        """A Newton step for the coefficients with the shared numbers held, and how it moves with each of these.

        None where the coefficients' block may have no top, or takes too many products.
        """
        if not self.is_concave:
            return None
        known = self._across is not None
        right = slope[:, None] if known else np.column_stack([slope, self.mixed])
        minus = -self.diagonal[: self.size]
        diagonal = minus - self.columns.squares_of(self.bend)
        if not diagonal.min() > 0.0:
            return None

        def product(vectors: np.ndarray) -> np.ndarray:
            rows = self.columns.rows_of(vectors)
            rows *= self.bend[:, None]
            return minus[:, None] * vectors - self.columns.columns_of(rows)

        found = conjugate_gradients(product, right, diagonal, error)
        if found is None:
            return None
        if self._across is None:
            self._across = found[:, 1:]
        return found[:, 0], self._across

    def of_shared(self, across: np.ndarray) -> np.ndarray:
        """Minus the curvature of the shared numbers where coefficients follow them: the Schur complement."""
        size = self.size
        return -(self.shared + np.diag(self.diagonal[size:])) - self.mixed.T @ across

    def has_top(self, least: float) -> bool:
        """Whether no direction is known to curve upwards by more than `least`, in units of the shared numbers' own curvatures."""
        if not self.is_concave or self._across is None:
            return False
        unit = 1.0 / np.sqrt(np.maximum(np.abs(self.shared.diagonal() + self.diagonal[self.size :]), 1e-200))
        seen = self.of_shared(self._across) * unit[:, None] * unit
        return not len(unit) or float(np.linalg.eigvalsh(seen)[0]) > -least


Curve: TypeAlias = np.ndarray | WideCurvature
"""A second derivative, as an array or by its products."""


def conjugate_gradients(
    product: Callable[[np.ndarray], np.ndarray], right: np.ndarray, diagonal: np.ndarray, error: float
) -> np.ndarray | None:
    r"""Solutions of a positive definite system for several right-hand sides, preconditioned by its diagonal.

    They are off by at most the share `error` of their size, both measured by the matrix itself. A residual says that only along
    with the least eigenvalue, which the coefficients of the iteration tell (Lanczos). None where it takes too many products.
    """
    scale = 1.0 / diagonal[:, None]
    found = np.zeros_like(right)
    left = right.copy()
    near = scale * left
    ahead = near.copy()
    size = np.einsum("ij,ij->j", left, near)
    enough, lengths, turns = error**2 * size, [], []
    for _ in range(MOST_PRODUCTS):
        bent = product(ahead)
        along = np.einsum("ij,ij->j", ahead, bent)
        if not np.all(np.isfinite(along)):
            return None
        # A right-hand side that is solved to the last digit stays where it is.
        length = np.where(along > 0, size / np.where(along > 0, along, 1.0), 0.0)
        found += length * ahead
        left -= length * bent
        near = scale * left
        new = np.einsum("ij,ij->j", left, near)
        turn = np.where(size > 0, new / np.where(size > 0, size, 1.0), 0.0)
        lengths.append(length)
        turns.append(turn)
        if np.all(new <= enough):
            least = np.array([_least_eigenvalue(*of) for of in zip(np.transpose(lengths), np.transpose(turns))])
            enough = error**2 * np.minimum(1.0, least) * np.einsum("ij,ij->j", found, right)
            if np.all(new <= enough):
                return found
        ahead *= turn
        ahead += near
        size = new
    return None


def _least_eigenvalue(lengths: np.ndarray, turns: np.ndarray) -> float:
    """The least eigenvalue of the preconditioned matrix as far as steps of these lengths and turns have seen it."""
    from scipy.linalg import eigvalsh_tridiagonal

    lengths = lengths[lengths > 0]
    if not len(lengths):
        return 1.0
    turns = turns[: len(lengths) - 1]
    middle = 1.0 / lengths
    middle[1:] += turns / lengths[:-1]
    return float(eigvalsh_tridiagonal(middle, np.sqrt(turns) / lengths[:-1], select="i", select_range=(0, 0))[0])
