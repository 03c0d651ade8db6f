r"""What does a group say of the parameters? Its evidence, slope and curvature, from the moments of its effects' posterior.

A group's evidence is :math:`\log \int \prod_i p(y_{ij} \mid m_{ij} + z_{ij} L v)\, p(v)\, dv`. At every point of an adaptive
rule the rows' slopes and curvatures in their predictors are added up within the group; by Louis' identity slope and curvature
of the evidence are then a mean and a covariance over the points. The rows' densities are those of a closed
:class:`~robustly.glm.law.Law`, compiled as everywhere: a row at a point is a row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from scipy.special import logsumexp

from robustly._runtime.precision import double_precision
from robustly.fit.view_passes import RowKernel, pairs, row_kernel
from robustly.glm.grouped.effects import EffectLaw, Joint
from robustly.glm.grouped.sums import means_by_row, predictors_at, sums_by_group
from robustly.glm.law import Law
from robustly.glm.row_model import approximation, row_model
from robustly.rows.arrays import pad
from robustly.rows.store import Data

Array = np.ndarray

# Rows at points that are computed at a time: two sizes, as each is compiled.
SMALL_BLOCK, BLOCK = 1024, 16_384
MOST_STEPS, NEAR = 60, 1e-5
# Where the climb to a group's peak may begin on either side of the centre: how far out, and how many places.
FURTHEST_START, RUNGS = 60.0, 8
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
    inner: Array | None = None
    """The group within its group that each row belongs to, where there are such."""


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
    root: Array
    """Of the effects' covariance around the mode."""
    within: Any = None
    """What was seen of groups within the groups, at every point."""


