r"""How are groups' effects spread? Standardised effects :math:`v_j` with :math:`b_j = L v_j`: normal, Student t or Laplace.

The factor :math:`L` moves rows' predictors, not the law of :math:`v_j`, so nothing is singular where a standard deviation is
zero or a correlation one. What is left to a law is its density, numbers of its own, and at which points it is integrated.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from robustly.approx.grid import hermite
from robustly.approx.two_centre import two_centres
from robustly.errors import ModelError, names
from robustly.glm.priors import LOG_2PI

Array = np.ndarray
Joint = Callable[[Array], Array]
Climb = Callable[[Array, Array], tuple[Array, Array]]

# Points of a dimension, by how many dimensions there are.
NODES = {1: 25, 2: 11, 3: 7}
COARSE = {1: 7, 2: 5, 3: 3}
# Groups whose rows leave effects this share of their spread, and predictors a standard deviation of less than these, have posteriors
# close to normal: so many points do. In one dimension they are off by some 1e-11.
CERTAIN = 0.3
FEW = {1: ((0.06, 11), (0.15, 15), (0.2, 19)), 2: ((0.12, 7),), 3: ((0.12, 5),)}
# Points of each of the four half-lines around the two centres of a heavy-tailed law.
HALF_LINE = 24
# Rungs of a ladder on which the ends of the mass are looked for, and how many nats below the top there is none.
RUNGS, NOTHING = 16, 40.0
FINE = 400
# Of a gamma precision: what of its law is below the rungs on which its range is looked for, how many nats below the top the
# range ends, and points on each side of the top.
RARE_BELOW = np.array([1e-12, 1e-10, 1e-8, 1e-6, 1e-5, 1e-4, 1e-3, 0.01, 0.05, 0.2, 0.5])
DEPTH, MIXED = 18.0, 16


def hermite_around(mode: Array, root: Array, count: int) -> tuple[Array, Array]:
    """A product Gauss–Hermite rule around modes (groups, q), for what is added up as it is: points and log weights."""
    dim = mode.shape[1]
    nodes, log_weight = hermite(count, dim)
    # The rule is one for a normal; what is added up here are plain values.
    log_weight = log_weight + 0.5 * np.square(nodes).sum(axis=1) + 0.5 * dim * LOG_2PI
    v = mode[:, None, :] + np.einsum("gab,kb->gka", root, nodes)
    return v, log_weight + np.log(np.abs(np.linalg.det(root)))[:, None]


def hermite_where(mode: Array, root: Array, sd: Array, coarse: bool, finer: int) -> tuple[Array, Array]:
    """The same with fewer points in groups of certain effects: each by itself, whichever others are in its chunk."""
    dim = mode.shape[1]
    if coarse or finer > 1:
        return hermite_around(mode, root, finer * (COARSE if coarse else NODES)[dim])
    counts = np.full(len(mode), NODES[dim])
    certain = np.max(np.abs(root), axis=(1, 2)) < CERTAIN
    for below, count in reversed(FEW[dim]):
        counts[certain & (sd < below)] = count
    most = counts.max() ** dim
    # Points beyond a group's own count for nothing.
    v, log_weight = np.repeat(mode[:, None, :], most, axis=1), np.full((len(mode), most), -np.inf)
    for count in np.unique(counts):
        some = np.flatnonzero(counts == count)
        v[some, : count**dim], log_weight[some, : count**dim] = hermite_around(mode[some], root[some], int(count))
    return v, log_weight


class EffectLaw(ABC):
    """The law of standardised effects."""

    name: ClassVar[str]
    names: ClassVar[tuple[str, ...]] = ()
    """Positive numbers of its own; the vector holds their logarithms."""
    has_scale: ClassVar[bool] = True
    """Whether the factor L is fitted; where the law's own numbers say how far effects are spread, it is one."""
    has_two_centres: ClassVar[bool] = False
    """Whether the group's rows may be far from a peak of the law that its tails do not follow."""

    @abstractmethod
    def log_density(self, v: Array, psi: Array) -> tuple[Array, Array, Array]:
        """Of effects (…, q): the log density, its slopes (…, r) and its curvatures (…, r, r) in the logs of the law's numbers."""

    @abstractmethod
    def pull(self, v: Array, psi: Array) -> tuple[Array, Array]:
        """Slope (…, q) of the log density in the effects, and minus its curvature (…, q, q) or more."""

    @abstractmethod
    def sd_factor(self, psi: Array) -> float:
        """The standard deviation of one standardised effect; infinite where there is none."""

    @abstractmethod
    def draw(self, rng: np.random.Generator, shape: tuple[int, ...], psi: Array) -> Array: ...

    def spread_points(self, psi: Array) -> tuple[Array, Array]:
        """Points of one standardised effect and their shares under the law itself: a fine grid, unless a law knows better."""
        x = np.linspace(-1.0, 1.0, FINE + 1)
        far = float(np.arcsinh(self.furthest(psi)))
        v = np.sinh(far * x)
        share = np.exp(self.log_density(v[:, None], psi)[0]) * np.cosh(far * x)
        return v, share / share.sum()

    @abstractmethod
    def furthest(self, psi: Array) -> float:
        """Beyond this distance from its centre the law has no mass to speak of."""

    def points(
        self, mode: Array, root: Array, sd: Array, psi: Array, joint: Joint, climb: Climb, coarse: bool, finer: int = 1
    ) -> tuple[Array, Array]:
        """Points (groups, k, q) and log weights (groups, k) of a rule around the groups' modes with their widths.

        `sd` is that of the rows' predictors in each group, beside the scale of the responses where there is one.
        `joint` gives the log density of the groups' rows and effects at any effects (groups, k, q); `climb` modes and widths
        under normal effects with given precisions by group, from where to start.
        """
        return hermite_where(mode, root, sd, coarse, finer)


