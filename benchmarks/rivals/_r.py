"""Run a fit in R: rows go over as CSV, estimates come back as JSON, and R's own clock leaves its start-up out."""

import json
import subprocess
import tempfile
from itertools import chain, repeat
from pathlib import Path

import numpy as np

BEFORE = """
rows <- read.csv("rows.csv")
covariates <- setdiff(names(rows), "y")
"""

AFTER = """
for (i in seq_len(fits)) {
  began <- proc.time()[["elapsed"]]
  fitted <- fit_once()
  seconds <- proc.time()[["elapsed"]] - began
}
answer <- c(estimates(fitted), list(seconds = seconds))
jsonlite::write_json(answer, "answer.json", auto_unbox = TRUE, digits = NA)
"""


def prepare_r(script, problem):
    """Fits once in the first call; in later ones twice, since R too is faster when it has loaded all it needs."""
    fits = chain([1], repeat(2))
    return lambda: run_r(script, problem, next(fits))


def run_r(script, problem, fits):
    """`script` finds `rows` (x1, x2, …, y) and `covariates`, and must define `fit_once()` and `estimates(fitted)`.

    Of several fits the last is timed.
    """
    with tempfile.TemporaryDirectory() as folder:
        names = [f"x{j + 1}" for j in range(problem.data["x"].shape[1])]
        rows = np.column_stack([problem.data["x"], problem.data["y"]])
        header = ",".join([*names, "y"])
        np.savetxt(Path(folder) / "rows.csv", rows, fmt="%.17g", delimiter=",", header=header, comments="")
        (Path(folder) / "fit.R").write_text(f"fits <- {fits}\n{BEFORE}{script}{AFTER}")
        done = subprocess.run(["Rscript", "fit.R"], cwd=folder, capture_output=True, text=True)
        answer = Path(folder) / "answer.json"
        if done.returncode or not answer.exists():
            raise RuntimeError(f"R ended with {done.returncode}: {done.stderr.strip()[-400:]}")
        estimates = json.loads(answer.read_text())
        return {**estimates, "w": np.atleast_1d(estimates["w"])}
