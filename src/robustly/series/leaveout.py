r"""How probable is the series, each step's precision integrated with all others at their fitted place?

From one smoothing pass at variances :math:`h_t`, the likelihood as a function of *one* step's variance is known exactly: with
the smoothing error :math:`u_t` and its variance :math:`D_t` (de Jong & Penzer 1998),

.. math::
    \log\frac{p(y \mid h_t + \Delta)}{p(y \mid h_t)} = -\tfrac12\log(1 + \Delta D_t)
    + \tfrac12\frac{\Delta u_t^2}{1 + \Delta D_t}.

Integrated over the step's gamma law this gives the step's own factor of the evidence and the law of its precision with the
states integrated out. The product of all factors,

.. math:: \log p(y) \approx \log p(y \mid h) + \sum_t \log \mathrm E_{p(\lambda_t)}\!\left[
    \frac{p(y \mid \sigma^2/\lambda_t, h_{-t})}{p(y \mid h)}\right],

is an approximation in the manner of expectation propagation, neither above nor below the truth for sure. :math:`h_t` is where
the precision :math:`1/(V_t + h_t)` of the step's value is its mean over the law just found. On UK gas it is .15 nats off, where
the mean-field bound is 12 nats off or more. It serves as the objective of long series, and its laws are what
the precisions are drawn from in :mod:`robustly.series.sampled`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import gammaincinv, gammaln

from robustly._runtime.numba_loops import compiled
from robustly.series.disturbances import Disturbances, Smoothed
from robustly.series.meanfield import LARGEST_DOF

POINTS = 41
TAIL = 1e-7
MAX_ROUNDS = 60
# Log variances that change by more than this are not at their place.
OPEN = 1.0
# So many outliers running, each with so many times the usual variance, may be a level that went up and came back.
LEAST_RUN, LARGE = 3, 5.0


@dataclass(frozen=True)
class Tilted:
    """Laws of the log precisions on a grid of equal steps, and what they say; (S, T) unless told."""

    low: np.ndarray
    step: np.ndarray
    log_density: np.ndarray
    """At the grid's points, up to a constant, (S, T, POINTS)."""
    gain: np.ndarray
    """log of the step's factor of the evidence."""
    variance: np.ndarray
    """Where h goes next."""
    mean: np.ndarray
    """E[λ]."""


@dataclass(frozen=True)
class LeftOut:
    """The evidence by leaving steps out one at a time, and where its variances are."""

    evidence: float
    factors: np.ndarray
    """h/σ², (S, T)."""
    smoothed: Smoothed
    tilted: Tilted
    rounds: int


@compiled()
def _tilt(u, d, h, base, nu, constant, low, step, keep, density, gain, variance, mean):
    """For each step: integrate over the log precision by the trapezoid rule, on which smooth laws are exact to many digits."""
    steps = u.shape[1]
    size = u.shape[0]
    points = density.shape[1]
    values = np.empty(points)
    precisions = np.empty(points)
    for t in range(steps):
        information = 0.0
        for j in range(size):
            information += d[j, t]
        if information <= 0.0:
            gain[t], variance[t], mean[t] = 0.0, base, 1.0
            if keep:
                for i in range(points):
                    x = low[t] + step[t] * i
                    density[t, i] = 0.5 * nu * (x - math.exp(x)) + constant
            continue
        top = -1e300
        for i in range(points):
            x = low[t] + step[t] * i
            e = math.exp(x)
            precisions[i] = e
            value = 0.5 * nu * (x - e) + constant
            delta = base / e - h[t]
            for j in range(size):
                grown = 1.0 + delta * d[j, t]
                value += -0.5 * math.log(grown) + 0.5 * delta * u[j, t] * u[j, t] / grown
            values[i] = value
            top = max(top, value)
        total = 0.0
        precision = 0.0
        level = 0.0
        for i in range(points):
            e = precisions[i]
            share = math.exp(values[i] - top)
            delta = base / e - h[t]
            grown = 0.0
            for j in range(size):
                grown += d[j, t] / (1.0 + delta * d[j, t])
            total += share
            precision += share * grown
            level += share * e
            if keep:
                density[t, i] = values[i]
        gain[t] = top + math.log(total * step[t])
        mean[t] = level / total
        moved = h[t] + size * (total / precision - 1.0 / information)
        # The matched variance can be no smaller than that of the largest precision on the grid.
        variance[t] = max(moved, base / math.exp(low[t] + step[t] * (points - 1)))


