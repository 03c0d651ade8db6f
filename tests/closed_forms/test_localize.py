"""Localized programs against laws with a name: what integrating the local out must give."""

import json
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy import optimize, stats
from scipy.special import logsumexp

import robustly as rb


def linear(x, y=None):
    w = numpyro.sample("w", dist.Normal(0, 10).expand([x.shape[1]]).to_event(1))
    precision = numpyro.sample("precision", dist.Gamma(2.0, 1.0))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ w, precision**-0.5), obs=y)


STUDENT = rb.localize(linear, "precision")


def t_data(seed):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(400, 3))
    return x, x @ np.array([1.0, -2.0, 0.5]) + rng.standard_t(3, size=400)


def t_maximum(x, y):
    """Evidence plus the log prior of w, maximised directly with scipy's own t."""

    def objective(v):
        a, b = np.exp(v[3:])
        law = stats.t(2 * a, loc=x @ v[:3], scale=np.sqrt(b / a))
        return -law.logpdf(y).sum() - stats.norm(0, 10).logpdf(v[:3]).sum()

    start = np.r_[np.linalg.lstsq(x, y, rcond=None)[0], 0.5, 0.5]
    found = optimize.minimize(objective, start, method="BFGS", options={"gtol": 1e-7})
    return -optimize.minimize(objective, found.x, method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-11}).fun


@pytest.mark.parametrize("seed", range(5))
def test_localized_precision_is_student_t_regression(seed):
    x, y = t_data(seed)
    best = t_maximum(x, y)
    exact = STUDENT.fit(x, y)
    assert exact.approximation == "Exact()"
    assert any("conjugate: Gamma" in note for note in exact.notes)  # found by looking, not declared
    assert exact.objective == pytest.approx(best, abs=1e-6)
    assert STUDENT.fit(x, y, approx=rb.Quadrature(21)).objective == pytest.approx(best, abs=1e-4)


def test_the_snippet_of_the_design_runs():
    x, y = t_data(9)
    fit = STUDENT.fit(x, y)
    assert set(fit.hyperparameters["precision"]) == {"concentration", "rate"}
    assert fit.shared["w"].shape == (3,)
    assert fit.standard_errors["w"].shape == (3,)
    assert fit.evidence.shape == (400,)
    posterior = fit.posterior("precision")
    a, b = fit.hyperparameters["precision"].values()
    law = stats.gamma(a + 0.5, scale=1 / (b + 0.5 * (y - x @ fit.shared["w"]) ** 2))
    np.testing.assert_allclose(posterior.mean, law.mean(), rtol=1e-5)
    np.testing.assert_allclose(posterior.sd, law.std(), rtol=1e-4)
    np.testing.assert_allclose(posterior.quantile(0.9), law.ppf(0.9), rtol=2e-3)
    new = fit.predictive(x[:6])
    t = stats.t(2 * a, loc=x[:6] @ fit.shared["w"], scale=np.sqrt(b / a))
    np.testing.assert_allclose(new.mean, t.mean(), rtol=1e-6)
    np.testing.assert_allclose(new.quantile([0.05, 0.95]), np.column_stack([t.ppf(0.05), t.ppf(0.95)]), rtol=1e-9)
    np.testing.assert_allclose(new.log_prob(y[:6]), t.logpdf(y[:6]), rtol=1e-10)
    assert callable(STUDENT.program)


def counts(y, exposure):
    rate = numpyro.sample("rate", dist.Gamma(1.0, 1.0))
    with numpyro.plate("data", y.shape[0]):
        numpyro.sample("y", dist.Poisson(rate * exposure), obs=y)


def test_localized_rates_are_a_negative_binomial(rng):
    exposure = rng.uniform(0.5, 2, 300)
    y = rng.poisson(exposure * rng.gamma(2.0, 1.5, 300))
    fit = rb.localize(counts, "rate").fit(y, exposure)
    a, b = fit.hyperparameters["rate"].values()
    np.testing.assert_allclose(fit.evidence, stats.nbinom(a, b / (b + exposure)).logpmf(y), rtol=1e-10)
    best = optimize.minimize(
        lambda v: -stats.nbinom(np.exp(v[0]), 1 / (1 + exposure * np.exp(-v[1]))).logpmf(y).sum(),
        np.zeros(2),
        method="Nelder-Mead",
        options={"xatol": 1e-8, "fatol": 1e-10},
    )
    assert fit.log_likelihood == pytest.approx(-best.fun, abs=1e-6)


