"""How do the rows of a group come together that stand in several Dask partitions? Shuffled once; each partition then has whole groups.

Groups are numbered in the order of their first rows, and a partition gets those with numbers next to each other, about as many rows
as it had. So values by group come in the order of the groups, partitions that have whole groups keep them, and of sorted
rows only those move whose group was cut. Numbers, places and rows stay on the workers; the client knows labels and sizes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from operator import itemgetter
from typing import Any

import numpy as np

from robustly.errors import DataError
from robustly.rows.arrays import ArrayRows
from robustly.rows.dask import RETRIES, DaskRows, dask_client, gathered
from robustly.rows.dask_tasks import facts_of_part
from robustly.rows.groups import Grouping, GroupRows, SideBySide, group_rows, rows_of_groups
from robustly.rows.store import Data
from robustly.rows.streamed import put_together


@dataclass(frozen=True, eq=False)
class DaskGrouping(Grouping):
    """How rows on the workers fall into groups. What is by row stays there until it is asked for, and `order` is empty."""

    numbers: tuple[Any, ...] = ()
    """The group of every row, partition by partition."""
    in_parts: tuple[np.ndarray, ...] = ()
    """The groups that each partition has rows of."""
    in_part_sizes: tuple[np.ndarray, ...] = ()
    """How many these are."""
    places: tuple[Any, ...] = ()
    """Of rows that have been sorted: where each had stood, partition by partition."""

    @cached_property
    def _order(self) -> np.ndarray:
        return np.concatenate(gathered(dask_client(), list(self.places)))

    @property
    def of_row(self) -> np.ndarray:
        found = np.empty(self.row_count, dtype=int)
        found[self._order] = np.repeat(np.arange(len(self)), self.sizes)
        return found

    def to_rows(self, sorted_values: np.ndarray) -> np.ndarray:
        found = np.empty_like(sorted_values)
        found[self._order] = sorted_values
        return found

    def pairs_with(self, other: Grouping) -> np.ndarray:
        assert isinstance(other, DaskGrouping)
        client = dask_client()
        futures = [client.submit(different_pairs, *both, pure=False) for both in zip(self.numbers, other.numbers)]
        both = np.concatenate(gathered(client, futures))
        return both[np.sort(np.unique(both, axis=0, return_index=True)[1])]

    def then_by(self, inner: Grouping) -> Grouping:
        return self  # rows are brought into their order when they are sorted


def dask_grouping(labels: DaskRows, name: str) -> DaskGrouping:
    """The groups of rows that have nothing but the label of their group, in the order of their first rows."""
    known: dict[Any, int] = {}
    in_parts, sizes = [], []
    for found, counts in labels.each_piece(LabelsOfPart(name)):
        in_parts.append(np.array([known.setdefault(label, len(known)) for label in found], dtype=np.int64))
        sizes.append(counts)
    client = dask_client()
    numbers = tuple(
        client.submit(numbers_of_part, part, name, known_as, pure=False)
        for part, known_as in zip(labels.parts, in_parts)
    )
    total = np.bincount(np.concatenate(in_parts), np.concatenate(sizes), minlength=len(known)).astype(np.int64)
    starts = np.concatenate([[0], np.cumsum(total)])
    return DaskGrouping(
        name,
        list(known),
        np.zeros(0, dtype=int),
        starts,
        numbers=numbers,
        in_parts=tuple(in_parts),
        in_part_sizes=tuple(sizes),
    )


@dataclass(frozen=True, eq=False)
class DaskGroupRows(DaskRows):
    """Partitions of whole groups, which are the units."""

    row_counts: tuple[int, ...] = field(default=())

    def remade(self, make: Callable[[GroupRows], GroupRows]) -> DaskGroupRows:
        """The same groups with other arrays, made of these."""
        return self._with_parts(make)

    def by_rows(self, count: int, weight: int) -> DaskRows:
        """The rows as units of their own, in the order of their groups: the first arrays, and another as weights."""
        client = dask_client()
        parts = [client.submit(rows_of_groups, part, count, weight, pure=False) for part in self.parts]
        facts = gathered(client, [client.submit(facts_of_part, part, pure=False) for part in parts])
        total, ones = float(sum(one[1] for one in facts)), all(one[2] for one in facts)
        return DaskRows(tuple(parts), self.row_counts, total, ones, self.labels[:count])

    def units(self, make: SideBySide) -> DaskRows:
        """The groups as units of one shape, each counting once."""
        parts = self._with_parts(make).parts
        return DaskRows(parts, self.counts, float(len(self)), True, make.labels(self.labels), make.chunk)

    def take(self, index: Any) -> GroupRows:
        return joined_groups(gathered(dask_client(), [part for part, _ in self._chosen(index)]))

    def some(self, index: Any) -> DaskGroupRows:
        chosen = self._chosen(index)
        counts = tuple(count for _, count in chosen)
        return replace(
            self,
            parts=tuple(part for part, _ in chosen),
            counts=counts,
            summed_weight=float(sum(counts)),
            row_counts=(),
        )

    def _chosen(self, index: Any) -> list[tuple[Any, int]]:
        """Those of the partitions that have some of these groups, without the others."""
        client, wanted = dask_client(), np.asarray(index, dtype=np.int64)
        starts = np.concatenate([[0], np.cumsum(self.counts)])
        cuts = np.searchsorted(wanted, starts)
        return [
            (client.submit(chosen_groups, part, wanted[low:high] - start, pure=False), int(high - low))
            for part, low, high, start in zip(self.parts, cuts[:-1], cuts[1:], starts[:-1])
            if high > low
        ]

    def _with_parts(self, make: Callable[[GroupRows], Any]) -> DaskGroupRows:
        client, sent = dask_client(), self._send(make)
        parts = tuple(client.submit(made_again, sent, part, pure=False) for part in self.parts)
        return replace(self, parts=parts, _states=type(self._states)())


def shuffled_by_group(
    rows: DaskRows, grouping: Grouping, inner: Grouping | None = None
) -> tuple[DaskGroupRows, Grouping, tuple[str, ...]]:
    """The same rows in groups, the grouping of rows so kept, and a note where some had stood in several partitions.

    After the arrays of the rows come their weights, and the numbers of the groups within the groups where there are such.
    """
    assert isinstance(grouping, DaskGrouping)
    counts = tuple(int(sizes.sum()) for sizes in grouping.in_part_sizes)
    if counts != rows.counts:
        raise DataError(
            f'the groups "{grouping.name}" are in partitions of {_few(counts)} rows, the rows in partitions of {_few(rows.counts)}. '
            "Collections of one fit are cut alike: rechunk them, or put the groups beside the rows in one data frame."
        )
    client = dask_client()
    firsts = _firsts(grouping, rows.counts)
    within = [None] * len(rows.parts) if inner is None else inner.numbers  # type: ignore[attr-defined]
    begin = np.concatenate([[0], np.cumsum(rows.counts)])
    pieces: list[list[Any]] = [[] for _ in firsts[:-1]]
    for part, numbers, inside, start, there in zip(rows.parts, grouping.numbers, within, begin, grouping.in_parts):
        cut = client.submit(cut_part, part, numbers, inside, int(start), firsts, pure=False, retries=RETRIES)
        for target in np.unique(np.searchsorted(firsts, there, side="right") - 1):
            pieces[target].append(client.submit(itemgetter(int(target)), cut, pure=False))
    joined = [
        client.submit(join_pieces, int(high - low), int(low), rows.labels, *some, pure=False, retries=RETRIES)
        for low, high, some in zip(firsts[:-1], firsts[1:], pieces)
    ]
    parts = tuple(client.submit(itemgetter(0), one, pure=False) for one in joined)
    places = tuple(client.submit(itemgetter(1), one, pure=False) for one in joined)
    groups = tuple(int(count) for count in np.diff(firsts))
    found = DaskGroupRows(
        parts, groups, float(len(grouping)), True, rows.labels,
        row_counts=tuple(int(count) for count in np.diff(grouping.starts[firsts])),
    )  # fmt: skip
    # What cannot be made into rows is said here, before anything is fitted to the others.
    gathered(client, [client.submit(len, part, pure=False) for part in parts])
    note = _shuffle_note(grouping)
    return found, replace(grouping, is_sorted=True, places=places, numbers=()), (note,) if note else ()


def _firsts(grouping: DaskGrouping, counts: tuple[int, ...]) -> np.ndarray:
    """The first group of every partition, and how many there are: cut where partitions were, next to the ends of groups."""
    wanted = np.cumsum(counts)[:-1]
    after = np.minimum(np.searchsorted(grouping.starts, wanted), len(grouping))
    before = np.maximum(after - 1, 0)
    nearer = wanted - grouping.starts[before] < grouping.starts[after] - wanted
    return np.unique(np.concatenate([[0], np.where(nearer, before, after), [len(grouping)]]))


def _shuffle_note(grouping: DaskGrouping) -> str:
    homes = np.bincount(np.concatenate(grouping.in_parts), minlength=len(grouping))
    apart = int(np.sum(homes > 1))
    if not apart:
        return ""
    return (
        f'rows of {apart} of {len(grouping)} groups of "{grouping.name}" stood in several partitions: these were shuffled by it '
        "once."
    )


def _few(counts: tuple[int, ...]) -> str:
    return ", ".join(str(count) for count in counts[:4]) + (", …" if len(counts) > 4 else "")


# ---------------------------------------------------------------------- tasks, and what they give


@dataclass(frozen=True)
class LabelsOfPart:
    """The groups of a partition whose first column are labels: what they are called, and how many rows each has."""

    name: str

    def __call__(self, data: Data) -> tuple[list[Any], np.ndarray]:
        found = group_rows(data[0], self.name)
        return found.labels, found.sizes


def numbers_of_part(part: ArrayRows, name: str, known_as: np.ndarray) -> np.ndarray:
    """The number of every row's group, by what the groups of the partition are known as."""
    return known_as[group_rows(part.data[0], name).of_row]


