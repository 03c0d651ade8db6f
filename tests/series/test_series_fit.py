"""Fitted series: the examples of the books, what can be asked of a fit, and what is refused."""

import numpy as np
import pandas as pd
import pytest
from series_models import local_level
from statsmodels.tsa.statespace.structural import UnobservedComponents

import robustly as rb
from robustly.series.disturbances import Disturbances
from robustly.series.leaveout import leave_out
from robustly.series.sampled import draw_precisions, estimate, smooth_tail

LOG_TWO_PI = float(np.log(2 * np.pi))


def test_gas_gaussian_likelihood_is_the_published_one(gas):
    # Published without the (2π)^(-1/2) of each of the five diffuse states, which statsmodels counts.
    assert gas.classical_log_likelihood + 2.5 * LOG_TWO_PI == pytest.approx(83.787, abs=2e-3)


def test_gas_heavy_tails_gain_twelve_nats_and_1970_stands_out(gas):
    assert gas.outcome.converged
    assert gas.outcome.steps <= 40
    assert gas.log_likelihood_error < 0.1
    # Four of its own standard errors about the maximum as the bridge of benchmarks/gas_evidence.py has it.
    assert gas.log_likelihood + 2.5 * LOG_TWO_PI == pytest.approx(95.76, abs=0.02 + 4 * gas.log_likelihood_error)
    assert 1.3 < gas.hyperparameters["irregular"]["dof"] < 2.6
    assert gas.steps[np.argsort(gas.precision())[:2]].tolist() == ["1970Q3", "1970Q4"]
    assert gas.steps[np.sort(gas.outliers(fdr=0.05))].tolist() == ["1970Q3", "1970Q4"]
    assert gas.bound < gas.log_likelihood
    assert gas.evidence.sum() == pytest.approx(gas.bound, abs=1e-6)


@pytest.mark.parametrize(
    ("at", "dof", "bridged"),
    [((0.0026474, 0.0399314, 0.03239084), 3.0, 94.142), ((0.0030956, 0.042275, 0.016582), 1.4678, 95.555)],
)
def test_gas_evidence_is_that_of_an_independent_computation(gas_model, at, dof, bridged):
    # By benchmarks/gas_evidence.py, ± .003: dense matrices, Gibbs draws and a bridge. Four errors: a false alarm in 16 000.
    model = Disturbances(gas_model, ["irregular"])
    params, dofs = np.array([at[2], at[0], at[1]]) ** 2, np.array([dof])
    left = leave_out(model, params, dofs, keep=True)
    found = estimate(model, params, dofs, draw_precisions(left, model.active, 600, np.random.default_rng(0)))
    assert found.error < 0.06
    assert found.value + 2.5 * LOG_TWO_PI == pytest.approx(bridged, abs=0.01 + 4 * found.error)


def test_the_largest_weights_are_smoothed_by_a_law_of_their_tail():
    # Weights from a Pareto law of known shape; at 4000 draws the shape of the tail is known to about .1.
    random = np.random.default_rng(0)
    for shape in (0.3, 0.6):
        logs = -shape * np.log(random.random(4000))
        found, told = smooth_tail(logs)
        assert told == pytest.approx(shape, abs=0.25)
        assert np.exp(found).mean() == pytest.approx(1.0 / (1.0 - shape), rel=0.1)
        assert (np.argsort(found) == np.argsort(logs)).all()
    same, told = smooth_tail(np.zeros(100))
    assert told == 0.0
    assert (same == 0.0).all()


def test_standard_errors_are_those_of_the_sampled_evidence(gas):
    low, high = gas.confint(0.95)["irregular.dof"]
    assert 0.8 < low < gas.parameters["irregular.dof"] < high < 4.0
    assert gas.standard_errors["irregular"]["dof"] == gas.standard_errors["irregular.dof"]
    frame = gas.summary().to_frame()
    assert frame.index.tolist() == gas.labels
    assert np.isfinite(frame.to_numpy()).all()


def test_the_result_is_the_one_fit_of_all_models(gas):
    assert isinstance(gas, rb.Fit)
    assert rb.series.SeriesFit is rb.Fit
    law = gas.posterior("irregular")
    assert law.mean == pytest.approx(gas.precision(), rel=0.02)
    low, high = law.interval(0.9)
    assert (low < law.mean).all()
    assert (law.mean < high).all()
    assert gas.predictive(3).quantile(0.5) == pytest.approx(gas.forecast(3).quantile(0.5))
    with pytest.raises(rb.ModelError, match="not independent rows"):
        gas.covariance("sandwich")
    with pytest.raises(rb.ModelError, match="sample_posterior is known of programs of NumPyro"):
        gas.sample_posterior(10, key=0)


def test_nile_is_almost_classical_and_says_so(nile_model):
    fit = rb.localize(nile_model, "irregular").fit()
    assert fit.classical_log_likelihood + 0.5 * LOG_TWO_PI == pytest.approx(-632.5456, abs=1e-3)
    assert fit.classical_parameters["sigma2.level"] == pytest.approx(1469, rel=0.01)
    gain = fit.log_likelihood - fit.classical_log_likelihood
    assert gain == pytest.approx(0.17, abs=0.05 + 4 * fit.log_likelihood_error)
    assert fit.hyperparameters["irregular"]["dof"] > 8
    assert any("almost classical" in note for note in fit.notes)


