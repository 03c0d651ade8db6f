r"""What is a row's evidence, and how does it bend? Value and two derivatives in a handful of numbers, one pass.

A row of a generalized linear model sees the coefficients only through its predictor :math:`m`, so its evidence is a
function of :math:`(m, \varphi)`: two or three scalars. Where the row's own value is integrated by points, first and
second derivatives are posterior moments of the joint density's (Louis 1982), so that one look at the points gives all.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy.special import logsumexp

from robustly.approx.climb import TOLERANCE, climb, look
from robustly.approx.grid import ENDS, find_reach, level_points
from robustly.approx.moments import level_moments
from robustly.approx.quadrature import CLOSE, ROUGH
from robustly.fit.passes import one_thread, weighted_quantiles
from robustly.glm.family import Family
from robustly.glm.local import LOG_2PI, Law, LocalDispersion, LocalPredictor

# Entries of a row's state: the mode of its own value, and how far to the left and right of it the density reaches; where
# the response's peak is integrated beside the prior's, its place and the rough predictor it is tied to.
STATE = 3
LOOSE = 3.0
NEWTON_STEPS = 2
HALF_LINE = 40


class Kernel:
    """The compiled passes of one law. Get it from :func:`kernel`, which keeps them."""

    def __init__(self, law: Law, nodes: int) -> None:
        self.law = law
        self.nodes = nodes
        self.compiled: set[int] = set()  # sizes of chunks that `curves` has been through
        self.size = 1 + len(law.names)
        one = self._by_laplace if nodes == 0 else self._by_level if self.can_be_rough else self._by_two_centres
        one = self._closed if law.closed else one
        shared = (0, None, 0, 0)
        self._curves = one_thread(jax.vmap(one, (*shared, None)))
        self.modes = one_thread(jax.vmap(self._mode, shared))
        # For leave-one-out each row has shared numbers of its own.
        self.values = one_thread(jax.vmap(lambda m, phi, row, state: self._value(m, phi, row, state)))
        self.posterior = one_thread(jax.vmap(self._posterior, (0, None, 0, 0, None)))
        if hasattr(law, "shift"):
            self.shifts = one_thread(jax.vmap(lambda m, phi, row: law.shift(row, m, *phi), (0, None, 0)))

    def __reduce__(self) -> Any:
        return kernel, (self.law, self.nodes)

    def curves(self, m: Any, phi: Any, row: Any, state: Any, rough: bool = False) -> tuple[Any, Any, Any, Any]:
        """Every row's evidence, its slopes and curvatures in predictor and shared numbers, and its state.

        Where `rough`, of fewer points, if there are points.
        """
        return self._curves(m, phi, row, state, rough)

    @property
    def can_be_rough(self) -> bool:
        """Whether there are points of which fewer would do for a rough look."""
        return not self.law.closed and self.nodes > 0 and not self._two_centres

    # ------------------------------------------------------------------ one row

    def _closed(self, m: Any, phi: Any, row: Any, state: Any, rough: Any) -> tuple[Any, Any, Any, Any]:
        value, slope, curve = second_order(lambda *args: self.law.evidence(row, *args), (m, *phi))
        return value, jnp.stack(slope), jnp.stack(curve), state

    def _by_level(self, m: Any, phi: Any, row: Any, state: Any, rough: Any) -> tuple[Any, Any, Any, Any]:
        state = self._settle(m, phi, row, state)
        count = jnp.where(rough, min(ROUGH, self.nodes), self.nodes)
        joint = lambda own, s: self.law.joint(own[0], row, *s)
        found = level_moments(joint, (m, *phi), state[:1], state[1:], count, follow=False)
        curve = jnp.stack([found.curve[i, j] for i, j in pairs(self.size)])
        return found.evidence, found.score, curve, state

    def _by_two_centres(self, m: Any, phi: Any, row: Any, state: Any, rough: Any) -> tuple[Any, Any, Any, Any]:
        state = self._settle(m, phi, row, state)
        own, log_weight = self._points(m, phi, row, state, self.nodes)
        top = jnp.max(log_weight)
        mass = jnp.exp(log_weight - jnp.where(jnp.isfinite(top), top, 0.0))
        total = jnp.sum(mass)
        value, share = top + jnp.log(total), mass / total

        def at(point: Any) -> tuple[Any, Any]:
            _, slope, curve = second_order(lambda *args: self.law.joint(point, row, *args), (m, *phi))
            return slope, curve

        slopes, curves = jax.vmap(at)(own)
        seen = share > 0
        mean = lambda each: jnp.sum(jnp.where(seen, share * each, 0.0))
        slope = [mean(each) for each in slopes]
        away = [each - middle for each, middle in zip(slopes, slope)]
        curve = [mean(each + away[i] * away[j]) for each, (i, j) in zip(curves, pairs(self.size))]
        if getattr(self.law, "prior", None) == "laplace":
            # The kink of the density at m bends the evidence by twice its slope, in proportion to the posterior there.
            there = jnp.exp(self.law.joint(m, row, m, *phi) - value)
            curve[0] = curve[0] - 2.0 * jnp.exp(-phi[0]) * there
        return value, jnp.stack(slope), jnp.stack(curve), state

    def _by_laplace(self, m: Any, phi: Any, row: Any, state: Any, rough: Any) -> tuple[Any, Any, Any, Any]:
        state = self._settle(m, phi, row, state)

        def evidence(*args: Any) -> Any:
            joint = lambda own: self.law.joint(own[0], row, *args)
            mode = state[:1]
            # The first Newton step from the mode carries its first derivative, the second its second.
            for _ in range(NEWTON_STEPS):
                _, slope, curve = look(joint, mode)
                mode = mode - slope / curve[0]
            value, _, curve = look(joint, mode)
            return value + 0.5 * LOG_2PI - 0.5 * jnp.log(-curve[0, 0])

        value, slope, curve = second_order(evidence, (m, *phi))
        return value, jnp.stack(slope), jnp.stack(curve), state

    def _value(self, m: Any, phi: Any, row: Any, state: Any) -> Any:
        if self.law.closed:
            return self.law.evidence(row, m, *phi)
        state = self._settle(m, phi, row, state)
        if self.nodes == 0:
            joint = lambda own: self.law.joint(own[0], row, m, *phi)
            value, _, curve = look(joint, state[:1])
            return value + 0.5 * LOG_2PI - 0.5 * jnp.log(-curve[0, 0])
        return logsumexp(self._points(m, phi, row, state, self.nodes)[1])

    def _mode(self, m: Any, phi: Any, row: Any, state: Any) -> tuple[Any, Any]:
        """The row's own value at its most probable, and the variance that the curvature there suggests."""
        mode = climb(lambda own: self.law.joint(own[0], row, m, *phi), state[:1].astype(m.dtype), 1)
        return mode[0], -1.0 / look(lambda own: self.law.joint(own[0], row, m, *phi), mode)[2][0, 0]

    def _posterior(self, m: Any, phi: Any, row: Any, state: Any, levels: Any) -> tuple[Any, Any, Any]:
        own, log_weight = self._points(m, phi, row, self._settle(m, phi, row, state), 101)
        share = jax.nn.softmax(log_weight)
        mean = share @ own
        return mean, jnp.sqrt(share @ (own - mean) ** 2), weighted_quantiles(own, share, levels)

    # ------------------------------------------------------------------ where to look

    def _settle(self, m: Any, phi: Any, row: Any, state: Any) -> Any:
        """The mode of the row's own value and the reach of its density; for heavy tails, on the response's side."""
        if self.law.closed:
            return state
        state = state.astype(m.dtype)
        joint = self._smooth_joint(m, phi, row, state)
        mode = climb(joint, state[:1], 1, CLOSE if self.can_be_rough else TOLERANCE)
        if self.nodes == 0 or self._two_centres:
            return lax.stop_gradient(jnp.concatenate([mode, state[1:]]))
        return lax.stop_gradient(jnp.concatenate([mode, find_reach(joint, mode, state[1:])]))

    def _smooth_joint(self, m: Any, phi: Any, row: Any, state: Any) -> Any:
        if not self._two_centres:
            return lambda own: self.law.joint(own[0], row, m, *phi)
        # The response's own peak, tied loosely so that it exists, and lies where the density turns, even where the
        # response says little: to its rough predictor, or for a family that knows none to the centre.
        assert isinstance(self.law, LocalPredictor)
        family, nuisance = self.law.family, self.law.traced_nuisance(phi)
        near, wide = (state[1], LOOSE) if knows_start(family) else (m, 30.0 * jnp.exp(phi[0]))
        return lambda own: family.log_prob(*row, own[0], *nuisance) - 0.5 * ((own[0] - near) / wide) ** 2

    @property
    def _two_centres(self) -> bool:
        return isinstance(self.law, LocalPredictor) and self.law.prior != "normal"

    def _points(self, m: Any, phi: Any, row: Any, state: Any, count: int) -> tuple[Any, Any]:
        joint = lambda own: self.law.joint(own[0], row, m, *phi)
        if not self._two_centres:
            curve = look(joint, state[:1])[2][0, 0]
            own, log_weight = level_points(joint, state[:1], curve, state[1:], count)
            return lax.stop_gradient((own[:, 0], log_weight))
        curve = look(self._smooth_joint(m, phi, row, state), state[:1])[2][0, 0]
        width = 1.0 / jnp.sqrt(jnp.maximum(-curve, 1e-300))
        points = max(HALF_LINE, count)
        return lax.stop_gradient(two_centre_points(joint, m, jnp.exp(phi[0]), state[0], width, points))


