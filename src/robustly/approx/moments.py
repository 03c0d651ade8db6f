r"""How does a row's evidence change with the parameters, to second order? From the moments of its posterior.

With :math:`\ell(u)` the log joint density and :math:`s` the few numbers through which the parameters enter it
(:mod:`robustly.model.narrow`), Fisher's and Louis's identities give

.. math:: \nabla \log p = E[\nabla \ell], \qquad
          \nabla^2 \log p = E[\nabla^2 \ell + \nabla \ell \nabla \ell^\top] - E[\nabla \ell]\,E[\nabla \ell]^\top .

Everything is summed in one run over the integration points, which are taken as fixed: where exactly they sit matters
only to integration error, so this is for rules so fine that there is next to none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from robustly.approx.grid import ENDS, level_step


class Moments(NamedTuple):
    """Of one row (and one value of its discrete latent)."""

    evidence: Any
    coarse: Any
    """The evidence by every other point, twice the weight each."""
    score: Any
    """E ∇ℓ, (k,)"""
    square: Any
    """E[∇²ℓ + ∇ℓ∇ℓᵀ], (k, k)"""


def integrate(
    finish: Callable[[Any, Sequence[Any]], Any],
    scalars: Sequence[Any],
    top: Any,
    count: Any,
    place: Callable[[Any], tuple[Any, Any]],
) -> Moments:
    """Evidence and moments by `count` points of :func:`~robustly.approx.grid.level_map`; `top` is the log joint density near its mode.

    A loop over the points, and every number a variable of its own: under ``vmap`` each step then works on plain vectors
    over rows, which the processor takes several at a time. How many points there are need not be known beforehand.
    """
    size = len(scalars)
    pairs = [(i, j) for i in range(size) for j in range(i, size)]
    apart = level_step(count)

    def step(i: Any, sums: tuple[Any, ...]) -> tuple[Any, ...]:
        u, length = place(i * apart - ENDS)
        (height, slope), along = jax.linearize(jax.value_and_grad(lambda s: finish(u[None], s)), tuple(scalars))
        unit = lambda k: tuple(jnp.ones(()) if i == k else jnp.zeros(()) for i in range(size))
        curve = [along(unit(k))[1] for k in range(size)]
        mass = length * jnp.exp(jnp.where(jnp.isfinite(height), height - top, -jnp.inf))
        terms = [*slope, *(curve[i][j] + slope[i] * slope[j] for i, j in pairs)]
        terms = [jnp.where(mass > 0, mass * term, 0.0) for term in terms]
        coarse = jnp.where(i % 2 == 0, 2.0, 0.0) * mass
        return tuple(a + b for a, b in zip(sums, [mass, coarse, *terms]))

    start = tuple(jnp.zeros(()) for _ in range(2 + size + len(pairs)))
    mass, coarse, *sums = lax.fori_loop(0, count, step, start)
    means = [total / mass for total in sums]
    square = [[jnp.zeros(())] * size for _ in range(size)]
    for (i, j), value in zip(pairs, means[size:]):
        square[i][j] = square[j][i] = value
    return Moments(
        top + jnp.log(apart * mass),
        top + jnp.log(apart * coarse),
        jnp.stack(means[:size]) if size else jnp.zeros(0),
        jnp.stack([jnp.stack(line) for line in square]) if size else jnp.zeros((0, 0)),
    )
