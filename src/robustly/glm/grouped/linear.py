r"""What do groups of normal responses say? Closed forms from a few sums by group, which are made once.

With normal effects :math:`V_j = \sigma^2 I + Z_j L L^\top Z_j^\top` and a group's evidence is that of :math:`N(X_j w, V_j)`. With
a precision of its own for every group (Pinheiro, Liu & Wu 2001) it is a multivariate Student t with the same
:math:`V_j`. By Woodbury's identity all that is needed are products of columns, effects and responses added up within the group,
so that after one pass over the rows a step of the search costs the same whatever their number.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from robustly.glm.grouped.effects import student_by_square
from robustly.glm.grouped.moments import Entered, InGroups, read_groups
from robustly.glm.grouped.sums import sums_by_group
from robustly.glm.priors import LOG_2PI
from robustly.rows.store import Data, Rows

Array = np.ndarray


class GroupSums(NamedTuple):
    """Products of columns (X, in the coordinates of the search), effects (Z) and responses (y), added up within groups."""

    xx: Array
    xz: Array
    zz: Array
    xy: Array
    zy: Array
    yy: Array
    rows: Array

    def taken(self, index: Array | slice) -> GroupSums:
        return GroupSums(*(part[index] for part in self))


def group_sums(rows: Rows) -> GroupSums:
    """One pass over the rows."""
    return GroupSums(**rows.gather(sums_pass, None))


def sums_pass(theta: Any, data: Data, weight: np.ndarray, state: Any) -> tuple[dict[str, Any], dict[str, Any], None]:
    """A pass that adds up products within groups."""
    part = read_groups(data)
    every = np.concatenate([part.directions, part.columns, (part.y - part.offset)[:, None]], axis=1)
    # Every column stands in turn for the values at the points of a rule.
    sums = sums_by_group(every * part.counts[:, None], every, part.starts)
    size = part.directions.shape[1]
    x, z = slice(0, size), slice(size, size + part.columns.shape[1])
    cut = (sums[:, x, x], sums[:, x, z], sums[:, z, z], sums[:, x, -1], sums[:, z, -1], sums[:, -1, -1])
    return {}, dict(zip(GroupSums._fields, (*cut, np.add.reduceat(part.counts, part.starts[:-1])))), None


class ClosedGroups(ABC):
    """Groups of normal responses at a vector: what follows from their distances and the moments of their effects."""

    at: Entered
    own_precision: bool
    """Whether every group has a precision of its own; the last number of the law of effects is then its dof."""
    distance: Array
    """rᵀ V⁻¹ r."""
    log_determinant: Array
    mean: Array
    """Of the groups' effects, in units of their columns."""
    covariance: Array
    """Of the groups' effects, given a common precision."""
    factor: Array
    """Of the groups' effects."""

    @property
    @abstractmethod
    def counted(self) -> Array:
        """How many rows count, by group."""

    @abstractmethod
    def look(self) -> tuple[Array, Array, Array]:
        """Evidences, slopes (groups, p) and curvatures (groups, p, p) in (u, log σ, L, log dof)."""

    @abstractmethod
    def standardised(self, rows: InGroups) -> Array:
        """Every row's distance from what the other rows of its group predict, in its standard deviations there."""

    @property
    def variance(self) -> float:
        return float(np.exp(2.0 * self.at.phi[0]))

    @property
    def dof(self) -> float:
        return float(np.exp(self.at.psi[-1]))

    @property
    def evidence(self) -> Array:
        if self.own_precision:
            return student_by_square(self.distance, self.counted, self.dof)[0] - 0.5 * self.log_determinant
        return -0.5 * (self.counted * LOG_2PI + self.log_determinant + self.distance)

    @property
    def weight(self) -> Array:
        """A group's expected precision, relative to the common one."""
        if not self.own_precision:
            return np.ones(len(self.distance))
        return (self.dof + self.counted) / (self.dof + self.distance)

    def widening(self) -> Array:
        """By what covariances of effects grow where groups have precisions of their own."""
        if not self.own_precision:
            return np.ones(len(self.distance))
        return (self.dof + self.distance) / np.maximum(self.dof + self.counted - 2.0, 1e-3)

    @property
    def posterior(self) -> tuple[Array, Array]:
        """Means and covariances of the groups' effects in units of their columns."""
        return self.mean, self.covariance * self.widening()[:, None, None]


