"""What do robust mixed models buy, and do their intervals and lists keep their word? Tables, written to results/groups.md.

    python benchmarks/groups.py [--sets 500] [--only coverage boundary contaminated speed] [--seed 1]

Coverage: 8, 20 and 100 groups of 5 to 15 rows, a column that varies within groups and one that does not, normal and Poisson
responses, effects of standard deviation .7 (noise 1): 95 % intervals of the coefficients (Fit.confint) and of the effects' standard
deviation (profile likelihood). Boundary: the same without effects; of a normal response theory says how
often none are found (Crainiceanu & Ruppert 2004). Contaminated: 60 groups of 10 rows, a tenth of the groups with
effects 8 standard deviations off, or a tenth of the rows 10 off (counts: a hundredfold), all to one side; errors of coefficients
are root mean squares as a share of lme4's (lmer and glmer, 9 points; where R is not there, of normal effects fitted here, which agree
to 1e-5), biases lme4's / ours. Speed is in CPU seconds of one process, ratios within one run.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

SD = 0.7
TRUE = {"Intercept": 0.5, "x": 0.4, "w": -0.3}
RESULTS = Path(__file__).resolve().parent / "results"


def simulate(
    rng: np.random.Generator, groups: int, family: str, sd: float = SD, rows: int | None = None
) -> pd.DataFrame:
    """Rows with a column x that varies within groups and a column w that does not."""
    sizes = rng.integers(5, 16, groups) if rows is None else np.full(groups, rows)
    g = np.repeat(np.arange(groups), sizes)
    x, w = rng.normal(size=len(g)), rng.normal(size=groups)[g]
    m = TRUE["Intercept"] + TRUE["x"] * x + TRUE["w"] * w + sd * rng.normal(size=groups)[g]
    y = m + rng.normal(size=len(g)) if family == "normal" else rng.poisson(np.exp(m))
    return pd.DataFrame({"y": y, "x": x, "w": w, "g": g})


def coverage(sets: int, seed: int) -> dict[str, Any]:
    """Shares of sets in which 95 % intervals hold the truth."""
    import robustly as rb

    found: dict[str, Any] = {}
    for family in ("normal", "poisson"):
        for groups in (8, 20, 100):
            held = dict.fromkeys((*TRUE, "sd"), 0)
            for one in range(sets):
                data = simulate(np.random.default_rng([seed, groups, one]), groups, family)
                fit = rb.glm("y ~ x + w + (1 | g)", data, family=family)
                ends = fit.confint(0.95)
                for name, value in TRUE.items():
                    held[name] += ends[name][0] <= value <= ends[name][1]
                low, high = fit.source.variance_components(0.95).loc[("g", "Intercept"), ["low", "high"]]
                held["sd"] += low <= SD <= high
            found[f"{family}, {groups} groups"] = {name: count / sets for name, count in held.items()}
            print(family, groups, found[f"{family}, {groups} groups"], flush=True)
    return found


def none_expected(data: pd.DataFrame, rng: np.random.Generator, draws: int = 20_000) -> float:
    """How often a normal response without effects has a likelihood that falls at once: Crainiceanu & Ruppert (2004)."""
    columns = np.column_stack([np.ones(len(data)), data["x"], data["w"]])
    effects = (data["g"].to_numpy()[:, None] == data["g"].unique()).astype(float)
    left = effects - columns @ np.linalg.lstsq(columns, effects, rcond=None)[0]
    weight, groups = np.linalg.eigvalsh(effects.T @ left), effects.shape[1]
    square = rng.chisquare(1, (draws, groups))
    rest = rng.chisquare(len(data) - columns.shape[1] - groups, draws)
    return float(np.mean(len(data) * (square @ weight) <= effects.sum() * (square.sum(axis=1) + rest)))


def boundary(sets: int, seed: int) -> dict[str, Any]:
    """Without effects: how often none are found, and how often the test at 5 % says that there are some."""
    import robustly as rb

    found = {}
    for family in ("normal", "poisson"):
        none, said, stated = 0, 0, []
        for one in range(sets):
            data = simulate(np.random.default_rng([seed, 7, one]), 50, family, sd=0.0)
            if family == "normal" and one < 20:
                stated.append(none_expected(data, np.random.default_rng([seed, 8, one])))
            fit = rb.glm("y ~ x + w + (1 | g)", data, family=family)
            none += not fit.source.problem.entries
            from robustly.glm.grouped.components import ratio_test

            said += ratio_test(fit.source.found, 0) < 0.05
        found[f"{family}, 50 groups"] = {"sd is 0": none / sets, "test at 5 %": said / sets}
        if stated:
            found[f"{family}, 50 groups"]["sd is 0, in theory"] = float(np.mean(stated))
        print(family, found[f"{family}, 50 groups"], flush=True)
    return found


KINDS = {
    "groups, normal response": ("normal", "groups", {"group_law": "student_t"}),
    "groups, Poisson response": ("poisson", "groups", {"group_law": "student_t"}),
    "rows, normal response": ("normal", "rows", {"local": "dispersion"}),
    "rows, Poisson response": ("poisson", "rows", {"local": "contaminated"}),
}


LME4 = r"""
suppressMessages(library(lme4))
folder <- commandArgs(TRUE)[1]
for (file in sort(list.files(folder, pattern = "csv$", full.names = TRUE))) {
  d <- read.csv(file); d$g <- factor(d$g)
  form <- y ~ x + w + (1 | g)
  f <- suppressMessages(suppressWarnings(
    if (grepl("normal", file)) lmer(form, d, REML = FALSE) else glmer(form, d, family = poisson, nAGQ = 9)))
  cat(sprintf("%.10g", fixef(f)), "\n")
}
"""


def by_lme4(sets: list[pd.DataFrame], family: str) -> list[np.ndarray] | None:
    """Coefficients of every set by lme4, if R and lme4 are there."""
    if not shutil.which("Rscript"):
        return None
    with tempfile.TemporaryDirectory() as folder:
        for place, data in enumerate(sets):
            data.to_csv(Path(folder) / f"{family}{place:05d}.csv", index=False)
        script = Path(folder) / "lme4.R"
        script.write_text(LME4)
        done = subprocess.run(["Rscript", str(script), folder], capture_output=True, text=True, check=False)
    found = [np.array(line.split(), dtype=float) for line in done.stdout.splitlines()]
    if len(found) != len(sets):
        print("lme4 did not fit all sets:", done.stderr[-500:], flush=True)
        return None
    return found


def contaminated(sets: int, seed: int) -> dict[str, Any]:
    """Errors of coefficients beside lme4's; what lists of groups and rows hold."""
    import robustly as rb

    found = {}
    for kind, (family, bad, robust) in KINDS.items():
        made = [spoilt(np.random.default_rng([seed, 11, one]), family, bad) for one in range(sets)]
        true = np.array(list(TRUE.values()))
        beside = by_lme4([data for data, _ in made], family)
        errors: dict[str, list[np.ndarray]] = {"lme4": [], "robust": []}
        false, power = [], []
        for one, (data, wrong) in enumerate(made):
            if beside is None:
                plain = rb.glm("y ~ x + w + (1 | g)", data, family=family).coefficients.to_numpy()
            errors["lme4"].append((plain if beside is None else beside[one]) - true)
            fit = rb.glm("y ~ x + w + (1 | g)", data, **{"family": family, **robust})
            errors["robust"].append(fit.coefficients.to_numpy() - true)
            listed = fit.outliers(fdr=0.05, level="group" if bad == "groups" else "row")
            false.append(np.mean(~np.isin(listed, wrong)) if len(listed) else 0.0)
            power.append(np.mean(np.isin(wrong, listed)))
        size = {name: np.sqrt(np.mean(np.square(values), axis=0)) for name, values in errors.items()}
        bias = {name: np.mean(values, axis=0) for name, values in errors.items()}
        line: dict[str, Any] = {
            f"error {term}": float(size["robust"][i] / size["lme4"][i]) for i, term in enumerate(TRUE)
        }
        line["error, all"] = float(np.sqrt(np.mean(size["robust"] ** 2) / np.mean(size["lme4"] ** 2)))
        line |= {f"bias {term}": [float(bias[n][i]) for n in ("lme4", "robust")] for i, term in enumerate(TRUE)}
        line |= {"FDR": float(np.mean(false)), "power": float(np.mean(power))}
        line["beside"] = "lme4" if beside is not None else "normal effects"
        found[kind] = line
        print(kind, line, flush=True)
    return found


