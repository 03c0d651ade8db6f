"""How often does a 95 % interval hold the truth? A simulation with Monte-Carlo errors.

    python benchmarks/intervals.py --sets 1000 --out benchmarks/results/intervals.json

Cells that the file already has with fewer sets are gone on with.

Every cell draws rows from the model that is fitted, asks for an interval as a user would, and counts how often the truth lies
in it: what ``confint`` says of all numbers of a fit unasked, predictive intervals of four new rows, intervals of the mean at two
rows of the columns' range, profile intervals of a spread (near 0 and away from it) and of the degrees of freedom, and cluster-robust
intervals of rows that depend on each other within groups, which the model does not know. Groups' own are in ``groups.py``.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import robustly as rb

LEVEL = 0.95
AT = np.array([[0.0, 0.0], [1.5, -1.0]])
SLOPES = np.array([0.5, -0.3])
Held = list[bool]


def columns(rng: np.random.Generator, n: int) -> np.ndarray:
    return rng.normal(size=(n, 2))


def within(low: Any, high: Any, truth: Any) -> Held:
    return [bool(one) for one in np.atleast_1d((np.asarray(low) <= truth) & (truth <= np.asarray(high)))]


def mean_of_counts(rng: np.random.Generator, n: int, spread: float) -> Held:
    X = columns(rng, n)
    y = rng.poisson(np.exp(1.0 + X @ SLOPES + spread * rng.normal(size=n)))
    model = rb.RobustPoissonRegression().fit(X, y)
    return within(*model.predict_dist(AT).mean_interval(LEVEL), np.exp(1.0 + AT @ SLOPES + spread**2 / 2))


def mean_of_measurements(rng: np.random.Generator, n: int, dof: float) -> Held:
    X = columns(rng, n)
    y = 1.0 + X @ SLOPES + rng.standard_t(dof, n)
    return within(*rb.RobustLinearRegression().fit(X, y).predict_dist(AT).mean_interval(LEVEL), 1.0 + AT @ SLOPES)


def mean_of_successes(rng: np.random.Generator, n: int, spread: float) -> Held:
    X, trials = columns(rng, n), np.full(n, 12.0)
    eta = 0.3 + X @ SLOPES
    y = rng.binomial(12, 1.0 / (1.0 + np.exp(-eta - spread * rng.normal(size=n))))
    model = rb.RobustLogisticRegression().fit(X, y, trials=trials)
    points, weights = np.polynomial.hermite_e.hermegauss(60)
    at = (0.3 + AT @ SLOPES)[:, None] + spread * points
    truth = (1.0 / (1.0 + np.exp(-at))) @ weights / weights.sum()
    return within(*model.predict_dist(AT, trials=np.ones(2)).mean_interval(LEVEL), truth)


def mean_with_extra_zeros(rng: np.random.Generator, n: int, share: float) -> Held:
    X = columns(rng, n)
    rate = np.exp(1.0 + X @ SLOPES)
    y = rng.poisson(rate) * (rng.random(n) >= share)
    model = rb.RobustGLM("zero_inflated_poisson", local=None).fit(X, y)
    return within(*model.predict_dist(AT).mean_interval(LEVEL), (1.0 - share) * np.exp(1.0 + AT @ SLOPES))


def profile_of_spread(rng: np.random.Generator, n: int, spread: float) -> Held:
    X = columns(rng, n)
    y = rng.poisson(np.exp(1.0 + X @ SLOPES + spread * rng.normal(size=n)))
    fit = rb.RobustPoissonRegression().fit(X, y).result_
    return within(*fit.profile_interval("spread", LEVEL), spread)


def profile_of_dof(rng: np.random.Generator, n: int, dof: float) -> Held:
    X = columns(rng, n)
    y = 1.0 + X @ SLOPES + rng.standard_t(dof, n)
    fit = rb.RobustLinearRegression().fit(X, y).result_
    return within(*fit.profile_interval("dof", LEVEL), dof)


def profile_of_coefficient(rng: np.random.Generator, n: int, spread: float) -> Held:
    X = columns(rng, n)
    y = rng.poisson(np.exp(1.0 + X @ SLOPES + spread * rng.normal(size=n)))
    fit = rb.RobustPoissonRegression().fit(X, y).result_
    return within(*fit.profile_interval("x0", LEVEL), SLOPES[0])


def clustered(rng: np.random.Generator, groups: int, each: int) -> tuple[pd.DataFrame, np.ndarray]:
    """A column that is the same for all rows of a group, one that is not, and what the rows of a group share."""
    place = np.repeat(np.arange(groups), each)
    frame = pd.DataFrame({"a": rng.normal(size=groups)[place], "b": rng.normal(size=groups * each), "g": place})
    return frame, 0.5 * rng.normal(size=groups)[place]


def clusters_of_counts(
    rng: np.random.Generator, groups: int, each: int, local: str | None, kind: str = "jackknife"
) -> Held:
    frame, shared = clustered(rng, groups, each)
    frame["y"] = rng.poisson(np.exp(1.0 + 0.5 * frame["a"] - 0.3 * frame["b"] + shared))
    found = rb.glm("y ~ a + b", frame, family="poisson", local=local).confint(LEVEL, kind=kind, groups=frame["g"])
    return [*within(*found["a"], 0.5), *within(*found["b"], -0.3)]


def clusters_of_measurements(
    rng: np.random.Generator, groups: int, each: int, local: str | None, kind: str = "jackknife"
) -> Held:
    frame, shared = clustered(rng, groups, each)
    frame["y"] = 1.0 + 0.5 * frame["a"] - 0.3 * frame["b"] + shared + rng.normal(size=len(frame))
    found = rb.glm("y ~ a + b", frame, family="normal", local=local).confint(LEVEL, kind=kind, groups=frame["g"])
    return [*within(*found["a"], 0.5), *within(*found["b"], -0.3)]


NEW = 4
CONFINT = ("Intercept", "x0", "x1")


def as_asked(model: Any, rng: np.random.Generator, more: dict[str, float], draw: Callable[..., Any]) -> Held:
    """What ``confint`` says of the coefficients and of `more`; whether 95 % predictive intervals hold new rows that `draw` gives."""
    found = model.result_.confint(LEVEL)
    truth = {**dict(zip(CONFINT, (1.0, *SLOPES))), **more}
    held = [within(*found[name], value)[0] for name, value in truth.items()]
    X = columns(rng, NEW)
    along = {"trials": np.full(NEW, 12.0)} if isinstance(model, rb.RobustLogisticRegression) else {}
    return [*held, *within(*model.predict_dist(X, **along).interval(LEVEL), draw(X))]


def confint_of_counts(rng: np.random.Generator, n: int, spread: float) -> Held:
    draw = lambda X: rng.poisson(np.exp(1.0 + X @ SLOPES + spread * rng.normal(size=len(X))))
    X = columns(rng, n)
    return as_asked(rb.RobustPoissonRegression().fit(X, draw(X)), rng, {"spread": spread}, draw)


def confint_of_measurements(rng: np.random.Generator, n: int, dof: float) -> Held:
    error = lambda size: rng.normal(size=size) if np.isinf(dof) else rng.standard_t(dof, size)
    draw = lambda X: 1.0 + X @ SLOPES + error(len(X))
    X = columns(rng, n)
    return as_asked(rb.RobustLinearRegression().fit(X, draw(X)), rng, {"dof": dof}, draw)


def confint_of_successes(rng: np.random.Generator, n: int, spread: float) -> Held:
    chance = lambda X: 1.0 / (1.0 + np.exp(-1.0 - X @ SLOPES - spread * rng.normal(size=len(X))))
    draw = lambda X: rng.binomial(12, chance(X))
    X = columns(rng, n)
    model = rb.RobustLogisticRegression().fit(X, draw(X), trials=np.full(n, 12.0))
    return as_asked(model, rng, {"spread": spread}, draw)


def confint_of_labels(rng: np.random.Generator, n: int, flip: float) -> Held:
    """No predictive intervals: a label's holds both values or one."""
    X = columns(rng, n)
    right = rng.random(n) < 1.0 / (1.0 + np.exp(-1.0 - X @ (4.0 * SLOPES)))
    y = np.where(rng.random(n) < flip, ~right, right).astype(float)
    found = rb.RobustLogisticRegression(local="label").fit(X, y).result_.confint(LEVEL)
    truth = dict(zip((*CONFINT, "flip"), (1.0, *(4.0 * SLOPES), flip)))
    return [within(*found[name], value)[0] for name, value in truth.items()]


