"""Results for people: one Markdown page, target and found side by side, then every entry of every comparison."""

from __future__ import annotations

from typing import Any

VERDICT = {True: "met", False: "**not met**", None: "not computed"}


def page(results: list[dict[str, Any]]) -> str:
    """The page for a list of results as `run.py` writes them."""
    lines = [
        "# Results",
        "",
        "Written by `benchmarks/run.py`; what the words mean is in `benchmarks/README.md`. Ratios are medians over",
        "interleaved pairs of processes, with the least and the greatest in brackets. Seconds are there for the scale",
        "only: they belong to the machine.",
        "",
        *targets(results),
    ]
    for result in results:
        lines += ["", *entries(result)]
    return "\n".join(lines) + "\n"


def targets(results: list[dict[str, Any]]) -> list[str]:
    rows = []
    for result in results:
        for verdict in result["targets"]:
            found = _spread(verdict["found"]) if verdict["found"] else verdict.get("why", "")
            rows.append([result["name"], _sizes(result), verdict["target"], found, VERDICT[verdict["met"]]])
    return _table(["comparison", "size", "target", "found", ""], rows)


def entries(result: dict[str, Any]) -> list[str]:
    rows = []
    for name, entry in result["entries"].items():
        # A rival that failed in one repetition may still have times from others; both are shown.
        status = entry["status"] if "why" not in entry else f"{entry['status']}: {entry['why']}"
        rows.append(
            [
                name,
                status,
                "ours" if name == result["ours"] else _spread(entry.get("cold_over_ours")),
                "ours" if name == result["ours"] else _spread(entry.get("warm_over_ours")),
                _median(entry.get("cold")),
                _median(entry.get("warm")),
                _median(entry.get("peak_mb")),
                _errors(entry.get("error_to_truth")),
                _errors(entry.get("error_to_reference")),
            ]
        )
    head = [
        "entry",
        "status",
        "cold / ours",
        "warm / ours",
        "cold s",
        "warm s",
        "peak MB",
        "off the truth",
        "off the reference",
    ]
    versions = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
    title = f"## {result['title']}"
    about = f"`{result['name']}` on {_data(result)}; {result['cores']} cores; {versions}."
    return [title, "", about, "", *_table(head, rows)]


def _table(head: list[str], rows: list[list[str]]) -> list[str]:
    body = [[cell.replace("|", "\\|").replace("\n", " ") for cell in row] for row in rows]
    return [f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *body)]


def _data(result: dict[str, Any]) -> str:
    return f"`{result['problem']}` {_sizes(result)}".strip() if result["problem"] else "no data"


def _sizes(result: dict[str, Any]) -> str:
    return ", ".join(f"{name} = {value}" for name, value in result["sizes"].items())


def _number(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _spread(found: dict[str, float] | None) -> str:
    if not found:
        return ""
    return f"{_number(found['median'])} ({_number(found['min'])}–{_number(found['max'])})"


def _median(found: dict[str, float] | None) -> str:
    return _number(found["median"]) if found else ""


def _errors(found: dict[str, float] | None) -> str:
    return ", ".join(f"{name} {value:.1e}" for name, value in (found or {}).items())
