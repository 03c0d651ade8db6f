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
from jax import Array, lax
from scipy.special import ndtri

from robustly.approx.climb import look
from robustly.model import small_cholesky

LOG_2PI = float(np.log(2.0 * np.pi))

Density = Callable[[Array], Array]


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
    joint: Density,
    mode: Array,
    lower: small_cholesky.Factor,
    dim: int,
    rule: tuple[np.ndarray, np.ndarray],
    stretch: float = 1.0,
) -> tuple[Any, Any]:
    """A rule for standard normals moved to the mode and widened to the curvature there (`lower` factors minus it)."""
    z, log_weight = jnp.asarray(rule[0]), jnp.asarray(rule[1])
    u = mode + stretch * jax.vmap(lambda point: small_cholesky.solve_transposed(lower, point, dim))(z)
    log_normal = -0.5 * jnp.sum(z**2, axis=1) - 0.5 * dim * LOG_2PI + small_cholesky.half_log_det(lower, dim)
    return u, log_weight + jax.vmap(joint)(u) - log_normal + dim * np.log(stretch)


def qmc_points(joint: Density, mode: Array, dim: int, count: int) -> tuple[Any, Any]:
    """Importance-weighted quasi-random points around a mode."""
    lower = small_cholesky.cholesky(-look(joint, mode)[2], dim)
    return normal_points(joint, mode, lower, dim, sobol(count, dim), STRETCH)


# Proposals a little wider than the curvature says, so that importance weights stay bounded when tails are heavier.
STRETCH = 1.15

# Where a density has fallen by this much (in log units) its end is taken to be; what is left beyond is below 1e-9.
DEPTH = 20.0
ENDS = float(np.sqrt(2.0 * DEPTH))
_MAX_SEARCH = 60


def find_half_widths(joint: Density, mode: Array, start: Array, band: tuple[float, float] = (0.75, 1.35)) -> Array:
    """How far left and right of its mode a density falls by DEPTH: logarithms of two distances, searched from `start`.

    A rough answer will do (a fall of `band` times DEPTH), so a start from the last pass is usually the end.
    """
    point, top = mode[0], joint(mode)
    sign = jnp.asarray([-1.0, 1.0])

    def fall(log_half_widths: Array) -> Any:
        below = lambda s, q: top - joint((point + s * jnp.exp(q))[None])
        along = lambda s, q: jax.jvp(lambda t: below(s, t), (q,), (jnp.ones_like(q),))
        value, slope = jax.vmap(along)(sign, log_half_widths)
        return jnp.where(jnp.isfinite(value), value, 1e300), slope

    def far_off(value: Array) -> Array:
        return (value < band[0] * DEPTH) | (value > band[1] * DEPTH)

    def unfinished(state: Any) -> Any:
        _, value, _, _, steps = state
        return jnp.any(far_off(value)) & (steps < _MAX_SEARCH)

    def advance(state: Any) -> Any:
        log_half_widths, value, slope, (near, far), steps = state
        # Falls grow like a power of the distance, so the search is for log(fall) against log(distance).
        value = jnp.maximum(value, 1e-300)
        rate = jnp.clip(jnp.where(jnp.isfinite(slope), slope, 50.0 * value) / value, 0.05, 50.0)
        step = jnp.clip((np.log(DEPTH) - jnp.log(value)) / rate, -1.5, 1.5)
        # A density that is not known further out would send the search to and fro between two places.
        near = jnp.where(value < DEPTH, jnp.maximum(near, log_half_widths), near)
        far = jnp.where(value > DEPTH, jnp.minimum(far, log_half_widths), far)
        moved = log_half_widths + step
        moved = jnp.where((moved <= near) | (moved >= far), 0.5 * (near + far), moved)
        log_half_widths = jnp.where(far_off(value), moved, log_half_widths)
        return log_half_widths, *fall(log_half_widths), (near, far), steps + 1

    ends = (jnp.full(2, -60.0), jnp.full(2, 60.0))
    return lax.stop_gradient(lax.while_loop(unfinished, advance, (start, *fall(start), ends, 0))[0])


def level_map(mode: Array, curve: Array, log_half_widths: Array) -> Callable[[Any], tuple[Any, Any]]:
    r"""A coordinate in which a density looks normal, with one mode, known curvature, known ends: a trapezoid rule in it.

    With :math:`u = m + s\,t\,e^{gt + kt^2}` the ends (falls of DEPTH) lie at the same :math:`\pm t` as a standard
    normal's, and :math:`k` matches the curvature where that keeps the map increasing. The trapezoid rule converges
    geometrically for what is left; Gauss–Hermite around the mode is off by 1e-3 where this is off by 1e-9, because it
    takes a skewed or heavy-tailed density for a normal one.

    Returns the map from t to its point and the length of line that a unit of t stands for there.
    """
    log_left, log_right = log_half_widths[0], log_half_widths[1]
    skew = (log_right - log_left) / (2.0 * ENDS)
    middle = 0.5 * (log_left + log_right) - np.log(ENDS)
    curvature = jnp.where(-curve > 1e-12, -curve, jnp.exp(-2.0 * middle))
    # g² < 8k keeps the map increasing whatever the ends are.
    tail = jnp.maximum((middle + 0.5 * jnp.log(curvature)) / ENDS**2, skew**2 / 7.5)
    tail = lax.stop_gradient(tail)
    log_scale = middle - tail * ENDS**2

    def place(t: Array) -> tuple[Any, Any]:
        stretch = jnp.exp(log_scale + skew * t + tail * t**2)
        step = 1.0 + skew * t + 2.0 * tail * t**2
        return mode[0] + stretch * t, stretch * step

    return place


def level_step(count: Array | int) -> Array:
    """How far apart `count` points stand from end to end, in the coordinate of :func:`level_map`."""
    return 2.0 * ENDS / (count - 1)


def level_points(joint: Density, mode: Array, curve: Array, log_half_widths: Array, count: int) -> tuple[Any, Any]:
    """Points and log weights of :func:`level_map`'s rule."""
    u, length = jax.vmap(level_map(mode, curve, log_half_widths))(jnp.linspace(-ENDS, ENDS, count))
    heights = jax.vmap(lambda point: joint(point[None]))(u)
    return u[:, None], jnp.where(jnp.isfinite(heights), heights + jnp.log(length * level_step(count)), -jnp.inf)


def peak_width(joint: Density, mode: Array) -> Array:
    """How wide a density on the line is at its mode, by the curvature there; one where it has none."""
    _, _, curve = look(joint, mode)
    return 1.0 / jnp.sqrt(jnp.where(-curve[0, 0] > 1e-12, -curve[0, 0], 1.0))


def line_points(joint: Density, mode: Array, count: int) -> tuple[Any, Any]:
    """Fine points of a density on the line, given only its mode."""
    _, _, curve = look(joint, mode)
    half = jnp.log(ENDS * peak_width(joint, mode))
    log_half_widths = find_half_widths(joint, mode, jnp.stack([half, half]))
    return level_points(joint, mode, curve[0, 0], log_half_widths, count)


def fine_points(joint: Density, mode: Array, dim: int) -> tuple[Any, Any]:
    """Points that stand for a density with this mode when means, deviations and quantiles are asked for."""
    return line_points(joint, mode, 401) if dim == 1 else qmc_points(joint, mode, dim, 2048)