def second_order(f: Any, args: tuple[Any, ...]) -> tuple[Any, list[Any], list[Any]]:
    """Value, slopes and curvatures (in the order of :func:`pairs`) of a function of a few scalars."""

    def along(i: int, g: Any) -> Any:
        return lambda *a: jax.jvp(lambda t: g(*a[:i], t, *a[i + 1 :]), (a[i],), (jnp.ones_like(a[i]),))[1]

    slopes = [along(i, f) for i in range(len(args))]
    curve = [along(j, slopes[i])(*args) for i, j in pairs(len(args))]
    return f(*args), [slope(*args) for slope in slopes], curve


def pairs(size: int) -> list[tuple[int, int]]:
    """The entries of a symmetric matrix on and below its diagonal."""
    return [(i, j) for i in range(size) for j in range(i + 1)]


def two_centre_points(joint: Any, a: Any, width_a: Any, b: Any, width_b: Any, count: int) -> tuple[Any, Any]:
    r"""Points for a density with a kink or a peak at `a` and a peak near `b`, and perhaps long tails.

    Four half-lines: outwards from both centres, and from both to a break between them. On each, Gauss–Legendre points
    in :math:`x` with :math:`\eta = c \pm w \sinh x` resolve the centre and reach far.
    """
    low, high = jnp.minimum(a, b), jnp.maximum(a, b)
    width_low, width_high = jnp.where(a <= b, width_a, width_b), jnp.where(a <= b, width_b, width_a)
    gap = high - low
    # A wide centre close to a narrow one has to see what is narrow there.
    width_low, width_high = (
        jnp.minimum(width_low, jnp.maximum(width_high, gap)),
        jnp.minimum(width_high, jnp.maximum(width_low, gap)),
    )
    cut = 0.5 * gap
    out_low = _outer(joint, low, width_low)[0]
    out_high = _outer(joint, high, width_high)[1]
    own, weight = zip(
        _half_line(low, width_low, -1.0, out_low, count),
        _half_line(low, width_low, 1.0, cut, count),
        _half_line(high, width_high, -1.0, gap - cut, count),
        _half_line(high, width_high, 1.0, out_high, count),
    )
    points = jnp.concatenate(own)
    heights = jax.vmap(lambda point: joint(point[None]))(points)
    return points, jnp.where(jnp.isfinite(heights), heights, -jnp.inf) + jnp.concatenate(weight)


