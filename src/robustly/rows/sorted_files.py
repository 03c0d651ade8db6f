"""How do the rows of a group come together that stand anywhere in files? Sorted once, into flat files mapped into memory.

The groups are read first, piece by piece. Then every row is written to its place in the order of the groups. The system reads
the files when they are used and may drop them again, so that in memory stay some 30 bytes a row and what is at work.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from robustly.errors import PersistError
from robustly.rows.groups import Grouping, GroupRows, SideBySide, group_rows, grouping_of
from robustly.rows.scratch import nameless_file
from robustly.rows.store import Data
from robustly.rows.streamed import Piece, Pieces, StreamedRows


@dataclass(frozen=True)
class GroupsOfPiece:
    """The groups of a piece whose first column are labels: a number a row, and what the numbers stand for."""

    name: str

    def __call__(self, data: Data) -> tuple[np.ndarray, list[Any]]:
        found = group_rows(data[0], self.name)
        return found.of_row, found.labels


def read_grouping(labels: StreamedRows, name: str) -> Grouping:
    """The groups of rows that have nothing but the label of their group, in the order of their first rows."""
    known: dict[Any, int] = {}
    codes = [
        np.array([known.setdefault(label, len(known)) for label in found], dtype=np.int64)[numbers]
        for numbers, found in labels.each_piece(GroupsOfPiece(name))
    ]
    return grouping_of(np.concatenate(codes), list(known), name)


def sorted_by_group(
    rows: StreamedRows, grouping: Grouping, inner: Grouping | None = None
) -> tuple[GroupRows, Grouping, tuple[str, ...]]:
    """The same rows in groups, in files, the grouping of rows so kept, and a note where they had stood apart.

    After the arrays of the rows come their weights, and the numbers of the groups within the groups where there are such.
    """
    place_of = np.empty(len(rows), dtype=np.int64)
    place_of[grouping.order] = np.arange(len(rows))
    arrays: list[np.ndarray] = []
    for place, block in rows.blocks():
        parts = (*block.data, block.weight)
        arrays = arrays or [_mapped(len(rows), part) for part in parts]
        for array, part in zip(arrays, parts):
            array[place_of[place]] = part
    within = () if inner is None else (inner.of_row[grouping.order],)
    found = GroupRows((*arrays, *within), np.ones(len(grouping)), labels=rows.labels, starts=grouping.starts)
    apart = not np.array_equal(grouping.order, np.arange(len(rows)))
    return found, replace(grouping, is_sorted=True), (_note(grouping.name, arrays),) if apart else ()


@dataclass(frozen=True, eq=False)
class GroupPieces(Pieces):
    """Groups in files, some at a time."""

    kept: GroupRows
    at_a_time: int

    def __len__(self) -> int:
        return len(self.kept)

    def __iter__(self) -> Iterator[Piece]:
        for first in range(0, len(self), self.at_a_time):
            some = self.kept.take(slice(first, first + self.at_a_time))
            yield Piece((some,), len(some))


@dataclass(frozen=True)
class UnitRecipe:
    """Units of one shape, made of some groups."""

    make: SideBySide

    def __call__(self, groups: GroupRows) -> tuple[Data, None]:
        return self.make(groups).data, None


def streamed_units(kept: GroupRows, make: SideBySide) -> StreamedRows:
    """Groups in files as units of one shape, made of some at a time whenever a pass needs them."""
    labels = make.labels(kept.labels)
    return StreamedRows(GroupPieces(kept, make.chunk), UnitRecipe(make), labels, make.chunk, of_rows=make.longest)


def _note(name: str, arrays: Sequence[np.ndarray]) -> str:
    size = max(1.0, sum(array.nbytes for array in arrays) / 1e6)
    return f'rows of one "{name}" stood apart in the files: they were sorted by it once, into temporary files of {size:.0f} MB.'


def _mapped(count: int, like: np.ndarray) -> np.ndarray:
    """A file for as many rows like these as an array. It has no name, so that it is gone with the array or the process."""
    shape = (count, *like.shape[1:])
    size = like.dtype.itemsize * int(np.prod(shape))
    try:
        with nameless_file(size) as stream:
            return np.memmap(stream, like.dtype, "r+", shape=shape)
    except OSError as error:
        raise PersistError(
            f"cannot write {size / 1e6:.0f} MB to {tempfile.gettempdir()}: {error.strerror}. Sorting rows by group takes as much room "
            "as their columns: set TMPDIR to a folder that has it."
        ) from error
