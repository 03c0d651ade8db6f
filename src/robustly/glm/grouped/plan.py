"""What is given of rows in groups, and what is to be fitted to them?"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from robustly._runtime.freed_memory import give_back
from robustly.fit.checkpoint import CheckpointedRows, PassLog
from robustly.fit.outcome import Stop
from robustly.glm.grouped.effects import EffectLaw
from robustly.glm.grouped.linear import GroupSums, group_sums
from robustly.glm.grouped.moments import inner_starts, read_groups
from robustly.glm.grouped.nested_linear import NestedSums, nested_sums
from robustly.glm.grouped.sums import sums_by_group
from robustly.glm.law import Law
from robustly.glm.regression import Plan
from robustly.model.linear import Design
from robustly.rows.groups import CHUNK_ROWS, Grouping, GroupRows, one_if_constant
from robustly.rows.store import Data, Rows

if TYPE_CHECKING:
    from robustly.rows.dask_groups import DaskGroupRows

# Rows in a chunk of nested groups, whose rules have points for every pair of effects.
NESTED_CHUNK = 1024


@dataclass(frozen=True, eq=False)
class InnerGroups:
    """Groups within the groups, with effects of their own."""

    name: str
    labels: list[Any]
    sizes: np.ndarray
    """How many rows each has."""
    owner: np.ndarray
    """The group that each is in."""
    first: int
    """From this one on, effects are theirs."""

    @property
    def as_kept(self) -> np.ndarray:
        """The inner groups one after the other as their rows are kept: group by group, each in the order of the labels."""
        return np.lexsort((np.arange(len(self.owner)), self.owner))


@dataclass(frozen=True, eq=False)
class TurnedRows:
    """A design's rows in the order of their groups and the coordinates of the search, made where they are asked for.

    Beside the design's own columns, an array of them would be most of a fit's memory.
    """

    matrix: Any
    design: Design

    @property
    def shape(self) -> tuple[int, int]:
        return self.matrix.shape[0], self.design.size

    def __getitem__(self, rows: Any) -> np.ndarray:
        return self.design.turned(self.matrix[rows])


@dataclass(frozen=True, eq=False)
class Turning:
    """What makes rows of a search of those that are kept: columns in its coordinates, effects in their units and its order."""

    design: Design
    sizes: np.ndarray
    order: tuple[int, ...]
    chunk_rows: int

    def __call__(self, kept: GroupRows) -> GroupRows:
        matrix, offset, y, trials, columns, *more = kept.data
        scaled = one_if_constant(columns[:, list(self.order)] / self.sizes)
        data = (TurnedRows(matrix, self.design), offset, y, trials, scaled, *more)
        return replace(kept, data=data, chunk_rows=self.chunk_rows)


@dataclass(frozen=True, eq=False)
class GroupDesign:
    """Rows of a regression that fall into groups: the design, the groups, and the columns of their effects."""

    design: Design
    grouping: Grouping
    kept: GroupRows | DaskGroupRows
    """The rows in the order of their groups, which are its units: matrix, offset, response, trials, columns of effects, how often
    each row counts, and where there are groups within groups the number of the row's."""
    sizes: np.ndarray
    """The root mean squares of the effects' columns."""
    terms: tuple[str, ...]
    entries: tuple[tuple[int, int], ...]
    """Entries of the effects' factor that are fitted: all below the diagonal where effects are correlated."""
    order: tuple[int, ...]
    """Which column of effects is which effect's."""
    inner: InnerGroups | None = None
    log: PassLog | None = None
    """Where passes over the groups are kept, if anywhere."""

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

    def logged(self, rows: CheckpointedRows) -> GroupDesign:
        """The same with a checkpoint of the rows and of the groups."""
        return replace(self, design=self.design.with_rows(rows), log=rows.log)

    @cached_property
    def rows(self) -> Rows:
        give_back()
        chunk = CHUNK_ROWS if self.inner is None else NESTED_CHUNK
        found = self.kept.remade(Turning(self.design, self.sizes, self.order, chunk))
        return found if self.log is None else CheckpointedRows(found, self.log)

    @cached_property
    def sums(self) -> GroupSums | NestedSums:
        """Of normal responses: products of columns added up within groups, or groups within them."""
        return self.sums_of(self.rows)

    def sums_of(self, rows: Rows) -> GroupSums | NestedSums:
        """The same of other rows."""
        return group_sums(rows) if self.inner is None else nested_sums(rows)

    @cached_property
    def freedom(self) -> dict[str, float]:
        """Degrees of freedom of coefficients that are told by differences between groups: as many as there are groups, less one.

        A column tells of a group no more than effects do if within each group it is a combination of their columns. Of groups
        within groups it is the inner ones that count, less the outer.
        """
        if self.design.sparse:
            return {}
        found = self.kept.map(ToldBetween(self.design.intercept, self.order, self.outer), None).sums
        between = found["max within groups"] == 0
        left = max(1.0, len(self.grouping) - between.sum() / self.outer)
        freedom = {term: float(left) for term, one in zip(self.design.terms, between) if one}
        if self.inner is not None:
            within = (found["max within inner groups"] == 0) & ~between
            inner = len(self.inner.labels)
            left = max(1.0, inner - len(self.grouping) - within.sum() / (len(self.terms) - self.outer))
            freedom |= {term: float(left) for term, one in zip(self.design.terms, within) if one}
        return freedom


@dataclass(frozen=True)
class ToldBetween:
    """A pass that tells which columns are combinations of the effects' columns within each group: 0, and 1 for others."""

    intercept: bool
    order: tuple[int, ...]
    outer: int

    def __call__(
        self, theta: Any, data: Data, weight: np.ndarray, state: Any
    ) -> tuple[dict[str, Any], dict[str, Any], None]:
        part = read_groups(data)
        effects = part.columns[:, list(self.order)]
        sums = {"max within groups": self._apart(part.directions, effects[:, : self.outer], part.starts)}
        if part.inner is not None:
            starts = inner_starts(part)[0]
            sums["max within inner groups"] = self._apart(part.directions, effects[:, self.outer :], starts)
        return sums, {}, None

    def _apart(self, plain: np.ndarray, effects: np.ndarray, starts: np.ndarray) -> np.ndarray:
        constant = [np.ones((len(plain), 1))] if self.intercept else []
        size = plain.shape[1] + len(constant)
        part = np.concatenate([*constant, plain, effects], axis=1)
        sums = sums_by_group(part, part, starts)
        xz, zz = sums[:, :size, size:], sums[:, size:, size:]
        told = np.einsum("gxa,gab,gxb->gx", xz, np.linalg.pinv(zz, rcond=1e-10, hermitian=True), xz)
        whole = np.einsum("gxx->gx", sums[:, :size, :size])
        return np.any(whole - told > 1e-9 * np.maximum(whole, 1e-300), axis=0).astype(float)


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
