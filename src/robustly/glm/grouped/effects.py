r"""How are groups' effects spread? Standardised effects :math:`v_j` with :math:`b_j = L v_j`: normal, Student t or Laplace.

The factor :math:`L` moves rows' predictors, not the law of :math:`v_j`, so nothing is singular where a standard deviation is
zero or a correlation one. What is left to a law is its density, numbers of its own, and at which points it is integrated.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np

from robustly.errors import ModelError, names
from robustly.glm.predictive import two_centres
from robustly.glm.priors import LOG_2PI

Array = np.ndarray
Joint = Callable[[Array], Array]

# Points of a dimension, by how many dimensions there are.
NODES = {1: 25, 2: 11, 3: 7}
COARSE = {1: 7, 2: 5, 3: 3}
# Points of each of the four half-lines around the two centres of a heavy-tailed law.
HALF_LINE = 24
# Rungs of a ladder on which the ends of the mass are looked for, and how many nats below the top there is none.
RUNGS, NOTHING = 16, 40.0


class EffectLaw(ABC):
    """The law of standardised effects."""

    name: ClassVar[str]
    names: ClassVar[tuple[str, ...]] = ()
    """Positive numbers of its own; the vector holds their logarithms."""
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

    def points(
        self, mode: Array, root: Array, psi: Array, joint: Joint, coarse: bool, finer: int = 1
    ) -> tuple[Array, Array]:
        """Points (groups, k, q) and log weights (groups, k) of a rule around the groups' modes with their widths.

        `joint` gives the log density of the groups' rows and effects at any effects (groups, k, q).
        """
        nodes, log_weight = hermite(mode.shape[1], finer * (COARSE if coarse else NODES)[mode.shape[1]])
        v = mode[:, None, :] + np.einsum("gab,kb->gka", root, nodes)
        volume = np.log(np.abs(np.linalg.det(root)))
        return v, log_weight + volume[:, None]


@lru_cache(maxsize=32)
def hermite(dim: int, count: int) -> tuple[Array, Array]:
    """Gauss–Hermite points (k, dim) and the log weights with which plain function values are added up."""
    t, weight = np.polynomial.hermite_e.hermegauss(count)
    grid = np.stack(np.meshgrid(*[t] * dim, indexing="ij"), axis=-1).reshape(-1, dim)
    one = np.log(weight) + 0.5 * t**2
    return grid, np.sum(np.meshgrid(*[one] * dim, indexing="ij"), axis=0).reshape(-1)


@dataclass(frozen=True)
class NormalEffects(EffectLaw):
    """Normal effects, as in lme4."""

    name: ClassVar[str] = "normal"

    def log_density(self, v: Array, psi: Array) -> tuple[Array, Array, Array]:
        value = -0.5 * np.square(v).sum(axis=-1) - 0.5 * v.shape[-1] * LOG_2PI
        return value, np.zeros((*value.shape, 0)), np.zeros((*value.shape, 0, 0))

    def pull(self, v: Array, psi: Array) -> tuple[Array, Array]:
        return -v, np.broadcast_to(np.eye(v.shape[-1]), (*v.shape, v.shape[-1]))

    def sd_factor(self, psi: Array) -> float:
        return 1.0

    def draw(self, rng: np.random.Generator, shape: tuple[int, ...], psi: Array) -> Array:
        return rng.standard_normal(shape)


class HeavyEffects(EffectLaw):
    """Laws with a peak and long tails: integrated around the peak and around what the group's rows say, one dimension."""

    has_two_centres: ClassVar[bool] = True

    @abstractmethod
    def furthest(self, psi: Array) -> float:
        """Beyond this distance from its peak the law has no mass to speak of."""

    def points(
        self, mode: Array, root: Array, psi: Array, joint: Joint, coarse: bool, finer: int = 1
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

    def log_density(self, v: Array, psi: Array) -> tuple[Array, Array, Array]:
        from scipy.special import digamma, gammaln, polygamma

        dof, dim = float(np.exp(psi[0])), v.shape[-1]
        square = np.square(v).sum(axis=-1)
        upper, lower = 0.5 * (dof + dim), 0.5 * dof
        value = gammaln(upper) - gammaln(lower) - 0.5 * dim * np.log(dof * np.pi) - upper * np.log1p(square / dof)
        tail = square / (dof * (dof + square))
        first = 0.5 * (digamma(upper) - digamma(lower)) - 0.5 * dim / dof - 0.5 * np.log1p(square / dof) + upper * tail
        second = 0.25 * (polygamma(1, upper) - polygamma(1, lower)) + 0.5 * dim / dof**2
        second = second + tail - upper * tail * (2.0 * dof + square) / (dof * (dof + square))
        return value, (dof * first)[..., None], (dof**2 * second + dof * first)[..., None, None]

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


EFFECT_LAWS: dict[str, EffectLaw] = {law.name: law for law in (NormalEffects(), StudentEffects(), LaplaceEffects())}


def effect_law(name: str) -> EffectLaw:
    """A law of effects by its name."""
    if name not in EFFECT_LAWS:
        raise ModelError(f"group_law takes {names(EFFECT_LAWS)}; got {name!r}.")
    return EFFECT_LAWS[name]
