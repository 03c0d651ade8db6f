"""What is known of a number by row? One protocol for all posteriors and predictives, and one way to invert and to judge.

A law by row gives an array with one entry a row for every question. Whoever has a distribution function gets quantiles from
:func:`invert_cdf`; whoever has quantiles gets intervals; tail probabilities of all models are :func:`two_sided`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from robustly.errors import ModelError
from robustly.result.levels import check_level

Cdf = Callable[[np.ndarray], np.ndarray]

LEVELS = np.array([0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.975, 0.99, 0.995, 0.999])
"""Where quantiles of a posterior that was integrated by points are kept."""
WIDEST = 1e300


class ByRow(Protocol):
    """A distribution by row, as every ``posterior()`` and ``predictive()`` gives it, with what makes sense of these."""

    @property
    def mean(self) -> np.ndarray: ...

    @property
    def sd(self) -> np.ndarray: ...

    def cdf(self, values: Any) -> np.ndarray: ...

    def sf(self, values: Any) -> np.ndarray: ...

    def quantile(self, level: Any) -> np.ndarray: ...

    def interval(self, level: float = 0.9) -> tuple[np.ndarray, np.ndarray]: ...

    def log_prob(self, *observations: Any) -> np.ndarray: ...

    def sample(self, num_samples: int = 1000, *, key: Any) -> Any: ...


class RowLaw(ABC):
    """What follows from one level's quantiles by row; a law overrides what it knows better."""

    @abstractmethod
    def _quantile_at(self, level: float) -> np.ndarray:
        """The quantile of every row at one level."""

    def quantile(self, level: Any) -> np.ndarray:
        """Quantiles by row; a sequence of levels gives a last axis. Of counts, the least that reaches the level."""
        levels = np.atleast_1d(np.asarray(level, dtype=float))
        if np.any(~((levels > 0) & (levels < 1))):
            raise ModelError(f"a quantile's level lies between 0 and 1; got {level}.")
        found = np.stack([self._quantile_at(float(one)) for one in levels], axis=-1)
        return found[..., 0] if np.ndim(level) == 0 else found

    def interval(self, level: float = 0.9) -> tuple[np.ndarray, np.ndarray]:
        """The central interval of the given probability: low and high by row."""
        check_level(level)
        both = self.quantile([0.5 - level / 2, 0.5 + level / 2])
        return both[..., 0], both[..., 1]

    def cdf(self, values: Any) -> np.ndarray:
        """P(Y ≤ value), one value a row."""
        raise ModelError("this law has no distribution function by row. Use quantile(), or sample() where it is known.")

    def sf(self, values: Any) -> np.ndarray:
        """P(Y > value), one value a row."""
        return 1.0 - self.cdf(values)

    def log_prob(self, *observations: Any) -> np.ndarray:
        """Log density of one observation a row."""
        raise ModelError("this law is kept as means, deviations and quantiles by row, so it has no density.")

    def sample(self, num_samples: int = 1000, *, key: Any) -> Any:
        """Draws of shape (num_samples, rows, …); `key` is a seed, a NumPy generator or a JAX key."""
        raise ModelError("this law is kept as means, deviations and quantiles by row, so nothing can be drawn from it.")


def two_sided(at_most: np.ndarray, at_least: np.ndarray) -> np.ndarray:
    """Tail probabilities: twice the smaller of P(Y ≤ y) and P(Y ≥ y), by row."""
    return np.minimum(1.0, 2.0 * np.minimum(at_most, at_least))


