"""Rows with missing values are refused by name or dropped and named; rows keep the labels of the data they came from."""

from __future__ import annotations

import numpy as np
import pandas as pd
import polars as pl
import pytest

import robustly as rb
from robustly.errors import DataError, ModelError
from robustly.report.findings import Findings

GONE = ["p3", "p17", "p40", "p41"]


@pytest.fixture(scope="module")
def whole():
    rng = np.random.default_rng(3)
    n = 120
    frame = pd.DataFrame(
        {"age": rng.normal(size=n), "town": rng.choice(["a", "b"], n), "years": rng.uniform(1, 3, n), "note": "x"},
        index=[f"p{i}" for i in range(n)],
    )
    return frame.assign(visits=rng.poisson(frame["years"] * np.exp(1 + 0.3 * frame["age"])).astype(float))


@pytest.fixture(scope="module")
def holed(whole):
    holed = whole.copy()
    holed.loc["p3", "age"] = np.nan
    holed.loc["p17", "town"] = None
    holed.loc["p40", "visits"] = np.nan
    holed.loc["p41", "years"] = np.nan
    holed.loc["p5", "note"] = None  # a column that the formula does not read
    holed.loc["p60", "visits"] = 300.0
    return holed


FORMULA = "visits ~ age + C(town) + offset(log(years))"


@pytest.fixture(scope="module")
def dropped(holed):
    return rb.glm(FORMULA, holed, na_action="drop")


def test_dropping_is_fitting_the_rows_without_gaps(holed, dropped):
    plain = rb.glm(FORMULA, holed.drop(index=GONE))
    np.testing.assert_allclose(dropped.coefficients, plain.coefficients, rtol=1e-10)
    assert len(dropped.weight) == len(holed) - 4


def test_dropped_rows_are_counted_and_named(dropped):
    text = str(dropped.summary())
    assert "116, 4 dropped for missing values" in text
    assert '4 rows were dropped for missing values in "age", "town", "visits" and "years": p3, p17, p40, p41.' in text
    assert list(dropped.row_labels.dropped) == GONE


def test_missing_values_are_refused_by_row_unless_told(holed):
    with pytest.raises(DataError, match=r'"age" holds a missing value in row 3.*na_action="drop"'):
        rb.glm(FORMULA, holed)
    with pytest.raises(ModelError, match="na_action takes"):
        rb.glm(FORMULA, holed, na_action="omit")
    with pytest.raises(DataError, match='every row lacks a value in "age"'):
        rb.glm("visits ~ age", holed.assign(age=np.nan), na_action="drop")


def test_weights_and_exposures_are_dropped_with_their_rows(holed):
    weights = np.where(np.arange(len(holed)) % 2, 1.0, 2.0)
    weights[10] = np.nan
    fit = rb.glm("visits ~ age", holed, weights=weights, exposure="years", na_action="drop", local=None)
    used = holed.drop(index=["p3", "p40", "p41", "p10"])
    same = rb.glm("visits ~ age", used, weights=weights[[int(p[1:]) for p in used.index]], exposure="years", local=None)
    np.testing.assert_allclose(fit.coefficients, same.coefficients, rtol=1e-10)


def test_estimators_drop_rows_of_frames(holed):
    X, y = holed[["age"]], holed["visits"]
    model = rb.RobustPoissonRegression(na_action="drop").fit(X, y)
    rest = holed.drop(index=["p3", "p40"])
    np.testing.assert_allclose(
        model.coef_, rb.RobustPoissonRegression().fit(rest[["age"]], rest["visits"]).coef_, rtol=1e-10
    )
    assert model.outliers()[0] == "p60"
    with pytest.raises(DataError, match="missing value"):
        rb.RobustPoissonRegression().fit(X, y)
    labels = rb.RobustLogisticRegression(local=None, na_action="drop").fit(X, np.where(y.isna(), np.nan, y > 3))
    assert len(labels.result_.weight) == 118


def test_polars_gaps_are_gaps(holed):
    frame = pl.from_pandas(holed.reset_index(drop=True))
    fit = rb.glm(FORMULA, frame, na_action="drop", local=None)
    assert list(fit.row_labels.dropped) == [3, 17, 40, 41]


