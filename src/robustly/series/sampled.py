r"""How probable is the series, exactly but for chance? Importance sampling of the steps' *precisions*.

Given all precisions the states integrate out in one filtering pass, so only precisions are drawn:

.. math::
    p(y) = \mathrm E_{\lambda \sim q}\left[\frac{p(y \mid \lambda)\, p(\lambda)}{q(\lambda)}\right], \qquad
    q(\lambda) = \prod_{st} q_{st}(\lambda_{st}),

with :math:`q_{st}` the law that :mod:`robustly.series.leaveout` finds, the states and nothing else integrated out. On UK gas the
weights have a coefficient of variation of 0.8; drawing from the mean-field laws it is 4, and drawing states instead 18. As a
function of the parameters, with the draws held, the estimate is smooth (Geyer & Thompson 1992) and is maximised as it is.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import gammaln, logsumexp

from robustly.series.disturbances import Disturbances
from robustly.series.leaveout import LeftOut
from robustly.series.meanfield import LARGEST_DOF

# Fewer effective draws than this, and the estimate is not given.
LEAST_EFFECTIVE = 20.0


@dataclass(frozen=True)
class PrecisionDraws:
    """Log precisions (N, S, T) and the log density they were drawn from, (N,)."""

    logs: np.ndarray
    log_density: np.ndarray
    active: np.ndarray

    @property
    def factors(self) -> np.ndarray:
        """Variance factors 1/λ, (N, S, T)."""
        return np.exp(-self.logs)


@dataclass(frozen=True)
class Estimate:
    """An evidence with its error."""

    value: float
    log_weights: np.ndarray
    """Normalised, (N,)."""

    @property
    def weights(self) -> np.ndarray:
        return np.exp(self.log_weights)

    @property
    def effective(self) -> float:
        """Effective number of draws, Kish's."""
        return float(1.0 / np.sum(self.weights**2))

    @property
    def error(self) -> float:
        """Standard error of `value`, by the delta method."""
        n = len(self.log_weights)
        return float(np.sqrt(max(n / self.effective - 1.0, 0.0) / n))


def draw_precisions(left: LeftOut, active: np.ndarray, number: int, random: np.random.Generator) -> PrecisionDraws:
    """Precisions from the leave-one-out laws, stratified step by step.

    Between the points of its grid a law's log density is taken as straight, so that drawing and density are exact.
    """
    tilted = left.tilted
    sites, steps, points = tilted.log_density.shape
    logs, total = np.zeros((number, sites, steps)), np.zeros(number)
    for s in np.flatnonzero(active.any(axis=1)):
        height = tilted.log_density[s] - tilted.log_density[s].max(axis=1, keepdims=True)
        rise = np.diff(height, axis=1)
        with np.errstate(invalid="ignore", divide="ignore"):
            mean = np.where(np.abs(rise) < 1e-6, 1.0 + 0.5 * rise, np.expm1(rise) / rise)
        mass = np.exp(height[:, :-1]) * mean
        whole = mass.sum(axis=1)
        edges = np.cumsum(mass, axis=1) / whole[:, None]
        for t in np.flatnonzero(active[s]):
            # One draw from each of `number` equal parts of the law, in random order: less noise at the same cost.
            place = (random.permutation(number) + random.random(number)) / number
            cell = np.minimum(np.searchsorted(edges[t], place), points - 2)
            slope, part = rise[t, cell], random.random(number)
            with np.errstate(invalid="ignore", divide="ignore"):
                along = np.where(np.abs(slope) < 1e-6, part, np.log1p(part * np.expm1(slope)) / slope)
            logs[:, s, t] = tilted.low[s, t] + tilted.step[s, t] * (cell + along)
            total += height[t, cell] + slope * along - np.log(whole[t] * tilted.step[s, t])
    return PrecisionDraws(logs, total, active)


def log_precision_prior(logs: np.ndarray, dofs: np.ndarray, active: np.ndarray) -> np.ndarray:
    """log p(log λ | ν) summed over sites and steps, (N,)."""
    half = 0.5 * np.minimum(dofs, LARGEST_DOF)[:, None]
    density = half * np.log(half) - gammaln(half) + half * (logs - np.exp(logs))
    return np.where(active, density, 0.0).sum(axis=(1, 2))


def likelihoods(
    model: Disturbances, params: np.ndarray, draws: PrecisionDraws, only: np.ndarray | None = None
) -> np.ndarray:
    """log p(y | λ) of every draw, or of those in `only` (others are −∞)."""
    found = np.full(len(draws.logs), -np.inf)
    for n in range(len(found)) if only is None else only:
        found[n] = model.log_likelihood(params, np.exp(-draws.logs[n]))
    return found


def estimate(
    model: Disturbances, params: np.ndarray, dofs: np.ndarray, draws: PrecisionDraws, only: np.ndarray | None = None
) -> Estimate:
    """The evidence at these parameters, from the draws as they are."""
    weight = (
        likelihoods(model, params, draws, only)
        + log_precision_prior(draws.logs, dofs, draws.active)
        - draws.log_density
    )
    total = float(logsumexp(weight))
    return Estimate(total - np.log(len(weight)), weight - total)


def worth_keeping(found: Estimate, share: float = 1e-3) -> np.ndarray:
    """Draws that together have all but `share` of the weight: the others need no further passes nearby."""
    order = np.argsort(-found.log_weights)
    kept = np.cumsum(found.weights[order]) < 1.0 - share
    return np.sort(order[: int(kept.sum()) + 1])
