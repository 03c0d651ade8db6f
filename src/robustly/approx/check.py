"""Does an approximation integrate what it says it does? Evidence by brute force, slopes by differences, EM by its promise."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.scipy.special import logsumexp

from robustly._runtime.precision import in_double_precision
from robustly.approx.base import Approximation
from robustly.approx.climb import climb
from robustly.approx.grid import qmc_points
from robustly.errors import ModelError
from robustly.model.row import Latent, Row, RowModel

MOST_ROWS = 8
# Points of the fine grid, by dimension; beyond two dimensions quasi-random points stand for it.
LINE, SQUARE, MANY = 4001, 301, 1 << 14
# Log densities this far below the highest do not count.
DEEP = 45.0
STEP = 1e-4
ARITHMETIC = 1e-8


@in_double_precision
def check_approximation(
    approx: Approximation,
    model: RowModel,
    data: Any,
    *,
    theta: Mapping[str, Any] | None = None,
    tolerance: float = 1e-6,
) -> dict[str, float]:
    """Verify an approximation numerically on a few rows of a model.

    Looks at whether the evidence of each row is the integral of its joint density, found by brute force, within `tolerance`
    (a bound may lie below it by any amount, never above); whether its slope and curvature in the parameters agree with
    differences; whether a mode found again gives the same evidence; whether :meth:`evidence_around` agrees with it where it
    is anchored; whether the weights of :meth:`points` add up to one; and whether raising :meth:`expected`, as EM does,
    raises the evidence by as much.

    Args:
        approx: the approximation to check.
        model: a row model of the kind it is made for; up to two local dimensions are compared with a fine grid, more with
            many quasi-random points.
        data: rows as ``rb.fit_rows`` takes them; the first eight are looked at.
        theta: natural parameter values to check at, the start values without it.
        tolerance: largest error allowed in the log evidence of a row.

    Returns:
        The largest difference found by each check; of a bound, how far below it lies.

    Raises:
        ModelError: naming the check that failed, the row, and by how much.

    Example:
        >>> import robustly as rb, numpyro.distributions as dist
        >>> counts = rb.RowModel(
        ...     prior=lambda theta, row: dist.Normal(theta["loc"], 0.5),
        ...     log_likelihood=lambda log_rate, theta, row: dist.Poisson(jnp.exp(log_rate)).log_prob(row),
        ...     start={"loc": 0.0},
        ... )
        >>> found = check_approximation(rb.Quadrature(21), counts, [0, 2, 5])
        >>> found["evidence"] < 1e-6
        True
    """
    approx.check(model)
    rows = jax.tree.map(lambda column: jnp.asarray(column)[:MOST_ROWS], _as_columns(data))
    count = len(jax.tree.leaves(rows)[0])
    vector = jnp.asarray(model.parameters.vector({**model.start, **(theta or {})}))
    seen = _look_at(approx, model, rows, count, vector)
    if model.dim > 0:
        exact = _integrals(model, vector, rows, count)
    else:
        exact = seen["evidence"]
    above = seen["evidence"] - exact
    size = 1.0 + np.abs(exact)
    gaps = {
        "evidence": (np.maximum(above, 0.0) if approx.is_bound else np.abs(above), max(tolerance, ARITHMETIC)),
        "slope": (seen["slope"], 1e-5),
        "curvature": (seen["curvature"], 1e-4),
        "mode found again": (np.abs(seen["again"] - seen["evidence"]) / size, max(tolerance, ARITHMETIC)),
        "evidence around": (np.abs(seen["around"] - seen["evidence"]) / size, max(tolerance, ARITHMETIC)),
        "points": (np.abs(seen["points"]), ARITHMETIC),
    }
    if approx.is_bound and not approx.is_exact:
        gaps["evidence"] = (np.maximum(above, 0.0), ARITHMETIC * size.max())
    for name, (gap, allowed) in gaps.items():
        _judge_gap(approx, name, gap, allowed)
    found = {name: float(np.max(gap)) for name, (gap, _) in gaps.items()}
    if approx.is_bound:
        found["below"] = float(np.max(-above))
    found["EM"] = _em_loss(seen, approx, model, rows, vector)
    _judge_gap(approx, "EM", np.array([found["EM"]]), 2.0 * count * max(tolerance, ARITHMETIC))
    return found


def _as_columns(data: Any) -> Any:
    if isinstance(data, Mapping):
        return {name: np.asarray(value) for name, value in data.items()}
    return tuple(np.asarray(value) for value in data) if isinstance(data, tuple) else np.asarray(data)


def _states(approx: Approximation, model: RowModel, rows: Any, count: int, vector: Array) -> Array:
    start = jnp.asarray(np.broadcast_to(approx.start(model), (count, *np.shape(approx.start(model)))))
    return jax.vmap(lambda row, state: approx.find_mode(model, vector, row, state))(rows, start)


def _look_at(approx: Approximation, model: RowModel, rows: Any, count: int, vector: Array) -> dict[str, Any]:
    """All that an approximation says of the rows, and differences of it along one direction of the parameters."""
    way = _direction(vector)

    def along(at: Array, row: Row, state: Array) -> tuple[Any, Any]:
        return jax.jvp(lambda v: approx.evidence(model, v, row, state), (at,), (way,))

    @jax.jit
    def there(at: Array) -> tuple[Any, Any, Any]:
        states = _states(approx, model, rows, count, at)
        return states, *jax.vmap(along, (None, 0, 0))(at, rows, states)

    @jax.jit
    def more(at: Array, states: Array) -> dict[str, Any]:
        def of(row: Row, state: Array) -> dict[str, Any]:
            found_again = approx.find_mode(model, at, row, state)
            around = approx.evidence_around(model, at, row, approx.anchor(model, at, row, state))
            points = logsumexp(approx.points(model, at, row, state)[1]) if model.dim > 0 else jnp.zeros(())
            return {
                "again": approx.evidence(model, at, row, found_again),
                "around": around,
                "points": points,
                "bend": jax.jvp(lambda v: along(v, row, state)[1], (at,), (way,))[1],
            }

        return jax.vmap(of)(rows, states)

    states, value, slope = there(vector)
    found = {name: np.asarray(part) for name, part in more(vector, states).items()}
    up, down = there(vector + STEP * way), there(vector - STEP * way)
    by_steps = [np.asarray(up[i] - down[i]) / (2.0 * STEP) for i in (1, 2)]
    off = [np.abs(said - seen) / (1.0 + np.abs(seen)) for said, seen in zip((slope, found["bend"]), by_steps)]
    said = {"slope": off[0], "curvature": off[1], "evidence": np.asarray(value)}
    return {**found, **said, "states": states, "there": there}


def _direction(vector: Array) -> Array:
    """A direction in which all parameters move."""
    way = np.random.default_rng(0).normal(size=np.shape(vector))
    return jnp.asarray(way / np.linalg.norm(way))


def _integrals(model: RowModel, vector: Array, rows: Any, count: int) -> np.ndarray:
    """The log integrals of rows' joint densities over their local values, by brute force."""
    joint = lambda u, row, z: model.log_joint(u, model.parameters.natural(vector), row, z)

    @jax.jit
    def modes(row: Row, z: Latent) -> Array:
        return climb(lambda u: joint(u, row, z), jnp.zeros(model.dim), model.dim)

    @jax.jit
    def many(row: Row, z: Latent, mode: Array) -> Array:
        return logsumexp(qmc_points(lambda u: joint(u, row, z), mode, model.dim, MANY)[1])

    heights = jax.jit(jax.vmap(joint, (0, None, None)))
    latents = [None] if model.latents is None else list(np.asarray(model.latents))

    def one(row: Row, z: Latent) -> float:
        mode = modes(row, z)
        if model.dim > 2:
            return float(many(row, z, mode))
        return _on_grid(lambda u: np.asarray(heights(u, row, z)), np.asarray(mode))

    each = [jax.tree.map(lambda column, i=i: column[i], rows) for i in range(count)]
    return np.array([np.logaddexp.reduce([one(row, z) for z in latents]) for row in each])


