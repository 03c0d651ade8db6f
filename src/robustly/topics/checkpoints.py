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
from typing import Any

import numpy as np

from robustly.errors import PersistError
from robustly.result import persist
from robustly.topics.fitting import Run, Sums
from robustly.topics.passes import Topics

KIND = "topics checkpoint"
# Seconds between two writes; a file of the state is some tens of bytes a token.
BETWEEN = 60.0
ARRAYS = ("eta", "total", "alpha", "share", "floor")
_written: dict[str, float] = {}


def keep(path: Any, run: Run) -> None:
    """Write the run, if `path` is not None and the last write is a while ago."""
    if path is None or run.done:
        return
    name = os.fspath(path)
    if time.monotonic() - _written.setdefault(name, -np.inf) < BETWEEN:
        return
    documents = run.documents
    meta = {
        "print": fingerprint(run), "stage": run.stage, "made": run.made, "outcome": run.outcome, "history": run.history,
        "drawn_history": run.drawn_history, "validation": run.validation, "best_value": run.best_value,
        "since_best": run.since_best, "strength": run.topics.strength, "smoothing": run.smoothing,
        "best_strength": None if run.best is None else run.best.strength, "warm": documents.warm,
    }  # fmt: skip
    arrays = {name: getattr(run.topics, name) for name in ARRAYS} | documents.remembered()
    if run.best is not None:
        arrays |= {f"best_{name}": getattr(run.best, name) for name in ARRAYS}
    if run.base is not None:
        arrays["base"] = run.base
    if run.sums is not None:
        arrays |= {"sum_tables": run.sums.table_counts, "sum_alpha": run.sums.alpha, "sum_total": run.sums.log_total}
        meta |= {"log_strength": run.sums.log_strength, "number": run.sums.number}
    persist.write(path, KIND, meta, arrays)
    _written[name] = time.monotonic()


def restore(path: Any, run: Run) -> None:
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
    run.topics = Topics(bursty=bursty, strength=meta["strength"], **{name: arrays[name] for name in ARRAYS})
    if meta["best_strength"] is not None:
        best = {name: arrays[f"best_{name}"] for name in ARRAYS}
        run.best = Topics(bursty=bursty, strength=meta["best_strength"], **best)
    for name in ("made", "outcome", "history", "drawn_history", "validation", "best_value", "since_best", "smoothing"):
        setattr(run, name, meta[name])
    run.base = arrays.get("base")
    if meta["stage"] == "drawn":
        run.begin_draws()
        run.sums = Sums(
            arrays["sum_tables"], arrays["sum_alpha"], arrays["sum_total"], meta["log_strength"], meta["number"]
        )
    run.documents.recall(arrays, meta["warm"])


def remove(path: Any) -> None:
    """Take the file away once the fit is done."""
    if path is not None:
        Path(path).unlink(missing_ok=True)
        _written.pop(os.fspath(path), None)


def fingerprint(run: Run) -> str:
    """A digest of the documents, the plan and the seeds."""
    digest = hashlib.sha256()
    for part in (run.counts.indptr, run.counts.indices, run.counts.data):
        digest.update(np.ascontiguousarray(part).tobytes())
    plan = {name: str(value) for name, value in asdict(run.plan).items()}
    digest.update(repr([(field.name, plan[field.name]) for field in fields(run.plan)]).encode())
    if run.seeds is not None:
        digest.update(run.seeds.tobytes())
    return digest.hexdigest()
