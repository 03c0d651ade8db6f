"""Where do the rows live, and how is a pass mapped over them? The interface that every store of rows fills.

A *pass* is a function of one chunk of rows. It returns sums, which add up over chunks, values by unit, which line up with
the rows, and a state that stays beside the rows until the next pass. A search only ever sees the sums, so the same search
serves rows in memory, on disk or on a cluster.
"""

from __future__ import annotations

import contextlib
import os
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar
from weakref import WeakKeyDictionary

import numpy as np

from robustly.errors import ModelError

if TYPE_CHECKING:
    from robustly.rows.arrays import ArrayRows

Item = TypeVar("Item")
Answer = TypeVar("Answer")

Data = tuple[Any, ...]
Sums = dict[str, Any]
ByUnit = Mapping[str, Any]
# (what is the same for all rows, data, weight, state) -> (sums, values by unit, state). One that is not compiled for a size says so by an
# attribute `takes_any_size`: its chunks are not filled up.
Pass = Callable[[Any, Data, Any, Any], tuple[Sums, ByUnit, Any]]

THREADS = max(1, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)


POOL = "robustly-pass"


class Slot:
    """A place beside the rows in which passes keep the units' states. What it holds is forgotten with it."""


@dataclass(frozen=True)
class Mapped:
    """What a pass over all rows gave."""

    sums: Sums
    by_unit: ByUnit


class Rows(ABC):
    """Rows to be fitted; how often each counts is its weight."""

    weight: Any
    labels: tuple[str, ...]
    adds_in_order: ClassVar[bool] = True
    """Whether chunks are added one after the other; a store that adds by a tree, the same every time, says False."""

    @abstractmethod
    def __len__(self) -> int: ...

    @property
    @abstractmethod
    def total_weight(self) -> float: ...

    @abstractmethod
    def map(self, chunk_pass: Pass, theta: Any, keep: Slot | None = None, into: Slot | None = None) -> Mapped:
        """Run ``chunk_pass(theta, data, weight, state)`` over all chunks and add up.

        Sums are added in the order of the rows, so the answer does not depend on how many chunks run at once.

        Args:
            keep: where the states of the last pass are; a pass without one, or before the first, sees the state None.
            into: where the new states go, if anywhere. They may replace the old ones (``into=keep``).
        """

    @abstractmethod
    def sample(self, n: int, seed: int) -> ArrayRows:
        """Some of the rows, in memory; the same ones every time."""

    @abstractmethod
    def weighed(self, weight: Any) -> Rows:
        """The same rows with other weights."""

    @property
    def here(self) -> ArrayRows | None:
        """The rows themselves, if they are in memory."""
        return None

    def take(self, index: Any) -> ArrayRows:
        """Some of the rows, by their numbers in ascending order, in memory."""
        raise ModelError(
            f"{type(self).__name__} gives no single rows. Fit rows in memory, in Parquet files or in Dask."
        )

    def some(self, index: Any) -> Rows:
        """Some of the rows, by their numbers in ascending order, as a store of their own where these are."""
        return self.take(index)

    def gather(self, chunk_pass: Pass, theta: Any, keep: Slot | None = None) -> dict[str, Any]:
        """What a pass gives by unit, all of it in memory."""
        return {name: np.asarray(value) for name, value in self.map(chunk_pass, theta, keep).by_unit.items()}

    def cut_into(self, chunk: int) -> Rows:
        """The same rows in chunks of another size, where the store can choose it."""
        return self

    @property
    def unpadded(self) -> Rows:
        """The same rows in chunks that are never filled up, for passes that are not compiled for a size."""
        return self

    def each_piece(self, look: Callable[[Data], Any]) -> list[Any]:
        """What `look` says of the rows, piece by piece as they are kept; what it raises names the piece."""
        raise ModelError(f"{type(self).__name__} does not say in which pieces its rows are kept.")

    def column(self, place: int) -> Any:
        """One of the arrays that passes see as data, for all rows."""
        return self.map(_ColumnPass(place), None).by_unit["column"]


@dataclass(frozen=True)
class _ColumnPass:
    """A pass that gives a column as it is."""

    place: int

    def __call__(self, theta: Any, data: Data, weight: np.ndarray, state: Any) -> tuple[Sums, ByUnit, None]:
        return {}, {"column": data[self.place]}, None


