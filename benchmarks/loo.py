"""Is leaving rows out by one step from the fit what leaving them out and fitting again gives? Row by row, on ten models.

    python benchmarks/loo.py

Rows with heavy leverage and outlying responses are among them. Results: ``benchmarks/results/loo.json``, in nats a row.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import robustly as rb

HERE = Path(__file__).resolve().parent
ROWS = 50


def data(family: str, seed: int, far: float = 0.0, wild: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    """Rows of a regression; row 0 stands `far` out in its first column, row 1 is `wild` in its response."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(ROWS, 2))
    X[0, 0] += far
    middle = 0.5 + 0.4 * np.minimum(X[:, 0], 3.0) - 0.3 * X[:, 1] + 0.5 * rng.normal(size=ROWS)
    if family == "normal":
        y = middle + 0.3 * rng.standard_t(4, ROWS)
        y[1] += wild
    elif family == "poisson":
        y = rng.poisson(np.exp(middle)).astype(float)
        y[1] += wild
    elif family == "gamma":
        y = np.exp(middle) * rng.gamma(3.0, 1.0 / 3.0, ROWS)
        y[1] *= 1.0 + wild
    else:
        y = (rng.random(ROWS) < 1.0 / (1.0 + np.exp(-2.0 * middle))).astype(float)
    return X, y


Make = Callable[[], Any]
MODELS: dict[str, tuple[Make, tuple[np.ndarray, np.ndarray]]] = {
    "least squares": (lambda: rb.RobustGLM("normal", local=None), data("normal", 1, far=6.0)),
    "t errors": (lambda: rb.RobustLinearRegression(), data("normal", 2)),
    "t errors, leverage and an outlier": (lambda: rb.RobustLinearRegression(), data("normal", 3, far=8.0, wild=9.0)),
    "t errors, 4 dof": (lambda: rb.RobustLinearRegression(dof=4.0), data("normal", 4, far=5.0)),
    "counts, classical, leverage": (lambda: rb.RobustGLM("poisson", local=None), data("poisson", 5, far=6.0)),
    "counts, own rates": (lambda: rb.RobustPoissonRegression(), data("poisson", 6)),
    "counts, own rates, leverage and an outlier": (
        lambda: rb.RobustPoissonRegression(),
        data("poisson", 7, far=6.0, wild=40.0),
    ),
    "negative binomial": (lambda: rb.RobustGLM("negative_binomial", local=None), data("poisson", 8, wild=30.0)),
    "gamma, classical": (lambda: rb.RobustGLM("gamma", local=None), data("gamma", 9, far=5.0)),
    "gamma, own predictors": (lambda: rb.RobustGLM("gamma"), data("gamma", 10, wild=8.0)),
    "yes or no, wrong labels": (lambda: rb.RobustLogisticRegression(local="label"), data("bernoulli", 11, far=4.0)),
    "yes or no, own log odds": (lambda: rb.RobustLogisticRegression(), data("bernoulli", 12)),
}


def differences(make: Make, X: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Brute force less ours, by row."""
    ours = make().fit(X, y).result_.loo_by_row
    found = []
    for row in range(ROWS):
        rest = np.arange(ROWS) != row
        found.append(-float(make().fit(X[rest], y[rest]).surprise(X[[row]], y[[row]])[0]))
    return np.array(found) - ours


def main() -> None:
    warnings.simplefilter("ignore")
    told = {}
    for name, (make, (X, y)) in MODELS.items():
        off = differences(make, X, y)
        told[name] = {
            "largest": round(float(np.abs(off).max()), 5),
            "row": int(np.abs(off).argmax()),
            "sum": round(float(off.sum()), 5),
        }
        print(name, told[name], flush=True)
    (HERE / "results" / "loo.json").write_text(json.dumps(told, indent=2) + "\n")


if __name__ == "__main__":
    main()
