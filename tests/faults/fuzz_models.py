"""Groups of rows, categories, extra zeros and series with odd data and odd options: the regressions of more than one predictor, and chains."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
from fuzz_targets import ROWS, STEPS, Answers, Call, answers_of, frame_of, one_changed, short
from fuzz_values import option, small_matrix

import robustly as rb

BARS = (
    "y ~ x + (1 | g)", "y ~ (1 | g)", "y ~ x + (1 + x | g)", "y ~ x + (x || g)", "y ~ x + (0 + z | g)", "t ~ x + (1 | g)", "y ~ x + (1 | g/h)",
    "y ~ x + (1 | d)", "y ~ x + offset(log(t)) + (1 | h)", "log(t) ~ x + (1 | h)",
)  # fmt: skip
BAD_BARS = (
    "y ~ (1 | y)", "y ~ (1 | nope)", "y ~ (1 | g) + (1 | h)", "y ~ (1 | g) + (1 | g)", "y ~ (g | g)", "y ~ (log(x) | g)", "y ~ (1 | log(t))", "y ~ (| g)",
    "y ~ (1 |)", "y ~ ((1 | g))", "y ~ x * (1 | g)", "(1 | g) ~ x", "y ~ (1 | g | h)", "y ~ (1 | g/h/d)", "y ~ (1 | g:h)", "y ~ (offset(t) | g)", "y ~ (bs(x, df=4) | g)",
    "y ~ (1 | x.to_csv('a'))", "y ~ (__import__('os') | g)",
)  # fmt: skip


def grouped(random: Random) -> Call:
    """A formula with bars; odd groups, laws and families."""
    told, frame = frame_of(random)
    frame["h"] = np.resize(np.repeat(np.arange(8), 3), len(frame))
    if random.random() < 0.15:
        frame["g"] = random.choice((None, "a", 1.5, np.nan, np.inf))
        told += f"; g is {frame['g'].iloc[0] if len(frame) else None!r}"
    text = random.choice(BAD_BARS if random.random() < 0.2 else BARS)
    family = random.choice(("normal", "normal", "poisson", "bernoulli"))
    asked: dict[str, Any] = {}
    for name, usual in (
        ("group_law", ("normal", "student_t", "x")),
        ("local", (None, "auto", "predictor")),
        ("weights", ("t", "z")),
        ("exposure", ("t", "y")),
        ("na_action", ("drop", "raise")),
        ("max_iter", STEPS),
    ):
        if random.random() < 0.08:
            asked[name] = option(random, usual)
    seen = Random(random.randrange(2**32))

    def run() -> Answers:
        fit = rb.glm(text, frame, family=family, **asked)
        found = answers_of(fit, seen)
        if seen.random() < 0.5:
            along = {"exposure": 1.0} if "exposure" in asked else {}
            found["predictive"] = fit.predictive(frame.dropna(), **along).typical
        return found

    return f"{text!r} {family} {told} {asked}", run


def categories(random: Random) -> Call:
    """Classes without an order, by formula or from arrays."""
    X = small_matrix(ROWS, 2, random.randrange(2**32))
    classes = random.choice(
        (("a", "b", "c"), (0, 1, 2), (True, False), (1.5, 2.5, 7.0), ("a",), ("a", None, "b"), (np.nan, 1.0, 2.0))
    )
    y = np.resize(np.array(classes, dtype=object if None in classes else None), ROWS)
    np.random.default_rng(random.randrange(2**32)).shuffle(y)
    given = {"X": X} | ({"sample_weight": np.ones(ROWS)} if random.random() < 0.2 else {})
    told, data = one_changed(random, given)
    usual = {
        "local": ("label", None, "predictor"),
        "alpha": (0.0, 1.0, -1.0),
        "max_iter": STEPS,
        "fit_intercept": (True, False),
    }
    asked = {name: option(random, values) for name, values in usual.items() if random.random() < 0.15}
    seen = Random(random.randrange(2**32))

    def run() -> Answers:
        model = rb.RobustMultinomialRegression(**asked).fit(data["X"], y, **{k: v for k, v in data.items() if k != "X"})
        found = answers_of(model.result_, seen) | {"coef_": model.coef_, "proba": model.predict_proba(data["X"])}
        model.predict(data["X"])
        return found

    return f"classes {short(classes)} {told} {asked}", run


def by_family(families: Callable[[], tuple[Any, ...]], most: int) -> Callable[[Random], Call]:
    """Estimators of families that have further numbers: ordered categories, extra zeros."""

    def target(random: Random) -> Call:
        X = small_matrix(ROWS, 2, random.randrange(2**32))
        rng = np.random.default_rng(random.randrange(2**32))
        y = np.minimum(rng.poisson(2.0, ROWS) * (rng.random(ROWS) < 0.7), most).astype(float)
        told, data = one_changed(random, {"X": X, "y": y})
        place = random.randrange(len(families()))
        usual = {"local": (None, None, "predictor", "label"), "alpha": (0.0, 1.0), "max_iter": STEPS}
        asked = {"local": None} | {name: option(random, one) for name, one in usual.items() if random.random() < 0.15}
        seen = Random(random.randrange(2**32))

        def run() -> Answers:
            model = rb.RobustGLM(families()[place], **asked).fit(data["X"], data["y"])
            return answers_of(model.result_, seen) | {"predict": np.asarray(model.predict(data["X"]), dtype=float)}

        return f"{families()[place]} {told} {asked}", run

    return target


def series(random: Random) -> Call:
    """A structural series whose values, requests and options may be odd."""
    from statsmodels.tsa.statespace.structural import UnobservedComponents

    rng = np.random.default_rng(random.randrange(2**32))
    told, data = one_changed(random, {"values": np.cumsum(rng.normal(size=30)) + rng.standard_t(2, 30)})
    sites = option(random, ("irregular", ["irregular", "level"], "level", "nope", [], "trend"))
    level = random.choice(("llevel", "llevel", "rwalk", "lltrend"))
    asked: dict[str, Any] = {"rtol": 1e-3}
    for name, usual in (
        ("seed", (0, -1)),
        ("draws", (50, 0)),
        ("max_steps", (3, 0)),
        ("rtol", (1e-3, -1.0)),
        ("start", (None, {"sigma2.irregular": -1.0}, {"nope": 1.0}, [])),
    ):
        if random.random() < 0.08:
            asked[name] = option(random, usual)
    method = option(random, ("bound", "em", "leave-one-out", "sampled", "x")) if random.random() < 0.2 else "bound"
    seen = Random(random.randrange(2**32))

    def run() -> Answers:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                model = UnobservedComponents(data["values"], level=level, use_exact_diffuse=True)
        except Exception:  # What statsmodels says of its data is its own.
            return {}
        fit = rb.localize(model, sites).fit(method, **asked)
        str(fit.summary())
        found = {"estimates": fit.estimates, "evidence": fit.evidence}
        if seen.random() < 0.2:
            found["forecast"] = fit.predictive(3).mean
        return found

    return f"{level} {method} {short(sites)} {told} {asked}", run


def _ordered() -> tuple[Any, ...]:
    return rb.glm.Ordinal(3), rb.glm.Ordinal(4)


def _zeros() -> tuple[Any, ...]:
    return "zero_inflated_poisson", "hurdle_poisson"


MODELS: dict[str, Callable[[Random], Call]] = {
    "glm groups": grouped,
    "categories": categories,
    "ordered categories": by_family(_ordered, 2),
    "extra zeros": by_family(_zeros, 9),
    "series": series,
}
