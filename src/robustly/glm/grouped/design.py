"""Which rows share effects, and in which columns? The bars of a formula, read with the data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from robustly.errors import DataError, ModelError, names
from robustly.glm.formula_bars import Bar
from robustly.glm.formula_frames import refuse_missing
from robustly.glm.formula_parse import parse
from robustly.glm.formula_spec import FormulaColumns, Learnt, factors_of, learn, needed, refuse_not_computable
from robustly.glm.grouped.plan import GroupDesign, InnerGroups
from robustly.model.linear import Design
from robustly.rows.groups import Grouping, GroupRows, InOrder, group_rows, rows_in_groups
from robustly.rows.store import Data

if TYPE_CHECKING:
    from robustly.rows.dask_groups import DaskGroupRows

MOST_EFFECTS = 3
INTERCEPT = "Intercept"
# What is kept of rows in groups; after it, of groups within groups, the row's.
KEPT = ("X", "offset", "y", "trials", "effects", "weight")


@dataclass(frozen=True, eq=False)
class EffectColumns:
    """How new rows get their groups and the columns of their effects."""

    groups: tuple[str, ...]
    """Columns that tell groups apart."""
    parts: tuple[FormulaColumns, ...] = field(repr=False)
    """One for each bar."""
    inner: tuple[str, ...] = ()
    """Columns that tell groups within the groups apart; none where there are no such."""

    @property
    def name(self) -> str:
        return ":".join(self.groups)

    def matrix_of(self, frame: pd.DataFrame) -> np.ndarray:
        """The columns of the effects."""
        return np.concatenate([whole_matrix(part, frame) for part in self.parts], axis=1)

    def labels_of(self, frame: pd.DataFrame, inner: bool = False) -> np.ndarray:
        """The group of every row, or the group within it."""
        columns = self.inner if inner else self.groups
        for name in columns:
            if name not in frame.columns:
                raise DataError(
                    f'the groups are told apart by the column "{name}", which the new rows do not have. Add it, or ask for new '
                    'groups: predictive(data, groups="new").'
                )
        return np.asarray(group_labels(frame, columns), dtype=object)


def whole_matrix(part: FormulaColumns, frame: pd.DataFrame) -> np.ndarray:
    """All columns of a formula, the constant included."""
    refuse_missing(frame, part.variables)
    return part.side.matrix(frame)


def group_labels(frame: pd.DataFrame, groups: Sequence[str]) -> Any:
    """One label a row; of several columns, their values joined."""
    if len(groups) == 1:
        return frame[groups[0]]
    texts = frame[groups[0]].astype(str)
    for name in groups[1:]:
        texts = texts + ":" + frame[name].astype(str)
    gone = frame[list(groups)].isna().any(axis=1)
    return texts.where(~gone)


def read_groups_of(
    bars: Sequence[Bar], frame: pd.DataFrame, design: Design, formula: str
) -> tuple[GroupDesign, EffectColumns]:
    """The groups of a formula with bars and the columns of their effects."""
    there = [str(name) for name in frame.columns]
    for bar in bars:
        for name in bar.groups:
            if name not in frame.columns:
                refuse_missing(frame, [name])
    found = [group_rows(group_labels(frame, one), ":".join(one)) for one in grouping_columns(bars)]

    def learnt(form: Any) -> Learnt:
        refuse_missing(frame, needed(form, there))
        refuse_not_computable([*factors_of(form, there).items()], frame)
        return learn(form, frame)

    effects = read_effects(bars, found, formula, there, learnt)
    return effects.design_of(design, np.ascontiguousarray(np.concatenate(effects.blocks, axis=1))), effects.columns


@dataclass(frozen=True, eq=False)
class Effects:
    """What the bars of a formula say of groups that have been read."""

    grouping: Grouping
    inner: Grouping | None
    owner: np.ndarray
    """The group of each inner group."""
    columns: EffectColumns
    blocks: list[np.ndarray]
    """The columns of each bar's effects, of the rows by which it was learnt."""
    terms: list[tuple[str, str]]
    """Group and column of every effect."""
    entries: list[tuple[int, int]]

    def design_of(self, design: Design, columns: np.ndarray) -> GroupDesign:
        """The groups with a design and columns of the effects, both in the order in which rows are kept."""
        of_row = () if self.inner is None else (self.inner.of_row,)
        return self.kept_as(design, kept_in_memory(design, self.grouping, columns, *of_row))

    def kept_as(self, design: Design, kept: GroupRows | DaskGroupRows) -> GroupDesign:
        """The groups with a design and the rows in their order."""
        given = group_design(design, self.grouping, kept, tuple(term for _, term in self.terms), tuple(self.entries))
        if self.inner is None:
            return given
        first = sum(group == self.grouping.name for group, _ in self.terms)
        return replace(
            given, inner=InnerGroups(self.inner.name, self.inner.labels, self.inner.sizes, self.owner, first)
        )


def intercepts_of(grouping: Grouping) -> Effects:
    """Groups that have an intercept of their own and nothing else."""
    name = grouping.name
    return Effects(grouping, None, np.zeros(0, int), EffectColumns((name,), ()), [], [(name, INTERCEPT)], [(0, 0)])


