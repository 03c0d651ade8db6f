"""How does the time of a fit grow? CPU seconds over rows, columns and sizes of counts, ours beside plain and mixed models elsewhere.

    python benchmarks/growth.py                      # all curves
    python benchmarks/growth.py --curve rows --entries robustly_glm glum_glm

Counts with a rate of their own by row (`problems.poisson_lognormal`). Every cell is a process of its own in which matrix products take one
thread: it fits once, to have everything loaded and compiled, and measures later fits; R's programs are timed by R's own clock. A
program whose fit took longer than ``--longest`` seconds is not given the next larger size. Results are kept cell by cell in
``benchmarks/results/growth.json``; ``docs/speed.md`` and its picture are made from them. Topics have a curve of their own
(``topics.py --stage linear``).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
RESULT, PICTURE = HERE / "results" / "growth.json", ROOT / "docs" / "growth.svg"
ENTRIES = ("robustly_glm", "glum_glm", "statsmodels_glm", "sklearn_glm", "glmmtmb", "lme4_glmer")
# What grows, beside what stays; `loc` is the log of the rate, so that counts become large and equal ones rare.
CURVES: dict[str, tuple[str, dict[str, Any], tuple[Any, ...]]] = {
    "rows": ("n", {"d": 5}, (1_000, 10_000, 100_000, 1_000_000, 10_000_000)),
    "columns": ("d", {"n": 20_000}, (2, 10, 50, 200, 1_000)),
    "counts": ("loc", {"n": 100_000, "d": 5}, (-1.0, 1.0, 3.0, 5.0, 7.0)),
}
# Three fits, or as many as these seconds allow after the first.
FITS, SECONDS = 3, 10.0


def cell(entry: str, sizes: dict[str, Any]) -> float:
    """The median CPU seconds of fits after the first."""
    import importlib

    from benchmarks import problems

    rival, problem = importlib.import_module(f"benchmarks.rivals.{entry}"), problems.make("poisson_lognormal", **sizes)
    fit = rival.prepare(problem) if hasattr(rival, "prepare") else lambda: rival.fit(problem)
    fit()
    found, last = [], time.process_time() + SECONDS
    while not found or (len(found) < FITS and time.process_time() < last):
        begun = time.process_time()
        told = fit().get("seconds")
        found.append(time.process_time() - begun if told is None else told)
    return statistics.median(found)


def measured(entry: str, sizes: dict[str, Any], timeout: float) -> float | str:
    """Its seconds, or why there are none."""
    one = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    around = os.environ | one | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, __file__, "--cell", entry, json.dumps(sizes)]
    try:
        done = subprocess.run(command, env=around, capture_output=True, text=True, timeout=timeout)
    except subprocess.TimeoutExpired:
        return f"no answer after {timeout:g} s"
    if done.returncode:
        return (done.stderr.strip().splitlines() or ["no message"])[-1][-200:]
    return float(done.stdout.splitlines()[-1])


def lines(found: dict[str, Any]) -> list[str]:
    """Tables for the page: CPU seconds, one line for each size."""
    told = []
    for name, (grows, beside, sizes) in CURVES.items():
        cells = found.get(name, {})
        entries = [entry for entry in ENTRIES if entry in cells]
        if not entries:
            continue
        stays = ", ".join(f"{key} = {value:,}" for key, value in beside.items())
        told += ["", f"### Over {name} ({stays})", ""]
        told += [
            f"| {grows} | {' | '.join(entry.replace('_', ' ') for entry in entries)} |",
            "| --- " * (len(entries) + 1) + "|",
        ]
        for size in sizes:
            values = [cells[entry].get(str(size)) for entry in entries]
            told.append(f"| {size:,} | {' | '.join(f'{v:.3g}' if isinstance(v, float) else '' for v in values)} |")
    return told


def draw(found: dict[str, Any]) -> None:
    """The curves side by side, on scales of powers."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "growth"
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(1, len(CURVES), figsize=(11, 3.6), sharey=True, layout="constrained")
    for panel, (name, (grows, beside, _)) in zip(panels, CURVES.items()):
        for number, entry in enumerate(ENTRIES):
            cells = {float(size): v for size, v in found.get(name, {}).get(entry, {}).items() if isinstance(v, float)}
            if cells:
                width = 2.5 if entry == "robustly_glm" else 1.2
                panel.plot(
                    *zip(*sorted(cells.items())),
                    "o-",
                    ms=3,
                    lw=width,
                    color=f"C{number}",
                    label=entry.replace("_", " "),
                )
        panel.set(yscale="log", xscale="linear" if grows == "loc" else "log")
        panel.set_xlabel("log of the mean rate" if grows == "loc" else name)
        panel.set_title(", ".join(f"{key} = {value:,}" for key, value in beside.items()), fontsize=9)
        panel.grid(alpha=0.3)
    panels[0].set_ylabel("CPU seconds, once compiled")
    panels[0].legend(fontsize=7)
    figure.savefig(PICTURE, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--curve", nargs="*", choices=CURVES, default=list(CURVES))
    parser.add_argument("--entries", nargs="*", choices=ENTRIES, default=list(ENTRIES))
    parser.add_argument(
        "--longest", type=float, default=30.0, help="seconds of a fit after which no larger size is tried"
    )
    parser.add_argument("--again", action="store_true", help="measure cells anew that are known")
    parser.add_argument("--cell", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.cell:
        print(cell(options.cell[0], json.loads(options.cell[1])))
        return
    found = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    for name in options.curve:
        grows, beside, sizes = CURVES[name]
        stopped: set[str] = set()
        for size in sizes:
            for entry in options.entries:
                cells = found.setdefault(name, {}).setdefault(entry, {})
                if entry in stopped or (str(size) in cells and not options.again):
                    continue
                seconds = measured(entry, {**beside, grows: size}, 20.0 * options.longest)
                cells[str(size)] = seconds
                print(name, entry, size, seconds, flush=True)
                if isinstance(seconds, str) or seconds > options.longest:
                    stopped.add(entry)
                RESULT.write_text(json.dumps(found, indent=1) + "\n")
    draw(found)


if __name__ == "__main__":
    sys.path[:] = [str(ROOT), *(folder for folder in sys.path if Path(folder).resolve() != HERE)]
    main()