def tilt(model: Disturbances, dofs: np.ndarray, factors: np.ndarray, smoothed: Smoothed, keep: bool = False) -> Tilted:
    """The law of every step's precision with the states integrated out and all other variances as they are."""
    shape = factors.shape
    low, step = np.empty(shape), np.empty(shape)
    gain, variance, mean = np.zeros(shape), np.empty(shape), np.ones(shape)
    density = np.zeros((*shape, POINTS)) if keep else np.zeros((1, 1, POINTS))
    for s, (site, nu) in enumerate(zip(model.sites, dofs)):
        if not np.isfinite(nu):
            low[s], step[s], variance[s] = 0.0, 0.0, 1.0
            continue
        nu = min(nu, LARGEST_DOF)
        u, d = smoothed.score[s], smoothed.information[s]
        base = max(float(model.variances[s]), np.finfo(float).tiny)
        low[s], step[s] = _line_grid(nu, u, d, base, site.size)
        constant = 0.5 * nu * math.log(0.5 * nu) - float(gammaln(0.5 * nu))
        _tilt(
            np.ascontiguousarray(u), np.ascontiguousarray(d), base * factors[s], base, float(nu), constant, low[s], step[s],
            keep, density[s if keep else 0], gain[s], variance[s], mean[s],
        )  # fmt: skip
        gain[s][~site.active], variance[s][~site.active], mean[s][~site.active] = 0.0, base, 1.0
        variance[s] /= base
    return Tilted(low, step, density, gain, variance, mean)


def _line_grid(nu: float, u: np.ndarray, d: np.ndarray, base: float, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Ends of the log precisions worth looking at.

    Above, the law with the disturbance known to be zero. Below, the prior's tail, or, if that comes first, where the
    likelihood has long been falling too: a variance beyond the squared disturbance and the error with which it is seen. A
    disturbance that is seen to be large pulls its precision below the prior's tail, to the law with the disturbance known.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        square = np.where(d > 0, (u / d) ** 2, 0.0).sum(axis=0) / base
        seen = np.where(d > 0, 1.0 / (d * base), 0.0).max(axis=0)
    shape = 0.5 * (nu + size)
    tail = math.log(gammaincinv(0.5 * nu, TAIL) / (0.5 * nu))
    low = np.maximum(tail, math.log(gammaincinv(shape, TAIL) / shape) - np.log1p(square + seen))
    low = np.minimum(low, math.log(gammaincinv(shape, TAIL)) - np.log(0.5 * (nu + square)))
    high = math.log(gammaincinv(shape, 1.0 - TAIL) / (0.5 * nu))
    return low, (high - low) / (POINTS - 1)


def leave_out(
    model: Disturbances,
    params: np.ndarray,
    dofs: np.ndarray,
    start: np.ndarray | None = None,
    tol: float = 1e-8,
    max_rounds: int = MAX_ROUNDS,
    keep: bool = False,
) -> LeftOut:
    """Match the variances to the precisions' laws until they move by less than `tol` in the evidence."""
    factors = model.ones() if start is None else start
    value, held = -np.inf, None
    for rounds in range(1, max_rounds + 1):
        smoothed = model.smooth(params, factors)
        tilted = tilt(model, dofs, factors, smoothed, keep)
        before, value = value, smoothed.log_likelihood + float(tilted.gain.sum())
        change = np.log(tilted.variance / factors)
        moved = np.abs(change).max(initial=0.0)
        found = LeftOut(value, factors, smoothed, tilted, rounds)
        if abs(value - before) <= tol * max(1.0, abs(value)) or moved < 1e-7:
            return found
        if rounds < max_rounds:
            held = found
            # Neighbouring steps that answer each other may go to and fro; half steps then.
            factors = factors * np.exp((0.5 if rounds >= 12 else 1.0) * _in_turn(model, change, tilted.gain))
    # Where variances still go to and fro, the higher value counts the same jump at several steps.
    return found if held is None or moved < OPEN or found.evidence <= held.evidence else held


def _in_turn(model: Disturbances, change: np.ndarray, gain: np.ndarray) -> np.ndarray:
    """Changes of the log variances, of which a run of steps that would all explain one jump of the state makes only the likeliest.

    Together they would explain it many times, and all go back in the next round.
    """
    found = change.copy()
    for s, site in enumerate(model.sites):
        grows = change[s] > OPEN
        if not site.is_break or grows.sum() < 2:
            continue
        edges = np.flatnonzero(np.diff(np.concatenate([[False], grows, [False]])))
        found[s][grows] = 0.0
        for low, high in zip(edges[::2], edges[1::2]):
            best = low + int(np.argmax(gain[s, low:high]))
            found[s, best] = change[s, best]
    return found


def with_plateaus(model: Disturbances, dofs: np.ndarray, found: LeftOut) -> list[np.ndarray]:
    """Variance factors with two breaks in place of each run of outliers, for every site of breaks; none where no run is.

    Rounds do not find the way from the one to the other: a break beside values that count for nothing explains nothing.
    """
    starts = []
    for s, site in enumerate(model.sites):
        large = site.active & (found.factors[s] > LARGE * np.median(found.factors[s][site.active]))
        edges = np.flatnonzero(np.diff(np.concatenate([[False], large, [False]]))).reshape(-1, 2)
        runs = [(low, high) for low, high in edges if high - low >= LEAST_RUN]
        if site.is_break or not runs:
            continue
        for b in [b for b, other in enumerate(model.sites) if other.is_break and np.isfinite(dofs[b])]:
            factors, variance = found.factors.copy(), max(float(model.variances[b]), np.finfo(float).tiny)
            for low, high in runs:
                factors[s, low:high] = 1.0
                jump = found.smoothed.mean[s, low:high].mean() ** 2
                for t in (low - 1, high - 1):
                    if t >= 0 and model.active[b, t]:
                        factors[b, t] = max(jump / variance, 1.0)
            starts.append(factors)
    return starts
