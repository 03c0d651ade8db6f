"""What must not matter: the order of rows, how they are cut into chunks, and whether a row stands twice or weighs two."""

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import robustly as rb
from robustly.result.outliers import benjamini_hochberg
from robustly.rows.arrays import make_rows


def poisson(x, y=None):
    w = numpyro.sample("w", dist.ImproperUniform(dist.constraints.real_vector, (), event_shape=(x.shape[1],)))
    b = numpyro.sample("b", dist.Normal(0.0, 1.0))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Poisson(jnp.exp(b + x @ w)), obs=y)


ROBUST = rb.localize(poisson, "b")


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(3)
    x = rng.normal(size=(120, 2))
    return x, rng.poisson(np.exp(1 + x @ [0.5, -0.3] + 0.7 * rng.normal(size=120)))


@pytest.fixture(scope="module")
def fit(data):
    return ROBUST.fit(*data)


def same(a, b):
    np.testing.assert_allclose(a.estimates, b.estimates, atol=1e-8, rtol=1e-8)


def test_doubling_every_row_leaves_the_estimates_where_they_were(data, fit):
    x, y = data
    doubled = ROBUST.fit(np.tile(x, (2, 1)), np.tile(y, 2))
    same(doubled, fit)
    assert doubled.log_likelihood == pytest.approx(2 * fit.log_likelihood, rel=1e-9)
    np.testing.assert_allclose(doubled.covariance(), fit.covariance() / 2, rtol=1e-6)
    np.testing.assert_allclose(doubled.covariance("sandwich"), fit.covariance("sandwich") / 2, rtol=1e-6)


def test_the_order_of_rows_does_not_matter(data, fit):
    order = np.random.default_rng(0).permutation(120)
    shuffled = ROBUST.fit(data[0][order], data[1][order])
    same(shuffled, fit)
    np.testing.assert_allclose(shuffled.evidence, fit.evidence[order], atol=1e-9)


@pytest.mark.parametrize("chunk", [1, 16, 50, 10_000])
def test_the_size_of_chunks_does_not_matter(data, fit, chunk):
    same(ROBUST.fit(*data, chunk=chunk), fit)


def test_weight_two_is_the_row_twice_and_weight_zero_is_no_row(data):
    x, y = data
    weights = np.ones(120)
    weights[:10], weights[-5:] = 2.0, 0.0
    index = np.r_[np.arange(10), np.arange(115)]
    weighted, repeated = ROBUST.fit(x, y, weights=weights), ROBUST.fit(x[index], y[index])
    same(weighted, repeated)
    assert weighted.bic == pytest.approx(repeated.bic, rel=1e-9)


def test_moving_a_column_by_a_constant_moves_only_the_centre(data, fit):
    x, y = data
    moved = ROBUST.fit(x + np.array([3.0, 0.0]), y)
    np.testing.assert_allclose(moved.shared["w"], fit.shared["w"], atol=1e-7)
    shift = fit.hyperparameters["b"]["loc"] - 3.0 * fit.shared["w"][0]
    assert moved.hyperparameters["b"]["loc"] == pytest.approx(shift, abs=1e-6)
    assert moved.log_likelihood == pytest.approx(fit.log_likelihood, abs=1e-8)


@given(st.integers(1, 40), st.integers(1, 64))
@settings(max_examples=40, deadline=None)
def test_chunks_hold_every_row_once(n, size):
    rows = make_rows([np.arange(n)], ["x"], chunk=size)
    seen = [(data[0][: place.stop - place.start], weight) for place, data, weight in rows.chunks()]
    np.testing.assert_array_equal(np.concatenate([a for a, _ in seen]), np.arange(n))
    assert sum(w.sum() for _, w in seen) == n
    assert len({len(w) for _, w in seen}) == 1


@given(st.lists(st.floats(0, 1), min_size=1, max_size=60), st.floats(0.01, 0.5))
@settings(max_examples=100, deadline=None)
def test_benjamini_hochberg_takes_the_largest_set_that_keeps_its_promise(tails, fdr):
    tails = np.array(tails)
    chosen = benjamini_hochberg(tails, fdr)
    sizes = [k for k in range(1, len(tails) + 1) if np.sort(tails)[k - 1] <= fdr * k / len(tails)]
    assert len(chosen) == max(sizes, default=0)
    if len(chosen):
        assert tails[chosen].max() <= np.delete(tails, chosen).min(initial=1.0)
