"""Which rows belong together? Rows sorted into groups of any sizes, each group one unit, chunks that never cut a group.

A pass over groups gets the rows of some whole groups, one after the other, and as the last entry of its data the place at
which each of them begins. What it returns by unit lines up with the groups, in the order in which they first appear.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from robustly.errors import DataError
from robustly.rows.arrays import ArrayRows
from robustly.rows.store import Data

# Rows in a chunk, unless a single group has more.
CHUNK_ROWS = 8192


@dataclass(frozen=True, eq=False)
class Grouping:
    """How rows fall into groups: `labels` by group, the `order` that brings groups together, and where each one `starts`."""

    name: str
    labels: list[Any]
    order: np.ndarray
    starts: np.ndarray
    """One more than there are groups: the last entry is the number of rows."""
    is_sorted: bool = False
    """Whether rows are kept in the order of their groups; `order` then says where they stood in the data."""

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def sizes(self) -> np.ndarray:
        return np.diff(self.starts)

    @property
    def row_count(self) -> int:
        return int(self.starts[-1])

    def pairs_with(self, other: Grouping) -> np.ndarray:
        """The different pairs of a row's group and its group in another grouping, in the order of their first rows: (pairs, 2)."""
        both = self.of_row * len(other) + other.of_row
        first = np.sort(np.unique(both, return_index=True)[1])
        return np.stack(np.divmod(both[first], len(other)), axis=1)

    def then_by(self, inner: Grouping) -> Grouping:
        """The same groups, within which rows are in the order of others."""
        return replace(self, order=np.lexsort((inner.of_row, self.of_row)))

    @property
    def of_row(self) -> np.ndarray:
        """The group of every row, in the order of the data."""
        found = np.empty(len(self.order), dtype=int)
        found[self.order] = np.repeat(np.arange(len(self)), self.sizes)
        return found

    def in_data_order(self, kept: np.ndarray) -> np.ndarray:
        """Values in the order in which rows are kept, in the order of the data."""
        return self.to_rows(kept) if self.is_sorted else kept

    def to_rows(self, sorted_values: np.ndarray) -> np.ndarray:
        """Values in the order of the groups, back in the order of the data."""
        found = np.empty_like(sorted_values)
        found[self.order] = sorted_values
        return found


def group_rows(values: Any, name: str = "groups") -> Grouping:
    """Rows by the value they carry, groups in the order of their first row; a missing value is refused."""
    import pandas as pd

    try:
        column = values if isinstance(values, pd.Series) else pd.Series(values).reset_index(drop=True)
    except (TypeError, ValueError) as error:
        raise DataError(f'the groups "{name}" are not a column ({error}). Give one value a row.') from None
    gone = np.flatnonzero(column.isna().to_numpy())
    if gone.size:
        more = f" and {gone.size - 1} more" if gone.size > 1 else ""
        raise DataError(
            f'the groups "{name}" have a missing value in row {gone[0]}{more}. A row without a group has no effect to share: '
            "drop these rows, or give them a group of their own."
        )
    try:
        codes, labels = pd.factorize(column, sort=False)
    except TypeError as error:
        raise DataError(
            f'the groups "{name}" hold values that cannot be told apart ({error}). Name groups by numbers or texts.'
        ) from None
    return grouping_of(codes, [one.item() if isinstance(one, np.generic) else one for one in labels], name)


def grouping_of(codes: np.ndarray, labels: list[Any], name: str) -> Grouping:
    """Rows by the numbers of their groups."""
    order = np.argsort(codes, kind="stable")
    starts = np.concatenate([[0], np.cumsum(np.bincount(codes, minlength=len(labels)))])
    return Grouping(name, labels, order, starts)


@dataclass(frozen=True, eq=False)
class GroupRows(ArrayRows):
    """Rows in the order of their groups; `weight` and all states are by group, what counts by row is among the data."""

    starts: np.ndarray = field(default_factory=lambda: np.zeros(1, dtype=int))
    chunk_rows: int = CHUNK_ROWS
    padded: bool = False

    @property
    def bucket(self) -> int:
        return 0

    def places(self) -> Iterator[slice]:
        """Where the groups are cut: as many whole groups as fit a chunk, at least one."""
        first, groups = 0, len(self)
        while first < groups:
            last = int(np.searchsorted(self.starts, self.starts[first] + self.chunk_rows, side="right")) - 1
            last = min(max(last, first + 1), groups)
            yield slice(first, last)
            first = last

    def chunk_at(self, place: slice) -> tuple[Data, np.ndarray]:
        starts = self.starts[place.start : place.stop + 1]
        # Constants, which take no memory as long as they are not cut.
        part = tuple(np.ascontiguousarray(array[starts[0] : starts[-1]]) for array in self.data)
        return (*part, starts - starts[0]), self.weight[place]

    def remade(self, make: Callable[[GroupRows], GroupRows]) -> GroupRows:
        """The same groups with other arrays, made of these."""
        return make(self)

    def by_rows(self, count: int, weight: int) -> ArrayRows:
        """The rows as units of their own, in the order of their groups: the first arrays, and another as weights."""
        return rows_of_groups(self, count, weight)

    def take(self, index: Any) -> GroupRows:
        """Some of the groups."""
        chosen = np.arange(len(self))[index]
        sizes = np.diff(self.starts)[chosen]
        starts = np.concatenate([[0], np.cumsum(sizes)])
        rows = np.repeat(self.starts[chosen] - starts[:-1], sizes) + np.arange(starts[-1])
        return replace(
            self,
            data=tuple(array[rows] for array in self.data),
            weight=self.weight[chosen],
            starts=starts,
            _states=WeakKeyDictionary(),
        )


