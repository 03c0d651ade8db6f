"""Rows that do not fit into memory: read piece by piece in the order of the rows, the next piece while this one is used.

What many passes will read is written down by the first as plain numbers: :mod:`robustly.rows.scratch`.

Pieces are put together and cut where rows in memory would be cut, filled up in the same way, and added up in the same order.
So the sums of a pass are those of the same rows in memory, bit for bit, whatever the sizes of files and row groups.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import numpy as np

from robustly.errors import DataError, RobustlyError
from robustly.rows.arrays import CHUNK, ArrayRows, bucket_of
from robustly.rows.scratch import KeptRows, Scratch, is_constant
from robustly.rows.store import THREADS, Data, Mapped, Pass, Rows, Slot, Sums, added_up, sample_places, tell_rows

Item = TypeVar("Item")

# Rows that are put together before threads share out their chunks: as few as keep all threads at work.
SMALLEST_BLOCK = 1 << 16


@dataclass(frozen=True, eq=False)
class Piece:
    """Some rows as they were read: arrays or frames, one for each thing that was asked for, and where they stood."""

    parts: tuple[Any, ...]
    count: int
    where: str = ""
    """The file or partition, for errors."""
    first: int = 0
    """Number of the first row there."""


class Pieces(ABC):
    """Rows that can be read again and again, in pieces of any size and always in the same order."""

    @abstractmethod
    def __len__(self) -> int:
        """How many rows there are."""

    @abstractmethod
    def __iter__(self) -> Iterator[Piece]: ...


@cache
def _reader() -> ThreadPoolExecutor:
    """The one thread that reads: what a thread has allocated is not given back when it ends, so that one a pass would add up."""
    return ThreadPoolExecutor(1, thread_name_prefix="robustly-read")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reader.cache_clear)


def ahead(items: Iterator[Item]) -> Iterator[Item]:
    """The same items, each made while the one before it is used."""
    waiting = _reader().submit(next, items, None)
    try:
        while (found := waiting.result()) is not None:
            waiting = _reader().submit(next, items, None)
            yield found
    finally:
        waiting.cancel()


# The arrays that passes see, and weights where rows have them, made from the parts of a piece.
Recipe = Callable[..., tuple[Data, Any]]


@dataclass(frozen=True, eq=False)
class StreamedRows(Rows):
    """Rows made from pieces by a recipe, ``recipe(*parts) -> (data, weight or None)``, whenever a pass needs them."""

    pieces: Pieces
    recipe: Recipe
    labels: tuple[str, ...] = ()
    chunk: int = CHUNK
    padded: bool = True
    given: np.ndarray | None = field(default=None, repr=False)
    """Weights in place of those that the recipe gives."""
    scratch: Scratch | None = field(default=None, repr=False)
    """Where rows are kept once they have been read, if many passes will read them."""
    of_rows: int = 1
    """How many rows are in one of these, where they are groups."""
    _states: WeakKeyDictionary[Slot, np.ndarray] = field(default_factory=WeakKeyDictionary, repr=False)

    def __len__(self) -> int:
        return len(self.pieces)

    @cached_property
    def weight(self) -> np.ndarray:  # type: ignore[override]
        if self.given is not None:
            return self.given
        if self._kept is not None:
            found = self._kept.weight()
        elif next(iter(self._read()))[1] is None:
            found = None
        else:
            found = np.concatenate([np.asarray(weight, dtype=float) for _, weight in self._read()])
        return np.broadcast_to(1.0, len(self)) if found is None else found  # no memory for a constant

    @cached_property
    def total_weight(self) -> float:
        return float(self.weight.sum())

    # ------------------------------------------------------------------ reading

    def _read(self) -> Iterator[tuple[Data, Any]]:
        """What passes see of each piece, checked."""
        return (made(piece, self.recipe) for piece in self.pieces)

    @property
    def _kept(self) -> KeptRows | None:
        """All rows as plain numbers, if a scan has been through them."""
        return None if self.scratch is None else self.scratch.full

    @property
    def _keeps(self) -> Scratch | None:
        """Where the next scan to the end leaves the rows, if it does."""
        return None if self.scratch is None or self.scratch.refused or self.scratch.full is not None else self.scratch

    def blocks(self) -> Iterator[tuple[slice, ArrayRows]]:
        """All rows in order, in blocks of whole chunks, and where each begins and ends; the next is read while one is used."""
        if self._kept is not None:
            return ahead(self._kept_blocks(self._kept, 0, len(self)))
        return ahead(self._blocks(self._read()) if self._keeps is None else self._first_blocks(self._keeps))

    def _as_read(self) -> Iterator[tuple[slice, ArrayRows]]:
        """All rows in order as they come, for a look that may end before the last."""
        start = 0
        for data, weight in self._read():
            yield self._block(start, data, weight)
            start += len(data[0])

    @property
    def _sizes(self) -> tuple[int, int]:
        """Rows in a chunk, and in a block."""
        bucket = bucket_of(len(self), self.chunk) if self.padded else self.chunk
        return bucket, bucket * max(2 * THREADS, SMALLEST_BLOCK // (bucket * self.of_rows))

    def _kept_blocks(self, kept: KeptRows, start: int, stop: int) -> Iterator[tuple[slice, ArrayRows]]:
        for at in range(start, stop, self._sizes[1]):
            yield self._block(at, *kept.at(slice(at, min(at + self._sizes[1], stop))))

    def _first_blocks(self, scratch: Scratch) -> Iterator[tuple[slice, ArrayRows]]:
        """Blocks as soon as their rows are kept: nothing is put together in memory."""
        start = 0
        for kept in scratch.filled(self._read(), len(self)):
            whole = kept.so_far if scratch.full is kept else kept.so_far - (kept.so_far - start) % self._sizes[1]
            yield from self._kept_blocks(kept, start, whole)
            start = whole
        if scratch.refused:
            yield from self._blocks(_without_first(self._read(), start), start)

    def _blocks(self, read: Iterator[tuple[Data, Any]], start: int = 0) -> Iterator[tuple[slice, ArrayRows]]:
        """Blocks of rows that are read, of which `start` came before."""
        bucket, size = self._sizes
        held, count = [], 0
        for data, weight in read:
            held.append((data, weight))
            count += len(data[0])
            if count < size:
                continue
            joined, weights = _joined(held)
            whole = count // bucket * bucket
            for at in range(0, whole, size):
                place = slice(at, min(at + size, whole))
                yield self._block(start, tuple(a[place] for a in joined), None if weights is None else weights[place])
                start += place.stop - place.start
            held = [(tuple(a[whole:] for a in joined), None if weights is None else weights[whole:])]
            count -= whole
        if count:
            yield self._block(start, *_joined(held))

    def _block(self, start: int, data: Data, weight: Any) -> tuple[slice, ArrayRows]:
        place = slice(start, start + len(data[0]))
        if self.given is not None:
            weight = self.given[place]
        weight = np.ones(len(data[0])) if weight is None else np.asarray(weight, dtype=float)
        rows = ArrayRows(data, weight, self.chunk, self.labels, self.padded, part_of=len(self))
        return place, rows

    # ------------------------------------------------------------------ passes

    def map(self, chunk_pass: Pass, theta: Any, keep: Slot | None = None, into: Slot | None = None) -> Mapped:
        before = None if keep is None else self._states.get(keep)
        gathered: dict[str, np.ndarray] = {}
        names: dict[str, None] = {}

        def each() -> Iterator[Sums]:
            for place, block in self.blocks():
                states = None if before is None else before[place]
                done, by_unit, state = block.each_chunk(chunk_pass, theta, states, keeps_state=into is not None)
                names.update(dict.fromkeys(by_unit))
                # What adds up is asked for now. What comes by row is most often not asked for at all, so it is left
                # until it is, unless there is nothing else.
                wanted = {} if done[0] else dict(by_unit)
                for name, part in wanted.items() if state is None else [*wanted.items(), ("", state)]:
                    if name not in gathered:
                        gathered[name] = np.empty((len(self), *part.shape[1:]), dtype=part.dtype)
                    gathered[name][place] = part
                yield from done
                tell_rows(place.stop, len(self))

        sums = added_up(each())
        if into is not None and "" in gathered:
            self._states[into] = gathered.pop("")
        if sums and names:
            return Mapped(sums, LaterByUnit(self, chunk_pass, theta, before, tuple(names)))
        return Mapped(sums, gathered)

    def take(self, index: Any) -> ArrayRows:
        wanted = np.asarray(index, dtype=np.int64)
        found = []
        for place, block in self.blocks() if self._kept is not None else ahead(self._as_read()):
            low, high = np.searchsorted(wanted, [place.start, place.stop])
            if low < high:
                found.append(block.take(wanted[low:high] - place.start))
            if high == len(wanted):
                break
        data, weight = _joined([(rows.data, rows.weight) for rows in found])
        return ArrayRows(data, weight, self.chunk, self.labels, self.padded)

    def sample(self, n: int, seed: int = 0) -> ArrayRows:
        return self.take(np.arange(len(self)) if n >= len(self) else sample_places(n, len(self), seed))

    def weighed(self, weight: np.ndarray) -> StreamedRows:
        other = WeakKeyDictionary(self._states)
        return replace(self, given=np.asarray(weight, dtype=float), _states=other)

    def cut_into(self, chunk: int) -> StreamedRows:
        if chunk == self.chunk:
            return self
        other = replace(self, chunk=chunk)
        other.__dict__.update({name: vars(self)[name] for name in ("weight", "total_weight") if name in vars(self)})
        return other

    def each_piece(self, look: Callable[[Data], Any]) -> list[Any]:
        found = []

        def seen(*parts: Any) -> tuple[Data, Any]:
            data, weight = self.recipe(*parts)
            found.append(look(data))
            return data, weight

        read = replace(self, recipe=seen)._read()
        for _ in () if self._keeps is None else self._keeps.filled(read, len(self)):
            pass
        for _ in read:
            pass
        return found


class LaterByUnit(Mapping[str, np.ndarray]):
    """Values by unit of a pass that is run again, with the states it began with, when they are asked for."""

    def __init__(
        self, rows: StreamedRows, chunk_pass: Pass, theta: Any, before: np.ndarray | None, names: tuple[str, ...]
    ) -> None:
        self.rows, self.chunk_pass, self.theta, self.before, self.names = rows, chunk_pass, theta, before, names

    @cached_property
    def _values(self) -> dict[str, np.ndarray]:
        found: dict[str, np.ndarray] = {}
        for place, block in self.rows.blocks():
            states = None if self.before is None else self.before[place]
            for name, part in block.each_chunk(self.chunk_pass, self.theta, states, keeps_state=False)[1].items():
                if name not in found:
                    found[name] = np.empty((len(self.rows), *part.shape[1:]), dtype=part.dtype)
                found[name][place] = part
        self.before = None
        return found

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self.names:
            raise KeyError(name)
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)


def made(piece: Piece, recipe: Recipe) -> tuple[Data, Any]:
    """What passes see of a piece; errors name the file and count its rows."""
    try:
        data, weight = recipe(*piece.parts)
    except RobustlyError as error:
        raise located(error, piece.where, piece.first) from None
    if any(len(a) != piece.count for a in data):
        raise DataError(
            f"{piece.where}: rows came to {names_of_lengths(data)}, but there are {piece.count}. Give one value a row."
        )
    return data, weight


def names_of_lengths(data: Sequence[Any]) -> str:
    return ", ".join(str(len(a)) for a in data)


def located(error: RobustlyError, where: str, first: int) -> RobustlyError:
    """An error about rows of a piece, with the place of the piece and rows counted from its file's first."""
    import re

    text = re.sub(r"\brow (\d+)", lambda found: f"row {int(found[1]) + first}", str(error))
    return type(error)(f"{where}: {text}" if where else text)


