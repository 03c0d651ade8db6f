r"""What is the evidence of a row whose prior has a kink, or tails that its likelihood's peak may sit far out in?

Under a Laplace or Student-t prior a row's posterior can have two centres, the prior's and the likelihood's, with a kink at
the first. One rule around a mode would miss one of them, so the line is cut into four half-lines: outwards from both
centres, and from both to a break between them. On each, Gauss–Legendre points in :math:`x` with
:math:`\beta = c \pm w \sinh x` resolve the centre and go far out. The evidence is not a bound.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from robustly.approx.base import Enumerating
from robustly.approx.climb import MAX_STEPS, climb, look
from robustly.approx.grid import Density, find_half_widths
from robustly.approx.moments import Finish, Moments
from robustly.errors import ModelError
from robustly.model.parameters import Theta
from robustly.model.row import Latent, Row, RowModel

FEWEST_NODES = 40
# How loosely the likelihood's peak is tied to where it is guessed to be, or, unguessed, to the prior's (in its scales).
LOOSE, VERY_LOOSE = 3.0, 30.0
# Squared distance, in units of the curvature, from which points around a place do as well as around the peak.
CLOSE = 1e-2
# A place so much lower than another (in log units) needs no points of its own, even in a heavy tail.
WITHOUT_MASS = 20.0


@dataclass(frozen=True)
class TwoCentre(Enumerating):
    """Gauss–Legendre points on four half-lines around the prior's centre and the likelihood's; `nodes` on each.

    A row's state is the place of the likelihood's peak, where it was guessed to be, and room for neither to be known.
    """

    nodes: int = FEWEST_NODES

    def check(self, model: RowModel) -> None:
        if model.dim != 1 or model.peak is None or model.center is not None or model.latents is not None:
            raise ModelError(
                "TwoCentre() is for one local number a row, under a prior whose peak the row model states (peak=). "
                "Use Quadrature(21)."
            )

    def describe(self) -> str:
        return f"quadrature with {4 * self.nodes} points a row"

    def finer(self) -> TwoCentre:
        return TwoCentre(2 * self.nodes)

    def start(self, model: RowModel) -> np.ndarray:
        return np.zeros(2)

    def start_at(self, model: RowModel, rows: Any, numbers: Sequence[Array], count: int) -> np.ndarray:
        if model.guess is None:
            return super().start_at(model, rows, numbers, count)
        guess = np.broadcast_to(model.guess(rows, None)[0], count)
        return np.stack([guess, guess], axis=-1).astype(np.float32)

    def has_moments(self, model: RowModel) -> bool:
        return True

    def has_coarse_rule(self, model: RowModel) -> bool:
        return False

    def find_mode(self, model: RowModel, vector: Array, row: Row, state: Array) -> Array:
        theta = model.parameters.natural(vector)
        assert model.peak is not None
        peak = climb(self._likelihood(model, theta, row, state), state[:1], 1)[0]
        drawn = drawn_back(lambda u: model.log_joint(u, theta, row), model.peak(theta, row)[0], peak)
        return lax.stop_gradient(jnp.stack([drawn, state[1]]))

    def _find_mode(self, model: RowModel, theta: Theta, row: Row, z: Latent, state: Array) -> Array:
        return state

    def _likelihood(self, model: RowModel, theta: Theta, row: Row, state: Array) -> Density:
        """The likelihood of a local, tied loosely so that it has a peak even where the row says little."""
        assert model.peak is not None
        loc, scale = model.peak(theta, row)
        near, wide = (state[1], LOOSE) if model.guess is not None else (loc, VERY_LOOSE * scale)
        return lambda u: model.log_likelihood(u[0], theta, row) - 0.5 * ((u[0] - near) / wide) ** 2

    def _points_of(self, model: RowModel, theta: Theta, row: Row, state: Array) -> tuple[Any, Any]:
        assert model.peak is not None
        loc, scale = model.peak(theta, row)
        joint = lambda u: model.log_joint(u, theta, row)
        curves = [-look(f, state[:1])[2][0, 0] for f in (joint, self._likelihood(model, theta, row, state))]
        width = 1.0 / jnp.sqrt(jnp.maximum(jnp.maximum(*curves), 1e-300))
        return lax.stop_gradient(two_centre_points(joint, loc, scale, state[0], width, self.nodes))

    def _evidence(self, model: RowModel, vector: Array, row: Row, z: Latent, state: Array) -> Array:
        theta = model.parameters.natural(vector)
        u, log_weight = self._points_of(model, theta, row, state)
        # Points stay where they are, so that derivatives are those of the density at them.
        held = jax.vmap(lambda point: model.log_joint(point[None], lax.stop_gradient(theta), row))(u)
        moved = jax.vmap(lambda point: model.log_joint(point[None], theta, row))(u)
        shift = jnp.where(jnp.isfinite(log_weight), moved - lax.stop_gradient(held), 0.0)
        return jax.scipy.special.logsumexp(log_weight + shift)

    def _expected(self, model: RowModel, vector: Array, at: Array, row: Row, z: Latent, state: Array) -> Array:
        then, theta = model.parameters.natural(at), model.parameters.natural(vector)
        u, log_weight = self._points_of(model, then, row, state)
        share = jax.nn.softmax(log_weight)
        joint = jax.vmap(lambda point: model.log_joint(point[None], theta, row, z, at=then))(u)
        return jnp.sum(jnp.where(share > 0, share * joint, 0.0))

    def _points(self, model: RowModel, theta: Theta, row: Row, z: Latent, state: Array) -> tuple[Any, Any]:
        u, log_weight = self._points_of(model, theta, row, state)
        return u[:, None], log_weight

    def moments(
        self,
        model: RowModel,
        finish: Finish,
        numbers: Sequence[Array],
        row: Row,
        z: Latent,
        state: Array,
        rough: Array | bool,
    ) -> Moments:
        theta = model.parameters.natural(tuple(numbers))
        own, log_weight = self._points_of(model, theta, row, state)
        top = jnp.max(log_weight)
        mass = jnp.exp(log_weight - jnp.where(jnp.isfinite(top), top, 0.0))
        total = jnp.sum(mass)
        value, share = top + jnp.log(total), mass / total

        size = len(numbers)
        unit = lambda k: tuple(jnp.ones(()) if i == k else jnp.zeros(()) for i in range(size))

        def at(point: Array) -> tuple[Any, Any]:
            slope, along = jax.linearize(jax.grad(lambda some: finish(point[None], some)), tuple(numbers))
            return slope, [along(unit(k)) for k in range(size)]

        slopes, curves = jax.vmap(at)(own)
        seen = share > 0
        mean = lambda each: jnp.sum(jnp.where(seen, share * each, 0.0))
        slope = [mean(each) for each in slopes]
        away = [each - middle for each, middle in zip(slopes, slope)]
        below = {(i, j): mean(curves[i][j] + away[i] * away[j]) for i in range(size) for j in range(i + 1)}
        curve = [[below[max(i, j), min(i, j)] for j in range(size)] for i in range(size)]
        if model.kink is not None:
            # The first number is the prior's location. Moving it moves the kink, which bends the evidence by the fall of
            # the slope there, in proportion to the posterior's density.
            assert model.peak is not None
            there = jnp.exp(finish(model.peak(theta, row)[0][None], numbers) - value)
            curve[0][0] = curve[0][0] - model.kink(theta) * there
        return Moments(value, value, jnp.stack(slope), jnp.stack([jnp.stack(line) for line in curve]))


def drawn_back(joint: Density, a: Array, b: Array) -> Array:
    """The likelihood's peak `b`, or, when it holds no mass, where the density peaks between it and the prior's centre `a`.

    A narrow prior draws a row far from both: with 0 events, rate :math:`e^6` and a Laplace prior of scale 1/150 the posterior
    stands at a rate of 150. Newton steps, and halves of what is left where one of them leads out of it.
    """
    side = jnp.sign(b - a)

    def advance(state: Any) -> Any:
        near, far, at, _, steps = state
        _, slope, curve = look(joint, at[None])
        inward = ~(side * slope[0] >= 0.0)
        near, far = jnp.where(inward, near, at), jnp.where(inward, at, far)
        ahead = at - slope[0] / curve[0, 0]
        inside = (curve[0, 0] < 0.0) & (side * (ahead - near) > 0.0) & (side * (far - ahead) > 0.0)
        ahead = jnp.where(inside, ahead, 0.5 * (near + far))
        return near, far, ahead, (ahead - at) ** 2 * jnp.abs(curve[0, 0]), steps + 1

    unfinished = lambda state: (state[3] > CLOSE) & (state[4] < MAX_STEPS)
    found = lax.while_loop(unfinished, advance, (a, b, b, jnp.full_like(b, jnp.inf), 0))[2]
    return jnp.where(joint(found[None]) > joint(b[None]) + WITHOUT_MASS, found, b)


def two_centre_points(
    joint: Density, a: Array, width_a: Array, b: Array, width_b: Array, count: int
) -> tuple[Any, Any]:
    """Points and log weights for a density with a kink or a peak at `a` and a peak near `b`, and perhaps long tails."""
    low, high = _in_order(jnp, a, width_a, b, width_b)
    ends = _outer(joint, *low)[0], _outer(joint, *high)[1]
    points, weight = four_half_lines(jnp, low, high, ends, count)
    heights = jax.vmap(lambda point: joint(point[None]))(points)
    return points, jnp.where(jnp.isfinite(heights), heights, -jnp.inf) + jnp.log(weight)


def two_centres(
    a: np.ndarray, width_a: float, b: np.ndarray, width_b: np.ndarray, left: Any, right: Any, count: int = 32
) -> tuple[np.ndarray, np.ndarray]:
    """Points and weights on [a − left, a + right], dense around `a` and around `b`; shapes (rows, 4 · count)."""
    low, high = _in_order(np, a, width_a, np.clip(b, a - left, a + right), width_b)
    return four_half_lines(np, low, high, (low[0] - (a - left), (a + right) - high[0]), count)


def _in_order(xp: Any, a: Any, width_a: Any, b: Any, width_b: Any) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
    """The lower and the higher centre with their widths, by NumPy or JAX; a wide one close to a narrow one sees that."""
    low, high, first = xp.minimum(a, b), xp.maximum(a, b), a <= b
    wide_low, wide_high = xp.where(first, width_a, width_b), xp.where(first, width_b, width_a)
    nearest = lambda own, other: xp.minimum(own, xp.maximum(other, high - low))
    return (low, nearest(wide_low, wide_high)), (high, nearest(wide_high, wide_low))


def four_half_lines(
    xp: Any, low: tuple[Any, Any], high: tuple[Any, Any], ends: tuple[Any, Any], count: int
) -> tuple[Any, Any]:
    """Points and weights outwards from two centres, as far as the ends, and from both to a break between them."""
    nodes, weights = np.polynomial.legendre.leggauss(count)
    half = 0.5 * (high[0] - low[0])
    points, all_weights = [], []
    for (centre, width), side, length in (
        (low, -1.0, ends[0]),
        (low, 1.0, half),
        (high, -1.0, half),
        (high, 1.0, ends[1]),
    ):
        end = xp.arcsinh(xp.maximum(length, 0.0) / width)[..., None]
        x = 0.5 * end * (nodes + 1.0)
        points.append(centre[..., None] + side * width[..., None] * xp.sinh(x))
        all_weights.append(0.5 * end * weights * width[..., None] * xp.cosh(x))
    return xp.concatenate(points, axis=-1), xp.concatenate(all_weights, axis=-1)


def _outer(joint: Density, centre: Array, width: Array) -> Array:
    """How far the density extends from a centre, counted in the coordinate it is integrated in."""
    # As deep again by half as for other densities: what heavy tails lose at their ends is missing in slopes, not in
    # values, and the two have to agree where the spread says next to nothing.
    stretched = lambda own: (joint(own) + 0.5 * jnp.log1p(((own[0] - centre) / width) ** 2)) / 1.5
    start = jnp.log(6.0 * width)
    return jnp.exp(find_half_widths(stretched, centre[None], jnp.stack([start, start])))
