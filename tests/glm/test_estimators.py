"""Estimators, formulas, predictions and files: what users touch."""

from __future__ import annotations

import numpy as np
import pandas as pd
import polars as pl
import pytest
from scipy import stats
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import robustly as rb
import robustly.glm as glm
from robustly.comparison import compare
from robustly.errors import DataError, ModelError, PersistError
from robustly.glm.check import check_family
from robustly.glm.families import Family, Gamma, Poisson
from robustly.glm.formula_parse import take_offsets


@pytest.mark.filterwarnings("ignore")
@parametrize_with_checks(
    [
        glm.RobustLinearRegression(),
        glm.RobustPoissonRegression(),
        glm.RobustLogisticRegression(),
        glm.RobustLogisticRegression(local="label"),
        glm.RobustMultinomialRegression(),
        glm.RobustGLM(),
    ]
)
def test_keeps_scikit_learns_contract(estimator, check):
    check(estimator)


def clinic(n=200, seed=0):
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "age": rng.uniform(20, 80, n),
            "income": rng.normal(30, 8, n),
            "years": rng.uniform(1, 5, n),
            "town": rng.choice(["a", "b", "c"], n),
        }
    )
    rate = frame["years"] * np.exp(-1 + 0.02 * frame["age"] + 0.4 * (frame["town"] == "b") + 0.5 * rng.normal(size=n))
    return frame.assign(visits=rng.poisson(rate))


# ---------------------------------------------------------------------- formulas and frames


def test_a_formula_is_the_estimator_with_its_columns_written_out():
    frame = clinic()
    fit = glm("visits ~ age + C(town) + offset(log(years))", frame, family="poisson")
    assert list(fit.coefficients.index) == ["Intercept", "age", "C(town)[T.b]", "C(town)[T.c]"]
    X = np.column_stack([frame["age"], frame["town"] == "b", frame["town"] == "c"]).astype(float)
    model = glm.RobustPoissonRegression().fit(X, frame["visits"], exposure=frame["years"])
    np.testing.assert_allclose(fit.coefficients, [model.intercept_, *model.coef_], rtol=1e-6)
    np.testing.assert_allclose(
        fit.predictive(frame.head()).mean,
        model.predict(X[:5], kind="marginal", exposure=frame["years"].head()),
        rtol=1e-6,
    )


def test_splines_and_interactions_come_back_for_new_rows():
    frame = clinic()
    fit = glm("visits ~ bs(income, df=4) + age:C(town)", frame)
    assert len(fit.coefficients) == 8
    assert np.all(np.isfinite(fit.predictive(frame.iloc[3:9]).mean))


def test_polars_frames_give_the_pandas_answer():
    frame = clinic()
    other = pl.DataFrame(
        {name: frame[name].to_numpy() for name in frame.columns if name != "town"} | {"town": list(frame["town"])}
    )
    a, b = (glm("visits ~ age + C(town)", data) for data in (frame, other))
    np.testing.assert_allclose(a.coefficients, b.coefficients, rtol=1e-12)
    model = glm.RobustPoissonRegression().fit(other[["age", "income"]], other["visits"])
    assert list(model.result_.coefficients.index) == ["Intercept", "age", "income"]


def test_formulas_that_cannot_be_used_say_why():
    frame = clinic()
    fit = glm("visits ~ C(town)", frame)
    with pytest.raises(
        DataError, match=r'"town" holds "z" in row 0, a level that was not there when the model was fitted'
    ):
        fit.predictive(frame.head().assign(town="z"))
    with pytest.raises(DataError, match=r'"agee".*Did you mean "age"'):
        glm("visits ~ agee", frame)
    with pytest.raises(DataError, match='"age" holds a missing value in row 3'):
        glm("visits ~ age", frame.assign(age=frame["age"].where(frame.index != 3)))
    with pytest.raises(ModelError, match="no response"):
        glm("~ age", frame)


@pytest.mark.parametrize(
    ("formula", "core", "offsets"),
    [
        ("y ~ x + offset(log(t))", "y ~ x", ["log(t)"]),
        ("y ~ offset(a) + x", "y ~ x", ["a"]),
        ("y ~ offset(f(a, (b)))", "y ~ 1", ["f(a, (b))"]),
        ("y ~ x", "y ~ x", []),
    ],
)
def test_offsets_are_taken_out_of_formulas(formula, core, offsets):
    found, taken = take_offsets(formula)
    assert (" ".join(found.split()), taken) == (core, offsets)


