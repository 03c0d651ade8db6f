"""What does a law predict of which only the density is known? Responses listed with their probabilities, row by row.

The laws of the package know more of themselves and are asked for it; this is the answer for a user's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from robustly.glm.families import Binomial
from robustly.glm.law import Array, Law
from robustly.glm.row_model import approximation, evidence_of

MOST_COUNTS = 1 << 14
# Mass that may be left beyond the last count.
LEFT_OUT = 1e-9
POINTS = 1025
# Log densities this far below the highest are left out.
DEEP = 40.0
ROWS_AT_ONCE = 64


@dataclass(frozen=True, eq=False)
class Listed:
    """Responses (rows, m), increasing, and the probability that each stands for."""

    values: Array
    mass: Array
    whole: bool

    @property
    def total(self) -> Array:
        """The mass of every row: one, if the law is a density and nothing was left out."""
        return self.mass.sum(axis=1)

    def moments(self) -> tuple[Array, Array]:
        """Mean and variance of every row."""
        share = self.mass / self.total[:, None]
        mean = (share * self.values).sum(axis=1)
        return mean, (share * (self.values - mean[:, None]) ** 2).sum(axis=1)

    def cdf(self, y: Array) -> Array:
        """P(Y ≤ y), one value a row."""
        share = self.mass / self.total[:, None]
        if self.whole:
            return np.where(self.values <= y[:, None], share, 0.0).sum(axis=1)
        # A point stands for half a step to either side.
        upto = np.cumsum(share, axis=1) - 0.5 * share
        return np.array([np.interp(at, x, row, left=0.0, right=1.0) for at, x, row in zip(y, self.values, upto)])

    def draw(self, rng: np.random.Generator, count: int) -> Array:
        """Draws (count, rows)."""
        share = np.cumsum(self.mass, axis=1) / self.total[:, None]
        level = rng.random((count, len(share)))
        if self.whole:
            last = share.shape[1] - 1
            columns = [x[np.minimum(np.searchsorted(row, at), last)] for x, row, at in zip(self.values, share, level.T)]
        else:
            columns = [np.interp(at, row, x) for x, row, at in zip(self.values, share, level.T)]
        return np.stack(columns, axis=1)


def list_responses(law: Law, phi: Sequence[float], m: Array, trials: Array) -> Listed:
    """Responses of rows with these predictors, by the density of the law."""
    parts = [
        _listed_some(law, phi, m[start : start + ROWS_AT_ONCE], trials[start : start + ROWS_AT_ONCE])
        for start in range(0, len(m), ROWS_AT_ONCE)
    ]
    size = max(part.values.shape[1] for part in parts)
    grown = lambda array, mode: np.pad(array, ((0, 0), (0, size - array.shape[1])), mode=mode)
    return Listed(
        np.concatenate([grown(part.values, "edge") for part in parts]),
        np.concatenate([grown(part.mass, "constant") for part in parts]),
        parts[0].whole,
    )


def _listed_some(law: Law, phi: Sequence[float], m: Array, trials: Array) -> Listed:
    def log_density(y: Array) -> Array:
        flat = (np.broadcast_to(part[:, None], y.shape).ravel() for part in (m, trials))
        each, counted = (np.array(part) for part in flat)
        found = evidence_of(law, approximation(law, None), (each, *phi), y.ravel(), counted).reshape(y.shape)
        return np.where(np.isfinite(found), found, -np.inf)

    family = law.family
    if family.discrete:
        counted = isinstance(family, Binomial)
        size = int(trials.max()) + 1 if counted else 64
        while True:
            values = np.tile(np.arange(float(size)), (len(m), 1))
            there = values <= trials[:, None] if counted else np.ones(values.shape, dtype=bool)
            mass = np.where(there, np.exp(log_density(np.where(there, values, 0.0))), 0.0)
            if counted or size >= MOST_COUNTS or np.all(mass.sum(axis=1) > 1.0 - LEFT_OUT):
                return Listed(values, mass, whole=True)
            size *= 4
    nuisance = law.nuisance(phi)
    with np.errstate(all="ignore"):
        centre = np.asarray(family.mean(m, nuisance, trials))[:, None]
        width = np.sqrt(np.asarray(family.variance(m, nuisance, trials)))[:, None]
    positive = _is_positive(law)
    low, high = (np.full((len(m), 1), end) for end in ((-300.0, 60.0) if positive else (-40.0, 40.0)))
    for _ in range(3):
        t = low + (high - low) * np.linspace(0.0, 1.0, POINTS)
        y = centre * np.exp(t) if positive else centre + width * np.sinh(t)
        length = (y if positive else width * np.cosh(t)) * (t[:, 1:2] - t[:, :1])
        log_mass = log_density(y) + np.log(length)
        kept = log_mass > log_mass.max(axis=1, keepdims=True) - DEEP
        first = np.maximum(np.argmax(kept, axis=1) - 1, 0)[:, None]
        last = np.minimum(POINTS - np.argmax(kept[:, ::-1], axis=1), POINTS - 1)[:, None]
        low, high = np.take_along_axis(t, first, 1), np.take_along_axis(t, last, 1)
    return Listed(y, np.exp(log_mass), whole=False)


def _is_positive(law: Law) -> bool:
    ones = (1.0,) * len(law.family.nuisance)
    support: Any = law.family.distribution(0.0, *ones).support
    return bool(np.all(np.asarray(support(np.array([1.0])))) and not np.any(np.asarray(support(np.array([-1.0])))))
