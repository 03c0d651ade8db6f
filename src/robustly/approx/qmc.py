"""What is the evidence of a row with many local dimensions? Quasi-random importance sampling around its mode.

The points are the same for every row and pass, so the evidence is a smooth function of the parameters. Its error falls
a little slower than one over the number of points; ``fit.integration_error()`` measures it. The evidence is not a bound.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from jax import Array

from robustly.approx.grid import Density, qmc_points
from robustly.approx.points import PointRule
from robustly.errors import ModelError


@dataclass(frozen=True)
class QMC(PointRule):
    """Scrambled Sobol points, importance weighted around each row's mode."""

    count: int = 256

    def __post_init__(self) -> None:
        if not isinstance(self.count, int) or self.count < 2 or self.count & (self.count - 1):
            raise ModelError(f"QMC takes a power of two as its number of points; got {self.count!r}. Try 256 or 1024.")

    def finer(self) -> QMC:
        return QMC(2 * self.count)

    def _rule(self, joint: Density, mode: Array, dim: int, state: Array) -> tuple[Any, Any]:
        return qmc_points(joint, mode, dim, self.count)
