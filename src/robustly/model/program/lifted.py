"""Which numbers of a program that was run on all rows come from its data? They are handed over with the rows.

A program that is run whole has its data inside when it is traced, and what is compiled from it would serve these data only. But
what a row needs of them is found when its entry is followed back (:mod:`robustly.model.jaxpr_slice`): entries of arrays along the
rows, and a few numbers that all rows share, such as a mean. Taken out of the traced program they become columns of the rows, and
other data of the same shapes, traced to the same operations, are other columns for what is compiled already.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal

from robustly.model.jaxpr_slice import Taken, called_inside, entry_of
from robustly.model.program.arguments import Arguments
from robustly.model.program.trace import Trace

# A value that all rows see whole is handed over with each of them; longer ones stay in the program.
MOST_SHARED = 64


class Reading:
    """What a function of the program came to when it was traced on all rows, and what it takes of the data for one row."""

    def __init__(self, traced: ClosedJaxpr, tree: Any, by_row: Sequence[bool]) -> None:
        self.traced, self.tree, self.by_row = traced, tree, tuple(by_row)
        self.atoms: list[Any] = []
        self.values: list[Any] = []
        self.structure = self._spelled(traced)
        self.uses: dict[int, set[int | None]] = {}
        """By the number of an atom, along which axes its entries are taken; None where it is taken whole."""

    @property
    def is_known(self) -> bool:
        """Whether nothing in it belongs to a trace that is still going on."""
        return not any(isinstance(value, jax.core.Tracer) for value in self.values)

    def entry(self, inputs: Sequence[Any], index: Array, taken: Mapping[tuple[int, int | None], Any] | None) -> Any:
        """One row's part of the outputs, with what it needs of the data in `taken`; None is the data as they were read."""
        known: dict[int, Taken] = {}
        for number, (atom, value) in enumerate(zip(self.atoms, self.values)):
            if taken is None:
                known[id(atom)] = self._noting(number, value, index)
            elif (number, None) in taken or any(place[0] == number for place in taken):
                known[id(atom)] = _handed_over(number, value, index, taken)
        return jax.tree.unflatten(self.tree, entry_of(self.traced, inputs, index, self.by_row, known))

    def _noting(self, number: int, value: Any, index: Array) -> Taken:
        def noted(axis: int | None, found: Any) -> Any:
            self.uses.setdefault(number, set()).add(axis)
            return found

        return Taken(
            jnp.shape(value),
            lambda: noted(None, value),
            lambda axis: noted(axis, jax.lax.dynamic_slice_in_dim(jnp.asarray(value), index, 1, axis)),
        )

    def _spelled(self, closed: ClosedJaxpr) -> Hashable:
        """The operations without the numbers in them, which are noted in the order in which they come."""
        numbers: dict[Any, int] = {}

        def name(atom: Any) -> Hashable:
            if isinstance(atom, Literal):
                self.atoms.append(atom)
                self.values.append(atom.val)
                return "literal", str(atom.aval)
            return numbers.setdefault(atom, len(numbers)), str(atom.aval)

        for variable, value in zip(closed.jaxpr.constvars, closed.consts):
            self.atoms.append(variable)
            self.values.append(value)
            name(variable)
        found: list[Hashable] = [tuple(map(name, closed.jaxpr.invars))]
        for equation in closed.jaxpr.eqns:
            inner = called_inside(equation)
            told = (
                tuple((key, _in_words(value)) for key, value in sorted(equation.params.items()))
                if inner is None
                else self._spelled(inner)
            )
            around = tuple(map(name, equation.invars)), tuple(map(name, equation.outvars))
            found.append((equation.primitive.name, *around, told))
        return (*found, tuple(map(name, closed.jaxpr.outvars)))


def _handed_over(number: int, value: Any, index: Array, taken: Mapping[tuple[int, int | None], Any]) -> Taken:
    # Rows have one type for whole numbers and one for real ones; the program may have been traced with others.
    own = lambda axis: jnp.asarray(taken[number, axis], dtype=jnp.asarray(value).dtype)

    def at(axis: int) -> Any:
        if (number, axis) in taken:
            return jnp.expand_dims(own(axis), axis)
        return jax.lax.dynamic_slice_in_dim(jnp.asarray(value), index, 1, axis)

    return Taken(jnp.shape(value), lambda: own(None) if (number, None) in taken else value, at)


def _in_words(value: Any) -> Hashable:
    """A parameter of an operation in words that another tracing of the same would give."""
    if isinstance(value, ClosedJaxpr):
        return str(value.jaxpr), tuple(map(_in_words, value.consts))
    if isinstance(value, Jaxpr):
        return str(value)
    if isinstance(value, np.ndarray | jax.Array) and not isinstance(value, jax.core.Tracer):
        return np.shape(value), np.asarray(value).tobytes()
    if isinstance(value, tuple | list):
        return tuple(map(_in_words, value))
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))


