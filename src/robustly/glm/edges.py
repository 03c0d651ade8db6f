r"""Where does a law's search begin, and what lies at its ends? The classical model, a law without noise, a bound.

At each end stands a simpler law: no spread, infinitely many degrees of freedom, no wrong labels, no noise beside the rows'
own predictors. The score of the spread at the classical fit says whether rows differ at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from robustly.fit.newton import Watch
from robustly.fit.outcome import Outcome
from robustly.fit.problem import Found, Limit
from robustly.fit.search import search
from robustly.fit.view_passes import pairs
from robustly.glm.classical import ClassicalEdges, ClassicalLimit, classical_limit, least_squares
from robustly.glm.families import Bernoulli, Binomial, Normal
from robustly.glm.local import (
    Classical,
    Law,
    LocalDispersion,
    LocalLabel,
    LocalPrecision,
    LocalPredictor,
    Noiseless,
    Shifted,
)
from robustly.glm.normal_edges import NoiseEdges, PrecisionEdges
from robustly.glm.regression import Climb, Edges, Plan, Regression, begun_with
from robustly.model.linear import Design
from robustly.rows.store import Data

# Beyond these spreads the search ends: e³⁰ either way is no longer a regression, and 1e-4 is none.
NARROWEST, WIDEST = 1e-4, 30.0
# A spread close to the narrowest is none, unless it is worth as much as this.
NARROW_GAIN = 0.01
# A law of which only its limit is known does better than the classical model from here on.
STATED_GAIN = 1e-4
# Up to this square of the spread by moments, the classical fit is near enough to begin from.
CREDIBLE = 1.0


def regression(design: Design, plan: Plan) -> Regression:
    """The problem of fitting a law to a design."""
    return Regression(design, plan, _edges(plan.law))


def fit_law(design: Design, plan: Plan) -> Found:
    """Fit a law to a design."""
    return search(regression(design, plan), plan.stop)


def _edges(law: Law) -> Edges:
    if isinstance(law, Classical):
        return ClassicalEdges()
    if isinstance(law, LocalPrecision):
        return PrecisionEdges()
    if isinstance(law, LocalLabel):
        return LabelEdges()
    if isinstance(law, LocalPredictor | LocalDispersion):
        return NoiseEdges() if isinstance(law.family, Normal) else SpreadEdges()
    if isinstance(law, Noiseless | Shifted):
        return ConcaveEdges()
    # A law of the user's own.
    return SpreadEdges() if not law.closed and law.names[:1] == ("spread",) else StatedEdges()


# ---------------------------------------------------------------------- concave laws, and laws of the user's own


class ConcaveEdges(Edges):
    """A concave law with all shared numbers held, or nearly so: straight from the classical fit."""

    def starts(self, problem: Regression) -> Sequence[np.ndarray]:
        limit = ClassicalLimit(problem)
        return [problem.joined(limit.parts[0], limit.phi())]


class StatedLimit(ClassicalLimit):
    """The classical model where a law says that it lies: the answer unless the law does better."""

    def answers(self, best: Found) -> bool:
        plan = self.problem.plan
        inside = any(name not in plan.held for name in plan.law.at_boundary)
        return inside and (best.outcome.kind == "end" or self.found.value >= best.value - STATED_GAIN)


class StatedEdges(ConcaveEdges):
    """A user's own law: from the classical fit, with shared numbers of its own at the free value 0."""

    def limits(self, problem: Regression, begin: Found | None) -> Sequence[Limit]:
        return [StatedLimit(problem, begin)] if problem.plan.law.at_boundary else ()


# ---------------------------------------------------------------------- predictors or dispersions of the rows' own


class NoSpread(ClassicalLimit):
    """No spread of predictors or dispersions."""

    @cached_property
    def score(self) -> tuple[float, float]:
        """Twice the slope of the log likelihood in the squared spread, at zero, and the size of what it is made of."""
        law, problem = self.problem.plan.law, self.found.problem
        assert isinstance(problem, Regression)
        place = 1 + problem.plan.law.names.index(law.family.nuisance[0]) if isinstance(law, LocalDispersion) else 0
        diagonal = pairs(place + 1).index((place, place))

        def scored(data: Data, weight: np.ndarray, found: tuple[Any, ...]) -> dict[str, Any]:
            slope, bend = found[1], found[2][:, diagonal]
            return {"score": weight @ (slope[:, place] ** 2 + bend), "size": weight @ bend**2}

        sums = problem.added_by_row(scored, self.found.vector)
        return float(sums["score"]), float(sums["size"])

    def rules_out(self) -> bool:
        law = self.problem.plan.law
        if begun_with(self.begin, law):
            return False
        if super().rules_out():
            return True
        # The score at zero does not decide for 0/1 rows and heavy tails, which may prefer a spread far from zero, nor for laws
        # of which it is not known what is spread.
        unsure = isinstance(law.family, Bernoulli | Binomial) or getattr(law, "prior", "normal") == "student_t"
        unsure = unsure or not isinstance(law, LocalPredictor | LocalDispersion)
        return self.score[0] <= 1e-9 * self.score[1] and self.is_fitted and not unsure

    def answers(self, best: Found) -> bool:
        if not self.is_fitted:
            return False
        spread = _spread(best)
        narrow = spread < (1.0 if best.outcome.kind in ("end", "bound") else 10.0 * NARROWEST)
        if not narrow and not self.is_known:
            return False
        return self.found.value >= best.value - (NARROW_GAIN if narrow else 1e-6)


