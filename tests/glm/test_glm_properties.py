"""What holds for any data: robust never fits worse than classical, and units, weights and names do not matter."""

from __future__ import annotations

import warnings

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import robustly.glm as glm
from robustly.errors import IdentifiabilityWarning

ROWS = 64
SEEDS = st.integers(0, 2**20)
FEW = settings(max_examples=10, deadline=None, derandomize=True)


def data(seed, family):
    """Responses with a few wild rows among them."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(ROWS, 2)) * rng.uniform(0.1, 3.0, 2)
    m = 0.5 + X @ rng.normal(0.0, 0.4, 2) + rng.uniform(0.0, 1.0) * rng.normal(size=ROWS)
    wild = rng.random(ROWS) < 0.05
    if family == "normal":
        return X, m + rng.normal(size=ROWS) + 20.0 * wild
    if family == "poisson":
        return X, rng.poisson(np.exp(np.clip(m + 2.0 * wild, -5, 6))).astype(float)
    return X, rng.gamma(2.0, np.exp(m + 2.0 * wild) / 2.0) + 1e-3


def fit(family, X, y, local="auto", **options):
    local = {"normal": "dispersion"}.get(family, "predictor") if local == "auto" else local
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return glm.RobustGLM(family=family, local=local).fit(X, y, **options)


@FEW
@given(SEEDS, st.sampled_from(["normal", "poisson", "gamma"]))
def test_a_robust_model_holds_the_classical_one(seed, family):
    X, y = data(seed, family)
    robust, plain = fit(family, X, y), fit(family, X, y, local=None)
    assert robust.result_.log_likelihood >= plain.result_.log_likelihood - 1e-6
    for model in (robust, plain):
        assert np.all(np.isfinite(model.coef_))
        assert np.all(np.isfinite(model.surprise_))
        if model.result_.outcome.converged:
            assert np.all(np.isfinite(model.result_.standard_errors))


@FEW
@given(SEEDS, st.floats(1e-3, 1e3), st.floats(-50, 50))
def test_units_and_origins_of_columns_only_move_their_coefficients(seed, unit, origin):
    X, y = data(seed, "poisson")
    turned = X.copy()
    turned[:, 0] = X[:, 0] * unit + origin
    one, other = fit("poisson", X, y), fit("poisson", turned, y)
    assert other.result_.log_likelihood == pytest.approx(one.result_.log_likelihood, abs=1e-6)
    np.testing.assert_allclose(other.coef_ * [unit, 1.0], one.coef_, rtol=1e-4, atol=1e-5)


@FEW
@given(SEEDS, st.floats(1.0, 20.0))
def test_the_size_of_all_weights_together_does_not_matter(seed, size):
    # Weights count rows, and with too few of them the degrees of freedom are held from below; hence at least one each.
    X, y = data(seed, "normal")
    one, other = fit("normal", X, y), fit("normal", X, y, sample_weight=np.full(ROWS, size))
    np.testing.assert_allclose(other.coef_, one.coef_, rtol=1e-5, atol=1e-6)
    assert other.result_.log_likelihood == pytest.approx(size * one.result_.log_likelihood, rel=1e-7)


@FEW
@given(SEEDS, st.floats(-30, 30), st.floats(0.01, 100))
def test_student_t_regression_follows_its_response(seed, origin, unit):
    X, y = data(seed, "normal")
    one, other = fit("normal", X, y), fit("normal", X, origin + unit * y)
    np.testing.assert_allclose(other.coef_, unit * one.coef_, rtol=1e-4, atol=1e-5 * unit)


def test_posterior_draws_agree_with_the_estimate_and_its_standard_errors():
    rng = np.random.default_rng(5)
    X = rng.normal(size=(400, 1))
    y = rng.poisson(np.exp(1 + 0.5 * X[:, 0] + 0.6 * rng.normal(size=400))).astype(float)
    result = glm.RobustPoissonRegression().fit(X, y).result_
    draws = result.sample_posterior(1500, key=jax.random.key(0))
    for term in result.terms:
        error = result.standard_errors[term]
        # With 400 rows the posterior is close to normal; 1500 draws give its mean to 0.05 standard errors.
        assert abs(draws[term].mean() - result.coefficients[term]) < 0.3 * error
        assert draws[term].std() == pytest.approx(error, rel=0.15)
    assert draws["spread"].mean() == pytest.approx(result.spread, rel=0.1)


def test_a_held_spread_stays_where_it_is_held_and_the_warning_shows_the_profile():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 2))
    y = (rng.random(200) < 1 / (1 + np.exp(-X[:, 0]))).astype(int)
    with pytest.warns(IdentifiabilityWarning, match=r"[+-]0\.\d\d at 1, .* at 4 ") as seen:
        model = glm.RobustLogisticRegression().fit(X, y)
    profile = model.result_.profile_spread([0.0, 1.0, 4.0])
    gains = profile["log likelihood"] - profile["log likelihood"][0]
    assert f"{gains[1]:+.2f} at 1," in str(seen[0].message)
    assert f"{gains[2]:+.2f} at 4 " in str(seen[0].message)
    assert np.all(np.diff(profile["x0"]) > 0.01), "larger spreads go with larger coefficients"
    assert len(np.unique(profile["log likelihood"].round(9))) == 3
