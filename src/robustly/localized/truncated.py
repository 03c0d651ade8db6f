r"""How far does a truncated law reach where almost nothing of its base is left?

Of a symmetric base with distribution function :math:`F`, cut to :math:`[a, b]`, NumPyro takes :math:`(F(y) - F(a)) / (F(b) - F(a))`, which is
0/0 once both ends lie far out on one side: a scale that differs by row goes there. Here ends above the middle are reflected
below it, where :math:`\log F` is known to the last digit, and differences are taken of logarithms.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax.nn import softplus
from jax.scipy.special import log_ndtr
from numpyro.distributions import Laplace, Logistic, Normal
from numpyro.distributions.truncated import (
    LeftTruncatedDistribution,
    RightTruncatedDistribution,
    TwoSidedTruncatedDistribution,
)

TRUNCATED = (LeftTruncatedDistribution, RightTruncatedDistribution, TwoSidedTruncatedDistribution)


def truncated_cdf(law: Any, value: Any) -> Any:
    """P(Y ≤ value) of a truncated law."""
    low, high, flip = _ends(law)
    at = jnp.clip(_standard(law, value), *_ends_in_units(law))
    below = jnp.exp(_log_between(law, low, jnp.where(flip, -at, at)) - _log_between(law, low, high))
    return jnp.clip(jnp.where(flip, 1.0 - below, below), 0.0, 1.0)


def truncated_moments(law: Any) -> tuple[Any, Any]:
    """Mean and variance of a truncated normal law."""
    low, high, flip = _ends(law)
    log_all = _log_between(law, low, high)
    log_density = lambda z: -0.5 * z**2 - 0.5 * jnp.log(2.0 * jnp.pi)
    at_low, at_high = (
        jnp.where(jnp.isfinite(z), jnp.exp(log_density(z) - log_all), 0.0) for z in (low, high)
    )  # fmt: skip
    finite = lambda z: jnp.where(jnp.isfinite(z), z, 0.0)
    mean = at_low - at_high
    # Far out this is a difference of large numbers, wrong by rounding of the squared distance, which is nothing beside the mean's square.
    variance = jnp.maximum(1.0 + finite(low) * at_low - finite(high) * at_high - mean**2, 0.0)
    base = law.base_dist
    return base.loc + base.scale * jnp.where(flip, -mean, mean), base.scale**2 * variance


def _standard(law: Any, value: Any) -> Any:
    return (value - law.base_dist.loc) / law.base_dist.scale


def _ends_in_units(law: Any) -> tuple[Any, Any]:
    """Both ends in standard units."""
    ends = (getattr(law, "low", -jnp.inf), getattr(law, "high", jnp.inf))
    return _standard(law, ends[0]), _standard(law, ends[1])


def _ends(law: Any) -> tuple[Any, Any, Any]:
    """Both ends in standard units, reflected where both lie above the middle; and whether they are."""
    low, high = _ends_in_units(law)
    flip = low > 0.0
    return jnp.where(flip, -high, low), jnp.where(flip, -low, high), flip


def _log_between(law: Any, low: Any, high: Any) -> Any:
    """log(F(high) − F(low)), standard units."""
    top, bottom = _log_cdf(law, high), _log_cdf(law, low)
    gap = jnp.where(jnp.isfinite(bottom) & (bottom < top), bottom - top, -jnp.inf)
    return jnp.where(bottom < top, top + jnp.log1p(-jnp.exp(gap)), -jnp.inf)


def _log_cdf(law: Any, z: Any) -> Any:
    base = law.base_dist
    if isinstance(base, Normal):
        return log_ndtr(z)
    if isinstance(base, Logistic):
        return -softplus(-z)
    if isinstance(base, Laplace):
        return jnp.where(z < 0.0, z - jnp.log(2.0), jnp.log1p(-0.5 * jnp.exp(-jnp.abs(z))))
    return jnp.log(base.cdf(base.loc + base.scale * z))
