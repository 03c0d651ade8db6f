r"""Is a row conjugate? Looked at, not declared.

A likelihood is conjugate to an exponential-family prior exactly when, as a function of the local value, its logarithm is
linear in the prior's sufficient statistics: :math:`\log p(x \mid \beta) = c + s^\top T(\beta)`. So evaluate a row at as
many values as there are unknowns, solve for :math:`(c, s)`, and verify at others. One entry for each prior family is
needed and none for a likelihood: exposures, affine means and several observed sites a row come for free.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax.scipy.special import gammaln

from robustly.model import dense
from robustly.model.hyper import core, plain
from robustly.model.row import RowModel
from robustly.rows.arrays import Rows


class PriorFamily(ABC):
    r"""An exponential family of priors: :math:`h(\beta)\exp\{\eta^\top T(\beta) - A(\eta)\}`."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape

    @abstractmethod
    def statistics(self, value: Any) -> Any: ...

    @abstractmethod
    def natural(self, prior: Any) -> Any: ...

    @abstractmethod
    def log_normalizer(self, eta: Any) -> Any: ...

    @abstractmethod
    def is_proper(self, eta: Any) -> Any: ...

    @abstractmethod
    def probes(self, rng: np.random.Generator, count: int) -> np.ndarray: ...

    def _two(self, first: Any, second: Any) -> Any:
        """Two statistics for each entry of a vector of independent locals, flattened."""
        return jnp.concatenate([jnp.reshape(jnp.broadcast_to(part, self.shape), -1) for part in (first, second)])

    def _halves(self, eta: Any) -> tuple[Any, Any]:
        return eta[: eta.shape[0] // 2], eta[eta.shape[0] // 2 :]


class NormalFamily(PriorFamily):
    def statistics(self, value: Any) -> Any:
        return self._two(value, value**2)

    def natural(self, prior: Any) -> Any:
        precision = prior.scale**-2.0
        return self._two(prior.loc * precision, -0.5 * precision)

    def log_normalizer(self, eta: Any) -> Any:
        first, second = self._halves(eta)
        return jnp.sum(-0.25 * first**2 / second - 0.5 * jnp.log(-2.0 * second))

    def is_proper(self, eta: Any) -> Any:
        return jnp.all(self._halves(eta)[1] < 0)

    def probes(self, rng: np.random.Generator, count: int) -> np.ndarray:
        return rng.normal(size=(count, *self.shape))


class GammaFamily(PriorFamily):
    def statistics(self, value: Any) -> Any:
        return self._two(jnp.log(value), value)

    def natural(self, prior: Any) -> Any:
        return self._two(prior.concentration - 1.0, -prior.rate)

    def log_normalizer(self, eta: Any) -> Any:
        shape, rate = self._halves(eta)
        return jnp.sum(gammaln(shape + 1.0) - (shape + 1.0) * jnp.log(-rate))

    def is_proper(self, eta: Any) -> Any:
        shape, rate = self._halves(eta)
        return jnp.all((shape > -1) & (rate < 0))

    def probes(self, rng: np.random.Generator, count: int) -> np.ndarray:
        return np.exp(rng.uniform(-1.5, 1.5, size=(count, *self.shape)))


class InverseGammaFamily(GammaFamily):
    def statistics(self, value: Any) -> Any:
        return self._two(-jnp.log(value), 1.0 / value)

    def natural(self, prior: Any) -> Any:
        # In terms of 1/β this is a gamma; the extra log β of the change of variables goes into h.
        return self._two(prior.concentration - 1.0, -prior.rate)


class ExponentialFamily(GammaFamily):
    def natural(self, prior: Any) -> Any:
        return self._two(0.0, -prior.rate)


class Chi2Family(GammaFamily):
    def natural(self, prior: Any) -> Any:
        return self._two(0.5 * prior.df - 1.0, -0.5)


class BetaFamily(PriorFamily):
    def statistics(self, value: Any) -> Any:
        return self._two(jnp.log(value), jnp.log1p(-value))

    def natural(self, prior: Any) -> Any:
        return self._two(prior.concentration1 - 1.0, prior.concentration0 - 1.0)

    def log_normalizer(self, eta: Any) -> Any:
        # Sums of gammaln: jax.scipy.special.betaln keeps only six digits.
        first, second = self._halves(eta)
        return jnp.sum(gammaln(first + 1.0) + gammaln(second + 1.0) - gammaln(first + second + 2.0))

    def is_proper(self, eta: Any) -> Any:
        return jnp.all(eta > -1)

    def probes(self, rng: np.random.Generator, count: int) -> np.ndarray:
        return rng.uniform(0.1, 0.9, size=(count, *self.shape))


class DirichletFamily(PriorFamily):
    def statistics(self, value: Any) -> Any:
        return jnp.log(value)

    def natural(self, prior: Any) -> Any:
        return jnp.broadcast_to(prior.concentration - 1.0, self.shape)

    def log_normalizer(self, eta: Any) -> Any:
        return jnp.sum(gammaln(eta + 1.0)) - gammaln(jnp.sum(eta + 1.0))

    def is_proper(self, eta: Any) -> Any:
        return jnp.all(eta > -1)

    def probes(self, rng: np.random.Generator, count: int) -> np.ndarray:
        return rng.dirichlet(np.full(self.shape[0], 3.0), size=count)


class MultivariateNormalFamily(PriorFamily):
    """Also takes a vector of independent normals whose likelihood mixes them, such as random coefficients."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__(shape)
        self.upper = np.triu_indices(shape[0])

    def statistics(self, value: Any) -> Any:
        return jnp.concatenate([value, jnp.outer(value, value)[self.upper]])

    def natural(self, prior: Any) -> Any:
        if type(prior) is dist.Normal:
            precision = jnp.diag(jnp.broadcast_to(prior.scale, self.shape) ** -2.0)
            loc = jnp.broadcast_to(prior.loc, self.shape)
        else:
            half = jax.scipy.linalg.solve_triangular(prior.scale_tril, jnp.eye(self.shape[0]), lower=True)
            precision, loc = half.T @ half, prior.loc
        entries = precision[self.upper]
        return jnp.concatenate([precision @ loc, jnp.where(self.upper[0] == self.upper[1], -0.5 * entries, -entries)])

    def _moments(self, eta: Any) -> tuple[Any, Any]:
        d = self.shape[0]
        half = jnp.zeros((d, d)).at[self.upper].set(-eta[d:])
        return eta[:d], half + half.T

    def log_normalizer(self, eta: Any) -> Any:
        weighted, precision = self._moments(eta)
        d = self.shape[0]
        lower = dense.cholesky(precision, d)
        return 0.5 * jnp.dot(weighted, dense.solve(lower, weighted, d)) - dense.half_log_det(lower, d)

    def is_proper(self, eta: Any) -> Any:
        return jnp.all(jnp.linalg.eigvalsh(self._moments(eta)[1]) > 0)

    def probes(self, rng: np.random.Generator, count: int) -> np.ndarray:
        return rng.normal(size=(count, *self.shape))


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


@dataclass(frozen=True, eq=False)
class Conjugacy:
    """A detected conjugate pair: the prior's family, and a row's linear coefficients in its statistics."""

    model: RowModel
    family: PriorFamily
    points: np.ndarray
    solver: np.ndarray

    def likelihoods(self, points: Any, theta: Any, row: Any, z: Any) -> Any:
        """The row's log likelihood at several local values."""
        if z is None:
            return jax.vmap(lambda local: self.model.log_likelihood(local, theta, row))(points)
        return jax.vmap(lambda local: self.model.log_likelihood(local, theta, row, z))(points)

    def terms(self, theta: Any, row: Any, z: Any = None) -> tuple[Any, Any, Any]:
        """Constant and slope of the row's log likelihood, and the prior's natural parameter."""
        solved = jnp.asarray(self.solver) @ self.likelihoods(jnp.asarray(self.points), theta, row, z)
        assert self.model.prior is not None
        return solved[0], solved[1:], self.family.natural(core(self.model.prior(theta, row))[0])


def detect(model: RowModel, rows: Rows, *, tolerance: float = 1e-8) -> tuple[RowModel, str]:
    """The model with its conjugacy if it has one, and a sentence on what was found."""
    if model.dim == 0 or model.prior is None:
        return model, "the prior is not a single distribution"
    index = np.unique(np.linspace(0, len(rows) - 1, 24).astype(int))
    sample = tuple(jnp.asarray(a[index]) for a in rows.data)
    first = tuple(a[0] for a in sample)
    inner = plain(model.prior(model.parameters.natural(jnp.asarray(model.parameters.start)), first))
    if inner is None:
        return model, "the prior is truncated or transformed"
    entries = FAMILIES.get(type(inner), ())
    reason = f"no conjugate family is known for a {type(inner).__name__} prior"
    for make in entries:
        if make is MultivariateNormalFamily and len(model.local_shape) != 1:
            continue
        if make is DirichletFamily and len(model.local_shape) != 1:
            continue
        found = _conjugacy(model, make(model.local_shape))
        gap = _worst_gap(found, sample)
        if gap <= tolerance:
            return replace(model, conjugacy=found), f"conjugate: {type(inner).__name__} prior (residual {gap:.0e})"
        reason = f"the log likelihood is not linear in the statistics of a {type(inner).__name__} (residual {gap:.0e})"
    return model, reason


def _conjugacy(model: RowModel, family: PriorFamily) -> Conjugacy:
    """Probe values at which the linear system is best conditioned, out of a few random designs."""
    rng = np.random.default_rng(0)
    unknowns = 1 + len(family.statistics(jnp.asarray(family.probes(rng, 1)[0])))
    statistics = jax.vmap(family.statistics)
    designs = [family.probes(rng, unknowns) for _ in range(20)]
    tables = np.asarray(jax.vmap(statistics)(jnp.asarray(np.stack(designs))))
    matrices = [np.column_stack([np.ones(unknowns), table]) for table in tables]
    best = int(np.argmin([np.linalg.cond(matrix) for matrix in matrices]))
    return Conjugacy(model, family, designs[best], np.linalg.inv(matrices[best]))


def _worst_gap(found: Conjugacy, sample: tuple[Any, ...]) -> float:
    """How far held-out values of the rows' log likelihoods are from linear; infinite when a posterior is improper."""
    model, family = found.model, found.family
    rng = np.random.default_rng(1)
    held_out = jnp.asarray(family.probes(rng, 5))
    table = jax.vmap(family.statistics)(held_out)
    starts = jnp.asarray(model.parameters.start + 0.3 * rng.normal(size=(2, model.parameters.size)))
    latents = None if model.latents is None else jnp.asarray(model.latents)

    def gap(vector: Any, row: Any, z: Any) -> Any:
        theta = model.parameters.natural(vector)
        constant, slope, eta = found.terms(theta, row, z)
        seen = found.likelihoods(held_out, theta, row, z)
        off = jnp.max(jnp.abs(seen - constant - table @ slope)) / (1.0 + jnp.max(jnp.abs(seen)))
        # An impossible value of z for this row (log likelihood −∞ everywhere) says nothing against conjugacy.
        off = jnp.where(jnp.all(seen == -jnp.inf), 0.0, off)
        return jnp.where(family.is_proper(eta + slope) | ~jnp.isfinite(slope[0]), off, jnp.inf)

    def worst(vectors: Any, rows: Any) -> Any:
        each_z = (
            (lambda v, r: gap(v, r, None))
            if latents is None
            else (lambda v, r: jnp.max(jax.vmap(lambda z: gap(v, r, z))(latents)))
        )
        return jnp.max(jax.vmap(lambda v: jax.vmap(lambda r: each_z(v, r))(rows))(vectors))

    gap_found = float(jax.jit(worst)(starts, sample))
    return gap_found if np.isfinite(gap_found) else np.inf
