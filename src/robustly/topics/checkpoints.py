"""How does a long fit survive being stopped? Its run is written to a file now and then, whole or not at all.

Everything that the next pass depends on is in the file: topics, sums, counters, and what is remembered of each document.
Seeds of draws follow from the plan and the number of the pass, so a run taken up again ends in the same topics.
"""

from __future__ import annotations

import hashlib
import os
import time
from dataclasses import asdict, fields
from pathlib import Path

import numpy as np

from robustly.errors import PersistError
from robustly.result import persist
from robustly.topics.fitting import TopicsRun
from robustly.topics.shared import TOPIC_ARRAYS, DrawnSums, Topics

Place = str | os.PathLike[str] | None
KIND = "topics checkpoint"
# Seconds between two writes; a file of the state is some tens of bytes a token.
BETWEEN = 60.0
_written: dict[str, float] = {}


def keep(path: Place, run: TopicsRun) -> None:
    """Write the run, if `path` is not None and the last write is a while ago."""
    if path is None or run.done:
        return
    name = os.fspath(path)
    if time.monotonic() - _written.setdefault(name, -np.inf) < BETWEEN:
        return
    meta = {
        "print": fingerprint(run), "stage": run.stage, "made": run.made, "outcome": run.outcome, "history": run.history,
        "drawn_history": run.drawn_history, "validation": run.validation, "best_value": run.best_value,
        "since_best": run.since_best, "strength": run.topics.strength, "smoothing": run.smoothing,
        "best_strength": None if run.best is None else run.best.strength,
    }  # fmt: skip
    arrays = run.topics.arrays() | run.documents.remembered()
    if run.best is not None:
        arrays |= {f"best_{name}": array for name, array in run.best.arrays().items()}
    if run.base is not None:
        arrays["base"] = run.base
    if run.sums is not None:
        arrays |= {"sum_tables": run.sums.table_counts, "sum_alpha": run.sums.alpha, "sum_total": run.sums.log_total}
        meta |= {"log_strength": run.sums.log_strength, "number": run.sums.number}
    persist.write(path, KIND, meta, arrays)
    _written[name] = time.monotonic()


def restore(path: Place, run: TopicsRun) -> None:
    """Take up the run that `path` holds, if there is one; one of other documents or settings is refused."""
    if path is None or not Path(path).exists():
        return
    kind, meta, arrays = persist.read(path)
    if kind != KIND:
        raise PersistError(
            f'{os.fspath(path)} holds a "{kind}", not a checkpoint of topics. Choose another checkpoint.'
        )
    if meta["print"] != fingerprint(run):
        raise PersistError(
            f"the checkpoint {os.fspath(path)} is of other documents, settings or seeds. Delete it to begin afresh, or "
            "fit with what it was begun with (random_state has to be a number)."
        )
    bursty = run.plan.bursty
    run.topics = Topics(bursty=bursty, strength=meta["strength"], **{name: arrays[name] for name in TOPIC_ARRAYS})
    if meta["best_strength"] is not None:
        best = {name: arrays[f"best_{name}"] for name in TOPIC_ARRAYS}
        run.best = Topics(bursty=bursty, strength=meta["best_strength"], **best)
    for name in ("made", "outcome", "history", "drawn_history", "validation", "best_value", "since_best", "smoothing"):
        setattr(run, name, meta[name])
    run.base = arrays.get("base")
    if meta["stage"] == "drawn":
        run.begin_draws()
        run.sums = DrawnSums(
            arrays["sum_tables"], arrays["sum_alpha"], arrays["sum_total"], meta["log_strength"], meta["number"]
        )
    run.documents.recall(arrays)


def remove(path: Place) -> None:
    """Take the file away once the fit is done."""
    if path is not None:
        Path(path).unlink(missing_ok=True)
        _written.pop(os.fspath(path), None)


def fingerprint(run: TopicsRun) -> str:
    """A digest of the documents, the plan and the seeds."""
    digest = hashlib.sha256(run.seen.uses.tobytes() + str(run.seen.prints).encode())
    plan = {name: str(value) for name, value in asdict(run.plan).items()}
    digest.update(repr([(field.name, plan[field.name]) for field in fields(run.plan)]).encode())
    if run.seeds is not None:
        digest.update(run.seeds.tobytes())
    return digest.hexdigest()