@dataclass(frozen=True)
class GroupKernel:
    """How the rows of a group and its effects are distributed: a closed law of rows, and a law of effects."""

    law: Law
    effects: EffectLaw
    entries: tuple[tuple[int, int], ...]
    """Which entries of the factor L are fitted."""

    @property
    def rows(self) -> RowKernel:
        return row_kernel(row_model(self.law), approximation(self.law, None))

    def row_curves(self, predictor: Array, phi: Sequence[float], y: Array, trials: Array) -> tuple[Array, ...]:
        """Log density of every row at every predictor (rows, points), its slopes and curvatures in predictor and numbers."""
        ask = lambda numbers, row, state: self.rows.curves(numbers, row, state, False)[:3]
        return self.ask_rows(ask, predictor, phi, y, trials)

    def ask_rows(
        self, ask: Callable[..., Sequence[Any]], predictor: Array, phi: Sequence[float], y: Array, trials: Array
    ) -> tuple[Array, ...]:
        """What ``ask(numbers, row, state)`` gives of every row at every predictor (rows, points)."""
        points, kernel = predictor.shape[1], self.rows
        m, response, counted = (np.ascontiguousarray(a).reshape(-1) for a in (
            predictor, np.repeat(y, points), np.repeat(trials, points)
        ))  # fmt: skip
        size = SMALL_BLOCK if len(m) <= 4 * SMALL_BLOCK else BLOCK
        found: list[Array] = []
        for start in range(0, len(m), size):
            place = slice(start, min(start + size, len(m)))
            one, *row = (pad(a[place], size) for a in (m, response, counted))
            numbers = (one, *phi)
            state = np.asarray(kernel.approx.start_at(kernel.model, tuple(row), numbers, size), dtype=np.float32)
            with double_precision():
                parts = [np.asarray(part) for part in ask(numbers, tuple(row), state)]
            if not found:
                found = [np.empty((len(m), *part.shape[1:])) for part in parts]
            for whole, part in zip(found, parts):
                whole[place] = part[: place.stop - place.start]
        return tuple(whole.reshape(*predictor.shape, *whole.shape[1:]) for whole in found)

    # ------------------------------------------------------------------ where the effects are

    def modes(
        self, at: Entered, m: Array, rows: InGroups, start: Array, prior: Array | None = None
    ) -> tuple[Array, Array]:
        """The mode of every group's standardised effects, and a root of their covariance there.

        Where the law has a peak of its own the mode is that of the rows alone, nearly; with `prior`, precisions by group, it is
        that under normal effects with these.
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
            if prior is not None or self.effects.has_two_centres:
                weak = np.full(len(start), WEAK) if prior is None else prior
                believed, pull = -0.5 * weak * np.square(ahead).sum(axis=1), -weak[:, None] * ahead
                held = weak[:, None, None] * np.eye(dim)
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
            # Rows of one direction that are sure beyond rounding leave the others something.
            here = here + 1e-15 * np.einsum("gaa->g", here)[:, None, None] * np.eye(dim)
            precision = np.where(better[:, None, None], here, precision)
            newton = np.linalg.solve(here, rise[..., None])[..., 0]
            # As far as a few deviations of what is believed of the effects, not further: rows overflow there.
            allowed = 4.0 if prior is None else 4.0 / np.minimum(np.sqrt(prior), 1.0)[:, None]
            long = np.maximum(np.abs(newton).max(axis=1, keepdims=True) / allowed, 1.0)
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
        joint_at = lambda v: self._joint(at, m, rows, v)
        if self.law.local is not None:
            start = self.highest(joint_at, start, at.psi)
        mode, root = self.modes(at, m, rows, start)
        climb = lambda prior, start: self.modes(at, m, rows, start, prior)
        v, log_weight = self.effects.points(
            mode, root, self.predictor_sds(at, root), at.psi, joint_at, climb, coarse, finer
        )
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
        return AtPoints(v, predictor, slope, curve, share, evidence, law_slope, law_curve, mode, root)

    def predictor_sds(self, at: Entered, root: Array) -> Array:
        """How far the groups' predictors are spread, about, beside the scale of the responses where there is one."""
        dim = root.shape[-1]
        unit = float(np.exp(at.phi[self.law.names.index("scale")])) if "scale" in self.law.names else 1.0
        return np.max(np.abs(at.factor[:dim, :dim] @ root), axis=(1, 2)) / unit

    def highest(self, joint: Joint, start: Array, psi: Array) -> Array:
        """Where to climb from: rows that may stray give a group several peaks, and the one next to the start may be a low one."""
        far = np.sinh(np.linspace(0.0, np.arcsinh(min(self.effects.furthest(psi), FURTHEST_START)), RUNGS + 1)[1:])
        away = np.concatenate([-far, far])[:, None]
        around = [
            np.where(np.arange(start.shape[1]) == axis, away, start[:, None, :]) for axis in range(start.shape[1])
        ]
        tried = np.concatenate([start[:, None, :], *around], axis=1)
        return np.take_along_axis(tried, joint(tried).argmax(axis=1)[:, None, None], axis=1)[:, 0]

    def _joint(self, at: Entered, m: Array, rows: InGroups, v: Array) -> Array:
        """The log density of the groups' rows and effects at effects (groups, points, q)."""
        predictor = predictors_at(m, rows.columns, v @ at.factor.T, rows.starts)
        density = self.row_curves(predictor, at.phi, rows.y, rows.trials)[0]
        total = sums_by_group(density, rows.counts[:, None], rows.starts)[..., 0]
        return np.where(np.isfinite(total), total, -np.inf) + self.effects.log_density(v, at.psi)[0]

    def effects_at(self, at: Entered, seen: AtPoints) -> Array:
        """The groups' effects at the points, in units of their columns: (groups, points, q)."""
        return seen.v @ at.factor.T

    def row_points(self, at: Entered, rows: InGroups) -> tuple[Array, Array]:
        """Every row's predictor at the points of its group, and their shares of the group's posterior: (rows, points) each."""
        seen = self.at_points(at, rows, None, False)
        return seen.predictor, np.repeat(seen.share, np.diff(rows.starts), axis=0)

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
        curve = away.T @ away + self.mean_curvature(rows, seen, score.shape[-1])
        sums = {"value": seen.evidence.sum(), "slope": mean.sum(axis=0), "curve": curve}
        return sums, seen.evidence, seen.mode

    def mean_curvature(self, rows: InGroups, seen: AtPoints, total: int) -> Array:
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
    directions, offset, y, trials, columns, counts, *inner, starts = data
    return InGroups(directions, offset, y, trials, columns, counts, starts, inner[0] if inner else None)


def inner_starts(rows: InGroups) -> tuple[Array, Array]:
    """Where groups within groups begin, and which group each is of."""
    assert rows.inner is not None
    changed = np.flatnonzero(np.diff(rows.inner) != 0) + 1
    starts = np.union1d(rows.starts, changed)
    return starts, np.searchsorted(rows.starts, starts[:-1], side="right") - 1


def _crossed(columns: Array) -> Array:
    """Products of columns, as :func:`~robustly.fit.passes.pairs` orders them."""
    return np.stack([columns[:, i] * columns[:, j] for i, j in pairs(columns.shape[1])], axis=1)


def _square(entries: Array, dim: int) -> Array:
    """Symmetric matrices from the entries of :func:`_crossed`."""
    found = np.empty((*entries.shape[:-1], dim, dim))
    for place, (i, j) in enumerate(pairs(dim)):
        found[..., i, j] = found[..., j, i] = entries[..., place]
    return found