@dataclass(frozen=True)
class NormalEffects(EffectLaw):
    """Normal effects, as in lme4."""

    name: ClassVar[str] = "normal"

    def log_density(self, v: Array, psi: Array) -> tuple[Array, Array, Array]:
        value = -0.5 * np.square(v).sum(axis=-1) - 0.5 * v.shape[-1] * LOG_2PI
        return value, np.zeros((*value.shape, 0)), np.zeros((*value.shape, 0, 0))

    def spread_points(self, psi: Array) -> tuple[Array, Array]:
        nodes, log_weight = hermite(41, 1)
        return nodes[:, 0], np.exp(log_weight)

    def furthest(self, psi: Array) -> float:
        return 9.0

    def pull(self, v: Array, psi: Array) -> tuple[Array, Array]:
        return -v, np.broadcast_to(np.eye(v.shape[-1]), (*v.shape, v.shape[-1]))

    def sd_factor(self, psi: Array) -> float:
        return 1.0

    def draw(self, rng: np.random.Generator, shape: tuple[int, ...], psi: Array) -> Array:
        return rng.standard_normal(shape)


class HeavyEffects(EffectLaw):
    """Laws with a peak and long tails: integrated around the peak and around what the group's rows say, one dimension."""

    has_two_centres: ClassVar[bool] = True

    def points(
        self, mode: Array, root: Array, sd: Array, psi: Array, joint: Joint, climb: Climb, coarse: bool, finer: int = 1
    ) -> tuple[Array, Array]:
        width, count = np.clip(root[:, 0, 0], 1e-6, 1e3), (HALF_LINE // 2 if coarse else HALF_LINE) * finer
        # Rows may cut the law's tails off like a wall, which a rule of few points does not see from far away.
        ladder = np.sinh(np.linspace(0.0, np.arcsinh(self.furthest(psi)), RUNGS + 1)[1:])
        around = np.concatenate([-ladder[::-1], [0.0], ladder])
        seen = np.concatenate([np.broadcast_to(around, (len(mode), len(around))), mode], axis=1)
        height = joint(seen[..., None])
        high = height[:, :-1] > height.max(axis=1, keepdims=True) - NOTHING
        first, last = np.argmax(high, axis=1), high.shape[1] - 1 - np.argmax(high[:, ::-1], axis=1)
        none = ~high.any(axis=1)
        left = np.where(none, ladder[0], -around[np.maximum(np.where(none, RUNGS, first) - 1, 0)])
        right = np.where(none, ladder[0], around[np.minimum(np.where(none, RUNGS, last) + 1, 2 * RUNGS)])
        beyond = 12.0 * width
        left = np.maximum(np.maximum(left, ladder[0]), beyond - mode[:, 0])
        right = np.maximum(np.maximum(right, ladder[0]), beyond + mode[:, 0])
        v, weight = two_centres(np.zeros(len(mode)), 1.0, mode[:, 0], width, left, right, count)
        return v[..., None], np.log(weight)


@dataclass(frozen=True)
class StudentEffects(HeavyEffects):
    """Effects with Student's t: groups far out have less pull on everything else."""

    name: ClassVar[str] = "student_t"
    names: ClassVar[tuple[str, ...]] = ("dof",)

    def furthest(self, psi: Array) -> float:
        return float(np.exp(min(30.0 * np.exp(-psi[0]) + 2.0, 16.0)))

    def points(
        self, mode: Array, root: Array, sd: Array, psi: Array, joint: Joint, climb: Climb, coarse: bool, finer: int = 1
    ) -> tuple[Array, Array]:
        """In more dimensions effects are normal given a precision of the group's, gamma distributed, which is integrated too."""
        dim, dof = mode.shape[1], float(np.exp(psi[0]))
        if dim == 1:
            return super().points(mode, root, sd, psi, joint, climb, coarse, finer)
        from scipy.stats import gamma

        law = gamma(0.5 * dof, scale=2.0 / dof)
        normal = lambda v, t: 0.5 * dim * (t - LOG_2PI) - 0.5 * np.exp(t) * np.square(v).sum(axis=-1)
        # The integral over log precisions t: how much of it a group has where, by Laplace's approximation inside.
        ladder = np.log(np.clip(law.ppf(np.concatenate([RARE_BELOW, 1.0 - RARE_BELOW[::-1]])), 1e-8, None))
        height, here = np.empty((len(mode), len(ladder))), np.zeros_like(mode)
        for place in reversed(range(len(ladder))):
            t = ladder[place]
            here, width = climb(np.full(len(mode), np.exp(t)), here)
            rows = joint(here[:, None])[:, 0] - self.log_density(here, psi)[0]
            height[:, place] = rows + normal(here, t) + np.log(np.abs(np.linalg.det(width))) + law.logpdf(np.exp(t)) + t
        best = np.argmax(height, axis=1)
        high = height > height.max(axis=1, keepdims=True) - DEPTH
        low = ladder[np.maximum(np.argmax(high, axis=1) - 1, 0)]
        top = ladder[np.minimum(len(ladder) - np.argmax(high[:, ::-1], axis=1), len(ladder) - 1)]
        middle = np.clip(ladder[best], low + 1e-3 * (top - low), top - 1e-3 * (top - low))
        node, share = np.polynomial.legendre.leggauss(finer * (3 * MIXED // 4 if coarse else MIXED))
        sides = [(middle, top - middle), (middle, low - middle)]
        v, log_weight = [], []
        for start, length in sides:
            here = mode
            for x, part in zip(0.5 * (node + 1.0), 0.5 * share):
                t = (start + x * length)[:, None]
                here, width = climb(np.exp(t[:, 0]), here)
                some, weight = hermite_where(here, width, sd, coarse, finer)
                given = normal(some, t) + law.logpdf(np.exp(t)) + t + np.log(part * np.abs(length))[:, None]
                v.append(some)
                log_weight.append(weight + given - self.log_density(some, psi)[0])
        return np.concatenate(v, axis=1), np.concatenate(log_weight, axis=1)

    def log_density(self, v: Array, psi: Array) -> tuple[Array, Array, Array]:
        value, slope, curve = student_by_square(np.square(v).sum(axis=-1), v.shape[-1], float(np.exp(psi[0])))
        return value, slope[..., None], curve[..., None, None]

    def pull(self, v: Array, psi: Array) -> tuple[Array, Array]:
        dof, dim = float(np.exp(psi[0])), v.shape[-1]
        weight = (dof + dim) / (dof + np.square(v).sum(axis=-1))
        return -weight[..., None] * v, weight[..., None, None] * np.eye(dim)

    def sd_factor(self, psi: Array) -> float:
        dof = float(np.exp(psi[0]))
        return float(np.sqrt(dof / (dof - 2.0))) if dof > 2.0 else np.inf

    def draw(self, rng: np.random.Generator, shape: tuple[int, ...], psi: Array) -> Array:
        scale = np.sqrt(rng.chisquare(np.exp(psi[0]), (*shape[:-1], 1)) / np.exp(psi[0]))
        return rng.standard_normal(shape) / scale


@dataclass(frozen=True)
class PrecisionEffects(StudentEffects):
    """Every group has a precision of its own, of its effects and of its rows' noise: normal responses only, in closed form."""

    name: ClassVar[str] = "precision"


@dataclass(frozen=True)
class LaplaceEffects(HeavyEffects):
    """Effects with Laplace's double exponential: most groups close to the centre, some far."""

    name: ClassVar[str] = "laplace"

    def furthest(self, psi: Array) -> float:
        return 45.0

    def log_density(self, v: Array, psi: Array) -> tuple[Array, Array, Array]:
        value = -np.abs(v).sum(axis=-1) - v.shape[-1] * np.log(2.0)
        return value, np.zeros((*value.shape, 0)), np.zeros((*value.shape, 0, 0))

    def pull(self, v: Array, psi: Array) -> tuple[Array, Array]:
        weight = 1.0 / np.maximum(np.abs(v), 0.1)
        return -weight * v, weight[..., None] * np.eye(v.shape[-1])

    def sd_factor(self, psi: Array) -> float:
        return float(np.sqrt(2.0))

    def draw(self, rng: np.random.Generator, shape: tuple[int, ...], psi: Array) -> Array:
        return rng.laplace(size=shape)


@dataclass(frozen=True)
class GammaEffects(EffectLaw):
    """Groups of counts whose rates are multiplied by a gamma of mean one; the effect is its logarithm. Poisson counts only."""

    name: ClassVar[str] = "gamma"
    names: ClassVar[tuple[str, ...]] = ("shape",)
    has_scale: ClassVar[bool] = False

    def log_density(self, v: Array, psi: Array) -> tuple[Array, Array, Array]:
        from scipy.special import digamma, gammaln, polygamma

        shape, own = float(np.exp(psi[0])), v[..., 0]
        power = np.exp(np.minimum(own, 700.0))
        value = shape * psi[0] - gammaln(shape) + shape * (own - power)
        first = psi[0] + 1.0 - digamma(shape) + own - power
        second = shape**2 * (1.0 / shape - polygamma(1, shape)) + shape * first
        return value, (shape * first)[..., None], second[..., None, None]

    def pull(self, v: Array, psi: Array) -> tuple[Array, Array]:
        shape = float(np.exp(psi[0]))
        power = shape * np.exp(np.minimum(v, 700.0))
        return shape - power, power[..., None]

    def furthest(self, psi: Array) -> float:
        return 40.0 / min(float(np.exp(psi[0])), 1.0) + 5.0

    def sd_factor(self, psi: Array) -> float:
        """Of the logarithm of the multiplier."""
        from scipy.special import polygamma

        return float(np.sqrt(polygamma(1, np.exp(psi[0]))))

    def draw(self, rng: np.random.Generator, shape: tuple[int, ...], psi: Array) -> Array:
        a = float(np.exp(psi[0]))
        return np.log(np.maximum(rng.gamma(a, 1.0 / a, shape), 1e-300))


def student_by_square(square: Array, dim: Any, dof: float) -> tuple[Array, Array, Array]:
    """The log density of a multivariate Student t at a squared distance, with two derivatives in the log of its dof."""
    from scipy.special import digamma, gammaln, polygamma

    upper, lower = 0.5 * (dof + dim), 0.5 * dof
    value = gammaln(upper) - gammaln(lower) - 0.5 * dim * np.log(dof * np.pi) - upper * np.log1p(square / dof)
    tail = square / (dof * (dof + square))
    first = 0.5 * (digamma(upper) - digamma(lower)) - 0.5 * dim / dof - 0.5 * np.log1p(square / dof) + upper * tail
    second = 0.25 * (polygamma(1, upper) - polygamma(1, lower)) + 0.5 * dim / dof**2
    second = second + tail - upper * tail * (2.0 * dof + square) / (dof * (dof + square))
    return value, dof * first, dof**2 * second + dof * first


EFFECT_LAWS: dict[str, EffectLaw] = {
    law.name: law for law in (NormalEffects(), StudentEffects(), LaplaceEffects(), PrecisionEffects(), GammaEffects())
}


def effect_law(name: str) -> EffectLaw:
    """A law of effects by its name."""
    if name not in EFFECT_LAWS:
        raise ModelError(f"group_law takes {names(EFFECT_LAWS)}; got {name!r}.")
    return EFFECT_LAWS[name]