def invert_cdf(
    cdf: Cdf,
    level: float,
    low: np.ndarray,
    high: np.ndarray,
    *,
    open_ends: tuple[bool, bool] = (True, True),
    whole: bool = False,
) -> np.ndarray:
    """Where a distribution function by row reaches `level`.

    Args:
        cdf: P(Y ≤ value) for one value a row.
        low, high: a first bracket by row; an open end moves out, by twice as much each time, until it encloses the level.
        whole: values are whole numbers and the least that reaches the level is wanted; `low` is then below it.
    """
    low, high = np.array(low, dtype=float), np.array(high, dtype=float)
    step = high - low
    while True:
        here = cdf(low) if open_ends[0] else np.full(low.shape, -1.0)
        under = (here >= level if whole else here > level) & (step < WIDEST)
        over = (cdf(high) < level if open_ends[1] else np.zeros(high.shape, dtype=bool)) & (step < WIDEST)
        if not (under.any() or over.any()):
            break
        step = 2.0 * step
        with np.errstate(over="ignore"):  # Beyond the largest number lies infinity, which holds every level.
            low, high = np.where(under, low - step, low), np.where(over, high + step, high)
    if whole:
        while np.any(high - low > np.maximum(1.0, 1e-15 * np.abs(high))):
            middle = np.floor(0.5 * (low + high))
            enough = cdf(middle) >= level
            low, high = np.where(enough, low, middle), np.where(enough, middle, high)
        return high
    return _interpolate_truncate_project(cdf, level, low, high)


def _interpolate_truncate_project(cdf: Cdf, level: float, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """The root finder of Oliveira & Takahashi (2021): a secant's steps where it helps, never more than halving takes."""
    # A few roundings of the ends: below that a distribution function has nothing to say.
    tolerance = 4e-16 * np.maximum(np.abs(low), np.abs(high)) + 1e-300
    width = np.maximum(high - low, tolerance)
    halvings = np.ceil(np.log2(width / tolerance)).clip(0, None) + 1.0
    pull = 0.2 / width
    at_low, at_high = cdf(low) - level, cdf(high) - level
    for step in range(int(np.max(halvings, initial=0.0)) + 1):
        wide = high - low
        if np.all(wide <= 2.0 * tolerance):
            break
        middle = 0.5 * (low + high)
        rise = at_high - at_low
        with np.errstate(invalid="ignore"):  # a value may be infinite at an end, and halving goes on
            secant = (at_high * low - at_low * high) / np.where(rise > 0, rise, 1.0)
        secant = np.where((rise > 0) & np.isfinite(secant), secant, middle)
        side = np.sign(middle - secant)
        truncation = np.maximum(pull * wide * wide, tolerance)
        near = np.where(truncation <= np.abs(middle - secant), secant + side * truncation, middle)
        room = np.maximum(tolerance * 2.0 ** np.clip(halvings - step, 0.0, 1000.0) - 0.5 * wide, 0.0)
        here = np.where(np.abs(near - middle) <= room, near, middle - side * room)
        value = cdf(here) - level
        below = value < 0
        low, at_low = np.where(below, here, low), np.where(below, value, at_low)
        high, at_high = np.where(below, high, here), np.where(below, at_high, value)
    return 0.5 * (low + high)


@dataclass(frozen=True, eq=False)
class RowPosterior(RowLaw):
    """What is believed of each row's own value after the row was seen, kept as moments and quantiles."""

    mean: np.ndarray
    sd: np.ndarray
    levels: np.ndarray = field(repr=False)
    quantiles: np.ndarray = field(repr=False)
    """By row, then by number of the local value, then by level."""

    def __len__(self) -> int:
        return len(self.mean)

    def _quantile_at(self, level: float) -> np.ndarray:
        if not self.levels[0] <= level <= self.levels[-1]:
            raise ModelError(f"posterior quantiles are kept from {self.levels[0]} to {self.levels[-1]}; got {level}.")
        # Interpolating in the normal quantile of the level keeps tails from being cut straight across.
        from scipy.special import ndtri

        known, asked = ndtri(self.levels), ndtri(level)
        right = int(np.clip(np.searchsorted(known, asked), 1, len(known) - 1))
        share = (asked - known[right - 1]) / (known[right] - known[right - 1])
        return self.quantiles[..., right - 1] * (1 - share) + self.quantiles[..., right] * share

    def arrays(self) -> dict[str, np.ndarray]:
        return {"mean": self.mean, "sd": self.sd, "levels": self.levels, "quantiles": self.quantiles}
