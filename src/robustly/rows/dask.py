"""Rows that live on the workers of a Dask cluster: a pass is one task a partition, and only sums come back.

Partitions are made once and stay on the workers, with the states of their rows. A pass sends what all rows have in common,
adds up the chunks of a partition in their order, and then partitions in the order of a fixed tree, so that the same cut gives
the same bits every time. What a lost worker held is made again by Dask from the collection it came from. Values by row are Dask
arrays, computed when they are asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

import numpy as np

from robustly.errors import DataError, FitError, RobustlyError
from robustly.rows.arrays import CHUNK, ArrayRows, pad
from robustly.rows.store import Data, Mapped, Pass, Rows, Slot, Sums, added_up, one_by_one, sample_places
from robustly.rows.stored import Layout, Stored
from robustly.rows.streamed import Piece, Recipe, located, made

FAN_IN = 8
# How often Dask tries a partition whose worker died under it, before it takes the partition for the cause.
RETRIES = 3


def is_dask(value: Any) -> bool:
    """Whether `value` is a collection of Dask's."""
    return hasattr(value, "__dask_graph__") and hasattr(value, "to_delayed")


def dask_client() -> Any:
    """The cluster in use."""
    from distributed import get_client

    try:
        return get_client()
    except ValueError:
        raise DataError(
            "Dask collections are fitted on a cluster, and none is in use. Start one first: from dask.distributed import "
            "Client; client = Client()."
        ) from None


@dataclass(frozen=True, eq=False)
class DaskColumns(Stored):
    """Columns of a Dask data frame, or a Dask array."""

    collection: Any = None

    @staticmethod
    def of(collection: Any) -> DaskColumns:
        """An array is a vector or a matrix; a series is a vector, a frame a frame."""
        if _is_table(collection):
            return DaskColumns(collection=collection)
        if not hasattr(collection, "chunks"):
            name = getattr(collection, "name", None)
            return DaskColumns(columns="0" if name is None else str(name), collection=collection)
        if collection.ndim not in (1, 2):
            raise DataError(f"a Dask array of rows has one or two axes; got {collection.ndim}.")
        if collection.ndim == 1:
            return DaskColumns(columns="0", collection=collection)
        if len(collection.chunks[1]) > 1:
            collection = collection.rechunk({1: -1})
        return DaskColumns(columns=tuple(f"x{j}" for j in range(collection.shape[1])), collection=collection)

    @property
    def there(self) -> tuple[str, ...]:
        if self.named:
            return tuple(str(name) for name in self.collection.columns)
        return self.listed if self.columns is not None else ()

    @property
    def where(self) -> str:
        return "Dask partitions"

    @cached_property
    def _lengths(self) -> tuple[int, ...]:
        return tuple(dask_client().gather(dask_client().compute([delayed_len(one) for one in self.blocks()])))

    def __len__(self) -> int:
        return sum(self._lengths)

    @property
    def named(self) -> bool:
        """Whether columns are picked by their names."""
        return _is_table(self.collection)

    def blocks(self) -> list[Any]:
        """The partitions of what was asked for, as delayed objects."""
        collection = self.collection
        if self.named and self.columns is not None:
            collection = collection[self.columns if isinstance(self.columns, str) else list(self.columns)]
        return list(np.ravel(collection.to_delayed()))

    def rows(self, asked: Sequence[Any], layout: Layout) -> DaskRows:
        for one in asked:
            if not isinstance(one, DaskColumns):
                raise DataError(
                    "columns of one fit live in one place, but beside Dask collections something else came."
                )
        blocks = [one.blocks() for one in asked]
        for one, found in zip(asked, blocks):
            if len(found) != len(blocks[0]):
                raise DataError(
                    f"collections of one fit are cut alike, but they have {len(blocks[0])} and {len(found)} partitions. "
                    f"Rechunk them, or put {one.columns} beside the others in one data frame."
                )
        kinds = tuple("frame" if one.is_frame else "vector" if one.ndim_asked == 1 else "matrix" for one in asked)
        names = tuple(one.listed for one in asked)
        return make_dask_rows(blocks, kinds, names, layout)

    @property
    def ndim_asked(self) -> int:
        return 1 if isinstance(self.columns, str) else 2


def _is_table(collection: Any) -> bool:
    return hasattr(collection, "columns") and getattr(collection, "ndim", 2) == 2 and not hasattr(collection, "chunks")


def delayed_len(block: Any) -> Any:
    import dask

    return dask.delayed(len)(block)


# ---------------------------------------------------------------------- tasks; at the top, so that workers keep what they compile


def as_it_is(value: Any) -> Any:
    """What is sent to the workers once, and used by many tasks."""
    return value


