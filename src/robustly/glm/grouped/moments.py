r"""What does a group say of the parameters? Its evidence, slope and curvature, from the moments of its effects' posterior.

A group's evidence is :math:`\log \int \prod_i p(y_{ij} \mid m_{ij} + z_{ij} L v)\, p(v)\, dv`. At every point of an adaptive
rule the rows' slopes and curvatures in their predictors are added up within the group; by Louis' identity slope and curvature
of the evidence are then a mean and a covariance over the points. The rows' densities are those of a closed
:class:`~robustly.glm.law.Law`, compiled as everywhere: a row at a point is a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from scipy.special import logsumexp

from robustly.approx import Exact
from robustly.fit.passes import RowKernel, pairs, row_kernel
from robustly.glm.grouped.effects import EffectLaw
from robustly.glm.grouped.sums import means_by_row, predictors_at, sums_by_group
from robustly.glm.law import Law
from robustly.glm.row_model import row_model
from robustly.rows.arrays import pad
from robustly.rows.store import Data

Array = np.ndarray

# Rows at points that are computed at a time: two sizes, as each is compiled.
SMALL_BLOCK, BLOCK = 1024, 16_384
MOST_STEPS, NEAR = 60, 1e-5
# What stands for the law of the effects where only the rows' own peak is wanted.
WEAK = 0.01


class Entered(NamedTuple):
    """A vector, taken apart."""

    u: Array
    phi: tuple[float, ...]
    factor: Array
    """The lower triangular L, (q, q)."""
    psi: Array


class InGroups(NamedTuple):
    """The rows of some groups, as :func:`~robustly.rows.groups.rows_in_groups` keeps them."""

    directions: Array
    offset: Array
    y: Array
    trials: Array
    columns: Array
    """Of the effects."""
    counts: Array
    """How often each row counts."""
    starts: Array


class AtPoints(NamedTuple):
    """A rule around the groups' modes, and all that was seen at its points."""

    v: Array
    predictor: Array
    slope: Array
    curve: Array
    share: Array
    """Of the posterior, by group and point."""
    evidence: Array
    law_slope: Array
    law_curve: Array
    mode: Array