def _spread(found: Found) -> float:
    problem = found.problem
    assert isinstance(problem, Regression)
    return float(np.exp(problem.split(found.vector)[1][problem.plan.law.names.index("spread")]))


class SpreadEdges(Edges):
    """Rows with predictors or dispersions of their own."""

    # A top stands, even if the likelihood is higher where the spread runs off to a limit.
    tops_only = True

    def limits(self, problem: Regression, begin: Found | None) -> Sequence[Limit]:
        return [NoSpread(problem, begin)]

    def watch(self, problem: Regression) -> Watch | None:
        place, end = problem.plan.law.names.index("spread"), Outcome("end", "the spread is running to a limit")
        if "spread" in problem.plan.held:
            return None
        return lambda vector, gain: None if NARROWEST < float(np.exp(problem.split(vector)[1][place])) < WIDEST else end

    def at_end(self, problem: Regression, found: Found, climb: Climb) -> Found:
        narrow = _spread(found) < 1.0
        if narrow and any(limit.answers(found) for limit in problem.known_limits):
            return found
        limit, way = (NARROWEST, "as the spread falls") if narrow else (WIDEST, "with the spread")
        held = problem.held_at({"spread": limit}, nodes=81 if problem.plan.nodes is None else problem.plan.nodes)
        return climb(held, held.joined(*problem.split(found.vector))).with_outcome(
            "bound",
            f"the likelihood keeps rising {way}, which was stopped at {limit:g}. Responses like these say "
            "little about it: give a hyperprior, or another local.",
        )

    def starts(self, problem: Regression) -> Sequence[np.ndarray]:
        """The classical fit with a spread by moments, or the rows' own rough predictors, whichever has more evidence."""
        plan, law = problem.plan, problem.plan.law
        limit = classical_limit(problem)
        assert isinstance(limit, NoSpread)
        u, phi = limit.parts[0], limit.phi()
        if "dof" in law.names and "dof" not in plan.held:
            phi[law.names.index("dof")] = np.log(4.0)
        place, fitted = law.names.index("spread"), "spread" not in plan.held
        score, size = limit.score
        if fitted:
            phi[place] = np.log(np.sqrt(np.clip(score / max(size, 1e-300), 0.01, 4.0)))
        if isinstance(law, LocalDispersion):
            return [problem.joined(u, phi)]
        wide = phi.copy()
        if isinstance(law.family, Bernoulli | Binomial):
            if fitted:
                phi[place], wide[place] = np.log(1.0), np.log(4.0)
            several = plan.hyperprior is None and fitted
            return [problem.joined(u, phi), *([problem.joined(2.5 * u, wide)] if several else ())]
        if fitted and score <= CREDIBLE * size:
            return [problem.joined(u, phi)]
        rough, rest, _, _ = least_squares(problem)
        if fitted:
            wide[place] = np.log(np.clip(np.sqrt(np.mean(rest**2)), 0.1, 5.0))
        starts = [problem.joined(u, phi), problem.joined(rough, wide)]
        values = [problem.fresh().look(start, problem.cheaper).value for start in starts]
        return starts[1:] if values[1] > values[0] or not np.isfinite(values[0]) else starts[:1]


# ---------------------------------------------------------------------- labels of the rows' own


class NoFlips(ClassicalLimit):
    """No wrong labels."""

    def answers(self, best: Found) -> bool:
        return best.outcome.kind == "end" or (self.is_known and best.value <= self.found.value + 1e-9)


class LabelEdges(Edges):
    """Every label may be wrong, with a probability that may be none."""

    def limits(self, problem: Regression, begin: Found | None) -> Sequence[Limit]:
        return [NoFlips(problem, begin)]

    def starts(self, problem: Regression) -> Sequence[np.ndarray]:
        law, u = problem.plan.law, classical_limit(problem).parts[0]
        return [problem.joined(s * u, np.array([law.free("flip", e)])) for e in (0.02, 0.2) for s in (1.0, 3.0)]

    def watch(self, problem: Regression) -> Watch | None:
        end = Outcome("end", "no flips")
        return lambda vector, gain: end if problem.split(vector)[1][0] < -14.0 else None
