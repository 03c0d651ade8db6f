"""Growth of the log gamma function: exact where subtraction would cancel."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from robustly._runtime.precision import double_precision
from robustly.conjugate.gammas import digamma_rising, log_rising, log_rising_plain, trigamma_rising

PLACES = [1e-3, 0.02, 0.7, 1.0, 3.5, 40.0, 1e3, 1e5, 1e7, 1e9, 1e12]


@pytest.fixture(autouse=True)
def double():
    with double_precision():
        yield


@pytest.mark.parametrize("a", PLACES)
@pytest.mark.parametrize("k", [0, 1, 2, 7, 60, 1000])
def test_a_whole_step_is_the_sum_of_its_logarithms(a, k):
    exact = math.fsum(math.log(a + j) for j in range(k))
    assert float(log_rising(a, float(k))) == pytest.approx(exact, rel=5e-15, abs=5e-15 * max(k, 1) ** 0.5)


@pytest.mark.parametrize("a", PLACES)
@pytest.mark.parametrize("k", [1, 5, 300])
def test_its_derivatives_are_sums_of_fractions(a, k):
    first = math.fsum(1 / (a + j) for j in range(k))
    second = -math.fsum(1 / (a + j) ** 2 for j in range(k))
    assert float(digamma_rising(a, float(k))) == pytest.approx(first, rel=1e-13)
    assert float(trigamma_rising(a, float(k))) == pytest.approx(second, rel=1e-12)


def test_derivatives_written_out_agree_with_autodiff():
    a = jnp.asarray(np.geomspace(1e-3, 1e6, 40))
    k = jnp.asarray(np.random.default_rng(0).uniform(0, 50, 40))
    for order in (1, 2):
        ours, plain = log_rising, log_rising_plain
        for _ in range(order):
            ours, plain = jax.grad(ours), jax.grad(plain)
        np.testing.assert_allclose(jax.vmap(ours)(a, k), jax.vmap(plain)(a, k), rtol=1e-8)


def test_a_part_of_a_step_agrees_with_scipy_where_scipy_is_exact():
    from scipy.special import gammaln

    a, k = np.meshgrid(np.geomspace(0.01, 100, 30), np.linspace(0, 20, 41))
    np.testing.assert_allclose(log_rising(a, k), gammaln(a + k) - gammaln(a), rtol=1e-12, atol=1e-12)
