"""How do rows that are not in memory come into their groups? Their groups are read first, then all rows are sorted by them, once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from robustly.glm.families import Family
from robustly.glm.formula_bars import Bar
from robustly.glm.formula_spec import Learnt
from robustly.glm.grouped.design import EffectColumns, Effects, group_labels, grouping_columns, read_effects
from robustly.glm.grouped.plan import GroupDesign
from robustly.model.linear import Design
from robustly.rows.anywhere import rows_from
from robustly.rows.groups import Grouping
from robustly.rows.sorted_files import read_grouping, sorted_by_group
from robustly.rows.store import Data, Rows
from robustly.rows.stored import Layout, Stored, column_as_it_is
from robustly.rows.streamed import Recipe


@dataclass(frozen=True)
class LabelRecipe:
    """The label of every row's group, told by some columns of a frame."""

    columns: tuple[str, ...]

    def __call__(self, frame: Any) -> tuple[Data, None]:
        return column_as_it_is(group_labels(frame.reset_index(drop=True), self.columns))


@dataclass(frozen=True, eq=False)
class GroupedRecipe:
    """As another recipe, with the columns of effects after the others, of responses that the family can have."""

    rows: Recipe
    family: Family
    effects: EffectColumns | None = None

    def __call__(self, *parts: Any) -> tuple[Data, Any]:
        data, weight = self.rows(*parts)
        self.family.check_response(data[2], data[3])
        return data if self.effects is None else (*data, self.effects.matrix_of(parts[0])), weight


def stored_effects(
    bars: Sequence[Bar], frame: Stored, formula: str, there: Sequence[str], learnt: Callable[[Any], Learnt]
) -> Effects:
    """As :func:`~robustly.glm.grouped.design.read_effects`, of groups that are found in one scan of their columns."""
    found = []
    for columns in grouping_columns(bars):
        labels = rows_from([frame.pick(columns, framed=True)], Layout(LabelRecipe(columns), ("groups",)))
        found.append(read_grouping(labels, ":".join(columns)))
    return read_effects(bars, found, formula, there, learnt)


def stored_grouping(column: Stored) -> Grouping:
    """The groups of rows by one of their columns."""
    return read_grouping(rows_from([column], Layout(column_as_it_is, ("groups",))), "groups")


def sorted_design(
    rows: Rows, grouping: Grouping, design_of_rows: Callable[[Rows], Design]
) -> tuple[Design, Grouping, Data]:
    """The design of rows sorted by their groups, the groups of rows so kept, and what the rows have beside a design's own."""
    found, grouping, notes = sorted_by_group(rows, grouping)
    design = design_of_rows(replace(found, data=found.data[:4]))
    return design.noted(*design.notes, *notes), grouping, found.data[4:]


def stored_group_design(
    rows: Rows, effects: Effects, design_of_rows: Callable[[Rows], Design]
) -> tuple[Design, GroupDesign]:
    """Rows of a formula with bars in their groups; the columns of effects come after a design's own."""
    design, grouping, (columns,) = sorted_design(rows, effects.grouping, design_of_rows)
    return design, replace(effects, grouping=grouping).design_of(design, np.asarray(columns))
