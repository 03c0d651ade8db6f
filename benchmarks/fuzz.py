"""Does anything end without an answer or a named error? Many odd inputs to everything public, from numbers 0 on.

    python benchmarks/fuzz.py FOLDER --count 20000
    python benchmarks/fuzz.py OTHER --first 40000 --count 3000

A number is one input (``tests/faults/fuzz_cases.py``, where the same inputs are run one by one). Inputs are run in pieces, each by
a process of its own, and what came of them is kept in FOLDER, so that a run which is stopped goes on. ``--again`` runs those
once more that did not end well, after a mend. The report of numbers from 0 on is written to ``benchmarks/results/fuzz.md``, that of
others to their folder.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import select
import subprocess
import sys
import time
from collections import Counter, defaultdict
from pathlib import Path

HERE = Path(__file__).resolve().parent
CASES = HERE.parent / "tests" / "faults"
PIECE = 5000
SILENT = 900.0
MOST_MEMORY = 10 << 30
WELL = ("answered", "refused")


def run_numbers(numbers: list[int]) -> None:
    """In a process of its own: a line for each input."""
    # What would take all memory ends with an error instead, which is told.
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
    sys.path.insert(0, str(CASES))
    from fuzz_cases import case, end_of

    for number in numbers:
        name, told, run = case(number)
        began = time.process_time()
        ended = end_of(run)
        line = {"number": number, "target": name, "end": ended, "seconds": round(time.process_time() - began, 2)}
        if ended not in WELL:
            line["given"] = told[:300]
        sys.__stdout__.write(json.dumps(line) + "\n")
        sys.__stdout__.flush()


def piece(numbers: list[int], folder: Path) -> list[dict]:
    """What came of some inputs; one that ends its process or is silent for minutes is told, and the others are gone on with."""
    found: list[dict] = []
    path = folder / f"piece-{time.time():.0f}.jsonl"

    def keep(lines: list[dict]) -> None:
        found.extend(lines)
        with path.open("a") as stream:
            stream.writelines(json.dumps(one) + "\n" for one in lines)

    settings = {
        "JAX_COMPILATION_CACHE_DIR": str(folder / "compiled"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.1",
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
        "OMP_NUM_THREADS": "1",
        "MPLBACKEND": "agg",
    }
    while len(found) < len(numbers):
        left = numbers[len(found) :]
        command = [sys.executable, __file__, str(folder), "--numbers", ",".join(map(str, left))]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env={**os.environ, **settings}
        ) as child:
            assert child.stdout is not None
            held = b""
            while select.select([child.stdout], [], [], SILENT)[0]:
                came = os.read(child.stdout.fileno(), 1 << 16)
                if not came:
                    break
                *lines, held = (held + came).split(b"\n")
                keep([json.loads(line) for line in lines if line.startswith(b'{"number"')])
            else:
                child.kill()
        if len(found) < len(numbers):
            stuck = {"number": numbers[len(found)], "target": "?", "end": f"its process ended ({child.returncode})"}
            keep([{**stuck, "seconds": 0.0}])
    return found


def kept_in(folder: Path) -> dict[int, dict]:
    """Lines by number."""
    known: dict[int, dict] = {}
    for path in sorted(folder.glob("piece-*.jsonl")):
        for line in path.read_text().splitlines():
            one = json.loads(line)
            before = known.get(one["number"], one)
            mended = one["end"] in WELL and (before["end"] not in WELL or before.get("mended", False))
            known[one["number"]] = {**one, "mended": mended}
    return known


def report(known: dict[int, dict]) -> str:
    ends: dict[str, Counter[str]] = defaultdict(Counter)
    for one in known.values():
        ends[one["target"]][one["end"] if one["end"] in WELL else "neither"] += 1
    wrong = [one for one in known.values() if one["end"] not in WELL]
    slowest = max(known.values(), key=lambda one: one["seconds"])
    lines = [
        "# Odd inputs to everything public",
        "",
        f"`python benchmarks/fuzz.py FOLDER --first {min(known)} --count {len(known)}`: inputs {min(known)} to {max(known)}, {len(wrong)} of which ended neither with",
        "finite answers nor with a named error. The longest took "
        f"{slowest['seconds']:.0f} s of work ({slowest['target']}, number {slowest['number']}).",
        f"{sum(one.get('mended', False) for one in known.values())} of them did not end well when they were first run, and were run again after a mend.",
        "A command is answered when it ends with one of its exit codes and, where that is 2, a line that says why.",
        "",
        "| target | inputs | answered | refused by name | neither |",
        "|---|---|---|---|---|",
    ]
    for target, count in sorted(ends.items()):
        lines.append(
            f"| {target} | {sum(count.values())} | {count['answered']} | {count['refused']} | {count['neither']} |"
        )
    whole = Counter(one["end"] if one["end"] in WELL else "neither" for one in known.values())
    lines.append(f"| all | {len(known)} | {whole['answered']} | {whole['refused']} | {whole['neither']} |")
    lines += ["", *(f"- {one['number']}, {one['target']}: {one['end']}" for one in wrong)]
    return "\n".join(lines).rstrip() + "\n"


def main() -> None:
    reader = argparse.ArgumentParser(description=__doc__)
    reader.add_argument("folder", type=Path)
    reader.add_argument("--count", type=int, default=20_000)
    reader.add_argument("--first", type=int, default=0)
    reader.add_argument("--again", action="store_true")
    reader.add_argument("--numbers", help=argparse.SUPPRESS)
    asked = reader.parse_args()
    if asked.numbers:
        run_numbers([int(one) for one in asked.numbers.split(",")])
        return
    asked.folder.mkdir(parents=True, exist_ok=True)
    known = kept_in(asked.folder)
    numbers = range(asked.first, asked.first + asked.count)
    written = (asked.folder if asked.first else HERE / "results") / "fuzz.md"
    missing = [n for n in numbers if n not in known or (asked.again and known[n]["end"] not in WELL)]
    for start in range(0, len(missing), PIECE):
        found = piece(missing[start : start + PIECE], asked.folder)
        known = kept_in(asked.folder)
        print(f"{len(known)} of {asked.count}", flush=True)
        for one in found:
            if one["end"] not in WELL:
                print(json.dumps(one), flush=True)
        written.write_text(report(known))
    written.write_text(report(known))


if __name__ == "__main__":
    main()
