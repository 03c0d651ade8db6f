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

from robustly.errors import names
from robustly.fit.outcome import Outcome
from robustly.fit.passes import Passes
from robustly.rows.arrays import Rows
from robustly.rows.store import over_rows

# Steps in a row that make a run.
STRIDES = 4


class RunawayWatch:
    """Ends a climb in which a constrained parameter runs off by steady steps while little is gained by it."""

    def __init__(self, walled: np.ndarray, labels: list[str], little: float) -> None:
        self.walled, self.labels, self.little = walled, labels, little
        self.seen: list[np.ndarray] = []

    def __call__(self, vector: np.ndarray, gain: float) -> Outcome | None:
        self.seen.append(np.array(vector))
        running = self.running
        if gain > self.little or not running.any():
            return None
        which = names(np.asarray(self.labels)[running]) if len(self.labels) == len(running) else "a parameter"
        text = (
            f"{which} runs to the end of its range, and the evidence changes by less than {self.little:.0e} on the way: "
            "take the estimate as that limit."
        )
        return Outcome("limit", text, len(self.seen))

    @property
    def running(self) -> np.ndarray:
        """Which entries keep moving one way without slowing down, as an ordinary convergence would."""
        if len(self.seen) <= STRIDES:
            return np.zeros_like(self.walled)
        steps = np.diff(np.stack(self.seen[-STRIDES - 1 :]), axis=0)
        steady = (np.abs(steps) > 0.2).all(axis=0) & (np.abs(np.sign(steps).sum(axis=0)) == STRIDES)
        return self.walled & steady & (np.abs(steps[-1]) > 0.5 * np.abs(steps[0]))


def heterogeneity(passes: Passes, rows: Rows, vector: np.ndarray, state: np.ndarray, place: np.ndarray) -> np.ndarray:
    """The score matrix of the variance of a common value, whose entries of the vector are `place`."""
    where = jnp.asarray(place)

    def chunk(x: Any, data: Any, weight: Any, start: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        settled = passes._settle(x, data, start)

        def one(row: Any, s: Any) -> Any:
            def at(common: Any) -> Any:
                moved = x.at[where].set(common)
                return passes.approx.evidence(passes.model, moved, row, s)

            slope = jax.grad(at)(x[where])
            return 0.5 * (jnp.outer(slope, slope) + jax.hessian(at)(x[where]))

        each = jax.vmap(one)(data, settled)
        return {
            "score": jnp.einsum("n,nij->ij", weight, each),
            "size": jnp.einsum("n,nij->ij", weight, jnp.abs(each)),
        }, {}

    sums, _ = over_rows(jax.jit(chunk), rows, state, jnp.asarray(vector))
    return sums["score"] / np.maximum(np.abs(sums["size"]).max(), 1e-300)
