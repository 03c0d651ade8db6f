"""A traced program gives the same values and derivatives without its detours, and values where the detours overflow."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.scipy.special import xlogy

from robustly.model.steps import Steps, simplified
from robustly.precision import double_precision


def counts(predictor, y):
    return dist.Poisson(jnp.exp(predictor)).log_prob(y)


@settings(max_examples=50, deadline=None, derandomize=True)
@given(st.floats(-30, 30), st.integers(0, 1000))
def test_a_simplified_density_keeps_its_value_and_derivatives(predictor, y):
    with double_precision():
        at, y = jnp.asarray(predictor), jnp.asarray(float(y))
        short = simplified(counts)
        expected = [counts(at, y), jax.grad(counts)(at, y), jax.grad(jax.grad(counts))(at, y)]
        found = [short(at, y), jax.grad(short)(at, y), jax.grad(jax.grad(short))(at, y)]
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    "detour", [lambda v: jnp.log(jnp.exp(v)), lambda v: xlogy(3.0, jnp.exp(v)), jax.jit(lambda v: jnp.log(jnp.exp(v)))]
)
def test_no_exponential_is_left_where_its_logarithm_is_taken(detour):
    with double_precision():
        steps = Steps(jax.make_jaxpr(simplified(detour))(2.0))
        assert "exp" not in str(jax.make_jaxpr(lambda v: steps.run({steps.inputs[0]: v}, steps.outputs)[0])(2.0))
        # The detour itself is infinite here.
        assert np.isfinite(simplified(detour)(jnp.asarray(800.0)))


@pytest.mark.parametrize("predictor", [-np.inf, -800.0, 0.0, 800.0])
def test_no_count_costs_nothing_however_small_its_rate(predictor):
    with double_precision():
        value = simplified(lambda v: xlogy(0.0, jnp.exp(v)))(jnp.asarray(predictor))
        assert float(value) == 0.0


def test_functions_are_read_again_for_arguments_of_another_kind():
    read = []

    def total(x, more):
        read.append(jnp.shape(x))
        return jnp.sum(x) + sum(more.values())

    short = simplified(total)
    with double_precision():
        assert float(short(jnp.ones(3), {"a": 1.0})) == 4.0
        assert float(short(2 * jnp.ones(3), {"a": 0.0})) == 6.0
        assert float(short(jnp.ones(4), {"a": 1.0, "b": 2.0})) == 7.0
        assert float(jnp.sum(jax.vmap(lambda x: short(x, {"a": 1.0}))(jnp.ones((5, 3))))) == 20.0
    assert read == [(3,), (4,)]
