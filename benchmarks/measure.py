"""How long, how much memory, how right? One entry on one problem, in a process of its own.

A module of `benchmarks.rivals` offers

- `SOLVES`: the kinds of problem it can take (see `benchmarks.problems`);
- `PACKAGES`: what it imports, and `R_PACKAGES`: what its R program needs (both may be left out);
- `fit(problem) -> dict` of estimates, under the names that `problems` uses, next to any number worth recording
  (`passes`, `effective_samples`, …). A dict with `seconds` was timed by the rival's own clock (R without its start-up);
- `prepare(problem)`, where a first fit leaves something compiled: a function of no arguments that fits, again and
  again, and returns what `fit` does.

A run yields

- `cold`: from the start of the process to the first answer, imports and reading the data included;
- `first`: the first fit alone, compilation included; `warm`: the median of later fits in the same process;
- `warm_per_effective`: warm seconds for one effective sample, where the entry reports `effective_samples`;
- `peak_mb`: the highest resident memory of the process, or of the R it ran; `beyond_data_mb`: that less the data's
  size; `extra_mb`: that less what was resident after imports and reading the data.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import re
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
# No warm fit starts after this long: slow rivals get one or two, fast ones all.
WARM_SECONDS = 5.0


def absent(rival: Any) -> str | None:
    """Why this rival cannot run here, or None."""
    for package in getattr(rival, "PACKAGES", ()):
        if importlib.util.find_spec(package) is None:
            return f"Python package {package} is not installed"
    if getattr(rival, "R_PACKAGES", ()):
        return _absent_in_r(tuple(rival.R_PACKAGES))
    return None


@cache
def _absent_in_r(packages: tuple[str, ...]) -> str | None:
    if shutil.which("Rscript") is None:
        return "Rscript is not on the path"
    for package in packages:
        code = f"quit(status = !requireNamespace('{package}', quietly = TRUE))"
        if subprocess.run(["Rscript", "-e", code], capture_output=True).returncode:
            return f"R package {package} is not installed"
    return None


@cache
def r_versions(packages: tuple[str, ...]) -> dict[str, str]:
    """Of R and these packages; nothing when R or one of them is absent."""
    if not packages or _absent_in_r(packages):
        return {}
    code = "".join(f"cat('{name}', format(packageVersion('{name}')), '\\n');" for name in packages)
    code += "cat('R', format(getRversion()))"
    lines = subprocess.run(["Rscript", "-e", code], capture_output=True, text=True).stdout.splitlines()
    return dict(line.split() for line in lines)


def without_paths(message: str) -> str:
    """Results are published, so folder names of the machine stay out of them."""
    return re.sub(r"(?<![\w:/])(?:/[\w.+\-@~]+)+/", "…/", message)[-500:]


def run_entry(
    entry: str,
    problem: Any,
    data_file: Path | None,
    warm_fits: int,
    timeout: float,
    compiled: Path,
    package: str = "benchmarks.rivals",
    source: Path | None = None,
) -> dict[str, Any]:
    """One entry in a new process; {"status": "ok" | "absent" | "failed", …}, whatever happens there.

    With `source`, the folder that the package is imported from in place of the installed one.
    """
    try:
        rival = importlib.import_module(f"{package}.{entry}")
        reason = absent(rival)
    except Exception as error:
        return {"status": "failed", "why": without_paths(f"{type(error).__name__}: {error}")}
    if reason:
        return {"status": "absent", "why": reason}
    if problem is not None and problem.kind not in rival.SOLVES:
        return {"status": "absent", "why": f"does not solve {problem.kind}"}
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "answer.json"
        spec = {
            "module": f"{package}.{entry}",
            "warm_fits": warm_fits,
            "answer": str(answer),
            "path": [*([] if source is None else [str(source)]), *sys.path],
        }
        if problem is not None:
            spec |= {"name": problem.name, "kind": problem.kind, "data": str(data_file)}
        environment = os.environ | {"XDG_CACHE_HOME": str(compiled), "NUMBA_CACHE_DIR": str(compiled / "numba")}
        spec["started"] = time.time()
        child = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.child", json.dumps(spec)],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            _, complaint = child.communicate(timeout=timeout)
        except BaseException as error:
            os.killpg(child.pid, signal.SIGKILL)  # its own session: takes along the R it may have started
            child.communicate()
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
            return {"status": "failed", "why": f"no answer after {timeout:g} s"}
        if not answer.exists():
            last = (complaint.strip().splitlines() or ["no message"])[-1]
            return {"status": "failed", "why": without_paths(f"process ended with {child.returncode}: {last}")}
        return json.loads(answer.read_text())


def measure(spec: dict[str, Any]) -> dict[str, Any]:
    """What the child does: load, fit once from cold, fit again while warm. An exception becomes status "failed"."""
    try:
        return {"status": "ok", **_measure(spec)}
    except Exception as error:
        return {"status": "failed", "why": without_paths(f"{type(error).__name__}: {error}")}


def _measure(spec: dict[str, Any]) -> dict[str, Any]:
    rival = importlib.import_module(spec["module"])
    problem = _load(spec) if "data" in spec else None
    for package in getattr(rival, "PACKAGES", ()):
        importlib.import_module(package)
    resident = _memory("VmRSS")

    begun = time.perf_counter()
    fit = rival.prepare(problem) if hasattr(rival, "prepare") else lambda: rival.fit(problem)
    estimates = fit()
    first = time.perf_counter() - begun
    found = {"cold": time.time() - spec["started"], "first": first}

    # Peak memory is that of one fit: a later one may hold its own answer and the earlier one's at once.
    peak = max(_memory("VmHWM"), _peak_of(resource.RUSAGE_CHILDREN))
    found |= {"peak_mb": peak, "extra_mb": peak - resident}
    if problem is not None:
        found["beyond_data_mb"] = peak - problem.megabytes

    seconds, last = [], time.perf_counter() + WARM_SECONDS
    while len(seconds) < spec["warm_fits"] and time.perf_counter() < last:
        begun = time.perf_counter()
        estimates = fit()
        elapsed = time.perf_counter() - begun
        seconds.append(estimates.get("seconds", elapsed))
    if seconds:
        found["warm"] = statistics.median(seconds)
        if "effective_samples" in estimates:
            found["warm_per_effective"] = found["warm"] / float(estimates["effective_samples"])
    return found | {"estimates": {name: _plain(value) for name, value in estimates.items() if name != "seconds"}}


def _load(spec: dict[str, Any]) -> Any:
    import numpy as np

    from benchmarks.problems import Problem

    with np.load(spec["data"]) as arrays:
        return Problem(spec["name"], spec["kind"], {name: arrays[name] for name in arrays.files})


def _memory(field: str) -> float:
    """Resident memory in MB, now (VmRSS) or at its highest (VmHWM).

    On Linux `ru_maxrss` starts at the parent's peak, because exec does not reset it; /proc counts this program alone.
    """
    status = Path("/proc/self/status")
    if status.exists():
        return float(re.search(rf"{field}:\s+(\d+) kB", status.read_text())[1]) * 1024 / 1e6
    return _peak_of(resource.RUSAGE_SELF)


def _peak_of(who: int) -> float:
    return resource.getrusage(who).ru_maxrss * (1 if sys.platform == "darwin" else 1024) / 1e6


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, str | bool | int):
        return value
    if hasattr(value, "tolist"):
        value = value.tolist()
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else float(value)
