"""What do the sides of a formula give besides columns? A response, offsets, and numbers that go along with the rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from robustly.errors import DataError, ModelError, did_you_mean, names
from robustly.glm.families import Binomial, Family
from robustly.glm.formula_frames import refuse_missing, refuse_texts
from robustly.glm.formula_spec import FormulaColumns, Learnt, Side, learn
from robustly.glm.grouped.design import EffectColumns
from robustly.glm.grouped.plan import GroupDesign
from robustly.model.linear import Design
from robustly.rows.labels import RowLabels, as_floats


@dataclass(frozen=True)
class FormulaRows:
    """Rows as a formula reads them: what fits of several laws share."""

    design: Design
    family: Family
    columns: FormulaColumns
    groups: GroupDesign | None = None
    """Groups with effects of their own, where the formula has bars."""
    effects: EffectColumns | None = None
    needs: tuple[str, ...] = ()
    """What came as numbers by row and not as a column."""
    labels: RowLabels = RowLabels()  # noqa: RUF009

    @property
    def told(self) -> dict[str, Any]:
        """What a fit of these rows is told of them."""
        return {"formula": self.columns, "needs": self.needs, "labels": self.labels}


def learn_offset(form: Any, frame: pd.DataFrame, text: str, states: Mapping[str, Any] | None = None) -> Side:
    """An ``offset(...)``: one number a row; `states` as in :func:`~robustly.glm.formula_spec.learn`."""
    learnt = learn(form, frame, states)
    if learnt.levels is not None or learnt.matrix.shape[1] != 1:
        raise ModelError(
            f"offset({text}) is not one number a row. Write an offset that is a column or a function of columns."
        )
    return learnt.side


def read_left(left: Learnt, frame: pd.DataFrame, text: str, family: Family) -> tuple[np.ndarray, tuple[Any, ...]]:
    """The response as numbers; two words of a yes-or-no response become 0 and 1, in the order of their levels."""
    words = left.levels
    bound, width = text.startswith("cbind"), left.matrix.shape[1]
    if bound and (words is not None or width != 2 or not isinstance(family, Binomial) or family.yes_or_no):
        raise ModelError(
            f'{text} is a response of successes and failures, two columns of counts for family="binomial"; got '
            f"{width} {'column' if width == 1 else 'columns'} and the family {family}."
        )
    if words is None:
        if width != 1 and not bound:
            raise ModelError(
                f"the response {text!r} has {width} columns, for its +, : and / are signs of formulas. Fit one response at a "
                "time; write I(a + b) or I(a / b) to compute with columns, and cbind(successes, failures) or trials=... for "
                "counts of successes."
            )
        return (left.matrix[:, 0] if width == 1 else left.matrix), ()
    if not isinstance(family, Binomial):
        for name in sorted(left.side.variables):
            refuse_texts(frame[name], name, f"the family {family} needs numbers")
        raise ModelError(f"the response {text!r} is made of classes, but the family {family} needs numbers.")
    if len(words) != 2 or left.matrix.shape[1] not in (1, 2):
        raise ModelError(
            f"the response {text!r} has {len(words)} classes ({names(map(str, words[:8]))}{' …' if len(words) > 8 else ''}), "
            "but a yes-or-no model needs two. Join or drop some."
        )
    return left.matrix[:, -1], tuple(words)


def column_of(frame: pd.DataFrame, label: str, given: Any) -> Any:
    """Numbers by row: as they came, or the column of that name."""
    if not isinstance(given, str):
        return None if given is None else as_floats(given, label)
    if given not in frame:
        raise DataError(
            f'{label} names a column "{given}", which the data do not have.' + did_you_mean(given, map(str, frame))
        )
    refuse_missing(frame, [given])
    refuse_texts(frame[given], given, f"{label} are numbers")
    return frame[given]
