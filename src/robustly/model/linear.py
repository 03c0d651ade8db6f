r"""How do columns enter a regression's rows? A linear predictor, its coordinates, and the way back to coefficients.

Coefficients are searched for in coordinates :math:`u` in which the columns are uncorrelated and of unit size, so that
neither their units nor columns far from zero cost digits. A row sees :math:`m_i = o_i + x_i \cdot w` and a few numbers that
all rows share: :mod:`robustly.model.linear_view`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from robustly._runtime import numba_loops
from robustly._runtime.threads import on_one_thread, products_on_one_thread
from robustly.model import column_sums as loops
from robustly.model.responses import Responses, different_responses
from robustly.model.sparse_columns import SparseColumns, weighted_gram
from robustly.model.wide_curvature import WideCurvature
from robustly.rows.store import Data, Rows

# Directions in which standardised columns vary less than this share of their variance are taken for rounding.
ALIASED = 1e-11
# A leverage closer to one than this is one.
LEVERAGE_ONE = 1e-9
WIDE_CHUNK = 400_000
# From so many sparse columns on, products with the rows take less than columns times columns.
MANY_COLUMNS = 256
# Least squares are solved to this share of their size.
LEAST_SQUARES = 1e-10
# Rows that give a first idea of where the columns lie.
GLANCE = 256
# How many variances away from where moments are taken the centre may lie.
FAR_OFF = 1e4


@dataclass(frozen=True, eq=False)
class Design:
    """What a regression is made from. `rows` hold the matrix, the offset, the response and the trials."""

    rows: Rows
    terms: list[str]
    intercept: bool
    ridge: float = 0.0
    notes: tuple[str, ...] = field(default=())
    without_columns: Rows | None = field(default=None, repr=False)
    """The same rows with responses, trials and weights alone, where reading these takes less."""

    @property
    def responses_by_row(self) -> Rows:
        """Rows in which responses and trials stand where they do in a design's, whatever else there is."""
        return self.rows if self.without_columns is None else self.without_columns

    @property
    def matrix(self) -> Any:
        return self.rows.column(0)

    @property
    def offset(self) -> np.ndarray:
        return self.rows.column(1)

    @property
    def y(self) -> np.ndarray:
        return self.rows.column(2)

    @property
    def trials(self) -> np.ndarray:
        return self.rows.column(3)

    @property
    def width(self) -> int:
        """How many columns the matrix has."""
        return len(self.terms) - int(self.intercept)

    @property
    def sparse(self) -> bool:
        return self.rows.here is not None and not isinstance(self.matrix, np.ndarray)

    def __len__(self) -> int:
        return len(self.rows)

    @cached_property
    def looped(self) -> bool:
        """Whether rows are gone through in compiled loops: many rows, or a part of many, with few dense columns."""
        return not self.sparse and self.width <= loops.FEW_COLUMNS and len(self) >= numba_loops.MANY_ROWS

    def __getstate__(self) -> dict[str, Any]:
        if "_moments" in self.__dict__:
            _ = self.centre, self._coordinates  # where rows stay elsewhere these cannot be found again
        return {name: value for name, value in vars(self).items() if name not in ("_wide", "by_products")}

    @cached_property
    def _wide(self) -> Rows:
        """The rows in chunks that suit what is done to the columns alone."""
        across = -(-self.matrix.nnz // max(1, len(self))) if self.sparse else self.width
        # Nothing here is compiled, so that chunks may be of any size.
        return self.rows.cut_into(max(64, WIDE_CHUNK // max(1, across))).unpadded

    @cached_property
    def responses(self) -> Responses | None:
        """The different responses, where they are whole numbers and few enough."""
        return different_responses(self.responses_by_row)

    # ------------------------------------------------------------------ pieces of one chunk

    def shifted(self, matrix: Any) -> Any:
        """Columns without their means, so that no digits are lost to columns far from zero."""
        return matrix if self.sparse or not self.intercept else self._without(matrix, self.centre)

    def _without(self, matrix: np.ndarray, centre: np.ndarray) -> np.ndarray:
        """Dense columns without a centre."""
        if self.width > loops.FEW_COLUMNS:
            return matrix - centre
        # Few columns lie better one after the other: what is done to them next takes a third of the time.
        lines = np.array(matrix.T, order="C")
        lines -= centre[:, None]
        return lines.T

    def linear(self, matrix: Any, beta: Any) -> Any:
        """The linear predictor of shifted columns, without the offset."""
        return beta[0] + matrix @ beta[1:] if self.intercept else matrix @ beta

    def entered(self, data: Data, beta: np.ndarray) -> np.ndarray:
        """Offset and linear predictor of a chunk of rows, from coefficients of shifted columns."""
        if self.looped:
            return loops.predictors(data[0], self.centre, self.beside_one(beta), data[1])
        return data[1] + self.linear(self.shifted(data[0]), beta)

    def beside_one(self, beta: np.ndarray) -> np.ndarray:
        """Coefficients as loops take them: of a one, then of the columns."""
        return beta if self.intercept else np.concatenate([[0.0], beta])

    def crossed(self, matrix: Any, each: np.ndarray) -> np.ndarray:
        """Columns times a vector by row."""
        inner = matrix.T @ each
        return np.concatenate([[each.sum()], inner]) if self.intercept else inner

    def gram(self, matrix: Any, each: np.ndarray) -> np.ndarray:
        """Columns times columns, each row weighted."""
        if self.sparse:
            return weighted_gram(matrix, each, self.intercept)
        inner = _weighted_squares(matrix, each)
        if not self.intercept:
            return inner
        edge = matrix.T @ each
        return np.block([[np.array([[each.sum()]]), edge[None]], [edge[:, None], inner]])

    # ------------------------------------------------------------------ moments of the columns, in one pass

    @cached_property
    def _moments(self) -> dict[str, np.ndarray]:
        """Sums of the columns around a first idea of their centre, and the largest distances from it."""
        if self.sparse or not self.intercept:
            return self._moments_around(np.zeros(self.width))
        with np.errstate(over="ignore", invalid="ignore"):
            found = self._moments_around(np.mean(self.rows.take(np.arange(min(GLANCE, len(self)))).data[0], axis=0))
            away = found["first"] / self.rows.total_weight
            spread = np.diag(found["gram"])[1:] / self.rows.total_weight - away**2
            centre = found["idea"] + away
            # The first rows may be unlike the others; around them, digits would be lost.
            lost = (away**2 > FAR_OFF * spread) & (np.abs(away) > 1e-8 * np.abs(centre))
            return self._moments_around(centre) if np.any(lost & np.isfinite(centre)) else found

    def _moments_around(self, idea: np.ndarray) -> dict[str, np.ndarray]:
        shifts = not self.sparse and self.intercept

        def moments(
            theta: Any, data: Data, weight: np.ndarray, state: Any
        ) -> tuple[dict[str, Any], dict[str, Any], None]:
            if self.looped:
                gram, furthest = loops.column_moments(data[0], theta, weight)
                sums = {"gram": gram if self.intercept else gram[1:, 1:], "first": gram[0, 1:]}
                return {**sums, "max distance": furthest, "max weight": weight.max()}, {}, None
            matrix = self._without(data[0], theta) if shifts else data[0]
            if self._has_products:
                return (
                    {"squares": SparseColumns(matrix, self.intercept, np.ones(len(self.terms))).squares_of(weight)},
                    {},
                    None,
                )
            sums = {"gram": self.gram(matrix, weight)}
            if not self.sparse:
                # Along lines NumPy's reductions take a fiftieth of what they do across a few columns.
                lines = np.ascontiguousarray(matrix.T)
                furthest = np.maximum(lines.max(axis=1), -lines.min(axis=1))
                sums |= {"max distance": furthest, "max weight": weight.max()}
            return (sums | {"first": weight @ matrix} if shifts else sums), {}, None

        with np.errstate(over="ignore", invalid="ignore"):
            return {**self._wide.map(moments, idea).sums, "idea": idea}

    @property
    def knows_moments(self) -> bool:
        """Whether it was looked already how far out dense columns go."""
        return not self.sparse and "_moments" in self.__dict__

    @cached_property
    def centre(self) -> np.ndarray:
        """Weighted column means."""
        if self.sparse or not self.intercept:
            return np.zeros(self.width)
        return self._moments["idea"] + self._moments["first"] / self.rows.total_weight

    @cached_property
    def spread_of_columns(self) -> np.ndarray:
        """The mean of columns times columns, around their centre."""
        found = np.asarray(self._moments["gram"]) / self.rows.total_weight
        if not self.sparse and self.intercept:
            away = self.centre - self._moments["idea"]
            found[1:, 1:] -= np.outer(away, away)
            found[0, 1:] = found[1:, 0] = 0.0
        return found

    @cached_property
    def squares_of_columns(self) -> np.ndarray:
        """The mean square of each column, around its centre."""
        if self._has_products:
            return np.asarray(self._moments["squares"]) / self.rows.total_weight
        return np.diag(self.spread_of_columns)

    # ------------------------------------------------------------------ coordinates

    @property
    def _has_products(self) -> bool:
        """Whether columns times columns are never written out: they are many and sparse, and a ridge makes them tell apart."""
        return self.ridge > 0 and self.sparse and self.width >= MANY_COLUMNS

    @cached_property
    def by_products(self) -> SparseColumns | None:
        """The columns in the coordinates `u`, where all that is done with them is products."""
        return SparseColumns(self.matrix, self.intercept, self._coordinates[0]) if self._has_products else None

    @cached_property
    def _coordinates(self) -> tuple[np.ndarray, np.ndarray | None]:
        """The map from `u` to coefficients of shifted columns, and the directions that the columns do not span.

        With a ridge, which needs no other coordinates, each is one column's: the map is a unit for each.
        """
        unit = np.sqrt(np.maximum(self.squares_of_columns, 0.0))
        # A constant column has nothing left but the rounding of its mean.
        around = np.concatenate([[0.0], np.abs(self.centre)]) if self.intercept else np.abs(self.centre)
        nothing = unit <= np.maximum(1e-13 * around, 1e-150)
        unit = np.where(nothing, 1.0, unit)
        if self.ridge > 0:
            return 1.0 / unit, None
        gram = np.where(nothing[:, None] | nothing, 0.0, self.spread_of_columns)
        with products_on_one_thread():
            values, vectors = np.linalg.eigh(gram / unit[:, None] / unit)
        kept = values > ALIASED * max(values.max(initial=0.0), 1e-300)
        return vectors[:, kept] / np.sqrt(values[kept]) / unit[:, None], vectors[:, ~kept] / unit[:, None]

    @cached_property
    def to_shifted(self) -> np.ndarray:
        turn = self._coordinates[0]
        return np.diag(turn) if self.ridge > 0 else turn

    def shifted_of(self, u: Any) -> Any:
        """Coefficients of shifted columns."""
        turn = self._coordinates[0]
        return turn * u if self.ridge > 0 else turn @ u

    def slope_in_coordinates(self, slope: np.ndarray) -> np.ndarray:
        """Slopes in the coefficients of shifted columns, one vector or several side by side, in `u`."""
        turn = self._coordinates[0]
        return (turn * slope.T).T if self.ridge > 0 else turn.T @ slope

    @on_one_thread
    def in_coordinates(self, curve: np.ndarray) -> np.ndarray:
        """A curvature in the coefficients of shifted columns, in `u`."""
        turn = self._coordinates[0]
        if self.ridge <= 0:
            return turn.T @ curve @ turn
        found = curve * turn[:, None]
        found *= turn
        return found

    @cached_property
    def to_coefficients(self) -> np.ndarray:
        """From `u` to the intercept and coefficients of the columns as they came."""
        return self._unshift(self.to_shifted)

    def jacobian_with(self, slopes: Sequence[float]) -> Any:
        """The derivative of coefficients and further numbers in `u` and the free values of these; sparse where columns are."""
        if self.by_products is not None:
            from scipy import sparse

            return sparse.diags_array(np.concatenate([self.by_products.unit, slopes]), format="csr")
        turn = self.to_coefficients
        found = np.zeros((turn.shape[0] + len(slopes), turn.shape[1] + len(slopes)))
        found[: turn.shape[0], : turn.shape[1]] = turn
        found[range(turn.shape[0], len(found)), range(turn.shape[1], found.shape[1])] = slopes
        return found

    def coefficients_of(self, u: np.ndarray) -> np.ndarray:
        """The intercept and coefficients of the columns as they came."""
        return self._unshift(self.shifted_of(u))

    def _unshift(self, shifted: np.ndarray) -> np.ndarray:
        if not self.intercept or self.sparse:
            return shifted
        found = shifted.copy()
        found[0] -= self.centre @ shifted[1:]
        return found

    @cached_property
    def aliased(self) -> np.ndarray:
        """Which coefficients the columns do not determine."""
        along = self._coordinates[1]
        if along is None:
            return np.zeros(len(self.terms), dtype=bool)
        null = self._unshift(along)
        size = np.abs(null).max(axis=0, initial=0.0)
        return (np.abs(null) > 1e-6 * np.maximum(size, 1e-300)).any(axis=1)

    @on_one_thread
    def turned(self, matrix: Any) -> np.ndarray:
        """Rows of the matrix in the coordinates `u`."""
        shifted, turn = self.shifted(matrix), self.to_shifted
        return turn[0] + shifted @ turn[1:] if self.intercept else np.asarray(shifted @ turn)

    def directions(self) -> np.ndarray:
        """All rows in the coordinates `u`; of rows in memory."""
        return self.turned(self.matrix)

    @cached_property
    def leverage_one(self) -> np.ndarray:
        """Rows without which the columns, with no ridge to help, leave some coefficient undetermined."""
        if self.ridge > 0:
            return np.zeros(0, dtype=int)

        def leverages(
            theta: Any, data: Data, weight: np.ndarray, state: Any
        ) -> tuple[dict[str, Any], dict[str, Any], None]:
            each = weight * np.square(self.turned(data[0])).sum(axis=1)
            return {"max leverage": each.max()}, {"leverage": each}, None

        one = (1.0 - LEVERAGE_ONE) * self.rows.total_weight
        if self._most_leverage <= one:
            return np.zeros(0, dtype=int)
        found = self._wide.map(leverages, None)
        if not found.sums["max leverage"] > one:
            return np.zeros(0, dtype=int)
        return np.flatnonzero(np.asarray(found.by_unit["leverage"]) > one)

    @property
    def _most_leverage(self) -> float:
        """More than any row's leverage, times the weight of all: told by how far out columns go, without a look at the rows."""
        if self.sparse:
            return np.inf
        return float(self._moments["max weight"] * self.furthest(np.linalg.norm(self.to_shifted, axis=1)) ** 2)

    def furthest(self, beta: np.ndarray) -> float:
        """More than any row's predictor without its offset, for coefficients of shifted columns: told by how far out these go."""
        out = self._moments["max distance"] + np.abs(self._moments["idea"] - self.centre)
        size = np.abs(beta)
        return float(size[0] + out @ size[1:] if self.intercept else out @ size)

    def determined_by(self, row: int) -> list[str]:
        """The terms whose coefficients only this row, with leverage one, determines."""
        size = np.abs(self.to_coefficients @ self.turned(self.rows.take([row]).data[0])[0])
        return [term for term, one in zip(self.terms, size) if one > 1e-6 * size.max()]

    @cached_property
    def penalty(self) -> np.ndarray:
        """The ridge's curvature along each coordinate of `u`."""
        if self.ridge <= 0:
            return np.zeros(self.size)
        own = self.ridge * self._coordinates[0] ** 2
        own[: int(self.intercept)] = 0.0
        return own

    @property
    def size(self) -> int:
        return self._coordinates[0].shape[-1]

    def predictor(self, u: np.ndarray) -> np.ndarray:
        """Offset and linear predictor of all rows."""

        def predictors(
            theta: Any, data: Data, weight: np.ndarray, state: Any
        ) -> tuple[dict[str, Any], dict[str, Any], None]:
            return {}, {"predictor": self.entered(data, theta)}, None

        return self._wide.map(predictors, self.shifted_of(u)).by_unit["predictor"]

    def project_by_row(self, target: np.ndarray) -> np.ndarray:
        """As :meth:`project`, of a number for every row."""
        here = self.rows.here
        assert here is not None
        beside = replace(here, data=(*here.data, target))
        return self.with_rows(beside).project(lambda data: data[4])

    def project(self, target: Callable[[Data], np.ndarray]) -> np.ndarray:
        """Least squares of a number by row, made from the row's data, on the columns, in `u`."""

        def cross(
            theta: Any, data: Data, weight: np.ndarray, state: Any
        ) -> tuple[dict[str, Any], dict[str, Any], None]:
            return {"cross": self.crossed(self.shifted(data[0]), weight * target(data))}, {}, None

        total = self.slope_in_coordinates(np.asarray(self._wide.map(cross, None).sums["cross"]))
        if self.by_products is not None:
            none = np.zeros((self.size, 0))
            bend = WideCurvature(self.by_products, -self.rows.weight, none, none[:0], -self.penalty - 1e-12)
            solved = bend.eliminated(total, LEAST_SQUARES)
            return np.linalg.solve(-np.asarray(bend), total) if solved is None else solved[0]
        gram = self.in_coordinates(self.spread_of_columns)
        gram[np.diag_indices_from(gram)] += (self.penalty + 1e-12) / self.rows.total_weight
        with products_on_one_thread():
            return np.linalg.solve(gram, total / self.rows.total_weight)

    def with_rows(self, rows: Rows) -> Design:
        """The same coordinates with other rows, or other weights."""
        part = replace(self, rows=rows, without_columns=None)
        for name in ("centre", "_coordinates", "looped"):
            part.__dict__[name] = getattr(self, name)
        # How columns vary is told by the rows that count now, unless they are the same.
        if rows.weight is self.rows.weight:
            part.__dict__["_moments"] = self._moments
        return part

    def noted(self, *notes: str) -> Design:
        """The same with these notes, and with all that is known of the columns: nothing is looked at again."""
        found = copy(self)
        object.__setattr__(found, "notes", notes)
        return found

    def weighed(self, weight: np.ndarray) -> Design:
        """The same coordinates and rows with other weights."""
        return self.with_rows(self.rows.weighed(weight))


def _weighted_squares(matrix: np.ndarray, each: np.ndarray) -> np.ndarray:
    """Columns times columns with weights of either sign; a matrix times itself takes half of what two matrices would."""
    if matrix.shape[1] <= loops.FEW_COLUMNS:
        return (matrix.T * each) @ matrix
    up = each > 0
    if up.any() and not up.all():
        return _weighted_squares(matrix[up], each[up]) + _weighted_squares(matrix[~up], each[~up])
    scaled = matrix * np.sqrt(np.abs(each))[:, None]
    return scaled.T @ scaled if up.any() else -(scaled.T @ scaled)