@dataclass(frozen=True, eq=False)
class LinearGroups(ClosedGroups):
    """Groups at a vector: everything that evidences, slopes, posteriors and distances are made of."""

    sums: GroupSums
    at: Entered
    entries: tuple[tuple[int, int], ...]
    own_precision: bool

    @property
    def counted(self) -> Array:
        return self.sums.rows

    @property
    def factor(self) -> Array:  # type: ignore[override]
        return self.at.factor

    @cached_property
    def inner(self) -> Array:
        """E with V⁻¹ = (1 − Z E Zᵀ) / σ²."""
        return self.standard_cov_root @ np.swapaxes(self.standard_cov_root, 1, 2)

    @cached_property
    def _lower(self) -> Array:
        """The Cholesky factor of the effects' posterior precision, in standardised effects."""
        factor = self.at.factor / np.sqrt(self.variance)
        return np.linalg.cholesky(np.eye(len(factor)) + factor.T @ self.sums.zz @ factor)

    @cached_property
    def standard_cov_root(self) -> Array:
        factor = self.at.factor / np.sqrt(self.variance)
        return factor @ np.swapaxes(np.linalg.inv(self._lower), 1, 2)

    @cached_property
    def zr(self) -> Array:
        """Zᵀ r."""
        return self.sums.zy - np.einsum("gxz,x->gz", self.sums.xz, self.at.u)

    @cached_property
    def xr(self) -> Array:
        return self.sums.xy - self.sums.xx @ self.at.u

    @cached_property
    def rr(self) -> Array:
        u = self.at.u
        return self.sums.yy - 2.0 * self.sums.xy @ u + np.einsum("x,gxw,w->g", u, self.sums.xx, u)

    @cached_property
    def distance(self) -> Array:  # type: ignore[override]
        return (self.rr - np.einsum("ga,gab,gb->g", self.zr, self.inner, self.zr)) / self.variance

    @cached_property
    def log_determinant(self) -> Array:  # type: ignore[override]
        diagonal = np.log(np.einsum("gaa->ga", self._lower))
        return self.sums.rows * np.log(self.variance) + 2.0 * diagonal.sum(axis=1)

    @property
    def mean(self) -> Array:  # type: ignore[override]
        return np.einsum("gab,gb->ga", self.inner, self.zr)

    @property
    def covariance(self) -> Array:  # type: ignore[override]
        return self.variance * self.inner

    def standardised(self, rows: InGroups) -> Array:
        of_row = np.repeat(np.arange(len(self.distance)), np.diff(rows.starts))
        left = rows.y - rows.offset - rows.directions @ self.at.u
        inner = self.inner[of_row]
        drawn = left - np.einsum("nz,nza,na->n", rows.columns, inner, self.zr[of_row])
        kept = 1.0 - rows.counts * np.einsum("nz,nza,na->n", rows.columns, inner, rows.columns)
        return drawn / np.sqrt(self.variance * np.maximum(kept, 1e-12))

    # ------------------------------------------------------------------ slopes and curvatures, by group

    def look(self) -> tuple[Array, Array, Array]:
        sums, s2, inner = self.sums, self.variance, self.inner
        size, count = len(self.at.u), len(self.entries)
        total = size + 1 + count + int(self.own_precision)
        noise, lines = size, slice(size + 1, size + 1 + count)
        # Powers of V⁻¹ keep the form (1 − Z E_k Zᵀ) / σ^2k.
        through = inner @ sums.zz @ inner
        second = 2.0 * inner - through
        third = 3.0 * inner - 3.0 * through + through @ sums.zz @ inner
        apply = lambda left, each: np.einsum("gza,gab,gb->gz", left, each, self.zr)
        zz, zr, xz = sums.zz, self.zr, sums.xz
        k = (zz - zz @ inner @ zz) / s2
        g = (zr - apply(zz, inner)) / s2
        g2 = (zr - apply(zz, second)) / s2**2
        k2 = (zz - zz @ second @ zz) / s2**2
        xg, xg2 = (self.xr - apply(xz, inner)) / s2, (self.xr - apply(xz, second)) / s2**2
        xk = (xz - xz @ inner @ zz) / s2
        xx = (sums.xx - xz @ inner @ np.swapaxes(xz, 1, 2)) / s2
        squared = lambda each, power: (self.rr - np.einsum("ga,gab,gb->g", zr, each, zr)) / s2**power
        traced = lambda each, power: (sums.rows - np.einsum("gab,gba->g", each, zz)) / s2**power

        change, factor = [], self.at.factor
        for a, b in self.entries:
            bump = np.zeros_like(factor)
            bump[a, b] = 1.0
            change.append(bump @ factor.T + factor @ bump.T)
        groups = len(self.distance)
        dq, dv = np.zeros((groups, total)), np.zeros((groups, total))
        qq, vv = np.zeros((groups, total, total)), np.zeros((groups, total, total))
        dq[:, :size] = -2.0 * xg
        dq[:, noise], dv[:, noise] = -2.0 * s2 * squared(second, 2), 2.0 * s2 * traced(inner, 1)
        qq[:, :size, :size] = 2.0 * xx
        qq[:, :size, noise] = 4.0 * s2 * xg2
        qq[:, noise, noise] = 8.0 * s2**2 * squared(third, 3) - 4.0 * s2 * squared(second, 2)
        vv[:, noise, noise] = -4.0 * s2**2 * traced(second, 2) + 4.0 * s2 * traced(inner, 1)
        for i, one in enumerate(change):
            line = lines.start + i
            moved = g @ one
            dq[:, line] = -np.einsum("ga,ga->g", moved, g)
            dv[:, line] = np.einsum("gab,ba->g", k, one)
            qq[:, :size, line] = 2.0 * np.einsum("gxa,ga->gx", xk, moved)
            qq[:, noise, line] = 4.0 * s2 * np.einsum("ga,ga->g", g2, moved)
            vv[:, noise, line] = -2.0 * s2 * np.einsum("gab,ba->g", k2, one)
            for j in range(i, count):
                other = change[j]
                # The second derivative of L Lᵀ in two of its entries.
                (a, b), (c, d) = self.entries[i], self.entries[j]
                both = np.zeros_like(factor)
                if b == d:
                    both[a, c] += 1.0
                    both[c, a] += 1.0
                qq[:, line, lines.start + j] = 2.0 * np.einsum("ga,gab,gb->g", moved, k, g @ other) - np.einsum(
                    "ga,ab,gb->g", g, both, g
                )
                vv[:, line, lines.start + j] = -np.einsum("gab,bc,gcd,da->g", k, one, k, other) + np.einsum(
                    "gab,ba->g", k, both
                )
        upper = np.triu_indices(total)
        for matrix in (qq, vv):
            matrix[:, upper[1], upper[0]] = matrix[:, upper[0], upper[1]]
        return self._assembled(dq, dv, qq, vv)

    def _assembled(self, dq: Array, dv: Array, qq: Array, vv: Array) -> tuple[Array, Array, Array]:
        """From the distance and the log determinant to the evidence."""
        if not self.own_precision:
            return self.evidence, -0.5 * (dq + dv), -0.5 * (qq + vv)
        dof, rows, distance = self.dof, self.sums.rows, self.distance
        value, law_slope, law_curve = student_by_square(distance, rows, dof)
        first = -0.5 * (dof + rows) / (dof + distance)
        second = 0.5 * (dof + rows) / (dof + distance) ** 2
        mixed = dof * 0.5 * (rows - distance) / (dof + distance) ** 2
        slope = first[:, None] * dq - 0.5 * dv
        curve = second[:, None, None] * dq[:, :, None] * dq[:, None, :] + first[:, None, None] * qq - 0.5 * vv
        slope[:, -1] = law_slope
        curve[:, :-1, -1] = curve[:, -1, :-1] = mixed[:, None] * dq[:, :-1]
        curve[:, -1, -1] = law_curve
        return value - 0.5 * self.log_determinant, slope, curve
