"""Rows of unlike length: a sparse table, in memory or on disk, cut where chunks have like numbers of entries, with anything beside it.

A document is a row whose length is its own, and so is what a pass keeps of it. Hence a chunk's state is kept as the pass
gave it, whatever it is, and comes back to the same chunk; the cuts depend on the rows alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from robustly.errors import DataError
from robustly.rows.arrays import ArrayRows
from robustly.rows.ragged_files import StateFile, TableFiles
from robustly.rows.store import (
    THREADS,
    ByUnit,
    Data,
    Mapped,
    Pass,
    Rows,
    Slot,
    Sums,
    added_up,
    bytes_held,
    in_order,
    in_pool,
    sample_places,
)

ENTRIES = 1 << 16


@dataclass(frozen=True, eq=False)
class RaggedRows(Rows):
    """`data` begins with a CSR table, or with one on disk; the arrays or tables after it have as many rows. `weight` says how
    often each counts.

    At most `threads` chunks of some `entries` entries each run side by side.
    """

    data: Data
    weight: np.ndarray
    entries: int = ENTRIES
    labels: tuple[str, ...] = ()
    threads: int = THREADS
    _states: WeakKeyDictionary[Slot, list[Any]] = field(default_factory=WeakKeyDictionary, repr=False)

    def __len__(self) -> int:
        return len(self.weight)

    def __sizeof__(self) -> int:
        return object.__sizeof__(self) + bytes_held((*self.data, self.weight))

    def __getstate__(self) -> dict[str, Any]:
        # States belong to slots of this process.
        return {name: value for name, value in vars(self).items() if name != "_states"}

    def __setstate__(self, kept: dict[str, Any]) -> None:
        vars(self).update(kept, _states=WeakKeyDictionary())

    @property
    def total_weight(self) -> float:
        return float(self.weight.sum())

    @cached_property
    def places(self) -> tuple[slice, ...]:
        """Where the rows are cut: pieces of like numbers of entries, a row that is longer than a piece alone."""
        starts = self.data[0].indptr
        pieces = max(1, -(-int(starts[-1]) // self.entries))
        cuts = np.searchsorted(starts, np.linspace(0, starts[-1], pieces + 1))
        cuts[0], cuts[-1] = 0, len(self)
        cuts = np.unique(cuts)
        return tuple(slice(int(first), int(last)) for first, last in pairwise(cuts))

    def map(self, chunk_pass: Pass, theta: Any, keep: Slot | None = None, into: Slot | None = None) -> Mapped:
        before = None if keep is None else self._states.get(keep)

        def run(number: int) -> tuple[Sums, ByUnit, Any]:
            place = self.places[number]
            data = tuple(_cut_chunk(column, place) for column in self.data)
            found, values, state = chunk_pass(
                theta, data, self.weight[place], None if before is None else _here(before[number])
            )
            # Beside rows on disk states wait on disk.
            if into is not None and state is not None and isinstance(self.data[0], TableFiles):
                state = StateFile(self.data[0].folder, state)
            return found, values, state

        by_unit: dict[str, list[Any]] = {}
        states: list[Any] = []

        def sums() -> Iterator[Sums]:
            for found, values, state in in_order(run, range(len(self.places)), 1 if in_pool() else self.threads):
                for name, value in values.items():
                    by_unit.setdefault(name, []).append(np.asarray(value))
                states.append(state)
                yield found

        total = added_up(sums())
        if into is not None and any(state is not None for state in states):
            self._states[into] = states
        return Mapped(total, {name: np.concatenate(parts) for name, parts in by_unit.items()})

    def states(self, slot: Slot) -> list[Any] | None:
        """What a slot holds, chunk by chunk, if anything."""
        held = self._states.get(slot)
        return None if held is None else [_here(state) for state in held]

    def put_states(self, slot: Slot, states: Sequence[Any]) -> None:
        """Take up states that another store of the same rows and cuts had."""
        if len(states) != len(self.places):
            raise DataError(f"these rows are cut into {len(self.places)} chunks; got states of {len(states)}.")
        on_disk = isinstance(self.data[0], TableFiles)
        self._states[slot] = [StateFile(self.data[0].folder, state) for state in states] if on_disk else list(states)

    def take(self, index: Any) -> ArrayRows:
        return ArrayRows(
            tuple(column[index] for column in self.data), self.weight[index], labels=self.labels, padded=False
        )

    def sample(self, n: int, seed: int = 0) -> ArrayRows:
        if n < len(self):
            return self.take(sample_places(n, len(self), seed))
        whole = tuple(_cut_chunk(column, slice(0, len(self))) for column in self.data)
        return ArrayRows(whole, self.weight, labels=self.labels, padded=False)

    def weighed(self, weight: np.ndarray) -> RaggedRows:
        # States belong to rows, not to how often they count.
        return replace(self, weight=weight, _states=WeakKeyDictionary(self._states))


def _here(state: Any) -> Any:
    """A state, read if it is in a file."""
    return state.load() if isinstance(state, StateFile) else state


def _cut_chunk(column: Any, place: slice) -> Any:
    """Some rows of an array or a table, without copying what is in memory."""
    if isinstance(column, TableFiles):
        return column.cut(place)
    if not hasattr(column, "indptr"):
        return column[place]
    from scipy import sparse

    begin, end = column.indptr[place.start], column.indptr[place.stop]
    parts = column.data[begin:end], column.indices[begin:end], column.indptr[place.start : place.stop + 1] - begin
    return sparse.csr_matrix(parts, shape=(place.stop - place.start, column.shape[1]))
