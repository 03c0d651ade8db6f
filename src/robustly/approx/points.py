"""Integration by weighted points around the mode: what quadrature and quasi-random sampling have in common."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.scipy.special import logsumexp

from robustly.approx.base import Enumerating
from robustly.approx.climb import climb, exact_step
from robustly.approx.grid import Density
from robustly.model.parameters import Theta
from robustly.model.row import Latent, Row, RowModel


class PointRule(Enumerating):
    """Points and weights for one smooth row density; subclasses say which."""

    @abstractmethod
    def _rule(self, joint: Density, mode: Array, dim: int, state: Array) -> tuple[Any, Any]:
        """Points (m, dim) and log weights, density included, for a density with this mode and state."""

    def _find_mode(self, model: RowModel, theta: Theta, row: Row, z: Latent, state: Array) -> Array:
        return climb(lambda u: model.log_joint(u, theta, row, z), state, model.dim)

    def _evidence(self, model: RowModel, vector: Array, row: Row, z: Latent, state: Array) -> Array:
        # The points move with the parameters, and the derivatives follow them; otherwise they would be those of a
        # slightly different function than the one reported, and line searches stall near the top.
        theta = model.parameters.natural(vector)
        joint = lambda u: model.log_joint(u, theta, row, z)
        return logsumexp(self._rule(joint, exact_step(joint, state[: model.dim], model.dim), model.dim, state)[1])

    def _anchor(self, model: RowModel, centre: Any, row: Any, z: Any, state: Any) -> Any:
        # The points stay where they are as local values, whatever the parameters do to the whitened coordinate: a row
        # that says much about its local keeps it when the prior moves.
        theta = model.parameters.natural(centre)
        u, weight = self._rule(lambda u: model.log_joint(u, theta, row, z), state[: model.dim], model.dim, state)
        local = jax.vmap(lambda point: model.local(point, theta, row)[0])(u)
        density = jax.vmap(lambda value: model.log_density(value, theta, row, z))(local)
        return local, jnp.where(jnp.isfinite(weight), weight - density, -jnp.inf)

    def _evidence_around(self, model: RowModel, vector: Array, row: Row, z: Latent, anchor: Any) -> Array:
        local, offset = anchor
        theta = model.parameters.natural(vector)
        # A loop over points: each step then works on plain vectors over rows, and over draws where there are many.
        return logsumexp(offset + lax.map(lambda value: model.log_density(value, theta, row, z), local))

    def _expected(self, model: RowModel, vector: Array, at: Array, row: Row, z: Latent, state: Array) -> Array:
        then, theta = model.parameters.natural(at), model.parameters.natural(vector)
        held = lambda u: model.log_joint(u, then, row, z)
        u, weight = lax.stop_gradient(self._rule(held, state[: model.dim], model.dim, state))
        share = jax.nn.softmax(weight)
        joint = jax.vmap(lambda point: model.log_joint(point, theta, row, z, at=then))(u)
        return jnp.sum(jnp.where(share > 0, share * joint, 0.0))
