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
from robustly.rows.arrays import CHUNK, ArrayRows
from robustly.rows.dask_tasks import (
    Cutting,
    add_sums,
    as_it_is,
    column_weight,
    facts_of_part,
    look_at,
    reweigh,
    run_all_by_row,
    run_by_row,
    run_pass,
    shapes_of,
    state_of,
    sums_done,
    take_rows,
)
from robustly.rows.store import Data, Mapped, Pass, Rows, Slot, sample_places, tell_rows
from robustly.rows.streamed import put_together

FAN_IN = 8
# How often Dask tries a partition whose worker died under it, before it takes the partition for the cause.
RETRIES = 3


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


def rows_of_parts(delayed: Sequence[Any], labels: tuple[str, ...], chunk: int, padded: bool) -> DaskRows:
    """A store of partitions, which are computed now and stay on the workers from here on."""
    client = dask_client()
    parts = client.compute(list(delayed), retries=RETRIES)
    try:
        facts = gathered(client, [client.submit(facts_of_part, part, pure=False) for part in parts])
    except RobustlyError:
        raise
    except Exception as error:  # of the collection's own making
        place = next((place for place, part in enumerate(parts) if part.status == "error"), None)
        if place is None:
            raise
        told = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        raise DataError(f"partition {place} cannot be made: {told}. Compute it by itself to see why.") from error
    kept = [place for place, (count, _, _) in enumerate(facts) if count]
    if not kept:
        raise DataError("there are no rows to fit: all partitions are empty.")
    return DaskRows(
        tuple(parts[place] for place in kept),
        tuple(facts[place][0] for place in kept),
        float(sum(facts[place][1] for place in kept)),
        all(facts[place][2] for place in kept),
        labels,
        chunk,
        padded,
    )


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

    def _send(self, chunk_pass: Any) -> Any:
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
        # What a task gives goes to where it is added up: without the states, where there are any.
        sums = done if into is None else [client.submit(sums_done, one, pure=False) for one in done]
        while len(sums) > 1 or sums is done:
            sums = [client.submit(add_sums, *sums[i : i + FAN_IN], pure=False) for i in range(0, len(sums), FAN_IN)]
        states = [client.submit(state_of, one, pure=False) for one in done] if into is not None else None
        shapes = client.submit(shapes_of, done[0], pure=False)
        total, by_row = gathered(client, [sums[0], shapes])
        tell_rows(len(self), len(self))
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
        data = tuple(put_together(parts) for parts in zip(*(one[0] for one in found)))
        return ArrayRows(data, np.concatenate([one[1] for one in found]), self.chunk, self.labels, self.padded)

    def sample(self, n: int, seed: int = 0) -> ArrayRows:
        return self.take(np.arange(len(self)) if n >= len(self) else sample_places(n, len(self), seed))

    def gather(self, chunk_pass: Pass, theta: Any, keep: Slot | None = None) -> dict[str, Any]:
        client = dask_client()
        before = (self._states.get(keep) if keep is not None else None) or [None] * len(self.parts)
        run, at = self._send(chunk_pass), client.submit(as_it_is, theta, pure=False)
        found = gathered(client, [
            client.submit(run_all_by_row, run, at, part, state, self._cutting, pure=False, retries=RETRIES)
            for part, state in zip(self.parts, before)
        ])  # fmt: skip
        return {name: np.concatenate([one[name] for one in found]) for name in found[0]}

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

    def states(self, slot: Slot) -> list[Any] | None:
        """What a slot holds, partition by partition, brought here."""
        held = self._states.get(slot)
        return None if held is None else gathered(dask_client(), held)

    def put_states(self, slot: Slot, states: Sequence[Any]) -> None:
        """Take up states that another store of the same partitions had."""
        if len(states) != len(self.parts):
            raise DataError(f"these rows are in {len(self.parts)} partitions; got states of {len(states)}.")
        client = dask_client()
        self._states[slot] = [client.submit(as_it_is, state, pure=False) for state in states]

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
