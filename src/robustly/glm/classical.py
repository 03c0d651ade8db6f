"""What is the regression with nothing local? The generalized linear model, and where it lies at the edge of other laws."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np

from robustly._runtime.threads import on_one_thread
from robustly.fit.newton import Watch
from robustly.fit.outcome import Outcome, Stop
from robustly.fit.problem import Found, Limit
from robustly.fit.search import search
from robustly.glm.families import Normal
from robustly.glm.local import Classical, LocalPrecision
from robustly.glm.regression import Climb, Edges, Plan, Regression, begun_with
from robustly.model.linear import Design

# A scale below this share of the responses' is rounding.
PERFECT = 1e-10
PERFECT_TEXT = (
    "the columns reproduce the responses to rounding, so there is no noise to fit; standard errors mean nothing."
)
# Logarithms of dispersions beyond which a simpler family does as well.
FURTHEST_DISPERSION = 16.0
# Rows from which a start is made, where there are many.
START_ROWS = 30_000


class ClassicalEdges(Edges):
    """The generalized linear model; says so when its dispersions run away."""

    def starts(self, problem: Regression) -> Sequence[np.ndarray]:
        u, rest, y, trials = least_squares(problem)
        guess = problem.plan.law.family.nuisance_start(y, trials, rest)
        phi = np.where(np.isin(np.arange(len(guess)), problem.linear.free), np.log(guess), problem.linear.held)
        return [problem.joined(u, phi)]

    def rescue(self, problem: Regression, bad: np.ndarray) -> np.ndarray | None:
        return problem.joined(np.zeros(problem.design.size), problem.split(bad)[1])

    def watch(self, problem: Regression) -> Watch | None:
        """Dispersions that run away: counts no more dispersed than a Poisson's, measurements without noise."""
        size, end = problem.design.size, Outcome("end", "a dispersion is running to its limit")
        return lambda vector, gain: end if np.any(np.abs(vector[size:]) > FURTHEST_DISPERSION) else None

    def at_end(self, problem: Regression, found: Found, climb: Climb) -> Found:
        u, phi = problem.split(found.vector)
        limit = {name: float(np.exp(value)) for name, value in zip(problem.plan.law.names, phi)}
        shown = ", ".join(f"{name} = {value:.2g}" for name, value in limit.items())
        return climb(problem.held_at(limit), u).with_outcome(
            "boundary", f"the dispersion ran to its limit and was held there ({shown}): a simpler family does as well."
        )


def fit_classical(design: Design, plan: Plan, begin: Found | None = None) -> Found:
    """The generalized linear model with nothing local."""
    law = Classical(plan.law.family)
    # Passes are cheap here, and boundaries are judged by the last digits.
    stop = Stop(min(plan.stop.rtol, 1e-11), plan.stop.max_steps)
    held = {name: value for name, value in plan.held.items() if name in law.names}
    plain = replace(plan, law=law, hyperprior=None, nodes=None, stop=stop, held=held, known=None)
    if plan.known is not None and _is_known(plan.known, design, plain):
        return plan.known
    problem = Regression(design, plain, ClassicalEdges())
    if isinstance(law.family, Normal) and "scale" not in held:
        u, rest, y, _ = least_squares(problem)
        size = float(np.abs(y).max())
        if np.sqrt(np.mean(rest**2)) <= PERFECT * size:
            fixed = problem.held_at({"scale": max(PERFECT * size, 1e-150)})
            return search(fixed, stop, start=u).with_outcome("perfect_fit", PERFECT_TEXT)
    start = begin.vector if begin is not None and begun_with(begin, law) else None
    return _judge_separation(search(problem, stop, start=start))


def _is_known(known: Found, design: Design, plain: Plan) -> bool:
    """Whether an earlier fit is the one that `plain` asks for."""
    problem = known.problem
    return isinstance(problem, Regression) and problem.design is design and problem.plan == plain and not plain.held


def least_squares(problem: Regression) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Least squares of the rows' rough predictors: coordinates, and of some rows what is left, response and trials."""
    family, design = problem.plan.law.family, problem.design
    u = design.project(lambda data: family.start(data[2], data[3]) - data[1])
    some = design.rows if len(design) <= START_ROWS else design.rows.sample(START_ROWS, 0)
    counted = np.flatnonzero(some.weight > 0)
    part = design.with_rows(some.take(counted) if len(counted) < len(some) else some)
    rest = family.start(part.y, part.trials) - part.predictor(u)
    return u, rest, part.y, part.trials


@on_one_thread
def _judge_separation(found: Found) -> Found:
    """Says so when the best coefficients of a discrete response are infinite."""
    problem = found.problem
    assert isinstance(problem, Regression)
    design, plan = problem.design, problem.plan
    if not plan.law.family.discrete or design.ridge > 0 or plan.extra_ridge > 0 or not found.outcome.converged:
        return found
    seen = -found.optimum.curve[: design.size, : design.size] / design.rows.total_weight
    values, vectors = np.linalg.eigh(seen)
    if not len(values) or values[0] > 1e-6:
        return found
    run = np.abs(design.to_coefficients @ vectors[:, 0])
    which = [term for term, size in zip(design.terms, run) if size > 1e-3 * run.max()]
    return found.with_outcome(
        "separation",
        f"the columns {', '.join(which[:4])} tell some responses apart perfectly: the best coefficients are infinite, "
        "and the search stopped where going on gains nothing. Set alpha (a ridge penalty, 1 is mild) or drop a column.",
    )


class ClassicalLimit(Limit):
    """The classical model at the edge of a law."""

    def __init__(self, problem: Regression, begin: Found | None = None) -> None:
        self.problem, self.begin = problem, begin

    @cached_property
    def found(self) -> Found:  # type: ignore[override]
        plan = self.problem.plan
        held = {} if isinstance(plan.law, LocalPrecision) else plan.held
        return fit_classical(self.problem.design, replace(plan, held=held), self.begin)

    @property
    def is_known(self) -> bool:
        return "found" in self.__dict__

    @property
    def is_fitted(self) -> bool:
        """Whether the number that is gone at this limit is fitted at all."""
        plan = self.problem.plan
        return plan.hyperprior is None and plan.law.names[0] not in plan.held

    def rules_out(self) -> bool:
        # Where the classical model has no answer, neither has the law.
        return not begun_with(self.begin, self.problem.plan.law) and not self.found.outcome.converged

    def answers(self, best: Found) -> bool:
        return best.outcome.kind == "end"

    def answer(self, best: Found | None) -> Found:
        if not self.found.outcome.converged:
            return self.found
        return self.found.with_outcome("boundary", self.problem.plan.law.boundary_text)

    @cached_property
    def parts(self) -> tuple[np.ndarray, np.ndarray]:
        """Coordinates of the coefficients, and the shared numbers."""
        assert isinstance(self.found.problem, Regression)
        return self.found.problem.split(self.found.vector)

    def phi(self, default: float = 0.0) -> np.ndarray:
        """All shared numbers of the law: those held, those of the classical model, and a default for its own."""
        law, plan = self.problem.plan.law, self.problem.plan
        known = dict(zip(Classical(law.family).names, self.parts[1]))
        return np.array([law.free(n, plan.held[n]) if n in plan.held else known.get(n, default) for n in law.names])


def classical_limit(problem: Regression) -> ClassicalLimit:
    """The classical model among the limits of a problem that is being searched."""
    return next(limit for limit in problem.known_limits if isinstance(limit, ClassicalLimit))
