"""What is asked of odd inputs? Every estimator, pair, mixture, chain, topic model, program and formula, with a fit's main questions.

A target chooses its data and options by a :class:`random.Random` and gives back what was chosen, in words, and a call that
answers: numbers by name, all of which have to be finite.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
import pandas as pd
from fuzz_values import NAMES, changed, option, small_counts, small_matrix

import robustly as rb

Answers = dict[str, Any]
Call = tuple[str, Callable[[], Answers]]
ROWS = 24
TOL, STEPS = (1e-8, 1e-4, 0.0), (100, 100, 1, 2)


def short(thing: Any) -> str:
    return repr(thing)[:60].replace("\n", " ")


def one_changed(random: Random, given: dict[str, np.ndarray]) -> tuple[str, dict[str, Any]]:
    """Data of which one part, at times two, is not what it should be."""
    found: dict[str, Any] = dict(given)
    told = []
    for _ in range(1 + (random.random() < 0.15)):
        if random.random() < 0.04:
            continue  # Data as they should be, for odd options.
        name = random.choice(tuple(given))
        if isinstance(found[name], np.ndarray) and found[name].dtype == float and found[name].ndim and len(found[name]):
            how, found[name] = changed(found[name], random)
            told.append(f"{name}: {how} {short(found[name])}")
    return "; ".join(told), found


def answers_of(fit: Any, random: Random, new: Any = None) -> Answers:
    """The main questions to a :class:`~robustly.Fit`."""
    found: Answers = {
        "estimates": _estimates(fit),
        "evidence": fit.evidence,
        "log likelihood": fit.log_likelihood,
    }
    str(fit.summary())
    repr(fit)
    fit.standard_errors  # noqa: B018
    more = random.random()
    if more < 0.3:
        fit.outliers(fdr=0.1)
        found["surprise"] = fit.surprise
    elif more < 0.4:
        found["loo"] = fit.loo_by_row
    elif more < 0.5:
        fit.confint(0.9)  # By fits of its own where an estimate is at its limit.
    return found


def _estimates(fit: Any) -> np.ndarray:
    """Estimates, without what is infinite by its meaning: the degrees of freedom of a normal."""
    values = np.asarray(fit.estimates, dtype=float)
    return values[~np.isposinf(values)]


# ---------------------------------------------------------------------- regressions


def regression_data(random: Random, family: str) -> dict[str, np.ndarray]:
    seed = random.randrange(2**32)
    X = small_matrix(ROWS, 2, seed)
    y = small_counts((ROWS,), seed)
    if family in ("normal", "gamma", "exponential", "tweedie"):
        y = y + 0.5 + np.abs(X[:, 0])
    if family == "bernoulli":
        y = (y > 1).astype(float)
    return {"X": X, "y": y}


def estimator(make: Callable[..., Any], family: str, options: dict[str, tuple[Any, ...]]) -> Callable[[Random], Call]:
    """A target of an estimator with scikit-learn's manners."""

    def target(random: Random) -> Call:
        given = regression_data(random, family)
        for name in ("sample_weight", "offset", *(("exposure",) if family != "bernoulli" else ())):
            if random.random() < 0.12:
                given[name] = 0.5 + np.random.default_rng(random.randrange(2**32)).random(ROWS)
        told, data = one_changed(random, given)
        asked = {name: option(random, usual) for name, usual in options.items() if random.random() < 0.15}
        seen = Random(random.randrange(2**32))

        def run() -> Answers:
            model = make(**asked)
            X, y = data["X"], data["y"]
            model.fit(X, y, **{name: one for name, one in data.items() if name not in ("X", "y")})
            found = answers_of(model.result_, seen)
            found |= {"coef_": model.coef_, "intercept_": model.intercept_}
            along = {name: 1.0 for name in ("offset", "exposure") if name in data}
            if seen.random() < 0.7:
                found["predict"] = _numbers(model.predict(X, **along))
            return found

        return f"{told}; {asked}", run

    return target


def _numbers(found: Any) -> Any:
    return 0.0 if np.asarray(found).dtype.kind not in "fiu" else found


