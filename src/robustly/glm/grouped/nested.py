r"""What do groups say that have groups within them? Two integrals, one inside of the other.

Given the effects :math:`a` of a group its inner groups are independent, each with effects :math:`b` of its own:
:math:`\int p(a) \prod_k \left[\int p(b_k) \prod_i p(y_i \mid m_i + z_i a + w_i b_k)\, db_k\right] da`. At every point of the outer
rule the inner groups are groups as everywhere, with the outer effects in their offsets and, as more columns, what moves
these. Evidence, slope and curvature of the whole follow from theirs by Louis' identity, once more.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from scipy.special import logsumexp

from robustly.glm.grouped.effects import NormalEffects
from robustly.glm.grouped.moments import (
    MOST_STEPS,
    NEAR,
    WEAK,
    AtPoints,
    Entered,
    GroupKernel,
    InGroups,
    inner_starts,
)
from robustly.glm.grouped.sums import means_by_row, sums_by_group

Array = np.ndarray


class Unfolded(NamedTuple):
    """The inner groups once for every point of their group's effects, one point after the other."""

    at: Entered
    rows: InGroups
    owner: Array
    """The group of every inner group, points aside."""
    seen: AtPoints

    def by_group(self, values: Array, groups: int) -> Array:
        """Values by inner group and point, (points · inner groups, …), added up within groups: (groups, points, …)."""
        each = values.reshape(-1, len(self.owner), *values.shape[1:])
        found = np.zeros((groups, len(each), *values.shape[1:]))
        np.add.at(found, self.owner, np.swapaxes(each, 0, 1))
        return found


