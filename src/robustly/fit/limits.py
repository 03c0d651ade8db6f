r"""Do the rows differ at all? When they do not, the fitted spread runs to zero and the classical model is the answer.

Near that boundary the evidence changes with the *variance* of the locals, whose derivative at zero is a score test:
with :math:`g_i, H_i` the slope and curvature of row i's log likelihood in a common value of the local,
:math:`\tfrac12 \sum_i (g_i g_i^\top + H_i)`. No direction with a positive value means no heterogeneity to be had.
"""

from __future__ import annotations

import numpy as np

from robustly._runtime.precision import double_precision
from robustly.errors import names
from robustly.fit.outcome import Outcome
from robustly.fit.problem import RowProblem

# Steps in a row that make a run.
STRIDES = 4


class RunawayWatch:
    """Ends a climb in which a constrained parameter runs off by steady steps while little is gained by it."""

    def __init__(self, constrained: np.ndarray, labels: list[str], little: float) -> None:
        self.constrained, self.labels, self.little = constrained, labels, little
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
        return Outcome("end", text, len(self.seen))

    @property
    def running(self) -> np.ndarray:
        """Which entries keep moving one way without slowing down, as an ordinary convergence would."""
        if len(self.seen) <= STRIDES:
            return np.zeros_like(self.constrained)
        steps = np.diff(np.stack(self.seen[-STRIDES - 1 :]), axis=0)
        steady = (np.abs(steps) > 0.2).all(axis=0) & (np.abs(np.sign(steps).sum(axis=0)) == STRIDES)
        return self.constrained & steady & (np.abs(steps[-1]) > 0.5 * np.abs(steps[0]))


def heterogeneity(problem: RowProblem, vector: np.ndarray, place: np.ndarray) -> np.ndarray:
    """The score matrix of the variance of a common value, whose entries of the vector are `place`; 1 in size at most."""
    with double_precision():
        score_pass = problem.passes.variance_scores(tuple(int(i) for i in place))
        sums = problem.rows.map(score_pass, vector, keep=problem.slot).sums
    return sums["score"] / np.maximum(np.abs(sums["size"]).max(), 1e-300)
