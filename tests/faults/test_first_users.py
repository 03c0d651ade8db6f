"""What users of R, scikit-learn, the shell and ArviZ ran into in 0.1: each slip is answered rightly or named with a remedy.

``tests/claims.md`` lists all that was found, and the test that shows each line mended.
"""

import re
from pathlib import Path

import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
import pytest
from formulaic import Formula

import robustly as rb
from robustly.glm.formula_spec import learn

TESTS = Path(__file__).parents[1]
RNG = np.random.default_rng(0)
TRIPS = pd.DataFrame(
    {"trips": RNG.poisson(2.0, 40), "quality": RNG.integers(0, 6, 40), "ski": np.tile(["yes", "no"], 20)}
)


def test_every_claim_of_the_list_names_a_test_that_is_there():
    lines = (TESTS / "claims.md").read_text(encoding="utf-8").splitlines()
    claims = [
        line.replace(r"\|", "/").split("|")
        for line in lines
        if line.startswith("| ") and not line.startswith("| found")
    ]
    assert len(claims) > 60
    for _, found, shown, *_ in claims:
        named = re.findall(r"`([\w/]+\.py)::(\w+)`", shown)
        assert named or "benchmarks/" in shown, found
        for path, test in named:
            assert f"def {test}(" in (TESTS / path).read_text(encoding="utf-8"), (path, test)


@pytest.mark.parametrize(
    "prior", [dist.HalfNormal(2.0), dist.HalfCauchy(1.0), dist.Exponential(1.0)], ids=lambda p: type(p).__name__
)
def test_a_standard_deviation_whose_likelihood_has_no_top_is_refused_with_the_remedy(prior):
    def model(x, y=None):
        w = numpyro.sample("w", dist.Normal(0, 10))
        s = numpyro.sample("s", prior)
        with numpyro.plate("rows", x.shape[0]):
            numpyro.sample("y", dist.Normal(x * w, s), obs=y)

    x = RNG.normal(size=200)
    with pytest.raises(rb.RobustlyError, match=r"LogNormal|InverseGamma"):
        rb.localize(model, "s").fit(x, x + RNG.standard_t(3, 200))


@pytest.mark.parametrize(
    ("formula", "said"),
    [
        ("trips ~ quality | ski", r"\(1 \| "),
        ("trips ~", "ends with its ~"),
        ("trips + quality ~ ski", "one"),
        ("trips ~ quality + nothing", "nothing"),
    ],
)
def test_a_slip_in_a_formula_is_named(formula, said):
    with pytest.raises(rb.RobustlyError, match=said):
        rb.glm(formula, TRIPS, family="poisson")


def test_a_table_without_rows_is_named():
    with pytest.raises(rb.DataError, match="no rows"):
        rb.glm("trips ~ quality", TRIPS.iloc[:0], family="poisson")


def test_a_column_of_dates_is_named():
    frame = TRIPS.assign(day=pd.date_range("2020-01-01", periods=40))
    with pytest.raises(rb.DataError, match="day"):
        rb.RobustPoissonRegression().fit(frame[["quality", "day"]], frame["trips"])
    with pytest.raises(rb.RobustlyError, match="day"):
        rb.glm("trips ~ day", frame, family="poisson")


def test_hundreds_of_words_that_would_each_have_a_coefficient_are_told_of():
    days = pd.date_range("2020-01-01", periods=301).strftime("%Y-%m-%d")
    frame = pd.DataFrame({"day": np.append(days, days), "y": np.arange(602.0)})
    with pytest.warns(rb.ManyLevelsWarning, match=r'"day" has 301 different words.*\(1 \| day\)'):
        assert learn(Formula("day"), frame).matrix.shape == (602, 301)
    learn(Formula("C(day)"), frame)  # meant so; warnings are errors here
    learn(Formula("day"), frame.iloc[:300])


def test_draws_have_the_same_names_where_rows_do_not_differ(rng):
    X = rng.normal(size=(200, 2))
    y = rng.poisson(np.exp(1.0 + X @ [0.3, -0.2]))
    y = np.minimum(y, 6)  # fewer large counts than a Poisson has: the classical model is the answer
    fit = rb.RobustPoissonRegression().fit(X, y).result_
    assert fit.outcome.kind == "boundary"
    draws = fit.sample_posterior(20, 0)
    assert set(draws) == {"Intercept", "x0", "x1", "spread"}
    assert np.all(draws["spread"] == 0.0)


def test_a_loaded_fit_says_what_its_page_needs(tmp_path):
    fit = rb.glm("trips ~ quality", TRIPS, family="poisson", local=None)
    fit.save(tmp_path / "trips.robustly")
    with pytest.raises(rb.FitError, match="a report needs the rows this fit was made with") as said:
        rb.load(tmp_path / "trips.robustly").report(tmp_path / "page.html")
    assert "model=" not in str(said.value)
