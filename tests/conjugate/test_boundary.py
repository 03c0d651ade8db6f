"""Rows that do not differ give the classical model back; rows that cannot be used are named."""

import numpy as np
import pytest
from scipy import sparse, stats

from robustly import conjugate as c
from robustly.errors import DataError, FitError, ModelError, SupportError

INF = np.inf
UNIFORM = np.random.default_rng(0).uniform(1, 2, 300)

LIMITS = {
    "normal data for a t": (c.NormalInverseGamma(), (UNIFORM,), (), "concentration", INF),
    "counts less varied than Poisson": (
        c.GammaPoisson(), (np.random.default_rng(0).binomial(10, 0.5, 200),), (), "concentration", INF,
    ),
    "all counts 0": (c.GammaPoisson(), (np.zeros(30, dtype=int),), (), "concentration", INF),
    "all counts equal": (c.GammaPoisson(), (np.full(30, 4),), (), "concentration", INF),
    "equal proportions": (c.BetaBinomial(), (np.full(30, 5), 10), (10,), "concentration1", INF),
    "no successes": (c.BetaBinomial(), (np.zeros(30), 10), (10,), "concentration1", INF),
    "successes only": (c.BetaBinomial(), (np.full(30, 10), 10), (10,), "concentration1", INF),
    "all or nothing": (c.BetaBinomial(), ([0, 10, 10, 0, 10], 10), (10,), "concentration1", 0.0),
    "single trials": (c.BetaBernoulli(), ([0, 1, 1, 0],), (), "concentration1", INF),
    "equal means": (c.NormalNormal(), (np.full(20, 3.0), 1.0), (1.0,), "scale", 0.0),
    "equal times": (c.GammaExponential(), (np.full(20, 3.0),), (), "concentration", INF),
    "no failures": (c.BetaGeometric(), (np.zeros(20),), (), "concentration1", INF),
    "equal failures": (c.BetaNegativeBinomial(), (np.full(20, 3), 2), (2,), "concentration1", INF),
    "equal log means": (c.NormalLogNormal(), (np.full(20, 3.0), 2.0), (2.0,), "scale", 0.0),
    "log-normal data": (c.InverseGammaLogNormal(), (np.exp(UNIFORM),), (), "concentration", INF),
    "normal vectors": (c.NormalWishart(), (UNIFORM.reshape(150, 2),), (), "df", INF),
    "equal shares": (c.DirichletMultinomial(), (np.tile([3, 4, 5], (20, 1)),), (5,), "concentration", INF),
    "rows of one category": (c.DirichletMultinomial(), (9 * np.eye(3)[[0, 1, 2, 0]],), (5,), "concentration", 0.0),
}  # fmt: skip


@pytest.mark.parametrize("case", LIMITS)
def test_no_heterogeneity_is_reported_as_a_limit_and_nothing_is_nan(case):
    pair, data, companions, name, limit = LIMITS[case]
    fit = pair.fit(*data)
    assert fit.outcome.kind == "boundary"
    assert fit.outcome.converged
    assert "heterogeneity" in fit.outcome.text
    assert np.all(np.asarray(fit.hyperparameters[name]) == limit)
    numbers = [*fit.parameters.values(), *fit.derived.values(), fit.evidence, *fit.confint().values()]
    predictive = fit.predictive(*companions)
    numbers += [predictive.mean, predictive.sd, predictive.interval(0.9), predictive.sample(3, key=0)]
    numbers += [fit.posterior().mean, fit.posterior().sd, fit.covariance(), fit.covariance("sandwich")]
    assert not any(np.any(np.isnan(np.asarray(number))) for number in numbers)
    assert "boundary" in str(fit.summary())


def test_the_classical_evidence_is_that_of_the_classical_law():
    x = np.random.default_rng(1).binomial(10, 0.5, 100)
    fit = c.GammaPoisson().fit(x)
    np.testing.assert_allclose(fit.evidence, stats.poisson(x.mean()).logpmf(x), rtol=1e-12)
    normal = c.NormalInverseGamma().fit(UNIFORM)
    np.testing.assert_allclose(normal.evidence, stats.norm(UNIFORM.mean(), UNIFORM.std()).logpdf(UNIFORM), rtol=1e-12)
    assert (normal.dof, normal.scale) == (INF, pytest.approx(UNIFORM.std()))
    se = normal.standard_errors
    assert se["loc"] == pytest.approx(UNIFORM.std() / 300**0.5, rel=1e-9)


@pytest.mark.parametrize("seed", range(5))
def test_normal_data_come_back_as_normal_exactly_when_their_kurtosis_is_not_above_three(seed):
    x = np.random.default_rng(seed).normal(size=400)
    heavier = stats.kurtosis(x, fisher=False) > 3
    assert (c.NormalInverseGamma().fit(x).outcome.kind == "converged") == heavier


def test_em_also_finds_the_boundary():
    fit = c.GammaPoisson().fit(np.full(30, 4), method="em")
    assert fit.outcome.kind == "boundary"


