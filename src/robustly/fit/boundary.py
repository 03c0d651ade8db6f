r"""Do the rows differ at all? When they do not, the fitted spread runs to zero and the classical model is the answer.

Near that boundary the evidence changes with the *variance* of the locals, whose derivative at zero is a score test:
with :math:`g_i, H_i` the slope and curvature of row i's log likelihood in a common value of the local,
:math:`\tfrac12 \sum_i (g_i g_i^\top + H_i)`. No direction with a positive value means no heterogeneity to be had.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from robustly.fit.passes import Passes
from robustly.rows.arrays import Rows
from robustly.rows.reduce import over_rows


class RunawayWatch:
    """Ends a climb in which a constrained parameter runs off by steady steps while next to nothing is gained."""

    def __init__(self, walled: np.ndarray, history: int = 4) -> None:
        self.walled, self.length = walled, history
        self.seen: list[np.ndarray] = []
        self.tested = False

    def __call__(self, vector: np.ndarray) -> str | None:
        self.seen.append(np.array(vector))
        if self.tested or not self.running:
            return None
        self.tested = True
        return "a parameter of the fitted prior is running to a limit"

    @property
    def running(self) -> bool:
        if len(self.seen) <= self.length:
            return False
        steps = np.diff(np.stack(self.seen[-self.length - 1 :]), axis=0)[:, self.walled]
        if not steps.size:
            return False
        steady = (np.abs(steps) > 0.2).all(axis=0) & (np.abs(np.sign(steps).sum(axis=0)) == self.length)
        # Steps that shrink are those of an ordinary convergence; a run to a limit keeps its stride.
        return bool(np.any(steady & (np.abs(steps[-1]) > 0.5 * np.abs(steps[0]))))


def heterogeneity(passes: Passes, rows: Rows, vector: np.ndarray, state: np.ndarray, place: np.ndarray) -> np.ndarray:
    """The score matrix of the variance of a common value, whose entries of the vector are `place`."""
    where = jnp.asarray(place)

    def chunk(x: Any, data: Any, weight: Any, start: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        settled = passes._settle(x, data, start)

        def one(row: Any, s: Any) -> Any:
            def at(common: Any) -> Any:
                moved = x.at[where].set(common)
                _, basis = passes.approx.evidence(passes.model, moved, row, s)
                return passes.approx.evidence_twice(passes.model, moved, row, s, basis)

            slope = jax.grad(at)(x[where])
            return 0.5 * (jnp.outer(slope, slope) + jax.hessian(at)(x[where]))

        each = jax.vmap(one)(data, settled)
        return {
            "score": jnp.einsum("n,nij->ij", weight, each),
            "size": jnp.einsum("n,nij->ij", weight, jnp.abs(each)),
        }, {}

    sums, _ = over_rows(jax.jit(chunk), rows, state, jnp.asarray(vector))
    return sums["score"] / np.maximum(np.abs(sums["size"]).max(), 1e-300)
