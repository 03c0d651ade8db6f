r"""Which priors fit the rows about as well as the best one? A weighted handful of them, for honest row intervals.

Plugging in the best prior makes rows' intervals too short, worst of all where the best spread is 0 and every interval
has length 0. So the spread ψ of the locals (the first coordinate to the power the pair states) gets a hyperprior that
is flat in ψ², and a grid; at each ψ the other coordinates are climbed anew and integrated by Laplace's method, with
points one standard deviation out along each axis (a cubature of degree three). Flat in the variance is Stein's harmonic
prior for normal means (Morris 1983): intervals then cover what they promise, or a little more where rows hardly differ,
while flat in ψ falls short of it by two points in a hundred at thirty rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import jax.numpy as jnp
import numpy as np
from jax import Array

from robustly.conjugate.base import PairDefinition, Theta
from robustly.errors import FitError, ModelError
from robustly.fit.newton import Function, maximize
from robustly.fit.outcome import Stop

if TYPE_CHECKING:
    from robustly.conjugate.source import PairSource

COARSE = 0.35
"""Longest step of the grid in log ψ."""
DROP = 7.0
"""Grid points this many nats below the best are left out."""
FARTHEST = 60
HYPERPRIOR = 2.0
"""The hyperprior is flat in the spread to this power."""


def components(source: PairSource) -> list[tuple[np.ndarray, float]]:
    """Vectors of the search with weights that add up to about one."""
    pair, parameters = source.pair, source.model.parameters
    first = next(iter(pair.coordinates(source.table.columns)))

    def objective(vector: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
        value, slope, curve = source.problem.look(vector)
        return value, slope, np.asarray(curve)

    if source.classical is None:
        centre = np.array(source.vector)
    else:
        centre = parameters.vector({**pair.start(source.table), **pair.fixed})
    if first not in parameters.names or pair.coordinates(source.table.columns)[first][1]:
        # No single spread to lay a grid on: Laplace's method in all coordinates.
        if source.classical is not None:
            raise ModelError(f"{type(pair).__name__} has no integrated posterior where the rows do not differ.")
        return _cubature(centre, objective(centre)[2], np.arange(parameters.size), 1.0)
    rest = np.arange(1, parameters.size)
    step = COARSE
    if source.classical is None:
        curve = objective(centre)[2]
        covariance = np.linalg.inv(-curve + 1e-12 * np.abs(np.diag(curve)).max() * np.eye(len(curve)))
        if covariance[0, 0] > 0:
            step = min(COARSE, 0.8 * abs(pair.spread_power) * float(np.sqrt(covariance[0, 0])))

    def profile(log_spread: float, near: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
        """The best other coordinates at this spread, the curvature in them, and the log weight of a grid point."""
        place = log_spread / pair.spread_power

        def inner(part: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
            value, slope, curve = objective(np.concatenate([[place], part]))
            return value, slope[1:], curve[1:, 1:]

        if not len(rest):
            value, _, curve = objective(np.array([place]))
            return np.array([place]), curve, value + HYPERPRIOR * log_spread
        found = maximize(Function(inner, parameters.constrained[1:]), near[1:], Stop(rtol=1e-6, max_steps=30))
        vector = np.concatenate([[place], found.vector])
        sign, log_det = np.linalg.slogdet(-found.curve)
        if sign <= 0 or not np.isfinite(found.value):
            return vector, found.curve, -np.inf
        return vector, found.curve, found.value - 0.5 * float(log_det) + HYPERPRIOR * log_spread

    middle = float(centre[0]) * pair.spread_power
    grid = [profile(middle, centre)]
    for direction in (1.0, -1.0):
        near, best = grid[0][0], max(entry[2] for entry in grid)
        for j in range(1, FARTHEST):
            entry = profile(middle + direction * j * step, near)
            if not entry[2] > best - DROP:
                break
            best = max(best, entry[2])
            grid.append(entry)
            near = entry[0]
    best = max(entry[2] for entry in grid)
    found = []
    for vector, curve, weight in grid:
        if weight > best - DROP:
            found += _cubature(vector, _padded(curve, parameters.size, rest), rest, float(np.exp(weight - best)))
    if not found:
        raise FitError(
            f"posteriors of {type(pair).__name__} cannot be averaged over its prior: no spread near the fitted one has a finite "
            "evidence. Look at the data and weights for extreme values, or ask posterior()."
        )
    return found


def _padded(curve: np.ndarray, size: int, rest: np.ndarray) -> np.ndarray:
    full = np.zeros((size, size))
    full[np.ix_(rest, rest)] = curve if len(rest) else 0.0
    return full


def _cubature(vector: np.ndarray, curve: np.ndarray, axes: np.ndarray, weight: float) -> list[tuple[np.ndarray, float]]:
    """Points √d standard deviations out along the principal axes of a normal: moments up to the third are right."""
    count = len(axes)
    if not count:
        return [(vector, weight)]
    values, vectors = np.linalg.eigh(-curve[np.ix_(axes, axes)])
    distances = np.sqrt(count / np.maximum(values, 1e-12 * max(values.max(), 1e-300)))
    found = []
    for j in range(count):
        for sign in (-1.0, 1.0):
            moved = np.array(vector)
            moved[axes] += sign * distances[j] * vectors[:, j]
            found.append((moved, weight / (2 * count)))
    return found


def log_flat(pair: PairDefinition, first: str, scales: Mapping[str, str], theta: Theta) -> Array:
    """The same hyperprior for draws, as a density of natural values; the others are flat in their logs or logits."""
    total = jnp.zeros(())
    for name, value in theta.items():
        if name == first:
            total = total + (HYPERPRIOR * pair.spread_power - 1.0) * jnp.log(value)
        elif scales[name] == "positive":
            total = total - jnp.sum(jnp.log(value))
        elif scales[name] == "unit":
            total = total - jnp.sum(jnp.log(value) + jnp.log1p(-value))
    return total
