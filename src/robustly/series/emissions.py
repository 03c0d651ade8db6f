r"""What do values say of the states? Multivariate t densities and the sums an EM step needs, missing columns integrated out.

A state's law is the component of a t mixture, and its density and sums are read by that model's passes
(:mod:`robustly.fit.t_rows`). Rows are sorted by which columns they have. With columns o there and m missing, the density is
the t law of the columns that are there with the same ν, the pull :math:`u = (\nu + d_o)/(\nu + \delta_o)`, and the missing ones
enter the sums by their conditional mean and, beside it, :math:`\Sigma_{mm} - \Sigma_{mo}\Sigma_{oo}^{-1}\Sigma_{om}` a row.
Rows with nothing have density one and say nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from robustly.fit.t_components import Components
from robustly.fit.t_rows import Densities, DofRates, MixtureSums, Pass, log_densities, sum_block
from robustly.model import scale_matrices


@dataclass(frozen=True)
class Pattern:
    """Rows that have the same columns."""

    rows: np.ndarray | slice
    columns: np.ndarray
    values: np.ndarray
    """(rows, columns there)."""


def sort_rows(X: np.ndarray) -> list[Pattern]:
    """Rows by the columns they have; one pattern, without a copy, where nothing is missing."""
    there = ~np.isnan(X)
    if there.all():
        return [Pattern(slice(None), np.arange(X.shape[1]), X)]
    kinds, which = np.unique(there, axis=0, return_inverse=True)
    found = []
    for i, kind in enumerate(kinds):
        rows = np.flatnonzero(which.reshape(-1) == i)
        columns = np.flatnonzero(kind)
        found.append(Pattern(rows, columns, np.ascontiguousarray(X[np.ix_(rows, columns)])))
    return found


def kernel_of(states: Components, columns: np.ndarray) -> Densities:
    """The states' densities of some of the columns; no weights, as the chain brings them."""
    size, dim = states.means.shape
    none = np.zeros(size)
    if len(columns) == dim:
        return Densities(
            none, states.means, scale_matrices.whitener(states.kind, states.factors, size, dim), states.dofs
        )
    shape = scale_matrices.matrices(states.kind, states.covariances, size, dim)[:, columns[:, None], columns]
    return Densities(none, states.means[:, columns], scale_matrices.factor("full", shape), states.dofs)


def densities(patterns: list[Pattern], states: Components, steps: int) -> np.ndarray:
    """Log density of every row in every state, (T, K)."""
    if len(patterns) == 1 and isinstance(patterns[0].rows, slice):
        return log_densities(patterns[0].values, kernel_of(states, patterns[0].columns))
    found = np.zeros((steps, len(states.means)))
    for pattern in patterns:
        if len(pattern.columns):
            found[pattern.rows] = log_densities(pattern.values, kernel_of(states, pattern.columns))
    return found


def distances(patterns: list[Pattern], states: Components, steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Squared distance of every row from every state (T, K), and how many columns it has (T,)."""
    found, known = np.zeros((steps, len(states.means))), np.zeros(steps, dtype=np.int64)
    for pattern in patterns:
        known[pattern.rows] = len(pattern.columns)
        if len(pattern.columns):
            over = Pass(kernel_of(states, pattern.columns), len(pattern.values))
            mine = np.empty((len(pattern.values), len(states.means)))
            for part, columns in over.blocks(pattern.values):
                mine[part] = over.look(columns)[1].T
            found[pattern.rows] = mine
    return found, known


def expected_sums(patterns: list[Pattern], states: Components, share: np.ndarray, fit_dof: bool) -> MixtureSums:
    """The sums of an EM step from the states' probabilities at every row, (T, K)."""
    size, dim = states.means.shape
    tilted = scale_matrices.has_matrices(states.kind)
    total = MixtureSums(
        0.0, np.zeros(size), np.zeros(size), np.zeros((size, dim)), np.zeros((size, dim, dim) if tilted else (size, dim)),
        np.zeros(size), np.zeros(size + 1),
    )  # fmt: skip
    for pattern in patterns:
        if len(pattern.columns):
            total = total + _pattern_sums(pattern, states, share[pattern.rows], fit_dof)
    return total


def _pattern_sums(pattern: Pattern, states: Components, share: np.ndarray, fit_dof: bool) -> MixtureSums:
    kernel = kernel_of(states, pattern.columns)
    over = Pass(kernel, len(pattern.values))
    rates = DofRates(states.dofs, over.dim) if fit_dof else None
    total: dict[str, Any] = {}
    for part, columns in over.blocks(pattern.values):
        found = sum_block(over, columns, rates, np.ascontiguousarray(share[part].T))
        total = {name: total[name] + value for name, value in found.items()} if total else found
    sums = MixtureSums(**{**total, "log_likelihood": 0.0})
    if len(pattern.columns) == states.means.shape[1]:
        return sums
    first, scatter = _completed(pattern, states, sums.mass, sums.first, sums.scatter)
    return replace(sums, first=first, scatter=scatter)


def _completed(
    pattern: Pattern, states: Components, mass: np.ndarray, first: np.ndarray, scatter: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Sums over all columns: missing ones at their conditional means, plus their conditional covariance a row."""
    size, dim = states.means.shape
    there = pattern.columns
    gone = np.setdiff1d(np.arange(dim), there)
    shape = scale_matrices.matrices(states.kind, states.covariances, size, dim)
    full, square = np.zeros((size, dim)), np.zeros((size, dim, dim))
    for k in range(size):
        # x̂ − μ = B (x_o − μ_o), the identity for columns that are there
        slope = np.linalg.solve(shape[k][np.ix_(there, there)], shape[k][np.ix_(there, gone)]).T
        spread = np.zeros((dim, len(there)))
        spread[there, np.arange(len(there))] = 1.0
        spread[gone] = slope
        full[k] = spread @ first[k]
        square[k] = spread @ scatter[k] @ spread.T
        square[k][np.ix_(gone, gone)] += mass[k] * (
            shape[k][np.ix_(gone, gone)] - slope @ shape[k][np.ix_(there, gone)]
        )
    return full, square if scale_matrices.has_matrices(states.kind) else np.diagonal(square, axis1=1, axis2=2).copy()