def different_pairs(one: np.ndarray, two: np.ndarray) -> np.ndarray:
    both = np.stack([one, two], axis=1)
    return both[np.sort(np.unique(both, axis=0, return_index=True)[1])]


@dataclass(frozen=True, eq=False)
class RowPiece:
    """Some rows of a partition on their way to another."""

    data: Data
    weight: np.ndarray
    numbers: np.ndarray
    inner: np.ndarray | None
    places: np.ndarray


def cut_part(
    part: ArrayRows, numbers: np.ndarray, inner: np.ndarray | None, start: int, firsts: np.ndarray
) -> dict[int, RowPiece]:
    """The rows of a partition by where they go."""
    target = np.searchsorted(firsts, numbers, side="right") - 1
    found = {}
    for one in np.unique(target):
        chosen = np.flatnonzero(target == one)
        data = tuple(_picked(array, chosen) for array in part.data)
        within = None if inner is None else inner[chosen]
        found[int(one)] = RowPiece(data, part.weight[chosen], numbers[chosen], within, start + chosen)
    return found


def join_pieces(count: int, first: int, labels: tuple[str, ...], *pieces: RowPiece) -> tuple[GroupRows, np.ndarray]:
    """So many groups from the first on in their order, and where their rows had stood."""
    numbers = np.concatenate([piece.numbers for piece in pieces]) - first
    inner = () if pieces[0].inner is None else (np.concatenate([piece.inner for piece in pieces]),)
    order = np.lexsort((*inner, numbers))
    columns = (*zip(*(piece.data for piece in pieces)), [piece.weight for piece in pieces])
    data = tuple(_picked(put_together(parts), order) for parts in columns)
    starts = np.concatenate([[0], np.cumsum(np.bincount(numbers, minlength=count))])
    groups = GroupRows((*data, *(one[order] for one in inner)), np.ones(count), labels=labels, starts=starts)
    return groups, np.concatenate([piece.places for piece in pieces])[order]


def _picked(array: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    """Some rows of an array; of one in the memory of a single row, as many of that."""
    if array.strides[0] == 0:
        return np.broadcast_to(array[:1], (len(chosen), *array.shape[1:]))
    return array[chosen]


def made_again(make: Callable[[GroupRows], Any], part: GroupRows) -> Any:
    return make(part)


def chosen_groups(part: GroupRows, index: np.ndarray) -> GroupRows:
    return part.take(index)


def joined_groups(parts: list[GroupRows]) -> GroupRows:
    """Groups of several partitions, one after the other."""
    data = tuple(put_together(columns) for columns in zip(*(part.data for part in parts)))
    sizes = np.concatenate([np.diff(part.starts) for part in parts])
    starts = np.concatenate([[0], np.cumsum(sizes)])
    return replace(parts[0], data=data, weight=np.concatenate([part.weight for part in parts]), starts=starts)
