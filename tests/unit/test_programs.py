"""Models in the style of NumPyro's own examples go through ``localize`` as they are, or are refused with the right reason."""

from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.distributions import constraints
from scipy import stats

import robustly as rb
from robustly.model.program.trace import run_program


def eight_schools(J, sigma, y=None):
    mu = numpyro.sample("mu", dist.Normal(0, 5))
    tau = numpyro.sample("tau", dist.HalfCauchy(5))
    with numpyro.plate("J", J):
        theta = numpyro.sample("theta", dist.Normal(mu, tau))
        numpyro.sample("obs", dist.Normal(theta, sigma), obs=y)


SCHOOLS = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0]), np.array([15.0, 10, 16, 11, 9, 11, 10, 18])


def test_eight_schools_with_a_count_argument_and_a_site_that_is_local_already():
    y, sigma = SCHOOLS
    fit = rb.localize(eight_schools, "theta").fit(8, sigma, y)
    mu, tau = fit.shared["mu"], fit.shared["tau"]
    expected = stats.norm(mu, np.hypot(tau, sigma)).logpdf(y)
    np.testing.assert_allclose(fit.evidence, expected, rtol=1e-8)
    # The posterior of a school is a precision-weighted mean of its own estimate and the common one.
    share = tau**2 / (tau**2 + sigma**2)
    np.testing.assert_allclose(fit.posterior("theta").mean, share * y + (1 - share) * mu, rtol=1e-6)


def test_hierarchical_binomial_keeps_its_shared_sites(rng):
    def baseball(at_bats, hits=None):
        m = numpyro.sample("m", dist.Uniform(0, 1))
        kappa = numpyro.sample("kappa", dist.Pareto(1, 1.5))
        with numpyro.plate("num_players", at_bats.shape[0]):
            phi = numpyro.sample("phi", dist.Beta(m * kappa, (1 - m) * kappa))
            numpyro.sample("obs", dist.Binomial(at_bats, probs=phi), obs=hits)

    at_bats = rng.integers(30, 60, 60)
    hits = rng.binomial(at_bats, rng.beta(20, 60, 60))
    fit = rb.localize(baseball, "phi").fit(at_bats, hits)
    assert fit.approximation == "Exact()"
    m, kappa = fit.shared["m"], fit.shared["kappa"]
    expected = stats.betabinom(at_bats, m * kappa, (1 - m) * kappa).logpmf(hits)
    np.testing.assert_allclose(fit.evidence, expected, rtol=1e-7, atol=1e-9)


def test_logistic_regression_with_grouped_counts_and_a_deterministic_site(rng):
    def logistic(features, trials, labels=None):
        coefs = numpyro.sample("coefs", dist.Normal(jnp.zeros(features.shape[-1]), 2.0).to_event(1))
        intercept = numpyro.sample("intercept", dist.Normal(0.0, 2.0))
        logits = numpyro.deterministic("logits", intercept + features @ coefs)
        with numpyro.plate("data", features.shape[0]):
            return numpyro.sample("obs", dist.Binomial(trials, logits=logits), obs=labels)

    x, trials = rng.normal(size=(150, 2)), rng.integers(5, 20, 150)
    y = rng.binomial(trials, 1 / (1 + np.exp(-(0.3 + x @ [0.8, -0.5] + 0.7 * rng.normal(size=150)))))
    fit = rb.localize(logistic, "intercept").fit(x, trials, labels=y)
    assert fit.outcome.converged
    assert 0.3 < fit.hyperparameters["intercept"]["scale"] < 1.1
    assert fit.integration_error() < 1e-5