def test_a_rate_of_zero_has_an_upper_limit():
    """No event in an exposure of 30: rates above −log(0.05)/30 have less than a twentieth of the likelihood."""
    low, high = c.GammaPoisson().fit(np.zeros(30)).confint(0.95)["rate"]
    assert (low, high) == (0.0, pytest.approx(-np.log(0.05) / 30, rel=1e-6))


def test_row_intervals_have_a_length_even_where_the_best_spread_is_zero():
    fit = c.NormalNormal().fit([28.0, 8, -3, 7, -1, 1, 18, 12], [225.0, 100, 256, 121, 81, 121, 100, 324])
    assert fit.outcome.kind == "boundary"
    low, high = fit.row_intervals(0.9)
    assert np.all(high - low > 5)
    naive_low, naive_high = fit.posterior().interval(0.9)
    np.testing.assert_array_equal(naive_low, naive_high)


BAD = {
    "negative count": (
        c.GammaPoisson(),
        ([1, -2, 3],),
        SupportError,
        r"counts holds -2 in row 1, but counts start at 0",
    ),
    "part of a count": (c.GammaPoisson(), ([1.0, 2.5],), SupportError, r"2\.5 in row 1, but counts are whole numbers"),
    "exposure 0": (c.GammaPoisson(), ([1, 2], [1.0, 0.0]), SupportError, r"exposure holds 0\.0 in row 1"),
    "missing count": (c.GammaPoisson(), ([1.0, np.nan],), DataError, r"missing value \(NaN\) in row 1"),
    "text": (c.GammaPoisson(), (["a", "b"],), DataError, "numbers are needed"),
    "nothing": (c.GammaPoisson(), ([],), DataError, "empty"),
    "too many successes": (c.BetaBinomial(), ([3, 7], [5, 6]), SupportError, "7 in row 1, but there are only 6 trials"),
    "no trials": (c.BetaBinomial(), ([0, 0], [5, 0]), SupportError, "trials holds 0 in row 1, but trials start at 1"),
    "lengths": (c.BetaBinomial(), ([0, 0], [5, 5, 5]), DataError, "trials has 3 rows, but the data have 2"),
    "variance 0": (c.NormalNormal(), ([1.0, 2.0], [1.0, 0.0]), SupportError, r"variances holds 0\.0 in row 1"),
    "variance below 0": (c.NormalNormal(), ([1.0, 2.0], -1.0), SupportError, "known variances are above 0"),
    "all equal": (c.NormalInverseGamma(), ([2.0, 2.0, 2.0],), DataError, r"all rows hold 2\.0"),
    "infinite": (c.NormalInverseGamma(), ([2.0, INF, 2.0],), DataError, "inf in row 1"),
    "ties": (
        c.NormalInverseGamma(),
        ([0.0] * 20 + [1.0, 5.0, -3.0],),
        FitError,
        r"20 of 23 rows hold exactly 0\.0: the",
    ),
    "time 0": (c.GammaExponential(), ([1.0, 0.0],), SupportError, r"0\.0 in row 1, but values are above 0"),
    "two outcomes": (c.BetaBernoulli(), ([0, 2],), SupportError, "outcomes are 0 or 1"),
    "flat column": (c.NormalWishart(), (np.c_[UNIFORM, np.ones(300)],), DataError, "column 1 of x holds one value"),
    "dependent": (c.NormalWishart(), (np.c_[UNIFORM, 2 * UNIFORM],), DataError, "linearly dependent"),
    "no counts": (c.DirichletMultinomial(), (np.zeros((3, 2)),), DataError, "all counts are 0"),
    "negative share": (c.DirichletMultinomial(), ([[1, -1]],), SupportError, "-1.0 in row 0, column 1"),
    "sparse": (c.DirichletMultinomial(), (sparse.csr_matrix([[1.0, 0], [0, 0.5]]),), SupportError, "0.5 in row 1"),
    "one category": (c.DirichletMultinomial(), ([[1], [2]],), DataError, "at least two categories"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_rows_are_named(case):
    pair, data, error, words = BAD[case]
    with pytest.raises(error, match=words):
        pair.fit(*data)


def test_bad_options_say_what_to_do():
    with pytest.raises(ModelError, match=r'method is "direct" and "em"; got "dirct". Did you mean "direct"'):
        c.GammaPoisson().fit([1, 2, 9], method="dirct")
    with pytest.raises(ModelError, match=r'no hyperparameter "concentratoin".*Did you mean "concentration"'):
        c.GammaPoisson().fit([1, 2, 9], hyperprior={"concentratoin": None})
    with pytest.raises(ModelError, match="a NumPyro distribution is needed"):
        c.GammaPoisson().fit([1, 2, 9], hyperprior={"concentration": 3.0})
    with pytest.raises(ModelError, match="concentration is a finite number above 0"):
        c.GammaPoisson(concentration=-1.0)
    with pytest.raises(DataError, match="rank 1"):
        c.GammaPoisson().fit([1, 2, 9], design=np.ones((3, 2)))
    with pytest.raises(ModelError, match="between 0 and 1"):
        c.GammaPoisson().fit([1, 2, 9]).posterior().quantile(1.0)
    with pytest.raises(DataError, match=r"weights hold -1\.0 in row 1"):
        c.GammaPoisson().fit([1, 2, 9], weights=[1.0, -1.0, 1.0])
