"""Cholesky factors of small matrices, written out entry by entry.

Under ``vmap`` LAPACK is called once a row, which is 5 to 80 times slower than arithmetic that fuses. Locals have at most
ten dimensions, so the loops here are unrolled.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import Array

Factor = list[list[Any]]


def cholesky(matrix: Any, dim: int, pivot: float | None = 1e-300) -> Factor:
    """Lower factor of a symmetric matrix; a direction with less than `pivot` gets a unit instead of a NaN."""
    lower: Factor = [[None] * dim for _ in range(dim)]
    for i in range(dim):
        for j in range(i + 1):
            rest = matrix[i, j]
            for k in range(j):
                rest = rest - lower[i][k] * lower[j][k]
            if i == j and pivot is not None:
                rest = jnp.where(rest > pivot, rest, 1.0)
            lower[i][j] = jnp.sqrt(rest) if i == j else rest / lower[j][j]
    return lower


def filled(lower: Factor, dim: int) -> Array:
    """A factor as a matrix."""
    return jnp.stack([jnp.stack([*lower[i][: i + 1], *[jnp.zeros(())] * (dim - i - 1)]) for i in range(dim)])


def solve_triangular(matrix: Any, right: Array, *, lower: bool, unit_diagonal: bool) -> Array:
    """Solve ``matrix @ x = right`` for a triangular matrix and as many columns as there are."""
    dim = matrix.shape[0]
    found: list[Any] = [None] * dim
    for i in range(dim) if lower else reversed(range(dim)):
        rest = right[i]
        for k in range(i) if lower else range(i + 1, dim):
            rest = rest - matrix[i, k] * found[k]
        found[i] = rest if unit_diagonal else rest / matrix[i, i]
    return jnp.stack(found)


def solve(lower: Factor, vector: Array, dim: int) -> Array:
    """Solve ``L Lᵀ x = vector``."""
    forward: list[Any] = []
    for i in range(dim):
        rest = vector[i]
        for k in range(i):
            rest = rest - lower[i][k] * forward[k]
        forward.append(rest / lower[i][i])
    return solve_transposed(lower, forward, dim)


def solve_transposed(lower: Factor, vector: Array, dim: int) -> Array:
    """Solve ``Lᵀ x = vector``: carries standard normal points to the posterior's scale."""
    found: list[Any] = [None] * dim
    for i in reversed(range(dim)):
        rest = vector[i]
        for k in range(i + 1, dim):
            rest = rest - lower[k][i] * found[k]
        found[i] = rest / lower[i][i]
    return jnp.stack(found)


def half_log_det(lower: Factor, dim: int) -> Array:
    """log det L."""
    return sum((jnp.log(lower[i][i]) for i in range(dim)), jnp.zeros(()))


def inverse(lower: Factor, dim: int) -> Array:
    """(L Lᵀ)⁻¹, column by column."""
    eye = jnp.eye(dim)
    return jnp.stack([solve(lower, eye[j], dim) for j in range(dim)], axis=1)