@dataclass(frozen=True)
class GroupKernel:
    """How the rows of a group and its effects are distributed: a closed law of rows, and a law of effects."""

    law: Law
    effects: EffectLaw
    entries: tuple[tuple[int, int], ...]
    """Which entries of the factor L are fitted."""

    @property
    def rows(self) -> RowKernel:
        return row_kernel(row_model(self.law), Exact())

    def row_curves(self, predictor: Array, phi: Sequence[float], y: Array, trials: Array) -> tuple[Array, Array, Array]:
        """Log density of every row at every predictor (rows, points), its slopes and curvatures in predictor and numbers."""
        points = predictor.shape[1]
        m, response, counted = (np.ascontiguousarray(a).reshape(-1) for a in (
            predictor, np.repeat(y, points), np.repeat(trials, points)
        ))  # fmt: skip
        size, numbers = SMALL_BLOCK if len(m) <= 4 * SMALL_BLOCK else BLOCK, 1 + len(phi)
        value, slope = np.empty(len(m)), np.empty((len(m), numbers))
        curve = np.empty((len(m), len(pairs(numbers))))
        nothing = np.zeros((size, 0), dtype=np.float32)
        for start in range(0, len(m), size):
            place = slice(start, min(start + size, len(m)))
            part = tuple(pad(a[place], size) for a in (m, response, counted))
            found = self.rows.curves((part[0], *phi), part[1:], nothing, False)
            for whole, one in zip((value, slope, curve), found):
                whole[place] = np.asarray(one)[: place.stop - place.start]
        shape = predictor.shape
        return value.reshape(shape), slope.reshape(*shape, -1), curve.reshape(*shape, -1)

    # ------------------------------------------------------------------ where the effects are

    def modes(self, at: Entered, m: Array, rows: InGroups, start: Array) -> tuple[Array, Array]:
        """The mode of every group's standardised effects, and a root of their covariance there.

        Where the law has a peak of its own the mode is that of the rows alone, nearly.
        """
        dim = rows.columns.shape[1]
        crossed = _crossed(rows.columns)
        v, step = start.copy(), np.zeros_like(start)
        value = np.full(len(start), -np.inf)
        precision = np.broadcast_to(np.eye(dim), (len(start), dim, dim)).copy()
        for _ in range(MOST_STEPS):
            ahead = v + step
            predictor = predictors_at(m, rows.columns, (ahead @ at.factor.T)[:, None, :], rows.starts)
            density, slope, curve = (part[:, 0] for part in self.row_curves(predictor, at.phi, rows.y, rows.trials))
            weighed = lambda each, columns: sums_by_group((each * rows.counts)[:, None], columns, rows.starts)[:, 0]
            if self.effects.has_two_centres:
                believed, pull, held = -0.5 * WEAK * np.square(ahead).sum(axis=1), -WEAK * ahead, WEAK * np.eye(dim)
            else:
                believed = self.effects.log_density(ahead, at.psi)[0]
                pull, held = self.effects.pull(ahead, at.psi)
            now = weighed(density, np.ones((len(m), 1)))[:, 0] + believed
            better = now >= value - 1e-10 * np.abs(value)
            v, value = np.where(better[:, None], ahead, v), np.where(better, now, value)
            rise = weighed(slope[:, 0], rows.columns) @ at.factor + pull
            # Rows in the tails of a law that is not log-concave curve upwards; they are left out.
            bend = _square(weighed(np.minimum(curve[:, 0], 0.0), crossed), dim)
            here = held - np.einsum("ba,gbc,cd->gad", at.factor, bend, at.factor)
            precision = np.where(better[:, None, None], here, precision)
            newton = np.linalg.solve(here, rise[..., None])[..., 0]
            long = np.maximum(np.abs(newton).max(axis=1, keepdims=True) / 4.0, 1.0)
            step = np.where(better[:, None], newton / long, 0.3 * step)
            if not np.all(np.isfinite(step)):
                step = np.where(np.isfinite(step), step, 0.0)
            if np.max(np.abs(step), initial=0.0) < NEAR:
                break
        lower = np.linalg.cholesky(precision)
        return v, np.swapaxes(np.linalg.inv(lower), 1, 2)

    def at_points(self, at: Entered, rows: InGroups, state: Array | None, coarse: bool, finer: int = 1) -> AtPoints:
        """Everything at the points of a rule around the groups' modes."""
        m = rows.offset + rows.directions @ at.u
        groups, dim = len(rows.starts) - 1, rows.columns.shape[1]
        start = np.zeros((groups, dim)) if state is None else np.asarray(state, dtype=float)
        mode, root = self.modes(at, m, rows, start)
        joint_at = lambda v: self._joint(at, m, rows, v)
        v, log_weight = self.effects.points(mode, root, at.psi, joint_at, coarse, finer)
        predictor = predictors_at(m, rows.columns, v @ at.factor.T, rows.starts)
        density, slope, curve = self.row_curves(predictor, at.phi, rows.y, rows.trials)
        total = sums_by_group(density, rows.counts[:, None], rows.starts)[..., 0]
        believed, law_slope, law_curve = self.effects.log_density(v, at.psi)
        joint = np.where(np.isfinite(total), total, -np.inf) + believed + log_weight
        evidence = logsumexp(joint, axis=1)
        share = np.exp(joint - evidence[:, None])
        # A point without a share has no say, whatever its rows overflow to.
        gone = np.repeat(share == 0.0, np.diff(rows.starts), axis=0)
        slope, curve = np.where(gone[..., None], 0.0, slope), np.where(gone[..., None], 0.0, curve)
        return AtPoints(v, predictor, slope, curve, share, evidence, law_slope, law_curve, mode)

    def _joint(self, at: Entered, m: Array, rows: InGroups, v: Array) -> Array:
        """The log density of the groups' rows and effects at effects (groups, points, q)."""
        predictor = predictors_at(m, rows.columns, v @ at.factor.T, rows.starts)
        density = self.row_curves(predictor, at.phi, rows.y, rows.trials)[0]
        total = sums_by_group(density, rows.counts[:, None], rows.starts)[..., 0]
        return np.where(np.isfinite(total), total, -np.inf) + self.effects.log_density(v, at.psi)[0]

    # ------------------------------------------------------------------ slope and curvature

    def scores_at(self, rows: InGroups, seen: AtPoints) -> Array:
        """The slope of every group's joint log density in (u, φ, L, ψ) at every point: (groups, points, numbers)."""
        size = rows.directions.shape[1]
        count, ones = rows.counts[:, None], np.ones((len(rows.y), 1))
        columns = np.concatenate([rows.directions, rows.columns], axis=1)
        first = sums_by_group(seen.slope[..., 0] * count, columns, rows.starts)
        shared = [
            sums_by_group(np.ascontiguousarray(seen.slope[..., k]) * count, ones, rows.starts)
            for k in range(1, seen.slope.shape[-1])
        ]
        moved = [(first[..., size + a] * seen.v[..., b])[..., None] for a, b in self.entries]
        return np.concatenate([first[..., :size], *shared, *moved, seen.law_slope], axis=-1)

    def look(
        self, at: Entered, rows: InGroups, state: Array | None, coarse: bool
    ) -> tuple[dict[str, Any], Array, Array]:
        """Sums of value, slope and curvature over groups; the groups' evidences; and their states."""
        seen = self.at_points(at, rows, state, coarse)
        score = self.scores_at(rows, seen)
        mean = np.einsum("gk,gkp->gp", seen.share, score)
        away = (np.sqrt(seen.share)[..., None] * (score - mean[:, None, :])).reshape(-1, score.shape[-1])
        curve = away.T @ away + self._mean_curvature(rows, seen, score.shape[-1])
        sums = {"value": seen.evidence.sum(), "slope": mean.sum(axis=0), "curve": curve}
        return sums, seen.evidence, seen.mode

    def _mean_curvature(self, rows: InGroups, seen: AtPoints, total: int) -> Array:
        """The posterior mean of the joint log density's curvature, added up over groups."""
        size, dim, shared = rows.directions.shape[1], rows.columns.shape[1], seen.slope.shape[-1] - 1
        directions, count = rows.directions, rows.counts[:, None]
        found = np.zeros((total, total))
        phi, law = slice(size, size + shared), slice(size + shared + len(self.entries), total)
        lines = [size + shared + i for i in range(len(self.entries))]
        shares = np.concatenate([seen.share[..., None], seen.share[..., None] * seen.v], axis=-1)
        bend = np.ascontiguousarray(seen.curve[..., 0]) * count
        by_row = means_by_row(bend, shares, rows.starts)
        found[:size, :size] = directions.T @ (directions * by_row[:, :1])
        within = _square(sums_by_group(bend, _crossed(rows.columns), rows.starts), dim)
        for line, (a, b) in zip(lines, self.entries):
            found[:size, line] = directions.T @ (rows.columns[:, a] * by_row[:, 1 + b])
            for other, (c, d) in zip(lines, self.entries):
                found[line, other] = np.sum(shares[..., 1 + b] * seen.v[..., d] * within[..., a, c])
        columns = np.concatenate([np.ones((len(rows.y), 1)), rows.columns], axis=1)
        for k in range(1, shared + 1):
            mixed = np.ascontiguousarray(seen.curve[..., k * (k + 1) // 2]) * count
            found[:size, phi.start + k - 1] = (
                directions.T @ means_by_row(mixed, seen.share[..., None], rows.starts)[:, 0]
            )
            added = sums_by_group(mixed, columns, rows.starts)
            for line, (a, b) in zip(lines, self.entries):
                found[phi.start + k - 1, line] = np.sum(shares[..., 1 + b] * added[..., 1 + a])
            for j in range(1, k + 1):
                both = np.ascontiguousarray(seen.curve[..., k * (k + 1) // 2 + j]) * count
                summed = np.sum(seen.share * sums_by_group(both, columns[:, :1], rows.starts)[..., 0])
                found[phi.start + j - 1, phi.start + k - 1] = summed
        found[law, law] = np.einsum("gk,gkrs->rs", seen.share, seen.law_curve)
        upper = np.triu(found)
        return upper + np.triu(found, 1).T


def read_groups(data: Data) -> InGroups:
    """A chunk of rows in groups, under its names."""
    return InGroups(*data)


def _crossed(columns: Array) -> Array:
    """Products of columns, as :func:`~robustly.fit.passes.pairs` orders them."""
    return np.stack([columns[:, i] * columns[:, j] for i, j in pairs(columns.shape[1])], axis=1)


def _square(entries: Array, dim: int) -> Array:
    """Symmetric matrices from the entries of :func:`_crossed`."""
    found = np.empty((*entries.shape[:-1], dim, dim))
    for place, (i, j) in enumerate(pairs(dim)):
        found[..., i, j] = found[..., j, i] = entries[..., place]
    return found