def test_nile_break_of_1899_comes_first(nile_model):
    fit = rb.localize(nile_model, "level").fit("leave-one-out")
    assert fit.log_likelihood > fit.classical_log_likelihood + 1.0
    assert fit.steps[np.argmax(fit.break_probability)] == "1899"
    # A long chain has .76 ± .02; four errors of one as short as this, .04, are left for chance.
    assert fit.break_probability_within(2)[28] == pytest.approx(0.76, abs=0.18)
    with pytest.raises(rb.ModelError, match='no disturbance that makes outliers is localized here, only "level"'):
        fit.outliers()


def test_bound_and_em_climb_to_the_same_place(nile_model):
    bound = rb.localize(nile_model, "irregular", fixed={"dof": 4.0}).fit("bound")
    em = rb.localize(nile_model, "irregular", fixed={"dof": 4.0}).fit("em", rtol=1e-10, max_steps=300)
    assert bound.is_bound
    assert bound.hyperparameters["irregular"]["dof"] == 4.0
    assert em.log_likelihood == pytest.approx(bound.log_likelihood, abs=1e-3)
    assert em.parameters["irregular.scale"] == pytest.approx(bound.parameters["irregular.scale"], rel=1e-2)
    climbed = [line["bound"] for line in em.history]
    assert min(np.diff(climbed)) > -1e-6
    assert max(bound.outcome.steps, em.outcome.steps) <= 40


def test_a_bound_that_is_highest_with_normal_tails_ends_there(nile_model):
    for method in ("bound", "em"):
        fit = rb.localize(nile_model, "irregular").fit(method)
        assert fit.outcome.kind == "boundary"
        assert fit.log_likelihood == pytest.approx(fit.classical_log_likelihood)


def test_variances_that_the_gaussian_fit_puts_at_zero_do_not_stop_the_search():
    rng = np.random.default_rng(0)
    values = np.cumsum(0.2 * rng.normal(size=120)) + rng.normal(size=120)
    values[40] += 10.0
    model = UnobservedComponents(values, level="lltrend", use_exact_diffuse=True)
    fit = rb.localize(model, "irregular").fit("leave-one-out")
    assert fit.log_likelihood > fit.classical_log_likelihood + 5.0
    assert fit.hyperparameters["irregular"]["dof"] < 12
    assert np.argmin(fit.precision()) == 40


def test_normal_noise_ends_at_the_plain_model():
    rng = np.random.default_rng(3)
    values = np.cumsum(0.5 * rng.normal(size=150)) + rng.uniform(-1.7, 1.7, size=150)
    fit = rb.localize(local_level(values), "irregular").fit()
    assert fit.outcome.kind == "boundary"
    assert np.isinf(fit.hyperparameters["irregular"]["dof"])
    assert fit.log_likelihood == pytest.approx(fit.classical_log_likelihood)
    assert (fit.precision() == 1.0).all()


def test_an_outlier_at_the_end_does_not_throw_the_forecast():
    rng = np.random.default_rng(0)
    values = 10.0 + 0.05 * np.cumsum(rng.normal(size=100)) + rng.normal(size=100)
    values[-1] += 25.0
    model = local_level(values)
    fit = rb.localize(model, "irregular").fit()
    robust = fit.forecast(3)
    plain = model.smooth(list(fit.classical_parameters.values())).forecast(3)
    assert abs(robust.quantile(0.5)[0] - 10.0) < 1.0 < abs(plain[0] - 10.0)
    low, high = robust.interval(0.9)
    assert (high - low < 6.0).all()
    assert robust.cdf(robust.quantile(0.3)) == pytest.approx(np.full(3, 0.3), abs=1e-9)
    assert np.exp(robust.log_prob(high)) == pytest.approx(
        (robust.cdf(high + 1e-5) - robust.cdf(high - 1e-5)) / 2e-5, rel=1e-4
    )
    assert robust.sample(7, seed=1).shape == (7, 3)
    assert robust.to_frame().index.tolist() == ["100", "101", "102"]


def test_forecasts_with_normal_laws_are_statsmodels_own():
    rng = np.random.default_rng(1)
    x = rng.normal(size=(65, 1))
    values = np.cumsum(0.4 * rng.normal(size=60)) + rng.normal(size=60) + 2.0 * x[:60, 0]
    model = UnobservedComponents(values, exog=x[:60], level="llevel", use_exact_diffuse=True)
    fit = rb.localize(model, "irregular", fixed={"dof": np.inf}).fit()
    assert fit.log_likelihood == pytest.approx(fit.classical_log_likelihood)
    theirs = model.smooth(list(fit.classical_parameters.values())).get_forecast(5, exog=x[60:])
    ours = fit.forecast(5, exog=x[60:], draws=5)
    assert ours.mean == pytest.approx(theirs.predicted_mean, abs=1e-6)
    assert ours.sd == pytest.approx(theirs.se_mean, rel=1e-6)
    with pytest.raises(rb.DataError, match="has 1 regressors; give their 5 new rows"):
        fit.forecast(5)


