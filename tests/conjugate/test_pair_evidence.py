"""Closed forms: evidence is the compound law, densities add up to one, posterior = prior × likelihood."""

from dataclasses import dataclass
from typing import ClassVar

import jax.numpy as jnp
import numpy as np
import pytest
from conjugate_rows import PAIRS, compound, draw
from jax.scipy.special import gammaln
from numpyro.distributions import constraints
from scipy import stats

from robustly.conjugate import BetaBernoulli, ConjugatePair, GammaPoisson
from robustly.errors import ModelError
from robustly.testing import check_pair


@pytest.mark.parametrize("name", PAIRS)
def test_posterior_is_prior_times_likelihood_and_densities_add_up_to_one(name):
    data = draw(name, n=4, seed=3)
    found = check_pair(PAIRS[name], *data)
    assert {"closed form", "posterior"} <= found.keys()
    assert max(found.values()) < 1e-9


@pytest.mark.parametrize("name", PAIRS)
def test_fitted_evidence_is_the_compound_log_likelihood(name, fitted):
    fit, data = fitted(name)
    np.testing.assert_allclose(fit.evidence, compound(name, fit, data), rtol=2e-9, atol=2e-9)


def test_one_trial_has_the_same_evidence_at_every_concentration():
    few = BetaBernoulli(concentration=0.5).fit([0, 1, 1])
    many = BetaBernoulli(concentration=500.0).fit([0, 1, 1])
    assert few.log_likelihood == pytest.approx(many.log_likelihood, abs=1e-12)
    assert few.log_likelihood == pytest.approx(np.log(1 / 3) + 2 * np.log(2 / 3), abs=1e-12)


@dataclass(frozen=True)
class GammaRayleigh(ConjugatePair):
    """A pair of a user's own: Rayleigh values with a precision of their own."""

    support: ClassVar[str] = "positive"

    def coordinates(self, columns):
        return {"concentration": (constraints.positive, ()), "rate": (constraints.positive, ())}

    def natural(self, theta, row):
        return theta["concentration"], theta["rate"]

    def log_normalizer(self, eta):
        return gammaln(eta[0]) - eta[0] * jnp.log(eta[1])

    def statistic(self, theta, row):
        return 1.0, 0.5 * row["x"] ** 2

    def log_base(self, theta, row):
        return jnp.log(row["x"])


@dataclass(frozen=True)
class Mistaken(GammaRayleigh):
    def log_base(self, theta, row):
        return 2.0 * jnp.log(row["x"])


@dataclass(frozen=True)
class MistakenLaw(GammaRayleigh):
    def law(self, eta):
        return stats.gamma(eta[0], scale=eta[1])

    def likelihood(self, local, theta, columns):
        return stats.rayleigh(scale=local**-0.5)


def test_a_pair_of_three_functions_is_checked_fitted_and_predicts():
    rng = np.random.default_rng(0)
    x = rng.rayleigh(rng.gamma(3, 1 / 2, 800) ** -0.5)
    assert check_pair(GammaRayleigh(), x[:4])["integrates to one"] < 1e-8
    fit = GammaRayleigh().fit(x)
    assert fit.outcome.converged
    a, b = fit.hyperparameters["concentration"], fit.hyperparameters["rate"]
    low, high = fit.confint(0.999)["concentration"]
    assert low < 3 < high
    np.testing.assert_allclose(fit.posterior().mean[:, 0], _mean_log_gamma(a + 1, b + x**2 / 2), rtol=1e-10)
    # x² / 2 is Lomax(a, b), so quantiles of x are known.
    quantile = np.sqrt(2 * stats.lomax(a, scale=b).ppf(0.8))
    assert fit.predictive().quantile(0.8)[0] == pytest.approx(quantile, rel=1e-5)
    assert fit.predictive().sample(10, key=1).shape == (10, 1)
    assert GammaRayleigh().fit(x, method="em").objective == pytest.approx(fit.objective, abs=1e-7)
    with pytest.raises(ModelError, match="law"):
        fit.posterior().quantile(0.5)


def _mean_log_gamma(a, b):
    from scipy.special import digamma

    return digamma(a) - np.log(b)


def test_a_wrong_base_measure_is_found():
    with pytest.raises(ModelError, match="Mistaken fails the check “integrates to one” in row 0"):
        check_pair(Mistaken(), [1.0, 2.0])


def test_a_prior_that_does_not_fit_its_normaliser_is_found():
    with pytest.raises(ModelError, match="prior × likelihood is not evidence × posterior"):
        check_pair(MistakenLaw(), [1.0, 2.0])


def test_evidence_keeps_its_digits_next_to_the_poisson():
    """At a concentration of 1e12 the negative binomial is the Poisson to 1e-10; a difference of log gammas is not."""
    x = np.arange(60)
    near = GammaPoisson(concentration=1e12, mean=20.0).fit(x).evidence
    np.testing.assert_allclose(near, stats.poisson(20.0).logpmf(x), atol=1e-9)