@dataclass(frozen=True, eq=False)
class Lifted:
    """The columns that rows of a program bring along, and where each of them belongs."""

    readings: Mapping[Hashable, Reading]
    columns: tuple[np.ndarray, ...]
    """Of the data that were read."""
    places: Mapping[tuple[Hashable, int, int | None], int]
    """The number of a column by function, atom and axis."""
    by_function: dict[Hashable, dict[tuple[int, int | None], int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for (function, atom, axis), column in self.places.items():
            self.by_function.setdefault(function, {})[atom, axis] = column

    @staticmethod
    def of(readings: Mapping[Hashable, Reading], others: Sequence[Mapping[Hashable, Reading]], rows: int) -> Lifted:
        """Taken out is what differs by row, and of what all rows share what other data change."""
        columns: list[np.ndarray] = []
        told: dict[Hashable, int] = {}
        places = {}
        for function, reading in readings.items():
            alike = [o[function] for o in others if function in o and o[function].structure == reading.structure]
            for atom, uses in reading.uses.items():
                value = np.asarray(reading.values[atom])
                moves = any(not _same(value, other.values[atom]) for other in alike)
                for axis in uses:
                    by_row = axis is not None and value.shape[axis] == rows
                    if not (by_row or (axis is None and moves and value.size <= MOST_SHARED)) or _has_gaps(value):
                        continue
                    column = _column(value, axis, rows)
                    key = column.dtype.str, column.shape, column.tobytes()
                    if key not in told:
                        told[key] = len(columns)
                        columns.append(column)
                    places[function, atom, axis] = told[key]
        return Lifted(readings, tuple(columns), places)

    def entry(self, function: Hashable, inputs: Sequence[Any], index: Array, columns: Sequence[Any]) -> Any:
        """One row's part of what a function of the program gives, with the row's entries of the columns."""
        taken = {place: columns[column] for place, column in self.by_function.get(function, {}).items()}
        return self.readings[function].entry(inputs, index, taken)

    def columns_of(self, readings: Mapping[Hashable, Reading], rows: int) -> tuple[np.ndarray, ...] | None:
        """The columns of other data; None where these differ in more than the columns say."""
        if set(readings) != set(self.readings):
            return None
        found: dict[int, np.ndarray] = {}
        for function, reading in self.readings.items():
            other, own = readings[function], self.by_function.get(function, {})
            if other.structure != reading.structure or not other.is_known:
                return None
            for atom, (before, now) in enumerate(zip(reading.values, other.values)):
                taken = [axis for number, axis in own if number == atom]
                if set(taken) != reading.uses.get(atom, set()) and not _same(before, now):
                    return None
                for axis in taken:
                    column = _column(np.asarray(now), axis, rows)
                    if not _same(found.setdefault(own[atom, axis], column), column) or _has_gaps(column):
                        return None
        return tuple(found[number] for number in range(len(self.columns)))


def lift(
    own: Mapping[Hashable, Reading],
    read: Callable[[Arguments], Mapping[Hashable, Reading]],
    arguments: Arguments,
    is_row: Sequence[bool],
    rows: int,
) -> Lifted | None:
    """What rows bring along; None where a reading holds what will not last.

    What of the data all rows share shows when they change: with values moved a little, and with rows drawn anew.
    """
    if any(not reading.is_known for reading in own.values()):
        return None
    rng = np.random.default_rng(0)
    is_real = lambda leaf: hasattr(leaf, "shape") and np.asarray(leaf).dtype.kind == "f"
    moved = [leaf * (1.0 + 1e-3 * rng.uniform()) if is_real(leaf) else leaf for leaf in arguments.leaves]
    drawn = rng.integers(0, rows, rows)
    some = [np.asarray(leaf)[drawn] if row else leaf for leaf, row in zip(arguments.leaves, is_row)]
    others = []
    for leaves in (moved, some):
        with contextlib.suppress(Exception):  # data that the program cannot be run with say nothing
            others.append(read(replace(arguments, leaves=tuple(leaves))))
    return Lifted.of(own, others, rows)


def has_same_priors(trace: Trace, other: Trace, chosen: Sequence[str]) -> bool:
    """Whether these sites of two traces have the same priors: those of shared values are not brought along by rows."""
    if set(trace) != set(other):
        return False
    for name in chosen:
        (own, tree), (theirs, other_tree) = (jax.tree.flatten(one[name]["fn"]) for one in (trace, other))
        if tree != other_tree or not all(np.array_equal(a, b) for a, b in zip(own, theirs)):
            return False
    return True


def _column(value: np.ndarray, axis: int | None, rows: int) -> np.ndarray:
    if axis is None:
        return np.ascontiguousarray(np.broadcast_to(value, (rows, *value.shape)))
    return np.ascontiguousarray(np.moveaxis(value, axis, 0))


def _has_gaps(value: np.ndarray) -> bool:
    return (value.dtype.kind == "f" and not np.all(np.isfinite(value))) or value.dtype.kind not in "fiub"


def _same(a: Any, b: Any) -> bool:
    a, b = np.asarray(a), np.asarray(b)
    return a.dtype == b.dtype and np.array_equal(a, b, equal_nan=a.dtype.kind == "f")
