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

from robustly.fit.draws import Posterior
from robustly.fit.problem import Found
from robustly.glm.regression import Regression


def draw_posterior(
    found: Found, num_samples: int, num_warmup: int, num_chains: int, key: Any
) -> tuple[np.ndarray, int]:
    """Draws of a search's vector: coordinates of the coefficients, then the shared numbers that were fitted."""
    problem = found.problem
    assert isinstance(problem, Regression)
    names = tuple(problem.plan.law.names[i] for i in problem.linear.free)
    hyperprior = problem.plan.hyperprior

    def log_prior(vector: Any, penalty: Any) -> Any:
        u, values = vector[: penalty.shape[0]], vector[penalty.shape[0] :]
        shared = sum(log_hyperprior(name, value, hyperprior) for name, value in zip(names, values))
        return shared - 0.5 * penalty @ u**2

    covariance = np.linalg.pinv(-found.curve)
    alike = (names, tuple(problem.linear.held), hyperprior)
    compiled = problem.kernel.samplers.setdefault(alike, {})
    posterior = Posterior(problem, log_prior, found.vector, covariance, compiled, problem.penalty)
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
