"""A traced program gives the same values and derivatives without its detours, and values where the detours overflow."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.scipy.special import xlogy

from robustly._runtime.precision import double_precision
from robustly.model.jaxpr_simplify import Steps, simplified


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


@pytest.mark.parametrize("left_side", [True, False])
@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize("transpose_a", [True, False])
@pytest.mark.parametrize("unit_diagonal", [True, False])
def test_triangular_systems_are_written_out(left_side, lower, transpose_a, unit_diagonal, rng):
    matrix, right = rng.normal(size=(3, 3)) + 3.0 * np.eye(3), rng.normal(size=(3, 2) if left_side else (2, 3))
    options = {"left_side": left_side, "lower": lower, "transpose_a": transpose_a, "unit_diagonal": unit_diagonal}
    solve = lambda a, b: jax.lax.linalg.triangular_solve(a, b, **options)
    with double_precision():
        short = simplified(solve)
        assert "triangular_solve" not in str(jax.make_jaxpr(short)(matrix, right))
        np.testing.assert_allclose(short(matrix, right), solve(matrix, right), rtol=1e-12)


def test_densities_with_matrix_factors_call_no_lapack_and_keep_their_derivatives(rng):
    def density(w, noise, x):
        return dist.LowRankMultivariateNormal(jnp.zeros(4), w, noise * jnp.ones(4)).log_prob(x)[0]

    w, x = rng.normal(size=(4, 2)), rng.normal(size=(1, 4))
    with double_precision():
        short = simplified(density)
        assert "cholesky" not in str(jax.make_jaxpr(short)(w, 0.7, x))
        np.testing.assert_allclose(short(w, 0.7, x), density(w, 0.7, x), rtol=1e-12)
        np.testing.assert_allclose(jax.grad(short)(w, 0.7, x), jax.grad(density)(w, 0.7, x), rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(
            jax.hessian(short, 1)(w, 0.7, x), jax.hessian(density, 1)(w, 0.7, x), rtol=1e-10, atol=1e-12
        )
        # A matrix that has no factor has no density, as before.
        broken = lambda s: jnp.linalg.cholesky(s)[1, 1]
        assert np.isnan(simplified(broken)(jnp.asarray([[1.0, 2.0], [2.0, 1.0]])))
