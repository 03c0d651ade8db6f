"""What every road to a model can be asked, brought to the same names and units."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

LEVELS = (0.05, 0.5, 0.975)


@dataclass(frozen=True)
class Answers:
    """One road's answers; None where the road does not give one."""

    evidence: np.ndarray | None
    """log p(row), by row."""
    estimates: np.ndarray
    errors: np.ndarray | None = None
    quantiles: np.ndarray | None = None
    """Of the predictive distribution of some rows, at LEVELS."""
    tails: np.ndarray | None = None
    """P(Y > y) of these rows' own predictive, at their observations."""
    judged: np.ndarray | None = None
    """The tail probabilities, by row."""
    strayed: np.ndarray | None = None
    """The probability that a row does not belong, and its tail in the core, by row."""


def answers(
    fit: Any,
    common: Callable[[dict[str, Any]], list[Any]],
    law: Any = None,
    observed: Any = None,
    *,
    strayed: bool = False,
) -> Answers:
    """What a fit says. `common` turns its parameters into those all roads report, errors follow by the delta method."""
    names = list(fit.parameters)
    sizes = [np.size(fit.parameters[name]) for name in names]
    shapes = [np.shape(fit.parameters[name]) for name in names]
    cuts = np.cumsum([0, *sizes])

    def told(flat: Any) -> Any:
        parts = {n: flat[a:b].reshape(s) for n, a, b, s in zip(names, cuts, cuts[1:], shapes)}
        return jnp.concatenate([jnp.reshape(jnp.asarray(value, dtype=float), -1) for value in common(parts)])

    # Outside jit every operation would be compiled by itself; NumPy's differences are exact enough for a Jacobian of
    # such functions only to 1e-10, so they are differentiated by JAX once.
    with jax.enable_x64(True):
        flat = jnp.asarray(fit.estimates, dtype=float)
        values, slopes = jax.jit(lambda v: (told(v), jax.jacfwd(told)(v)))(flat)
    slopes = np.asarray(slopes)
    errors = np.sqrt(np.einsum("ij,jk,ik->i", slopes, fit.covariance(), slopes))
    quantiles = None if law is None else np.stack([law.quantile(level) for level in LEVELS], axis=-1)
    tails = None if law is None else 1.0 - law.cdf(observed)
    judged = None if law is None else fit.tail_probabilities
    found = np.stack([fit.outlier_probability, fit.judgement.tail]) if strayed else None
    return Answers(np.asarray(fit.evidence), np.asarray(values), errors, quantiles, tails, judged, found)
