"""Does the study reach its targets on seeds that nothing was chosen on? Runs it, checks, and records what was found.

    python benchmarks/study.py --out study-101                # seed 101, 50 repetitions, the three regressions
    python benchmarks/study.py --out study-101 --no-run       # check what a folder already holds

Writes benchmarks/results/study.json and study.md; exit code 1 if a target is missed. Ratios are geometric means over
repetitions of the MSEs of the coefficients; beside them stands the ratio of the mean MSEs.
"""

from __future__ import annotations

import argparse
import platform
import sys
from pathlib import Path

import numpy as np

from robustly.result.persist import atomic
from robustly.study import runs
from robustly.study.comparisons import LOSSES, MISDIRECTION, MSE, contrast, some
from robustly.study.experiments import run_study

RESULTS = Path(__file__).resolve().parent / "results"


def ratio(lines, variant, level, method, rival, intercept=None, loss=MSE):
    """Typical ratio of losses, its error, the ratio of means, and wins."""
    found = contrast(lines, variant, level, loss, method, rival, intercept)
    means = [loss.of(some(lines, variant, level, name, intercept)).mean() for name in (method, rival)]
    return {
        "ratio": found.ratio,
        "error": found.ratio * found.error,
        "ratio_of_means": float(means[0] / means[1]),
        "wins": found.wins,
        "repetitions": len(found.differences),
    }


def targets(lines):
    """Every target: its words, the number found, the limit, and whether it is met."""
    linear, poisson, logistic = lines["linear"], lines["poisson"], lines["logistic"]
    for k, limit in ((0.5, 0.05), (1.0, 0.20), (2.0, 0.55)):
        found = ratio(linear, "sd", k, "robust", "classical")
        yield (
            f"linear, σᵢ a standard deviation, k = {k:g}: MSE ratio to least squares",
            found,
            f"≤ {limit:g}",
            found["ratio"] <= limit,
        )
    for intercept in (True, False):
        words = "with" if intercept else "without"
        for sigma in (0.25, 0.5, 1.0, 1.5, 2.0):
            found = ratio(poisson, "lognormal", sigma, "robust", "classical", intercept)
            met = found["ratio"] <= 0.05 and found["wins"] >= 0.96 * found["repetitions"]
            yield f"Poisson {words} intercept, σ = {sigma:g}: MSE ratio to classical", found, "≤ 0.05, wins ≥ 96 %", met
    for sigma, limit in ((1.0, 0.80), (1.5, 0.65), (2.0, 0.50)):
        found = ratio(poisson, "lognormal", sigma, "robust", "nb", True)
        yield (
            f"Poisson with intercept, σ = {sigma:g}: MSE ratio to negative binomial",
            found,
            f"≤ {limit:g}",
            found["ratio"] <= limit,
        )
    for intercept in (True, False):
        spreads = np.concatenate(
            [some(poisson, v, 0.0, "robust", intercept)["spread"] for v in ("lognormal", "gamma", "gross")]
        )
        share = float((spreads == 0).mean())
        found = {
            "share": share,
            "error": float(np.sqrt(share * (1 - share) / len(spreads))),
            "repetitions": len(spreads),
            "largest_spread": float(spreads.max()),
            "median_of_the_others": float(np.median(spreads[spreads > 0])) if (spreads > 0).any() else 0.0,
        }
        words = "with" if intercept else "without"
        yield f"Poisson {words} intercept, clean: share of fits with spread exactly 0", found, "≥ 0.9", share >= 0.9
    found = ratio(logistic, "far", 0.1, "label", "classical", loss=MISDIRECTION)
    yield 'logistic, 10 % far flips, local="label": 1 − cos ratio to classical', found, "≤ 0.25", found["ratio"] <= 0.25
    lower = contrast(logistic, "far", 0.1, LOSSES["logistic"][0], "label", "classical")
    found = {"points": -100 * lower.mean, "error": 100 * lower.error, "repetitions": len(lower.differences)}
    yield 'logistic, 10 % far flips, local="label": points of class error below classical', found, "≥ 3", found["points"] >= 3  # fmt: skip


def table(settings, checked, lines):
    """The Markdown page."""
    seconds = {name: float(frame["seconds"].sum()) for name, frame in lines.items()}
    reps = {name: int(frame["repetition"].max()) + 1 for name, frame in lines.items()}
    told = ", ".join(
        f"{name} {reps[name]} repetitions ({seconds[name]:.0f} s of processor time in fits)" for name in lines
    )
    rows = []
    for words, found, limit, met in checked:
        value = found.get("ratio", found.get("share", found.get("points")))
        more = ""
        if "wins" in found:
            more = f"ratio of means {found['ratio_of_means']:.3g}; wins {found['wins']} of {found['repetitions']}"
        elif "largest_spread" in found:
            more = f"{found['repetitions']} fits; the other spreads: median {found['median_of_the_others']:.2g}, largest {found['largest_spread']:.2g}"
        rows.append(
            f"| {words} | {value:.3g} ± {found['error']:.1g} | {limit} | {'yes' if met else '**no**'} | {more} |"
        )
    return "\n".join(
        [
            "# The study on a fresh seed: targets and what was found",
            "",
            f"Seed {settings['seed']}, {told}; {platform.machine()}, Python {platform.python_version()}. "
            "Everything was developed on seed 0. Made by `python benchmarks/study.py`.",
            "",
            "| measure | found | target | met | |",
            "| --- | --- | --- | --- | --- |",
            *rows,
            "",
        ]
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=101)
    parser.add_argument("--reps", type=int, default=50)
    parser.add_argument("--jobs", type=int, default=None)
    parser.add_argument("--no-run", action="store_true", help="only check what the folder holds")
    asked = parser.parse_args()
    if not asked.no_run:
        for experiment in runs.REGRESSIONS:
            for line in run_study(experiment, asked.out, asked.reps, asked.seed, jobs=asked.jobs):
                print(line, flush=True)
    settings = runs.read_settings(asked.out)
    lines = {name: runs.read_lines(asked.out, name) for name in runs.REGRESSIONS}
    checked = list(targets(lines))
    kept = {**settings, "targets": [{"measure": w, **f, "target": limit, "met": bool(m)} for w, f, limit, m in checked]}
    runs.write_study_json(RESULTS / "study.json", kept)
    page = table(settings, checked, lines)
    with atomic(RESULTS / "study.md") as stream:
        stream.write(page.encode())
    print(page)
    return 0 if all(met for *_, met in checked) else 1


if __name__ == "__main__":
    sys.exit(main())
