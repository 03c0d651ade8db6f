"""Many counts are read off tables: probabilities and odds by row agree with those integrated row by row."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import poisson

import robustly as rb
from robustly.glm import counted_cdf
from robustly.glm.core_scores import normal_scores
from robustly.glm.counted_cdf import tabulated_cdf
from robustly.glm.families import Binomial, NegativeBinomial, Poisson
from robustly.glm.law import Law
from robustly.glm.local import Classical, LocalPredictor
from robustly.glm.predictive import Fitted, GLMPredictive
from robustly.glm.regression import Regression

ROWS = 25_000

LAWS = {
    "counts": (LocalPredictor(Poisson(), "normal"), [np.log(0.6)], [1.0]),
    "counts with tails": (LocalPredictor(Poisson(), "student_t"), [np.log(0.3), np.log(4.0)], [1.0]),
    "successes of 3 or 12": (LocalPredictor(Binomial(), "normal"), [np.log(0.8)], [3.0, 12.0]),
    "negative binomial": (LocalPredictor(NegativeBinomial(), "normal"), [np.log(0.3), np.log(5.0)], [1.0]),
}


@pytest.mark.parametrize("name", LAWS)
def test_tabulated_probabilities_are_those_integrated_by_row(name: str) -> None:
    law, phi, trials = LAWS[name]
    rng = np.random.default_rng(3)
    predictive = GLMPredictive(
        Fitted(law, np.array(phi), np.zeros(0), False), rng.normal(1.0, 0.7, ROWS), rng.choice(trials, ROWS)
    )
    y = predictive.sample(1, key=1)[0]
    # Some rows far beyond any table, one below all counts, and successes in every trial.
    y[:20] = predictive.trials[:20] if isinstance(law.family, Binomial) else y[:20] + rng.poisson(300.0, 20)
    y[20] = -1.0
    found, integrated = predictive.cdf(y), predictive._mixed_cdf_of_all(y)
    np.testing.assert_allclose(found, integrated, rtol=2e-6, atol=1e-7)
    assert np.median(np.abs(found - integrated)) < 1e-9


@pytest.mark.parametrize("law", [*(law for law, _, _ in LAWS.values()), Classical(Poisson())], ids=[*LAWS, "no spread"])
def test_tabulated_scores_are_those_integrated_by_row(law: Law, monkeypatch: pytest.MonkeyPatch) -> None:
    """To either side, far beyond any table, of counts that few rows have, and of all trials and none."""
    _, phi, trials = next((one for one in LAWS.values() if one[0] == law), (law, [], [1.0]))
    rng = np.random.default_rng(4)
    predictive = GLMPredictive(
        Fitted(law, np.array(phi), np.zeros(0), False), rng.normal(1.0, 0.7, ROWS), rng.choice(trials, ROWS)
    )
    y = predictive.sample(1, key=2)[0]
    y[:20] = predictive.trials[:20] if isinstance(law.family, Binomial) else y[:20] + rng.poisson(300.0, 20)
    y[20:30], predictive.m[20:30] = 0.0, 6.0
    score = lambda: normal_scores(law, predictive.m, np.array(phi), y, predictive.trials)
    found = score()
    monkeypatch.setattr(counted_cdf, "MANY_ROWS", ROWS)
    integrated = score()
    assert np.isfinite(found).all()
    assert integrated.max() > 4.0
    np.testing.assert_allclose(found, integrated, rtol=1e-6, atol=1e-6)
    assert np.median(np.abs(found - integrated)) < 1e-8


@pytest.mark.parametrize("name", ["counts", "counts with tails", "negative binomial"])
def test_quantiles_of_many_counts_are_those_found_by_row(name: str) -> None:
    law, phi, _ = LAWS[name]
    m = np.random.default_rng(5).normal(1.0, 0.7, 1200)
    fitted = Fitted(law, np.array(phi), np.zeros(0), False)
    many = GLMPredictive(fitted, m, np.ones(len(m)))
    for level in (0.05, 0.5, 0.95):
        found = many.quantile(level)
        some = np.arange(0, 1200, 6)
        np.testing.assert_array_equal(found[some], GLMPredictive(fitted, m[some], np.ones(200)).quantile(level))


def test_both_sides_of_a_count_are_found_together() -> None:
    law, phi, _ = LAWS["counts"]
    m = np.random.default_rng(6).normal(1.0, 0.7, 500)
    predictive = GLMPredictive(Fitted(law, np.array(phi), np.zeros(0), False), m, np.ones(500))
    y = predictive.sample(1, key=1)[0]
    strictly, below = predictive.cdf_on_both_sides(y)
    np.testing.assert_array_equal(strictly, predictive.cdf(y - 1.0))
    np.testing.assert_array_equal(below, predictive.cdf(y))


@settings(max_examples=15, deadline=None)
@given(st.floats(-3.0, 3.0), st.floats(0.05, 2.0), st.integers(0, 2**31))
def test_tables_of_a_known_cdf(centre: float, spread: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    m = rng.normal(centre, spread, ROWS)
    y = rng.poisson(np.exp(m)).astype(float)
    seen = []

    def direct(m: np.ndarray, y: np.ndarray, trials: np.ndarray) -> np.ndarray:
        seen.append(len(m))
        return poisson.cdf(y, np.exp(m))

    found = tabulated_cdf(direct, m, y, np.ones(ROWS), lambda y, trials: np.minimum(1.0, 1.0 / np.sqrt(y + 0.7)))
    exact = poisson.cdf(y, np.exp(m))
    np.testing.assert_allclose(found, exact, rtol=2e-6, atol=1e-7)
    if centre < 1.0 and spread < 1.0:
        assert sum(seen) < 2 * ROWS  # Rows beyond a table, or none at all, cost no more than all of them.


def test_odds_and_evidence_off_tables_are_those_integrated_by_row(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    X = rng.normal(size=(ROWS, 2))
    y = rng.poisson(np.exp(0.5 + X @ [0.3, -0.2] + 0.6 * rng.normal(size=ROWS)))
    y[:50] = 20 * y[:50] + 30
    fit = rb.RobustPoissonRegression().fit(X, y).result_
    problem = fit.source.found.problem
    assert problem.tabulated
    off_tables = fit.judgement
    by_tables = problem.evidence_at(fit.source.found.vector + 1e-3)

    tables = Regression._tables
    monkeypatch.setattr(Regression, "_tables", lambda self, vector, value=None: None if value else tables(self, vector))
    monkeypatch.setattr(counted_cdf, "MANY_ROWS", 10 * ROWS)
    one_by_one = rb.RobustPoissonRegression().fit(X, y).result_
    np.testing.assert_allclose(off_tables.probability, one_by_one.judgement.probability, atol=1e-8)
    np.testing.assert_allclose(off_tables.tail, one_by_one.judgement.tail, rtol=1e-6)
    monkeypatch.setattr(Regression, "_tables", lambda self, vector, value=None: None)
    np.testing.assert_allclose(by_tables, problem.evidence_at(fit.source.found.vector + 1e-3), atol=1e-7)