def spoilt(rng: np.random.Generator, family: str, bad: str) -> tuple[pd.DataFrame, np.ndarray]:
    """60 groups of 10 rows, a tenth of the groups or of the rows grossly wrong, all to one side."""
    data = simulate(rng, 60, family, rows=10)
    if bad == "groups":
        wrong = rng.choice(60, 6, replace=False)
        hit = np.isin(data["g"], wrong)
        shift = 8.0 * SD if family == "normal" else np.log(100.0)
    else:
        wrong = rng.choice(len(data), len(data) // 10, replace=False)
        hit = np.isin(np.arange(len(data)), wrong)
        shift = 10.0 if family == "normal" else np.log(100.0)
    y = (
        data["y"] + shift * hit
        if family == "normal"
        else np.where(hit, np.rint((data["y"] + 1) * np.exp(shift)), data["y"])
    )
    return data.assign(y=y), wrong


# ---------------------------------------------------------------------- speed

RIVALS = r"""
suppressMessages({library(lme4); library(glmmTMB)})
folder <- commandArgs(TRUE)[1]
form <- y ~ x0 + x1 + x2 + x3 + x4 + (1 | g)
timed <- function(name, run) {
  t <- system.time(fit <- suppressMessages(suppressWarnings(run())))
  f <- fixef(fit); f <- if (is.list(f) && !is.null(f$cond)) f$cond else f
  cat(sprintf('{"name": "%s", "cpu": %.4f, "x0": %.8f}\n', name, t[1] + t[2], f[2]))
}
n <- read.csv(file.path(folder, "normal.csv")); n$g <- factor(n$g)
timed("lmer", function() { f <- lmer(form, n, REML = FALSE); vcov(f); f })
p <- read.csv(file.path(folder, "poisson.csv")); p$g <- factor(p$g)
timed("glmmTMB", function() { f <- glmmTMB(form, p, family = poisson); vcov(f); f })
timed("glmer", function() { f <- glmer(form, p, family = poisson, nAGQ = 9); vcov(f); f })
"""
FORMULA = "y ~ x0 + x1 + x2 + x3 + x4 + (1 | g)"


def large(n: int, groups: int, family: str, slopes: bool = False, ragged: bool = False) -> pd.DataFrame:
    rng = np.random.default_rng(5)
    X = rng.normal(size=(n, 5))
    if ragged:
        sizes = np.array([100_000, 10_000, 1000, 100, 10, *np.ones(2000, int)])
        g = np.concatenate([np.repeat(np.arange(len(sizes)), sizes), rng.integers(len(sizes), groups, n)])[:n]
        rng.shuffle(g)
    else:
        g = rng.integers(0, groups, n)
    m = 0.5 + X @ np.linspace(-0.3, 0.3, 5) + 0.5 * rng.normal(size=g.max() + 1)[g]
    if slopes:
        m = m + 0.3 * rng.normal(size=g.max() + 1)[g] * X[:, 0]
    frame = pd.DataFrame(X, columns=[f"x{i}" for i in range(5)]).assign(g=g)
    return frame.assign(y=rng.poisson(np.exp(m)) if family == "poisson" else m + rng.normal(size=n))


def seconds(data: pd.DataFrame, formula: str, family: str) -> dict[str, float]:
    """CPU seconds of a second fit in this process, standard errors included, and the peak of memory beyond the data."""
    import resource

    import robustly as rb

    few = data[data["g"].isin(data["g"].unique()[:50])]
    rb.glm(formula, few, family=family)
    if len(data) <= 200_000:
        rb.glm(formula, data, family=family)
    began, wall = time.process_time(), time.perf_counter()
    fit = rb.glm(formula, data, family=family)
    errors = fit.standard_errors
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {
        "cpu": time.process_time() - began,
        "wall": time.perf_counter() - wall,
        "x0": float(fit.coefficients["x0"]),
        "se": float(errors["x0"]),
        "peak MB": peak,
        "data MB": data.memory_usage().sum() / 1e6,
    }


# Not getrusage, whose peak is that of the process that started this one where that is larger.
PEAK = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from benchmarks import groups
import robustly as rb
rb.glm(groups.FORMULA, groups.large(int(sys.argv[2]), int(sys.argv[2]) // 100, "poisson"), family="poisson").standard_errors
print(next(float(line.split()[1]) for line in Path("/proc/self/status").open() if line.startswith("VmHWM")) / 1024)
"""


def peak_alone(n: int) -> float:
    """The peak of memory in MB of a process that makes the data, fits them and does nothing else."""
    done = subprocess.run([sys.executable, "-c", PEAK, str(ROOT), str(n)], capture_output=True, text=True, check=True)
    return float(done.stdout)


def speed(sets: int, seed: int) -> dict[str, Any]:
    """Beside lme4 and glmmTMB where R is there; and how time grows."""
    found: dict[str, Any] = {}
    poisson, normal = large(100_000, 1000, "poisson"), large(100_000, 1000, "normal")
    if shutil.which("Rscript"):
        with tempfile.TemporaryDirectory() as folder:
            poisson.to_csv(Path(folder) / "poisson.csv", index=False)
            normal.to_csv(Path(folder) / "normal.csv", index=False)
            script = Path(folder) / "rivals.R"
            script.write_text(RIVALS)
            told = subprocess.run(["Rscript", str(script), folder], capture_output=True, text=True, check=False).stdout
            found |= {one["name"]: one for one in map(json.loads, told.split("\n")[:-1])}
            print(found, flush=True)
    found["poisson 1e5"] = seconds(poisson, FORMULA, "poisson")
    found["normal 1e5"] = seconds(normal, FORMULA, "normal")
    slopes = FORMULA.replace("(1 | g)", "(1 + x0 | g)")
    found["slopes 1e5"] = seconds(large(100_000, 1000, "poisson", slopes=True), slopes, "poisson")
    found["ragged 2e5"] = seconds(large(200_000, 3000, "poisson", ragged=True), FORMULA, "poisson")
    for n in (250_000, 1_000_000):
        found[f"poisson {n}"] = seconds(large(n, n // 100, "poisson"), FORMULA, "poisson")
        found[f"poisson {n}"]["peak alone MB"] = peak_alone(n)
    for name, value in found.items():
        print(name, value, flush=True)
    return found


TABLES = {"coverage": coverage, "boundary": boundary, "contaminated": contaminated, "speed": speed}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--sets", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", nargs="*", default=list(TABLES), choices=list(TABLES))
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    path = RESULTS / "groups.json"
    kept = json.loads(path.read_text()) if path.exists() else {}
    for name in given.only:
        kept[name] = {"sets": given.sets, "seed": given.seed, "found": TABLES[name](given.sets, given.seed)}
        path.write_text(json.dumps(kept, indent=1) + "\n")
    write_tables(kept)


def write_tables(kept: dict[str, Any]) -> None:
    """results/groups.md, from what is kept."""
    lines = ["# Groups", "", " ".join(__doc__.split("\n\n")[2].split()), ""]
    for name, one in kept.items():
        if not isinstance(one, dict) or "found" not in one:
            continue
        frame = pd.DataFrame.from_dict(one["found"], orient="index")
        shown = frame.map(lambda value: _shown(value))
        told = "" if name == "speed" else f", {one['sets']} sets, seed {one['seed']}"
        lines += [f"## {name}{told}", "", "| | " + " | ".join(map(str, shown.columns)) + " |"]
        lines += ["|---" * (shown.shape[1] + 1) + "|"]
        lines += [f"| {label} | " + " | ".join(row) + " |" for label, row in zip(shown.index, shown.to_numpy())]
        lines += [""]
    (RESULTS / "groups.md").write_text("\n".join(lines))


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return " / ".join(_shown(one) for one in value)
    return (
        ""
        if value is None or (isinstance(value, float) and np.isnan(value))
        else f"{value:.4g}"
        if isinstance(value, float)
        else str(value)
    )


if __name__ == "__main__":
    main()
