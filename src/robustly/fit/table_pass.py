"""One pass over rows that are read off tables: how far their predictors reach, then values, slopes and curvatures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from robustly.approx.tabulated import read_tables, widen
from robustly.model.responses import Responses
from robustly.model.row import View, sent_back
from robustly.rows.store import ByUnit, Data, Sums

Chunk = tuple[Sums, ByUnit, None]


@dataclass(frozen=True, eq=False)
class ReachPass:
    """How far predictors reach to both sides, for each of the different responses; theta is what the view makes of a vector."""

    view: View
    responses: Responses

    def __call__(self, theta: Any, data: Data, weight: Any, state: Any) -> Chunk:
        over, under = np.full((2, len(self.responses)), -np.inf)
        with np.errstate(all="ignore"):
            widen(self.view.enter(theta, data)[0][0], self.responses.of(data), over, under)
        return {"max over": over, "max under": under}, {}, None


@dataclass(frozen=True, eq=False)
class TablePass:
    """Sums as :func:`~robustly.fit.passes.view_pass` gives them; theta is (what the view makes of a vector, tables)."""

    view: View
    responses: Responses
    by_row: str = ""
    """What is wanted by row instead of sums: "curves" (slopes and curvatures), or the "value" alone."""

    def __call__(self, theta: Any, data: Data, weight: Any, state: Any) -> Chunk:
        at, tables = theta
        with np.errstate(all="ignore"):
            numbers, entered = self.view.enter(at, data)
            size = 0 if self.by_row == "value" else len(numbers)
            value, slope, curve = read_tables(tables, numbers[0], self.responses.of(data), size)
            if self.by_row:
                return {}, {"value": value} if size == 0 else {"slope": slope, "curve": curve}, None
            return *sent_back(self.view, entered, value, slope, curve, weight), None
