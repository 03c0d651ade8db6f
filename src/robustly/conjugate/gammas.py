r"""How much does a log gamma function grow from `a` to `a + k`? Without subtracting two large numbers.

Evidences of gamma, beta and Dirichlet pairs are made of :math:`\log\Gamma(a+k) - \log\Gamma(a)`. For a concentration
of 10¹² each term has a size of 10¹³, and their difference would keep three digits. Stirling's series is subtracted
term by term instead, after both arguments were moved up by eight, where the series is exact to the last digit.

Derivatives in `a` are written out, since they are the same sums again: autodiff of the eight logarithms, twice, makes
programs that take two to three times as long to compile. Tests hold them against autodiff.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array

SHIFT = 8
# Coefficients of 1/z, 1/z³, 1/z⁵ … in log Γ(z) − (z − ½) log z + z − ½ log 2π.
SERIES = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188, -691 / 360360, 1 / 156, -3617 / 122400)
ONCE = tuple(-(2 * i + 1) * c for i, c in enumerate(SERIES))
TWICE = tuple(-(2 * i + 2) * c for i, c in enumerate(ONCE))


def log_rising_plain(a: Array, k: Array) -> Array:
    r""":math:`\log\Gamma(a+k) - \log\Gamma(a)` for `a > 0`, `k ≥ 0`, differentiable in both."""
    low = a + SHIFT
    high = low + k
    leading = (high - 0.5) * jnp.log1p(k / low) + k * (jnp.log(low) - 1.0)
    steps = jnp.zeros(())
    for j in range(SHIFT):
        steps = steps + jnp.log1p(k / (a + j))
    return leading + (_series(SERIES, 1, high) - _series(SERIES, 1, low)) - steps


@jax.custom_jvp
def log_rising(a: Array, k: Array) -> Array:
    r""":math:`\log\Gamma(a+k) - \log\Gamma(a)` for `a > 0` and data `k ≥ 0`, which are not differentiated."""
    return log_rising_plain(a, k)


@jax.custom_jvp
def digamma_rising(a: Array, k: Array) -> Array:
    """ψ(a+k) − ψ(a)."""
    low = a + SHIFT
    high = low + k
    found = jnp.log1p(k / low) + 0.5 * k / (low * high) + (_series(ONCE, 2, high) - _series(ONCE, 2, low))
    for j in range(SHIFT):
        found = found + k / ((a + j) * (a + k + j))
    return found


def trigamma_rising(a: Array, k: Array) -> Array:
    """ψ'(a+k) − ψ'(a)."""
    low = a + SHIFT
    high = low + k
    found = -k / (low * high) - 0.5 * k * (low + high) / (low * high) ** 2
    found = found + (_series(TWICE, 3, high) - _series(TWICE, 3, low))
    for j in range(SHIFT):
        there, here = a + k + j, a + j
        found = found - k * (there + here) / (there * here) ** 2
    return found


log_rising.defjvps(lambda da, value, a, k: digamma_rising(a, k) * da, None)
digamma_rising.defjvps(lambda da, value, a, k: trigamma_rising(a, k) * da, None)


def _series(coefficients: tuple[float, ...], power: int, z: Array) -> Array:
    inverse = 1.0 / z
    square = inverse * inverse
    total = jnp.zeros(())
    for coefficient in reversed(coefficients):
        total = total * square + coefficient
    return total * inverse**power


def gamma_evidence(
    concentration: Array, rate: Array, power: Array, slope: Array, rising: Callable[[Array, Array], Array] = log_rising
) -> Array:
    r"""Log of the mean of :math:`\beta^k e^{-c\beta}` over a Gamma(concentration, rate), with power k and slope c."""
    grown = rising(concentration, power) - power * jnp.log(rate)
    return grown - (concentration + power) * jnp.log1p(slope / rate)


def beta_evidence(first: Array, second: Array, successes: Array, failures: Array) -> Array:
    r"""Log of the mean of :math:`p^x (1-p)^y` over a Beta(first, second)."""
    both = log_rising(first, successes) + log_rising(second, failures)
    return both - log_rising(first + second, successes + failures)
