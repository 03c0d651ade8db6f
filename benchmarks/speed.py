"""Where is the package faster than other programs, and where slower? ``docs/speed.md``, made from what `run.py` has kept.

``python benchmarks/speed.py`` writes the page; `run.py` does so after every full run.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS, PAGE = ROOT / "benchmarks" / "results", ROOT / "docs" / "speed.md"

OPENING = """# Speed

How long does a robust fit take beside other programs? Every line is measured by `benchmarks/run.py`: each fit in a process of its
own, programs in turns, and the ratio of neighbouring pairs, so that what disturbs the machine disturbs both. Numbers below 1 are
times in which ours is the faster. *First answer* runs from the start of the process, with imports and compilation; *once compiled*
is a later fit in the same process.

A plain regression elsewhere leaves the rows' own values out, so it has less to do; it is here because it is what people compare with.
"""


GROWTH = """## How the time grows

CPU seconds of a fit of counts once everything is compiled, matrix products on one thread (`benchmarks/growth.py`): robust here, plain in
glum, statsmodels and scikit-learn, mixed models with a value by row in glmmTMB and lme4. `loc` is the log of the rate: at 7, counts
are in the thousands and hardly two rows are alike. Where a program has no number, it was not given that size.

![CPU seconds over rows, columns and sizes of counts](growth.svg)"""


def times(result: dict[str, Any]) -> list[list[str]]:
    """Ours as a multiple of each rival's time."""
    rows = []
    for name, entry in result["entries"].items():
        if name == result["ours"] or name.startswith(("robustly", "import_robustly")) or entry["status"] != "ok":
            continue
        cells = []
        for measure in ("cold_over_ours", "warm_over_ours"):
            found = entry.get(measure)
            cells.append(f"{1.0 / found['median']:.2g}" if found and found["median"] else "")
        size = ", ".join(f"{key} = {value:,}" for key, value in result["sizes"].items())
        rows.append([result["title"], size, name.replace("_", " "), *cells])
    return rows


def page(results: list[dict[str, Any]]) -> str:
    """The whole page."""
    from benchmarks import growth

    rows = [row for result in results for row in times(result)]
    faster = [row for row in rows if row[4] and float(row[4]) > 1.0]
    head = ["what is fitted", "rows and columns", "beside", "first answer", "once compiled"]
    lines = [
        OPENING,
        "## Ours as a multiple of theirs",
        "",
        *_listed(head, rows),
        "",
        "## Where another program is faster",
        "",
    ]
    if faster:
        lines += [f"- {row[0]} ({row[1]}): {row[2]} takes {1.0 / float(row[4]):.2g} of our time." for row in faster]
    else:
        lines.append("Nowhere in this table, once compiled.")
    lines += [
        "",
        "Many columns (hundreds and more) with few rows are faster elsewhere too: searches here use second derivatives. The first answer",
        "of a process costs the import of JAX and the compilation of what is fitted; programs are kept for the next process.",
    ]
    if growth.RESULT.exists():
        lines += ["", GROWTH, *growth.lines(json.loads(growth.RESULT.read_text(encoding="utf-8")))]
    return "\n".join(lines) + "\n"


def _listed(head: list[str], rows: list[list[str]]) -> list[str]:
    return [f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows)]


def write_speed_page(results: list[dict[str, Any]]) -> None:
    PAGE.write_text(page(results), encoding="utf-8")


def kept(names: list[str], folder: Path = RESULTS) -> list[dict[str, Any]]:
    """The results in a folder, of comparisons that are still declared."""
    files = [folder / f"{name}.json" for name in names]
    return [json.loads(file.read_text(encoding="utf-8")) for file in files if file.exists()]


if __name__ == "__main__":
    sys.path[:] = [str(ROOT), *(folder for folder in sys.path if Path(folder).resolve() != ROOT / "benchmarks")]
    from benchmarks.declare import discover

    write_speed_page(kept(list(discover())))