def _on_grid(heights: Callable[[np.ndarray], np.ndarray], mode: np.ndarray) -> float:
    """The trapezoid rule: far out at first, in a coordinate that grows fast, then where the mass is."""
    dim = len(mode)
    count = LINE if dim == 1 else SQUARE
    low, high, total = np.full(dim, -25.0), np.full(dim, 25.0), -np.inf
    for _ in range(4):
        lines = [np.linspace(a, b, count) for a, b in zip(low, high)]
        t = np.stack(np.meshgrid(*lines, indexing="ij"), axis=-1).reshape(-1, dim)
        found = heights(mode + np.sinh(t)) + np.log(np.cosh(t)).sum(axis=1)
        found = np.where(np.isfinite(found), found, -np.inf)
        step = (high - low) / (count - 1)
        total = float(np.logaddexp.reduce(found) + np.log(step).sum())
        kept = t[found > found.max() - DEEP]
        low, high = kept.min(axis=0) - step, kept.max(axis=0) + step
    return total


def _em_loss(seen: Mapping[str, Any], approx: Approximation, model: RowModel, rows: Any, vector: Array) -> float:
    """By how much the evidence rises less than EM's objective does, after a step that raises the latter."""

    way = _direction(vector)

    @jax.jit
    def expected(at: Array) -> tuple[Any, Any]:
        one = lambda v, row, state: approx.expected(model, v, vector, row, state)
        total = lambda v: jnp.sum(jax.vmap(one, (None, 0, 0))(v, rows, seen["states"]))
        return jax.jvp(total, (at,), (way,))

    here, slope = expected(vector)
    length = 0.5 * float(jnp.sign(slope))
    for _ in range(12):
        ahead = vector + length * way
        gain = float(expected(ahead)[0] - here)
        if gain > 0:
            return max(gain - float(np.sum(seen["there"](ahead)[1]) - np.sum(seen["evidence"])), 0.0)
        length *= 0.25
    return 0.0


ADVICE = {
    "evidence": "compare evidence() with the integral of exp(model.log_joint(u, …)) over u, or state a larger tolerance",
    "slope": "evidence() must be differentiable in vector, with everything that moves along with it",
    "curvature": "the second derivative of evidence() must be right too: points that follow the mode need its derivatives",
    "mode found again": "find_mode() from a mode must stay there; does the search stop too early?",
    "evidence around": "evidence_around() at the parameters of its anchor must give evidence()",
    "points": "log weights of points() must add up to one: take off their logsumexp",
    "EM": "raising expected() must raise the evidence by as much: is the posterior in it held at `at`?",
}


def _judge_gap(approx: Approximation, check: str, gap: np.ndarray, allowed: float) -> None:
    bad = ~(gap <= allowed)
    if not bad.any():
        return
    row = int(np.flatnonzero(bad)[0])
    where = "" if check == "EM" else f" in row {row}"
    side = ", above the true one" if check == "evidence" and approx.is_bound else ""
    raise ModelError(
        f"{approx!r} fails the check “{check}”{where}, by {gap[row]:.2g}{side} (allowed {allowed:.2g}): {ADVICE[check]}."
    )
