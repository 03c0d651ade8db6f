"""Rows that live in memory: arrays with a common leading axis, weights, and how they are cut into chunks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from robustly._runtime.freed_memory import may_have_compiled
from robustly._runtime.settings import check_whole
from robustly._runtime.threads import on_one_thread, products_on_one_thread
from robustly.errors import DataError
from robustly.rows.labels import as_floats, as_numbers
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
    first_time,
    in_order,
    in_pool,
    sample_places,
    tell_rows,
)

CHUNK = 2048
SMALLEST = 64
# Numbers in a chunk from which matrix products gain by several threads, where chunks are not shared out over them already.
MANY_NUMBERS = 1 << 20
# Weights that sum to less are lost in rounding; one that is larger is no number of times a row was seen, and drowns the others.
LEAST_WEIGHT, MOST_WEIGHT = 1e-200, 1e12


@dataclass(frozen=True, eq=False)
class ArrayRows(Rows):
    """`data` is a tuple of arrays whose leading axis counts rows; `weight` says how often each row counts."""

    data: Data
    weight: np.ndarray
    chunk: int = CHUNK
    labels: tuple[str, ...] = ()
    padded: bool = True
    """Whether the last chunk is filled up to the size of the others, as compiled passes want it."""
    part_of: int | None = None
    """Of how many rows these are a part that is cut and filled up as the whole is."""
    _states: WeakKeyDictionary[Slot, np.ndarray] = field(default_factory=WeakKeyDictionary, repr=False)

    def __len__(self) -> int:
        return len(self.weight)

    def __sizeof__(self) -> int:
        return object.__sizeof__(self) + bytes_held((*self.data, self.weight))

    def __getstate__(self) -> dict[str, Any]:
        # States are where searches left off, and belong to slots of this process.
        return {name: value for name, value in vars(self).items() if name not in ("_states", "_whole", "unpadded")}

    def __setstate__(self, kept: dict[str, Any]) -> None:
        vars(self).update(kept, _states=WeakKeyDictionary())

    @cached_property
    def bucket(self) -> int:
        """Rows in a chunk: powers of four where chunks are padded, so that few different sizes are ever compiled."""
        return bucket_of(self.part_of or len(self), self.chunk) if self.padded else self.chunk

    @cached_property
    def total_weight(self) -> float:
        return float(self.weight.sum())

    def places(self) -> Iterator[slice]:
        """Where the rows are cut."""
        for start in range(0, len(self), self.bucket):
            yield slice(start, min(start + self.bucket, len(self)))

    def chunk_at(self, place: slice) -> tuple[Data, np.ndarray]:
        """Data and weights of some rows, filled up to a whole chunk with a repeated row of weight zero."""
        return self._whole if place.stop - place.start == len(self) else self._cut(place)

    def _cut(self, place: slice) -> tuple[Data, np.ndarray]:
        if not self.padded:
            return tuple(a[place] for a in self.data), self.weight[place]
        size = self.bucket
        return tuple(pad(a[place], size) for a in self.data), pad(self.weight[place], size, 0.0)

    @cached_property
    def _whole(self) -> tuple[Data, np.ndarray]:
        """The only chunk, where there is but one: every pass reads it again."""
        return self._cut(slice(0, len(self)))

    def chunks(self) -> Iterator[tuple[slice, Data, np.ndarray]]:
        """All rows, chunk by chunk."""
        for place in self.places():
            yield place, *self.chunk_at(place)

    def map(self, chunk_pass: Pass, theta: Any, keep: Slot | None = None, into: Slot | None = None) -> Mapped:
        whole: dict[str, np.ndarray] = {}
        states = None if keep is None else self._states.get(keep)
        if len(self) <= self.bucket:
            return self._map_at_once(chunk_pass, theta, states, into)
        # Added up as they come: sums of a thousand columns are large. The limit of threads is changed once a pass: each change takes
        # as long as a chunk of some thousand rows.
        with products_on_one_thread() if self._has_small_products else nullcontext():
            sums = added_up(self._told(self._chunk_sums(chunk_pass, theta, states, into is not None, whole)))
        state = whole.pop("", None)
        if into is not None and state is not None:
            self._states[into] = state
        return Mapped(sums, whole)

    def _map_at_once(self, chunk_pass: Pass, theta: Any, states: np.ndarray | None, into: Slot | None) -> Mapped:
        """:meth:`map` of rows that are one chunk: of few rows, what surrounds a pass takes longer than the pass."""
        rows, all_rows = self._as_taken(chunk_pass), slice(0, len(self))
        if rows.padded and first_time(chunk_pass, rows.bucket):
            may_have_compiled()
        with products_on_one_thread() if self._numbers < MANY_NUMBERS else nullcontext():
            sums, by_unit, state = rows._passed(chunk_pass, theta, all_rows, states)
        if into is not None and state is not None:
            self._states[into] = np.asarray(state)[all_rows]
        tell_rows(len(self), len(self))
        return Mapped(added_up([sums]), {name: np.asarray(part)[all_rows] for name, part in by_unit.items()})

    def _as_taken(self, chunk_pass: Pass) -> ArrayRows:
        """The rows in chunks as a pass takes them."""
        return self.unpadded if self.padded and getattr(chunk_pass, "takes_any_size", False) else self

    def _passed(
        self, chunk_pass: Pass, theta: Any, place: slice, states: np.ndarray | None
    ) -> tuple[Sums, ByUnit, Any]:
        """What a pass gives of one chunk."""
        data, weight = self.chunk_at(place)
        before = None if states is None else pad(states[place], len(weight))
        return chunk_pass(theta, data, weight, before)

    @cached_property
    def _numbers(self) -> int:
        """How many numbers the rows hold."""
        return sum(math.prod(array.shape) for array in self.data)

    def _told(self, sums: Iterator[Sums]) -> Iterator[Sums]:
        """The same, saying how far the pass is."""
        for place, one in zip(self.places(), sums):
            tell_rows(place.stop, len(self))
            yield one

    def each_chunk(
        self, chunk_pass: Pass, theta: Any, states: np.ndarray | None, *, keeps_state: bool
    ) -> tuple[list[Sums], dict[str, np.ndarray], np.ndarray | None]:
        """The sums of every chunk in the order of the rows, the values by unit of all rows, and their states."""
        whole: dict[str, np.ndarray] = {}
        done = list(self._chunk_sums(chunk_pass, theta, states, keeps_state, whole))
        return done, whole, whole.pop("", None)

    @cached_property
    def _chunk_count(self) -> int:
        return sum(1 for _ in self.places())

    @property
    def _are_shared_out(self) -> bool:
        """Whether threads take chunks side by side."""
        return self._chunk_count >= 4 and THREADS > 1 and not in_pool()

    @property
    def _has_small_products(self) -> bool:
        """Whether matrix products of a chunk are to take one thread."""
        return self._are_shared_out or self._numbers // max(1, self._chunk_count) < MANY_NUMBERS

    def _chunk_sums(
        self, chunk_pass: Pass, theta: Any, states: np.ndarray | None, keeps_state: bool, whole: dict[str, np.ndarray]
    ) -> Iterator[Sums]:
        """The sums of every chunk in the order of the rows; values by unit, and states as "", go to `whole`."""
        rows = self._as_taken(chunk_pass)
        places = list(rows.places())
        making_room = Lock()

        def put(name: str, place: slice, part: Any) -> None:
            count = place.stop - place.start
            value = np.asarray(part)[:count]
            if count == len(self):
                whole[name] = value
                return
            with making_room:
                if name not in whole:
                    whole[name] = np.empty((len(self), *value.shape[1:]), dtype=value.dtype)
            whole[name][place] = value

        def run_chunk(place: slice) -> Sums:
            sums, by_unit, state = rows._passed(chunk_pass, theta, place, states)
            for name, part in by_unit.items():
                put(name, place, part)
            if keeps_state and state is not None:
                put("", place, state)
            return {name: np.asarray(value) for name, value in sums.items()}

        first = rows.padded and first_time(chunk_pass, rows.bucket)
        if first:
            may_have_compiled()
        side_by_side = self._are_shared_out
        # Chunk by chunk: the limit is the whole process's, and a caller that fails may leave this iterator suspended.
        run = on_one_thread(run_chunk) if self._has_small_products else run_chunk
        if not side_by_side:
            yield from map(run, places)
            return
        # What has to be compiled is compiled once, by the first chunk.
        yield from map(run, places[:first])
        yield from in_order(run, places[first:])

    @property
    def here(self) -> ArrayRows:
        return self

    def column(self, place: int) -> Any:
        return self.data[place]

    def each_piece(self, look: Callable[[Data], Any]) -> list[Any]:
        return [look(self.data)]

    def states(self, slot: Slot) -> np.ndarray | None:
        """What a slot holds, if anything."""
        return self._states.get(slot)

    def take(self, index: Any) -> ArrayRows:
        """Some of the rows."""
        part = tuple(a[index] for a in self.data)
        return replace(self, data=part, weight=self.weight[index], _states=WeakKeyDictionary())

    def sample(self, n: int, seed: int = 0) -> ArrayRows:
        if n >= len(self):
            return self
        return self.take(sample_places(n, len(self), seed))

    def weighed(self, weight: np.ndarray) -> ArrayRows:
        # States belong to rows, not to how often they count.
        return replace(self, weight=weight, _states=WeakKeyDictionary(self._states))

    def cut_into(self, chunk: int) -> ArrayRows:
        """The same rows in chunks of another size."""
        return self if chunk == self.chunk else replace(self, chunk=chunk)

    @cached_property
    def unpadded(self) -> ArrayRows:  # type: ignore[override]
        return replace(self, padded=False) if self.padded else self


def bucket_of(count: int, largest: int) -> int:
    """The size of chunk that so many rows are compiled for."""
    size = SMALLEST
    while size < min(count, largest):
        size *= 4
    return min(size, largest)


def pad(array: Any, size: int, value: float | None = None) -> Any:
    """Fill the leading axis up to `size`, with copies of the last entry or with `value`; sparse matrices with zeros."""
    missing = size - array.shape[0]
    if missing <= 0:
        return array
    if not isinstance(array, np.ndarray):
        from scipy import sparse

        return sparse.vstack([array, sparse.csr_array((missing, array.shape[1]))], format="csr")
    last = array[-1:] if value is None else np.full_like(array[-1:], value)
    return np.concatenate([array, np.repeat(last, missing, axis=0)])


def make_rows(
    data: Sequence[Any], labels: Sequence[str], *, weights: Any = None, chunk: int | None = None
) -> ArrayRows:
    """Read arrays as rows; name the array and the row when something cannot be used."""
    arrays = []
    for label, given in zip(labels, data):
        array = np.asarray(as_numbers(given, label))
        if array.dtype == object or array.dtype.kind in "USMm":
            raise DataError(
                f"{label} holds {array.dtype if array.dtype != object else 'mixed objects'}, but numbers are needed. "
                "Encode texts and dates as numbers first."
            )
        if array.ndim == 0:
            raise DataError(f"{label} is a single number, but rows need an array with a leading axis.")
        if array.dtype.kind == "f":
            array = array.astype(np.float64, copy=False)
            _refuse_missing(array, label)
        elif array.dtype.kind in "iu":
            array = array.astype(np.int64, copy=False)
        arrays.append(np.ascontiguousarray(array))
    lengths = {label: len(array) for label, array in zip(labels, arrays)}
    if len(set(lengths.values())) > 1:
        listed = ", ".join(f"{label} has {length}" for label, length in lengths.items())
        raise DataError(f"all row arguments need the same number of rows, but {listed}.")
    n = len(arrays[0]) if arrays else 0
    if n == 0:
        raise DataError("there are no rows to fit: the data are empty.")
    return ArrayRows(
        tuple(arrays),
        read_weights(weights, n),
        CHUNK if chunk is None else check_whole("chunk", chunk, 1),
        tuple(labels),
    )


def read_weights(weights: Any, n: int) -> np.ndarray:
    """Row weights as floats; one each when none are given."""
    if weights is None:
        return np.ones(n)
    weight = as_floats(weights, "weights")
    if weight.shape != (n,):
        raise DataError(f"weights have shape {weight.shape}, but there are {n} rows. Give one weight a row.")
    bad = np.flatnonzero(~((weight >= 0) & (weight <= MOST_WEIGHT)))
    if bad.size:
        raise DataError(
            f"weights hold {weight[bad[0]]} in row {bad[0]}; a weight is a finite number of at least 0 and at most {MOST_WEIGHT:g}."
        )
    if not weight.any():
        raise DataError("all weights are 0, so no row counts. Give at least one row a positive weight.")
    if weight.sum() < LEAST_WEIGHT:
        raise DataError(
            f"the weights sum to {weight.sum():.3g}, which is lost in rounding. A weight says how often its row counts: multiply "
            "them all."
        )
    return weight


def _refuse_missing(array: np.ndarray, label: str) -> None:
    # One cheap pass: a sum of finite numbers is finite, unless it overflows, and then the slow look decides.
    with np.errstate(over="ignore", invalid="ignore"):
        total = array.sum()
    if np.isfinite(total):
        return
    bad = np.argwhere(~np.isfinite(array))
    if bad.size == 0:
        return
    place = tuple(int(i) for i in bad[0])
    where = f"row {place[0]}" + (f", column {place[1]}" if len(place) > 1 else "")
    kind = "a missing value (NaN)" if np.isnan(array[place]) else f"{array[place]}"
    more = f" and {len(bad) - 1} more" if len(bad) > 1 else ""
    raise DataError(f"{label} holds {kind} in {where}{more}. Drop or fill these rows, or mask them in the model.")