COMMON = {
    "alpha": (0.0, 1.0, 1e-3),
    "tol": TOL,
    "max_iter": STEPS,
    "fit_intercept": (True, False),
    "na_action": ("raise", "drop"),
}
OWN = {
    "prior": ("normal",),
    "spread": (None, 0.0, 0.5, 3.0),
    "predict_kind": ("mean", "typical"),
    "approx": ("quadrature",),
}
FORMULAS = (
    "y ~ x + z", "y ~ x", "y ~ 1", "y ~ 0 + x", "y ~ x * z", "y ~ C(g) + x", "y ~ g", "y ~ log(t)", "log(t) ~ x", "y ~ bs(x, df=4)",
    "y ~ scale(x) + offset(log(t))", "y ~ poly(x, 2)", "y ~ .", "y ~ x + I(x**2)", "y ~ x:z", "y ~ x - 1", "y ~ np.exp(x)", "y ~ x / z",
    "y ~ (x + z)**2", "t ~ x", "y + t ~ x", "y ~ x + x",
)  # fmt: skip
BAD_FORMULAS = (
    "", "~", "y ~", "~ x", "y", "y ~ nope", "y ~ x ~ z", "y|t ~ x", "y ~ x | g", "y ~ (1|g", "y ~ __import__('os')", "y ~ eval('1')",
    "y ~ x.to_csv('a')", "y ~ {x}", "y ~ lambda: 1", "y ~ x[0]", "y ~ C(", "y ~ bs(x, df=-1)", "y ~ bs(x, df=1e9)", "y ~ poly(x, 200)", "y ~ log(-t)",
    "y ~ x + offset(g)", "y ~ offset(x)", "y ~ 1e400*x", "y ~ x**-1", "y ~ x**99999", "y ~ `x`", "y ~ 'x'", "g ~ x", "d ~ x", "y ~ d", "y ~ C(x, contr.bad)",
    "y ~ C(g, levels=['a'])", "y ~ np.linalg.inv(x)", "cbind(y, t) ~ x", "cbind(y) ~ x", "y ~ x + (1 | nope)", "y ~ x\x00", "y ~ \n x", "y ~ x #", "y ~ ((((x))))", "y ~ 日本",
    "Intercept ~ x", "y ~ x + Intercept", "y ~ f'{x}'", "y ~ x if x else z", "y ~ x;z", "y ~ x == 1", "y ~ not x", "y ~ log(log(log(x)))", "y ~ 1/0", "y ~ I(x/0)", "y ~ scale(0*x)",
)  # fmt: skip
FAMILIES = ("poisson", "normal", "bernoulli", "gamma", "negative_binomial", "binomial", "exponential")


def frame_of(random: Random) -> tuple[str, pd.DataFrame]:
    """A frame with a count, columns, groups and dates, one of whose columns may be odd."""
    rng = np.random.default_rng(random.randrange(2**32))
    columns: dict[str, Any] = {
        "y": rng.poisson(2.0, ROWS).astype(float),
        "x": rng.normal(size=ROWS),
        "z": rng.normal(size=ROWS),
        "t": rng.uniform(1.0, 3.0, ROWS),
    }
    told = ""
    if random.random() < 0.7:
        name = random.choice(tuple(columns))
        how, odd = changed(columns[name], random)
        told = f"{name}: {how} {short(odd)}"
        if isinstance(odd, np.ndarray) and odd.ndim == 1 and len(odd) == ROWS:
            columns[name] = odd
        elif isinstance(odd, list) and len(odd) == ROWS:
            columns[name] = pd.Series(odd, dtype=object)
        elif isinstance(odd, pd.Series):
            columns[name] = odd.reset_index(drop=True)
    frame = pd.DataFrame(columns)
    frame["g"] = pd.Series(np.resize(["a", "b", "c"], len(frame)), dtype=object)
    frame["d"] = pd.date_range("2020-01-01", periods=len(frame))
    shape = random.random()
    if shape < 0.05:
        frame = frame.iloc[: random.choice((0, 1, 2))]
        told += f"; {len(frame)} rows"
    elif shape < 0.08:
        frame = pd.concat([frame, frame[["x"]]], axis=1)
        told += "; x twice"
    elif shape < 0.11:
        frame = frame.rename(columns={"z": random.choice(NAMES)})
        told += f"; columns {list(frame.columns)}"
    elif shape < 0.14:
        frame.loc[random.randrange(len(frame)), "g"] = random.choice((None, "", "only", 1.0))
        told += "; g odd"
    return told, frame


def formula(families: tuple[str, ...]) -> Callable[[Random], Call]:
    def target(random: Random) -> Call:
        told, frame = frame_of(random)
        text = random.choice(BAD_FORMULAS) if random.random() < 0.25 else random.choice(FORMULAS)
        family = random.choice(families)
        asked: dict[str, Any] = {}
        if random.random() < 0.3:
            asked["local"] = option(random, (None, "auto"))
        for name, usual in (
            ("weights", ("t", "z", "nope")),
            ("exposure", ("t", "y", "g")),
            ("offset", ("z", "d")),
            ("na_action", ("drop", "raise", "omit")),
            ("alpha", (0.0, 1.0, -1.0)),
            ("max_iter", STEPS),
        ):
            if random.random() < 0.08:
                asked[name] = option(random, usual)
        if family == "binomial":
            asked["trials"] = random.choice((20, "t", 10**6))
        data: Any = (
            frame if random.random() < 0.95 else option(random, ({"y": [1, 2]}, [[1.0]], frame.to_numpy(), frame["y"]))
        )
        seen = Random(random.randrange(2**32))

        def run() -> Answers:
            fit = rb.glm(text, data, family=family, **asked)
            found = answers_of(fit, seen)
            if seen.random() < 0.5:
                along = {"trials": 20.0} if family == "binomial" else {}
                found["predictive"] = fit.predictive(data, **along).typical
            return found

        return f"{text!r} {family} {told} {asked}", run

    return target