@dataclass(frozen=True, eq=False)
class InOrder:
    """An array in another order, made where it is asked for."""

    array: Any
    order: np.ndarray

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape

    def __getitem__(self, rows: Any) -> Any:
        return self.array[self.order[rows]]


def rows_in_groups(data: Data, grouping: Grouping, labels: tuple[str, ...] = ()) -> GroupRows:
    """Arrays with one entry a row, sorted into groups; every group counts once."""
    found = tuple(_by_group(array, grouping) for array in data)
    return GroupRows(found, np.ones(len(grouping)), labels=labels, starts=np.asarray(grouping.starts))


def rows_of_groups(groups: GroupRows, count: int, weight: int) -> ArrayRows:
    """As :meth:`GroupRows.by_rows`."""
    return ArrayRows(groups.data[:count], groups.data[weight], labels=groups.labels[:count])


def cut_by_group(values: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Values by row as one entry a group: the values of its rows."""
    found = np.empty(len(starts) - 1, dtype=object)
    for group in range(len(found)):
        found[group] = values[starts[group] : starts[group + 1]]
    return found


def one_if_constant(array: np.ndarray) -> np.ndarray:
    """The same rows, in the memory of one where they are all the same."""
    same = array.strides[0] == 0 or bool((array == array[:1]).all())
    return np.broadcast_to(array[:1].copy(), array.shape) if same else array


def _by_group(array: Any, grouping: Grouping) -> Any:
    if isinstance(array, InOrder):
        return array
    slim = one_if_constant(array)
    return slim[grouping.order] if slim is array and not grouping.is_sorted else slim


# Cells that may be filled in: so many for every row, and so many in any case.
FILLED_BY_ROW, FILLED_ANYWAY = 30, 1_000_000


@dataclass(frozen=True)
class SideBySide:
    """Groups as units of one shape: their rows side by side, filled up to the longest, and how often each counts."""

    longest: int
    chunk: int
    """Groups in a chunk."""

    @staticmethod
    def of(grouping: Grouping, chunk: int) -> SideBySide:
        """For these groups, unless too much would be filled in."""
        longest, groups, rows = int(grouping.sizes.max()), len(grouping), grouping.row_count
        if longest * groups > max(FILLED_ANYWAY, FILLED_BY_ROW * rows):
            raise DataError(
                f'the groups "{grouping.name}" have up to {longest} rows each and {rows / groups:.0f} on average; put side by side '
                "they would be filled up to many times their size. Split the longest groups, or use a formula: "
                'rb.glm("y ~ x + (1 | g)").'
            )
        # Filled up to a size that other data share, so that these are not compiled for again.
        longest = _shared_size(longest)
        return SideBySide(longest, max(1, min(chunk, 65_536 // longest)))

    def __call__(self, kept: GroupRows) -> ArrayRows:
        """Of rows in groups whose last array are their weights."""
        *columns, weight = kept.data
        first = kept.starts[:-1, None]
        inside = np.arange(self.longest)[None] < np.diff(kept.starts)[:, None]
        # What is filled in repeats the group's first row: a value that the model can be asked about.
        chosen = np.where(inside, first + np.arange(self.longest)[None], first)
        counts = np.where(inside, weight[chosen], 0.0)
        data = (*(array[chosen] for array in columns), counts)
        return ArrayRows(data, np.ones(len(kept)), self.chunk, self.labels(kept.labels))

    def labels(self, of_rows: tuple[str, ...]) -> tuple[str, ...]:
        return (*of_rows, "counts")


def side_by_side(rows: ArrayRows, grouping: Grouping) -> ArrayRows:
    """Groups of rows in memory as units of one shape."""
    kept = rows_in_groups((*rows.data, rows.weight), grouping, rows.labels)
    return SideBySide.of(grouping, rows.chunk)(kept)


def _shared_size(count: int) -> int:
    """The next power of two, or for more than 64 the next quarter of one."""
    power = 1 << max(0, count - 1).bit_length()
    step = power if power <= 64 else power // 8
    return -(-count // step) * step
