r"""How do coefficients and shared numbers enter a regression's rows, and what do rows send back?

A row sees its linear predictor :math:`m_i = o_i + x_i \cdot w` and a few numbers that all rows share; its slopes and curvatures
in these come back as :math:`X^\top s` and :math:`X^\top H X`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from robustly.model.column_sums import column_sums, summed_by
from robustly.model.linear import Design
from robustly.model.wide_curvature import Curve, WideCurvature
from robustly.rows.store import Data


@dataclass(frozen=True, eq=False)
class LinearView:
    """How coefficients and shared numbers enter rows: a linear predictor, and the numbers as they are.

    The vector holds the coordinates `u` of the coefficients, then the shared numbers that are fitted (`free`), on scales
    without walls; the others are held.
    """

    design: Design
    held: np.ndarray
    """Values of all shared numbers; those of fitted ones do not matter."""
    free: np.ndarray
    """Which of them are fitted."""

    def split(self, vector: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Coordinates of the coefficients, and all shared numbers."""
        phi = self.held.copy()
        phi[self.free] = vector[self.design.size :]
        return vector[: self.design.size], phi

    def joined(self, u: np.ndarray, phi: np.ndarray) -> np.ndarray:
        return np.concatenate([u, phi[self.free]])

    def at(self, vector: Any) -> tuple[Any, tuple[Any, ...]]:
        size, place = self.design.size, {int(i): k for k, i in enumerate(self.free)}
        phi = tuple(vector[size + place[i]] if i in place else held for i, held in enumerate(self.held))
        return self.design.shifted_of(vector[:size]), phi

    def enter(self, at: tuple[Any, tuple[Any, ...]], data: Data) -> tuple[tuple[Any, ...], Any]:
        design, matrix = self.design, data[0]
        if design.looped:
            return (design.entered(data, at[0]), *at[1]), matrix
        matrix = design.shifted(matrix)
        return (data[1] + design.linear(matrix, at[0]), *at[1]), matrix

    def added_by(
        self,
        loop: Callable[..., None],
        at: tuple[Any, tuple[Any, ...]],
        data: Data,
        weight: np.ndarray,
        more: tuple[Any, ...],
    ) -> dict[str, Any]:
        """The sum of evidences, and what :meth:`pull_back` gives, by a loop that has rows' slopes and curvatures itself."""
        given = (data[1], weight, *self.seen(data))
        beta, centre = self.design.beside_one(at[0]), self.design.centre
        sums = summed_by(loop, data[0], centre, beta, given, more, 1 + len(self.held))
        return {"value": sums.value[0], **sums.by_name(self.design.intercept)}

    def seen(self, data: Data) -> Data:
        return data[2], data[3]

    def pull_back(self, matrix: Any, slope: np.ndarray, curve: np.ndarray, weight: np.ndarray) -> dict[str, Any]:
        design, size = self.design, slope.shape[1]
        if design.looped:
            return column_sums(matrix, design.centre, slope, curve, weight).by_name(design.intercept)
        if not (weight == 1.0).all():
            slope, curve = (np.where(weight[:, None] > 0, a * weight[:, None], 0.0) for a in (slope, curve))
        inner = {"bend": curve[:, 0]} if self.by_row else {"curve_w": design.gram(matrix, curve[:, 0])}
        # Curvatures come as the entries on and below the diagonal, line by line; the predictor's are the first of a line.
        mixed = [design.crossed(matrix, curve[:, j * (j + 1) // 2]) for j in range(1, size)]
        return {
            "slope_w": design.crossed(matrix, slope[:, 0]),
            **inner,
            "mixed": np.stack(mixed, axis=-1) if mixed else np.zeros((len(design.terms), 0)),
            "slope": slope[:, 1:].sum(axis=0),
            "curve": curve.sum(axis=0),
        }

    @property
    def by_row(self) -> tuple[str, ...]:
        return ("bend",) if self.design.by_products is not None else ()

    def gather(self, sums: Mapping[str, Any]) -> tuple[np.ndarray, Curve]:
        design, size, free = self.design, self.design.size, self.free
        shared = np.zeros((len(self.held), len(self.held)))
        for i in range(len(self.held)):
            for j in range(i + 1):
                shared[i, j] = shared[j, i] = sums["curve"][(i + 1) * (i + 2) // 2 + j + 1]
        slope = np.concatenate([design.slope_in_coordinates(sums["slope_w"]), sums["slope"][free]])
        mixed = design.slope_in_coordinates(sums["mixed"])[:, free]
        if "curve_w" not in sums:
            assert design.by_products is not None
            none = np.zeros(len(slope))
            return slope, WideCurvature(design.by_products, sums["bend"], mixed, shared[np.ix_(free, free)], none)
        curve = np.empty((len(slope), len(slope)))
        curve[:size, :size] = design.in_coordinates(sums["curve_w"])
        curve[:size, size:] = mixed
        curve[size:, :size] = curve[:size, size:].T
        curve[size:, size:] = shared[np.ix_(free, free)]
        return slope, curve
