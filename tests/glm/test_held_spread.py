"""A spread that is held at a value: the answer is the one a fit would give there, and it is never let go."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.polynomial.hermite_e import hermegauss
from scipy import stats

import robustly.glm as glm
from robustly.errors import ModelError


def counts(rng, spread, n=200):
    X = rng.uniform(-1, 1, (n, 2))
    return X, rng.poisson(np.exp(1 + X @ [0.8, -0.4] + spread * rng.normal(size=n)))


@pytest.mark.parametrize("solver", [{}, {"solver": "em", "approx": "laplace", "max_iter": 400}])
def test_held_where_a_fit_ended_it_gives_that_fit(rng, solver):
    X, y = counts(rng, 0.7)
    free = glm.RobustPoissonRegression(**solver).fit(X, y)
    held = glm.RobustPoissonRegression(spread=free.spread_, **solver).fit(X, y)
    assert held.spread_ == pytest.approx(free.spread_, rel=1e-12)
    np.testing.assert_allclose(held.coef_, free.coef_, atol=1e-5)


def test_the_likelihood_at_a_held_spread_is_the_poisson_lognormal_one(rng):
    X, y = counts(rng, 0.7)
    held = glm.RobustPoissonRegression(spread=0.4).fit(X, y)
    nodes, weights = hermegauss(60)
    log_rate = (held.intercept_ + X @ held.coef_)[:, None] + 0.4 * nodes
    direct = np.log(stats.poisson.pmf(y[:, None], np.exp(log_rate)) @ weights / np.sqrt(2 * np.pi)).sum()
    assert held.result_.log_likelihood == pytest.approx(direct, abs=1e-6)
    assert held.result_.log_likelihood < glm.RobustPoissonRegression().fit(X, y).result_.log_likelihood


def test_a_spread_that_is_worse_than_none_is_kept_all_the_same(rng):
    X, y = counts(rng, 0.0)
    plain = glm.RobustGLM("poisson", local=None).fit(X, y)
    held = glm.RobustPoissonRegression(spread=1.0).fit(X, y)
    assert held.spread_ == 1.0
    assert held.result_.log_likelihood < plain.result_.log_likelihood - 10
    free = glm.RobustPoissonRegression().fit(X, y)
    profile = free.result_.profile_spread([0.5, 1.0])["log likelihood"]
    assert profile[1] == pytest.approx(held.result_.log_likelihood, abs=1e-6)
    assert profile[1] < profile[0] < free.result_.log_likelihood


def test_binary_rows_need_no_warning_when_the_spread_is_given(rng):
    X = rng.uniform(-2, 2, (300, 2))
    y = rng.uniform(size=300) < 1 / (1 + np.exp(-X @ [1.0, -1.0]))
    held = glm.RobustLogisticRegression(spread=1.7).fit(X, y)
    plain = glm.RobustLogisticRegression(local=None).fit(X, y)
    assert held.spread_ == pytest.approx(1.7)
    np.testing.assert_allclose(held.attenuated_coef_, plain.coef_, rtol=0.1)


@pytest.mark.parametrize("spread", [0.0, -1.0, 40.0, np.nan])
def test_spreads_out_of_range_are_refused(rng, spread):
    X, y = counts(rng, 0.5)
    with pytest.raises(ModelError, match=r"local=None is a spread of 0"):
        glm.RobustPoissonRegression(spread=spread).fit(X, y)


def test_models_without_a_spread_refuse_one(rng):
    X, y = counts(rng, 0.5)
    with pytest.raises(ModelError, match=r"have no value with a spread"):
        glm.RobustGLM("poisson", local=None, spread=1.0).fit(X, y)


@pytest.mark.parametrize("held", [{"spread": 0.5}, {"prior": "student_t", "dof": 4.0}])
def test_what_is_held_has_no_interval_and_the_rest_has(rng, held):
    X, y = counts(rng, 0.7)
    fit = glm.RobustGLM("poisson", **held).fit(X, y).result_
    assert set(fit.confint()) == set(fit.labels)
    assert not set(held) & set(fit.labels)
    assert len(fit.summary().frame) == len(fit.labels)
