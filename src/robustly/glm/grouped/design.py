"""Which rows share effects, and in which columns? The bars of a formula, read with the data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from robustly.errors import DataError, ModelError, names
from robustly.glm.formula_bars import Bar
from robustly.glm.formula_frames import refuse_missing
from robustly.glm.formula_parse import parse
from robustly.glm.formula_spec import FormulaColumns, factors_of, learn, needed, refuse_not_computable
from robustly.glm.grouped.problem import GroupDesign
from robustly.model.linear import Design
from robustly.rows.groups import Grouping, group_rows

MOST_EFFECTS = 3
INTERCEPT = "Intercept"


@dataclass(frozen=True, eq=False)
class EffectColumns:
    """How new rows get their groups and the columns of their effects."""

    groups: tuple[str, ...]
    """Columns that tell groups apart."""
    parts: tuple[FormulaColumns, ...] = field(repr=False)
    """One for each bar."""

    @property
    def name(self) -> str:
        return ":".join(self.groups)

    def matrix_of(self, frame: pd.DataFrame) -> np.ndarray:
        """The columns of the effects."""
        return np.concatenate([whole_matrix(part, frame) for part in self.parts], axis=1)

    def labels_of(self, frame: pd.DataFrame) -> np.ndarray:
        """The group of every row."""
        for name in self.groups:
            if name not in frame.columns:
                raise DataError(
                    f'the groups are told apart by the column "{name}", which the new rows do not have. Add it, or ask for new '
                    'groups: predictive(data, groups="new").'
                )
        return group_labels(frame, self.groups)


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
    _refuse_other_groups(bars, frame)
    outer = bars[0]
    grouping = group_rows(group_labels(frame, outer.groups), outer.name)
    parts: list[FormulaColumns] = []
    blocks: list[np.ndarray] = []
    terms: list[str] = []
    entries: list[tuple[int, int]] = []
    response = formula.split("~")[0].strip()
    for bar in bars:
        core, parsed, added, _ = parse(f"{response} ~ {bar.effects}", there)
        if added:
            raise ModelError(f"({bar.effects} | {bar.name}) holds an offset; write it outside of the bar.")
        refuse_missing(frame, needed(parsed.rhs, there))
        refuse_not_computable([*factors_of(parsed.rhs, there).items()], frame)
        learnt = learn(parsed.rhs, frame)
        first = len(terms)
        terms += learnt.side.columns
        blocks.append(learnt.matrix)
        parts.append(FormulaColumns(core, (), learnt.side, (), (), {}))
        entries += [(a, b) for a in range(first, len(terms)) for b in range(first, a + 1) if bar.correlated or a == b]
    doubled = sorted({term for term in terms if terms.count(term) > 1})
    if doubled:
        raise ModelError(
            f'the effect "{doubled[0]}" of "{outer.name}" is there twice. A bar has an intercept unless it says 0: write '
            f"(1 | {outer.name}) + (0 + x | {outer.name})."
        )
    if not terms:
        raise ModelError(f"the bar of {outer.name} has no effects. Write (1 | {outer.name}).")
    columns = np.ascontiguousarray(np.concatenate(blocks, axis=1))
    given = group_design(design, grouping, columns, tuple(terms), tuple(entries))
    return given, EffectColumns(outer.groups, tuple(parts))


def group_design(
    design: Design,
    grouping: Grouping,
    columns: np.ndarray,
    terms: tuple[str, ...],
    entries: tuple[tuple[int, int], ...],
) -> GroupDesign:
    """Rows in groups, if there are effects to be found in them."""
    if len(grouping) < 2:
        raise ModelError(
            f'all rows are in one group of "{grouping.name}", so effects of groups cannot be told. Leave the bar out.'
        )
    sizes = np.sqrt(np.mean(columns**2, axis=0))
    if np.any(sizes == 0):
        raise ModelError(f'the effect "{terms[int(np.argmin(sizes))]}" has a column of zeros. Leave it out.')
    return GroupDesign(design, grouping, columns / sizes, sizes, terms, entries)


def _refuse_other_groups(bars: Sequence[Bar], frame: pd.DataFrame) -> None:
    """Groups within groups, and groups across groups."""
    different = list(dict.fromkeys(bar.groups for bar in bars))
    if len(different) == 1:
        return
    first, second = (group_rows(group_labels(frame, one), ":".join(one)) for one in different[:2])
    crossed = pd.DataFrame({"a": first.of_row, "b": second.of_row}).drop_duplicates()
    within = not crossed["b"].duplicated().any() or not crossed["a"].duplicated().any()
    listed = names(":".join(one) for one in different)
    if not within:
        label = second.labels[int(crossed["b"][crossed["b"].duplicated()].iloc[0])]
        raise ModelError(
            f'the groups {listed} cross: "{label}" of "{second.name}" has rows in several groups of "{first.name}". The '
            "likelihood then does not fall into groups that can be integrated one by one. Make one of them a factor of the "
            f"formula (C({second.name})), or use lme4, glmmTMB or NumPyro for crossed effects."
        )
    raise ModelError(
        f"there are effects of {listed}, groups within groups. One level of groups is integrated exactly here: keep the one "
        "that matters more, or make the other a factor of the formula."
    )
