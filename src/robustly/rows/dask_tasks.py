"""What does a worker of a Dask cluster do with its partition? Tasks at the top of a module, so that workers keep what they compile."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from robustly._runtime.freed_memory import keep_for_next_chunk
from robustly.errors import RobustlyError
from robustly.rows.arrays import ArrayRows, pad
from robustly.rows.ragged import RaggedRows
from robustly.rows.store import Data, Mapped, Pass, Slot, Sums, added_up, one_by_one
from robustly.rows.streamed import located


def as_it_is(value: Any) -> Any:
    """What is sent to the workers once, and used by many tasks."""
    return value


def facts_of_part(part: ArrayRows | RaggedRows) -> tuple[int, float, bool]:
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


def run_pass(chunk_pass: Pass, theta: Any, part: Any, before: Any, cutting: Cutting, keeps: bool) -> Done:
    """A pass over a partition. One that has nothing to add up only says what it gives by row."""
    keep_for_next_chunk()
    if isinstance(part, RaggedRows):
        mapped, state = _ragged(chunk_pass, theta, part, before, keeps)
        found = {name: (np.shape(value)[1:], np.asarray(value).dtype) for name, value in mapped.by_unit.items()}
        return Done(mapped.sums, state, found)
    sums, states, shapes = [], [], {}
    for _, (found, by_unit, state) in _each(chunk_pass, theta, part, before, cutting):
        shapes = {name: (np.shape(value)[1:], np.asarray(value).dtype) for name, value in by_unit.items()}
        if not found and not keeps:
            return Done({}, None, shapes)
        sums.append({name: np.asarray(value) for name, value in found.items()})
        if keeps and state is not None:
            states.append(state)
    return Done(added_up(sums), np.concatenate(states) if states else None, shapes)


def run_by_row(chunk_pass: Pass, theta: Any, part: Any, before: Any, cutting: Cutting, name: str) -> np.ndarray:
    """Values by row of a partition."""
    keep_for_next_chunk()
    if isinstance(part, RaggedRows):
        return _ragged(chunk_pass, theta, part, before, False)[0].by_unit[name]
    return np.concatenate([by_unit[name] for _, (_, by_unit, _) in _each(chunk_pass, theta, part, before, cutting)])


def run_all_by_row(chunk_pass: Pass, theta: Any, part: Any, before: Any, cutting: Cutting) -> dict[str, np.ndarray]:
    """All that a pass gives by row of a partition."""
    keep_for_next_chunk()
    if isinstance(part, RaggedRows):
        return dict(_ragged(chunk_pass, theta, part, before, False)[0].by_unit)
    found = [by_unit for _, (_, by_unit, _) in _each(chunk_pass, theta, part, before, cutting)]
    return {name: np.concatenate([one[name] for one in found]) for name in found[0]}


def _ragged(chunk_pass: Pass, theta: Any, part: RaggedRows, before: Any, keeps: bool) -> tuple[Mapped, Any]:
    """A pass over documents. Passes write into the states they are given, and those of a task may be needed again."""
    slot, rows = Slot(), replace(part, threads=1, _states=WeakKeyDictionary())
    if before is not None:
        rows.put_states(slot, deepcopy(before))
    mapped = rows.map(chunk_pass, theta, keep=slot, into=slot if keeps else None)
    return mapped, rows.states(slot) if keeps else None


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


def add_sums(*parts: Sums | Done) -> Sums:
    sums = [part.sums if isinstance(part, Done) else part for part in parts]
    return added_up([part for part in sums if part])


def take_rows(part: ArrayRows | RaggedRows, index: np.ndarray) -> tuple[Data, np.ndarray]:
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
