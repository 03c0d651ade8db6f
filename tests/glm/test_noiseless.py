"""A normal response whose rows have predictors of their own may leave nothing for a common noise, or for a spread."""

import numpy as np
import pytest
from scipy import stats
from scipy.optimize import linprog

import robustly as rb


def drawn(seed, n=40, size=1.0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 2))
    return X, size * (1 + X @ [1.0, -1.0] + rng.laplace(size=n))


def shifted(X, y, prior="laplace", **more):
    return rb.RobustGLM("normal", local="predictor", prior=prior, **more).fit(X, y)


def least_absolute(X, y, weight):
    """By linear programming: the coefficients, the intercept first."""
    n = len(y)
    A = np.column_stack([np.ones(n), X])
    cost = np.concatenate([np.zeros(A.shape[1]), weight, weight])
    free = [(None, None)] * A.shape[1] + [(0, None)] * (2 * n)
    return linprog(cost, A_eq=np.hstack([A, np.eye(n), -np.eye(n)]), b_eq=y, bounds=free).x[: A.shape[1]]


@pytest.mark.parametrize("weighted", [False, True])
def test_without_noise_a_laplace_prior_is_least_absolute_deviations(weighted):
    X, y = drawn(0)
    weight = np.random.default_rng(1).uniform(0.5, 2.0, size=len(y)) if weighted else np.ones(len(y))
    model = shifted(X, y)
    model.fit(X, y, sample_weight=weight)
    fit = model.result_
    assert fit.outcome.kind == "limit"
    assert fit.outcome.converged
    expected = least_absolute(X, y, weight)
    np.testing.assert_allclose(fit.coefficients, expected, atol=1e-6)
    rest = y - expected[0] - X @ expected[1:]
    spread = np.average(np.abs(rest), weights=weight)
    assert model.scale_ == 0.0
    assert model.spread_ == pytest.approx(spread, rel=1e-6)
    np.testing.assert_allclose(fit.evidence, stats.laplace.logpdf(rest, scale=spread), atol=1e-6)


def test_its_standard_errors_are_those_of_the_expected_information():
    X, y = drawn(0)
    fit = shifted(X, y).result_
    A = np.column_stack([np.ones(len(y)), X])
    expected = fit.spread * np.sqrt(np.diag(np.linalg.inv(A.T @ A)))
    np.testing.assert_allclose(fit.standard_errors, expected, rtol=1e-6)
    assert any("expected information" in note for note in fit.notes)
    assert "expected information" in fit.summary().heading["standard errors by"]


def test_its_loo_is_that_of_fits_without_each_row():
    X, y = drawn(3)
    fit = shifted(X, y).result_
    assert fit.outcome.kind == "limit"
    for row in (0, 7, 21, *np.argsort(np.abs(y - fit.predictive(X).typical))[:3]):
        rest = np.arange(len(y)) != row
        w = least_absolute(X[rest], y[rest], np.ones(len(y) - 1))
        spread = np.abs(y[rest] - w[0] - X[rest] @ w[1:]).mean()
        expected = stats.laplace.logpdf(y[row], w[0] + X[row] @ w[1:], spread)
        assert fit.loo_by_row[row] == pytest.approx(expected, abs=1e-5)


def test_without_noise_a_t_prior_is_student_t_regression():
    X, _ = drawn(0, n=60)
    y = 1 + X @ [1.0, -1.0] + np.random.default_rng(0).standard_t(2, size=60)
    fit = shifted(X, y, prior="student_t", dof=4.0).result_
    t = rb.RobustLinearRegression(dof=4.0).fit(X, y).result_
    assert fit.outcome.kind == "limit"
    assert fit.scale == 0.0
    assert fit.log_likelihood == pytest.approx(t.log_likelihood, abs=1e-7)
    assert fit.spread == pytest.approx(t.scale, rel=1e-5)
    np.testing.assert_allclose(fit.standard_errors, t.standard_errors, rtol=1e-4)
    assert fit.loo == pytest.approx(t.loo, abs=1e-5)


@pytest.mark.parametrize("prior", ["laplace", "student_t"])
@pytest.mark.parametrize("seed", [0, 1, 2, 5])
def test_no_held_spread_does_better_and_the_end_is_named(prior, seed):
    X, y = drawn(seed)
    fit = shifted(X, y, prior=prior).result_
    assert fit.outcome.kind in ("converged", "boundary", "limit")
    near = fit.spread if fit.spread else fit.scale
    held = fit.profile_spread([0.0, *(near * np.array([0.1, 0.5, 0.9, 1.1, 2.0]))])
    assert held["log likelihood"].max() <= fit.log_likelihood + 1e-6


@pytest.mark.parametrize("size", [1e-7, 1e7])
@pytest.mark.parametrize("seed", [0, 6])
def test_units_of_the_response_do_not_matter(size, seed):
    X, y = drawn(seed)
    fit, other = shifted(X, y).result_, shifted(X, size * y).result_
    assert fit.outcome.kind == other.outcome.kind
    assert other.log_likelihood == pytest.approx(fit.log_likelihood - len(y) * np.log(size), abs=1e-5)
    assert other.spread == pytest.approx(size * fit.spread, rel=1e-4)


def test_predictions_and_files_know_the_law_without_noise(tmp_path):
    X, y = drawn(0)
    model = shifted(X, y)
    law = stats.laplace(model.predict(X[:3]), model.spread_)
    for known in (model, None):
        if known is None:
            model.save(tmp_path / "kept")
            known = rb.load(tmp_path / "kept")
        new = known.predict_dist(X[:3])
        np.testing.assert_allclose(new.quantile(0.9), law.ppf(0.9))
        np.testing.assert_allclose(new.cdf(y[:3]), law.cdf(y[:3]))
        np.testing.assert_allclose(new.log_prob(y[:3]), law.logpdf(y[:3]), atol=1e-9)
        np.testing.assert_allclose(new.sd, law.std())
        assert known.scale_ == 0.0
    np.testing.assert_array_equal(model.result_.posterior().mean, y)
    assert new.sample(20_000, key=0).std(axis=0) == pytest.approx(law.std(), rel=0.05)
