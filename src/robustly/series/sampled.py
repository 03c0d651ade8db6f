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
    tail_shape: float = 0.0
    """k of the weights' Pareto tail: above .5 their variance is infinite, above .7 the estimate is not to be trusted."""

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


def log_weights(
    model: Disturbances, params: np.ndarray, dofs: np.ndarray, draws: PrecisionDraws, only: np.ndarray | None = None
) -> np.ndarray:
    """log p(y, λ) − log q(λ) of every draw, (N,)."""
    prior = log_precision_prior(draws.logs, dofs, draws.active)
    return likelihoods(model, params, draws, only) + prior - draws.log_density


def estimate(model: Disturbances, params: np.ndarray, dofs: np.ndarray, draws: PrecisionDraws) -> Estimate:
    """The evidence at these parameters, from the draws, the largest of their weights smoothed."""
    weight, shape = smooth_tail(log_weights(model, params, dofs, draws))
    total = float(logsumexp(weight))
    return Estimate(total - np.log(len(weight)), weight - total, shape)


def smooth_tail(logs: np.ndarray) -> tuple[np.ndarray, float]:
    """The largest weights replaced by the expected ones of a Pareto law fitted to them, and its shape k (Vehtari et al. 2024).

    A few large weights carry an error that they do not show. Smoothed, they have the size that weights of their rank have, in the
    estimate as in its error.
    """
    count = int(min(0.2 * len(logs), 3.0 * np.sqrt(len(logs))))
    if count < 5 or np.ptp(logs) < 1e-12:
        return logs, 0.0
    order = np.argsort(logs)
    top, tail = logs[order[-1]], order[-count:]
    cut = np.exp(logs[order[-count - 1]] - top)
    shape, scale = fit_pareto(np.exp(logs[tail] - top) - cut)
    level = (np.arange(count) + 0.5) / count
    rise = -np.log1p(-level) if abs(shape) < 1e-8 else np.expm1(-shape * np.log1p(-level)) / shape
    found = logs.copy()
    found[tail] = top + np.log(cut + scale * rise)
    return found, shape


def fit_pareto(excess: np.ndarray) -> tuple[float, float]:
    """Shape and scale of a generalised Pareto law by Zhang & Stephens' (2009) posterior mean, k drawn a little to one half."""
    x = np.sort(np.maximum(excess, 1e-300))
    n = len(x)
    points = 30 + int(np.sqrt(n))
    theta = 1.0 / x[-1] + (1.0 - np.sqrt(points / (np.arange(1, points + 1) - 0.5))) / (3.0 * x[int(n / 4 + 0.5) - 1])
    k = np.log1p(-theta[:, None] * x).mean(axis=1)
    profile = n * (np.log(-theta / k) - k - 1.0)
    share = 1.0 / np.exp(profile - profile[:, None]).sum(axis=1)
    at = float(np.sum(theta * share))
    shape = float(np.log1p(-at * x).mean())
    return (n * shape + 5.0) / (n + 10.0), -shape / at


def slopes_of(ahead: list[np.ndarray], here: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """By how much the log evidence differs a step ahead in each coordinate, and the covariance that the draws give these numbers."""
    used = np.isfinite(here)
    share = np.exp(here[used] - logsumexp(here))
    slope = np.array([logsumexp(one) - logsumexp(here) for one in ahead])
    each = np.array([one[used] - here[used] for one in ahead])
    off = (each - each @ share[:, None]) * share
    return slope, off @ off.T


def worth_keeping(found: Estimate, share: float = 1e-3) -> np.ndarray:
    """Draws that together have all but `share` of the weight: the others need no further passes nearby."""
    order = np.argsort(-found.log_weights)
    kept = np.cumsum(found.weights[order]) < 1.0 - share
    return np.sort(order[: int(kept.sum()) + 1])
