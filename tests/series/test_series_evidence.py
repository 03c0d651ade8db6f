"""Bound, leave-one-out and sampled evidence of short series against numerical integration."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from series_models import local_level
from statsmodels.tsa.statespace.sarimax import SARIMAX

import robustly as rb
from robustly.series.disturbances import Disturbances, free_steps
from robustly.series.leaveout import leave_out
from robustly.series.meanfield import find_locals
from robustly.series.sampled import draw_precisions, estimate

GRID = np.linspace(-30.0, 30.0, 3001)


def brute_force(values, noise, step, dof):
    """log p(y) of a local level with t noise and a flat start, by integrating the level out on a grid, step by step."""
    width = GRID[1] - GRID[0]
    kernel = stats.norm.pdf(GRID[:, None] - GRID, scale=step) * width
    density, total = np.ones_like(GRID), 0.0
    for t, value in enumerate(values):
        if t:
            density = kernel @ density
        if np.isfinite(value):
            density = density * stats.t.pdf((value - GRID) / noise, dof) / noise
        scale = density.sum() * width
        density, total = density / scale, total + np.log(scale)
    # statsmodels counts a factor of (2π)^(-1/2) for the diffuse level.
    return total - 0.5 * np.log(2 * np.pi)


SHORT = np.array([0.3, -0.4, 0.9, 9.0, np.nan, 0.2, 1.1, 0.7])


@pytest.mark.parametrize("dof", [1.5, 4.0, 30.0])
def test_importance_sampling_agrees_with_numerical_integration(dof):
    # Four standard errors: false alarms once in 16 000 runs, and the draws are fixed.
    model, params, dofs = Disturbances(local_level(SHORT), ["irregular"]), np.array([0.49, 0.09]), np.array([dof])
    truth = brute_force(SHORT, 0.7, 0.3, dof)
    left = leave_out(model, params, dofs, keep=True)
    found = estimate(model, params, dofs, draw_precisions(left, model.active, 2000, np.random.default_rng(0)))
    assert found.effective > 200
    assert found.error < 0.08
    assert abs(found.value - truth) < 4 * found.error
    assert abs(left.evidence - truth) < 0.25
    assert find_locals(model, params, dofs).bound < truth


def test_infinite_degrees_of_freedom_are_the_gaussian_model():
    model, params = Disturbances(local_level(SHORT), ["irregular", "level"]), np.array([0.49, 0.09])
    plain = model.log_likelihood(params, model.ones())
    for dofs in (np.array([np.inf, np.inf]), np.array([1000.0, np.inf])):
        left = leave_out(model, params, dofs, keep=True)
        found = estimate(
            model, params, dofs, draw_precisions(left, free_steps(model, dofs), 100, np.random.default_rng(0))
        )
        if np.isinf(dofs).all():
            assert left.evidence == found.value == find_locals(model, params, dofs).bound == plain
        else:
            # Even a thousand are not quite the normal: an outlier of 12 standard deviations tells.
            assert plain + 0.1 < left.evidence == pytest.approx(found.value, abs=0.05)


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    dofs=st.tuples(st.floats(0.6, 50.0), st.floats(0.6, 50.0)),
    scales=st.tuples(st.floats(0.1, 3.0), st.floats(0.05, 2.0)),
    missing=st.booleans(),
)
def test_no_round_of_mean_field_lowers_the_bound(seed, dofs, scales, missing):
    rng = np.random.default_rng(seed)
    values = np.cumsum(rng.normal(size=25)) + rng.standard_t(1.5, size=25)
    if missing:
        values[[3, 24]] = np.nan
    model = Disturbances(local_level(values), ["irregular", "level"])
    found = find_locals(model, np.array(scales) ** 2, np.array(dofs), tol=0.0, max_rounds=30)
    assert np.diff(found.history).min() > -1e-8 * abs(found.bound)


def test_innovations_with_heavy_tails_have_the_evidence_of_independent_t_values():
    # Without autoregression a SARIMAX is independent rows: the mixture integrates to Student's t, step by step.
    values = np.array([0.2, -1.0, 4.0, 0.1, 0.5, -0.3, 0.9, -2.0])
    model = Disturbances(SARIMAX(values, order=(1, 0, 0)), ["innovation"])
    params, dofs = np.array([0.0, 1.44]), np.array([3.0])
    left = leave_out(model, params, dofs, keep=True)
    # The first value comes from the start, whose variance is that of the plain model.
    truth = stats.norm.logpdf(values[0], scale=1.2) + stats.t.logpdf(values[1:] / 1.2, 3).sum() - 7 * np.log(1.2)
    assert left.evidence == pytest.approx(truth, abs=1e-4)
    found = estimate(model, params, dofs, draw_precisions(left, model.active, 400, np.random.default_rng(0)))
    assert found.value == pytest.approx(truth, abs=0.02)
    assert found.effective > 380


def test_an_estimate_of_too_few_effective_draws_is_not_given(monkeypatch):
    monkeypatch.setattr("robustly.series.search.LEAST_EFFECTIVE", 1e9)  # more than any draws are worth
    noise = np.random.default_rng(3)
    y = np.cumsum(0.2 * noise.normal(size=40)) + noise.standard_t(3, 40)
    fit = rb.localize(local_level(y), "irregular").fit()
    assert fit.approximation == "leaving one step out at a time"
    assert np.isnan(fit.log_likelihood_error)
    assert "fewer than 20 importance draws would count here" in fit.notes[0]
