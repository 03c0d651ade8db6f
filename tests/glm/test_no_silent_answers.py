"""No silent wrong answer: what would be cut, forgotten or mistaken is refused, or done right."""

from __future__ import annotations

import decimal
import inspect

import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn.linear_model import PoissonRegressor
from sklearn.model_selection import cross_val_score

import robustly as rb
from robustly.errors import DataError, ModelError


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    n = 200
    size = rng.integers(4, 20, n)
    frame = pd.DataFrame({"age": rng.normal(size=n), "size": size})
    rate = np.exp(0.4 + 0.5 * frame["age"] + 1.2 * rng.normal(size=n))
    return frame.assign(
        visits=rng.poisson(rate),
        illness=rng.poisson(2.0, n),
        weight=frame["age"] + rng.standard_t(3, n),
        sick=rng.binomial(size, 1 / (1 + np.exp(1.0 - 0.5 * frame["age"]))),
    )


# ---------------------------------------------------------------------- responses


@pytest.mark.parametrize("family", ["poisson", "normal", "binomial", "gamma"])
@pytest.mark.parametrize("left", ["visits + illness", "sick/size", "sick:size + sick"])
def test_a_response_of_two_columns_is_refused_and_never_cut(rows, family, left):
    with pytest.raises(ModelError, match=r"has 2 columns.*cbind\(successes, failures\)"):
        rb.glm(f"{left} ~ age", rows, family=family, local=None)


@pytest.mark.parametrize(
    "model",
    [rb.RobustPoissonRegression(), rb.RobustLinearRegression(), rb.RobustGLM("gamma"), rb.RobustGLM("bernoulli")],
)
def test_estimators_refuse_two_responses_as_scikit_learn_does(rows, model):
    with pytest.raises(DataError, match=r"y should be a 1d array, got an array of shape \(200, 2\)"):
        model.fit(rows[["age"]], rows[["visits", "illness"]])


def test_successes_and_failures_are_trials(rows):
    bound = rb.glm("cbind(sick, size - sick) ~ age", rows, family="binomial", local=None)
    named = rb.glm("sick ~ age", rows, family="binomial", local=None, trials="size")
    np.testing.assert_allclose(bound.coefficients, named.coefficients, rtol=1e-10)
    two = np.column_stack([rows["sick"], rows["size"] - rows["sick"]])
    model = rb.RobustGLM("binomial", local=None).fit(rows[["age"]], two)
    np.testing.assert_allclose(model.coef_, named.coefficients[1:], rtol=1e-10)
    with pytest.raises(ModelError, match='for family="binomial"; got 2 columns and the family Poisson'):
        rb.glm("cbind(sick, size - sick) ~ age", rows, family="poisson")
    with pytest.raises(ModelError, match=r"has 1 columns"):
        rb.glm("cbind(sick) ~ age", rows, family="binomial")


# ---------------------------------------------------------------------- predictions


def test_predictions_are_means_and_typical_values_on_request(rows):
    X, y = rows[["age"]], rows["visits"]
    model = rb.RobustPoissonRegression().fit(X, y)
    assert model.predict(X).mean() == pytest.approx(y.mean(), rel=0.15)
    typical = rb.RobustPoissonRegression(predict_kind="typical").fit(X, y)
    np.testing.assert_allclose(typical.predict(X), model.predict(X, kind="typical"), rtol=1e-10)
    np.testing.assert_allclose(model.predict(X) / typical.predict(X), np.exp(model.spread_**2 / 2), rtol=1e-10)
    with pytest.raises(DataError, match='kind takes "mean"'):
        model.predict(X, kind="median")


def test_scikit_learns_score_is_that_of_a_mean(rows):
    X, y = rows[["age"]], rows["visits"]
    ours = cross_val_score(rb.RobustPoissonRegression(), X, y, cv=3).mean()
    typical = cross_val_score(rb.RobustPoissonRegression(predict_kind="typical"), X, y, cv=3).mean()
    theirs = cross_val_score(PoissonRegressor(alpha=0.0), X, y, cv=3, scoring="r2").mean()
    assert ours > typical
    assert ours == pytest.approx(theirs, abs=0.1)


def test_a_law_without_a_mean_is_not_predicted_as_infinite(rows):
    model = rb.RobustPoissonRegression(prior="student_t").fit(rows[["age"]], rows["visits"])
    with pytest.raises(ModelError, match=r'expected response is infinite\. Ask for kind="typical"'):
        model.predict(rows[["age"]])
    assert np.isfinite(model.predict(rows[["age"]], kind="typical")).all()


