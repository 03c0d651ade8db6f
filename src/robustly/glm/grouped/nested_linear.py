r"""What do normal responses in groups within groups say? Closed forms again, from sums by inner group.

An inner group has :math:`V_k = \sigma^2 I + W_k M M^\top W_k^\top`; by Woodbury's identity its products with
:math:`V_k^{-1}` need nothing but the sums of :mod:`robustly.glm.grouped.linear`. Added up within a group they take the part of
plain products there, and the group's own effects are one Woodbury more. Slopes and curvatures are by automatic differentiation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np

from robustly._runtime.compiled import one_thread
from robustly._runtime.precision import double_precision
from robustly.glm.grouped.linear import ClosedGroups
from robustly.glm.grouped.moments import Entered, InGroups, inner_starts, read_groups
from robustly.glm.grouped.sums import sums_by_group
from robustly.glm.priors import LOG_2PI
from robustly.rows.arrays import pad
from robustly.rows.groups import cut_by_group
from robustly.rows.store import Data, Rows

Array = np.ndarray


class NestedSums(NamedTuple):
    """Products of columns X, effects Z and responses y added up within inner groups, and the group of each."""

    products: Array
    """Of all columns, (inner groups, c, c)."""
    counted: Array
    owner: Array
    groups: int


def nested_sums(rows: Rows) -> NestedSums:
    """One pass over the rows."""
    found = rows.gather(nested_sums_pass, None)
    owner = np.repeat(np.arange(len(rows)), [len(one) for one in found["counted"]])
    return NestedSums(np.concatenate(found["products"]), np.concatenate(found["counted"]), owner, len(rows))


def nested_sums_pass(
    theta: Any, data: Data, weight: np.ndarray, state: Any
) -> tuple[dict[str, Any], dict[str, Any], None]:
    """A pass that adds up products within inner groups, as one entry a group."""
    part = read_groups(data)
    starts, owner = inner_starts(part)
    every = np.concatenate([part.directions, part.columns, (part.y - part.offset)[:, None]], axis=1)
    products = sums_by_group(every * part.counts[:, None], every, starts)
    cuts = np.searchsorted(owner, np.arange(len(part.starts)))
    counted = np.add.reduceat(part.counts, starts[:-1])
    return {}, {"products": cut_by_group(products, cuts), "counted": cut_by_group(counted, cuts)}, None


def condensed(xp: Any, square: Any, count: int) -> tuple[Any, Any]:
    """Of symmetric matrices (n, d, d): what is left when the first rows are eliminated, and the log determinant of those."""
    logs = xp.zeros(len(square))
    for _ in range(count):
        pivot, line = square[:, 0, 0], square[:, 0, 1:]
        logs = logs + xp.log(pivot)
        square = square[:, 1:, 1:] - line[:, :, None] * line[:, None, :] / pivot[:, None, None]
    return square, logs


def reduced(xp: Any, add: Callable[[Any], Any], at: Any, variance: Any, outer: int, sums: Any) -> tuple[Any, Any]:
    """Products with V⁻¹ of the groups' effects and residuals (groups, q + 1, q + 1) without the inner effects, and log |V|.

    `add` adds up within groups, `xp` is NumPy or JAX's.
    """
    factor, size = at.factor[outer:, outer:], len(at.u)
    inner = len(factor)
    # Columns: standardised inner effects, the groups' effects, residuals.
    turn = xp.concatenate([
        xp.concatenate([xp.zeros((size, inner + outer)), -at.u[:, None]], axis=1),
        xp.concatenate([xp.zeros((outer, inner)), xp.eye(outer), xp.zeros((outer, 1))], axis=1),
        xp.concatenate([factor, xp.zeros((inner, outer + 1))], axis=1),
        xp.eye(inner + outer + 1)[-1:],
    ])  # fmt: skip
    square = xp.einsum("gij,ia,jb->gab", sums.products, turn, turn) / variance
    square = square + xp.diag(xp.arange(inner + outer + 1) < inner)
    left, logs = condensed(xp, square, inner)
    return add(left), add(sums.counted * xp.log(variance) + logs)


def nested_distances(
    xp: Any, add: Callable[[Any], Any], at: Any, variance: Any, outer: int, sums: Any
) -> tuple[Any, Any]:
    """rᵀ V⁻¹ r and log |V| by group."""
    square, logs = reduced(xp, add, at, variance, outer, sums)
    factor = at.factor[:outer, :outer]
    turn = xp.concatenate([
        xp.concatenate([factor, xp.zeros((outer, 1))], axis=1),
        xp.eye(outer + 1)[-1:],
    ])  # fmt: skip
    square = xp.einsum("gij,ia,jb->gab", square, turn, turn) + xp.diag(xp.arange(outer + 1) < outer)
    left, more = condensed(xp, square, outer)
    return left[:, 0, 0], logs + more


@lru_cache(maxsize=32)
def _derivatives(entries: tuple[tuple[int, int], ...], size: int, outer: int, groups: int, own: bool) -> Any:
    """Evidences by group, their slopes and curvatures in (u, log σ, L, log dof), compiled."""
    import jax
    import jax.numpy as jnp
    from jax.scipy.special import gammaln

    def evidence(vector: Any, fixed: Any, products: Any, counted: Any, owner: Any, rows: Any) -> tuple[Any, Any]:
        factor = fixed
        for place, (a, b) in enumerate(entries):
            factor = factor.at[a, b].set(vector[size + 1 + place])
        add = lambda each: jax.ops.segment_sum(each, owner, groups)
        at, variance = Entered(vector[:size], (), factor, vector[:0]), jnp.exp(2.0 * vector[size])
        sums = NestedSums(products, counted, owner, groups)
        distance, log_determinant = nested_distances(jnp, add, at, variance, outer, sums)
        if own:
            dof = jnp.exp(vector[-1])
            whole = gammaln(0.5 * (dof + rows)) - gammaln(0.5 * dof) - 0.5 * rows * jnp.log(dof * jnp.pi)
            found = whole - 0.5 * (dof + rows) * jnp.log1p(distance / dof) - 0.5 * log_determinant
        else:
            found = -0.5 * (rows * LOG_2PI + log_determinant + distance)
        return found, found

    def slopes(*given: Any) -> tuple[Any, Any]:
        slope, value = jax.jacfwd(evidence, has_aux=True)(*given)
        return slope, (slope, value)

    return one_thread(jax.jacfwd(slopes, has_aux=True))


@dataclass(frozen=True, eq=False)
class LinearNested(ClosedGroups):
    """Groups with groups in them at a vector."""

    sums: NestedSums
    at: Entered
    entries: tuple[tuple[int, int], ...]
    own_precision: bool
    outer: int

    @cached_property
    def counted(self) -> Array:  # type: ignore[override]
        return np.bincount(self.sums.owner, self.sums.counted, self.sums.groups)

    def _added(self, each: Array) -> Array:
        found = np.zeros((self.sums.groups, *each.shape[1:]))
        np.add.at(found, self.sums.owner, each)
        return found

    @cached_property
    def _distances(self) -> tuple[Array, Array]:
        return nested_distances(np, self._added, self.at, self.variance, self.outer, self.sums)

    @property
    def distance(self) -> Array:  # type: ignore[override]
        return self._distances[0]

    @property
    def log_determinant(self) -> Array:  # type: ignore[override]
        return self._distances[1]

    @property
    def factor(self) -> Array:  # type: ignore[override]
        return self.at.factor[: self.outer, : self.outer]

    @cached_property
    def _effects(self) -> tuple[Array, Array]:
        """Means and covariances of the groups' own effects, given a common precision."""
        square = reduced(np, self._added, self.at, self.variance, self.outer, self.sums)[0]
        inside = np.eye(self.outer) + self.factor.T @ square[:, :-1, :-1] @ self.factor
        covariance = self.factor @ np.linalg.solve(inside, np.broadcast_to(self.factor.T, inside.shape))
        return np.einsum("gab,gb->ga", covariance, square[:, :-1, -1]), covariance

    @property
    def mean(self) -> Array:  # type: ignore[override]
        return self._effects[0]

    @property
    def covariance(self) -> Array:  # type: ignore[override]
        return self._effects[1]

    @cached_property
    def _inside(self) -> tuple[Array, Array, Array]:
        """Of inner groups: their effects' covariance given the group's, and products of their columns with these and residuals."""
        size, dim = len(self.at.u), len(self.at.factor)
        a, b = slice(size, size + self.outer), slice(size + self.outer, size + dim)
        products, factor = self.sums.products, self.at.factor[self.outer :, self.outer :]
        inside = np.eye(len(factor)) + factor.T @ products[:, b, b] @ factor / self.variance
        covariance = factor @ np.linalg.solve(inside, np.broadcast_to(factor.T, inside.shape))
        return covariance, products[:, b, a], products[:, b, -1] - products[:, b, :size] @ self.at.u

    def inner_moments(self) -> tuple[Array, Array]:
        """Posterior means and covariances of every inner group's effects and its group's, in units of their columns."""
        owner, (inner, across, left) = self.sums.owner, self._inside
        mean, covariance = self.mean[owner], self.covariance[owner]
        drawn = inner @ across / self.variance
        own = np.einsum("gab,gb->ga", inner, left) / self.variance - np.einsum("gab,gb->ga", drawn, mean)
        cross = -drawn @ covariance
        square = np.block([[covariance, np.swapaxes(cross, 1, 2)], [cross, inner - cross @ np.swapaxes(drawn, 1, 2)]])
        return np.concatenate([mean, own], axis=1), self.widening()[owner, None, None] * square

    def look(self) -> tuple[Array, Array, Array]:
        size, sums = len(self.at.u), self.sums
        # Empty groups change nothing, and with few sizes a fit without some of the groups compiles nothing anew.
        groups, inner = (1 << int(count - 1).bit_length() for count in (sums.groups + 1, len(sums.owner) + 1))
        ask = _derivatives(self.entries, size, self.outer, groups, self.own_precision)
        moved = [self.at.factor[a, b] for a, b in self.entries]
        vector = np.concatenate([self.at.u, [self.at.phi[0]], moved, self.at.psi[-1:] if self.own_precision else []])
        filled = (
            *(pad(part, inner, 0) for part in (sums.products, sums.counted, sums.owner)),
            pad(self.counted, groups, 0),
        )
        with double_precision():
            found = ask(vector, self.at.factor, *filled)
        curve, slope, evidence = (np.asarray(part)[: sums.groups] for part in (found[0], *found[1]))
        if not np.all(np.isfinite(evidence)):
            raise np.linalg.LinAlgError
        return evidence, slope, curve

    def standardised(self, rows: InGroups) -> Array:
        starts, owner = inner_starts(rows)
        of_inner = np.repeat(np.arange(len(owner)), np.diff(starts))
        of_group, variance = owner[of_inner], self.variance
        outside, inside = rows.columns[:, : self.outer], rows.columns[:, self.outer :]
        left = rows.y - rows.offset - rows.directions @ self.at.u
        covariance, across, sums = (part[of_inner] for part in self._inside)
        drawn = np.einsum("nb,nbc->nc", inside, covariance) / variance
        # Rows of V⁻¹ without the groups' own effects, times residuals, effects' columns, and themselves.
        residual = (left - np.einsum("nb,nb->n", drawn, sums)) / variance
        effect = (outside - np.einsum("nb,nba->na", drawn, across)) / variance
        diagonal = (1.0 - rows.counts * np.einsum("nb,nb->n", drawn, inside)) / variance
        whole = residual - np.einsum("na,na->n", effect, self.mean[of_group])
        within = diagonal - rows.counts * np.einsum("na,nab,nb->n", effect, self.covariance[of_group], effect)
        return whole / np.sqrt(np.maximum(within, 1e-12 / variance))
