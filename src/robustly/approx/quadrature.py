r"""What is a row's evidence, to as many digits as wanted? Adaptive Gauss–Hermite quadrature.

Points sit around the mode of the row's posterior at the width its curvature gives. The default for locals of up to
three dimensions. Rows whose posterior is far from normal (one 0/1 outcome under a wide prior) need ``wide=True``, a
trapezoid rule on a far-reaching grid; a fit checks its own integration error and changes over by itself.
The evidence is not a bound.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from robustly.approx import dense
from robustly.approx.climb import look
from robustly.approx.grid import hermite, line_points, normal_points
from robustly.approx.points import PointRule
from robustly.errors import ModelError
from robustly.model.row import RowModel


@dataclass(frozen=True)
class Quadrature(PointRule):
    """Adaptive Gauss–Hermite with `nodes` points a dimension (`wide`: a sinh-spaced trapezoid rule, one dimension only)."""

    nodes: int = 21
    wide: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.nodes, int) or not 1 <= self.nodes <= 1000:
            raise ModelError(f"Quadrature takes from 1 to 1000 nodes; {self.nodes!r} came.")

    def check(self, model: RowModel) -> None:
        if model.dim > 3:
            raise ModelError(
                f"a local of {model.dim} dimensions would need {self.nodes}**{model.dim} points a row. "
                "Use QMC(256), Laplace() or GaussianVI()."
            )
        if self.wide and model.dim > 1:
            raise ModelError(f"the wide grid is for one dimension, and this local has {model.dim}. Use Quadrature or QMC.")

    def finer(self) -> Quadrature:
        return replace(self, nodes=2 * self.nodes)

    def _rule(self, joint: Any, mode: Any, dim: int) -> tuple[Any, Any]:
        if self.wide:
            return line_points(joint, mode, self.nodes)
        lower = dense.cholesky(-look(joint, mode)[2], dim)
        return normal_points(joint, mode, lower, dim, hermite(self.nodes, dim))