# ---------------------------------------------------------------------- pairs, mixtures, chains, topics


def _pair_data(name: str, random: Random) -> list[np.ndarray]:
    rng = np.random.default_rng(random.randrange(2**32))
    counts = rng.negative_binomial(2, 0.3, ROWS).astype(float)
    positive, real = rng.gamma(1.5, 2.0, ROWS), rng.standard_t(3, ROWS)
    return {
        "BetaBernoulli": [np.minimum(counts, 1.0).reshape(-1, 1)],
        "BetaBinomial": [np.minimum(counts, 12.0), np.full(ROWS, 12.0)],
        "BetaGeometric": [counts],
        "BetaNegativeBinomial": [counts, np.full(ROWS, 2.0)],
        "DirichletMultinomial": [rng.poisson(2.0, (ROWS, 3)) + 1.0],
        "GammaExponential": [positive],
        "GammaGamma": [positive],
        "GammaPoisson": [counts],
        "InverseGammaLogNormal": [positive],
        "NormalInverseGamma": [real],
        "NormalLogNormal": [positive, np.full(ROWS, 0.5)],
        "NormalNormal": [real, np.full(ROWS, 0.5)],
        "NormalWishart": [rng.standard_t(4, (ROWS, 2))],
    }[name]


PAIRS = (
    "BetaBernoulli", "BetaBinomial", "BetaGeometric", "BetaNegativeBinomial", "DirichletMultinomial", "GammaExponential", "GammaGamma",
    "GammaPoisson", "InverseGammaLogNormal", "NormalInverseGamma", "NormalLogNormal", "NormalNormal", "NormalWishart",
)  # fmt: skip


def pair(name: str) -> Callable[[Random], Call]:
    def target(random: Random) -> Call:
        parts = _pair_data(name, random)
        if name == "BetaBernoulli":
            parts = [parts[0][:, 0]]
        given = {f"part {place}": part for place, part in enumerate(parts)}
        if random.random() < 0.15:
            given["weights"] = np.ones(ROWS)
        told, data = one_changed(random, given)
        asked = {} if random.random() < 0.9 else {"method": option(random, ("em", "direct", "bfgs"))}
        seen = Random(random.randrange(2**32))

        def run() -> Answers:
            along = {"weights": data["weights"]} if "weights" in data else {}
            made = getattr(rb.conjugate, name)()
            fit = made.fit(*(data[f"part {place}"] for place in range(len(parts))), **along, **asked)
            found = {"evidence": fit.evidence, "log likelihood": fit.log_likelihood}
            str(fit.summary())
            fit.confint(0.9)
            for label, number in fit.parameters.items():
                found[label] = np.where(np.isposinf(number), 0.0, number)
            more = seen.random()
            if more < 0.3:
                fit.outliers(fdr=0.1)
            elif more < 0.5:
                mean = fit.posterior().mean
                found["posterior"] = np.where(np.isposinf(mean), 0.0, mean)  # Heavy tails have no mean.
            elif more < 0.6 and name not in ("DirichletMultinomial", "NormalWishart"):
                found["intervals"] = np.array(fit.row_intervals(0.9))
            elif more < 0.7:
                found["loo"] = fit.loo_by_row
            return found

        return f"{told} {asked}", run

    return target


def mixture(make: str) -> Callable[[Random], Call]:
    def target(random: Random) -> Call:
        rng = np.random.default_rng(random.randrange(2**32))
        X = np.concatenate([rng.normal(0, 1, (16, 2)), rng.normal(6, 1, (16, 2))])
        told, data = one_changed(random, {"X": X})
        usual = {
            "n_components": (1, 2, 3, 0, 40),
            "covariance_type": ("full", "tied", "diag", "spherical", "round"),
            "tol": (1e-3, 0.0, -1.0),
            "reg_covar": (1e-6, 0.0, 1e300, -1.0),
            "max_iter": (20, 1, 0),
            "n_init": (1, 2, 0),
        }
        if make == "RobustGaussianMixture":
            usual |= {"dof": ("fit", 3.0, np.inf, 0.0), "means_init": (None, [[0, 0], [6, 6]], [[0]])}
        asked = {name: option(random, values) for name, values in usual.items() if random.random() < 0.2}
        asked.setdefault("n_components", 2)

        def run() -> Answers:
            model = getattr(rb, make)(random_state=0, **asked).fit(data["X"])
            model.outliers(fdr=0.1)
            return {
                "weights": model.weights_,
                "means": model.means_,
                "covariances": model.covariances_,
                "proba": model.predict_proba(data["X"]),
                "score": model.score_samples(data["X"]),
                "labels": model.predict(data["X"]),
            }

        return f"{told} {asked}", run

    return target


