"""How do the rows of a group come together that stand anywhere in files? Sorted once, into flat files mapped into memory.

The groups are read first, piece by piece. Then every row is written to its place in the order of the groups. The system reads
the files when they are used and may drop them again, so that in memory stay some 30 bytes a row and what is at work.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from robustly.errors import DataError, PersistError
from robustly.rows.arrays import ArrayRows
from robustly.rows.groups import Grouping, group_rows, grouping_of
from robustly.rows.scratch import nameless_file
from robustly.rows.store import Data, Rows
from robustly.rows.stored import Stored
from robustly.rows.streamed import StreamedRows


def refuse_unsorted(stored: Stored) -> None:
    """Rows that cannot be sorted into groups here, by where they are."""
    from robustly.rows.parquet import ParquetColumns

    if not isinstance(stored, ParquetColumns):
        raise DataError(
            f"effects of groups need rows in memory or in Parquet files, and these are in {stored.where}. Write them to a folder, "
            "frame.to_parquet(folder), and fit rb.parquet(folder)."
        )


@dataclass(frozen=True)
class GroupsOfPiece:
    """The groups of a piece whose first column are labels: a number a row, and what the numbers stand for."""

    name: str

    def __call__(self, data: Data) -> tuple[np.ndarray, list[Any]]:
        found = group_rows(data[0], self.name)
        return found.of_row, found.labels


def read_grouping(labels: Rows, name: str) -> Grouping:
    """The groups of rows that have nothing but the label of their group, in the order of their first rows."""
    known: dict[Any, int] = {}
    codes = [
        np.array([known.setdefault(label, len(known)) for label in found], dtype=np.int64)[numbers]
        for numbers, found in labels.each_piece(GroupsOfPiece(name))
    ]
    return grouping_of(np.concatenate(codes), list(known), name)


def sorted_by_group(rows: Rows, grouping: Grouping) -> tuple[ArrayRows, Grouping, tuple[str, ...]]:
    """The same rows in the order of their groups, in files, the grouping of rows so kept, and a note where they had stood apart."""
    assert isinstance(rows, StreamedRows)
    place_of = np.empty(len(rows), dtype=np.int64)
    place_of[grouping.order] = np.arange(len(rows))
    arrays: list[np.ndarray] = []
    for place, block in rows.blocks():
        parts = (*block.data, block.weight)
        arrays = arrays or [_mapped(len(rows), part) for part in parts]
        for array, part in zip(arrays, parts):
            array[place_of[place]] = part
    *data, weight = arrays
    found = ArrayRows(tuple(data), weight, rows.chunk, rows.labels, rows.padded)
    apart = not np.array_equal(grouping.order, np.arange(len(rows)))
    return found, replace(grouping, is_sorted=True), (_note(grouping.name, arrays),) if apart else ()


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
