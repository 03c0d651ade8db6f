r"""Which normal law is closest to a row's posterior? The Gaussian variational answer.

For each row, :math:`q = \mathcal N(m, LL^\top)` maximises
:math:`\mathrm E_q \log p(x_i, \beta_i) - \mathrm E_q \log q`, a lower bound of the evidence. Expectations are taken by
Gauss–Hermite (up to three dimensions) or quasi-random points, so it is a bound up to their accuracy. It understates the
posterior's width and the curvature of the evidence; quadrature is better wherever it can be had.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from robustly.approx.base import Enumerating
from robustly.approx.climb import climb, implicit_step
from robustly.approx.grid import LOG_2PI, Density, hermite, sobol
from robustly.model.parameters import Theta
from robustly.model.row import Latent, Row, RowModel


@dataclass(frozen=True)
class GaussianVI(Enumerating):
    """The best normal posterior in Kullback–Leibler divergence: full covariance up to three dimensions, then diagonal."""

    is_bound: ClassVar[bool] = True

    def start(self, model: RowModel) -> np.ndarray:
        return np.zeros(self._stacked(model, (self._size(model.dim),)))

    @staticmethod
    def _size(dim: int) -> int:
        return 2 * dim if dim > 3 else dim + dim * (dim + 1) // 2

    @staticmethod
    def _rule(dim: int) -> tuple[np.ndarray, np.ndarray]:
        if dim == 1:
            return hermite(41, 1)
        return hermite(9, dim) if dim <= 3 else sobol(256, dim)

    def _normal(self, q: Array, dim: int) -> tuple[Any, Any]:
        """Mean and lower factor; the diagonal is kept as logarithms."""
        mean, scale = q[:dim], jnp.diag(jnp.exp(q[dim : 2 * dim]))
        if dim <= 3:
            scale = scale.at[np.tril_indices(dim, -1)].set(q[2 * dim :])
        return mean, scale

    def _around(self, q: Array, dim: int, rule: tuple[np.ndarray, np.ndarray]) -> Any:
        mean, scale = self._normal(q, dim)
        return mean + jnp.asarray(rule[0]) @ scale.T

    def _bound(self, joint: Density, q: Array, dim: int) -> Array:
        rule = self._rule(dim)
        energy = jnp.sum(jnp.exp(jnp.asarray(rule[1])) * jax.vmap(joint)(self._around(q, dim, rule)))
        return energy + jnp.sum(q[dim : 2 * dim]) + 0.5 * dim * (LOG_2PI + 1.0)

    def _find_mode(self, model: RowModel, theta: Theta, row: Row, z: Latent, state: Array) -> Array:
        joint = lambda u: model.log_joint(u, theta, row, z)
        return climb(lambda q: self._bound(joint, q, model.dim), state, self._size(model.dim))

    def _evidence(self, model: RowModel, vector: Array, row: Row, z: Latent, state: Array) -> Array:
        # The bound is flat in q at the best q, so q's first derivative is all that a second derivative needs.
        theta = model.parameters.natural(vector)
        bound = lambda q: self._bound(lambda u: model.log_joint(u, theta, row, z), q, model.dim)
        return bound(implicit_step(bound, state, self._size(model.dim)))

    def _expected(self, model: RowModel, vector: Array, at: Array, row: Row, z: Latent, state: Array) -> Array:
        then, theta = model.parameters.natural(at), model.parameters.natural(vector)
        rule = self._rule(model.dim)
        u = lax.stop_gradient(self._around(state, model.dim, rule))
        joint = jax.vmap(lambda point: model.log_joint(point, theta, row, z, at=then))(u)
        return jnp.sum(jnp.exp(jnp.asarray(rule[1])) * joint)

    def _points(self, model: RowModel, theta: Theta, row: Row, z: Latent, state: Array) -> tuple[Any, Any]:
        rule = hermite(101, 1) if model.dim == 1 else sobol(2048, model.dim)
        bound = self._bound(lambda u: model.log_joint(u, theta, row, z), state, model.dim)
        return self._around(state, model.dim, rule), jnp.asarray(rule[1]) + bound