def bytes_held(parts: Iterable[Any]) -> int:
    """What arrays, sparse tables and frames take in memory. A cluster that took a partition for the few bytes of its object would
    send it about rather than wait for the worker that has it."""
    total = 0
    for part in parts:
        if hasattr(part, "memory_usage"):
            total += int(np.sum(part.memory_usage()))
        elif hasattr(part, "indptr"):
            total += bytes_held((part.data, part.indices, part.indptr))
        elif isinstance(part, np.ndarray):
            total += part.itemsize if 0 in part.strides else part.nbytes
    return total


def sample_places(n: int, count: int, seed: int) -> np.ndarray:
    """Which of `count` rows are a sample of `n`, in ascending order: the same ones in every store.

    One of each of `n` stretches of rows, by chance: rows that are sorted in some way are all there, and nothing is shuffled.
    """
    ends = np.arange(n + 1) * count // n
    return ends[:-1] + (np.random.default_rng([seed, n, count]).random(n) * np.diff(ends)).astype(np.int64)


@cache
def thread_pool() -> ThreadPoolExecutor:
    """The one pool in which chunks run side by side: XLA spreads a single chunk over the cores only in part."""
    return ThreadPoolExecutor(THREADS, thread_name_prefix=POOL)


def in_pool() -> bool:
    """Whether this thread is one of the pool: it must not wait for others of it."""
    return threading.current_thread().name.startswith(POOL) or getattr(_here, "one_by_one", False)


_here = threading.local()


@contextlib.contextmanager
def one_by_one() -> Iterator[None]:
    """Chunks run one after the other inside the block, as others are shared out over threads or processes already."""
    before, _here.one_by_one = getattr(_here, "one_by_one", False), True
    try:
        yield
    finally:
        _here.one_by_one = before


if hasattr(os, "register_at_fork"):
    # Threads do not survive a fork; the child makes its own when it needs them.
    os.register_at_fork(after_in_child=thread_pool.cache_clear)

_watching: list[Callable[[int, int], None]] = []


@contextlib.contextmanager
def watching(seen: Callable[[int, int], None]) -> Iterator[None]:
    """Inside the block, passes over rows call ``seen(rows so far, rows in all)``."""
    _watching.append(seen)
    try:
        yield
    finally:
        _watching.remove(seen)


def tell_rows(so_far: int, rows: int) -> None:
    """Say how far a pass is, to whoever is watching."""
    for seen in _watching:
        seen(so_far, rows)


_COMPILED: WeakKeyDictionary[Any, set[Any]] = WeakKeyDictionary()


def first_time(chunk_pass: Pass, size: Any) -> bool:
    """Whether a pass has not been through a chunk of this size before, so that it may have to be compiled first."""
    try:
        seen = _COMPILED.setdefault(chunk_pass, set())
    except TypeError:
        return True
    if size in seen:
        return False
    seen.add(size)
    return True


def in_order(run: Callable[[Item], Answer], items: Iterable[Item], threads: int = THREADS) -> Iterator[Answer]:
    """What `run` gives for each item, in their order, with at most `threads` at work; few are ever waiting to be taken."""
    if threads == 1:
        yield from map(run, items)
        return
    # All threads of the pool stay busy while what they gave is taken; of fewer, none is to be at work beyond them.
    most = 2 * THREADS if threads >= THREADS else threads
    waiting: deque[Future[Answer]] = deque()
    for item in items:
        if len(waiting) == most:
            yield waiting.popleft().result()
        waiting.append(thread_pool().submit(run, item))
    while waiting:
        yield waiting.popleft().result()


def added_up(parts: Iterable[Sums]) -> Sums:
    """Sums of all chunks, in their order; of what is called ``max …``, the largest."""
    total: Sums = {}
    ours: set[str] = set()  # arrays that no pass can be holding on to
    for part in parts:
        for name, given in part.items():
            value = np.asarray(given)
            value = value.astype(int) if value.dtype == bool else value
            if name not in total:
                total[name] = value
            elif name.startswith("max "):
                total[name] = np.maximum(total[name], value)
            elif name in ours and total[name].dtype == value.dtype:
                total[name] += value
            else:
                total[name] = np.asarray(total[name] + value)
                ours.add(name)
    return total
