r"""Where does a parameter that runs off lead: to a simpler model, or upwards without end?

When rows do not differ at all, the fitted spread runs to zero and the classical model is the answer. Near that boundary the evidence changes with the *variance* of the locals, whose derivative at zero is a score test:
with :math:`g_i, H_i` the slope and curvature of row i's log likelihood in a common value of the local,
:math:`\tfrac12 \sum_i (g_i g_i^\top + H_i)`. No direction with a positive value means no heterogeneity to be had.

Shared values and the scale of their prior can make each other infinitely likely, and so can a row that shared values meet exactly
and a prior wide enough for a standard deviation of 0. The objective then rises at least in proportion to the logarithm of some
parameter, as far as numbers go, which nothing with a finite top does.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from robustly._runtime.precision import double_precision
from robustly.errors import names
from robustly.fit.newton import ascent
from robustly.fit.objective import Optimum
from robustly.fit.outcome import Outcome
from robustly.fit.problem import EvidenceProblem, RowProblem

# Steps in a row that make a run, and those in which rounding cannot have made one.
STRIDES, MANY_STRIDES = 4, 8

# A parameter that has changed by this factor (as a logarithm) and still makes shared values more likely by as much as at first does
# not come to a top; nor does one that changed by the smaller factor, beyond which their differences are rounding, if the climb
# then breaks off. (Units that are far off take rows as far, but not what is shared.)
ENDLESS, ROUNDED = 64.0, 30.0
# How far ahead a rise is followed (on log scales), what share of its first pace it keeps if it is one without end, and the
# least that is gained on the way (in nats).
AHEAD = 2.0 ** np.arange(-4.0, 7.0)
KEPT, LEAST = 0.5, 1.0
NO_TOP = (
    "the objective has no finite top: it {}. Values shared by all rows under a prior whose scale or correlation is estimated "
    "with them can make each other infinitely likely, and so can rows that shared values meet exactly, with a standard deviation "
    "of their own. Integrate shared values out, as in rb.integrate(model, site) where they go by group, or fix the scale."
)


class RunawayWatch:
    """Ends a climb in which a constrained parameter runs off by steady steps while little is gained by it."""

    def __init__(
        self, constrained: np.ndarray, labels: list[str], little: float, log_prior: Callable[[np.ndarray], float]
    ) -> None:
        self.constrained, self.labels, self.little, self.log_prior = constrained, labels, little, log_prior
        self.seen: list[np.ndarray] = []
        self.gains: list[float] = []
        self.ran_far = np.zeros_like(constrained)

    def __call__(self, vector: np.ndarray, gain: float) -> Outcome | None:
        self.seen.append(np.array(vector))
        self.gains.append(gain)
        running = self.running
        if not running.any():
            return None
        if gain > self.little:
            run = np.where(self.rising, np.abs(vector - self.seen[0]), 0.0)
            if run.max() <= ROUNDED or not self._shared_likelier:
                return None
            self.ran_far |= run > ROUNDED
            return self.unbounded(run > ENDLESS) if run.max() > ENDLESS else None
        text = (
            f"{self._named(running)} runs to the end of its range, and the evidence changes by less than {self.little:.0e} on the way: "
            "take the estimate as that limit."
        )
        return Outcome("end", text, len(self.seen))

    @property
    def running(self) -> np.ndarray:
        """Which entries keep moving one way without slowing down, as an ordinary convergence would."""
        return self._running(STRIDES)

    @property
    def rising(self) -> np.ndarray:
        """Which entries have run for long, each step for as much as the first."""
        found = self._running(MANY_STRIDES)
        return found if found.any() and self.gains[-1] > KEPT * self.gains[-MANY_STRIDES] else np.zeros_like(found)

    @property
    def _shared_likelier(self) -> bool:
        """Whether a long run has raised the density of shared values, rather than that of rows."""
        raised = self.log_prior(self.seen[-1]) - self.log_prior(self.seen[-MANY_STRIDES])
        return raised > KEPT * sum(self.gains[-MANY_STRIDES:])

    def _running(self, strides: int) -> np.ndarray:
        if len(self.seen) <= strides:
            return np.zeros_like(self.constrained)
        steps = np.diff(np.stack(self.seen[-strides - 1 :]), axis=0)
        steady = (np.abs(steps) > 0.2).all(axis=0) & (np.abs(np.sign(steps).sum(axis=0)) == strides)
        return self.constrained & steady & (np.abs(steps[-1]) > 0.5 * np.abs(steps[0]))

    def unbounded(self, which: np.ndarray) -> Outcome:
        """The outcome of a climb that would never end."""
        return Outcome(
            "unbounded", NO_TOP.format(f"keeps rising as far as {self._named(which)} can be taken"), len(self.seen)
        )

    def _named(self, which: np.ndarray) -> str:
        return names(dict.fromkeys(np.asarray(self.labels)[which].tolist()))


def endless(problem: RowProblem, optimum: Optimum) -> np.ndarray:
    """Entries along which the objective rises from where a climb broke off, no slower than at first, as far as numbers go."""
    constrained, size = problem.constrained, len(optimum.vector)
    ways = [np.sign(optimum.slope[j]) * (np.arange(size) == j) for j in np.flatnonzero(constrained)]
    ahead = ascent(optimum.slope, optimum.bent, constrained)
    longest = np.max(np.abs(ahead[constrained]), initial=0.0)
    for way in [*ways, ahead / longest] if longest > 0 else ways:
        if _rises_on(problem.fresh(), optimum.vector, way):
            return constrained & (np.abs(way) > KEPT)
    return np.zeros(size, dtype=bool)


def _rises_on(problem: EvidenceProblem, start: np.ndarray, way: np.ndarray) -> bool:
    first, before, last = None, 0.0, problem.look(start).value
    begin = last
    for distance in AHEAD:
        value = problem.look(start + distance * way).value
        if not np.isfinite(value):
            break
        pace = (value - last) / (distance - before)
        first = pace if first is None else first
        if pace <= 0 or pace < KEPT * first:
            return False
        before, last = distance, value
    return last > begin + LEAST


def heterogeneity(problem: RowProblem, vector: np.ndarray, place: np.ndarray) -> np.ndarray:
    """The score matrix of the variance of a common value, whose entries of the vector are `place`; 1 in size at most."""
    with double_precision():
        score_pass = problem.passes.variance_scores(tuple(int(i) for i in place))
        sums = problem.rows.map(score_pass, vector, keep=problem.slot).sums
    return sums["score"] / np.maximum(np.abs(sums["size"]).max(), 1e-300)
