"""EM: the objective of exact and Gaussian-variational EM never falls, and exact EM ends where the direct search does."""

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import robustly as rb


def counts(y):
    rate = numpyro.sample("rate", dist.Gamma(1.0, 1.0))
    with numpyro.plate("data", y.shape[0]):
        numpyro.sample("y", dist.Poisson(rate), obs=y)


def lognormal_counts(y):
    b = numpyro.sample("b", dist.Normal(0.0, 1.0))
    with numpyro.plate("data", y.shape[0]):
        numpyro.sample("y", dist.Poisson(jnp.exp(b)), obs=y)


GAMMA = rb.localize(counts, "rate")
NORMAL = rb.localize(lognormal_counts, "b")

ROWS = st.lists(st.integers(0, 60), min_size=32, max_size=32).filter(lambda y: np.var(y) > 1.3 * np.mean(y) + 0.1)
QUIET = settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow]
)


def rises(fit):
    values = np.array([entry["value"] for entry in fit.history])
    return np.all(np.diff(values) >= -1e-9 * np.maximum(1.0, np.abs(values[1:])))


@given(ROWS)
@QUIET
def test_exact_em_never_lowers_the_evidence(y):
    fit = GAMMA.fit(np.array(y), method="em", rtol=1e-5)
    assert fit.is_bound
    assert rises(fit)


@given(ROWS)
@QUIET
def test_gaussian_variational_em_never_lowers_its_bound(y):
    fit = NORMAL.fit(np.array(y), method="em", approx=rb.GaussianVI(), rtol=1e-4)
    assert fit.is_bound
    assert rises(fit)


@given(ROWS)
@QUIET
def test_the_variational_bound_is_below_the_evidence(y):
    y = np.array(y)
    bound = NORMAL.fit(y, approx=rb.GaussianVI())
    at = {"b.loc": bound.hyperparameters["b"]["loc"], "b.scale": bound.hyperparameters["b"]["scale"]}
    exact = NORMAL.fit(y, approx=rb.Quadrature(41), start=at)
    assert exact.log_likelihood >= bound.log_likelihood - 1e-8


def test_exact_em_ends_where_the_direct_search_does(rng):
    y = rng.negative_binomial(3, 0.3, size=200)
    direct, em = GAMMA.fit(y), GAMMA.fit(y, method="em")
    np.testing.assert_allclose(em.estimates, direct.estimates, rtol=1e-6)
    assert len(direct.history) < len(em.history)


def test_quadrature_em_is_em_for_the_integrated_likelihood(rng):
    y = rng.poisson(np.exp(1 + 0.8 * rng.normal(size=200)))
    direct, em = NORMAL.fit(y), NORMAL.fit(y, method="em")
    np.testing.assert_allclose(em.estimates, direct.estimates, rtol=1e-5)
    assert rises(em)


def test_laplace_em_is_the_papers_biased_fixed_point_and_not_called_a_bound(rng):
    y = rng.poisson(np.exp(0.5 + 1.5 * rng.normal(size=400)))
    paper, exact = NORMAL.fit(y, method="em", approx=rb.Laplace()), NORMAL.fit(y)
    assert not paper.is_bound
    # The closed-form M-step of Algorithm 1: the centre is the mean of the modes, the variance their scatter plus width.
    loc, scale = paper.hyperparameters["b"]["loc"], paper.hyperparameters["b"]["scale"]
    eta = np.full(400, loc)
    for _ in range(200):
        eta -= (y - np.exp(eta) - (eta - loc) / scale**2) / (-np.exp(eta) - scale**-2)
    width = 1 / (np.exp(eta) + scale**-2)
    assert loc == pytest.approx(eta.mean(), abs=1e-6)
    assert scale**2 == pytest.approx(np.mean((eta - loc) ** 2 + width), rel=1e-6)
    assert scale < exact.hyperparameters["b"]["scale"]  # the bias that quadrature does not have


def test_too_few_steps_are_told(rng):
    y = rng.negative_binomial(3, 0.3, size=100)
    with pytest.warns(rb.ConvergenceWarning, match=r"3 passes of EM were not enough.*method=\"direct\""):
        fit = GAMMA.fit(y, method="em", max_steps=3)
    assert not fit.outcome.converged
