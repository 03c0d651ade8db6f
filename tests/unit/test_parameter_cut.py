"""Parameters enter a row through few numbers, and derivatives taken in those are the derivatives."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from robustly._runtime.precision import double_precision
from robustly.approx import Quadrature
from robustly.fit.passes import passes
from robustly.fit.problem import RowProblem
from robustly.model.parameter_cut import cut_parameters
from robustly.model.row import RowModel
from robustly.rows.arrays import make_rows


def regression(u, v, row):
    """Four coefficients, a centre and a log scale; a row sees the scale, and coefficients and centre as one sum."""
    local = v[4] + jnp.exp(v[5]) * u[0]
    return dist.Poisson(jnp.exp(local + row[0] @ v[:4])).log_prob(row[1]) - 0.5 * u[0] ** 2


def tangled(u, v, row):
    """Every coefficient meets the local by itself, so nothing can be saved."""
    return -jnp.sum((u[0] * v[:4] - row[0]) ** 2)


def written_by_others(u, v, row):
    """Behind functions compiled apart; the predictor, worked out in two places, counts twice."""
    inner = jax.jit(lambda w, x: jnp.tanh(x @ w))
    return jax.jit(regression)(u, v, row) + u[0] * inner(v[:4], row[0])


def unused(u, v, row):
    return -0.5 * u[0] ** 2 + row[1]


ROW = (np.array([0.5, -1.0, 0.25, 2.0]), 3.0)


@pytest.mark.parametrize(("function", "size"), [(regression, 2), (tangled, 4), (written_by_others, 3), (unused, 0)])
def test_the_fewest_numbers_are_found_and_give_the_function_back(function, size):
    with double_precision():
        v, u = jnp.asarray([0.1, -0.2, 0.3, 0.4, 0.5, -0.6]), jnp.asarray([0.7])
        view = cut_parameters(function, jnp.zeros(1), v, ROW)
        assert view.size == size
        assert float(view.finish(u, view.numbers(v, ROW), ROW)) == pytest.approx(float(function(u, v, ROW)), rel=1e-14)
        slope = jax.grad(lambda x: view.finish(u, view.numbers(x, ROW), ROW))(v)
        np.testing.assert_allclose(slope, jax.grad(function, 1)(u, v, ROW), rtol=1e-12, atol=1e-14)


def test_what_is_only_added_is_told_apart():
    """The log share of a part and of its side is one number, of which nothing needs to be integrated."""
    mixed = lambda u, v, row: regression(u, v, row) + (jnp.log(v[0]) + jnp.log(v[3]))
    with double_precision():
        v, u = jnp.asarray([0.1, -0.2, 0.3, 0.4, 0.5, -0.6]), jnp.asarray([0.7])
        view = cut_parameters(mixed, jnp.zeros(1), v, ROW)
        assert (view.size, view.added) == (3, True)
        assert not cut_parameters(regression, jnp.zeros(1), v, ROW).added
        *rest, added = view.numbers(v, ROW)
        assert float(added) == pytest.approx(np.log(0.1) + np.log(0.4))
        at_zero = float(view.finish(u, [*rest, 0.0], ROW))
        assert at_zero + float(added) == pytest.approx(float(mixed(u, v, ROW)), rel=1e-14)


COUNTS = RowModel(
    log_likelihood=lambda b, theta, row: dist.Poisson(jnp.exp(b + row[0] @ theta["w"])).log_prob(row[1]),
    prior=lambda theta, row: dist.Normal(theta["loc"], theta["scale"]),
    center=lambda theta, row: (theta["loc"], theta["scale"]),
    start={"loc": 0.0, "scale": 1.0, "w": np.zeros(2)},
    constraints={"scale": dist.constraints.positive},
)
TWO_KINDS = RowModel(
    log_likelihood=lambda b, theta, row, z: (
        dist.Poisson(jnp.exp(b + z[0] * theta["shift"])).log_prob(row[1]) + jnp.log(jnp.where(z[0] > 0, 0.3, 0.7))
    ),
    prior=lambda theta, row: dist.Normal(theta["loc"], theta["scale"]),
    center=lambda theta, row: (theta["loc"], theta["scale"]),
    start={"loc": 0.0, "scale": 1.0, "shift": 1.0},
    constraints={"scale": dist.constraints.positive},
    latents=np.array([[0.0], [1.0]]),
)


@cache
def derivatives(model):
    """The summed evidence and its derivatives the plain way, compiled once."""
    compiled = passes(model, Quadrature(31))
    total = lambda v, data, weight, state: weight @ compiled.evidences(v, data, state)
    return jax.jit(lambda *args: (total(*args), jax.grad(total)(*args), jax.hessian(total)(*args)))


@settings(max_examples=12, deadline=None, derandomize=True)
@given(
    st.sampled_from([COUNTS, TWO_KINDS]),
    st.lists(st.floats(-1.5, 1.5), min_size=4, max_size=4),
    st.integers(0, 2**16),
)
def test_moments_give_the_slope_and_curvature_of_the_evidence(model, at, seed):
    rng = np.random.default_rng(seed)
    rows = make_rows([rng.normal(size=(7, 2)), rng.poisson(5.0, 7)], ["x", "y"], weights=[1, 2, 0, 1, 1, 0.5, 1])
    problem = RowProblem(model, rows, Quadrature(31))
    vector = np.array(at[: model.parameters.size])
    value, slope, curve = problem.look(vector)
    with double_precision():
        by_autodiff = derivatives(model)(vector, rows.data, rows.weight, rows.states(problem.slot))
    assert value == pytest.approx(float(by_autodiff[0]), abs=1e-9)
    np.testing.assert_allclose(slope, by_autodiff[1], rtol=1e-7, atol=1e-7)
    np.testing.assert_allclose(curve, by_autodiff[2], rtol=1e-5, atol=1e-5)