def test_one_step_scores_reward_the_heavy_tails_after_an_outlier():
    rng = np.random.default_rng(2)
    values = np.cumsum(0.1 * rng.normal(size=60)) + rng.normal(size=60)
    values[50] += 12.0
    model = local_level(values)
    fit = rb.localize(model, "irregular").fit("leave-one-out")
    scores = fit.log_scores(46)
    plain = model.smooth(list(fit.classical_parameters.values())).llf_obs[46:]
    assert scores.shape == (14,)
    assert scores[4] > plain[4] + 2.0
    assert scores.sum() > plain.sum() + 2.0


def test_a_fit_is_kept_and_read_back(gas, gas_model, tmp_path):
    gas.save(tmp_path / "gas.robustly")
    back = rb.load(tmp_path / "gas.robustly")
    assert back.parameters == gas.parameters
    assert back.outliers().tolist() == gas.outliers().tolist()
    assert back.components().equals(gas.components())
    assert str(back.summary()) == str(gas.summary())
    with pytest.raises(rb.FitError, match=r"rb\.load\(path, model=\.\.\.\)"):
        back.forecast(4)
    live = rb.load(tmp_path / "gas.robustly", model=gas_model)
    assert live.forecast(4).quantile(0.5) == pytest.approx(gas.forecast(4).quantile(0.5), abs=0.03)
    with pytest.raises(rb.DataError, match="30 steps and the saved fit 108"):
        rb.load(tmp_path / "gas.robustly", model=local_level(np.arange(30.0)))


def test_page_and_pictures(gas, tmp_path):
    text = gas.report(tmp_path / "gas.html").read_text(encoding="utf-8")
    assert "1970Q3" in text
    assert "2 outliers at a false discovery rate of 0.05" in text
    assert text.count("<img") == 3
    for kind in ("series", "components", "precision"):
        gas.plot(kind).savefig(tmp_path / f"{kind}.png")
    with pytest.raises(rb.ModelError, match='Did you mean "components"'):
        gas.plot("component")


def bad(values, **options):
    return lambda: rb.localize(local_level(values, **options), "irregular")


TIMES = pd.to_datetime(
    ["2020-01-01", "2020-01-02", "2020-01-03", "2020-01-09", "2020-01-10", *[f"2020-02-{d:02d}" for d in range(1, 16)]]
)


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (bad(np.full(30, 2.5)), rb.DataError, r"constant \(2.5 at every step\)"),
        (bad(np.full(30, np.nan)), rb.DataError, "all 30 steps of the series are missing"),
        (bad(np.array([1.0, 2.0])), rb.DataError, "2 steps have a value.*needs 5 or more"),
        (bad(np.append(np.arange(29.0), np.inf)), rb.DataError, "step 29 of the series holds an infinite value"),
        (lambda: rb.localize(np.arange(30.0), "irregular"), rb.LocalizeError, "got a ndarray. A series of values needs a model"),
        (lambda: rb.localize(local_level(np.arange(30.0)), []), rb.LocalizeError, "name at least one site"),
        (lambda: rb.localize(local_level(np.arange(30.0)), "irregular", plate="x"), rb.LocalizeError, "plate= is for NumPyro"),
        (lambda: rb.localize(local_level(np.arange(30.0)), "irregular", fixed={"scale": 1.0}), rb.LocalizeError, 'holds "dof"'),
        (lambda: rb.localize(local_level(np.arange(30.0)), "irregular").fit("newton"), rb.ModelError, 'no method "newton"'),
        (lambda: rb.localize(local_level(np.arange(30.0)), "irregular").fit(np.arange(30.0)), rb.ModelError, "got a ndarray. The series is in"),
        (lambda: rb.localize(local_level(np.arange(30.0)), "irregular").fit(seed="a"), rb.ModelError, "seed is a whole number of 0"),
        (lambda: rb.localize(local_level(np.arange(30.0)), "irregular").fit(max_steps=0), rb.ModelError, "max_steps is a whole"),
        (lambda: rb.localize(local_level(np.arange(30.0)), "irregular", fixed={"dof": "a"}), rb.LocalizeError, "positive number; got 'a'"),
    ],
)  # fmt: skip
def test_bad_input_is_named(make, error, words):
    with pytest.raises(error, match=words):
        make()


def test_uneven_time_stamps_are_refused():
    series = pd.Series(np.random.default_rng(0).normal(size=20), index=TIMES)
    with pytest.warns(UserWarning, match="no associated frequency"):
        model = local_level(series)
    with pytest.raises(rb.DataError, match=r"step 3 \(2020-01-09.*not evenly spaced|not evenly spaced: step 3"):
        rb.localize(model, "irregular")


def test_importing_the_package_does_not_import_statsmodels():
    import subprocess
    import sys

    script = "import robustly as rb, sys; rb.localize; rb.RobustGaussianHMM; assert 'statsmodels' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
