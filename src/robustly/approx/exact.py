r"""What is a row's evidence when the prior is conjugate? A ratio of normalisers, exactly.

When a row's log likelihood is linear in the prior's sufficient statistics,
:math:`\log p(x_i \mid \beta) = c + s^\top T(\beta)`, the posterior is in the prior's family and
:math:`\log p(x_i) = c + A(\eta + s) - A(\eta)`. Nothing is searched for and nothing approximated.
Also the answer when nothing is local.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from robustly.approx.base import Enumerating
from robustly.errors import ModelError
from robustly.model.parameters import Theta
from robustly.model.row import Latent, Row, RowModel


@dataclass(frozen=True)
class Exact(Enumerating):
    """Closed form, for conjugate rows."""

    is_bound: ClassVar[bool] = True
    is_exact: ClassVar[bool] = True

    def check(self, model: RowModel) -> None:
        if model.dim > 0 and model.conjugacy is None and model.closed is None:
            raise ModelError(
                "Exact() needs a likelihood that is linear in the prior's sufficient statistics, and this one is not. "
                "Use Quadrature(21), or leave the approximation to the fit."
            )

    def describe(self) -> str:
        return "closed form"

    def start(self, model: RowModel) -> np.ndarray:
        return np.zeros(self._stacked(model, (0,)))

    def _find_mode(self, model: RowModel, theta: Theta, row: Row, z: Latent, state: Array) -> Array:
        return state

    def _evidence(self, model: RowModel, vector: Array, row: Row, z: Latent, state: Array) -> Array:
        theta = model.parameters.natural(vector)
        if model.closed is not None:
            return model.closed(theta, row)
        if model.conjugacy is None:
            return model.log_density(None, theta, row, z)
        level, natural = model.conjugacy.level_and_natural(theta, row, z, model.conjugacy.origin(theta, row))
        return level + model.conjugacy.log_normalizer(natural)

    def _expected(self, model: RowModel, vector: Array, at: Array, row: Row, z: Latent, state: Array) -> Array:
        theta = model.parameters.natural(vector)
        if model.conjugacy is None:
            return model.log_density(None, theta, row, z)
        before = model.parameters.natural(at)
        origin = model.conjugacy.origin(before, row)
        _, then = model.conjugacy.level_and_natural(before, row, z, origin)
        statistics = lax.stop_gradient(jax.grad(model.conjugacy.log_normalizer)(then))
        level, now = model.conjugacy.level_and_natural(theta, row, z, origin)
        return level + sum(jnp.sum(a * b) for a, b in zip(jax.tree.leaves(now), jax.tree.leaves(statistics)))

    def _points(self, model: RowModel, theta: Theta, row: Row, z: Latent, state: Array) -> tuple[Any, Any]:
        from robustly.approx.climb import climb

        mode = climb(lambda u: model.log_joint(u, theta, row, z), jnp.zeros(model.dim), model.dim)
        return super()._points(model, theta, row, z, mode)
