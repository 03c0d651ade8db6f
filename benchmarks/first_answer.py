"""How long until the first answer? CPU seconds of whole processes, from their start to a printed summary, beside statsmodels'.

    python benchmarks/first_answer.py --repetitions 5

Every process imports, makes 500 rows of 5 columns, fits and prints. *Nothing kept* begins with an empty cache folder, *kept* with what a
process like it left there; statsmodels fits the plain model. Programs take turns, and ratios are those of one turn. A second shape
(700 rows of 9 columns) is fitted in the same process after the first. Results: ``benchmarks/results/first_answer.json``.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
RIVAL = "statsmodels"

ROWS = """
import numpy as np

def rows(n, d, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d)) / d
    return X, rng.poisson(np.exp(0.5 + X @ rng.normal(size=d) + 0.7 * rng.normal(size=n)))

X, y = rows(500, 5)
"""

README_MODEL = """
import numpyro
import numpyro.distributions as dist

def model(x, y=None):
    w = numpyro.sample("w", dist.Normal(0, 10).expand([x.shape[1]]).to_event(1))
    precision = numpyro.sample("precision", dist.Gamma(2.0, 1.0))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ w, precision**-0.5), obs=y)

def measured(n, d, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, d))
    return x, x @ np.arange(1.0, d + 1.0) + 0.3 * rng.standard_t(2, size=n)
"""

FORMULA = """
import pandas as pd
frame = pd.DataFrame(X, columns=[f"x{j}" for j in range(5)]).assign(y=y)
formula = "y ~ " + " + ".join(frame.columns[:5])
"""

ESTIMATOR = "import robustly as rb\nfit = lambda X, y: rb.RobustPoissonRegression({}).fit(X, y)\n"
PROGRAMS = {
    RIVAL: (
        ROWS + "import statsmodels.api as sm\n"
        "print(sm.GLM(y, sm.add_constant(X), sm.families.Poisson()).fit().summary())\n",
        "",
    ),
    "robust Poisson": (ROWS + ESTIMATOR.format("") + "print(fit(X, y).summary())\n", "fit(*rows(700, 9)).summary()"),
    "Student-t prior": (
        ROWS + ESTIMATOR.format('prior="student_t"') + "print(fit(X, y).summary())\n",
        "fit(*rows(700, 9)).summary()",
    ),
    "localize": (
        ROWS + README_MODEL + "import robustly as rb\n"
        'fit = lambda x, y: rb.localize(model, "precision").fit(x, y)\nprint(fit(*measured(500, 5)).summary())\n',
        "fit(*measured(700, 9)).summary()",
    ),
    "formula": (
        ROWS + FORMULA + "import robustly as rb\nprint(rb.glm(formula, frame, family='poisson').summary())\n",
        "",
    ),
    "statsmodels formula": (
        ROWS + FORMULA + "import statsmodels.api as sm, statsmodels.formula.api as smf\n"
        "print(smf.glm(formula, frame, family=sm.families.Poisson()).fit().summary())\n",
        "",
    ),
    "import robustly": ("import robustly\n", ""),
}
# Of each program: which number, as a multiple of statsmodels' CPU seconds or as seconds of its own, and the most it may be.
TARGETS = (
    ("robust Poisson", "kept", "over statsmodels", 1.3),
    ("robust Poisson", "cold", "over statsmodels", 2.0),
    ("Student-t prior", "cold", "over statsmodels", 3.0),
    ("localize", "cold", "over statsmodels", 3.0),
    ("robust Poisson", "second, cold", "CPU seconds", 0.05),
    ("import robustly", "cold", "CPU seconds", 0.05),
)
# The work's own seconds end with the summary: the interpreter's end is not waited for by anybody.
CLOSING = """
import sys, time
seconds = [time.process_time()]
{then}
seconds.append(time.process_time() - seconds[0])
print(*seconds, file=sys.stderr)
"""


def process(program: str, cache: Path) -> tuple[float, float]:
    """CPU seconds until the summary is printed, and those of the second shape."""
    code, then = PROGRAMS[program]
    around = os.environ | {"XDG_CACHE_HOME": str(cache), "NUMBA_CACHE_DIR": str(cache / "numba")}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code + CLOSING.format(then=then)],
        env=around,
        capture_output=True,
        text=True,
        check=True,
    )
    first, second = done.stderr.strip().splitlines()[-1].split()
    return float(first), float(second)


def one_turn(programs: list[str], kept: Path) -> dict[str, dict[str, float]]:
    """All programs once, without and with what is kept."""
    found: dict[str, dict[str, float]] = {}
    for program in programs:
        with tempfile.TemporaryDirectory() as folder:
            cold = process(program, Path(folder))
        warm = process(program, kept)
        found[program] = {"cold": cold[0], "kept": warm[0]}
        if PROGRAMS[program][1]:
            found[program] |= {"second, cold": cold[1], "second, kept": warm[1]}
    return found


def summed_up(turns: list[dict[str, dict[str, float]]]) -> dict[str, Any]:
    """Medians of CPU seconds, and of ratios to the rival in the same turn with their range."""
    found: dict[str, Any] = {}
    for program in turns[0]:
        seconds = {name: statistics.median(turn[program][name] for turn in turns) for name in turns[0][program]}
        found[program] = {"CPU seconds": {name: round(value, 3) for name, value in seconds.items()}}
        if program != RIVAL:
            ratios = {
                name: sorted(turn[program][name] / turn[RIVAL]["kept"] for turn in turns) for name in ("cold", "kept")
            }
            found[program]["over statsmodels"] = {
                name: {
                    "median": round(statistics.median(of), 2),
                    "least": round(of[0], 2),
                    "greatest": round(of[-1], 2),
                }
                for name, of in ratios.items()
            }
    return found


def judged(found: dict[str, Any]) -> list[dict[str, Any]]:
    """The targets, with what was found."""
    lines = []
    for program, measure, unit, most in TARGETS:
        if program in found:
            one = found[program][unit][measure]
            value = one["median"] if isinstance(one, dict) else one
            lines.append(
                {
                    "target": f"{program}, {measure}: at most {most:g} {unit}",
                    "found": value,
                    "met": value <= most,
                }
            )
    return lines


def main() -> None:
    reader = argparse.ArgumentParser(description=__doc__)
    reader.add_argument("--repetitions", type=int, default=5)
    reader.add_argument("--only", nargs="*", default=list(PROGRAMS), choices=list(PROGRAMS))
    reader.add_argument("--out", type=Path, default=HERE / "results" / "first_answer.json")
    asked = reader.parse_args()
    programs = [RIVAL, *(name for name in asked.only if name != RIVAL)]
    with tempfile.TemporaryDirectory() as folder:
        for program in programs:  # what processes like these leave behind
            process(program, Path(folder))
        turns = [one_turn(programs, Path(folder)) for _ in range(asked.repetitions)]
    programs_found = summed_up(turns)
    found = {"repetitions": asked.repetitions, "targets": judged(programs_found), "programs": programs_found}
    print(json.dumps(found, indent=1))
    asked.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