def test_outliers_are_labels_where_the_data_have_them(holed, dropped):
    odd = dropped.outliers()
    assert odd[0] == "p60"
    assert holed.loc[odd, "visits"].iloc[0] == 300.0
    assert dropped.outlier_places()[0] == 56  # four rows before it were dropped
    counted = rb.glm(FORMULA, holed.reset_index(drop=True), na_action="drop")
    assert counted.outliers()[0] == 60
    repeated = holed.drop(index=GONE).set_index(pd.Index(["same"] * 116))
    assert rb.glm(FORMULA, repeated).outliers()[0] == 56  # labels that tell nothing apart are places


def test_tables_pages_and_sentences_show_labels(holed, dropped, tmp_path):
    classical = rb.glm(FORMULA, holed, na_action="drop", local=None)
    found = Findings(dropped, classical, frame=holed)
    line = found.rows(found.outliers).iloc[0]
    assert (line["row"], line["visits"], line["note"]) == ("p60", 300.0, "x")
    assert "p60" in found.sentences()[-1]
    assert "p60" in set(found.comparison.rows["row"])
    dropped.report(tmp_path / "page.html", data=holed)
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "p60" in page
    assert "4 dropped for missing values" in page


def test_labels_are_kept_in_files(dropped, tmp_path):
    dropped.save(tmp_path / "fit.robustly")
    again = rb.load(tmp_path / "fit.robustly")
    assert list(again.outliers()) == list(dropped.outliers())
    assert again.row_labels.dropped == dropped.row_labels.dropped
    assert "4 dropped for missing values" in str(again.summary())


# ---------------------------------------------------------------------- sentences


def test_neither_a_change_of_meaning_nor_noise_is_a_finding():
    rng = np.random.default_rng(5)
    x = rng.normal(size=400)
    frame = pd.DataFrame({"x": x, "y": rng.poisson(np.exp(1 + 0.5 * x + 0.8 * rng.normal(size=400)))})
    found = Findings(rb.glm("y ~ x", frame), rb.glm("y ~ x", frame, local=None))
    moved = found.coefficients["moved (s.e.)"]
    assert moved["Intercept"] > 3  # exp(spread²/2) lies between a typical row and the mean
    assert not any("is Intercept" in sentence for sentence in found.sentences())
    noise = pd.DataFrame({"x": x, "y": x + rng.standard_t(30, size=400)})
    found = Findings(
        rb.glm("y ~ x", noise, family="normal", dof=8.0), rb.glm("y ~ x", noise, family="normal", local=None)
    )
    scores = found.comparison.scores
    if abs(scores["LOO difference"]).max() < scores["its std. error"].max():
        assert any("predicted as well by either model" in sentence for sentence in found.sentences())
    assert any("No slope moved by as much as its standard error" in sentence for sentence in found.sentences())


def test_rows_that_do_not_differ_beyond_chance_are_not_said_to_differ():
    """The best fit has some spread in half of all homogeneous sets; a finding it is only if chance would rarely give it."""
    said = []
    for spread in (0.25, 1.0):
        rng = np.random.default_rng(0)
        frame = pd.DataFrame({"x": rng.normal(size=60)})
        frame["y"] = rng.poisson(np.exp(1 + 0.3 * frame["x"] + spread * rng.normal(size=60)))
        found = Findings(rb.glm("y ~ x", frame), rb.glm("y ~ x", frame, local=None))
        assert found.robust.spread > 0.1
        said.append((found.robust.test("spread = 0").pvalue, found.sentences()[0]))
    assert said[0][0] > 0.1
    assert f"Rows do not differ beyond chance (likelihood ratio, p = {said[0][0]:.2g})" in said[0][1]
    assert said[1][0] < 0.01
    assert said[1][1].startswith("Rows differ:")


def test_what_is_as_long_as_the_rows_that_are_left_is_not_put_beside_them():
    """58 weights of 60 rows, two of which are dropped: which two they leave out is not known."""
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(60, 2)), rng.poisson(2.0, 60)
    X[[3, 9], 0] = np.nan
    for beside in ("sample_weight", "offset", "exposure"):
        with pytest.raises(DataError, match="58 values, but the data have 60 rows"):
            rb.RobustPoissonRegression(na_action="drop").fit(X, y, **{beside: np.ones(58)})
