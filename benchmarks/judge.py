"""What do the repetitions say? Errors of estimates, ratios over interleaved pairs and their spread, targets met."""

from __future__ import annotations

import math
import statistics
from typing import Any

from benchmarks.declare import Comparison, Target

# A ratio to a rival may grow by so much from one machine's day to the next.
REGRESSION = 1.3

Runs = dict[str, list[dict[str, Any]]]  # by entry, one record a repetition, in the order they ran


def errors(estimates: dict[str, Any], known: dict[str, Any]) -> dict[str, float]:
    """Largest absolute difference from each known value; NaN where shapes do not fit, so that it shows."""
    found = {}
    for name in known.keys() & estimates.keys():
        ours, theirs = _flat(estimates[name]), _flat(known[name])
        fits = len(ours) == len(theirs)
        found[name] = max(abs(a - b) for a, b in zip(ours, theirs, strict=True)) if fits else math.nan
    return dict(sorted(found.items()))


def _flat(value: Any) -> list[float]:
    value = value.tolist() if hasattr(value, "tolist") else value
    return [number for item in value for number in _flat(item)] if isinstance(value, list | tuple) else [float(value)]


def value_of(run: dict[str, Any], measure: str) -> float | None:
    """A run's measure, or a number that its entry reported; None when the run failed or has no such thing."""
    if run.get("status") != "ok":
        return None
    value = run.get(measure, run.get("estimates", {}).get(measure))
    return None if value is None else float(value)


def spread(values: list[float]) -> dict[str, float] | None:
    if not values:
        return None
    return {"median": statistics.median(values), "min": min(values), "max": max(values), "n": len(values)}


def ratios(numerators: list[dict[str, Any]], denominators: list[dict[str, Any]], measure: str) -> list[float]:
    """Pair by pair, in the order the two were run side by side; pairs with a missing half are left out."""
    pairs = [(value_of(a, measure), value_of(b, measure)) for a, b in zip(numerators, denominators)]
    return [a / b for a, b in pairs if a is not None and b]


def judge(target: Target, comparison: Comparison, runs: Runs) -> dict[str, Any]:
    """The target, what was found, and whether it was met; `met` is None, with the reason, when nothing was found."""
    ours = runs[comparison.ours]
    if target.versus is None:
        values = [value for run in ours if (value := value_of(run, target.measure)) is not None]
    elif target.at_least is not None:
        values = ratios(runs[target.versus], ours, target.measure)
    else:
        values = ratios(ours, runs[target.versus], target.measure)
    found = spread(values)
    verdict: dict[str, Any] = {"target": target.text, "found": found, "met": None}
    if found is None:
        names = [comparison.ours, *([target.versus] if target.versus else [])]
        reasons = [f"{name} {run['status']}: {run['why']}" for name in names for run in runs[name][:1] if "why" in run]
        verdict["why"] = "; ".join(reasons) or f"no entry reported {target.measure}"
    elif target.at_most is not None:
        verdict["met"] = found["median"] <= target.at_most
    else:
        verdict["met"] = found["median"] >= target.at_least
    return verdict


def describe(comparison: Comparison, runs: Runs, truth: dict[str, Any], reference: dict[str, Any]) -> dict[str, Any]:
    """Each entry in one record: status, medians, ratios to ours, and errors of its last estimates."""
    entries = {}
    for name in comparison.entries:
        good = [run for run in runs[name] if run["status"] == "ok"]
        bad = next((run for run in runs[name] if run["status"] != "ok"), None)
        record: dict[str, Any] = {"status": "ok", "repetitions": len(good)} if bad is None else dict(bad)
        if good:
            for measure in ("cold", "first", "warm", "warm_per_effective", "peak_mb", "beyond_data_mb", "extra_mb"):
                record[measure] = spread([v for run in good if (v := value_of(run, measure)) is not None])
            record["estimates"] = good[-1]["estimates"]
            record["error_to_truth"] = errors(record["estimates"], truth)
            record["error_to_reference"] = errors(record["estimates"], reference)
            if name != comparison.ours:
                for measure in ("cold", "warm"):
                    record[f"{measure}_over_ours"] = spread(ratios(runs[name], runs[comparison.ours], measure))
        entries[name] = record
    return entries


def regressions(before: list[dict[str, Any]], now: list[dict[str, Any]]) -> list[str]:
    """What became slower beside its rivals since another run: our time as a multiple of theirs, then and now."""
    earlier, found = {result["name"]: result for result in before}, []
    for result in now:
        for name, entry in result["entries"].items():
            then = earlier.get(result["name"], {}).get("entries", {}).get(name, {})
            for measure in ("cold_over_ours", "warm_over_ours"):
                old, new = then.get(measure), entry.get(measure)
                if old and new and old["median"] > REGRESSION * new["median"]:
                    was, became = 1.0 / old["median"], 1.0 / new["median"]
                    kind = measure.partition("_")[0]
                    found.append(f"{result['name']}: {kind} {became:.3g} × {name}, and {was:.3g} × before")
    return found