def labels_at_the_limit(rng: np.random.Generator, n: int, flip: float) -> Held:
    """Whether wrong labels were found, whether they were and ``confint`` holds the first slope, and whether its profile interval does."""
    X = columns(rng, n)
    right = rng.random(n) < 1.0 / (1.0 + np.exp(-1.0 - X @ (4.0 * SLOPES)))
    y = np.where(rng.random(n) < flip, ~right, right).astype(float)
    fit = rb.RobustLogisticRegression(local="label").fit(X, y).result_
    found, [held] = fit.outcome.kind != "boundary", within(*fit.confint(LEVEL)["x0"], 4.0 * SLOPES[0])
    return [found, found and held, *within(*fit.profile_interval("x0", LEVEL), 4.0 * SLOPES[0])]


Cell = tuple[Callable[..., Held], tuple[Any, ...]]
CELLS: dict[str, Cell] = {
    "confint, t errors, n = 30, dof 4": (confint_of_measurements, (30, 4.0)),
    "confint, counts, n = 200, spread .1": (confint_of_counts, (200, 0.1)),
    "confint, t errors, n = 200, dof 30": (confint_of_measurements, (200, 30.0)),
    "confint, labels, n = 500, flip .05": (confint_of_labels, (500, 0.05)),
    "confint, counts, n = 200, spread 0": (confint_of_counts, (200, 0.0)),
    "confint, t errors, n = 200, normal": (confint_of_measurements, (200, np.inf)),
    "confint, successes of 12, n = 200, spread .1": (confint_of_successes, (200, 0.1)),
    "confint, labels, n = 500, flip 0": (confint_of_labels, (500, 0.0)),
    "confint, t errors, n = 200, dof 4": (confint_of_measurements, (200, 4.0)),
    "confint, counts, n = 60, spread .7": (confint_of_counts, (60, 0.7)),
    "confint, successes of 12, n = 200, spread .5": (confint_of_successes, (200, 0.5)),
    "confint, counts, n = 200, spread .7": (confint_of_counts, (200, 0.7)),
    "limit, labels, n = 500, flip .05": (labels_at_the_limit, (500, 0.05)),
    "mean, counts, n = 60, spread .7": (mean_of_counts, (60, 0.7)),
    "mean, counts, n = 200, spread .7": (mean_of_counts, (200, 0.7)),
    "mean, counts, n = 200, spread .1": (mean_of_counts, (200, 0.1)),
    "mean, t errors, n = 30, dof 4": (mean_of_measurements, (30, 4.0)),
    "mean, t errors, n = 200, dof 4": (mean_of_measurements, (200, 4.0)),
    "mean, successes of 12, n = 200, spread .5": (mean_of_successes, (200, 0.5)),
    "mean, extra zeros, n = 200, share .3": (mean_with_extra_zeros, (200, 0.3)),
    "profile, spread .1, n = 200": (profile_of_spread, (200, 0.1)),
    "profile, spread .2, n = 200": (profile_of_spread, (200, 0.2)),
    "profile, spread .7, n = 60": (profile_of_spread, (60, 0.7)),
    "profile, dof 4, n = 200": (profile_of_dof, (200, 4.0)),
    "profile, dof 10, n = 200": (profile_of_dof, (200, 10.0)),
    "profile, dof 30, n = 500": (profile_of_dof, (500, 30.0)),
    "profile, coefficient of counts, n = 60": (profile_of_coefficient, (60, 0.7)),
    "clusters, counts, classical, 40 groups of 8": (clusters_of_counts, (40, 8, None)),
    "clusters, counts, classical, 40 groups of 8, as statsmodels": (clusters_of_counts, (40, 8, None, "cluster")),
    "clusters, counts, classical, 150 groups of 4, as statsmodels": (clusters_of_counts, (150, 4, None, "cluster")),
    "clusters, counts, robust, 40 groups of 8": (clusters_of_counts, (40, 8, "predictor")),
    "clusters, measurements, classical, 40 groups of 8": (clusters_of_measurements, (40, 8, None)),
    "clusters, measurements, t errors, 40 groups of 8": (clusters_of_measurements, (40, 8, "dispersion")),
    "clusters, counts, classical, 15 groups of 20": (clusters_of_counts, (15, 20, None)),
}