def test_negative_binomial_counts_with_an_exposure_keyword(rng):
    def counts(x, *, exposure, y=None):
        beta = numpyro.sample("beta", dist.Normal(0, 2))
        concentration = numpyro.sample("concentration", dist.Gamma(2.0, 0.5))
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", dist.NegativeBinomial2(exposure * jnp.exp(beta * x), concentration), obs=y)

    x, exposure = rng.normal(size=80), rng.uniform(1, 3, 80)
    y = rng.poisson(exposure * np.exp(0.5 * x) * rng.gamma(2, 0.5, 80))
    fit = rb.localize(counts, "beta").fit(x, exposure=exposure, y=y)
    assert np.all(np.isfinite(fit.evidence))
    assert fit.hyperparameters["beta"]["loc"] == pytest.approx(0.5, abs=0.4)


def test_several_observed_sites_a_row_share_one_local(rng):
    def two_methods(first, second=None, n=None):
        level = numpyro.sample("level", dist.Normal(0.0, 1.0))
        bias = numpyro.sample("bias", dist.Normal(0.0, 5.0))
        with numpyro.plate("sample", first.shape[0]):
            numpyro.sample("a", dist.Normal(level, 1.0), obs=first)
            numpyro.sample("b", dist.Normal(level + bias, 0.5), obs=second)

    level = 2 + 1.5 * rng.normal(size=300)
    a, b = level + rng.normal(size=300), level + 0.7 + 0.5 * rng.normal(size=300)
    fit = rb.localize(two_methods, "level").fit(a, b)
    h, bias = fit.hyperparameters["level"], fit.shared["bias"]
    covariance = np.full((2, 2), h["scale"] ** 2) + np.diag([1.0, 0.25])
    expected = stats.multivariate_normal([h["loc"], h["loc"] + bias], covariance).logpdf(np.column_stack([a, b]))
    np.testing.assert_allclose(fit.evidence, expected, rtol=1e-8)
    assert fit.approximation == "Exact()"


def test_masked_observations_count_nothing(rng):
    def masked(y, seen):
        rate = numpyro.sample("rate", dist.Gamma(2.0, 1.0))
        with numpyro.plate("data", y.shape[0]):
            numpyro.sample("y", dist.Normal(0.0, rate**-0.5), obs=y, obs_mask=seen)

    y, seen = rng.standard_t(4, size=200), rng.uniform(size=200) < 0.8
    fit = rb.localize(masked, "rate").fit(y, seen)
    only = rb.localize(masked, "rate").fit(y[seen], np.ones(seen.sum(), dtype=bool))
    assert np.allclose(fit.evidence[~seen], 0.0, atol=1e-10)
    assert fit.log_likelihood == pytest.approx(only.log_likelihood, abs=1e-7)


def test_a_plate_of_rows_outside_a_plate_of_columns(rng):
    def panel(y):
        with numpyro.plate("columns", y.shape[1], dim=-1):
            centre = numpyro.sample("centre", dist.Normal(0.0, 10.0))
        precision = numpyro.sample("precision", dist.Gamma(2.0, 2.0))
        with numpyro.plate("rows", y.shape[0], dim=-2), numpyro.plate("cols", y.shape[1], dim=-1):
            numpyro.sample("y", dist.Normal(centre, precision**-0.5), obs=y)

    y = np.array([1.0, -2.0, 5.0]) + rng.normal(size=(250, 3)) / np.sqrt(rng.gamma(2, 0.5, size=(250, 1)))
    fit = rb.localize(panel, "precision").fit(y)
    a, b = fit.hyperparameters["precision"].values()
    expected = stats.multivariate_t(fit.shared["centre"], np.eye(3) * b / a, df=2 * a).logpdf(y)
    np.testing.assert_allclose(fit.evidence, expected, rtol=1e-8)


