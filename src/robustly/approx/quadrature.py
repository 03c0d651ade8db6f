r"""What is a row's evidence, to as many digits as wanted? Adaptive quadrature.

In one dimension a trapezoid rule in a coordinate in which the row's posterior looks normal
(:func:`robustly.approx.grid.level_points`), in two and three a product of Gauss–Hermite rules around the mode. The
default for locals of up to three dimensions. The evidence is not a bound.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp

from robustly.approx.climb import climb, look
from robustly.approx.grid import find_reach, hermite, level_points, normal_points
from robustly.approx.points import PointRule
from robustly.errors import ModelError
from robustly.model import dense
from robustly.model.row import RowModel


@dataclass(frozen=True)
class Quadrature(PointRule):
    """Adaptive quadrature with `nodes` points a dimension."""

    nodes: int = 21

    def __post_init__(self) -> None:
        if not isinstance(self.nodes, int) or not 1 <= self.nodes <= 1000:
            raise ModelError(f"Quadrature takes from 1 to 1000 nodes; {self.nodes!r} came.")

    def check(self, model: RowModel) -> None:
        if model.dim > 3:
            raise ModelError(
                f"a local of {model.dim} dimensions would need {self.nodes}**{model.dim} points a row. "
                "Use QMC(256), Laplace() or GaussianVI()."
            )
        if model.dim == 1 and self.nodes < 5:
            raise ModelError(
                f"in one dimension Quadrature takes 5 or more nodes; {self.nodes} came. One node is Laplace()."
            )

    def finer(self) -> Quadrature:
        return Quadrature(2 * self.nodes)

    def start(self, model: RowModel) -> np.ndarray:
        # Besides the mode, how far the density reaches to the left and to the right of it.
        extra = 2 if model.dim == 1 else 0
        return np.concatenate([super().start(model), np.full(self._stacked(model, (extra,)), np.log(6.0))], axis=-1)

    def _settle(self, model: RowModel, theta: Any, row: Any, z: Any, state: Any) -> Any:
        joint = lambda u: model.log_joint(u, theta, row, z)
        mode = climb(joint, state[: model.dim], model.dim)
        if model.dim > 1:
            return mode
        return jnp.concatenate([mode, find_reach(joint, mode, state[1:])])

    def _rule(self, joint: Any, mode: Any, dim: int, state: Any) -> tuple[Any, Any]:
        curve = look(joint, mode)[2]
        if dim == 1:
            return level_points(joint, mode, curve[0, 0], state[1:], self.nodes)
        return normal_points(joint, mode, dense.cholesky(-curve, dim), dim, hermite(self.nodes, dim))

    def _may_freeze(self, dim: int) -> bool:
        return dim == 1 and self.nodes >= 15

    def strain(self, basis: Any) -> Any:
        """An estimate of a row's integration error, from the same rule with every other point left out.

        The error of a trapezoid rule is squared when its points are doubled, so the difference squared estimates it.
        """
        u, weight = basis
        if u.shape[-1] > 1 or self.nodes % 2 == 0:
            return jnp.zeros(())
        coarse = logsumexp(weight[..., ::2]) + np.log(2.0)
        return (logsumexp(weight) - coarse) ** 2