def test_works_in_pipelines_and_searches():
    frame = clinic()
    X, y = frame[["age", "income"]], frame["visits"]
    pipeline = make_pipeline(StandardScaler().set_output(transform="pandas"), glm.RobustPoissonRegression())
    search = GridSearchCV(pipeline, {"robustpoissonregression__alpha": [0.0, 10.0]}, cv=2).fit(X, y)
    best = search.best_estimator_[-1]
    assert list(best.result_.coefficients.index) == ["Intercept", "age", "income"]
    assert clone(glm.RobustGLM(Gamma(), local=None)).family == Gamma()


# ---------------------------------------------------------------------- predictions


def test_marginal_and_typical_predictions_differ_by_the_lognormal_factor():
    frame = clinic()
    model = glm.RobustPoissonRegression().fit(frame[["age"]], frame["visits"])
    typical, marginal = (model.predict(frame[["age"]], kind=kind) for kind in ("typical", "marginal"))
    np.testing.assert_allclose(marginal / typical, np.exp(model.spread_**2 / 2), rtol=1e-12)


@pytest.mark.parametrize(
    ("family", "options"),
    [
        ("poisson", {}),
        ("poisson", {"prior": "laplace"}),
        ("gamma", {}),
        ("gamma", {"local": "dispersion"}),
        ("normal", {}),
        ("exponential", {"local": None}),
    ],
)
def test_draws_quantiles_and_densities_belong_to_one_distribution(family, options):
    """False alarms: each z is below 5 but for one run in a million."""
    frame = clinic(n=120)
    y = frame["visits"] + (0.3 if family in ("gamma", "exponential") else 0.0)
    model = glm.RobustGLM(family, **options).fit(frame[["age"]], y)
    predictive = model.predict_dist(frame[["age"]].head(3))
    drawn = predictive.sample(20_000, key=1)
    low, high = predictive.interval(0.8)
    discrete = predictive.family.discrete
    inside = predictive.cdf(high) - predictive.cdf(low - 1.0 if discrete else low)
    share = ((drawn >= low) & (drawn <= high)).mean(axis=0)
    assert np.all(np.abs(share - inside) < 5 * np.sqrt(inside * (1 - inside) / 20_000))
    if not discrete:
        np.testing.assert_allclose(inside, 0.8, atol=1e-6)
    if discrete:
        counts = np.arange(0, 6.0)
        mass = np.exp([predictive.log_prob(np.full(3, c)) for c in counts]).sum(axis=0)
        np.testing.assert_allclose(mass, predictive.cdf(np.full(3, 5.0)), atol=1e-6)
    else:
        step = 1e-4 * np.abs(high)
        slope = (predictive.cdf(high + step) - predictive.cdf(high - step)) / (2 * step)
        np.testing.assert_allclose(np.log(slope), predictive.log_prob(high), atol=1e-4)


def test_surprise_of_the_fitted_rows_is_that_of_new_ones():
    frame = clinic()
    model = glm.RobustPoissonRegression().fit(frame[["age"]], frame["visits"])
    np.testing.assert_allclose(model.surprise(frame[["age"]], frame["visits"]), model.surprise_, atol=1e-7)


def test_planted_counts_are_outliers():
    frame = clinic()
    frame.loc[[5, 50], "visits"] = 900
    model = glm.RobustPoissonRegression().fit(frame[["age"]], frame["visits"])
    assert {5, 50} <= set(model.outliers(fdr=0.05))
    assert len(model.outliers(fdr=0.05)) <= 6


def test_posterior_of_a_row_leans_towards_its_count():
    frame = clinic()
    model = glm.RobustPoissonRegression().fit(frame[["age"]], frame["visits"])
    posterior = model.result_.posterior()
    centre = np.log(model.predict(frame[["age"]], kind="typical"))
    high = frame["visits"].to_numpy() > 3 * np.exp(centre)
    assert np.all(posterior.mean[high] > centre[high])
    assert np.all(posterior.quantile(0.1) < posterior.mean)


# ---------------------------------------------------------------------- uncertainty


def test_intervals_cover_as_often_as_they_say():
    """500 sets, nominal 95 %: a true coverage of 95 % falls outside 92–98 % less than once in 300 runs."""
    covered = np.zeros(3)
    truth = np.array([1.0, 0.5, -0.3])
    for seed in range(500):
        rng = np.random.default_rng(seed)
        X = rng.normal(size=(300, 2))
        y = rng.poisson(np.exp(truth[0] + X @ truth[1:] + 0.7 * rng.normal(size=300)))
        interval = glm.RobustPoissonRegression().fit(X, y).result_.confint(0.95)
        covered += [
            interval[name][0] < value < interval[name][1] for name, value in zip(("Intercept", "x0", "x1"), truth)
        ]
    assert np.all((covered / 500 > 0.92) & (covered / 500 < 0.98))


