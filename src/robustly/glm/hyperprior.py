"""What is believed of the spread before any row was seen? Nothing, something weak, or what the user says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from robustly._runtime.precision import double_precision
from robustly.errors import ModelError

if TYPE_CHECKING:
    import jax


@dataclass(frozen=True)
class WeakSpread:
    """Keeps the spread of 0/1 rows away from zero and infinity: Gamma(2, 1), with mode 1 (Chung et al. 2013)."""

    shape: float = 2.0
    rate: float = 1.0

    def log_density(self, log_spread: jax.Array) -> jax.Array:
        """Of the spread itself, up to a constant, as a traceable function of its logarithm."""
        import jax.numpy as jnp

        return (self.shape - 1.0) * log_spread - self.rate * jnp.exp(log_spread)

    def derivatives(self, log_spread: float) -> tuple[float, float, float]:
        spread = float(np.exp(log_spread))
        log_density = (self.shape - 1.0) * log_spread - self.rate * spread
        return log_density, self.shape - 1.0 - self.rate * spread, -self.rate * spread


@dataclass(frozen=True)
class GivenSpread:
    """A NumPyro distribution of the spread as its hyperprior."""

    distribution: Any

    def log_density(self, log_spread: jax.Array) -> jax.Array:
        import jax.numpy as jnp

        return jnp.sum(self.distribution.log_prob(jnp.exp(log_spread)))

    def derivatives(self, log_spread: float) -> tuple[float, float, float]:
        import jax
        import jax.numpy as jnp

        with double_precision():
            density, at = self.log_density, jnp.asarray(float(log_spread))
            found = (density(at), jax.grad(density)(at), jax.grad(jax.grad(density))(at))
            return tuple(float(part) for part in found)  # type: ignore[return-value]


def as_hyperprior(given: Any) -> Any:
    """A hyperprior from what the user gave."""
    if given is None or hasattr(given, "derivatives"):
        return given
    if hasattr(given, "log_prob"):
        return GivenSpread(given)
    raise ModelError(f'hyperprior is None, "auto" or a NumPyro distribution of the spread; got {given!r}.')
