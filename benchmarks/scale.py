"""What do rows outside memory cost? Time a row and resident memory, from Parquet and on a two-worker Dask cluster.

``python benchmarks/scale.py disk --rows 1e7`` makes a Parquet set (deleted after), fits it in memory and from disk, each in a
process of its own, and writes ``results/scale_disk.json``. ``… cluster --rows 5e6`` compares one process with two workers whose
rows only ever exist there. ``… kills`` kills 20 fits at random moments, starts each again and compares its answer.
``… topics --rows 4e5`` fits documents whose counts are larger than the memory that is allowed. Ratios are within one run.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

RESULTS = Path(__file__).parent / "results"
COLUMNS = 20
A_FILE = 1_000_000


def made_rows(count: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Columns, a response with Student-t errors, and counts."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(count, COLUMNS))
    predictor = X @ np.linspace(-0.2, 0.2, COLUMNS)
    return X, predictor + rng.standard_t(3, count), rng.poisson(np.exp(predictor + 0.5 * rng.normal(size=count)))


def write_rows(folder: Path, rows: int) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    for place, start in enumerate(range(0, rows, A_FILE)):
        X, y, count = made_rows(min(A_FILE, rows - start), place)
        columns = {f"x{j}": X[:, j] for j in range(COLUMNS)} | {"y": y, "count": count}
        pq.write_table(pa.table(columns), folder / f"{place:03d}.parquet", compression="none", row_group_size=1 << 17)


def resident() -> float:
    """The most memory this process had, in MB; that of the process which started it is not counted."""
    line = next(one for one in Path("/proc/self/status").read_text().splitlines() if one.startswith("VmHWM"))
    return float(line.split()[1]) / 1024.0


def child(what: str, model: str, folder: str, few: str) -> dict:
    """One fit, with its time, passes and memory; `few` are rows by which everything is loaded and compiled first."""
    import robustly as rb

    names = [f"x{j}" for j in range(COLUMNS)]
    estimator = rb.RobustLinearRegression() if model == "linear" else rb.RobustPoissonRegression()
    y = "y" if model == "linear" else "count"
    before = resident()
    if what == "memory":
        import pyarrow.parquet as pq

        table = pq.read_table(folder, columns=[*names, y])
        X = np.column_stack([table[name].to_numpy() for name in names])
        response = table[y].to_numpy()
        del table
        given = X, response
    else:
        given = rb.parquet(folder, columns=names), y
    # Imports and compiling are the same for both, and are not what a row costs.
    few = rb.parquet(few, columns=names), y
    estimator.fit(*(few if what == "parquet" else tuple(one.gathered() for one in (few[0], few[0].pick(y)))))
    began, before_fit = time.perf_counter(), time.process_time()
    fit = estimator.fit(*given).result_
    return {
        "seconds": time.perf_counter() - began,
        "CPU seconds": time.process_time() - before_fit,
        "CPU seconds with all before": time.process_time(),
        "passes": len(fit.history),
        "resident MB": resident(),
        "resident MB before": before,
        "coefficients": fit.coefficients.tolist(),
        "standard errors": np.asarray(fit.standard_errors).tolist(),
        "log likelihood": fit.log_likelihood,
    }


def run_child(*words: str) -> dict:
    command = [sys.executable, __file__, "child", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def disk(rows: int, models: list[str], beside_memory: bool) -> dict:
    folder, few = (Path(tempfile.mkdtemp(prefix="robustly-scale-")) for _ in range(2))
    found: dict = {"rows": rows, "columns": COLUMNS, "models": {}}
    try:
        write_rows(few, 300_000)
        need = 8.0 * rows * (COLUMNS + 2)
        if shutil.disk_usage(folder).free < 3 * need:
            raise SystemExit(f"{need / 1e9:.1f} GB of free disk are needed three times over.")
        write_rows(folder, rows)
        found["MB on disk"] = sum(one.stat().st_size for one in folder.iterdir()) / 1e6
        for model in models:
            if not beside_memory:
                found["models"][model] = {"parquet": run_child("parquet", model, str(folder), str(few))}
                continue
            ours, memory = (run_child(what, model, str(folder), str(few)) for what in ("parquet", "memory"))
            apart = {
                name: float(np.max(np.abs(np.subtract(ours.pop(name), memory.pop(name)))))
                for name in ("coefficients", "standard errors")
            }
            found["models"][model] = {
                "parquet": ours,
                "memory": memory,
                "throughput ratio": memory["seconds"] / ours["seconds"],
                "throughput ratio by CPU": memory["CPU seconds"] / ours["CPU seconds"],
                "largest difference": apart,
            }
    finally:
        shutil.rmtree(folder)
        shutil.rmtree(few)
    return found


def cluster(rows: int, partitions: int, turns_taken: int) -> dict:
    """Rows that are made on the workers and stay there; up to 5·10⁶ the same rows in this process, in turn with the cluster."""
    import dask
    import dask.array as da
    from dask.distributed import Client, LocalCluster, wait

    import robustly as rb

    each = rows // partitions
    rows = each * partitions
    options = {"processes": True, "threads_per_worker": 1, "dashboard_address": None, "memory_limit": None}

    def spent() -> float:
        """CPU seconds of all processes so far."""
        return time.process_time() + sum(client.run(time.process_time).values())

    def timed(X, y):
        began, before = time.perf_counter(), spent()
        fit = rb.RobustLinearRegression().fit(X, y).result_
        return {"seconds": time.perf_counter() - began, "CPU seconds": spent() - before}, fit

    with LocalCluster(n_workers=2, **options) as made, Client(made) as client:
        parts = [dask.delayed(made_rows)(each, place) for place in range(partitions)]
        X = da.concatenate([da.from_delayed(one[0], (each, COLUMNS), float) for one in parts])
        y = da.concatenate([da.from_delayed(one[1], (each,), float) for one in parts])
        X, y = client.persist([X, y])
        wait([X, y])
        first, ours = timed(X, y)
        found = {"rows": rows, "partitions": partitions, "dask, first fit": first, "client MB": resident()}
        if rows > 5_000_000:
            return found
        whole = [made_rows(each, place) for place in range(partitions)]
        here = np.concatenate([one[0] for one in whole]), np.concatenate([one[1] for one in whole])
        del whole
        timed(*here)
        turns = [(timed(X, y)[0], timed(*here)) for _ in range(turns_taken)]
    there, alone = [turn[0] for turn in turns], [turn[1][0] for turn in turns]
    least = lambda of, what: min(one[what] for one in of)
    return found | {
        "dask": there,
        "one process": alone,
        "overhead": least(there, "seconds") / least(alone, "seconds"),
        "overhead by CPU": least(there, "CPU seconds") / least(alone, "CPU seconds"),
        "largest difference": float(np.abs(ours.estimates - turns[0][1][1].estimates).max()),
    }


TOPICS, VOCABULARY = 10, 20_000


def write_documents(path: Path, documents: int, words: int) -> int:
    """Documents of some `words` words each in the lda-c format, about one of the topics each; how many pairs there are."""
    rng = np.random.default_rng(0)
    pairs, each = 0, VOCABULARY // TOPICS
    with path.open("w") as stream:
        for _ in range(0, documents, 1000):
            # Words of a topic are used as words are: the second half as often as the first, and so on.
            drawn = np.minimum(rng.pareto(0.8, (1000, words)) * 40, each - 1).astype(int)
            drawn = np.sort(drawn + each * rng.integers(0, TOPICS, 1000)[:, None], axis=1)
            for one in drawn:
                ids, counts = np.unique(one, return_counts=True)
                pairs += len(ids)
                stream.write(f"{len(ids)} " + " ".join(map("{}:{}".format, ids.tolist(), counts.tolist())) + "\n")
    return pairs


def topics_child(path: str) -> dict:
    """Topics of documents on disk, with time and memory."""
    from robustly.topics import RobustLDA, on_disk

    before = resident()
    began = time.process_time()
    corpus = on_disk(path, n_words=VOCABULARY)
    read = time.process_time() - began
    model = RobustLDA(TOPICS, random_state=0, max_iter=3, tol=0.0, draws=2).fit(corpus)
    own = np.asarray(model.components_).reshape(TOPICS, TOPICS, -1).sum(axis=2)
    return {
        "CPU seconds of reading": read,
        "CPU seconds of fitting": time.process_time() - began - read,
        "resident MB": resident(),
        "resident MB before": before,
        "share of each topic's mass on its own block of words": np.sort(
            (own / own.sum(1, keepdims=True)).max(1)
        ).tolist(),
    }


def topics(documents: int, limit: float) -> dict:
    """Documents whose counts alone are larger than the memory that a fit may take beyond what the package takes when loaded."""
    folder = Path(tempfile.mkdtemp(prefix="robustly-topics-"))
    try:
        pairs = write_documents(folder / "documents.lda-c", documents, 180)
        found = {"documents": documents, "pairs": pairs, "limit MB": limit}
        found["MB of text"] = (folder / "documents.lda-c").stat().st_size / 2**20
        found["MB of counts in memory"] = pairs * (8 + 4) / 2**20
        found |= run_child("topics", str(folder / "documents.lda-c"))
    finally:
        shutil.rmtree(folder)
    if found["resident MB"] > limit:
        raise SystemExit(f"{found['resident MB']:.0f} MB were resident, and {limit:.0f} were allowed: {found}")
    return found


KILLED = """
import sys, json
import robustly as rb
fit = rb.glm("count ~ x0 + x1", rb.parquet(sys.argv[1]), checkpoint=sys.argv[2])
print(json.dumps([fit.estimates.tolist(), fit.log_likelihood]))
"""


def kills(count: int, rows: int) -> dict:
    """So many fits, each killed once at a random moment after its rows are opened, started again, and compared with one left alone."""
    folder = Path(tempfile.mkdtemp(prefix="robustly-kills-"))
    chance = random.Random(0)
    deaths: list[dict] = []
    apart = {"estimates": 0.0, "log likelihood, relative": 0.0}
    try:
        (folder / "rows").mkdir()
        write_rows(folder / "rows", rows)

        def start(place: str) -> subprocess.Popen:
            return subprocess.Popen(
                [sys.executable, "-c", KILLED, str(folder / "rows"), str(folder / place)], stdout=subprocess.PIPE
            )

        def kept(place: str) -> int:
            return len(list((folder / place).glob("pass-*.npz"))) if (folder / place).exists() else 0

        def moments() -> tuple[list, float, float]:
            """What a fit left alone finds, and when it writes its first pass and ends."""
            began, process, first = time.perf_counter(), start("known"), 0.0
            while process.poll() is None:
                if not first and kept("known"):
                    first = time.perf_counter() - began
                time.sleep(0.005)
            return json.loads(process.communicate()[0]), first, time.perf_counter() - began

        known, first, whole = moments()
        shutil.rmtree(folder / "known")
        known, first, whole = moments()  # with what the first one compiled
        in_all, tried = kept("known"), 0
        while len(deaths) < count:
            place, tried = f"fit-{tried}", tried + 1
            process = start(place)
            # Half of the moments are before the first pass is written, half between passes.
            early = len(deaths) % 2 == 0
            after = chance.uniform(0.0, first) if early else chance.uniform(first, whole)
            try:
                process.communicate(timeout=after)
                continue  # it ended before: no kill
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGKILL)
                process.communicate()
            passes = kept(place)
            found = json.loads(start(place).communicate()[0])
            away = float(np.max(np.abs(np.subtract(found[0], known[0]))))
            relative = abs(found[1] / known[1] - 1.0)
            same = found == known
            deaths.append({"seconds": after, "passes kept": passes, "of": in_all, "same answer": same})
            apart["estimates"] = max(apart["estimates"], away)
            apart["log likelihood, relative"] = max(apart["log likelihood, relative"], relative)
    finally:
        shutil.rmtree(folder)
    return {
        "fits killed": len(deaths),
        "same answers": sum(one["same answer"] for one in deaths),
        "fits that ended before their kill": tried - len(deaths),
        "largest difference": apart,
        "rows": rows,
        "seconds to the first pass and to the end": [first, whole],
        "kills": deaths,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["disk", "cluster", "kills", "topics", "child"])
    parser.add_argument("words", nargs="*")
    parser.add_argument("--rows", type=float, default=1e6)
    parser.add_argument("--models", nargs="+", default=["linear", "poisson"])
    parser.add_argument("--partitions", type=int, default=20)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--limit", type=float, default=700.0, help="MB that a fit of topics may have resident")
    parser.add_argument("--disk-only", action="store_true", help="no fit in memory to compare with")
    given = parser.parse_args()
    if given.what == "child":
        print(json.dumps(topics_child(*given.words[1:]) if given.words[0] == "topics" else child(*given.words)))
        return
    if given.what == "disk":
        found = disk(int(given.rows), given.models, not given.disk_only)
    elif given.what == "cluster":
        found = cluster(int(given.rows), given.partitions, given.turns)
    elif given.what == "topics":
        found = topics(int(given.rows), given.limit)
    else:
        found = kills(given.count, int(given.rows))
    found["load when done"] = os.getloadavg()[0]
    name = f"scale_{given.what}{'' if given.what in ('kills', 'topics') else f'_{int(given.rows):.0e}'.replace('+0', '')}.json"
    (RESULTS / name).write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
