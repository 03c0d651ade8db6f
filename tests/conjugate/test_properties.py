"""Claims for any rows: EM never goes down, evidence is the compound law, row intervals cover."""

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from scipy import stats

from robustly.conjugate import BetaBinomial, GammaPoisson, NormalInverseGamma, NormalNormal

EXAMPLES = settings(
    max_examples=10,
    deadline=None,
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
COUNTS = st.lists(st.integers(0, 300), min_size=8, max_size=8)
# Away from the centre: on it, the likelihood of a t is unbounded.
REALS = st.lists(st.floats(0.5, 1e3, width=32), min_size=8, max_size=8, unique=True)


@EXAMPLES
@given(COUNTS)
def test_em_never_goes_down_and_ends_where_direct_does(x):
    em, direct = GammaPoisson().fit(x, method="em"), GammaPoisson().fit(x)
    values = [entry["value"] for entry in em.history]
    assert np.all(np.diff(values) >= -1e-9 * max(1.0, abs(values[-1])))
    assert em.log_likelihood == pytest.approx(direct.log_likelihood, abs=1e-6)


@EXAMPLES
@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), min_size=8, max_size=8))
def test_evidence_is_the_beta_binomial_for_any_rows(pairs):
    x = np.array([a for a, _ in pairs])
    trials = x + np.array([b for _, b in pairs]) + 1
    fit = BetaBinomial().fit(x, trials)
    h = fit.hyperparameters
    if fit.outcome.kind == "boundary":
        assert np.all(np.isfinite(fit.evidence))
    else:
        law = stats.betabinom(trials, h["concentration1"], h["concentration0"])
        np.testing.assert_allclose(fit.evidence, law.logpmf(x), rtol=1e-7, atol=1e-7)


@EXAMPLES
@given(REALS)
def test_a_t_is_never_worse_than_the_normal(x):
    x = np.asarray(x) * np.resize([1.0, -1.0], 8)
    fit = NormalInverseGamma(loc=0.0).fit(x)
    normal = stats.norm(0.0, np.sqrt(np.mean(x**2))).logpdf(x).sum()
    assert fit.log_likelihood >= normal - 1e-8 * max(1.0, abs(normal))


def _coverage(simulate, fit, repetitions, seed):
    rng = np.random.default_rng(seed)
    aware, naive = [], []
    for _ in range(repetitions):
        truth, data = simulate(rng)
        found = fit(*data)
        for kept, (low, high) in ((aware, found.row_intervals(0.9)), (naive, found.posterior().interval(0.9))):
            kept.append(np.mean((low <= truth) & (truth <= high)))
    return np.mean(aware), np.mean(naive)


def test_row_intervals_for_means_cover_and_naive_ones_fall_short():
    """20 rows, 80 repetitions: the standard error is about 0.009, so 0.90 ± 0.036 is four of them (1 in 15 000)."""

    def simulate(rng):
        truth = rng.normal(1.0, 1.0, 20)
        return truth, (truth + rng.normal(size=20), 1.0)

    aware, naive = _coverage(simulate, NormalNormal().fit, 80, seed=1)
    assert 0.88 <= aware <= 0.936
    assert naive < aware - 0.02


def test_row_intervals_for_rates_cover_and_naive_ones_fall_short():
    """20 rows, 60 repetitions: the standard error is about 0.009."""

    def simulate(rng):
        truth = rng.gamma(2.0, 1.0, 20)
        return truth, (rng.poisson(3.0 * truth), np.full(20, 3.0))

    aware, naive = _coverage(simulate, GammaPoisson().fit, 60, seed=2)
    assert 0.87 <= aware <= 0.936
    assert naive < aware - 0.01