def read_effects(
    bars: Sequence[Bar],
    found: Sequence[Grouping],
    formula: str,
    there: Sequence[str],
    learnt: Callable[[Any], Learnt],
) -> Effects:
    """The effects of a formula's bars, whose groups have been found; ``learnt(form)`` learns the columns of one bar."""
    grouping, inner, owner = _levels(found)
    # Effects of the units come first, those of groups within them after.
    ordered = sorted(bars, key=lambda bar: bar.name != grouping.name)
    parts: list[FormulaColumns] = []
    blocks: list[np.ndarray] = []
    terms: list[tuple[str, str]] = []
    entries: list[tuple[int, int]] = []
    for bar in ordered:
        core, form = effects_form(bar, formula, there)
        side = learnt(form)
        if not side.side.columns:
            raise ModelError(f"the bar of {bar.name} has no effects. Write (1 | {bar.name}).")
        first = len(terms)
        terms += [(bar.name, column) for column in side.side.columns]
        blocks.append(side.matrix)
        parts.append(FormulaColumns(core, (), side.side, (), (), {}))
        entries += [(a, b) for a in range(first, len(terms)) for b in range(first, a + 1) if bar.correlated or a == b]
    doubled = sorted({term for term in terms if terms.count(term) > 1})
    if doubled:
        group, term = doubled[0]
        raise ModelError(
            f'the effect "{term}" of "{group}" is there twice. A bar has an intercept unless it says 0: write '
            f"(1 | {group}) + (0 + x | {group})."
        )
    groups = {bar.name: bar.groups for bar in bars}
    columns = EffectColumns(groups[grouping.name], tuple(parts), () if inner is None else groups[inner.name])
    return Effects(grouping, inner, owner, columns, blocks, terms, entries)


def effects_form(bar: Bar, formula: str, there: Sequence[str]) -> tuple[str, Any]:
    """The formula of a bar's effects, and its parsed right side."""
    core, parsed, added, _ = parse(f"{formula.split('~')[0].strip()} ~ {bar.effects}", list(there))
    if added:
        raise ModelError(f"({bar.effects} | {bar.name}) holds an offset; write it outside of the bar.")
    return core, parsed.rhs


def kept_in_memory(design: Design, grouping: Grouping, columns: np.ndarray, *inner: np.ndarray) -> GroupRows:
    """The rows of a design in the order of their groups; columns of effects and inner groups are in the order of the data."""
    by_row = [np.broadcast_to(part, len(design)) for part in (design.offset, design.y, design.trials)]
    matrix = InOrder(design.matrix, grouping.order)
    return rows_in_groups((matrix, *by_row, columns, design.rows.weight, *inner), grouping, KEPT)


def group_design(
    design: Design,
    grouping: Grouping,
    kept: GroupRows | DaskGroupRows,
    terms: tuple[str, ...],
    entries: tuple[tuple[int, int], ...],
) -> GroupDesign:
    """Rows in groups, if there are effects to be found in them."""
    if len(grouping) < 2:
        raise ModelError(
            f'all rows are in one group of "{grouping.name}", so effects of groups cannot be told. Leave the bar out.'
        )
    sizes = np.sqrt(kept.map(squares_of_effects, None).sums["squares"] / grouping.row_count)
    if not np.isfinite(sizes).all():
        raise DataError(
            f'the squares of the effect "{terms[int(np.argmax(sizes))]}" are beyond what a computer\'s numbers can hold. Divide that '
            "column by its largest value."
        )
    if np.any(sizes == 0):
        raise ModelError(f'the effect "{terms[int(np.argmin(sizes))]}" has a column of zeros. Leave it out.')
    return GroupDesign(design, grouping, kept, sizes, terms, entries, tuple(range(len(terms))))


def squares_of_effects(
    theta: Any, data: Data, weight: np.ndarray, state: Any
) -> tuple[dict[str, Any], dict[str, Any], None]:
    """A pass that adds up squares of the effects' columns."""
    with np.errstate(over="ignore"):
        return {"squares": np.sum(data[4] ** 2, axis=0)}, {}, None


def grouping_columns(bars: Sequence[Bar]) -> list[tuple[str, ...]]:
    """The columns that tell groups apart, of every level."""
    different = list(dict.fromkeys(bar.groups for bar in bars))
    if len(different) > 2:
        raise ModelError(
            f"there are effects of {names(':'.join(one) for one in different)}. Two levels are integrated, groups and groups "
            "within them: leave one out, or make it a factor of the formula."
        )
    return different


def _levels(found: Sequence[Grouping]) -> tuple[Grouping, Grouping | None, np.ndarray]:
    """The groups that are units, the groups within them if there are, and the group of each; rows are in the order of both."""
    if len(found) == 1:
        return found[0], None, np.zeros(0, int)
    crossed = pd.DataFrame(found[0].pairs_with(found[1]), columns=["a", "b"])
    within = [not crossed[name].duplicated().any() for name in ("b", "a")]
    outer, inner = found if within[0] else found[::-1]
    if not any(within):
        label = inner.labels[int(crossed["a"][crossed["a"].duplicated()].iloc[0])]
        raise ModelError(
            f'the groups {names(one.name for one in found)} cross: "{label}" of "{inner.name}" has rows in several groups of '
            f'"{outer.name}". The likelihood then does not fall into groups that can be integrated one by one. Make one of them '
            f"a factor of the formula (C({inner.name})), or use lme4, glmmTMB or NumPyro for crossed effects."
        )
    if all(within):
        raise ModelError(
            f"the groups {names(one.name for one in found)} have the same rows, so their effects are the same thing. Leave one "
            "of them out."
        )
    owner = np.empty(len(inner), dtype=int)
    owner[crossed["b" if within[0] else "a"]] = crossed["a" if within[0] else "b"]
    return outer.then_by(inner), inner, owner