@pytest.mark.parametrize("typical", [3.0, 3e4, 1e6])
def test_large_counts_are_fitted_and_predicted_as_exactly_as_small_ones(rng, typical):
    """A count of 30 000 says where its log rate is to within .006: points laid out for the prior alone do not see that."""
    exposure = np.full(40, typical)
    y = rng.poisson(exposure * rng.gamma(2.0, 0.5, 40))
    fit = rb.localize(counts, "rate").fit(y, exposure)
    a, b = fit.hyperparameters["rate"].values()
    law = stats.nbinom(a, b / (b + exposure))
    np.testing.assert_allclose(fit.evidence, law.logpmf(y), atol=2e-14 * typical, rtol=1e-10)  # rounding of log y!
    new, law = fit.predictive(exposure=exposure[:4]), stats.nbinom(a, b / (b + typical))
    np.testing.assert_allclose(new.cdf(y[:4]), law.cdf(y[:4]), rtol=1e-8)
    assert (new.cdf(np.full(4, -1)) == 0).all()
    if typical < 1e4:  # beyond, each incomplete gamma function takes thousands of terms
        np.testing.assert_array_equal(new.quantile(0.9), law.ppf(0.9))


def test_localized_proportions_are_a_beta_binomial(rng):
    def litters(y, n):
        p = numpyro.sample("p", dist.Beta(1.0, 1.0))
        with numpyro.plate("litter", y.shape[0]):
            numpyro.sample("y", dist.Binomial(n, probs=p), obs=y)

    n = rng.integers(4, 20, 150)
    y = rng.binomial(n, rng.beta(2, 6, 150))
    fit = rb.localize(litters, "p").fit(y, n)
    a, b = fit.hyperparameters["p"].values()
    np.testing.assert_allclose(fit.evidence, stats.betabinom(n, a, b).logpmf(y), rtol=1e-9)
    best = optimize.minimize(
        lambda v: -stats.betabinom(n, *np.exp(v)).logpmf(y).sum(),
        np.ones(2),
        method="Nelder-Mead",
        options={"xatol": 1e-8, "fatol": 1e-10},
    )
    assert fit.log_likelihood == pytest.approx(-best.fun, abs=1e-6)


def test_localized_topics_are_a_dirichlet_multinomial(rng):
    def words(counts):
        topic = numpyro.sample("topic", dist.Dirichlet(jnp.ones(counts.shape[1])))
        with numpyro.plate("document", counts.shape[0]):
            numpyro.sample("counts", dist.Multinomial(counts.sum(-1), probs=topic), obs=counts)

    y = np.stack([rng.multinomial(25, p) for p in rng.dirichlet([1.0, 2.0, 4.0], 150)])
    fit = rb.localize(words, "topic").fit(y)
    concentration = fit.hyperparameters["topic"]["concentration"]
    np.testing.assert_allclose(fit.evidence, stats.dirichlet_multinomial(concentration, 25).logpmf(y), rtol=1e-9)
    best = optimize.minimize(
        lambda v: -stats.dirichlet_multinomial(np.exp(v), 25).logpmf(y).sum(),
        np.zeros(3),
        method="Nelder-Mead",
        options={"xatol": 1e-8, "fatol": 1e-10, "maxiter": 4000},
    )
    assert fit.log_likelihood == pytest.approx(-best.fun, abs=1e-6)


def test_localized_means_are_normal_means(rng):
    def means(y, s):
        mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
        with numpyro.plate("unit", y.shape[0]):
            numpyro.sample("y", dist.Normal(mu, s), obs=y)

    s = rng.uniform(0.5, 2, 200)
    y = 3 + 1.5 * rng.normal(size=200) + s * rng.normal(size=200)
    fit = rb.localize(means, "mu").fit(y, s)
    best = optimize.minimize(
        lambda v: -stats.norm(v[0], np.sqrt(np.exp(2 * v[1]) + s**2)).logpdf(y).sum(),
        [0.0, 0.0],
        method="Nelder-Mead",
        options={"xatol": 1e-9, "fatol": 1e-11},
    )
    assert fit.log_likelihood == pytest.approx(-best.fun, abs=1e-8)
    assert fit.hyperparameters["mu"]["scale"] == pytest.approx(np.exp(best.x[1]), rel=1e-5)


@pytest.mark.parametrize("far", [0.0, 1e3, 1e6])
def test_means_far_from_zero_keep_their_digits(far):
    """Squares of 10⁸ standard errors leave no digits for what rows differ in; counted from the prior's centre they do."""

    def precise(error, y=None):
        own = numpyro.sample("own", dist.Normal(0.0, 1.0))
        with numpyro.plate("data", error.shape[0]):
            numpyro.sample("y", dist.Normal(own, error), obs=y)

    rng = np.random.default_rng(0)
    error = 0.01 * np.exp(0.3 * rng.normal(size=60))
    y = far + np.round(rng.normal(size=60), 3)
    fit = rb.localize(precise, "own").fit(error, y)
    loc, scale = fit.hyperparameters["own"].values()
    assert fit.approximation == "Exact()"
    np.testing.assert_allclose(fit.evidence, stats.norm(loc, np.hypot(scale, error)).logpdf(y), atol=1e-4)
    assert scale == pytest.approx(np.sqrt(np.mean((y - np.mean(y)) ** 2)), rel=1e-3)
    share = scale**2 / (scale**2 + error**2)
    np.testing.assert_allclose(fit.posterior().mean, loc + share * (y - loc), atol=1e-6)
    np.testing.assert_allclose(fit.posterior().sd, np.sqrt(share) * error, rtol=1e-6)


