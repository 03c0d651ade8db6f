"""Did a change cost anything? Our entries of this tree and of an earlier commit, in turns, in one run.

Each repetition measures both, one after the other and in changing order, so that what disturbs the machine disturbs both.
"""

from __future__ import annotations

import io
import statistics
import subprocess
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import problems
from benchmarks.declare import Comparison
from benchmarks.measure import run_entry

ROOT = Path(__file__).resolve().parent.parent
MEASURES = ("cold", "first", "warm", "peak_mb")
# Slower than this, or larger, is said aloud.
ALLOWED = 1.05


def sources_of(revision: str, folder: Path) -> Path:
    """The package as it was at a commit."""
    packed = subprocess.run(["git", "archive", revision, "src"], cwd=ROOT, check=True, capture_output=True).stdout
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        archive.extractall(folder, filter="data")
    return folder / "src"


def compare(comparison: Comparison, revision: str, quick: bool, reps: int) -> dict[str, Any]:
    """Medians of both, and of the ratios of each pair, for our entries of one comparison."""
    sizes = comparison.sizes | (comparison.quick if quick else {})
    problem = problems.make(comparison.problem, **sizes) if comparison.problem else None
    entries = [entry for entry in comparison.entries if entry.startswith(("robustly", "import_robustly"))]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        data_file = None
        if problem is not None:
            data_file = folder / "data.npz"
            np.savez(data_file, **problem.data)
        versions = {"before": sources_of(revision, folder), "now": ROOT / "src"}
        runs: dict[str, dict[str, list[dict[str, Any]]]] = {entry: {"before": [], "now": []} for entry in entries}
        for repetition in range(-1 if comparison.cache == "kept" else 0, reps):
            for entry in entries:
                order = ["before", "now"] if repetition % 2 else ["now", "before"]
                for which in order:
                    kept = comparison.cache == "kept"
                    compiled = folder / (f"{entry}-{which}" if kept else f"{entry}-{which}-{repetition}")
                    compiled.mkdir(exist_ok=True)
                    fits = 0 if repetition < 0 else comparison.warm_fits
                    run = run_entry(
                        entry, problem, data_file, fits, comparison.timeout, compiled, source=versions[which]
                    )
                    if repetition >= 0 or run["status"] != "ok":
                        runs[entry][which].append(run)
    return {entry: _ratios(found["before"], found["now"]) for entry, found in runs.items()}


def _ratios(before: list[dict[str, Any]], now: list[dict[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for measure in MEASURES:
        pairs = [(a[measure], b[measure]) for a, b in zip(before, now) if measure in a and measure in b]
        if pairs:
            ratios = [b / a for a, b in pairs]
            found[measure] = {
                "before": statistics.median(a for a, _ in pairs),
                "now": statistics.median(b for _, b in pairs),
                "ratio": statistics.median(ratios),
                "least": min(ratios),
                "most": max(ratios),
            }
    failed = [run["why"] for run in (*before, *now) if run["status"] != "ok"]
    return found | ({"failed": failed[0]} if failed else {})


def lines(name: str, found: dict[str, Any]) -> list[str]:
    """One line for each entry and measure."""
    told = []
    for entry, measures in found.items():
        if "failed" in measures:
            told.append(f"{name} {entry}: {measures['failed']}")
        for measure, one in measures.items():
            if measure != "failed":
                mark = "  <--" if one["ratio"] > ALLOWED else ""
                told.append(
                    f"{name} {entry} {measure}: {one['before']:.4g} -> {one['now']:.4g}, ratio {one['ratio']:.2f} "
                    f"({one['least']:.2f}-{one['most']:.2f}){mark}"
                )
    return told
