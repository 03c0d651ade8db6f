"""Numbers all rows share stay where they are held, and their intervals inside their range."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

import robustly as rb
from robustly.errors import ModelError


@pytest.fixture(scope="module")
def line():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 2))
    return X, X @ [1.0, -0.5] + rng.standard_t(2.0, size=60)


def test_four_degrees_of_freedom_are_four_when_asked_for(line):
    X, y = line
    held = rb.RobustGLM("normal", dof=4.0).fit(X, y)
    assert held.dof_ == 4.0
    residual = y - held.predict(X)
    expected = stats.t(4.0, scale=held.scale_).logpdf(residual).sum()
    assert held.result_.log_likelihood == pytest.approx(expected, rel=1e-10)
    same = rb.RobustLinearRegression(dof=4.0).fit(X, y)
    np.testing.assert_allclose(held.coef_, same.coef_, rtol=1e-8)
    assert rb.RobustGLM("normal", dof=4.0).get_params()["dof"] == 4.0


def test_degrees_of_freedom_of_errors_are_fitted_unless_given(line):
    X, y = line
    free = rb.RobustGLM("normal").fit(X, y)
    fitted = rb.RobustLinearRegression(dof=None).fit(X, y)
    assert free.dof_ == pytest.approx(fitted.dof_, rel=1e-6)
    assert free.dof_ != 4.0
    with pytest.raises(ModelError, match="\"auto\"; got 'four'"):
        rb.RobustGLM("normal", dof="four").fit(X, y)


def test_the_interval_of_the_share_of_wrong_labels_stays_below_one_half():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 2))
    y = (rng.random(60) < 1 / (1 + np.exp(-4.0 * X[:, 0]))).astype(int)
    wrong = rng.random(60) < 0.25
    fit = rb.RobustLogisticRegression(local="label").fit(X, np.where(wrong, 1 - y, y)).result_
    for level in (0.5, 0.95, 0.9999):
        low, high = fit.confint(level)["flip"]
        assert 0 <= low < fit.flip < high <= 0.5
        # No wrong labels at all are among what the interval holds where the test does not rule them out.
        assert (low > 0) == (fit.test("flip = 0").pvalue < 1 - level)
    # Without a profile, on the scale on which it is free, the interval is the estimate and as many standard errors either way.
    low, high = fit.wald_intervals(0.5)["flip"]
    logit = lambda share: np.log(2 * share / (1 - 2 * share))
    half = stats.norm.ppf(0.75) * np.sqrt(fit.covariance()[-1, -1]) / (fit.flip * (1 - 2 * fit.flip))
    np.testing.assert_allclose([logit(low), logit(high)], logit(fit.flip) + np.array([-half, half]), rtol=1e-8)


def test_positive_numbers_have_intervals_even_on_the_log_scale(line):
    fit = rb.RobustLinearRegression().fit(*line).result_
    for name in ("scale", "dof"):
        low, high = fit.wald_intervals(0.95)[name]
        assert low * high == pytest.approx(fit.shared[name] ** 2, rel=1e-10)
    # Degrees of freedom that 1 row in 60 tells are not that sure: more than so many are likelier than fewer.
    found = fit.confint()
    assert found["scale"] == fit.wald_intervals(0.95)["scale"]
    assert found["dof"] == fit.profile_interval("dof")