def chain(random: Random) -> Call:
    rng = np.random.default_rng(random.randrange(2**32))
    X = rng.normal(size=(40, 1 + random.randrange(2))) + 6.0 * np.resize(np.repeat([0, 1], 10), 40)[:, None]
    told, data = one_changed(random, {"X": X})
    lengths = option(random, (None, [40], [20, 20], [20, 10], [0, 40], [40.0], [-1, 41], []))
    usual = {
        "n_components": (1, 2, 0, 50),
        "covariance_type": ("full", "diag", "spherical", "tied", "round"),
        "dof": ("fit", 3.0, np.inf, 0.0),
        "tol": (1e-6, 0.0, -1.0),
        "reg_covar": (None, 0.0, 1e300),
        "max_iter": (50, 1, 0),
    }
    asked = {name: option(random, values) for name, values in usual.items() if random.random() < 0.2}
    asked.setdefault("n_components", 2)
    asked.setdefault("max_iter", 50)

    def run() -> Answers:
        model = rb.RobustGaussianHMM(random_state=0, **asked).fit(data["X"], lengths)
        model.outliers(fdr=0.1)
        return {
            "start": model.startprob_,
            "transitions": model.transmat_,
            "means": model.means_,
            "covariances": model.covariances_,
            "states": model.predict(data["X"], lengths),
            "score": model.score(data["X"], lengths),
        }

    return f"{told} lengths={short(lengths)} {asked}", run


def topics(make: str) -> Callable[[Random], Call]:
    def target(random: Random) -> Call:
        rng = np.random.default_rng(random.randrange(2**32))
        X = rng.poisson(rng.gamma(0.3, 4.0, (20, 6))).astype(float)
        told, data = one_changed(random, {"X": X})
        usual = {
            "n_components": (1, 2, 3, 0, "auto", 30),
            "inference": ("collapsed", "meanfield", "exact"),
            "alpha": (None, 0.1, 1e300, 1e-300, 0.0),
            "smoothing": (None, 0.0, 1e-300, 1e300),
            "draws": (None, 0, 3, -1),
            "sweeps": (None, 2, 0),
            "tol": (5e-4, 0.0, -1.0),
            "max_iter": (3, 1, 0),
            "validation_fraction": (None, 0.2, 1.5),
        }
        asked = {name: option(random, values) for name, values in usual.items() if random.random() < 0.15}
        for name, one in (("n_components", 2), ("max_iter", 3), ("draws", 2)):
            asked.setdefault(name, one)

        def run() -> Answers:
            model = getattr(rb, make)(random_state=0, n_jobs=1, **asked).fit(data["X"])
            str(model.summary())
            return {
                "components": model.components_,
                "documents": model.transform(data["X"]),
                "evidence": model.evidence(data["X"]),
                "score": model.score(data["X"]),
            }

        return f"{told} {asked}", run

    return target


CHEAP: dict[str, Callable[[Random], Call]] = {
    "RobustLinearRegression": estimator(
        rb.RobustLinearRegression, "normal", {**COMMON, "dof": (None, 4.0, 0.5), "x_weights": (None, "mcd")}
    ),
    "RobustPoissonRegression": estimator(rb.RobustPoissonRegression, "poisson", {**COMMON, **OWN}),
    "RobustLogisticRegression": estimator(
        rb.RobustLogisticRegression,
        "bernoulli",
        {**COMMON, "local": ("predictor", "label", "x"), "spread": (None, 0.5)},
    ),
    "glm": formula(("poisson", "normal", "bernoulli")),
    **{f"pair {name}": pair(name) for name in PAIRS},
    "mixture": mixture("RobustGaussianMixture"),
    "Bayesian mixture": mixture("BayesianRobustGaussianMixture"),
    "HMM": chain,
    "LDA": topics("LDA"),
    "RobustLDA": topics("RobustLDA"),
}
TARGETS: dict[str, Callable[[Random], Call]] = {
    **CHEAP,
    "RobustGLM gamma": estimator(
        rb.RobustGLM,
        "gamma",
        {**COMMON, "family": ("gamma",), "local": (None, "predictor", "dispersion"), "prior": ("normal",)},
    ),
    "RobustPoissonRegression heavy": estimator(
        rb.RobustPoissonRegression, "poisson", {**COMMON, "prior": ("laplace", "student_t"), "dof": (None, 4.0)}
    ),
    "glm families": formula(FAMILIES),
}
