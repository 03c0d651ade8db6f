"""Where is the top of a smooth function of a few variables? Damped Newton steps that run under ``vmap``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from robustly.model import small_cholesky

Function = Callable[[Array], Array]

MAX_STEPS = 60
# Squared distance to the top, in units of the function's own curvature, below which the climb ends. Integration points
# need not sit exactly at the mode, and one more differentiable step is taken from there anyway.
TOLERANCE = 1e-13


def look(f: Function, u: Array) -> tuple[Any, Any, Any]:
    """Value, slope and curvature of `f` at `u`, from one reading of `f`."""
    if u.shape == (1,):
        # In one dimension two forward derivatives are the smallest program, to compile and to run.
        along = lambda t: jax.jvp(lambda s: f(s[None]), (t,), (jnp.ones_like(t),))
        (value, slope), (_, curve) = jax.jvp(along, (u[0],), (jnp.ones_like(u[0]),))
        return value, slope[None], curve[None, None]

    def slope_of(point: Array) -> tuple[Any, tuple[Any, Any]]:
        value, slope = jax.value_and_grad(f)(point)
        return slope, (value, slope)

    curve, (value, slope) = jax.jacfwd(slope_of, has_aux=True)(u)
    return value, slope, curve


def climb(f: Function, start: Array, dim: int, tolerance: float = TOLERANCE) -> Array:
    """The maximiser of `f`, from `start`; no derivative passes through it."""

    def unfinished(state: Any) -> Any:
        _, _, _, _, _, rest, steps = state
        return (rest > tolerance) & (steps < MAX_STEPS)

    def advance(state: Any) -> Any:
        u, value, slope, curve, damping, rest, steps = state
        ridge = damping * jnp.maximum(jnp.abs(jnp.diagonal(curve)), 1e-6)
        step = small_cholesky.solve(small_cholesky.cholesky(jnp.diag(ridge) - curve, dim), slope, dim)
        step = jnp.where(jnp.isfinite(step), step, 0.0)
        # A function that is nearly flat where it starts (a Poisson row far left of its mode) proposes huge steps.
        longest = 5.0 * (1.0 + jnp.max(jnp.abs(u)))
        step = step * jnp.minimum(1.0, longest / jnp.maximum(jnp.max(jnp.abs(step)), 1e-300))
        ahead = u + step
        there = look(f, ahead)
        gained = jnp.isfinite(there[0]) & (there[0] >= value - 1e-12 * (1.0 + jnp.abs(value)))
        gained = gained & jnp.all(jnp.isfinite(there[1])) & jnp.all(jnp.isfinite(there[2]))
        left = jnp.abs(jnp.dot(slope, step))
        # Rejected steps at the accuracy of the arithmetic mean that the top is reached.
        rest = jnp.where(gained, left, jnp.where(left < 1e-10 * (1.0 + jnp.abs(value)), 0.0, rest))
        damping = jnp.where(gained, jnp.where(damping > 1e-5, 0.1 * damping, 0.0), jnp.maximum(10.0 * damping, 1e-2))
        keep = lambda new, old: jnp.where(gained, new, old)
        return (
            keep(ahead, u),
            keep(there[0], value),
            keep(there[1], slope),
            keep(there[2], curve),
            damping,
            rest,
            steps + 1,
        )

    first = (start, *look(f, start), jnp.zeros_like(start[0]), jnp.full_like(start[0], jnp.inf), 0)
    return lax.stop_gradient(lax.while_loop(unfinished, advance, first)[0])


def implicit_step(f: Function, mode: Array, dim: int) -> Array:
    """The mode as a function of what `f` depends on: one Newton step whose matrix is held fixed.

    From the mode itself the step is zero, but its derivative is that of the mode (implicit function theorem).
    """
    _, slope, curve = look(f, mode)
    return mode + small_cholesky.solve(small_cholesky.cholesky(-lax.stop_gradient(curve), dim), slope, dim)


def exact_step(f: Function, mode: Array, dim: int) -> Array:
    """The mode with exact derivatives up to the third: two Newton steps, each carrying twice the order of the last."""
    for _ in range(2):
        _, slope, curve = look(f, mode)
        mode = mode + small_cholesky.solve(small_cholesky.cholesky(-curve, dim), slope, dim)
    return mode
