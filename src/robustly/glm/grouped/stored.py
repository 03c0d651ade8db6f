"""How do rows that are not in memory come into their groups? Their groups are read first, then all rows are sorted by them, once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from robustly.glm.families import Family
from robustly.glm.formula_bars import Bar
from robustly.glm.formula_spec import Learnt
from robustly.glm.grouped.design import KEPT, EffectColumns, Effects, group_labels, grouping_columns, read_effects
from robustly.glm.grouped.plan import GroupDesign
from robustly.model.linear import Design
from robustly.model.read_design import DATA
from robustly.rows.anywhere import grouping_from, rows_from, sorted_from
from robustly.rows.groups import Grouping
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
    """Of a formula's groups; without them groups have an intercept."""

    def __call__(self, *parts: Any) -> tuple[Data, Any]:
        data, weight = self.rows(*parts)
        self.family.check_response(data[2], data[3])
        effects = np.ones((len(data[0]), 1)) if self.effects is None else self.effects.matrix_of(parts[0])
        return (*data, effects), weight


def stored_effects(
    bars: Sequence[Bar], frame: Stored, formula: str, there: Sequence[str], learnt: Callable[[Any], Learnt]
) -> Effects:
    """As :func:`~robustly.glm.grouped.design.read_effects`, of groups that are found in one scan of their columns."""
    found = []
    for columns in grouping_columns(bars):
        layout = Layout(LabelRecipe(columns), ("groups",), as_cut=True)
        labels = rows_from([frame.pick(columns, framed=True)], layout)
        found.append(grouping_from(labels, ":".join(columns)))
    return read_effects(bars, found, formula, there, learnt)


def stored_grouping(column: Stored) -> Grouping:
    """The groups of rows by one of their columns."""
    return grouping_from(rows_from([column], Layout(column_as_it_is, ("groups",), as_cut=True)), "groups")


def stored_group_design(rows: Rows, effects: Effects, design_of_rows: Callable[[Rows], Design]) -> GroupDesign:
    """Rows in their groups, sorted by them; the columns of effects come after a design's own."""
    kept, grouping, notes = sorted_from(rows, effects.grouping, effects.inner)
    found = design_of_rows(kept.by_rows(len(DATA), KEPT.index("weight")))
    design = found.noted(*found.notes, *notes)
    return replace(effects, grouping=grouping).kept_as(design, kept)
