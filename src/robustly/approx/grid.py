"""Points and weights: where a row's density is looked at when it is integrated.

All rules return points ``u`` of shape (m, dim) and log weights that include the density, so that the logarithm of the
integral is ``logsumexp`` of them and the normalised weights are those of the posterior.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from scipy.special import ndtri

from robustly.approx import dense
from robustly.approx.climb import look

LOG_2PI = float(np.log(2.0 * np.pi))

Density = Callable[[Any], Any]


@cache
def hermite(count: int, dim: int) -> tuple[np.ndarray, np.ndarray]:
    """Product Gauss–Hermite rule for a standard normal: points (count**dim, dim) and log weights."""
    points, weights = np.polynomial.hermite_e.hermegauss(count)
    weights = weights / weights.sum()
    grid = np.array(list(itertools.product(points, repeat=dim)))
    logs = np.array([sum(ws) for ws in itertools.product(np.log(weights), repeat=dim)])
    return grid, logs


@cache
def sobol(count: int, dim: int) -> tuple[np.ndarray, np.ndarray]:
    """Quasi-random standard normal points, scrambled once and for all, and their equal log weights."""
    from scipy.stats import qmc

    uniform = qmc.Sobol(dim, scramble=True, rng=np.random.default_rng(20160101)).random(count)
    return ndtri(np.clip(uniform, 1e-12, 1 - 1e-12)), np.full(count, -np.log(count))


def normal_points(
    joint: Density, mode: Any, lower: dense.Factor, dim: int, rule: tuple[np.ndarray, np.ndarray], stretch: float = 1.0
) -> tuple[Any, Any]:
    """A rule for standard normals moved to the mode and widened to the curvature there (`lower` factors minus it)."""
    z, log_weight = jnp.asarray(rule[0]), jnp.asarray(rule[1])
    u = mode + stretch * jax.vmap(lambda point: dense.solve_transposed(lower, point, dim))(z)
    log_normal = -0.5 * jnp.sum(z**2, axis=1) - 0.5 * dim * LOG_2PI + dense.half_log_det(lower, dim)
    return u, log_weight + jax.vmap(joint)(u) - log_normal + dim * np.log(stretch)


def qmc_points(joint: Density, mode: Any, dim: int, count: int) -> tuple[Any, Any]:
    """Importance-weighted quasi-random points around a mode."""
    lower = dense.cholesky(-look(joint, mode)[2], dim)
    return normal_points(joint, mode, lower, dim, sobol(count, dim), STRETCH)


# Proposals a little wider than the curvature says, so that importance weights stay bounded when tails are heavier.
STRETCH = 1.15

# The density is followed out to exp(-36) of its top: what is left beyond is below double precision.
DEPTH = 36.0
_REACH = np.linspace(0.4, 18.0, 45)


def line_points(joint: Density, mode: Any, count: int) -> tuple[Any, Any]:
    """A trapezoid rule on a wide, sinh-spaced grid: fine at the mode, far-reaching in the tails, each side to its end.

    Its error falls geometrically with the spacing whatever the shape, where Gauss–Hermite expects something like a
    normal: a 0/1 row with a wide prior has one steep and one slow side.
    """
    point = mode[0]
    top, _, curvature = look(joint, mode)
    curve = curvature[0, 0]
    scale = lax.stop_gradient(1.0 / jnp.sqrt(jnp.where(-curve > 1e-12, -curve, 1.0)))
    reach = jnp.asarray(_REACH)

    def side(sign: float) -> Any:
        heights = jax.vmap(lambda t: joint((point + sign * scale * jnp.sinh(t))[None]) + t)(reach)
        inside = jnp.isfinite(heights) & (heights > top - DEPTH)
        return jnp.max(jnp.where(inside, reach, 0.0)) + (_REACH[1] - _REACH[0])

    left, right = lax.stop_gradient(side(-1.0)), lax.stop_gradient(side(1.0))
    share = jnp.linspace(0.0, 1.0, count)
    t = -left + (left + right) * share
    u = lax.stop_gradient(point + scale * jnp.sinh(t))[:, None]
    log_weight = lax.stop_gradient(jnp.log((left + right) / (count - 1) * scale) + jnp.log(jnp.cosh(t)))
    heights = jax.vmap(joint)(u)
    return u, jnp.where(jnp.isfinite(heights), heights + log_weight, -jnp.inf)
