"""What is given of rows in groups, and what is to be fitted to them?"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from robustly._runtime.freed_memory import give_back
from robustly.fit.outcome import Stop
from robustly.glm.grouped.effects import EffectLaw
from robustly.glm.grouped.linear import GroupSums, group_sums
from robustly.glm.grouped.moments import inner_starts, read_groups
from robustly.glm.grouped.nested_linear import NestedSums, nested_sums
from robustly.glm.grouped.sums import sums_by_group
from robustly.glm.law import Law
from robustly.glm.regression import Plan
from robustly.model.linear import Design
from robustly.rows.groups import CHUNK_ROWS, Grouping, GroupRows, rows_in_groups

# Rows in a chunk of nested groups, whose rules have points for every pair of effects.
NESTED_CHUNK = 1024


@dataclass(frozen=True, eq=False)
class InnerGroups:
    """Groups within the groups, with effects of their own."""

    name: str
    labels: list[Any]
    of_row: np.ndarray
    """The inner group of every row, in the order of the data."""
    first: int
    """From this one on, effects are theirs."""


@dataclass(frozen=True, eq=False)
class TurnedRows:
    """A design's rows in the order of their groups and the coordinates of the search, made where they are asked for.

    Beside the design's own columns, an array of them would be most of a fit's memory.
    """

    design: Design
    grouping: Grouping

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.design), self.design.size

    def __getitem__(self, rows: Any) -> np.ndarray:
        return self.design.turned(self.design.matrix[self.grouping.kept_at(rows)])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        found = np.empty(self.shape)
        for start in range(0, len(found), CHUNK_ROWS):
            part = slice(start, start + CHUNK_ROWS)
            found[part] = self[part]
        return found


@dataclass(frozen=True, eq=False)
class GroupDesign:
    """Rows of a regression that fall into groups: the design, the groups, and the columns of their effects."""

    design: Design
    grouping: Grouping
    columns: np.ndarray
    """Of the effects, by row, in the order in which rows are kept, each divided by its size."""
    sizes: np.ndarray
    """The columns' root mean squares."""
    terms: tuple[str, ...]
    entries: tuple[tuple[int, int], ...]
    """Entries of the effects' factor that are fitted: all below the diagonal where effects are correlated."""
    inner: InnerGroups | None = None

    @property
    def outer(self) -> int:
        """How many of the effects are those of the units; the others are of groups within them."""
        return len(self.terms) if self.inner is None else self.inner.first

    @property
    def names(self) -> list[str]:
        """What the groups of each effect are called."""
        inner = [] if self.inner is None else [self.inner.name] * (len(self.terms) - self.outer)
        return [self.grouping.name] * self.outer + inner

    def level_of(self, term: int) -> range:
        """All effects of the groups that an effect belongs to."""
        return range(self.outer) if term < self.outer else range(self.outer, len(self.terms))

    @property
    def response(self) -> np.ndarray:
        """Of every row, in the order of the data."""
        return self.grouping.in_data_order(np.asarray(self.design.y))

    @cached_property
    def rows(self) -> GroupRows:
        give_back()
        design, inner = self.design, self.inner
        by_row = [np.broadcast_to(part, len(design)) for part in (design.offset, design.y, design.trials)]
        others = rows_in_groups((*by_row, self.columns, design.rows.weight), self.grouping)
        directions = TurnedRows(design, self.grouping)
        within = () if inner is None else (inner.of_row[self.grouping.order],)
        labels = ("u", "offset", "y", "trials", "z", "weight", *("inner" for _ in within))
        chunk = CHUNK_ROWS if inner is None else NESTED_CHUNK
        return replace(others, data=(directions, *others.data, *within), labels=labels, chunk_rows=chunk)

    @cached_property
    def sums(self) -> GroupSums | NestedSums:
        """Of normal responses: products of columns added up within groups, or groups within them."""
        return group_sums(self.rows) if self.inner is None else nested_sums(self.rows)

    @cached_property
    def freedom(self) -> dict[str, float]:
        """Degrees of freedom of coefficients that are told by differences between groups: as many as there are groups, less one.

        A column tells of a group no more than effects do if within each group it is a combination of their columns. Of groups
        within groups it is the inner ones that count, less the outer.
        """
        if self.design.sparse:
            return {}
        part = read_groups((*self.rows.data, self.rows.starts))
        between = self._told_between(part.columns[:, : self.outer], part.starts)
        left = max(1.0, len(self.grouping) - between.sum() / self.outer)
        found = {term: float(left) for term, one in zip(self.design.terms, between) if one}
        if self.inner is not None:
            starts, _ = inner_starts(part)
            within = self._told_between(part.columns[:, self.outer :], starts) & ~between
            left = max(1.0, len(starts) - 1 - len(self.grouping) - within.sum() / (len(self.terms) - self.outer))
            found |= {term: float(left) for term, one in zip(self.design.terms, within) if one}
        return found

    def _told_between(self, effects: np.ndarray, starts: np.ndarray) -> np.ndarray:
        """Which columns are combinations of the effects' columns within each group."""
        design, first = self.design, 0
        between = np.ones(len(design.terms), dtype=bool)
        while first < len(starts) - 1:
            last = max(first + 1, int(np.searchsorted(starts, starts[first] + CHUNK_ROWS, side="right")) - 1)
            rows = slice(starts[first], starts[last])
            plain, size = design.matrix[self.grouping.kept_at(rows)], len(design.terms)
            constant = [np.ones((len(plain), 1))] if design.intercept else []
            part = np.concatenate([*constant, plain, effects[rows]], axis=1)
            sums = sums_by_group(part, part, starts[first : last + 1] - starts[first])
            xz, zz = sums[:, :size, size:], sums[:, size:, size:]
            told = np.einsum("gxa,gab,gxb->gx", xz, np.linalg.pinv(zz, rcond=1e-10, hermitian=True), xz)
            whole = np.einsum("gxx->gx", sums[:, :size, :size])
            between &= np.all(whole - told <= 1e-9 * np.maximum(whole, 1e-300), axis=0)
            first = last
        return between


@dataclass(frozen=True)
class GroupPlan:
    """What to fit, and how."""

    law: Law
    effects: EffectLaw
    held: dict[str, float] = field(default_factory=dict)
    """Shared numbers that are not fitted, on their own scale."""
    stop: Stop = Stop(1e-10, 200)  # noqa: RUF009
    finer: int = 1

    @property
    def plain(self) -> Plan:
        """The same rows without effects."""
        held = {name: value for name, value in self.held.items() if name in self.law.names}
        return Plan(self.law, held=held, stop=self.stop)
