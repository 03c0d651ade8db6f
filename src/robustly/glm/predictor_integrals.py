r"""What is the density of a row whose predictor is normal around its centre? By points between where next to nothing is left.

:math:`\int p(y \mid u)\, N(u; c, e^{2s})\, du`, with its logarithm's derivatives in the centre, the log spread and what else the
likelihood sees. With g and h the slope and the curvature of the integrand's logarithm at a point, the slope is :math:`E g` and the
curvature :math:`E h + \mathrm{Cov}\, g`, in shares of the integral.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from robustly.approx.moments import second_order
from robustly.glm.part_moments import PartDensity
from robustly.glm.priors import LOG_2PI

# Of which the density is a function: the centre, the log spread, and dispersions from there on.
CENTRE, LOG_SPREAD, DISPERSIONS = range(3)
# Points of an integral, how far down they go in nats, most steps to find the peak and these ends, and how closely.
NODES, DEPTH, CLIMB, WIDEN, NEAR = 16, 17.0, 14, 10, 1e-3
Numbers = tuple[Array, ...]


def find_ends(joint: Callable[..., Array], numbers: Numbers, begin: Array) -> Array:
    """The peak of a density with one peak, and how far to the left and to the right of it the density falls by `DEPTH` nats.

    Searched for from where they were before; from there a step or two do.
    """
    density = lambda u: joint(u, *numbers)
    slope = jax.grad(density)
    bend = jax.grad(slope)

    def climb(seen: Any) -> Any:
        # Left of its peak a count has almost no curvature, and a full step would land where exp overflows.
        u, _, turn = seen
        step = jnp.clip(-slope(u) / jnp.minimum(bend(u), -1e-12), -1.0, 1.0)
        return u + step, jnp.abs(step), turn + 1

    mode, _, _ = jax.lax.while_loop(
        lambda seen: (seen[1] > NEAR) & (seen[2] < CLIMB), climb, (begin[0], jnp.ones_like(begin[0]), 0)
    )
    top, width = density(mode), jnp.minimum(1.0 / jnp.sqrt(jnp.maximum(-bend(mode), 1e-12)), jnp.exp(numbers[1]))
    sides = jnp.array([-1.0, 1.0])
    fall = lambda length: top - density(mode + sides * length)
    ends = jnp.where(begin[1:] > 0, begin[1:], np.sqrt(2.0 * DEPTH) * width)

    def widen(seen: Any) -> Any:
        length, there, turn = seen
        length = length * jnp.clip(jnp.sqrt(DEPTH / jnp.maximum(there, 1e-6)), 0.2, 3.0)
        return length, fall(length), turn + 1

    ends, _, _ = jax.lax.while_loop(
        lambda seen: (jnp.max(jnp.abs(seen[1] - DEPTH)) > 0.1 * DEPTH) & (seen[2] < WIDEN), widen, (ends, fall(ends), 0)
    )
    return jnp.concatenate([mode[None], ends])


def points_of(place: Array) -> tuple[Array, Array]:
    """Points of a trapezoid rule from end to end, and the logarithm of their step: few do for a smooth peak.

    Where exactly they sit matters only to the integration error, of which there is next to none.
    """
    mode, low, high = place
    step = (low + high) / (NODES - 1)
    return mode - low + step * jnp.arange(NODES), jnp.log(step)


def log_integral(joint: Callable[..., Array], numbers: Numbers, place: Array) -> Array:
    """log ∫ exp joint(u, numbers) du, at points that stay where they are."""
    points, logs = points_of(place)
    return jax.scipy.special.logsumexp(joint(points, *numbers) + logs)


def integral_density(
    likelihood: Callable[..., Array], centre: Array, log_spread: Array, dispersions: Numbers, place: Array
) -> PartDensity:
    """As :func:`log_integral` of ``likelihood(u, *dispersions)`` times N(u; centre, spread²), with its derivatives.

    A loop over the points, and every sum a variable of its own: under ``vmap`` each step then works on plain vectors over rows, which
    the processor takes several at a time. What the dispersions have in common is found once for all points.
    """
    mode, low, high = place
    apart, inverse = (low + high) / (NODES - 1), jnp.exp(-log_spread)
    size = len(dispersions)
    pairs = [(i, j) for i in range(size) for j in range(i, size)]

    def seen(u: Array) -> tuple[Any, list[Any], Any]:
        if not size:
            return likelihood(u), [], None
        return second_order(lambda *given: likelihood(u, *given), dispersions)

    # Everything is summed as differences from the mode, so that spreads are not lost in sizes.
    top, middle, _ = seen(mode)
    z = (mode - centre) * inverse

    def step(i: Any, sums: tuple[Any, ...]) -> tuple[Any, ...]:
        away = i * apart - low
        height, slopes, bend = seen(mode + away)
        d = away * inverse
        mass = jnp.exp(height - top - d * (z + 0.5 * d))
        off = [one - other for one, other in zip(slopes, middle)]
        terms = [*off, *(d * one for one in off), *(d**2 * one for one in off)]
        terms += [off[i] * off[j] for i, j in pairs] + [bend[i, j] for i, j in pairs]
        powers = [mass, mass * d, mass * d**2, mass * d**3, mass * d**4]
        return tuple(a + b for a, b in zip(sums, [*powers, *(jnp.where(mass > 0, mass * one, 0.0) for one in terms)]))

    start = tuple(jnp.zeros(()) for _ in range(5 + 3 * size + 2 * len(pairs)))
    mass, *sums = lax.fori_loop(0, NODES, step, start)
    one, two, three, four, *rest = (total / mass for total in sums)
    off, across, square = (rest[k * size : (k + 1) * size] for k in range(3))
    both, bent = rest[3 * size :][: len(pairs)], rest[3 * size :][len(pairs) :]
    variance, skew, fourth = two - one**2, three - one * two, four - two**2
    first, second = z + one, z**2 + 2.0 * z * one + two  # of (u − centre) / spread
    curve = {
        (CENTRE, CENTRE): inverse**2 * (variance - 1.0),
        (CENTRE, LOG_SPREAD): inverse * (2.0 * z * variance + skew - 2.0 * first),
        (LOG_SPREAD, LOG_SPREAD): 4.0 * z * (z * variance + skew) + fourth - 2.0 * second,
    }
    for j in range(size):
        along, wider = across[j] - one * off[j], square[j] - two * off[j]
        curve[CENTRE, DISPERSIONS + j] = inverse * along
        curve[LOG_SPREAD, DISPERSIONS + j] = 2.0 * z * along + wider
    for (i, j), product, bend in zip(pairs, both, bent):
        curve[DISPERSIONS + i, DISPERSIONS + j] = product - off[i] * off[j] + bend
    value = top - 0.5 * z**2 - log_spread - 0.5 * LOG_2PI + jnp.log(apart * mass)
    return PartDensity(value, [first * inverse, second - 1.0, *(a + b for a, b in zip(middle, off))], curve)
