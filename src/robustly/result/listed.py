"""What does a law predict of which only the density is known? Values listed with their probabilities, row by row.

Laws that know more of themselves are asked for it; this is the answer for a user's own. Counts are listed until their
probabilities add up to one; measurements are laid out evenly on a log or sinh scale, then again where the mass is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

# Mass that may be left beyond the last count.
LEFT_OUT = 1e-9
# Log masses this far below the highest are left out.
DEEP = 32.0

# Values (rows, m) -> their log densities
LogDensity = Callable[[np.ndarray], np.ndarray]
# Evenly laid out numbers (rows, m) -> values, and the length of line that a unit stands for there
Placing = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]


@dataclass(frozen=True, eq=False)
class Listed:
    """Values (rows, m), increasing, and the probability that each stands for; answers as SciPy's distributions do."""

    values: np.ndarray
    mass: np.ndarray
    whole: bool

    @property
    def total(self) -> np.ndarray:
        """The mass of every row: one, if the law is a density and nothing was left out."""
        return self.mass.sum(axis=1)

    @property
    def share(self) -> np.ndarray:
        return self.mass / self.total[:, None]

    def mean(self) -> np.ndarray:
        return (self.share * self.values).sum(axis=1)

    def std(self) -> np.ndarray:
        return np.sqrt((self.share * (self.values - self.mean()[:, None]) ** 2).sum(axis=1))

    def cdf(self, values: ArrayLike) -> np.ndarray:
        """P(X ≤ value), one value a row."""
        given = np.broadcast_to(np.asarray(values, dtype=float), len(self.values))
        if self.whole:
            return np.minimum(np.where(self.values <= given[:, None], self.share, 0.0).sum(axis=1), 1.0)
        rows = zip(given, self.values, self._middles())
        return np.array([np.interp(at, x, upto, left=0.0, right=1.0) for at, x, upto in rows])

    def sf(self, values: ArrayLike) -> np.ndarray:
        return 1.0 - self.cdf(values)

    def ppf(self, level: float) -> np.ndarray:
        return self._inverse(np.full((1, len(self.values)), level))[0]

    def rvs(self, size: tuple[int, ...], random_state: np.random.Generator) -> np.ndarray:
        """Draws, with rows along the last axis."""
        level = random_state.random(size)
        return self._inverse(level.reshape(-1, level.shape[-1])).reshape(level.shape)

    def _middles(self) -> np.ndarray:
        """The probability below each value, which stands for half a step to either side."""
        return np.cumsum(self.share, axis=1) - 0.5 * self.share

    def _inverse(self, level: np.ndarray) -> np.ndarray:
        if not self.whole:
            rows = zip(level.T, self._middles(), self.values)
            return np.stack([np.interp(at, upto, x) for at, upto, x in rows], axis=1)
        rows, last = zip(level.T, np.cumsum(self.share, axis=1), self.values), self.values.shape[1] - 1
        return np.stack([x[np.minimum(np.searchsorted(upto, at), last)] for at, upto, x in rows], axis=1)


def list_counts(
    log_density: LogDensity, rows: int, *, limits: np.ndarray | None = None, first: int = 64, most: int = 1 << 14
) -> Listed:
    """Whole numbers from 0 to the limits of the rows, or until hardly any mass is left, but no more than `most`."""
    size = first if limits is None else int(limits.max()) + 1
    while True:
        values = np.tile(np.arange(float(size)), (rows, 1))
        there = np.ones(values.shape, dtype=bool) if limits is None else values <= limits[:, None]
        mass = np.where(there, np.exp(log_density(np.where(there, values, 0.0))), 0.0)
        if limits is not None or size >= most or np.all(mass.sum(axis=1) > 1.0 - LEFT_OUT):
            return Listed(values, mass, whole=True)
        size *= 4


def list_line(
    log_density: LogDensity, place: Placing, rows: int, ends: tuple[float, float], *, points: int = 1025
) -> Listed:
    """Measurements between the places of the ends at first, then where the mass of each row is."""
    low, high = (np.full((rows, 1), end) for end in ends)
    for _ in range(3):
        t = low + (high - low) * np.linspace(0.0, 1.0, points)
        values, length = place(t)
        with np.errstate(all="ignore"):
            log_mass = log_density(values) + np.log(length * (t[:, 1:2] - t[:, :1]))
        log_mass = np.where(np.isfinite(log_mass), log_mass, -np.inf)
        kept = log_mass > log_mass.max(axis=1, keepdims=True) - DEEP
        first = np.maximum(np.argmax(kept, axis=1) - 1, 0)[:, None]
        last = np.minimum(points - np.argmax(kept[:, ::-1], axis=1), points - 1)[:, None]
        low, high = np.take_along_axis(t, first, 1), np.take_along_axis(t, last, 1)
    return Listed(values, np.exp(log_mass), whole=False)


def joined_lists(parts: Sequence[Listed]) -> Listed:
    """Lists of some rows each as one, filled up where they are shorter."""
    size = max(part.values.shape[1] for part in parts)

    def filled(array: np.ndarray, mode: str) -> np.ndarray:
        return np.pad(array, ((0, 0), (0, size - array.shape[1])), mode=mode)  # type: ignore[call-overload]

    return Listed(
        np.concatenate([filled(part.values, "edge") for part in parts]),
        np.concatenate([filled(part.mass, "constant") for part in parts]),
        parts[0].whole,
    )
