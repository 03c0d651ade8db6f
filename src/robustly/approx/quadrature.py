r"""What is a row's evidence, to as many digits as wanted? Adaptive quadrature.

In one dimension a trapezoid rule in a coordinate in which the row's posterior looks normal
(:func:`robustly.approx.grid.level_points`), in two and three a product of Gauss–Hermite rules around the mode. The
default for locals of up to three dimensions. The evidence is not a bound.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from robustly.approx.climb import climb, look
from robustly.approx.grid import ENDS, Density, find_half_widths, hermite, level_points, normal_points
from robustly.approx.moments import Finish, Moments, level_moments
from robustly.approx.points import PointRule
from robustly.errors import ModelError
from robustly.model import small_cholesky
from robustly.model.parameters import Theta
from robustly.model.row import Latent, Row, RowModel

# Ends found this closely leave so little of the way they were searched for that fits agree to the ninth digit.
NEAR = (0.9, 1.1)
# Points around a place this near the mode (squared, in units of the curvature) do as well as around the mode.
CLOSE = 1e-2
# Fewer points than these have an integration error that derivatives at fixed points would show.
MOMENT_NODES = 15
# As many points tell evidences to a thousandth: enough to see the way from.
ROUGH = 11


@dataclass(frozen=True)
class Quadrature(PointRule):
    """Adaptive quadrature with `nodes` points a dimension."""

    nodes: int = 21

    def __post_init__(self) -> None:
        if not isinstance(self.nodes, int) or not 1 <= self.nodes <= 1000:
            raise ModelError(f"Quadrature takes from 1 to 1000 nodes; got {self.nodes!r}.")

    def check(self, model: RowModel) -> None:
        if model.dim > 3:
            raise ModelError(
                f"a local of {model.dim} dimensions would need {self.nodes}**{model.dim} points a row. "
                "Use QMC(256), Laplace() or GaussianVI()."
            )
        if model.dim == 1 and self.nodes < 5:
            raise ModelError(
                f"in one dimension Quadrature takes 5 or more nodes; got {self.nodes}. One node is Laplace()."
            )

    def describe(self) -> str:
        return f"quadrature with {self.nodes} points a row"

    def coarser(self) -> Quadrature:
        # Every other point of a trapezoid rule: the error is that of the finer one's square root.
        return Quadrature(self.nodes // 2 + 1) if self.nodes >= 21 and self.nodes % 2 else self

    def for_draws(self, model: RowModel) -> Quadrature:
        return Quadrature(min(self.nodes, MOMENT_NODES)) if model.dim == 1 else self

    def finer(self) -> Quadrature:
        return Quadrature(2 * self.nodes)

    def start(self, model: RowModel) -> np.ndarray:
        # Besides the mode, how far the density reaches to the left and to the right of it.
        extra = 2 if model.dim == 1 else 0
        return np.concatenate([super().start(model), np.full(self._stacked(model, (extra,)), np.log(6.0))], axis=-1)

    def _find_mode(self, model: RowModel, theta: Theta, row: Row, z: Latent, state: Array) -> Array:
        joint = lambda u: model.log_joint(u, theta, row, z)
        if model.dim > 1:
            return climb(joint, state[: model.dim], model.dim)
        mode = climb(joint, state[:1], 1, CLOSE)
        return jnp.concatenate([mode, find_half_widths(joint, mode, state[1:], NEAR)])

    def _rule(self, joint: Density, mode: Array, dim: int, state: Array) -> tuple[Any, Any]:
        curve = look(joint, mode)[2]
        if dim == 1:
            return level_points(joint, mode, curve[0, 0], state[1:], self.nodes)
        return normal_points(joint, mode, small_cholesky.cholesky(-curve, dim), dim, hermite(self.nodes, dim))

    def start_at(self, model: RowModel, rows: Any, numbers: Sequence[Array], count: int) -> np.ndarray:
        if model.guess is None or model.dim != 1:
            return super().start_at(model, rows, numbers, count)
        mode, log_width = model.guess(rows, numbers)
        log_half_width = np.log(6.0) if log_width is None else log_width + np.log(ENDS)
        each = (np.broadcast_to(part, count) for part in (mode, log_half_width, log_half_width))
        return np.stack(list(each), axis=-1).astype(np.float32)

    def has_moments(self, model: RowModel) -> bool:
        return model.dim == 1 and self.nodes >= MOMENT_NODES

    def moments(
        self,
        model: RowModel,
        finish: Finish,
        numbers: Sequence[Array],
        row: Row,
        z: Latent,
        state: Array,
        rough: Array | bool,
    ) -> Moments:
        if not self.has_moments(model):
            return super().moments(model, finish, numbers, row, z, state, rough)
        count = jnp.where(rough, min(ROUGH, self.nodes), self.nodes)
        found = level_moments(finish, numbers, state[:1], state[1:], count, follow=model.points_follow)
        # Every other point of an even number of them is no rule of its own.
        return found if self.nodes % 2 else found._replace(coarse=found.evidence)