def test_a_mixture_without_a_latent_and_one_with(rng):
    def marginal(y):
        weight = numpyro.sample("weight", dist.Beta(2.0, 2.0))
        scale = numpyro.sample("scale", dist.Gamma(2.0, 1.0))
        with numpyro.plate("data", y.shape[0]):
            mixing = dist.Categorical(probs=jnp.stack([weight, 1 - weight]))
            numpyro.sample("y", dist.MixtureSameFamily(mixing, dist.Normal(jnp.array([-3.0, 3.0]), scale)), obs=y)

    def enumerated(y):
        weight = numpyro.sample("weight", dist.Beta(2.0, 2.0))
        scale = numpyro.sample("scale", dist.Gamma(2.0, 1.0))
        with numpyro.plate("data", y.shape[0]):
            z = numpyro.sample("z", dist.Categorical(probs=jnp.stack([weight, 1 - weight])))
            numpyro.sample("y", dist.Normal(jnp.array([-3.0, 3.0])[z], scale), obs=y)

    y = np.where(rng.uniform(size=150) < 0.4, -3.0, 3.0) + rng.gamma(4, 0.25, 150) * rng.normal(size=150)
    fits = [rb.localize(model, "scale").fit(y) for model in (marginal, enumerated)]
    assert fits[0].log_likelihood == pytest.approx(fits[1].log_likelihood, abs=2e-4)
    assert fits[0].shared["weight"] == pytest.approx(fits[1].shared["weight"], abs=1e-3)


def test_vector_sites_params_and_dictionaries_of_data(rng):
    def random_coefficients(data, y=None):
        w = numpyro.sample("w", dist.Normal(jnp.zeros(2), jnp.ones(2)).to_event(1))
        sigma = numpyro.param("sigma", 1.0, constraint=constraints.positive)
        with numpyro.plate("data", data["x"].shape[0]):
            numpyro.sample("y", dist.Normal((data["x"] * w).sum(-1), sigma), obs=y)

    x = rng.normal(size=(400, 2))
    y = (x * (np.array([1.0, -1.0]) + np.array([0.5, 1.0]) * rng.normal(size=(400, 2)))).sum(1) + 0.5 * rng.normal(
        size=400
    )
    fit = rb.localize(random_coefficients, "w").fit({"x": x}, y)
    assert fit.approximation == "Exact()"  # promoted to a joint normal, because x mixes the entries
    h, sigma = fit.hyperparameters["w"], fit.shared["sigma"]
    expected = stats.norm(x @ h["loc"], np.sqrt((x**2) @ h["scale"] ** 2 + sigma**2)).logpdf(y)
    np.testing.assert_allclose(fit.evidence, expected, rtol=1e-7, atol=1e-9)


def test_two_sites_at_once_and_one_that_depends_on_the_other(rng):
    def nested(y, s):
        a = numpyro.sample("a", dist.Normal(0.0, 1.0))
        b = numpyro.sample("b", dist.Normal(a, 0.5))
        with numpyro.plate("data", y.shape[0]):
            numpyro.sample("y", dist.Normal(jnp.stack([a, b], -1), s).to_event(1), obs=y)

    a = 1 + 0.8 * rng.normal(size=200)
    y = np.column_stack([a, a + 0.6 * rng.normal(size=200)]) + 0.5 * rng.normal(size=(200, 2))
    fit = rb.localize(nested, ["a", "b"], fixed={"a": {"loc": 1.0}}).fit(y, 0.5)
    va, vb = fit.hyperparameters["a"]["scale"] ** 2, fit.hyperparameters["b"]["scale"] ** 2
    covariance = np.array([[va + 0.25, va], [va, va + vb + 0.25]])
    expected = stats.multivariate_normal([1.0, 1.0], covariance).logpdf(y)
    np.testing.assert_allclose(fit.evidence, expected, rtol=1e-6)
    assert set(fit.hyperparameters["b"]) == {"scale"}  # its centre follows a