@dataclass(frozen=True)
class NestedKernel(GroupKernel):
    """Groups with a law of their effects, and groups within them with normal effects."""

    outer: int = 1
    """How many of the effects are those of the outer groups; they come first."""

    @cached_property
    def inside(self) -> GroupKernel:
        """The inner groups."""
        entries = tuple((a - self.outer, b - self.outer) for a, b in self.entries if a >= self.outer)
        return GroupKernel(self.law, NormalEffects(), entries)

    @property
    def _outside(self) -> list[tuple[int, int]]:
        return [(a, b) for a, b in self.entries if a < self.outer]

    def _unfold(self, at: Entered, rows: InGroups, v: Array, moved: Array, coarse: bool, finer: int = 1) -> Unfolded:
        """Inner groups at effects v (groups, points, q) of their groups; `moved` (rows, points, c) are more columns."""
        points, starts = v.shape[1], inner_starts(rows)
        of_row, count = np.repeat(np.arange(len(rows.starts) - 1), np.diff(rows.starts)), len(rows.y)
        added = np.einsum("nq,nkq->kn", rows.columns[:, : self.outer], (v @ self._factor(at).T)[of_row])
        inner = rows.columns[:, self.outer :]
        unfolded = InGroups(
            np.concatenate(
                [np.tile(rows.directions, (points, 1)), np.swapaxes(moved, 0, 1).reshape(points * count, -1)], 1
            ),
            (rows.offset + added).reshape(-1),
            np.tile(rows.y, points),
            np.tile(rows.trials, points),
            np.tile(inner, (points, 1)),
            np.tile(rows.counts, points),
            np.append((starts[0][:-1] + count * np.arange(points)[:, None]).reshape(-1), count * points),
        )
        u = np.append(at.u, np.zeros(moved.shape[-1]))
        within = Entered(u, at.phi, at.factor[self.outer :, self.outer :], np.zeros(0))
        return Unfolded(within, unfolded, starts[1], self.inside.at_points(within, unfolded, None, coarse, finer))

    def _factor(self, at: Entered) -> Array:
        return at.factor[: self.outer, : self.outer]

    def effects_at(self, at: Entered, seen: AtPoints) -> Array:
        return seen.v @ self._factor(at).T

    # ------------------------------------------------------------------ where the outer effects are

    def _nested_modes(self, at: Entered, rows: InGroups, start: Array) -> tuple[Array, Array]:
        """Modes of the outer effects with the inner ones integrated out, and roots of their covariances."""
        groups, dim = start.shape
        across = (rows.columns[:, : self.outer] @ self._factor(at))[:, None, :]
        v, step, value = start.copy(), np.zeros_like(start), np.full(groups, -np.inf)
        precision = np.broadcast_to(np.eye(dim), (groups, dim, dim)).copy()
        for _ in range(MOST_STEPS):
            ahead = v + step
            found, slope, curve = self._slopes(at, rows, ahead, across)
            if self.effects.has_two_centres:
                believed, pull, held = -0.5 * WEAK * np.square(ahead).sum(axis=1), -WEAK * ahead, WEAK * np.eye(dim)
            else:
                believed = self.effects.log_density(ahead, at.psi)[0]
                pull, held = self.effects.pull(ahead, at.psi)
            now, rise = found + believed, slope + pull
            better = now >= value - 1e-10 * np.abs(value)
            v, value = np.where(better[:, None], ahead, v), np.where(better, now, value)
            # Only rows that are not log-concave can curve upwards; what they take away is left out.
            values, vectors = np.linalg.eigh(-curve)
            here = held + np.einsum("gab,gb,gcb->gac", vectors, np.maximum(values, 0.0), vectors)
            precision = np.where(better[:, None, None], here, precision)
            newton = np.linalg.solve(here, rise[..., None])[..., 0]
            long = np.maximum(np.abs(newton).max(axis=1, keepdims=True) / 4.0, 1.0)
            step = np.where(better[:, None], newton / long, 0.3 * step)
            step = np.where(np.isfinite(step), step, 0.0)
            if np.max(np.abs(step), initial=0.0) < NEAR:
                break
        return v, np.swapaxes(np.linalg.inv(np.linalg.cholesky(precision)), 1, 2)

    def _slopes(self, at: Entered, rows: InGroups, v: Array, across: Array) -> tuple[Array, Array, Array]:
        """Log densities of the groups' rows at outer effects (groups, q), slopes and curvatures in these."""
        dim, groups = v.shape[1], len(v)
        one = self._unfold(at, rows, v[:, None, :], across, True)
        seen, columns = one.seen, np.ascontiguousarray(one.rows.directions[:, -dim:])
        score = sums_by_group(seen.slope[..., 0] * one.rows.counts[:, None], columns, one.rows.starts)
        mean = np.einsum("bk,bkq->bq", seen.share, score)
        away = score - mean[:, None]
        within = np.einsum("bk,bkp,bkq->bpq", seen.share, away, away)
        bend = np.ascontiguousarray(seen.curve[..., 0]) * one.rows.counts[:, None]
        by_row = means_by_row(bend, seen.share[..., None], one.rows.starts)
        crossed = (columns[:, :, None] * columns[:, None, :]).reshape(len(columns), -1)
        inside = sums_by_group(by_row, crossed, one.rows.starts)[:, 0].reshape(-1, dim, dim)
        total = lambda each: one.by_group(each, groups)[:, 0]
        return total(seen.evidence), total(mean), total(within + inside)

    # ------------------------------------------------------------------ points, slopes, curvatures

    def at_points(self, at: Entered, rows: InGroups, state: Array | None, coarse: bool, finer: int = 1) -> AtPoints:
        groups = len(rows.starts) - 1
        nothing = lambda v: np.zeros((len(rows.y), v.shape[1], 0))
        joint = lambda v: (
            self._evidences(self._unfold(at, rows, v, nothing(v), True), groups)
            + self.effects.log_density(v, at.psi)[0]
        )
        start = np.zeros((groups, self.outer)) if state is None else np.asarray(state, dtype=float)
        if self.law.local is not None:
            start = self.highest(joint, start, at.psi)
        mode, root = self._nested_modes(at, rows, start)
        # A law of several dimensions that is not normal is refused before.
        climb = lambda prior, start: (mode, root)
        v, log_weight = self.effects.points(
            mode, root, self.predictor_sds(at, root), at.psi, joint, climb, coarse, finer
        )
        of_row = np.repeat(np.arange(groups), np.diff(rows.starts))
        moved = [rows.columns[:, a, None] * v[of_row, :, b] for a, b in self._outside]
        columns = np.stack(moved, axis=-1) if moved else nothing(v)
        unfolded = self._unfold(at, rows, v, columns, coarse, finer)
        believed, law_slope, law_curve = self.effects.log_density(v, at.psi)
        each = self._evidences(unfolded, groups) + believed + log_weight
        evidence = logsumexp(each, axis=1)
        share = np.exp(each - evidence[:, None])
        return AtPoints(
            v, unfolded.seen.predictor, unfolded.seen.slope, unfolded.seen.curve, share, evidence, law_slope, law_curve,
            mode, root, unfolded,
        )  # fmt: skip

    def _evidences(self, unfolded: Unfolded, groups: int) -> Array:
        found = unfolded.by_group(unfolded.seen.evidence, groups)
        return np.where(np.isfinite(found), found, -np.inf)

    def _order(self, size: int, shared: int) -> Array:
        """Where the numbers (u, φ, L) stand among those of the inner groups: (u, outer entries, φ, inner entries)."""
        outside, inside = len(self._outside), len(self.inside.entries)
        u, moved = np.arange(size), size + np.arange(outside)
        phi, within = size + outside + np.arange(shared), size + outside + shared + np.arange(inside)
        return np.concatenate([u, phi, moved, within])

    def scores_at(self, rows: InGroups, seen: AtPoints) -> Array:
        unfolded = seen.within
        each = np.einsum("bk,bkp->bp", unfolded.seen.share, self.inside.scores_at(unfolded.rows, unfolded.seen))
        order = self._order(rows.directions.shape[1], seen.slope.shape[-1] - 1)
        return np.concatenate([unfolded.by_group(each, len(seen.share))[..., order], seen.law_slope], axis=-1)

    def mean_curvature(self, rows: InGroups, seen: AtPoints, total: int) -> Array:
        unfolded = seen.within
        inner, own = unfolded.seen, seen.law_slope.shape[-1]
        weight = seen.share[unfolded.owner].T.reshape(-1)
        score = self.inside.scores_at(unfolded.rows, inner)
        score = score - np.einsum("bk,bkp->bp", inner.share, score)[:, None]
        weighed = inner.share * weight[:, None]
        away = (np.sqrt(weighed)[..., None] * score).reshape(-1, score.shape[-1])
        curve = away.T @ away + self.inside.mean_curvature(
            unfolded.rows, inner._replace(share=weighed), score.shape[-1]
        )
        order = self._order(rows.directions.shape[1], seen.slope.shape[-1] - 1)
        found = np.zeros((total, total))
        found[: len(order), : len(order)] = curve[np.ix_(order, order)]
        found[total - own :, total - own :] = np.einsum("gk,gkrs->rs", seen.share, seen.law_curve)
        return found

    # ------------------------------------------------------------------ rows and inner groups

    def row_points(self, at: Entered, rows: InGroups) -> tuple[Array, Array]:
        seen = self.at_points(at, rows, None, False)
        inner, count, points = seen.within.seen, len(rows.y), seen.v.shape[1]
        sizes = np.diff(inner_starts(rows)[0])
        # By inner group, point of the outer rule and point of the inner one, then by row.
        share = (
            np.swapaxes(inner.share.reshape(points, len(sizes), -1), 0, 1) * seen.share[seen.within.owner][..., None]
        )
        predictor = np.swapaxes(seen.predictor.reshape(points, count, -1), 0, 1)
        return predictor.reshape(count, -1), np.repeat(share.reshape(len(sizes), -1), sizes, axis=0)

    def inner_moments(self, at: Entered, seen: AtPoints) -> tuple[Array, Array]:
        """Posterior means and covariances of every inner group's effects and its group's, in units of their columns."""
        inner, owner, points = seen.within.seen, seen.within.owner, seen.v.shape[1]
        share = inner.share.reshape(points, len(owner), -1) * seen.share[owner].T[..., None]
        own = inner.v.reshape(*share.shape, -1) @ seen.within.at.factor.T
        outer = np.swapaxes(self.effects_at(at, seen)[owner], 0, 1)[:, :, None, :]
        both = np.concatenate([np.broadcast_to(outer, (*share.shape, self.outer)), own], axis=-1)
        mean = np.einsum("kbl,kblq->bq", share, both)
        away = both - mean[None, :, None]
        return mean, np.einsum("kbl,kblp,kblq->bpq", share, away, away)
