"""Cholesky factors of small matrices, written out entry by entry.

Under ``vmap`` LAPACK is called once a row, which is 5 to 80 times slower than arithmetic that fuses. Locals have at most
ten dimensions, so the loops here are unrolled.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

Factor = list[list[Any]]


def cholesky(matrix: Any, dim: int, pivot: float = 1e-300) -> Factor:
    """Lower factor of a symmetric matrix; a direction without curvature gets a unit pivot instead of a NaN."""
    lower: Factor = [[None] * dim for _ in range(dim)]
    for i in range(dim):
        for j in range(i + 1):
            rest = matrix[i, j]
            for k in range(j):
                rest = rest - lower[i][k] * lower[j][k]
            lower[i][j] = jnp.sqrt(jnp.where(rest > pivot, rest, 1.0)) if i == j else rest / lower[j][j]
    return lower


def solve(lower: Factor, vector: Any, dim: int) -> Any:
    """Solve ``L Lᵀ x = vector``."""
    forward: list[Any] = []
    for i in range(dim):
        rest = vector[i]
        for k in range(i):
            rest = rest - lower[i][k] * forward[k]
        forward.append(rest / lower[i][i])
    return solve_transposed(lower, forward, dim)


def solve_transposed(lower: Factor, vector: Any, dim: int) -> Any:
    """Solve ``Lᵀ x = vector``: carries standard normal points to the posterior's scale."""
    found: list[Any] = [None] * dim
    for i in reversed(range(dim)):
        rest = vector[i]
        for k in range(i + 1, dim):
            rest = rest - lower[k][i] * found[k]
        found[i] = rest / lower[i][i]
    return jnp.stack(found)


def half_log_det(lower: Factor, dim: int) -> Any:
    """log det L."""
    return sum((jnp.log(lower[i][i]) for i in range(dim)), jnp.zeros(()))


def inverse(lower: Factor, dim: int) -> Any:
    """(L Lᵀ)⁻¹, column by column."""
    eye = jnp.eye(dim)
    return jnp.stack([solve(lower, eye[j], dim) for j in range(dim)], axis=1)