def poisson(x, y=None):
    w = numpyro.sample("w", dist.ImproperUniform(dist.constraints.real_vector, (), event_shape=(x.shape[1],)))
    b = numpyro.sample("b", dist.Normal(0.0, 1.0))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Poisson(jnp.exp(b + x @ w)), obs=y)


REFERENCE = json.loads((Path(__file__).parents[1] / "references" / "core.json").read_text())


@pytest.mark.parametrize("name", ["quine", "epil"])
def test_a_localized_intercept_is_lme4s_observation_level_effect(name):
    data, expected = REFERENCE[name]["data"], REFERENCE[name]["fit"]
    y = np.array(data.pop("y") if "y" in data else REFERENCE[name]["y"])
    REFERENCE[name]["y"] = y
    x = np.column_stack([np.asarray(column, dtype=float) for column in data.values()])
    fit = rb.localize(poisson, "b").fit(x, y)
    found = np.r_[fit.hyperparameters["b"]["loc"], fit.shared["w"]]
    np.testing.assert_allclose(found, list(expected["coefficients"].values()), atol=1e-4)
    assert fit.hyperparameters["b"]["scale"] ** 2 == pytest.approx(expected["variance"], abs=1e-4)


def t_mixture(y):
    weight = numpyro.sample("weight", dist.Dirichlet(jnp.ones(3)))
    centre = numpyro.sample("centre", dist.Normal(0, 10).expand([3]).to_event(1))
    scale = numpyro.sample("scale", dist.LogNormal(0, 1).expand([3]).to_event(1))
    precision = numpyro.sample("precision", dist.Gamma(2.0, 2.0))
    with numpyro.plate("data", y.shape[0]):
        z = numpyro.sample("z", dist.Categorical(weight), infer={"enumerate": "parallel"})
        numpyro.sample("y", dist.Normal(centre[z], scale[z] * precision**-0.5), obs=y)


def test_a_mixture_of_three_ts_reaches_its_maximum(rng):
    y = np.concatenate(
        [
            -5 + 0.5 * rng.standard_t(4, 200),
            rng.standard_t(4, 150),
            6 + 0.8 * rng.standard_t(4, 150),
        ]
    )
    fit = rb.localize(t_mixture, "precision", fixed={"rate": 2.0}).fit(y)

    def objective(v):
        weight = np.exp(np.r_[v[:2], 0.0])
        weight /= weight.sum()
        a, scale = np.exp(v[8]), np.exp(v[5:8])
        laws = [stats.t(2 * a, loc=m, scale=s * np.sqrt(2.0 / a)).logpdf(y) for m, s in zip(v[2:5], scale)]
        prior = stats.norm(0, 10).logpdf(v[2:5]).sum() + stats.lognorm(1.0).logpdf(scale).sum()
        return -logsumexp(np.log(weight)[:, None] + laws, axis=0).sum() - prior - np.log(2.0)

    best = optimize.minimize(objective, np.r_[0.0, 0.0, -5, 0, 6, -0.7, 0, -0.2, 0.7], method="BFGS")
    assert fit.objective == pytest.approx(-best.fun, abs=1e-3)


def test_without_heterogeneity_the_classical_model_comes_back(rng):
    y = rng.binomial(20, 0.3, size=300)  # less spread than a Poisson
    fit = rb.localize(counts, "rate").fit(y, np.ones(300))
    assert fit.outcome.kind == "boundary"
    assert "no heterogeneity" in fit.outcome.text
    assert fit.shared["rate"] == pytest.approx(y.mean(), rel=1e-8)
    np.testing.assert_allclose(fit.evidence, stats.poisson(fit.shared["rate"]).logpmf(y), rtol=1e-10)
    assert fit.hyperparameters["rate"] == {"concentration": np.inf, "rate": np.inf}
    with pytest.raises(rb.ModelError, match="no heterogeneity"):
        fit.posterior("rate")


def test_light_tails_give_the_normal_regression_back(rng):
    x = rng.normal(size=(250, 2))
    y = x @ np.array([1.0, 2.0]) + rng.uniform(-1, 1, 250)
    fit = rb.localize(linear, "precision").fit(x, y)
    assert fit.outcome.kind == "boundary"
    plain = np.linalg.solve(x.T @ x * fit.shared["precision"] + np.eye(2) / 100, x.T @ y * fit.shared["precision"])
    np.testing.assert_allclose(fit.shared["w"], plain, rtol=1e-7)