def _outer(joint: Any, centre: Any, width: Any) -> Any:
    """How far the density reaches from a centre, counted in the coordinate it is integrated in."""
    # As deep again by half as for other densities: what heavy tails lose at their ends is missing in slopes, not in
    # values, and the two have to agree where the spread says next to nothing.
    stretched = lambda own: (joint(own) + 0.5 * jnp.log1p(((own[0] - centre) / width) ** 2)) / 1.5
    start = jnp.log(6.0 * width)
    return jnp.exp(find_reach(stretched, centre[None], jnp.stack([start, start])))


def _half_line(centre: Any, width: Any, side: float, length: Any, count: int) -> tuple[Any, Any]:
    nodes, weights = np.polynomial.legendre.leggauss(count)
    end = jnp.arcsinh(length / width)
    x = 0.5 * end * (jnp.asarray(nodes) + 1.0)
    log_weight = jnp.log(0.5 * end * jnp.asarray(weights) * width) + jnp.log(jnp.cosh(x))
    return centre + side * width * jnp.sinh(x), log_weight


@lru_cache(maxsize=64)
def kernel(law: Law, nodes: int) -> Kernel:
    """The compiled passes of this law, integrated with so many points a row; 0 is Laplace's approximation."""
    return Kernel(law, nodes if not law.closed else 0)


def start_state(
    law: Law, y: np.ndarray, trials: np.ndarray, phi: np.ndarray, centre: np.ndarray | None = None
) -> np.ndarray:
    """The state of every row before the first pass; nearer to what it will be if the prior's `centre` is given."""
    # A warm start needs no more digits, and this is the one thing kept by row from pass to pass.
    state = np.full((len(y), 0 if law.closed else STATE), np.log(6.0), dtype=np.float32)
    if law.closed:
        return state
    start = phi[1] if isinstance(law, LocalDispersion) else law.family.start(y, trials)
    state[:, 0] = start
    if isinstance(law, LocalPredictor) and law.prior != "normal":
        state[:, 1] = start
    turn = None
    if centre is not None and isinstance(law, LocalPredictor) and law.prior == "normal":
        turn = law.family.turn(y, trials, [float(v) for v in np.exp(phi[1:])])
    if turn is not None:
        # As if the response were normal on the predictor's scale.
        told, believed = turn[1] ** -2.0, np.exp(-2.0 * phi[0])
        state[:, 0] = (told * turn[0] + believed * centre) / (told + believed)
        state[:, 1:] = (np.log(ENDS) - 0.5 * np.log(told + believed))[:, None]
    return state


def knows_start(family: Family) -> bool:
    """Whether a family says of a response alone where its predictor lies."""
    return type(family).start is not Family.start
