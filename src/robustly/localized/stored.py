"""How does a program take arguments that are not in memory? It is read with a few of their rows, and fitted to all of them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from robustly.errors import DataError
from robustly.model.program.arguments import Arguments, read_arguments
from robustly.model.program.checks import check_support
from robustly.model.program.read import Program
from robustly.rows.anywhere import along, as_stored, grouping_from, rows_from, units_from
from robustly.rows.arrays import CHUNK
from robustly.rows.groups import Grouping
from robustly.rows.store import Data, Rows
from robustly.rows.stored import Layout, Stored, column_as_it_is

# Rows with which a program is read.
FEW = 257


@dataclass(frozen=True, eq=False)
class StoredCall:
    """A call of a program some of whose arguments are columns that live elsewhere."""

    stored: Mapping[str, Stored]
    arguments: Arguments
    """The same call with a few rows of them."""

    def units(
        self, program: Program, weights: Any, chunk: int | None, labels: Any, by: str
    ) -> tuple[Rows, Grouping, tuple[str, ...]]:
        """The groups of all rows of the call, how rows fall into them, and a note where they had stood apart."""
        rows = self.rows(program, weights, None, grouped=True)
        first = next(iter(self.stored.values()))
        found = rows_from([along(first, labels, by)], Layout(column_as_it_is, (by,), as_cut=True))
        return units_from(rows, grouping_from(found, by), CHUNK if chunk is None else chunk)

    def rows(self, program: Program, weights: Any, chunk: int | None, *, grouped: bool = False) -> Rows:
        """All rows of the call; those that will be sorted into groups are read once."""
        labels = [label for label, row in zip(self.arguments.labels, program.is_row) if row]
        if program.is_whole:
            raise DataError("this program can only be run on all rows at once, so they have to be in memory.")
        for label in labels:
            if label not in self.stored:
                first = next(iter(self.stored.values()))
                raise DataError(
                    f"{label} is an array by row, but other rows are in {first.where}. Put it beside them as a column."
                )
        asked = [self.stored[label] for label in labels]
        if weights is not None:
            asked.append(along(asked[0], weights, "weights"))
        layout = Layout(RowRecipe(len(labels)), tuple(labels), many_passes=not grouped, as_cut=grouped)
        rows = rows_from(asked, layout if chunk is None else replace(layout, chunk=chunk))
        rows.each_piece(SupportLook(program, self.arguments))
        return rows


@dataclass(frozen=True)
class RowRecipe:
    """Columns as they are, and weights after so many of them."""

    count: int

    def __call__(self, *parts: Any) -> tuple[Data, Any]:
        data = tuple(np.ascontiguousarray(part) for part in parts[: self.count])
        return data, parts[self.count] if len(parts) > self.count else None


@dataclass(frozen=True, eq=False)
class SupportLook:
    """Whether every observed value of some rows is possible."""

    program: Program
    arguments: Arguments

    def __call__(self, data: Data) -> None:
        check_support(self.program, with_data(self.program, self.arguments, data))


def with_data(program: Program, arguments: Arguments, data: Data) -> Arguments:
    """The same call with other rows."""
    taken = iter(data)
    leaves = [
        next(taken) if row else len(data[0]) if counts else leaf
        for leaf, row, counts in zip(arguments.leaves, program.is_row, program.counts_rows)
    ]
    return replace(arguments, leaves=tuple(leaves))


def any_stored(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether a call has columns that live elsewhere."""
    return any(as_stored(value) is not None for value in (*args, *kwargs.values()))


def stored_call(model: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> StoredCall | None:
    """A call with columns that live elsewhere; None where all arguments are here."""
    if not any_stored(args, kwargs):
        return None
    try:
        bound = inspect.signature(model).bind(*args, **kwargs)
    except TypeError as error:
        raise DataError(f"the model takes {inspect.signature(model)}, but the call does not fit it: {error}.") from None
    found = {name: one for name, value in bound.arguments.items() if (one := as_stored(value)) is not None}
    stored = {name: one if one.columns is not None else one.matrix_beside([]) for name, one in found.items()}
    asked = list(stored.values())
    count = len(asked[0])
    few = rows_from(asked, Layout(RowRecipe(len(asked)), tuple(stored))).sample(min(FEW, count), 0).data
    for name, part in zip(stored, few):
        bound.arguments[name] = part
    for name, value in bound.arguments.items():
        if isinstance(value, int) and not isinstance(value, bool) and value == count:
            bound.arguments[name] = len(few[0])
    return StoredCall(stored, read_arguments(model, bound.args, bound.kwargs))
