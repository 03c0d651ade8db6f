r"""How does a row's evidence change with the parameters, to second order? From the moments of its posterior.

With :math:`\ell(u)` the log joint density and :math:`s` the few numbers through which the parameters enter it
(:mod:`robustly.model.parameter_cut`), Fisher's and Louis's identities give

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
from jax import Array, lax

from robustly.approx.climb import look
from robustly.approx.grid import ENDS, level_map, level_step


class Moments(NamedTuple):
    """Of one row (and one value of its discrete latent)."""

    evidence: Array
    coarse: Array
    """The evidence by every other point, twice the weight each."""
    score: Array
    """E ∇ℓ, (k,)"""
    curve: Array
    """E ∇²ℓ + Cov ∇ℓ, (k, k)"""

    def plus(self, level: Array) -> Moments:
        """With one number more, that is added to ℓ whatever the local value: no integral is needed for it."""
        return Moments(
            self.evidence + level,
            self.coarse + level,
            jnp.append(self.score, 1.0),
            jnp.pad(self.curve, (0, 1)),
        )


# (u, numbers) -> log joint density
Finish = Callable[[Array, Sequence[Array]], Array]


def second_order(f: Callable[..., Any], args: tuple[Any, ...]) -> tuple[Any, list[Any], Any]:
    """Value, slopes and curvature matrix of a function of a few scalars."""
    size = len(args)

    def along(i: int, g: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *a: jax.jvp(lambda t: g(*a[:i], t, *a[i + 1 :]), (a[i],), (jnp.ones_like(a[i]),))[1]

    slopes = [along(i, f) for i in range(size)]
    below = {(i, j): along(j, slopes[i])(*args) for i in range(size) for j in range(i + 1)}
    curve = [[below[max(i, j), min(i, j)] for j in range(size)] for i in range(size)]
    return f(*args), [slope(*args) for slope in slopes], jnp.stack([jnp.stack(line) for line in curve])


def level_moments(
    density: Finish, scalars: Sequence[Any], mode: Array, log_half_widths: Array, count: Array | int, *, follow: bool
) -> Moments:
    """Evidence and moments of ``density(u, scalars)`` on the line, by `count` points around a place near its mode.

    Args:
        log_half_widths: how far it reaches, as :func:`~robustly.approx.grid.find_half_widths` tells.
        follow: let points move along with the mode. Where the scalars move the likelihood against `u`, a row of much
            information has next to none of it about them, and if points stay behind that is a small difference of large
            numbers; where they move the prior alone, points may stay.
    """
    top, _, curve = look(lambda u: density(u, scalars), mode)
    place = level_map(mode, curve[0, 0], log_half_widths)
    if not follow:
        return _integrate(density, scalars, mode, top, count, place)
    slope = lambda s: look(lambda u: density(u, s), mode)[1][0]
    rates = [-bend / curve[0, 0] for bend in jax.jacfwd(slope)(list(scalars))]
    rates = [jnp.where(jnp.isfinite(rate), rate, 0.0) for rate in rates]
    moved = lambda s: sum((rate * (a - b) for rate, a, b in zip(rates, s, scalars)), start=jnp.zeros(()))
    return _integrate(lambda u, s: density(u + moved(s), s), scalars, mode, top, count, place)


def _integrate(
    density: Finish, scalars: Sequence[Any], mode: Array, top: Any, count: Array | int, place: Any
) -> Moments:
    """Moments by `count` points that `place` puts on the line; `top` is the log density at the mode.

    A loop over the points, and every number a variable of its own: under ``vmap`` each step then works on plain vectors
    over rows, which the processor takes several at a time. How many points there are need not be known beforehand.
    """
    size = len(scalars)
    pairs = [(i, j) for i in range(size) for j in range(i, size)]
    apart = level_step(count)
    # Slopes are summed as differences from those at the mode, so that their spread is not lost in their size.
    middle = jax.grad(lambda s: density(mode, s))(tuple(scalars))

    def step(i: Any, sums: tuple[Any, ...]) -> tuple[Any, ...]:
        u, length = place(i * apart - ENDS)
        (height, slope), along = jax.linearize(jax.value_and_grad(lambda s: density(u[None], s)), tuple(scalars))
        unit = lambda k: tuple(jnp.ones(()) if i == k else jnp.zeros(()) for i in range(size))
        curve = [along(unit(k))[1] for k in range(size)]
        away = [a - b for a, b in zip(slope, middle)]
        mass = length * jnp.exp(jnp.where(jnp.isfinite(height), height - top, -jnp.inf))
        terms = [*away, *(curve[i][j] + away[i] * away[j] for i, j in pairs)]
        terms = [jnp.where(mass > 0, mass * term, 0.0) for term in terms]
        coarse = jnp.where(i % 2 == 0, 2.0, 0.0) * mass
        return tuple(a + b for a, b in zip(sums, [mass, coarse, *terms]))

    start = tuple(jnp.zeros(()) for _ in range(2 + size + len(pairs)))
    mass, coarse, *sums = lax.fori_loop(0, count, step, start)
    means = [total / mass for total in sums]
    away, squares = means[:size], means[size:]
    curve = [[jnp.zeros(())] * size for _ in range(size)]
    for (i, j), square in zip(pairs, squares):
        curve[i][j] = curve[j][i] = square - away[i] * away[j]
    return Moments(
        top + jnp.log(apart * mass),
        top + jnp.log(apart * coarse),
        jnp.stack([a + b for a, b in zip(middle, away)]) if size else jnp.zeros(0),
        jnp.stack([jnp.stack(line) for line in curve]) if size else jnp.zeros((0, 0)),
    )
