r"""How sure are coefficients and spread together? Draws from their posterior, every row's own value integrated out.

Coefficients have a flat prior (or the ridge's normal one). The spread and other positive numbers have the fit's
hyperprior, and where there is none a flat one on their own scale; degrees of freedom have Gamma(2, 0.1) (Juárez & Steel
2010), since a flat one would not let the posterior be a distribution.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from robustly.errors import ModelError
from robustly.fit.draws import Draws, Posterior
from robustly.glm.climb import Climb, Found
from robustly.glm.evidence import start_state
from robustly.rows.arrays import Rows

CHUNK = 2048


def draw_posterior(found: Found, num_samples: int, num_warmup: int, num_chains: int, key: Any, compiled: Any) -> Draws:
    """Draws of a search's vector: coordinates of the coefficients, then the shared numbers that were fitted."""
    design, plan = found.design, found.plan
    if design.sparse:
        raise ModelError("posterior draws need a dense matrix of columns; give X.toarray() if it fits into memory.")
    climb = Climb(design, plan, found.nodes)
    names = [plan.law.names[i] for i in climb.free]
    free, held = jnp.asarray(climb.free, dtype=int), np.asarray(found.phi)
    turn, centre = np.asarray(design.to_shifted), np.asarray(design.centre)
    penalty = design.penalty + plan.tether * np.eye(design.size)
    each = jax.vmap(climb.kernel._value, (0, None, 0, 0))

    def density(_: Any, chunks: Any, effort: int) -> Any:
        def log_density(vector: Any) -> Any:
            u, values = vector[: design.size], vector[design.size :]
            phi = jnp.asarray(held).at[free].set(values)
            beta = turn @ u

            def one(chunk: Any) -> Any:
                (matrix, offset, y, trials), weight, state = chunk
                linear = (matrix - centre) @ beta[1:] + beta[0] if design.intercept else matrix @ beta
                value = each(offset + linear, tuple(phi), (y, trials), state)
                return jnp.sum(jnp.where(weight > 0, weight * jnp.where(weight > 0, value, 0.0), 0.0))

            total = jnp.sum(jax.lax.map(one, chunks)) - 0.5 * u @ penalty @ u
            return total + sum(log_hyperprior(name, value, plan.hyperprior) for name, value in zip(names, values))

        return log_density

    rows = Rows(tuple(np.asarray(a, dtype=float) for a in design.rows.data), design.rows.weight, CHUNK)
    state = start_state(plan.law, design.y, design.trials, found.phi) if found.state is None else found.state
    covariance = np.linalg.pinv(-found.optimum.curve)
    posterior = Posterior(
        density, lambda vector: {"vector": vector}, rows, state, found.optimum.vector, covariance, compiled
    )
    return posterior.draw(num_samples, num_warmup, num_chains, key)


def log_hyperprior(name: str, value: Any, hyperprior: Any) -> Any:
    """The log density of a shared number's prior on the scale that is searched."""
    if name == "flip":
        return jax.nn.log_sigmoid(value) + jax.nn.log_sigmoid(-value)
    if name == "dof":
        return 2.0 * value - 0.1 * jnp.exp(value)
    if name == "spread" and hyperprior is not None:
        return hyperprior.log_density(value) + value
    return value