def put_together(parts: Sequence[Any]) -> Any:
    """Arrays or sparse tables of some rows each, one after the other."""
    if isinstance(parts[0], np.ndarray):
        one = parts[0][:1]
        if all(is_constant(part) and np.array_equal(part[:1], one) for part in parts):
            return np.broadcast_to(one, (sum(map(len, parts)), *one.shape[1:]))
        return np.concatenate(parts)
    if hasattr(parts[0], "iloc"):
        import pandas as pd

        return pd.concat(parts, ignore_index=True)
    from scipy import sparse

    return sparse.vstack(parts, format="csr")


def _without_first(read: Iterator[tuple[Data, Any]], count: int) -> Iterator[tuple[Data, Any]]:
    """The same pieces without the first so many rows."""
    for data, weight in read:
        rest = slice(min(count, len(data[0])), None)
        count -= rest.start
        if rest.start < len(data[0]):
            yield tuple(a[rest] for a in data), None if weight is None else weight[rest]


def _joined(held: Sequence[tuple[Data, Any]]) -> tuple[Data, Any]:
    if len(held) == 1:
        return held[0]
    data = tuple(put_together(parts) for parts in zip(*(one[0] for one in held)))
    return data, None if held[0][1] is None else np.concatenate([one[1] for one in held])
