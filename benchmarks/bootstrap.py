"""Are sandwich standard errors those of the bootstrap? Ratios by coefficient, rows drawn with replacement and fitted again.

    python benchmarks/bootstrap.py --draws 300

Results: ``benchmarks/results/bootstrap.json``. With 300 draws the bootstrap's own error is 4 % of a standard error.
"""

from __future__ import annotations

import argparse
import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np

import robustly as rb

HERE = Path(__file__).resolve().parent
ROWS = 500


def rows(family: str, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(ROWS, 2))
    middle = 0.5 + X @ [0.6, -0.4]
    if family == "normal":
        return X, middle + rng.standard_t(3, ROWS) * (0.5 + 0.5 * (X[:, 0] > 0))
    if family == "poisson":
        return X, rng.poisson(np.exp(middle + 0.6 * rng.standard_t(5, ROWS))).astype(float)
    right = rng.random(ROWS) < 1.0 / (1.0 + np.exp(-3.0 * middle))
    return X, np.where(rng.random(ROWS) < 0.05, ~right, right).astype(float)


MODELS: dict[str, tuple[Any, str]] = {
    "t errors, unequal scales": (lambda: rb.RobustLinearRegression(), "normal"),
    "counts, own rates with tails": (lambda: rb.RobustPoissonRegression(), "poisson"),
    "wrong labels": (lambda: rb.RobustLogisticRegression(local="label"), "bernoulli"),
}


def ratios(make: Any, X: np.ndarray, y: np.ndarray, draws: int) -> dict[str, list[float]]:
    """Standard errors of the coefficients, sandwich over bootstrap; of weights and of rows drawn."""
    fit = make().fit(X, y).result_
    size = len(fit.terms)
    sandwich = np.sqrt(np.diag(fit.covariance("sandwich")))[:size]
    rng = np.random.default_rng(1)
    drawn = []
    for _ in range(draws):
        weight = rng.multinomial(ROWS, np.full(ROWS, 1.0 / ROWS)).astype(float)
        drawn.append(make().fit(X, y, sample_weight=weight).result_.coefficients.to_numpy())
    spread = np.std(drawn, axis=0, ddof=1)
    # A few draws in which coefficients run off count for much: the middle half says what most of them do.
    middle = np.subtract(*np.percentile(drawn, [75, 25], axis=0)) / 1.349
    return {
        "sandwich over bootstrap": np.round(sandwich / spread, 3).tolist(),
        "sandwich over the middle half": np.round(sandwich / middle, 3).tolist(),
    }


def main() -> None:
    reader = argparse.ArgumentParser(description=__doc__)
    reader.add_argument("--draws", type=int, default=300)
    asked = reader.parse_args()
    warnings.simplefilter("ignore")
    found = {}
    for seed, (name, (make, family)) in enumerate(MODELS.items()):
        found[name] = ratios(make, *rows(family, seed), asked.draws)
        print(name, found[name], flush=True)
    (HERE / "results" / "bootstrap.json").write_text(json.dumps({"draws": asked.draws, **found}, indent=2) + "\n")


if __name__ == "__main__":
    main()
