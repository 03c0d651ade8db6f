"""How long does work by row take beside the fit it belongs to? Ratios of CPU seconds within one process.

    python benchmarks/by_row.py --only loo_200 --out benchmarks/results/by_row.json

BLAS takes one thread: threads that wait for each other count as CPU seconds. Every cell fits once to have all programs compiled,
then measures a fit and the question in turn; first draws are measured in a process that has only fitted. Targets: LOO, intervals and outliers at most 3 times the fit, first draws at most 5 seconds, one-hot
columns at most 5 times scikit-learn's regression, `cross_val_score(n_jobs=2)` no slower than serial.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import robustly as rb

ROUNDS = 2
Cell = Callable[[np.random.Generator], dict[str, Any]]


def cpu(run: Callable[[], Any]) -> tuple[Any, float]:
    began = time.process_time()
    return run(), time.process_time() - began


def counts(rng: np.random.Generator, n: int, d: int) -> tuple[np.ndarray, np.ndarray]:
    X = rng.normal(size=(n, d))
    return X, rng.poisson(np.exp(0.5 + X @ rng.normal(size=d) / np.sqrt(d) * 0.5 + 0.6 * rng.normal(size=n)))


def beside(fit: Callable[[], Any], ask: Callable[[Any], Any]) -> dict[str, Any]:
    """The question's CPU seconds and the fit's, once compiled."""
    ask(fit())
    found = []
    for _ in range(ROUNDS):
        model, fitting = cpu(fit)
        found.append((fitting, cpu(lambda model=model: ask(model))[1]))  # type: ignore[misc]
    fitting, asking = np.median(found, axis=0)
    return {"fit": round(float(fitting), 3), "question": round(float(asking), 3), "ratio": round(asking / fitting, 2)}


def loo(d: int) -> Cell:
    def cell(rng: np.random.Generator) -> dict[str, Any]:
        X, y = counts(rng, 2000, d)
        return beside(lambda: rb.RobustPoissonRegression().fit(X, y), lambda model: model.result_.loo)

    return cell


def intervals(rng: np.random.Generator) -> dict[str, Any]:
    X, y = counts(rng, 100_000, 5)
    return beside(lambda: rb.RobustPoissonRegression().fit(X, y), lambda model: model.predict_dist(X).interval(0.9))


def of_counts(ask: Callable[[Any], Any]) -> Cell:
    def cell(rng: np.random.Generator) -> dict[str, Any]:
        X, y = counts(rng, 1_000_000, 5)
        return beside(lambda: rb.RobustPoissonRegression().fit(X, y), ask)

    return cell


def of_measurements(ask: Callable[[Any], Any]) -> Cell:
    def cell(rng: np.random.Generator) -> dict[str, Any]:
        X = rng.normal(size=(1_000_000, 5))
        y = X.sum(axis=1) + rng.normal(size=len(X))
        y[:100] += 10
        return beside(lambda: rb.RobustLinearRegression().fit(X, y), ask)

    return cell


def listed(model: Any) -> Any:
    return model.outliers()


def doubts(model: Any) -> Any:
    """The list, and every row's probability besides."""
    return model.outliers(), model.result_.outlier_probability


def one_hot(rng: np.random.Generator) -> dict[str, Any]:
    from scipy import sparse
    from sklearn.linear_model import PoissonRegressor
    from threadpoolctl import threadpool_limits

    n, k = 20_000, 2000
    code = rng.integers(0, k, n)
    X = sparse.csr_matrix((np.ones(n), (np.arange(n), code)), shape=(n, k))
    y = rng.poisson(np.exp(0.5 + 0.3 * rng.normal(size=k)[code] + 0.5 * rng.normal(size=n)))
    # The same penalty on both sides: scikit-learn's is of the mean over rows, ours of their sum. BLAS on one thread: with two,
    # those of scikit-learn's L-BFGS wait for each other and take fifty times the CPU seconds for the same steps.
    plain = lambda: PoissonRegressor(alpha=1.0 / n, max_iter=1000).fit(X, y)
    make = lambda: rb.RobustPoissonRegression(alpha=1.0).fit(X, y)
    with threadpool_limits(1):
        plain()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        make()
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024 - before
        both = np.median([[cpu(plain)[1], cpu(make)[1]] for _ in range(5)], axis=0)
    return {
        "fit": round(float(both[1]), 3),
        "scikit-learn": round(float(both[0]), 4),
        "ratio": round(float(both[1] / both[0]), 2),
        "MB beyond scikit-learn's fit": round(memory),
    }


def jobs(rng: np.random.Generator) -> dict[str, Any]:
    from sklearn.model_selection import cross_val_score

    X, y = counts(rng, 2000, 5)
    wall = {}
    for _ in range(2):  # the first starts processes and compiles in each
        for number in (1, 2):
            began = time.perf_counter()
            cross_val_score(rb.RobustPoissonRegression(), X, y, cv=5, n_jobs=number)
            wall[number] = time.perf_counter() - began
    return {"serial": round(wall[1], 3), "two": round(wall[2], 3), "ratio": round(wall[2] / wall[1], 2)}


def first_draws(rng: np.random.Generator) -> dict[str, Any]:
    X, y = counts(rng, 500, 3)
    fit = rb.RobustPoissonRegression().fit(X, y).result_
    return {name: round(cpu(lambda: fit.sample_posterior(1000, 0))[1], 3) for name in ("first", "second")}


CELLS: dict[str, Cell] = {
    "loo_50": loo(50),
    "loo_200": loo(200),
    "loo_500": loo(500),
    "intervals_1e5": intervals,
    "outliers_counts_1e6": of_counts(listed),
    "outliers_measurements_1e6": of_measurements(listed),
    "outlier_probabilities_counts_1e6": of_counts(doubts),
    "outlier_probabilities_measurements_1e6": of_measurements(doubts),
    "one_hot_20000_x_2000": one_hot,
    "cross_val_two_jobs": jobs,
    "first_draws": first_draws,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="the cell of this name, run in this process")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/by_row.json"))
    given = parser.parse_args()
    if (
        not given.only
    ):  # each cell in a process of its own: what one has compiled or allocated is not there for the next
        for name in CELLS:
            alone = [sys.executable, __file__, "--only", name, "--out", str(given.out)]
            subprocess.run(alone, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = CELLS[given.only](np.random.default_rng(0))
    kept = json.loads(given.out.read_text()) if given.out.exists() else {}
    given.out.write_text(json.dumps({**kept, given.only: found}, indent=1) + "\n")
    print(given.only, found)


if __name__ == "__main__":
    main()
