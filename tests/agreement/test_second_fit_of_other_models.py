"""The same of groups, series, other families, pairs of several numbers, priors with a wide part: a second walk builds nothing."""

from __future__ import annotations

from functools import cache

import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
import pytest
from statsmodels.tsa.statespace.structural import UnobservedComponents
from walks import Road, cases, kept, walk

import robustly as rb
from robustly import conjugate, glm

# So few rows do not tell heavy tails from rows that do not belong, and a list of outliers says so.
pytestmark = pytest.mark.filterwarnings("ignore::robustly.errors.HeavyTailsWarning")
GROUPS = 8


# ---------------------------------------------------------------------- formulas, groups


def frame(rng, n):
    """Counts and measurements in groups, which may be parts of larger ones."""
    g, x = np.arange(n) % GROUPS, rng.normal(size=n)
    m = 0.8 + 0.4 * x + 0.7 * rng.normal(size=GROUPS)[g]
    return pd.DataFrame(
        {
            "x": x,
            "g": g,
            "a": g % 4,
            "counts": rng.poisson(np.exp(m + 0.4 * rng.normal(size=n))),
            "measured": m + 0.5 * rng.standard_t(4.0, n),
            "grade": np.digitize(m + rng.logistic(size=n), [0.0, 1.5]),
            "zeros": rng.poisson(np.exp(m)) * (rng.random(n) > 0.3),
            "dead": rng.binomial(9, 1 / (1 + np.exp(-m - rng.normal(size=n)))),
            "nine": np.full(n, 9),
        }
    )


def formula(text, **asked):
    return lambda data: rb.glm(text, data, **asked)


ASKED = {
    "evidence": lambda fit, data: fit.evidence,
    "standard errors": lambda fit, data: (fit.standard_errors, fit.covariance("sandwich"), fit.summary()),
    "predictive": lambda fit, data: [(law.mean, law.quantile(0.9)) for law in [fit.predictive(data)]],
    "outliers": lambda fit, data: fit.outliers(),
    "leave one out": lambda fit, data: fit.loo,
}
PREDICTS_FROM_FILE = {
    "save, load and predict": lambda fit, data: kept()["save and load"](fit, data).predictive(data).quantile(0.9)
}
OF_GROUPS = {
    **ASKED,
    "groups": lambda fit, data: (fit.group_effects, fit.posterior().quantile(0.9)),
    "rows": lambda fit, data: fit.outliers(level="row"),
    **PREDICTS_FROM_FILE,
}

# ---------------------------------------------------------------------- programs


def places(x, y=None):
    place = numpyro.sample("place", dist.Normal(0.0, 1.0))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Normal(place + x, 0.5), obs=y)


def place_rows(rng, n):
    x = rng.normal(size=n)
    return x, x + rng.normal(size=n) + 0.5 * rng.normal(size=n)


def place_groups(rng, n):
    x, y = place_rows(rng, n)
    return x, y, np.arange(n) % GROUPS


BY_GROUP = rb.localize(places, "place", by="school")
STRAYED = rb.localize(places, "place", contaminated=True)

# ---------------------------------------------------------------------- pairs of several numbers

OF_PAIR = {
    "evidence": lambda fit, data: fit.evidence,
    "standard errors": lambda fit, data: (fit.standard_errors, fit.summary()),
    **kept(),
}


def steps(rng, n):
    return np.cumsum(0.3 * rng.normal(size=n)) + rng.standard_t(3.0, n)


def level_of(values):
    return rb.localize(UnobservedComponents(values, level="llevel", use_exact_diffuse=True), "irregular")


OF_SERIES = {
    "outliers": lambda fit, data: fit.outliers(),
    "predictive": lambda fit, data: fit.forecast(3).quantile(0.9),
    **kept(),
}

