"""Map a pass over the rows and add up: the one loop every fit runs, whatever the rows are."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from typing import Any

import numpy as np

from robustly._runtime.memory import may_have_compiled
from robustly._runtime.precision import double_precision
from robustly.rows.arrays import Rows, pad

ChunkPass = Callable[..., tuple[dict[str, Any], dict[str, Any]]]

THREADS = max(1, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)


def over_rows(
    chunk_pass: ChunkPass, rows: Rows, state: np.ndarray | None, *args: Any, ready: bool = False
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Run ``chunk_pass(*args, data, weight, state)`` over all chunks.

    It returns sums, which are added in the order of the rows (so the answer does not depend on the number of threads),
    and values by row, which are put end to end. A pass that is `ready` has been compiled for chunks of this size.
    """
    pieces = list(rows.places())
    by_row: dict[str, np.ndarray] = {}
    making_room = Lock()

    def run(place: slice) -> dict[str, Any]:
        data, weight = rows.chunk_at(place)
        here = None if state is None else pad(state[place], len(weight))
        with double_precision():
            sums, parts = chunk_pass(*args, data, weight, here)
            count = place.stop - place.start
            for name, part in parts.items():
                value = np.asarray(part)[:count]
                if count == len(rows):
                    by_row[name] = value
                    continue
                with making_room:
                    if name not in by_row:
                        by_row[name] = np.empty((len(rows), *value.shape[1:]), dtype=value.dtype)
                by_row[name][place] = value
            return {name: np.asarray(value) for name, value in sums.items()}

    if not ready:
        may_have_compiled()
    # XLA spreads one chunk over the cores only in part; a chunk a thread keeps them busy. The first one compiles.
    alone = 0 if ready else 1
    if len(pieces) < 4 or THREADS == 1:
        done = [run(piece) for piece in pieces]
    else:
        done = [run(piece) for piece in pieces[:alone]]
        with ThreadPoolExecutor(THREADS) as pool:
            done += pool.map(run, pieces[alone:])
    return {name: sum(sums[name] for sums in done) for name in done[0]}, by_row
