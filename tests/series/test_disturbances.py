"""The state space with a variance at each step: statsmodels' own numbers, and what one pass says of every step."""

import copy

import numpy as np
import pytest
from series_models import local_level
from statsmodels.tsa.statespace.dynamic_factor import DynamicFactor
from statsmodels.tsa.statespace.sarimax import SARIMAX
from statsmodels.tsa.statespace.structural import UnobservedComponents

import robustly as rb
from robustly.series.disturbances import Disturbances


@pytest.fixture(scope="module")
def walk():
    rng = np.random.default_rng(0)
    values = np.cumsum(0.3 * rng.normal(size=40)) + rng.normal(size=40)
    values[7] = np.nan
    return values


@pytest.mark.parametrize("exact", [True, False])
def test_with_nothing_localized_the_log_likelihood_is_statsmodels_own(walk, exact):
    model = UnobservedComponents(walk, level="lltrend", seasonal=4, use_exact_diffuse=exact)
    params = np.array([1.0, 0.1, 0.02, 0.05])
    seen = Disturbances(model, ["irregular", "level", "seasonal"])
    assert seen.log_likelihood(params, seen.ones()) == pytest.approx(model.loglike(params), abs=1e-9)
    assert seen.smooth(params, seen.ones()).log_likelihood == pytest.approx(model.loglike(params), abs=1e-9)
    assert seen.by_step(params, seen.ones()).sum() == pytest.approx(model.loglike(params), abs=1e-9)


def test_the_users_model_stays_as_it_was(walk):
    model = local_level(walk)
    before = model.loglike([1.0, 0.1])
    rb.localize(model, ["irregular", "level"]).fit("leave-one-out")
    assert model.ssm["obs_cov"].shape == (1, 1)
    assert model.loglike([1.0, 0.1]) == before


@pytest.mark.parametrize("site", ["irregular", "level"])
def test_one_pass_knows_the_likelihood_of_any_other_variance_of_a_single_step(walk, site):
    seen = Disturbances(local_level(walk), [site])
    params = np.array([1.0, 0.09])
    factors = np.random.default_rng(1).uniform(0.5, 4.0, size=(1, len(walk)))
    here = seen.smooth(params, factors)
    variance = params[seen.sites[0].parameter]
    for t in (0, 6, 7, 20, 37):
        for other in (0.3, 50.0):
            moved = factors.copy()
            moved[0, t] = other
            change = (other - factors[0, t]) * variance
            u, d = here.score[0][0, t], here.information[0][0, t]
            grown = 1.0 + change * d
            told = here.log_likelihood - 0.5 * np.log(grown) + 0.5 * change * u**2 / grown
            assert seen.log_likelihood(params, moved) == pytest.approx(told, abs=1e-8)


def test_missing_steps_and_what_comes_after_the_last_value_are_not_localized(walk):
    values = walk.copy()
    values[-3:] = np.nan
    seen = Disturbances(local_level(values), ["irregular", "level"])
    assert not seen.active[0, 7]
    assert seen.active[0].sum() == 36
    assert np.flatnonzero(~seen.active[1]).tolist() == [36, 37, 38, 39]


def test_a_stationary_start_keeps_the_long_run_variance_whatever_the_first_step_has():
    rng = np.random.default_rng(2)
    model = SARIMAX(rng.normal(size=30), order=(1, 0, 0))
    params = np.array([0.8, 1.0])
    seen = Disturbances(model, ["sigma2"])
    factors = seen.ones()
    factors[0, 0] = 100.0
    mean, variance = seen.predictions(params, factors)
    assert variance[0, 0] == pytest.approx(1.0 / (1.0 - 0.64))
    assert variance[0, 1] == pytest.approx(100.0)
    assert mean[0, 0] == 0.0


def test_other_models_of_statsmodels_are_taken_as_far_as_their_matrices_allow():
    rng = np.random.default_rng(3)
    factor = DynamicFactor(rng.normal(size=(40, 3)), k_factors=1, factor_order=1)
    seen = Disturbances(factor, ["sigma2.y2"])
    assert seen.sites[0].matrix == "obs_cov"
    assert seen.sites[0].entries.tolist() == [1]
    with pytest.raises(rb.LocalizeError, match=r'no disturbance "levle".*Did you mean "level"'):
        Disturbances(local_level(rng.normal(size=30)), ["levle"])
    with pytest.raises(rb.LocalizeError, match="not the variance of one disturbance"):
        Disturbances(factor, ["loading.f1.y1"])
    with pytest.raises(rb.LocalizeError, match="concentrate_scale=False"):
        Disturbances(SARIMAX(rng.normal(size=30), order=(1, 0, 0), concentrate_scale=True), ["sigma2"])
    with pytest.raises(rb.LocalizeError, match="simple_differencing=False"):
        Disturbances(SARIMAX(rng.normal(size=30), order=(1, 1, 0), simple_differencing=True), ["sigma2"])


def test_a_cycle_shares_one_precision_between_its_two_disturbances():
    rng = np.random.default_rng(4)
    model = UnobservedComponents(
        rng.normal(size=60), level="llevel", cycle=True, stochastic_cycle=True, damped_cycle=True
    )
    seen = Disturbances(model, ["cycle"])
    assert seen.sites[0].size == 2
    assert copy.deepcopy(model).param_names[seen.sites[0].parameter] == "sigma2.cycle"
