"""What do steps with precisions of their own buy a time series, and what do they cost? Tables, written to results/series.md.

    python benchmarks/series.py [--sets 60] [--seed 5000] [--only speed simulated hmm]

Simulated: a local level (200 steps, noise 1, steps of the level .1), 2 % additive outliers of 8 σ and two level shifts of 8 σ, at
least six steps apart; and the same without any. Each fit leaves the last ten steps for the forecasts, with outliers and shifts
at the rates of the past. Speed is in CPU seconds, as ratios within one run.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

STEPS, AHEAD, SIZE, APART = 200, 10, 8.0, 6


def simulate(seed: int, marked: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Values (with those ahead), levels, outliers and breaks."""
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
    if marked:
        # What lies ahead has outliers and shifts at the rates of the past.
        shifts = SIZE * rng.choice([-1, 1], AHEAD) * (rng.random(AHEAD) < 2 / STEPS)
        odd = SIZE * rng.choice([-1, 1], AHEAD) * (rng.random(AHEAD) < 0.02)
        values[STEPS:] += np.cumsum(shifts) + odd
    return values, level, outliers, breaks


def judge(seed: int, marked: bool) -> dict[str, float]:
    """One series: false and missed marks, errors of the level, coverage of the forecasts."""
    from statsmodels.tsa.statespace.structural import UnobservedComponents

    import robustly as rb

    values, level, outliers, breaks = simulate(seed, marked)
    model = UnobservedComponents(values[:STEPS], level="llevel", use_exact_diffuse=True)
    fit = rb.localize(model, ["irregular", "level"]).fit(method="leave-one-out", seed=seed)
    plain = model.smooth(np.array(list(fit.classical_parameters.values()))).smoothed_state[0]
    odd, jumps = fit.outliers(fdr=0.05), fit.breaks(fdr=0.05)
    low, high = fit.forecast(AHEAD, seed=seed).interval(0.9)
    error = lambda found: float(np.sqrt(np.mean((found - level[:STEPS]) ** 2)))
    found = {
        "fdr_outliers": float(np.mean(~np.isin(odd, outliers))) if len(odd) else 0.0,
        "fdr_breaks": float(np.mean(~np.isin(jumps, breaks))) if len(jumps) else 0.0,
        "any": float(len(odd) + len(jumps) > 0),
        "rmse": error(fit.smoothed["level"][0]),
        "rmse_plain": error(plain),
        "coverage": float(np.mean((values[STEPS:] >= low) & (values[STEPS:] <= high))),
    }
    if marked:
        beside = np.concatenate([breaks - 1, breaks])
        found["power_outliers"] = float(np.mean(np.isin(outliers, odd)))
        found["power_breaks"] = float(np.mean(np.isin(breaks, jumps)))
        found["power_breaks_within_2"] = float(np.mean([np.any(np.abs(fit.breaks(within=2) - b) <= 2) for b in breaks]))
        confused = np.isin(odd, beside).sum() + np.isin(jumps, np.concatenate([outliers, outliers + 1])).sum()
        found["confused"] = float(confused / (len(outliers) + len(breaks)))
    return found


def simulated(sets: int, first: int) -> list[str]:
    both: list[list[dict[str, float]]] = [[], []]
    for seed in range(sets):
        for runs, marked in zip(both, (True, False)):
            runs.append(judge(first + seed, marked))
            print(seed, marked, {name: round(value, 3) for name, value in runs[-1].items()}, flush=True)
    return tabulate(*both)


MEASURES = (
    "fdr_outliers",
    "fdr_breaks",
    "power_outliers",
    "power_breaks",
    "power_breaks_within_2",
    "confused",
    "any",
    "coverage",
)


def tabulate(*both: list[dict[str, float]]) -> list[str]:
    """Means over the runs with outliers and shifts, and over the clean ones, with Monte-Carlo standard errors."""
    lines = [f"| {len(both[0])} series each | with outliers and shifts | clean |", "|---|---|---|"]
    for name in MEASURES:
        cells = []
        for runs in both:
            values = np.array([run[name] for run in runs if name in run])
            cells.append(f"{values.mean():.3f} ± {values.std() / np.sqrt(len(values)):.3f}" if len(values) else "–")
        lines.append(f"| {name.replace('_', ' ')} | {cells[0]} | {cells[1]} |")
    ratios = []
    for runs in both:
        ours, plain = (np.array([run[name] for run in runs]) for name in ("rmse", "rmse_plain"))
        spread = np.std(ours - ours.mean() / plain.mean() * plain) / plain.mean() / np.sqrt(len(runs))
        ratios.append(f"{ours.mean() / plain.mean():.3f} ± {spread:.3f}")
    lines.append(f"| error of the level, × the Gaussian smoother's | {ratios[0]} | {ratios[1]} |")
    print("\n".join(lines), flush=True)
    return lines


def speed(steps: int = 100_000) -> list[str]:
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
    return ["| series | work | cost | found |", "|---|---|---|---|", line]


def markov(steps: int = 1_000_000) -> list[str]:
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
    return ["| hidden Markov model | cost |", "|---|---|", line]


def main() -> None:
    from threadpoolctl import threadpool_limits

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sets", type=int, default=60)
    parser.add_argument("--seed", type=int, default=5000, help="Of the first series.")
    parser.add_argument("--only", nargs="*", choices=("simulated", "speed", "hmm"))
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "series.md")
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    threadpool_limits(1)
    parts: dict[str, Any] = {"simulated": lambda: simulated(asked.sets, asked.seed), "speed": speed, "hmm": markov}
    text = [
        "# Time series",
        "",
        f"Made by `benchmarks/series.py`; {asked.sets} simulated series a column, Monte-Carlo standard errors.",
        "",
    ]
    for name in asked.only or parts:
        text += [*parts[name](), ""]
    asked.out.write_text("\n".join(text), encoding="utf-8")


if __name__ == "__main__":
    main()
