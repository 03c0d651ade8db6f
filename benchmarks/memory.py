"""Does a process grow with the fits it has made? Programs of many sizes, and programs that are written anew.

    python benchmarks/memory.py --fits 300

One model is localized and fitted to rows of another number each time, and models that are functions of their own are fitted and forgotten.
Told is by how many MB the process grew after the first tenth of the fits, which are to compile what all need.
Results: ``benchmarks/results/memory.json``.
"""

from __future__ import annotations

import argparse
import gc
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpyro
import numpyro.distributions as dist
import psutil

import robustly as rb

HERE = Path(__file__).resolve().parent


def line(x, y=None):
    w = numpyro.sample("w", dist.Normal(0, 10).expand([x.shape[1]]).to_event(1))
    precision = numpyro.sample("precision", dist.Gamma(2.0, 1.0))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ w, precision**-0.5), obs=y)


def made(number: int) -> Callable[..., Any]:
    """A model that is another function each time, with a constant of its own, so that nothing of an earlier one can be used."""

    def fresh(x, y=None):
        w = numpyro.sample("w", dist.Normal(0, 10 + number).expand([x.shape[1]]).to_event(1))
        precision = numpyro.sample("precision", dist.Gamma(2.0, 1.0))
        with numpyro.plate("data", x.shape[0]):
            numpyro.sample("y", dist.Normal(x @ w, precision**-0.5), obs=y)

    return fresh


def rows(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 2))
    return x, x @ [1.0, -1.0] + rng.standard_t(3, n)


def growth(fits: int, each: Callable[[int], Any]) -> dict[str, Any]:
    """MB by which the process grew, from a tenth of the fits on."""
    process, seen = psutil.Process(), []
    for number in range(fits):
        each(number)
        gc.collect()
        seen.append(process.memory_info().rss / 1e6)
    start = fits // 10
    return {"fits": fits, "MB at first": round(seen[start]), "MB grown": round(seen[-1] - seen[start], 1)}


def main() -> None:
    reader = argparse.ArgumentParser(description=__doc__)
    reader.add_argument("--fits", type=int, default=300)
    reader.add_argument("--fresh", type=int, default=40)
    asked = reader.parse_args()
    warnings.simplefilter("ignore")
    robust = rb.localize(line, "precision")

    def other_size(number: int) -> None:
        fit = robust.fit(*rows(150 + 3 * (number * 139 % asked.fits), number))
        fit.evidence, fit.standard_errors  # noqa: B018

    kinds = {
        "one model, another number of rows each time": (asked.fits, other_size),
        "another model each time": (asked.fresh, lambda k: rb.localize(made(k), "precision").fit(*rows(200, k))),
    }
    found = {}
    for name, (fits, each) in kinds.items():
        if fits:
            found[name] = growth(fits, each)
            print(name, found[name], flush=True)
            (HERE / "results" / "memory.json").write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