def read_part(kind: str, listed: tuple[str, ...], block: Any) -> Any:
    """A partition as a frame, a matrix or a vector of numbers, checked."""
    if kind == "frame":
        return block.reset_index(drop=True)
    array = block.to_numpy() if hasattr(block, "to_numpy") else np.asarray(block)
    if array.dtype == object or array.dtype.kind in "USMm":
        if kind == "vector" and array.dtype.kind in "OU":
            return array  # words of a response
        raise DataError(
            f"columns {', '.join(listed[:4])} hold {array.dtype}, but numbers are needed. Encode them first."
        )
    if array.dtype.kind in "iu":
        return array.astype(np.float64 if kind == "matrix" else np.int64)
    if array.dtype.kind == "f":
        array = array.astype(np.float64, copy=False)
        with np.errstate(over="ignore", invalid="ignore"):
            whole = np.isfinite(array.sum())
        bad = np.zeros((0, array.ndim), dtype=int) if whole else np.argwhere(~np.isfinite(array))
        if len(bad):
            name = listed[bad[0][1]] if array.ndim == 2 else listed[0]
            what = "a missing value (NaN)" if np.isnan(array[tuple(bad[0])]) else f"{array[tuple(bad[0])]}"
            raise DataError(f'column "{name}" holds {what} in row {bad[0][0]}. Drop or fill these rows.')
    return array.astype(float) if kind == "matrix" else array


def make_part(
    recipe: Recipe, kinds: tuple[str, ...], names: tuple[tuple[str, ...], ...], place: int, *blocks: Any
) -> ArrayRows:
    """The rows of a partition, as passes see them."""
    where = f"partition {place}"
    try:
        parts = tuple(read_part(kind, listed, block) for kind, listed, block in zip(kinds, names, blocks))
    except RobustlyError as error:
        raise located(error, where, 0) from None
    counts = {len(part) for part in parts}
    if len(counts) > 1:
        raise DataError(
            f"{where}: columns have {', '.join(str(len(part)) for part in parts)} rows. Collections of one fit are cut alike: "
            "rechunk them."
        )
    data, weight = made(Piece(parts, len(parts[0]), where), recipe) if len(parts[0]) else ((), None)
    weights = np.ones(len(parts[0])) if weight is None else np.asarray(weight, dtype=float)
    return ArrayRows(data, weights)


def facts_of_part(part: ArrayRows) -> tuple[int, float, bool]:
    """Rows, their weight, and whether each counts once."""
    return len(part), float(part.weight.sum()), bool(np.all(part.weight == 1.0))


@dataclass(frozen=True)
class Done:
    """What a pass gave of a partition."""

    sums: Sums
    state: Any
    shapes: dict[str, tuple[tuple[int, ...], Any]]
    """Of values by row: the shape of one, and its type."""


@dataclass(frozen=True)
class Cutting:
    """How partitions are cut into chunks."""

    chunk: int
    padded: bool
    total: int


def run_pass(chunk_pass: Pass, theta: Any, part: ArrayRows, before: Any, cutting: Cutting, keeps: bool) -> Done:
    """A pass over a partition. One that has nothing to add up only says what it gives by row."""
    sums, states, shapes = [], [], {}
    for _, (found, by_unit, state) in _each(chunk_pass, theta, part, before, cutting):
        shapes = {name: (np.shape(value)[1:], np.asarray(value).dtype) for name, value in by_unit.items()}
        if not found and not keeps:
            return Done({}, None, shapes)
        sums.append({name: np.asarray(value) for name, value in found.items()})
        if keeps and state is not None:
            states.append(state)
    return Done(added_up(sums), np.concatenate(states) if states else None, shapes)


def run_by_row(chunk_pass: Pass, theta: Any, part: ArrayRows, before: Any, cutting: Cutting, name: str) -> np.ndarray:
    """Values by row of a partition."""
    return np.concatenate([by_unit[name] for _, (_, by_unit, _) in _each(chunk_pass, theta, part, before, cutting)])


def _each(
    chunk_pass: Pass, theta: Any, part: ArrayRows, before: Any, cutting: Cutting
) -> Iterator[tuple[slice, tuple[Sums, Mapping[str, Any], Any]]]:
    rows = replace(part, chunk=cutting.chunk, padded=cutting.padded, part_of=cutting.total)
    for place in rows.places():
        count = place.stop - place.start
        with one_by_one():
            data, weight = rows.chunk_at(place)
            held = None if before is None else pad(before[place], len(weight))
            sums, by_unit, state = chunk_pass(theta, data, weight, held)
        kept = {name: np.asarray(value)[:count] for name, value in by_unit.items()}
        yield place, (sums, kept, None if state is None else np.asarray(state)[:count])


