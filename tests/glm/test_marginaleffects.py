"""Fits pass through marginaleffects: predictions, comparisons, slopes and hypotheses as the delta method has them on
statsmodels' classical fits."""

from __future__ import annotations

import numpy as np
import pandas as pd
import polars as pl
import pytest
import statsmodels.api as sm
import statsmodels.formula.api as smf
from scipy import stats

import robustly as rb
from robustly.errors import ModelError

effects = None

OLD_POLARS = int(pl.__version__.split(".")[0]) < 2
FAMILIES = {
    "normal": sm.families.Gaussian(),
    "poisson": sm.families.Poisson(),
    "bernoulli": sm.families.Binomial(),
}
TERMS = ["Intercept", "town[T.b]", "town[T.c]", "x", "z", "x:z"]


@pytest.fixture(scope="module", autouse=True)
def package():
    """The package, which sets JAX's precision for the whole process when it is imported; other tests have their own."""
    global effects
    import jax

    wide = jax.config.jax_enable_x64
    effects = pytest.importorskip(
        "marginaleffects", reason="marginaleffects is not installed: pip install robustly[test]"
    )
    yield
    jax.config.update("jax_enable_x64", wide)


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(2)
    n = 120
    frame = pd.DataFrame({"x": rng.normal(size=n), "z": rng.normal(size=n), "town": rng.choice(list("abc"), n)})
    mean = 0.3 + 0.5 * frame["x"] - 0.2 * frame["z"] * frame["x"] + 0.4 * (frame["town"] == "b")
    return frame.assign(
        normal=mean + rng.normal(size=n),
        poisson=rng.poisson(np.exp(mean)),
        bernoulli=(rng.random(n) < 1 / (1 + np.exp(-mean))).astype(int),
    )


@pytest.fixture(scope="module", params=list(FAMILIES))
def both(request, data):
    family = request.param
    formula = f"{family} ~ x * z + town"
    ours = rb.glm(formula, data, family=family, local=None)
    theirs = (
        smf.ols(formula, data).fit() if family == "normal" else smf.glm(formula, data, family=FAMILIES[family]).fit()
    )
    return ours.to_marginaleffects(data), theirs


def columns_of(frame):
    """The design, written out."""
    town, x, z = frame["town"], frame["x"], frame["z"]
    return np.column_stack([np.ones(len(frame)), town == "b", town == "c", x, z, x * z]).astype(float)


def by_delta(theirs, of):
    """What `of` gives of predictions, and its standard error by derivatives in statsmodels' estimates."""
    params, covariance = theirs.params[TERMS].to_numpy(), theirs.cov_params().loc[TERMS, TERMS].to_numpy()
    link = getattr(theirs.model, "family", sm.families.Gaussian()).link
    value = lambda at: np.atleast_1d(of(lambda frame: link.inverse(columns_of(frame) @ at)))
    step = 1e-5
    slope = np.stack([(value(params + h) - value(params - h)) / (2 * step) for h in step * np.eye(len(params))], axis=1)
    return value(params), np.sqrt(np.einsum("ni,ij,nj->n", slope, covariance, slope))


def moved(data, **columns):
    return data.assign(**{name: given(data) if callable(given) else given for name, given in columns.items()})


EPS = 1.0
"""Half the step of slopes: a wide one, because the package differentiates the slopes once more and a small step leaves rounding in its standard errors."""
ASKED = {
    "predictions": (lambda m: effects.predictions(m), lambda p, d: p(d)),
    "averages by town": (
        lambda m: effects.avg_predictions(m, by="town"),
        lambda p, d: [p(d)[d["town"] == t].mean() for t in "abc"],
    ),
    "comparisons": (
        lambda m: effects.comparisons(m, variables={"x": 1}),
        lambda p, d: p(moved(d, x=d["x"] + 0.5)) - p(moved(d, x=d["x"] - 0.5)),
    ),
    "slopes": (
        lambda m: effects.slopes(m, variables="x", eps=2 * EPS),
        lambda p, d: (p(moved(d, x=d["x"] + EPS)) - p(moved(d, x=d["x"] - EPS))) / (2 * EPS),
    ),
    "average slopes": (
        lambda m: effects.avg_slopes(m, variables=["x", "z"], eps=2 * EPS),
        lambda p, d: [
            np.mean((p(moved(d, **{v: d[v] + EPS})) - p(moved(d, **{v: d[v] - EPS}))) / (2 * EPS)) for v in "xz"
        ],
    ),
    "hypothesis": (
        lambda m: effects.avg_predictions(m, by="town", hypothesis="b0 - b1 = 0"),
        lambda p, d: p(d)[d["town"] == "a"].mean() - p(d)[d["town"] == "b"].mean(),
    ),
}
BY_CATEGORY = {
    "average comparisons": (
        lambda m: effects.avg_comparisons(m, variables="town"),
        lambda p, d: [np.mean(p(moved(d, town=t)) - p(moved(d, town="a"))) for t in "bc"],
    ),
    "ratios": (
        lambda m: effects.avg_comparisons(m, variables="town", comparison="ratio"),
        lambda p, d: [np.mean(p(moved(d, town=t))) / np.mean(p(moved(d, town="a"))) for t in "bc"],
    ),
}


