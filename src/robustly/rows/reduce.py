"""Map a pass over the rows and add up: the one loop every fit runs, whatever the rows are."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from robustly.precision import double_precision
from robustly.rows.arrays import Rows, pad

ChunkPass = Callable[..., tuple[dict[str, Any], dict[str, Any]]]

THREADS = max(1, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)


def over_rows(
    chunk_pass: ChunkPass, rows: Rows, state: np.ndarray | None, *args: Any
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Run ``chunk_pass(*args, data, weight, state)`` over all chunks.

    It returns sums, which are added in the order of the rows (so the answer does not depend on the number of threads),
    and values by row, which are put end to end.
    """
    pieces = list(rows.chunks())

    def run(piece: Any) -> tuple[dict[str, Any], dict[str, np.ndarray], int]:
        place, data, weight = piece
        here = None if state is None else pad(state[place], len(weight))
        with double_precision():
            sums, by_row = chunk_pass(*args, data, weight, here)
            count = place.stop - place.start
            return (
                {name: np.asarray(value) for name, value in sums.items()},
                {name: np.asarray(value)[:count] for name, value in by_row.items()},
                count,
            )

    if len(pieces) < 4 or THREADS == 1:
        done = [run(piece) for piece in pieces]
    else:
        # XLA spreads one chunk over the cores only in part; a chunk a thread keeps them busy.
        first = run(pieces[0])
        with ThreadPoolExecutor(THREADS) as pool:
            done = [first, *pool.map(run, pieces[1:])]
    totals = {name: sum(sums[name] for sums, _, _ in done) for name in done[0][0]}
    by_row = {
        name: np.concatenate([parts[name] for _, parts, _ in done]) if len(done) > 1 else done[0][1][name]
        for name in done[0][1]
    }
    return totals, by_row