ROADS = {
    "formula": Road(frame, formula("counts ~ x", family="poisson"), {**ASKED, **PREDICTS_FROM_FILE}),
    "binomial": Road(frame, formula("dead ~ x", family="binomial", trials="nine"), ASKED),
    "negative binomial": Road(frame, formula("counts ~ x", family="negative_binomial", local=None), ASKED),
    "contaminated": Road(frame, formula("counts ~ x", family="poisson", local="contaminated"), ASKED),
    "ordinal": Road(frame, formula("grade ~ x", family=glm.Ordinal(3), local=None), ASKED),
    "zero-inflated": Road(frame, formula("zeros ~ x", family="zero_inflated_poisson", local=None), ASKED),
    "groups, normal": Road(frame, formula("measured ~ x + (1 | g)", family="normal", local=None), OF_GROUPS),
    "groups, counts": Road(frame, formula("counts ~ x + (1 | g)", family="poisson", local=None), OF_GROUPS),
    "groups in groups": Road(frame, formula("counts ~ x + (1 | a/g)", family="poisson", local=None), ASKED),
    "localize, by group": Road(
        place_groups,
        lambda data: BY_GROUP.fit(data[0], data[1], school=data[2]),
        {
            "evidence": ASKED["evidence"],
            "standard errors": ASKED["standard errors"],
            "posterior": lambda fit, data: fit.posterior().quantile(0.9),
            **kept(model=BY_GROUP),
        },
    ),
    "localize, contaminated": Road(
        place_rows,
        lambda data: STRAYED.fit(*data),
        {
            "evidence": ASKED["evidence"],
            "predictive": lambda fit, data: fit.predictive(data[0]).quantile(0.9),
            "outliers": ASKED["outliers"],
            **kept(model=STRAYED),
        },
    ),
    "gamma-exponential": Road(
        lambda rng, n: rng.exponential(size=n) / rng.gamma(1.5, 1.0, n),
        lambda data: conjugate.GammaExponential().fit(data),
        {**OF_PAIR, "outliers": lambda fit, data: fit.outliers()},
    ),
    "normal-Wishart": Road(
        lambda rng, n: rng.standard_t(4.0, (n, 2)), lambda data: conjugate.NormalWishart().fit(data), OF_PAIR
    ),
    "Dirichlet-multinomial": Road(
        lambda rng, n: np.stack([rng.multinomial(20, p) for p in rng.dirichlet([2.0, 1.0, 0.5], n)]),
        lambda data: conjugate.DirichletMultinomial().fit(data),
        OF_PAIR,
    ),
    "Bayesian mixture": Road(
        lambda rng, n: np.concatenate([rng.standard_t(4.0, (n // 2, 2)), 8 + rng.standard_t(4.0, (n - n // 2, 2))]),
        lambda data: rb.BayesianRobustGaussianMixture(3, random_state=0).fit(data),
        {"predictions": lambda fit, data: (fit.predict(data), fit.score_samples(data), fit.outliers())},
    ),
    "hidden Markov": Road(
        lambda rng, n: np.repeat([[0.0], [6.0]], [n // 2, n - n // 2], axis=0) + rng.standard_t(4.0, (n, 1)),
        lambda data: rb.RobustGaussianHMM(2, random_state=0).fit(data),
        {"predictions": lambda fit, data: (fit.predict(data), fit.score(data))},
    ),
    "series": Road(steps, lambda data: level_of(data).fit(draws=50, seed=0), OF_SERIES),
}


# The model is run once as it is written, all rows at a time, to see which value of a site each row takes: its operations are
# compiled for that number of rows, some 20 ms each.
BUILT_AGAIN = {("localize, by group", "fit"): {"jit(iota)", "jit(add)"}}


@cache
def walked(name: str) -> dict[str, list[str]]:
    return walk(ROADS[name])


@pytest.mark.parametrize(("name", "stage"), cases(ROADS))
def test_a_second_walk_builds_no_program(name, stage):
    assert set(walked(name)[stage]) == BUILT_AGAIN.get((name, stage), set())