def test_what_stood_beside_the_rows_is_asked_for_when_predicting(rows, tmp_path):
    years = np.full(len(rows), 10.0)
    fit = rb.glm("visits ~ age", rows, local=None, exposure=years)
    with pytest.raises(DataError, match=r"fitted with exposure given by row.*Give exposure="):
        fit.predictive(rows)
    one, ten = (fit.predictive(rows, exposure=each).mean for each in (1.0, years))
    np.testing.assert_allclose(ten, 10.0 * one, rtol=1e-12)
    fit.save(tmp_path / "fit.robustly")
    with pytest.raises(DataError, match="exposure"):
        rb.load(tmp_path / "fit.robustly").predictive(rows)
    model = rb.RobustGLM(local=None).fit(rows[["age"]], rows["visits"], offset=np.log(years))
    for ask in (model.predict, model.predict_dist, lambda X: model.surprise(X, rows["visits"])):
        with pytest.raises(DataError, match="offset"):
            ask(rows[["age"]])
    np.testing.assert_allclose(model.predict(rows[["age"]], offset=np.log(years)), ten, rtol=1e-8)
    counted = rb.glm("sick ~ age", rows, family="binomial", local=None, trials=rows["size"].to_numpy())
    with pytest.raises(DataError, match="trials"):
        counted.predictive(rows)
    labels = rb.RobustLogisticRegression(local=None).fit(rows[["age"]], rows["visits"] > 1, offset=0.1 * years)
    with pytest.raises(DataError, match="offset"):
        labels.predict(rows[["age"]])


# ---------------------------------------------------------------------- laws and comparisons


def test_degrees_of_freedom_are_fitted_on_every_road_and_shown(rows):
    by_formula = rb.glm("weight ~ age", rows, family="normal")
    estimator = rb.RobustLinearRegression().fit(rows[["age"]], rows["weight"])
    assert by_formula.dof == pytest.approx(estimator.dof_, rel=1e-6)
    assert "dof" in str(by_formula.summary())
    held = rb.glm("weight ~ age", rows, family="normal", dof=4.0)
    assert held.dof == 4.0
    assert "dof:" in str(held.summary())
    clean = rows.assign(weight=np.linspace(-1.0, 1.0, len(rows)))
    ended = rb.glm("weight ~ age", clean, family="normal")
    assert ended.dof == np.inf
    assert "inf" in str(ended.summary())


def test_fits_of_different_responses_are_not_compared(rows, tmp_path):
    visits, illness = (rb.glm(f"{name} ~ age", rows, local=None) for name in ("visits", "illness"))
    with pytest.raises(DataError, match="different responses"):
        rb.compare(visits, illness)
    visits.save(tmp_path / "visits.robustly")
    with pytest.raises(DataError, match="different responses"):
        rb.compare(rb.load(tmp_path / "visits.robustly"), illness)
    assert len(rb.compare(rb.load(tmp_path / "visits.robustly"), visits).scores) == 2
    with pytest.raises(DataError, match="different weights"):
        rb.compare(visits, rb.glm("visits ~ age", rows, local=None, weights="size"))
    with pytest.raises(ModelError, match="densities change with the units"):
        rb.compare(visits, rb.glm("visits ~ age", rows, family="normal", local=None))


@pytest.mark.parametrize("level", [95, 0.0, 1.0])
def test_a_level_of_95_is_refused(rows, level):
    fit = rb.glm("visits ~ age", rows, local=None)
    for ask in (fit.confint, fit.predictive(rows).interval):
        with pytest.raises(ModelError, match="between 0 and 1"):
            ask(level)


# ---------------------------------------------------------------------- columns


def test_a_column_called_intercept_is_not_dropped(rows):
    named = rows.rename(columns={"age": "Intercept"})
    with pytest.raises(ModelError, match='two columns called "Intercept"'):
        rb.glm("visits ~ Intercept", named, local=None)
    model = rb.RobustGLM(local=None).fit(named[["Intercept"]], named["visits"])
    assert list(model.result_.coefficients.index) == ["Intercept", "Intercept (2)"]


def test_numbers_of_any_type_are_numbers(rows):
    plain = rb.glm("visits ~ age", rows, local=None).coefficients
    exact = rows.assign(age=[decimal.Decimal(repr(float(one))) for one in rows["age"]])
    frames = [
        exact,
        rows.assign(age=rows["age"].astype(object)),
        pl.DataFrame({"visits": rows["visits"].to_list(), "age": exact["age"].to_list()}),
    ]
    for frame in frames:
        np.testing.assert_allclose(rb.glm("visits ~ age", frame, local=None).coefficients, plain, rtol=1e-6)