def sums_done(done: Done) -> Sums:
    return done.sums


def state_of(done: Done) -> Any:
    return done.state


def shapes_of(done: Done) -> dict[str, tuple[tuple[int, ...], Any]]:
    return done.shapes


def add_sums(*parts: Sums) -> Sums:
    return added_up([part for part in parts if part])


def take_rows(part: ArrayRows, index: np.ndarray) -> tuple[Data, np.ndarray]:
    some = part.take(index)
    return some.data, some.weight


def reweigh(part: ArrayRows, weight: np.ndarray) -> ArrayRows:
    return replace(part, weight=np.asarray(weight, dtype=float), _states=WeakKeyDictionary())


def look_at(part: ArrayRows, look: Callable[[Data], Any], place: int) -> Any:
    try:
        return look(part.data)
    except RobustlyError as error:
        raise located(error, f"partition {place}", 0) from None


def column_weight(part: ArrayRows) -> np.ndarray:
    return part.weight


# ---------------------------------------------------------------------- the store


def make_dask_rows(
    blocks: Sequence[Sequence[Any]], kinds: tuple[str, ...], names: tuple[tuple[str, ...], ...], layout: Layout
) -> DaskRows:
    """A store of partitions, which stay on the workers from here on."""
    import dask

    client = dask_client()
    make = dask.delayed(make_part, pure=False)
    recipe = client.submit(as_it_is, layout.recipe, pure=False)
    delayed = [make(recipe, kinds, names, place, *some) for place, some in enumerate(zip(*blocks))]
    parts = client.compute(delayed, retries=RETRIES)
    facts = gathered(client, [client.submit(facts_of_part, part, pure=False) for part in parts])
    kept = [place for place, (count, _, _) in enumerate(facts) if count]
    if not kept:
        raise DataError("there are no rows to fit: all partitions are empty.")
    return DaskRows(
        tuple(parts[place] for place in kept),
        tuple(facts[place][0] for place in kept),
        float(sum(facts[place][1] for place in kept)),
        all(facts[place][2] for place in kept),
        layout.labels,
        layout.chunk,
        layout.padded,
    )


def gathered(client: Any, futures: Any) -> Any:
    """Results of tasks; an error of ours comes as it is, and one of the cluster's as one of ours."""
    from distributed import KilledWorker
    from distributed.client import FutureCancelledError

    try:
        return client.gather(futures)
    except KilledWorker as error:
        raise FitError(f"workers died again and again over one partition: {error} Give them more memory.") from None
    except (FutureCancelledError, TimeoutError, OSError) as error:
        raise FitError(
            f"the cluster was lost during the fit: {error}. Fit again, with checkpoint= to resume."
        ) from None


@dataclass(frozen=True, eq=False)
class ElsewhereRows(Rows):
    """What workers know of all rows beside their own: how many there are."""

    count: int
    labels: tuple[str, ...] = ()
    summed_weight: float = 0.0
    weight: Any = None

    @property
    def total_weight(self) -> float:
        return self.summed_weight

    def __len__(self) -> int:
        return self.count

    def map(self, chunk_pass: Pass, theta: Any, keep: Slot | None = None, into: Slot | None = None) -> Mapped:
        raise FitError("a pass over one partition asked for all rows. Report this, please.")

    def sample(self, n: int, seed: int) -> ArrayRows:
        raise FitError("a pass over one partition asked for all rows. Report this, please.")

    def weighed(self, weight: Any) -> Rows:
        return self