def test_the_boundary_is_found_in_about_half_of_clean_poisson_sets_and_in_no_noisy_one():
    # Under a Poisson the score is symmetric around zero, so P(boundary) tends to 1/2: 40 sets give 9 to 31 with
    # probability 0.9999. With rates that vary by a factor of two, missing it has probability below 1e-6 a set.
    robust = rb.localize(counts, "rate")
    rng = np.random.default_rng(5)
    clean = [robust.fit(rng.poisson(4.0, 200), np.ones(200)).outcome.kind for _ in range(40)]
    noisy = [robust.fit(rng.poisson(rng.gamma(3, 2, 200)), np.ones(200)).outcome.kind for _ in range(5)]
    assert 9 <= clean.count("boundary") <= 31
    assert noisy.count("boundary") == 0


def test_classical_fits_the_model_as_it_is(rng):
    x, y = t_data(3)
    fit = rb.classical(linear).fit(x, y)
    assert fit.hyperparameters == {}
    residual = stats.norm(x @ fit.shared["w"], fit.shared["precision"] ** -0.5).logpdf(y)
    np.testing.assert_allclose(fit.evidence, residual, rtol=1e-10)
    robust = STUDENT.fit(x, y)
    assert robust.log_likelihood > fit.log_likelihood
    assert robust.aic < fit.aic
    truth = np.array([1.0, -2.0, 0.5])
    assert np.sum((robust.shared["w"] - truth) ** 2) < np.sum((fit.shared["w"] - truth) ** 2)


def test_a_truncated_or_transformed_prior_is_not_taken_for_the_law_inside():
    def cut(y):
        b = numpyro.sample("b", dist.TruncatedNormal(1.0, 2.0, low=0.5))
        with numpyro.plate("data", y.shape[0]):
            numpyro.sample("y", dist.Normal(b, 1.0), obs=y)

    def moved(y):
        affine = dist.transforms.AffineTransform(3.0, 2.0)
        b = numpyro.sample("b", dist.TransformedDistribution(dist.Normal(1.0, 2.0), [affine]))
        with numpyro.plate("data", y.shape[0]):
            numpyro.sample("y", dist.Normal(b, 1.0), obs=y)

    y = stats.norm(2.0, 1.5).rvs(60, random_state=0)
    held = {"fixed": {"loc": 1.0}}
    fit = rb.localize(cut, "b", **held).fit(y)
    scale = float(fit.hyperparameters["b"]["scale"])
    middle, sd = (y * scale**2 + 1.0) / (scale**2 + 1.0), np.sqrt(scale**2 / (scale**2 + 1.0))
    above = stats.norm.logsf(0.5, middle, sd) - stats.norm.logsf(0.5, 1.0, scale)
    np.testing.assert_allclose(fit.evidence, stats.norm(1.0, np.hypot(1.0, scale)).logpdf(y) + above, rtol=1e-6)
    fit = rb.localize(moved, "b", **held).fit(y)
    scale = 2.0 * float(fit.hyperparameters["b"]["scale"])
    np.testing.assert_allclose(fit.evidence, stats.norm(5.0, np.hypot(1.0, scale)).logpdf(y), rtol=1e-6)


@pytest.mark.parametrize("approx", [rb.Exact(), rb.Quadrature(21)])
def test_a_local_whose_prior_follows_a_discrete_latent_is_a_mixture(approx):
    def led(y):
        noise = numpyro.sample("noise", dist.LogNormal(0.0, 0.3))
        with numpyro.plate("data", y.shape[0]):
            z = numpyro.sample("z", dist.Bernoulli(0.3), infer={"enumerate": "parallel"})
            b = numpyro.sample("b", dist.Normal(3.0 * z, 1.0 + z))
            numpyro.sample("y", dist.Normal(b, noise), obs=y)

    rng = np.random.default_rng(0)
    z = rng.random(300) < 0.3
    y = 3.0 * z + rng.normal(size=300) * np.hypot(1.0, 1.0 + z)
    fit = rb.localize(led, "b").fit(y, approx=approx)
    noise = float(fit.shared["noise"])
    parts = [stats.norm(3.0 * k, np.hypot(noise, 1.0 + k)).logpdf(y) + np.log([0.7, 0.3][k]) for k in (0, 1)]
    np.testing.assert_allclose(fit.evidence, logsumexp(parts, axis=0), rtol=1e-6)
    share = np.exp(parts[1] - logsumexp(parts, axis=0))
    means = [(3.0 * k * noise**2 + y * (1.0 + k) ** 2) / (noise**2 + (1.0 + k) ** 2) for k in (0, 1)]
    np.testing.assert_allclose(fit.posterior("b").mean, (1 - share) * means[0] + share * means[1], rtol=1e-4, atol=1e-5)
