"""Measure our entries against their rivals: `python benchmarks/run.py [--quick] [--only NAME …] [--reps N]`.

With ``--against REV`` no rival is run: our entries of this tree and of an earlier commit take turns. With ``--compare FOLDER`` the
run ends with status 1 where a ratio to a rival has grown by more than 1.3 since the results in that folder.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.metadata
import json
import math
import os
import platform
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path[:] = [str(ROOT), *(folder for folder in sys.path if Path(folder).resolve() != ROOT / "benchmarks")]

from benchmarks import against, problems, speed, table  # noqa: E402
from benchmarks.declare import Comparison, discover  # noqa: E402
from benchmarks.judge import Runs, describe, judge, regressions  # noqa: E402
from benchmarks.measure import r_versions, run_entry  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results"
VERSIONED = ("robustly", "jax", "jaxlib", "numpyro", "numpy", "scipy", "numba", "scikit-learn", "statsmodels")


def interleave(comparison: Comparison, sizes: dict[str, Any], reps: int) -> tuple[Runs, Any]:
    """A, B, C, A, B, C, …: what disturbs the machine disturbs all. An entry that could not run is not asked again."""
    runs: Runs = {entry: [] for entry in comparison.entries}
    problem = problems.make(comparison.problem, **sizes) if comparison.problem else None
    with tempfile.TemporaryDirectory() as folder:
        data_file = None
        if problem is not None:
            data_file = Path(folder) / "data.npz"
            np.savez(data_file, **problem.data)
        first = -1 if comparison.cache == "kept" else 0  # repetition -1 fills the cache and is not counted
        for repetition in range(first, reps):
            for entry in comparison.entries:
                if runs[entry] and runs[entry][-1]["status"] != "ok":
                    continue
                compiled = Path(folder) / (entry if comparison.cache == "kept" else f"{entry}-{repetition}")
                compiled.mkdir(exist_ok=True)
                fits = 0 if repetition < 0 else comparison.warm_fits
                run = run_entry(entry, problem, data_file, fits, comparison.timeout, compiled)
                if repetition >= 0 or run["status"] != "ok":
                    runs[entry].append(run)
                say(comparison, entry, repetition, run)
    return runs, problem


def say(comparison: Comparison, entry: str, repetition: int, run: dict[str, Any]) -> None:
    if run["status"] == "ok":
        text = ", ".join(f"{name} {run[name]:.3g} s" for name in ("cold", "warm") if name in run)
    else:
        text = f"{run['status']}: {run['why']}"
    print(f"{comparison.name} [{repetition + 1}] {entry}: {text}", flush=True)


def run_comparison(comparison: Comparison, quick: bool, reps: int | None) -> dict[str, Any]:
    """One comparison as the record that is kept in `results/`."""
    sizes = comparison.sizes | (comparison.quick if quick else {})
    reps = reps or (comparison.quick_reps if quick else comparison.reps)
    runs, problem = interleave(comparison, sizes, reps)
    truth, reference = (problem.truth, problem.reference) if problem else ({}, {})
    return {
        "name": comparison.name,
        "title": comparison.title,
        "problem": comparison.problem,
        "sizes": sizes,
        "quick": quick,
        "ours": comparison.ours,
        "targets": [judge(target, comparison, runs) for target in comparison.targets],
        "entries": describe(comparison, runs, truth, reference),
        "runs": {
            entry: [{k: v for k, v in run.items() if k != "estimates"} for run in records]
            for entry, records in runs.items()
        },
        "cores": os.cpu_count(),
        "versions": versions(comparison.entries),
    }


def versions(entries: tuple[str, ...]) -> dict[str, str]:
    """Of Python, of what the package stands on, and of what these entries need in R."""
    found = {"python": platform.python_version()}
    for package in VERSIONED:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    for entry in entries:
        with contextlib.suppress(ImportError):
            rival = importlib.import_module(f"benchmarks.rivals.{entry}")
            found |= r_versions(tuple(getattr(rival, "R_PACKAGES", ())))
    return found


def without_nan(value: Any) -> Any:
    """JSON has no NaN or infinity; null stands for both."""
    if isinstance(value, dict):
        return {name: without_nan(item) for name, item in value.items()}
    if isinstance(value, list):
        return [without_nan(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write(folder: Path, results: list[dict[str, Any]], known: list[str]) -> None:
    """Each result to its file; the page is made from all files of comparisons that are still declared."""
    folder.mkdir(parents=True, exist_ok=True)
    for result in results:
        text = json.dumps(without_nan(result), indent=1, ensure_ascii=False, allow_nan=False)
        (folder / f"{result['name']}.json").write_text(text + "\n", encoding="utf-8")
    found = speed.kept(known, folder)
    (folder / "README.md").write_text(table.page(found), encoding="utf-8")
    if folder == RESULTS:
        speed.write_speed_page(found)


def main(arguments: list[str] | None = None) -> int:
    comparisons = discover()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes and two repetitions, to results/quick/")
    parser.add_argument("--only", nargs="+", choices=sorted(comparisons), metavar="NAME", help="these comparisons")
    parser.add_argument("--reps", type=int, help="repetitions of every entry")
    parser.add_argument("--list", action="store_true", help="say what there is, and stop")
    parser.add_argument("--against", metavar="REV", help="compare this tree with a commit, and write nothing")
    parser.add_argument(
        "--compare", metavar="FOLDER", type=Path, help="results of another run, such as benchmarks/results"
    )
    options = parser.parse_args(arguments)
    if options.compare is not None and not any(options.compare.glob("*.json")):
        parser.error(f"--compare {options.compare} holds no results; give a folder that run.py has written")
    before = [] if options.compare is None else speed.kept(list(comparisons), options.compare)
    if options.reps is not None and options.reps < 1:
        parser.error("--reps must be at least 1")
    chosen = [comparisons[name] for name in comparisons if not options.only or name in options.only]
    if options.list:
        for comparison in chosen:
            print(f"{comparison.name}: {comparison.title} ({', '.join(comparison.entries)})")
        return 0
    if options.against:
        for comparison in chosen:
            reps = options.reps or (comparison.quick_reps if options.quick else comparison.reps)
            found = against.compare(comparison, options.against, options.quick, reps)
            print("\n".join(against.lines(comparison.name, found)), flush=True)
        return 0
    folder = RESULTS / "quick" if options.quick else RESULTS
    begun, results = time.monotonic(), []
    for comparison in chosen:
        results.append(run_comparison(comparison, options.quick, options.reps))
        write(folder, results[-1:], list(comparisons))  # at once: a run that is stopped keeps what it has
    print("\n".join(["", *table.targets([without_nan(result) for result in results]), ""]))
    print(f"{time.monotonic() - begun:.0f} s; written to {folder.relative_to(ROOT)}")
    slower = regressions(before, results)
    print("\n".join(f"slower: {line}" for line in slower))
    # A missed target is a finding; an entry of ours that does not run, or became slower beside its rivals, is a fault.
    return int(bool(slower) or any(result["entries"][result["ours"]]["status"] == "failed" for result in results))


if __name__ == "__main__":
    sys.exit(main())