def test_sandwich_and_information_agree_when_the_model_is_true():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(4000, 1))
    y = rng.poisson(np.exp(1 + 0.5 * X[:, 0] + 0.6 * rng.normal(size=4000)))
    fit = glm.RobustPoissonRegression().fit(X, y).result_
    ratio = np.sqrt(np.diag(fit.covariance("sandwich")) / np.diag(fit.covariance("information")))
    np.testing.assert_allclose(ratio, 1.0, atol=0.15)


def test_summary_is_text_html_and_a_frame():
    fit = glm("visits ~ age", clinic())
    summary = fit.summary()
    assert "every row has its own predictor" in str(summary)
    assert "<table" in summary.to_html()
    assert list(summary.frame.columns) == ["estimate", "std. error", "z", "p", "2.5 %", "97.5 %"]
    low, high = fit.confint()["spread"]
    assert 0 < low < fit.spread < high


# ---------------------------------------------------------------------- files, families, comparing


@pytest.mark.parametrize(
    "make",
    [
        lambda: glm.RobustPoissonRegression(),
        lambda: glm.RobustLinearRegression(),
        lambda: glm.RobustLogisticRegression(local="label"),
        lambda: glm.RobustGLM(Gamma(), local=None),
    ],
)
@pytest.mark.filterwarnings("ignore::robustly.errors.HeavyTailsWarning")
def test_a_saved_model_comes_back_whole(make, tmp_path):
    frame = clinic()
    X, y = frame[["age", "income"]], frame["visits"].to_numpy() + 0.5
    y = np.where(y > 3, "many", "few") if isinstance(make(), glm.RobustLogisticRegression) else y
    model = make().fit(X, y)
    model.save(tmp_path / "model.rb")
    again = rb.load(tmp_path / "model.rb")
    np.testing.assert_array_equal(model.predict(X), again.predict(X))
    np.testing.assert_array_equal(model.outliers(), again.outliers())
    assert str(model.summary()) == str(again.summary())
    assert model.result_.loo == again.result_.loo


class Geometric(Family):
    """Failures before the first success; the predictor is the log odds of success."""

    def distribution(self, predictor):
        import numpyro.distributions as dist

        return dist.GeometricLogits(predictor)


class Wrong(Geometric):
    def mean(self, predictor, nuisance, trials):
        return 3.0 * super().mean(predictor, nuisance, trials)


def test_a_users_own_family_is_checked_and_fitted(tmp_path):
    check_family(Geometric())
    check_family(Poisson())
    with pytest.raises(ModelError, match="away from its mean"):
        check_family(Wrong())
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 1))
    y = rng.geometric(1 / (1 + np.exp(-(0.5 * x[:, 0] + 0.8 * rng.normal(size=400))))) - 1.0
    model = glm.RobustGLM(Geometric()).fit(x, y)
    assert abs(model.coef_[0] - 0.5) < 4 * model.result_.standard_errors["x0"]
    model.result_.save(tmp_path / "fit.rb")
    with pytest.raises(PersistError, match="family"):
        rb.load(tmp_path / "fit.rb")
    assert rb.load(tmp_path / "fit.rb", family=Geometric()).spread == model.spread_


def test_comparing_shows_who_moved_the_classical_fit():
    frame = clinic()
    frame.loc[11, ["visits", "age"]] = [400, 78.0]
    X, y = frame[["age"]], frame["visits"]
    both = compare(glm.RobustGLM(local=None).fit(X, y), robust=glm.RobustGLM().fit(X, y))
    assert both.rows["row"].iloc[0] == 11
    assert both.scores.loc["robust", "LOO difference"] == 0
    assert both.scores.loc["classical", "LOO"] < both.scores.loc["robust", "LOO"]
    assert "classical" in str(both)
    with pytest.raises(ModelError, match="two or more"):
        compare(glm.RobustGLM().fit(X, y))


def test_binomial_counts_identify_the_spread():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(500, 1))
    trials = rng.integers(5, 40, 500)
    y = rng.binomial(trials, 1 / (1 + np.exp(-(X[:, 0] + 0.8 * rng.normal(size=500)))))
    model = glm.RobustLogisticRegression().fit(X, y, trials=trials)
    assert model.spread_ == pytest.approx(0.8, abs=0.15)
    other = glm.RobustLogisticRegression().fit(X, np.column_stack([y, trials - y]))
    np.testing.assert_allclose(model.coef_, other.coef_)
    assert stats.norm.sf(abs(model.coef_[0, 0] - 1) / model.result_.standard_errors["x0"]) > 1e-5