def run(cell: Cell, sets: int, seed: int, before: dict[str, Any]) -> dict[str, Any]:
    done, began = before.get("sets", 0), time.process_time()
    held = []
    for index in range(done, sets):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            held.append(cell[0](np.random.default_rng([seed, index]), *cell[1]))
    share = (np.sum(held, axis=0) + done * np.array(before.get("coverage", 0.0))) / sets
    return {
        "sets": sets,
        "coverage": [round(float(one), 4) for one in share],
        "error": round(float(np.sqrt(LEVEL * (1 - LEVEL) / sets)), 4),
        "cpu_seconds_a_set": round((time.process_time() - began) / (sets - done), 4),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sets", type=int, default=1000)
    parser.add_argument("--only", default="", help="cells whose name begins so")
    parser.add_argument("--seed", type=int, default=20)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/intervals.json"))
    given = parser.parse_args()
    found = json.loads(given.out.read_text()) if given.out.exists() else {}
    for name, cell in CELLS.items():
        if not name.startswith(given.only) or found.get(name, {}).get("sets", 0) >= given.sets:
            continue
        found[name] = run(cell, given.sets, given.seed, found.get(name, {}))
        given.out.write_text(json.dumps(found, indent=1) + "\n")
        print(name, found[name], flush=True)


if __name__ == "__main__":
    main()
