"""What does a kill leave behind? A study that is killed many times must end as if nothing had happened.

    python benchmarks/kills.py --kills 20

It is begun again each time, and killed after a while that is a little longer. Told are the processes that are left 5 seconds
after a kill, and whether the final numbers are those of a run without kills. Results: ``benchmarks/results/kills.json``; kills of a fit with a checkpoint are in ``scale.py``.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
GRACE = 5.0


def children_of(group: int) -> list[int]:
    """Processes of a session that are alive."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
            except OSError:
                continue
            if int(fields[3]) == group and fields[0] not in "ZX":
                found.append(int(entry.name))
    return found


def kill_after(command: list[str], seconds: float) -> tuple[bool, int]:
    """Whether the command was done before it was killed, and how many of its processes outlived it by 5 s."""
    process = subprocess.Popen(command, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + seconds
    while process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    if process.poll() is not None:
        return True, 0
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    until = time.monotonic() + GRACE
    while (left := children_of(process.pid)) and time.monotonic() < until:
        time.sleep(0.1)
    for one in left:
        os.kill(one, signal.SIGKILL)
    return False, len(left)


def killed_often(command: list[str], kills: int, first: float, step: float) -> dict[str, object]:
    """Kill a command so often, then let it end."""
    orphans, done = [], 0
    for number in range(kills):
        ended, left = kill_after(command, first + step * number)
        if ended:
            break
        done += 1
        orphans.append(left)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return {"kills": done, "processes left after 5 s": sum(orphans)}


STUDY = ["-m", "robustly.cli", "study", "linear", "--jobs", "2", "--reps"]


def study(kills: int, reps: int, folder: Path) -> dict[str, object]:
    sys.path.insert(0, str(HERE.parent / "src"))
    from robustly.study.runs import read_lines

    straight, torn = folder / "straight", folder / "torn"
    subprocess.run([sys.executable, *STUDY, str(reps), "--out", str(straight)], check=True, stdout=subprocess.DEVNULL)
    told = killed_often([sys.executable, *STUDY, str(reps), "--out", str(torn)], kills, 4.0, 0.7)
    one, other = (read_lines(at, "linear").drop(columns="seconds") for at in (straight, torn))
    return {**told, "identical": bool(one.equals(other)), "lines": len(one)}


def main() -> None:
    reader = argparse.ArgumentParser(description=__doc__)
    reader.add_argument("--kills", type=int, default=20)
    reader.add_argument("--reps", type=int, default=25)
    asked = reader.parse_args()
    found = {}
    with tempfile.TemporaryDirectory() as name:
        found["study"] = study(asked.kills, asked.reps, Path(name))
        print(found, flush=True)
    (HERE / "results" / "kills.json").write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
