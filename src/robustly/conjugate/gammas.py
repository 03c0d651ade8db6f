r"""How much does a log gamma function grow from `a` to `a + k`? Without subtracting two large numbers.

Evidences of gamma, beta and Dirichlet pairs are made of :math:`\log\Gamma(a+k) - \log\Gamma(a)`. For a concentration
of 10¹² each term has a size of 10¹³, and their difference would keep three digits. Stirling's series is subtracted
term by term instead, after both arguments were moved up by eight, where the series is exact to the last digit. Only
logarithms and fractions are left, so first and second derivatives are cheap too (no digamma, no trigamma).
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

SHIFT = 8
# Coefficients of 1/z, 1/z³, 1/z⁵ … in log Γ(z) − (z − ½) log z + z − ½ log 2π.
SERIES = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188, -691 / 360360, 1 / 156, -3617 / 122400)


def log_rising(a: Any, k: Any) -> Any:
    r""":math:`\log\Gamma(a+k) - \log\Gamma(a)` for `a > 0`, `k ≥ 0`: the logarithm of a rising factorial."""
    low = a + SHIFT
    high = low + k
    leading = (high - 0.5) * jnp.log1p(k / low) + k * (jnp.log(low) - 1.0)
    steps = jnp.zeros(())
    for j in range(SHIFT):
        steps = steps + jnp.log1p(k / (a + j))
    return leading + (_tail(high) - _tail(low)) - steps


def _tail(z: Any) -> Any:
    inverse = 1.0 / z
    square = inverse * inverse
    total = jnp.zeros(())
    for coefficient in reversed(SERIES):
        total = total * square + coefficient
    return total * inverse


def gamma_evidence(concentration: Any, rate: Any, power: Any, slope: Any) -> Any:
    r"""Log of the mean of :math:`\beta^k e^{-c\beta}` over a Gamma(concentration, rate), with power k and slope c."""
    return log_rising(concentration, power) - power * jnp.log(rate) - (concentration + power) * jnp.log1p(slope / rate)


def beta_evidence(first: Any, second: Any, successes: Any, failures: Any) -> Any:
    r"""Log of the mean of :math:`p^x (1-p)^y` over a Beta(first, second)."""
    both = log_rising(first, successes) + log_rising(second, failures)
    return both - log_rising(first + second, successes + failures)
