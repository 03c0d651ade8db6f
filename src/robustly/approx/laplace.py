r"""Where is each row's local variable, given the current prior? Laplace's answer.

Climb to the mode of :math:`\log p(x_i \mid \beta_i) + \log p(\beta_i \mid \alpha)` and take the curvature there as the
precision of a normal posterior. Cheap, and accurate when rows carry some information; for a single binary outcome per
row prefer :mod:`robustly.approx.quadrature`. In EM the expected log density is the delta method's, as in the paper.
The evidence it reports is not a bound.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from robustly.approx.base import Enumerating
from robustly.approx.climb import climb, exact_step, look
from robustly.approx.grid import LOG_2PI, Density, hermite, sobol
from robustly.model import small_cholesky
from robustly.model.parameters import Theta
from robustly.model.row import Latent, Row, RowModel


@dataclass(frozen=True)
class Laplace(Enumerating):
    """A normal posterior at the mode, with the curvature there."""

    def describe(self) -> str:
        return "Laplace's approximation"

    def _find_mode(self, model: RowModel, theta: Theta, row: Row, z: Latent, state: Array) -> Array:
        return climb(lambda u: model.log_joint(u, theta, row, z), state, model.dim)

    def _factor(self, joint: Density, mode: Array, dim: int) -> small_cholesky.Factor:
        return small_cholesky.cholesky(-look(joint, mode)[2], dim)

    def _evidence(self, model: RowModel, vector: Array, row: Row, z: Latent, state: Array) -> Array:
        theta = model.parameters.natural(vector)
        joint = lambda u: model.log_joint(u, theta, row, z)
        # The curvature depends on where the mode is, so the mode's derivatives count.
        mode = exact_step(joint, state, model.dim)
        lower = self._factor(joint, mode, model.dim)
        return joint(mode) + 0.5 * model.dim * LOG_2PI - small_cholesky.half_log_det(lower, model.dim)

    def _expected(self, model: RowModel, vector: Array, at: Array, row: Row, z: Latent, state: Array) -> Array:
        then, theta = model.parameters.natural(at), model.parameters.natural(vector)
        lower = self._factor(lambda u: model.log_joint(u, then, row, z), state, model.dim)
        covariance = lax.stop_gradient(small_cholesky.inverse(lower, model.dim))
        joint = lambda u: model.log_joint(u, theta, row, z, at=then)
        value, _, curve = look(joint, state)
        return value + 0.5 * jnp.sum(curve * covariance)

    def _points(self, model: RowModel, theta: Theta, row: Row, z: Latent, state: Array) -> tuple[Any, Any]:
        joint = lambda u: model.log_joint(u, theta, row, z)
        lower = self._factor(joint, state, model.dim)
        points, weight = hermite(101, 1) if model.dim == 1 else sobol(2048, model.dim)
        u = state + jax.vmap(lambda point: small_cholesky.solve_transposed(lower, point, model.dim))(
            jnp.asarray(points)
        )
        evidence = joint(state) + 0.5 * model.dim * LOG_2PI - small_cholesky.half_log_det(lower, model.dim)
        return u, jnp.asarray(weight) + evidence
