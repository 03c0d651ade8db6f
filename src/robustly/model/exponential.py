r"""Which exponential families can the prior of a local belong to? Statistics, natural parameter and normaliser of each.

A family writes its priors as :math:`h(\beta)\exp\{\eta^\top T(\beta) - A(\eta)\}`. A constant factor may stand in h or
in A: only differences of A are ever used.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax import Array
from jax.scipy.special import gammaln
from numpyro.distributions import Distribution

from robustly.model import small_cholesky


class PriorFamily(ABC):
    r"""An exponential family of priors: :math:`h(\beta)\exp\{\eta^\top T(\beta) - A(\eta)\}`."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape

    @abstractmethod
    def statistics(self, value: Array) -> Array: ...

    @abstractmethod
    def natural(self, prior: Distribution) -> Array: ...

    @abstractmethod
    def log_normalizer(self, eta: Array) -> Array: ...

    @abstractmethod
    def is_proper(self, eta: Array) -> Array: ...

    @abstractmethod
    def marginals(self, eta: np.ndarray) -> Any:
        """Each number's own law, as scipy states it, at natural parameters by row: (rows, numbers)."""

    @abstractmethod
    def probes(self, rng: np.random.Generator, count: int) -> np.ndarray:
        """Values at which something is tried, for a prior of unit size."""

    def centre(self, prior: Distribution) -> Array | None:
        """Where values of this prior lie, if the family holds at any other origin, too; counted from there they keep their digits."""
        return None

    def moved(self, prior: Distribution, by: Array) -> Distribution:
        """The prior of values counted from `by`."""
        return prior

    def unit(self, prior: Distribution) -> Array:
        """The size of each entry under this prior; one where the support sets the size."""
        return jnp.ones(self.shape)

    def unit_near(self, unit: Array, coefficients: Array) -> Array:
        """The size of each entry given a row with these coefficients in (1, T), roughly; `unit` itself where rows do not move it far."""
        return unit

    def rescaled(self, coefficients: Array, unit: Array) -> Array:
        """Coefficients in (1, T(β)) from those in (1, T(β / unit))."""
        return coefficients

    def _two(self, first: Array, second: Array) -> Array:
        """Two statistics for each entry of a vector of independent locals, flattened."""
        return jnp.concatenate([jnp.reshape(jnp.broadcast_to(part, self.shape), -1) for part in (first, second)])

    def _halves(self, eta: Array) -> tuple[Any, Any]:
        return eta[: eta.shape[0] // 2], eta[eta.shape[0] // 2 :]


class NormalFamily(PriorFamily):
    def statistics(self, value: Array) -> Array:
        return self._two(value, value**2)

    def natural(self, prior: Distribution) -> Array:
        precision = prior.scale**-2.0
        return self._two(prior.loc * precision, -0.5 * precision)

    def marginals(self, eta: np.ndarray) -> Any:
        from scipy import stats

        first, second = self._halves(eta.T)
        return stats.norm((-0.5 * first / second).T, ((-2.0 * second) ** -0.5).T)

    def log_normalizer(self, eta: Array) -> Array:
        first, second = self._halves(eta)
        return jnp.sum(-0.25 * first**2 / second - 0.5 * jnp.log(-2.0 * second))

    def is_proper(self, eta: Array) -> Array:
        return jnp.all(self._halves(eta)[1] < 0)

    def probes(self, rng: np.random.Generator, count: int) -> np.ndarray:
        return rng.normal(size=(count, *self.shape))

    def centre(self, prior: Distribution) -> Array:
        return jnp.broadcast_to(prior.loc, self.shape)

    def moved(self, prior: Distribution, by: Array) -> Distribution:
        return dist.Normal(prior.loc - by, prior.scale)

    def unit(self, prior: Distribution) -> Array:
        return _sized(jnp.hypot(prior.loc, prior.scale), self.shape)

    def rescaled(self, coefficients: Array, unit: Array) -> Array:
        first, second = self._halves(coefficients[1:])
        flat = jnp.reshape(unit, -1)
        return jnp.concatenate([coefficients[:1], first / flat, second / flat**2])


class GammaFamily(PriorFamily):
    def statistics(self, value: Array) -> Array:
        return self._two(jnp.log(value), value)

    def natural(self, prior: Distribution) -> Array:
        return self._two(prior.concentration - 1.0, -prior.rate)

    def marginals(self, eta: np.ndarray) -> Any:
        from scipy import stats

        shape, rate = self._halves(eta.T)
        return stats.gamma(shape.T + 1.0, scale=-1.0 / rate.T)

    def log_normalizer(self, eta: Array) -> Array:
        shape, rate = self._halves(eta)
        return jnp.sum(gammaln(shape + 1.0) - (shape + 1.0) * jnp.log(-rate))

    def is_proper(self, eta: Array) -> Array:
        shape, rate = self._halves(eta)
        return jnp.all((shape > -1) & (rate < 0))

    def probes(self, rng: np.random.Generator, count: int) -> np.ndarray:
        return np.exp(rng.uniform(-1.5, 1.5, size=(count, *self.shape)))

    def unit(self, prior: Distribution) -> Array:
        return _sized(prior.mean, self.shape)

    def rescaled(self, coefficients: Array, unit: Array) -> Array:
        of_log, of_value = self._halves(coefficients[1:])
        flat = jnp.reshape(unit, -1)
        level = coefficients[:1] - jnp.dot(of_log, jnp.log(flat))
        return jnp.concatenate([level, of_log, of_value / flat])

    def unit_near(self, unit: Array, coefficients: Array) -> Array:
        # The posterior's mean under a prior of shape one: (1 + s) / (1 / unit + r).
        shape, rate = (jnp.reshape(half, self.shape) for half in self._halves(coefficients[1:]))
        pull, lift = (jnp.where(jnp.isfinite(part), jnp.maximum(part, 0.0), 0.0) for part in (-rate, shape))
        return unit * (1.0 + lift) / (1.0 + pull * unit)


class InverseGammaFamily(GammaFamily):
    def statistics(self, value: Array) -> Array:
        return self._two(-jnp.log(value), 1.0 / value)

    def natural(self, prior: Distribution) -> Array:
        # In terms of 1/β this is a gamma; the extra log β of the change of variables goes into h.
        return self._two(prior.concentration - 1.0, -prior.rate)

    def marginals(self, eta: np.ndarray) -> Any:
        from scipy import stats

        shape, rate = self._halves(eta.T)
        return stats.invgamma(shape.T + 1.0, scale=-rate.T)

    def unit(self, prior: Distribution) -> Array:
        return _sized(prior.rate / prior.concentration, self.shape)

    def rescaled(self, coefficients: Array, unit: Array) -> Array:
        return super().rescaled(coefficients, 1.0 / unit)

    def unit_near(self, unit: Array, coefficients: Array) -> Array:
        return 1.0 / super().unit_near(1.0 / unit, coefficients)


class ExponentialFamily(GammaFamily):
    def natural(self, prior: Distribution) -> Array:
        return self._two(0.0, -prior.rate)


class Chi2Family(GammaFamily):
    def natural(self, prior: Distribution) -> Array:
        return self._two(0.5 * prior.df - 1.0, -0.5)


class BetaFamily(PriorFamily):
    def statistics(self, value: Array) -> Array:
        return self._two(jnp.log(value), jnp.log1p(-value))

    def natural(self, prior: Distribution) -> Array:
        return self._two(prior.concentration1 - 1.0, prior.concentration0 - 1.0)

    def marginals(self, eta: np.ndarray) -> Any:
        from scipy import stats

        first, second = self._halves(eta.T)
        return stats.beta(first.T + 1.0, second.T + 1.0)

    def log_normalizer(self, eta: Array) -> Array:
        # Sums of gammaln: jax.scipy.special.betaln keeps only six digits.
        first, second = self._halves(eta)
        return jnp.sum(gammaln(first + 1.0) + gammaln(second + 1.0) - gammaln(first + second + 2.0))

    def is_proper(self, eta: Array) -> Array:
        return jnp.all(eta > -1)

    def probes(self, rng: np.random.Generator, count: int) -> np.ndarray:
        return rng.uniform(0.1, 0.9, size=(count, *self.shape))


class DirichletFamily(PriorFamily):
    def statistics(self, value: Array) -> Array:
        return jnp.log(jnp.reshape(value, -1))

    def natural(self, prior: Distribution) -> Array:
        return jnp.broadcast_to(jnp.reshape(prior.concentration - 1.0, -1), self.shape[-1:])

    def marginals(self, eta: np.ndarray) -> Any:
        from scipy import stats

        total = np.sum(eta + 1.0, axis=1, keepdims=True)
        return stats.beta(eta + 1.0, total - eta - 1.0)

    def log_normalizer(self, eta: Array) -> Array:
        return jnp.sum(gammaln(eta + 1.0)) - gammaln(jnp.sum(eta + 1.0))

    def is_proper(self, eta: Array) -> Array:
        return jnp.all(eta > -1)

    def probes(self, rng: np.random.Generator, count: int) -> np.ndarray:
        return rng.dirichlet(np.full(self.shape[-1], 3.0), size=count).reshape(count, *self.shape)


class MultivariateNormalFamily(PriorFamily):
    """Also takes a vector of independent normals whose likelihood mixes them, such as random coefficients."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__(shape)
        self.dim = int(np.prod(shape))
        self.upper = np.triu_indices(self.dim)

    def statistics(self, value: Array) -> Array:
        flat = jnp.reshape(value, -1)
        return jnp.concatenate([flat, jnp.outer(flat, flat)[self.upper]])

    def natural(self, prior: Distribution) -> Array:
        if type(prior) is dist.Normal:
            precision = jnp.diag(jnp.reshape(jnp.broadcast_to(prior.scale, self.shape), -1) ** -2.0)
            loc = jnp.reshape(jnp.broadcast_to(prior.loc, self.shape), -1)
        else:
            factor = jnp.reshape(prior.scale_tril, (self.dim, self.dim))
            half = jax.scipy.linalg.solve_triangular(factor, jnp.eye(self.dim), lower=True)
            precision, loc = half.T @ half, jnp.reshape(prior.loc, -1)
        entries = precision[self.upper]
        return jnp.concatenate([precision @ loc, jnp.where(self.upper[0] == self.upper[1], -0.5 * entries, -entries)])

    def marginals(self, eta: np.ndarray) -> Any:
        from scipy import stats

        d = self.dim
        half = np.zeros((len(eta), d, d))
        half[:, self.upper[0], self.upper[1]] = -eta[:, d:]
        covariance = np.linalg.inv(half + np.swapaxes(half, 1, 2))
        mean = np.einsum("nij,nj->ni", covariance, eta[:, :d])
        return stats.norm(mean, np.sqrt(np.einsum("nii->ni", covariance)))

    def _moments(self, eta: Array) -> tuple[Any, Any]:
        d = self.dim
        half = jnp.zeros((d, d)).at[self.upper].set(-eta[d:])
        return eta[:d], half + half.T

    def log_normalizer(self, eta: Array) -> Array:
        weighted, precision = self._moments(eta)
        d = self.dim
        lower = small_cholesky.cholesky(precision, d)
        return 0.5 * jnp.dot(weighted, small_cholesky.solve(lower, weighted, d)) - small_cholesky.half_log_det(lower, d)

    def is_proper(self, eta: Array) -> Array:
        return jnp.all(jnp.linalg.eigvalsh(self._moments(eta)[1]) > 0)

    def probes(self, rng: np.random.Generator, count: int) -> np.ndarray:
        return rng.normal(size=(count, *self.shape))

    def centre(self, prior: Distribution) -> Array:
        return jnp.broadcast_to(prior.loc, self.shape)

    def moved(self, prior: Distribution, by: Array) -> Distribution:
        if type(prior) is dist.Normal:
            return dist.Normal(prior.loc - by, prior.scale)
        return dist.MultivariateNormal(prior.loc - by, scale_tril=prior.scale_tril)

    def unit(self, prior: Distribution) -> Array:
        return _sized(jnp.sqrt(prior.mean**2 + prior.variance), self.shape)

    def rescaled(self, coefficients: Array, unit: Array) -> Array:
        flat = jnp.reshape(unit, -1)
        both = jnp.outer(flat, flat)[self.upper]
        return coefficients / jnp.concatenate([jnp.ones(1), flat, both])


def _sized(size: Any, shape: tuple[int, ...]) -> Any:
    """Sizes for every entry; where a prior has none that can be used, one."""
    return jnp.broadcast_to(jnp.where(jnp.isfinite(size) & (size > 0), size, 1.0), shape)


FAMILIES: dict[type, tuple[Callable[[tuple[int, ...]], PriorFamily], ...]] = {
    dist.Normal: (NormalFamily, MultivariateNormalFamily),
    dist.Gamma: (GammaFamily,),
    dist.Exponential: (ExponentialFamily,),
    dist.Chi2: (Chi2Family,),
    dist.InverseGamma: (InverseGammaFamily,),
    dist.Beta: (BetaFamily,),
    dist.Dirichlet: (DirichletFamily,),
    dist.MultivariateNormal: (MultivariateNormalFamily,),
}

# A table of vectors would need the statistics of each; one vector has them, with or without the plate's axis.
VECTORS = (dist.Dirichlet, dist.MultivariateNormal)


def candidates(prior: Distribution, shape: tuple[int, ...]) -> list[PriorFamily]:
    """The families that may make a likelihood linear under this prior, the smallest first; none if none is known."""
    if type(prior) in VECTORS and int(np.prod(shape[:-1], dtype=int)) != 1:
        return []
    found = [make(shape) for make in FAMILIES.get(type(prior), ())]
    return found[:1] if int(np.prod(shape, dtype=int)) == 1 else found
