"""Zero-inflated, hurdle and Tweedie families: statsmodels' likelihoods, closed forms, and one law in all answers."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
from scipy import stats
from statsmodels.tools.numdiff import approx_hess

import robustly as rb
from robustly._runtime.precision import double_precision
from robustly.errors import ModelError
from robustly.glm.zeros import (
    HurdleNegativeBinomial,
    HurdlePoisson,
    Tweedie,
    ZeroInflatedNegativeBinomial,
    ZeroInflatedPoisson,
)

COUNTS = [
    (ZeroInflatedPoisson(), (0.5,)),
    (ZeroInflatedNegativeBinomial(), (0.5, 2.0)),
    (HurdlePoisson(), (0.5,)),
    (HurdleNegativeBinomial(), (0.5, 2.0)),
]


def density(family, y, m, nuisance):
    with double_precision():
        return np.exp(
            float(family.log_prob(y, 1.0, m, *nuisance)) + float(family.log_base(np.array([y]), np.ones(1))[0])
        )


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    n = 250
    x = rng.normal(size=n)
    rate = np.exp(0.8 + 0.5 * x)
    return pd.DataFrame(
        {
            "x": x,
            "zip": rng.poisson(rate) * (rng.random(n) > 0.3),
            "zinb": rng.poisson(rate * rng.gamma(2, 0.5, n)) * (rng.random(n) > 0.3),
            "claims": Tweedie(1.4).draw(rng, np.log(rate), (1.3,), np.ones(n)),
        }
    )


@pytest.mark.parametrize(("family", "nuisance"), COUNTS, ids=lambda one: type(one).__name__)
def test_counts_have_one_law_in_all_answers(family, nuisance):
    m, trials, y = np.array([0.7]), np.ones(1), np.arange(200.0)
    mass = np.array([density(family, k, 0.7, nuisance) for k in y])
    assert mass.sum() == pytest.approx(1.0, abs=1e-10)
    mean, variance = (of(m, nuisance, trials)[0] for of in (family.mean, family.variance))
    assert mean == pytest.approx(mass @ y, rel=1e-5)
    assert variance == pytest.approx(mass @ y**2 - (mass @ y) ** 2, rel=1e-4)
    cdf = np.array([family.cdf(np.array([k]), m, nuisance, trials)[0] for k in y[:20]])
    np.testing.assert_allclose(cdf, np.cumsum(mass)[:20], rtol=1e-5)
    drawn = family.draw(np.random.default_rng(1), np.full(20_000, 0.7), nuisance, np.ones(20_000))
    # Five standard errors: one false alarm in two million.
    assert abs(drawn.mean() - mean) < 5 * np.sqrt(variance / 20_000)
    assert abs((drawn == 0).mean() - mass[0]) < 5 * np.sqrt(mass[0] * (1 - mass[0]) / 20_000)


def test_zero_inflation_is_statsmodels(data):
    X = sm.add_constant(data["x"])
    theirs = sm.ZeroInflatedPoisson(data["zip"], X).fit(disp=0, method="bfgs", gtol=1e-8)
    ours = rb.glm("zip ~ x", data, family="zero_inflated_poisson", local=None)
    np.testing.assert_allclose([np.log(ours.shared["zero_odds"]), *ours.params], theirs.params, atol=1e-5)
    assert ours.log_likelihood == pytest.approx(theirs.llf, abs=1e-6)
    # Their standard errors come from a Hessian that is not that of their likelihood, which is taken numerically here.
    hessian = approx_hess(theirs.params.to_numpy(), theirs.model.loglike)
    np.testing.assert_allclose(ours.bse, np.sqrt(np.diag(np.linalg.inv(-hessian)))[1:], rtol=1e-3)


def test_zero_inflated_negative_binomials_are_statsmodels(data):
    X = sm.add_constant(data["x"])
    theirs = sm.ZeroInflatedNegativeBinomialP(data["zinb"], X).fit(disp=0, method="bfgs", maxiter=500, gtol=1e-8)
    ours = rb.glm("zinb ~ x", data, family="zero_inflated_negative_binomial", local=None)
    assert ours.log_likelihood == pytest.approx(theirs.llf, abs=1e-5)
    np.testing.assert_allclose([*ours.params, 1 / ours.shared["size"]], theirs.params.iloc[1:], rtol=1e-4)


def test_a_hurdle_is_a_coin_and_a_truncated_count(data):
    fit = rb.glm("zip ~ x", data, family="hurdle_poisson", local=None)
    zeros = int((data["zip"] == 0).sum())
    assert fit.shared["zero_odds"] == pytest.approx(zeros / (len(data) - zeros), rel=1e-6)
    some = data[data["zip"] > 0]
    rate = np.exp(fit.params["Intercept"] + fit.params["x"] * some["x"])
    beyond = stats.poisson.logpmf(some["zip"], rate) - np.log(-np.expm1(-rate))
    coin = zeros * np.log(zeros / len(data)) + (len(data) - zeros) * np.log(1 - zeros / len(data))
    assert fit.log_likelihood == pytest.approx(coin + beyond.sum(), rel=1e-8)
    # The score of the truncated count is zero there.
    slope = some["zip"] - rate / -np.expm1(-rate)
    assert abs(slope.sum()) < 1e-3
    assert abs((slope * some["x"]).sum()) < 1e-3


def test_a_local_rate_goes_with_extra_zeros(data):
    robust, classical = (
        rb.glm("zinb ~ x", data, family="zero_inflated_poisson", local=local) for local in ("predictor", None)
    )
    assert robust.spread > 0.2
    assert robust.log_likelihood > classical.log_likelihood + 10
    assert robust.test("spread = 0").pvalue < 1e-4
    law = robust.predictive(data.head(2))
    low, high = law.mean_interval()
    assert np.all((low < law.mean) & (law.mean < high))


def test_counts_without_zeros_say_so(data):
    with pytest.raises(ModelError, match="no response is 0"):
        rb.glm("I(zip + 1) ~ x", data, family="zero_inflated_poisson")
    fit = rb.glm("zip ~ x", data, family="zero_inflated_poisson", local=None)
    assert np.isfinite(fit.predictive(data.head()).log_prob(np.full(5, 3.0))).all()  # new rows need no zeros


@pytest.mark.parametrize("power", [1.1, 1.5, 1.9])
@pytest.mark.parametrize("dispersion", [0.01, 1.0, 20.0])
def test_the_tweedie_density_is_that_of_its_distribution_function(power, dispersion):
    family, m = Tweedie(power), np.array([0.5])
    none = density(family, 0.0, 0.5, (dispersion,))
    assert none == pytest.approx(family.cdf(np.zeros(1), m, (dispersion,), np.ones(1))[0], rel=1e-5)
    middle = np.exp(0.5)
    for low, high in ((0.5 * middle, middle), (middle, 1.5 * middle)):
        nodes, weights = np.polynomial.legendre.leggauss(60)
        at = 0.5 * (low + high) + 0.5 * (high - low) * nodes
        inside = 0.5 * (high - low) * weights @ [density(family, y, 0.5, (dispersion,)) for y in at]
        ends = [family.cdf(np.array([end]), m, (dispersion,), np.ones(1))[0] for end in (low, high)]
        assert inside == pytest.approx(ends[1] - ends[0], rel=1e-5, abs=1e-9)


def test_tweedie_coefficients_and_densities_are_statsmodels(data):
    fit = rb.glm("claims ~ x", data, family=Tweedie(1.4), local=None)
    family = sm.families.Tweedie(var_power=1.4, link=sm.families.links.Log(), eql=False)
    theirs = sm.GLM(data["claims"], sm.add_constant(data["x"]), family=family).fit()
    np.testing.assert_allclose(fit.params, theirs.params, atol=1e-6)
    known = family.loglike_obs(data["claims"].to_numpy(), fit.fittedvalues, scale=fit.shared["dispersion"])
    np.testing.assert_allclose(fit.evidence, known, rtol=1e-5, atol=1e-6)
    low, high = fit.predictive(data.head(5)).interval(0.9)
    assert np.all((low >= 0) & (high > low))
    with pytest.raises(ModelError, match="between 1 and 2; got 3"):
        Tweedie(3)


@pytest.mark.parametrize("name", ["zero_inflated_poisson", "hurdle_poisson", "tweedie"])
def test_they_are_kept_in_files_by_name(data, name, tmp_path):
    fit = rb.glm("zip ~ x", data, family=name, local=None)
    fit.save(tmp_path / "fit.robustly")
    again = rb.load(tmp_path / "fit.robustly")
    np.testing.assert_allclose(again.predictive(data.head()).mean, fit.predictive(data.head()).mean)
