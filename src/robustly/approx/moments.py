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
    grid: Any,
    place: Callable[[Any], tuple[Any, Any]],
) -> Moments:
    """Evidence and moments by the points ``place(t)`` for `t` in `grid`; `top` is the log joint density near its mode.

    A loop over the points, and every number a variable of its own: under ``vmap`` each step then works on plain vectors
    over rows, which the processor takes several at a time.
    """
    size = len(scalars)
    pairs = [(i, j) for i in range(size) for j in range(i, size)]

    def step(sums: tuple[Any, ...], at: Any) -> tuple[tuple[Any, ...], None]:
        t, coarse = at
        u, weight = place(t)
        (height, slope), along = jax.linearize(jax.value_and_grad(lambda s: finish(u[None], s)), tuple(scalars))
        unit = lambda k: tuple(jnp.ones(()) if i == k else jnp.zeros(()) for i in range(size))
        curve = [along(unit(k))[1] for k in range(size)]
        mass = weight * jnp.exp(jnp.where(jnp.isfinite(height), height - top, -jnp.inf))
        terms = [*slope, *(curve[i][j] + slope[i] * slope[j] for i, j in pairs)]
        terms = [jnp.where(mass > 0, mass * term, 0.0) for term in terms]
        return tuple(a + b for a, b in zip(sums, [mass, coarse * mass, *terms])), None

    points = (jnp.asarray(grid), jnp.where(jnp.arange(len(grid)) % 2 == 0, 2.0, 0.0))
    start = tuple(jnp.zeros(()) for _ in range(2 + size + len(pairs)))
    mass, coarse, *sums = lax.scan(step, start, points)[0]
    means = [total / mass for total in sums]
    square = [[jnp.zeros(())] * size for _ in range(size)]
    for (i, j), value in zip(pairs, means[size:]):
        square[i][j] = square[j][i] = value
    return Moments(
        top + jnp.log(mass),
        top + jnp.log(coarse),
        jnp.stack(means[:size]) if size else jnp.zeros(0),
        jnp.stack([jnp.stack(line) for line in square]) if size else jnp.zeros((0, 0)),
    )
