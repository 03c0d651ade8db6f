"""Are posterior draws right? Simulation-based calibration: truths from the priors, and their ranks among the draws of each fit.

    python benchmarks/calibration.py --replications 300

If the draws are right, the ranks of every parameter are uniform (Talts and others 2018). Results, with the p-value of a χ² test of
twenty bins a parameter: ``benchmarks/results/calibration.json``.
"""

from __future__ import annotations

import argparse
import json
import warnings
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from scipy import stats

import robustly as rb

HERE = Path(__file__).resolve().parent
DRAWS, APART, BINS = 99, 10, 20
ROWS = 60


def log_normal(rng: np.random.Generator, middle: float, width: float) -> float:
    return float(np.exp(np.log(middle) + width * rng.normal()))


def own_log_rates(x, y=None):
    w = numpyro.sample("w", dist.Normal(0.0, 0.5))
    b = numpyro.sample("b", dist.Normal(1.0, 1.0))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Poisson(jnp.exp(b + w * x)), obs=y)


def own_rates(y):
    rate = numpyro.sample("rate", dist.Gamma(2.0, 1.0))
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("y", dist.Poisson(rate), obs=y)


def own_precisions(x, y=None):
    w = numpyro.sample("w", dist.Normal(0.0, 1.0))
    precision = numpyro.sample("precision", dist.Gamma(2.0, 2.0))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Normal(w * x, precision**-0.5), obs=y)


def counts_with_own_log_rates(rng: np.random.Generator) -> tuple[dict[str, float], tuple[np.ndarray, ...]]:
    truth = {"w": 0.5 * rng.normal(), "b.loc": 1.0 + 0.5 * rng.normal(), "b.scale": log_normal(rng, 0.6, 0.4)}
    x = rng.normal(size=ROWS)
    own = truth["b.loc"] + truth["b.scale"] * rng.normal(size=ROWS)
    return truth, (x, rng.poisson(np.exp(own + truth["w"] * x)))


def counts_with_own_rates(rng: np.random.Generator) -> tuple[dict[str, float], tuple[np.ndarray, ...]]:
    truth = {"rate.concentration": log_normal(rng, 2.0, 0.4), "rate.rate": log_normal(rng, 0.7, 0.4)}
    return truth, (rng.poisson(rng.gamma(truth["rate.concentration"], 1.0 / truth["rate.rate"], ROWS)),)


def measurements_with_own_precisions(rng: np.random.Generator) -> tuple[dict[str, float], tuple[np.ndarray, ...]]:
    truth = {
        "w": rng.normal(),
        "precision.concentration": log_normal(rng, 2.0, 0.4),
        "precision.rate": log_normal(rng, 2.0, 0.4),
    }
    x = rng.normal(size=ROWS)
    precision = rng.gamma(truth["precision.concentration"], 1.0 / truth["precision.rate"], ROWS)
    return truth, (x, truth["w"] * x + rng.normal(size=ROWS) / np.sqrt(precision))


def wide(middle: float) -> Any:
    return dist.LogNormal(np.log(middle), 0.4)


MODELS: dict[str, tuple[Any, Any]] = {
    "counts with own log rates": (
        rb.localize(own_log_rates, "b", hyperprior={"loc": dist.Normal(1.0, 0.5), "scale": wide(0.6)}),
        counts_with_own_log_rates,
    ),
    "counts with own rates": (
        rb.localize(own_rates, "rate", hyperprior={"concentration": wide(2.0), "rate": wide(0.7)}),
        counts_with_own_rates,
    ),
    "measurements with own precisions": (
        rb.localize(own_precisions, "precision", hyperprior={"concentration": wide(2.0), "rate": wide(2.0)}),
        measurements_with_own_precisions,
    ),
}


def ranks(name: str, replications: int) -> dict[str, list[int]]:
    """How many of the draws lie below the truth, by parameter and replication."""
    model, simulate = MODELS[name]
    found: dict[str, list[int]] = {}
    for seed in range(replications):
        truth, data = simulate(np.random.default_rng([7, seed]))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            draws = model.fit(*data).sample_posterior(DRAWS * APART, seed)
        for parameter, value in truth.items():
            chain = np.ravel(draws[parameter])[::APART]
            found.setdefault(parameter, []).append(int(np.sum(chain < value)))
        print(f"\r{name}: {seed + 1} of {replications}", end="", flush=True)
    print()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--replications", type=int, default=300)
    given = parser.parse_args()
    kept: dict[str, Any] = {"replications": given.replications, "rows": ROWS, "p": {}}
    for name in MODELS:
        for parameter, each in ranks(name, given.replications).items():
            seen = np.bincount(np.asarray(each) * BINS // (DRAWS + 1), minlength=BINS)
            kept["p"][f"{name}: {parameter}"] = round(float(stats.chisquare(seen).pvalue), 4)
    (HERE / "results" / "calibration.json").write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(kept, indent=1))


if __name__ == "__main__":
    main()
