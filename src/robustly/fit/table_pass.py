"""One pass over rows by a compiled loop: rows that are read off tables, or of a law that has its sums in closed form."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from robustly._runtime.numba_loops import compiled
from robustly.approx.tabulated import POINTS, predictor_ends, read_block, read_tables
from robustly.model.column_sums import BLOCK, add_block, add_values, enter_block
from robustly.model.linear_view import LinearView
from robustly.model.responses import Responses
from robustly.model.row import View, sent_back
from robustly.rows.store import ByUnit, Data, Sums

Chunk = tuple[Sums, ByUnit, None]


@dataclass(frozen=True, eq=False)
class LoopPass:
    """Sums as :func:`~robustly.fit.view_passes.view_pass` gives them, and nothing by row; theta is (what the view makes of a
    vector, what else the loop takes)."""

    view: LinearView
    loop: Callable[..., None]
    takes_any_size: ClassVar[bool] = True

    def __call__(self, theta: Any, data: Data, weight: Any, state: Any) -> Chunk:
        at, more = theta
        with np.errstate(all="ignore"):
            return self.view.added_by(self.loop, at, data, weight, more), {}, None


@dataclass(frozen=True, eq=False)
class PredictorRangePass:
    """How far predictors reach to both sides, for each of the different responses; theta is what the view makes of a vector."""

    view: View
    responses: Responses
    takes_any_size: ClassVar[bool] = True

    def __call__(self, theta: Any, data: Data, weight: np.ndarray, state: Any) -> Chunk:
        with np.errstate(all="ignore"):
            predictor = self.view.enter(theta, data)[0][0]
            under, over = predictor_ends(predictor, self.responses.of(data), len(self.responses))
        return {"max over": over, "max under": under}, {}, None


@dataclass(frozen=True, eq=False)
class TablePass:
    """Sums as :func:`~robustly.fit.passes.view_pass` gives them; theta is (what the view makes of a vector, tables)."""

    view: View
    responses: Responses
    by_row: str = ""
    """What is wanted by row instead of sums: "curves" (slopes and curvatures), or the "value" alone."""
    takes_any_size: ClassVar[bool] = True

    def __call__(self, theta: Any, data: Data, weight: np.ndarray, state: Any) -> Chunk:
        at, tables = theta
        with np.errstate(all="ignore"):
            numbers, entered = self.view.enter(at, data)
            size = 0 if self.by_row == "value" else len(numbers)
            value, slope, curve = read_tables(tables, numbers[0], self.responses.of(data), size)
            if self.by_row:
                return {}, {"value": value} if size == 0 else {"slope": slope, "curve": curve}, None
            return *sent_back(self.view, entered, value, slope, curve, weight), None


@compiled()
def table_sums(
    matrix: np.ndarray,
    centre: np.ndarray,
    beta: np.ndarray,
    offset: np.ndarray,
    weight: np.ndarray,
    y: np.ndarray,
    trials: np.ndarray,
    entries: np.ndarray,
    begin: np.ndarray,
    size: np.ndarray,
    first: np.ndarray,
    per_unit: np.ndarray,
    of_trials: np.ndarray,
    place: np.ndarray,
    gram: np.ndarray,
    cross: np.ndarray,
    slopes: np.ndarray,
    curves: np.ndarray,
    value: np.ndarray,
) -> None:
    """Sums of rows that are read off tables (the loop of a :class:`LoopPass`)."""
    x, m, which = np.ones((len(centre) + 1, BLOCK)), np.empty(BLOCK), np.empty(BLOCK, dtype=np.int32)
    slope, curve = np.empty((len(slopes), BLOCK)), np.empty((len(curves), BLOCK))
    between, cell = np.empty((POINTS, BLOCK)), np.empty(BLOCK, dtype=np.int64)
    found = np.empty(BLOCK * entries.shape[1])
    for start in range(0, len(matrix), BLOCK):
        count = min(BLOCK, len(matrix) - start)
        enter_block(matrix, centre, beta, offset, start, count, x, m)
        for i in range(count):
            which[i] = place[of_trials[int(trials[start + i])] + int(y[start + i])]
        read_block(entries, begin, size, first, per_unit, which, m, count, between, cell, found, m, slope, curve)
        add_values(m, weight, start, count, value)
        add_block(x, weight, start, count, slope, curve, gram, cross, slopes, curves)