@dataclass(frozen=True, eq=False)
class DaskRows(Rows):
    """Partitions on the workers."""

    adds_in_order: ClassVar[bool] = False

    parts: tuple[Any, ...]
    counts: tuple[int, ...]
    summed_weight: float
    unweighted: bool
    labels: tuple[str, ...] = ()
    chunk: int = CHUNK
    padded: bool = True
    _states: WeakKeyDictionary[Slot, Any] = field(default_factory=WeakKeyDictionary, repr=False)
    _sent: WeakKeyDictionary[Any, Any] = field(default_factory=WeakKeyDictionary, repr=False)

    def __reduce__(self) -> Any:
        return ElsewhereRows, (len(self), self.labels, self.total_weight)

    def __len__(self) -> int:
        return sum(self.counts)

    @property
    def total_weight(self) -> float:
        return self.summed_weight

    @property
    def _cutting(self) -> Cutting:
        return Cutting(self.chunk, self.padded, len(self))

    @cached_property
    def weight(self) -> Any:  # type: ignore[override]
        if self.unweighted:
            return np.broadcast_to(1.0, len(self))
        return self._lined_up([dask_client().submit(column_weight, part, pure=False) for part in self.parts], (), float)

    def _lined_up(self, futures: Sequence[Any], shape: tuple[int, ...], kind: Any) -> Any:
        import dask.array as da

        each = [da.from_delayed(one, (count, *shape), kind) for one, count in zip(futures, self.counts)]
        return da.concatenate(each)

    def _send(self, chunk_pass: Pass) -> Any:
        try:
            if chunk_pass not in self._sent:
                self._sent[chunk_pass] = dask_client().submit(as_it_is, chunk_pass, pure=False)
            return self._sent[chunk_pass]
        except TypeError:  # one that cannot be told from others
            return dask_client().submit(as_it_is, chunk_pass, pure=False)

    def map(self, chunk_pass: Pass, theta: Any, keep: Slot | None = None, into: Slot | None = None) -> Mapped:
        client = dask_client()
        before = self._states.get(keep) if keep is not None else None
        before = [None] * len(self.parts) if before is None else before
        run, at = self._send(chunk_pass), client.submit(as_it_is, theta, pure=False)
        options = {"pure": False, "retries": RETRIES}
        done = [
            client.submit(run_pass, run, at, part, state, self._cutting, into is not None, **options)
            for part, state in zip(self.parts, before)
        ]
        sums = [client.submit(sums_done, one, pure=False) for one in done]
        while len(sums) > 1:
            sums = [client.submit(add_sums, *sums[i : i + FAN_IN], pure=False) for i in range(0, len(sums), FAN_IN)]
        states = [client.submit(state_of, one, pure=False) for one in done] if into is not None else None
        shapes = client.submit(shapes_of, done[0], pure=False)
        total, by_row = gathered(client, [sums[0], shapes])
        if into is not None:
            self._states[into] = states
        return Mapped(total, DaskByUnit(self, run, at, before, by_row))

    def take(self, index: Any) -> ArrayRows:
        client, wanted = dask_client(), np.asarray(index, dtype=np.int64)
        starts = np.concatenate([[0], np.cumsum(self.counts)])
        cuts = np.searchsorted(wanted, starts)
        futures = [
            client.submit(take_rows, part, wanted[low:high] - start, pure=False)
            for part, low, high, start in zip(self.parts, cuts[:-1], cuts[1:], starts[:-1])
            if high > low
        ]
        found = gathered(client, futures)
        data = tuple(np.concatenate(parts) for parts in zip(*(one[0] for one in found)))
        return ArrayRows(data, np.concatenate([one[1] for one in found]), self.chunk, self.labels, self.padded)

    def sample(self, n: int, seed: int = 0) -> ArrayRows:
        return self.take(np.arange(len(self)) if n >= len(self) else sample_places(n, len(self), seed))

    def weighed(self, weight: Any) -> DaskRows:
        client, weight = dask_client(), np.asarray(weight, dtype=float)
        each = np.split(weight, np.cumsum(self.counts)[:-1])
        parts = tuple(client.submit(reweigh, part, one, pure=False) for part, one in zip(self.parts, each))
        return replace(
            self,
            parts=parts,
            summed_weight=float(weight.sum()),
            unweighted=bool(np.all(weight == 1.0)),
            _states=WeakKeyDictionary(self._states),
        )

    def cut_into(self, chunk: int) -> DaskRows:
        return self if chunk == self.chunk else replace(self, chunk=chunk)

    def each_piece(self, look: Callable[[Data], Any]) -> list[Any]:
        client = dask_client()
        sent = client.submit(as_it_is, look, pure=False)
        futures = [client.submit(look_at, part, sent, place, pure=False) for place, part in enumerate(self.parts)]
        return gathered(client, futures)


class DaskByUnit(Mapping[str, Any]):
    """Values by row as Dask arrays: a pass that is run when they are computed."""

    def __init__(self, rows: DaskRows, run: Any, theta: Any, before: Sequence[Any], shapes: Mapping[str, Any]) -> None:
        self.rows, self.run, self.theta, self.before, self.shapes = rows, run, theta, before, dict(shapes)

    def __getitem__(self, name: str) -> Any:
        import dask

        shape, kind = self.shapes[name]
        make = dask.delayed(run_by_row, pure=False)
        each = [
            make(self.run, self.theta, part, state, self.rows._cutting, name)
            for part, state in zip(self.rows.parts, self.before)
        ]
        return self.rows._lined_up(each, shape, kind)

    def __iter__(self) -> Iterator[str]:
        return iter(self.shapes)

    def __len__(self) -> int:
        return len(self.shapes)
