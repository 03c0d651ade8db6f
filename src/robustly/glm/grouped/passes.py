"""What is asked of some groups at once? Passes over their rows, at the top of a module so that they can be sent to where rows are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from robustly.glm.grouped.gamma import gamma_poisson
from robustly.glm.grouped.moments import GroupKernel, read_groups
from robustly.rows.groups import cut_by_group
from robustly.rows.store import Data

Chunk = tuple[dict[str, Any], dict[str, Any], Any]


@dataclass(frozen=True)
class LookAtGroups:
    """Value, slope and curvature; theta is what a vector comes to, and whether a coarse rule will do."""

    kernel: GroupKernel

    def __call__(self, theta: Any, data: Data, weight: np.ndarray, state: Any) -> Chunk:
        at, coarse = theta
        with np.errstate(all="ignore"):
            sums, evidence, mode = self.kernel.look(at, read_groups(data), state, coarse)
        return sums, {"evidence": evidence}, mode


def look_at_gamma_groups(theta: Any, data: Data, weight: np.ndarray, state: Any) -> Chunk:
    """The same of counts whose rates have a gamma factor by group."""
    at, _ = theta
    with np.errstate(all="ignore"):
        evidence, slope, curve = gamma_poisson(at, read_groups(data))
    return {"value": evidence.sum(), "slope": slope, "curve": curve}, {"evidence": evidence}, None


@dataclass(frozen=True)
class BaseOfGroups:
    """What log likelihoods hold of responses and trials alone."""

    log_base: Callable[[np.ndarray, np.ndarray], np.ndarray]

    def __call__(self, theta: Any, data: Data, weight: np.ndarray, state: Any) -> Chunk:
        part = read_groups(data)
        found = np.add.reduceat(self.log_base(part.y, part.trials) * part.counts, part.starts[:-1])
        return {"base": found.sum()}, {"base": found}, None


def minus_log_factorial(y: np.ndarray, trials: np.ndarray) -> np.ndarray:
    from scipy.special import gammaln

    return -gammaln(y + 1.0)


@dataclass(frozen=True)
class AskGroups:
    """What ``function(kernel, at, rows, seen)`` gives by group; theta is what a vector comes to."""

    kernel: GroupKernel
    function: Callable[..., dict[str, np.ndarray]]
    finer: int = 1

    def __call__(self, theta: Any, data: Data, weight: np.ndarray, state: Any) -> Chunk:
        rows = read_groups(data)
        with np.errstate(all="ignore"):
            seen = self.kernel.at_points(theta, rows, state, False, self.finer)
            return {}, self.function(self.kernel, theta, rows, seen), None


@dataclass(frozen=True)
class AskRows:
    """What ``function(kernel, at, rows, predictors, shares)`` gives by row; theta is what a vector comes to."""

    kernel: GroupKernel
    function: Callable[..., dict[str, np.ndarray]]

    def __call__(self, theta: Any, data: Data, weight: np.ndarray, state: Any) -> Chunk:
        rows = read_groups(data)
        with np.errstate(all="ignore"):
            found = self.function(self.kernel, theta, rows, *self.kernel.row_points(theta, rows))
        return {}, {name: cut_by_group(each, rows.starts) for name, each in found.items()}, None


def counts_and_rates(theta: Any, data: Data, weight: np.ndarray, state: Any) -> Chunk:
    """Counts and expected counts by group; theta are the coefficients in the coordinates of the search."""
    part = read_groups(data)
    rate = part.counts * np.exp(part.offset + part.directions @ theta)
    added = lambda each: np.add.reduceat(each, part.starts[:-1])
    return {}, {"counted": added(part.counts * part.y), "mean": added(rate)}, None