@pytest.mark.parametrize("where", ["X", "y", "weights", "offset"])
def test_masks_and_imaginary_parts_are_never_ignored(rows, where):
    given = {
        "X": rows[["age"]].to_numpy(),
        "y": rows["visits"].to_numpy(float),
        "weights": np.ones(200),
        "offset": np.zeros(200),
    }
    masked = np.ma.masked_array(given[where], mask=np.arange(200).reshape(given[where].shape) == 7)
    for odd, text in ((masked, "is masked in row 7"), (given[where] + 1j, "complex")):
        X, y, weights, offset = ({**given, where: odd}[name] for name in given)
        with pytest.raises(DataError, match=f"{where}.*{text}"):
            rb.RobustGLM("normal", local=None).fit(X, y, weights, offset=offset)
    nothing_hidden = np.ma.masked_array(given["y"], mask=False)
    rb.RobustGLM("normal", local=None).fit(given["X"], nothing_hidden)


# ---------------------------------------------------------------------- messages


def test_an_unknown_argument_is_named_with_the_nearest_one(rows):
    with pytest.raises(ModelError, match=r'no argument \'maxiter\'.*Did you mean "max_iter"'):
        rb.glm("visits ~ age", rows, maxiter=3)


def test_the_signature_and_the_help_of_glm_are_those_of_the_function():
    arguments = inspect.signature(rb.glm).parameters
    assert {"formula", "data", "family", "local", "dof", "na_action", "max_iter"} <= set(arguments)
    assert "formula:" in rb.glm.__doc__
    for method in ("predict", "outliers"):
        assert "Args:" in inspect.getdoc(getattr(rb.RobustPoissonRegression, method))
    for method in ("confint", "outliers", "sample_posterior"):
        assert "Args:" in inspect.getdoc(getattr(rb.Fit, method))


BESIDE = {
    "sample_weight": (lambda x: ["1", "much", *["1"] * 38], r"weights: row 1 holds 'much', which is not a number"),
    "offset": (lambda x: ["0"] * 39 + ["far"], r"offset: row 39 holds 'far'"),
    "exposure": (lambda x: [object()] * 40, r"exposure: row 0 holds <object"),
}


@pytest.mark.parametrize("name", list(BESIDE))
def test_texts_beside_the_rows_are_named_by_row(name):
    x = np.linspace(-1, 1, 40)[:, None]
    make, words = BESIDE[name]
    with pytest.raises(DataError, match=words):
        rb.RobustPoissonRegression().fit(x, np.arange(40) % 4, **{name: make(x)})
    with pytest.raises(DataError, match=r"trials: row 0 holds 'ten'"):
        rb.RobustLogisticRegression().fit(x, np.arange(40) % 4, trials=["ten"] * 40)


def test_columns_and_weights_beyond_floating_point_are_refused_by_name():
    x = np.linspace(-1, 1, 40)
    y = np.arange(40) % 4
    for size in (1e155, 1e200, 1e300):
        with pytest.raises(DataError, match='the squares of "far" are beyond'):
            rb.glm("y ~ near + far", pd.DataFrame({"near": x, "far": size * x, "y": y}))
        with pytest.raises(DataError, match='the squares of "x0" are beyond'):
            rb.RobustLinearRegression().fit(size * x[:, None], y)
    assert np.isfinite(rb.RobustLinearRegression().fit(1e130 * x[:, None], x + 0.1 * y).coef_).all()
    with pytest.raises(DataError, match="lost in rounding"):
        rb.RobustPoissonRegression().fit(x[:, None], y, sample_weight=np.full(40, 5e-324))


def test_two_columns_of_one_name_are_refused():
    x = pd.DataFrame(np.ones((4, 2)), columns=["a", "a"])
    with pytest.raises(DataError, match='X has 2 columns called "a"'):
        rb.RobustLinearRegression().fit(x, np.arange(4.0))


def test_a_spread_of_zero_has_an_interval():
    frame = pd.DataFrame({"x": np.linspace(-2, 2, 80)})
    frame["y"] = np.round(np.exp(1 + 0.3 * frame["x"]))  # less scattered than any Poisson
    fit = rb.glm("y ~ x", frame)
    assert fit.outcome.kind == "boundary"
    found = fit.confint()
    low, high = found["spread"]
    assert low == 0.0
    assert 0.01 < high < 1.0
    assert found["spread"] == fit.profile_interval("spread") == fit.confint(kind="profile")["spread"]