def agrees(both, data, asked):
    ours, theirs = both
    found = asked[0](ours).data
    order = [name for name in ("rowid", "term", "contrast", "town") if name in found.columns]
    found = found.with_columns([pl.col(name).cast(pl.String) for name in order if name != "rowid"]).sort(order)
    value, error = by_delta(theirs, lambda predict: np.asarray(asked[1](predict, data)))
    np.testing.assert_allclose(found["estimate"].to_numpy(), value, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(found["std_error"].to_numpy(), error, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("asked", list(ASKED))
def test_marginal_effects_are_those_of_statsmodels(both, data, asked):
    agrees(both, data, ASKED[asked])


@pytest.mark.skipif(not OLD_POLARS, reason="marginaleffects 0.6 compares categories with polars 1 only")
@pytest.mark.filterwarnings("ignore:.*get_categories")
@pytest.mark.parametrize("asked", list(BY_CATEGORY))
def test_comparisons_of_categories_are_those_of_statsmodels(both, data, asked):
    agrees(both, data, BY_CATEGORY[asked])


@pytest.mark.skipif(not OLD_POLARS, reason="marginaleffects 0.6 takes statsmodels' fits with polars 1 only")
@pytest.mark.filterwarnings("ignore:.*get_categories")
@pytest.mark.parametrize("asked", list(ASKED | BY_CATEGORY))
def test_statsmodels_fits_give_the_same_through_the_package(data, asked):
    frame = data.assign(town=pd.Categorical(data["town"]))
    theirs = smf.glm("poisson ~ x * z + town", frame, family=FAMILIES["poisson"]).fit()
    ours = rb.glm("poisson ~ x * z + town", frame, local=None).to_marginaleffects(frame)
    ask = (ASKED | BY_CATEGORY)[asked][0]
    one, other = (ask(model).data for model in (ours, theirs))
    order = [name for name in ("rowid", "term", "contrast", "town") if name in one.columns and name in other.columns]
    one, other = (
        each.with_columns([pl.col(name).cast(pl.String) for name in order]).sort(order) for each in (one, other)
    )
    for column in ("estimate", "std_error"):
        np.testing.assert_allclose(one[column].to_numpy(), other[column].to_numpy(), rtol=1e-6, atol=1e-6)


def test_the_mean_of_a_robust_fit_moves_with_its_spread(data):
    frame = data.assign(poisson=data["poisson"] * np.where(np.arange(len(data)) % 6 == 0, 5, 1))
    fit = rb.glm("poisson ~ x", frame)
    assert fit.spread > 0
    found = effects.predictions(fit.to_marginaleffects(frame)).data
    law = fit.predictive(frame)
    np.testing.assert_allclose(found["estimate"].to_numpy(), law.mean, rtol=1e-10)
    low, high = law.mean_interval(0.95)
    # Our interval divides by rows less the three fitted numbers and takes Student's t with rows less coefficients.
    few = stats.t(len(frame) - 2).ppf(0.975) * np.sqrt(len(frame) / (len(frame) - 3))
    error = law.mean * np.log(high / low) / (2 * few)
    np.testing.assert_allclose(found["std_error"].to_numpy(), error, rtol=1e-4)


def test_offsets_and_sandwiches_go_along(data):
    frame = data.assign(years=np.linspace(1, 4, len(data)))
    fit = rb.glm("poisson ~ x", frame, exposure="years", local=None)
    found = effects.predictions(fit.to_marginaleffects(frame), vcov="HC0").data
    np.testing.assert_allclose(found["estimate"].to_numpy(), fit.fittedvalues, rtol=1e-10)
    with pytest.raises(ModelError, match="fit by formula"):
        rb.RobustGLM(local=None).fit(data[["x"]], data["poisson"]).result_.to_marginaleffects(data)