def test_a_prior_argument_that_is_a_site_is_fitted_through_that_site(rng):
    def hierarchical(y, s):
        tau = numpyro.sample("tau", dist.HalfNormal(5.0))
        mu = numpyro.sample("mu", dist.Normal(0.0, tau))
        with numpyro.plate("data", y.shape[0]):
            numpyro.sample("y", dist.Normal(mu, s), obs=y)

    s = rng.uniform(0.5, 1.5, 120)
    y = 1 + 2 * rng.normal(size=120) + s * rng.normal(size=120)
    fit = rb.localize(hierarchical, "mu").fit(y, s)
    assert set(fit.hyperparameters["mu"]) == {"loc"}
    np.testing.assert_allclose(
        fit.evidence, stats.norm(fit.hyperparameters["mu"]["loc"], np.hypot(fit.shared["tau"], s)).logpdf(y), rtol=1e-8
    )


def test_a_model_may_use_the_names_of_fit_options(rng):
    def weighted(y, weights):
        mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
        with numpyro.plate("data", y.shape[0]):
            numpyro.sample("y", dist.Normal(mu, weights**-0.5), obs=y)

    weights = rng.uniform(1, 4, 60)
    y = rng.normal(size=60) + rng.normal(size=60) / np.sqrt(weights)
    fit = rb.localize(weighted, "mu").fit(y, weights=weights)
    h = fit.hyperparameters["mu"]
    np.testing.assert_allclose(
        fit.evidence, stats.norm(h["loc"], np.hypot(h["scale"], weights**-0.5)).logpdf(y), rtol=1e-8
    )


def test_five_dimensional_locals_are_integrated_by_quasi_random_points(rng):
    def logits(x, y=None):
        w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([5]).to_event(1))
        with numpyro.plate("data", x.shape[0]):
            numpyro.sample("y", dist.Binomial(12, logits=x @ w), obs=y)

    x = rng.normal(size=(60, 5))
    y = rng.binomial(12, 1 / (1 + np.exp(-(x * (0.5 + 0.5 * rng.normal(size=(60, 5)))).sum(1))))
    fit = rb.localize(logits, "w").fit(x, y)
    assert fit.approximation == "QMC(count=256)"
    # A sum of independent normals is one normal, so a one-dimensional integral gives the same evidence.
    h = fit.hyperparameters["w"]
    u, weight = np.polynomial.hermite_e.hermegauss(101)
    eta = (h["loc"] * x.sum(1))[:, None] + (h["scale"] * np.linalg.norm(x, axis=1))[:, None] * u
    exact = np.log(stats.binom(12, 1 / (1 + np.exp(-eta))).pmf(y[:, None]) @ (weight / weight.sum()))
    assert fit.log_likelihood == pytest.approx(exact.sum(), abs=0.05)


def test_a_localized_model_is_not_retraced_for_new_data_of_the_same_kind(rng):
    calls = []

    def model(y):
        calls.append(1)
        rate = numpyro.sample("rate", dist.Gamma(1.0, 1.0))
        with numpyro.plate("data", y.shape[0]):
            numpyro.sample("y", dist.Poisson(rate), obs=y)

    robust = rb.localize(model, "rate")
    robust.fit(rng.negative_binomial(2, 0.3, size=100))
    before = len(calls)
    robust.fit(rng.negative_binomial(2, 0.3, size=120))
    assert len(calls) - before <= 2  # the check of the observations' support, no new compilation


def test_nothing_leaks_into_the_callers_handlers(rng):
    def model(y):
        rate = numpyro.sample("rate", dist.Gamma(1.0, 1.0))
        with numpyro.plate("data", y.shape[0]):
            numpyro.sample("y", dist.Poisson(rate), obs=y)

    y = rng.negative_binomial(2, 0.3, size=50)

    def outer():
        rb.localize(model, "rate").fit(y)

    trace = numpyro.handlers.trace(numpyro.handlers.seed(outer, jax.random.key(0))).get_trace()
    assert trace == {}


def test_programs_that_several_threads_run_do_not_find_each_others_handlers():
    y, sigma = SCHOOLS

    def run(number):
        return tuple(sorted(run_program(eight_schools, (8, sigma, y), {}, key=jax.random.key(number))))

    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(run, range(80))) == {("J", "mu", "obs", "tau", "theta")}
