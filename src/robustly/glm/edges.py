r"""Where does a law's search begin, and what lies at its ends? The classical model, a law without noise, a bound.

At each end stands a simpler law: no spread, infinitely many degrees of freedom, no wrong labels, no noise beside the rows'
own predictors. The score of the spread at the classical fit says whether rows differ at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from robustly.fit.newton import Watch
from robustly.fit.outcome import Outcome, Stop
from robustly.fit.passes import pairs
from robustly.fit.problem import Found, Limit
from robustly.fit.search import search
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
from robustly.glm.noiseless import noiseless
from robustly.glm.regression import Climb, Edges, Plan, Regression
from robustly.model.linear import Design
from robustly.rows.store import Data

# Beyond these spreads the search ends: e³⁰ either way is no longer a regression, and 1e-4 is none.
NARROWEST, WIDEST = 1e-4, 30.0
# A spread close to the narrowest is none, unless it is worth as much as this.
NARROW_GAIN = 0.01
# A law of which only its limit is known does better than the classical model from here on.
STATED_GAIN = 1e-4
# Of a normal response: shares of spread or scale in the other below which it is negligible, at first and at last.
NEGLIGIBLE = (0.03, 1e-4)
# A scale below this share of the responses' is rounding.
PERFECT = 1e-10
# Logarithms of dispersions beyond which a simpler family does as well, and degrees of freedom as good as normal.
FURTHEST_DISPERSION, NEARLY_NORMAL = 16.0, 1e4
# Rows from which a start is made, where there are many.
START_ROWS = 30_000


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


def plan_of(found: Found) -> Plan:
    """What was fitted."""
    assert isinstance(found.problem, Regression)
    return found.problem.plan


def begun_with(begin: Found | None, law: Law) -> bool:
    """Whether a sample was fitted by the law itself, and not by a simpler one at its edge."""
    return begin is not None and isinstance(plan_of(begin).law, type(law))


def _end(what: str) -> Outcome:
    return Outcome("end", what)


# ---------------------------------------------------------------------- nothing local


class ClassicalEdges(Edges):
    """The generalized linear model; says so when its coefficients or dispersions run away."""

    def starts(self, problem: Regression, begin: Found | None) -> Sequence[np.ndarray]:
        if begun_with(begin, problem.plan.law):
            assert begin is not None
            return [begin.vector]
        design, family = problem.design, problem.plan.law.family
        u, rest, y, trials = least_squares(problem)
        guess = family.nuisance_start(y, trials, rest)
        phi = np.where(np.isin(np.arange(len(guess)), problem.linear.free), np.log(guess), problem.linear.held)
        start = problem.joined(u, phi)
        if not np.isfinite(problem.fresh().look(start).value):
            start = problem.joined(np.zeros(design.size), phi)
        return [start]

    def watch(self, problem: Regression) -> Watch | None:
        """Dispersions that run away: counts no more dispersed than a Poisson's, measurements without noise."""
        size = problem.design.size
        return lambda vector, gain: (
            _end("a dispersion is running to its limit")
            if np.any(np.abs(vector[size:]) > FURTHEST_DISPERSION)
            else None
        )

    def at_end(self, problem: Regression, found: Found, climb: Climb) -> Found:
        if found.outcome.kind != "end":
            return found
        u, phi = problem.split(found.vector)
        limit = {name: float(np.exp(value)) for name, value in zip(problem.plan.law.names, phi)}
        held = regression(problem.design, replace(problem.plan, held=limit))
        shown = ", ".join(f"{name} = {value:.2g}" for name, value in limit.items())
        return climb(held, u).with_outcome(
            "boundary", f"the dispersion ran to its limit and was held there ({shown}): a simpler family does as well."
        )


def fit_classical(design: Design, plan: Plan, begin: Found | None = None) -> Found:
    """The generalized linear model with nothing local."""
    family = plan.law.family
    law = Classical(family)
    # Passes are cheap here, and boundaries are judged by the last digits.
    stop = Stop(min(plan.stop.rtol, 1e-11), plan.stop.max_steps)
    held = {name: value for name, value in plan.held.items() if name in law.names}
    plain = replace(plan, law=law, hyperprior=None, nodes=None, stop=stop, held=held, known=None)
    if plan.known is not None and _is_known(plan.known, design, plain):
        return plan.known
    problem = regression(design, plain)
    if isinstance(family, Normal) and "scale" not in held:
        u, rest, y, _ = least_squares(problem)
        size = float(np.abs(y).max())
        if np.sqrt(np.mean(rest**2)) <= PERFECT * size:
            fixed = regression(design, replace(plain, held={"scale": max(PERFECT * size, 1e-150)}))
            return search(fixed, stop, start=u).with_outcome("perfect_fit", PERFECT_TEXT)
    start = begin.vector if begin is not None and begun_with(begin, law) else None
    return judge_separation(search(problem, stop, start=start))


def _is_known(known: Found, design: Design, plain: Plan) -> bool:
    """Whether an earlier fit is the one that `plain` asks for."""
    problem = known.problem
    return isinstance(problem, Regression) and problem.design is design and problem.plan == plain and not plain.held


PERFECT_TEXT = (
    "the columns reproduce the responses to rounding, so there is no noise to fit; standard errors mean nothing."
)


def least_squares(problem: Regression) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Least squares of the rows' rough predictors: coordinates, and of some rows what is left, response and trials."""
    family, design = problem.plan.law.family, problem.design
    u = design.project(lambda data: family.start(data[2], data[3]) - data[1])
    some = design.rows if len(design) <= START_ROWS else design.rows.sample(START_ROWS, 0)
    counted = np.flatnonzero(some.weight > 0)
    part = design.with_rows(some.take(counted) if len(counted) < len(some) else some)
    rest = family.start(part.y, part.trials) - part.predictor(u)
    return u, rest, part.y, part.trials


def judge_separation(found: Found) -> Found:
    """Says so when the best coefficients of a discrete response are infinite."""
    problem = found.problem
    assert isinstance(problem, Regression)
    design, plan = problem.design, problem.plan
    if not plan.law.family.discrete or design.ridge > 0 or plan.extra_ridge > 0 or not found.outcome.converged:
        return found
    seen = -found.optimum.curve[: design.size, : design.size] / design.rows.total_weight
    values, vectors = np.linalg.eigh(seen)
    if values[0] > 1e-6:
        return found
    run = np.abs(design.to_coefficients @ vectors[:, 0])
    which = [term for term, size in zip(design.terms, run) if size > 1e-3 * run.max()]
    return found.with_outcome(
        "separation",
        f"the columns {', '.join(which[:4])} tell some responses apart perfectly: the best coefficients are infinite, "
        "and the search stopped where going on gains nothing. Set alpha (a ridge penalty, 1 is mild) or drop a column.",
    )


class ConcaveEdges(Edges):
    """A concave law with all shared numbers held, or nearly so: straight from the classical fit."""

    def starts(self, problem: Regression, begin: Found | None) -> Sequence[np.ndarray]:
        if begin is not None:
            return [begin.vector]
        plain = fit_classical(problem.design, problem.plan)
        assert isinstance(plain.problem, Regression)
        u, shared = plain.problem.split(plain.vector)
        law, phi = problem.plan.law, problem.linear.held.copy()
        for name, value in zip(plan_of(plain).law.names, shared):
            if name in law.names:
                phi[law.names.index(name)] = value
        return [problem.joined(u, phi)]


class ClassicalLimit(Limit):
    """The classical model at the edge of a law."""

    def __init__(self, problem: Regression, begin: Found | None) -> None:
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
        return spread_score(self.found, self.problem.plan.law)

    def rules_out(self) -> bool:
        if begun_with(self.begin, self.problem.plan.law):
            return False
        if super().rules_out():
            return True
        law = self.problem.plan.law
        # The score at zero does not decide for 0/1 rows and heavy tails, which may prefer a spread far from zero, nor for laws
        # of which it is not known what is spread.
        unsure = isinstance(law.family, Bernoulli | Binomial) or getattr(law, "prior", "normal") == "student_t"
        unsure = unsure or not isinstance(law, LocalPredictor | LocalDispersion)
        return self.score[0] <= 1e-9 * self.score[1] and self.is_fitted and not unsure

    def answers(self, best: Found) -> bool:
        if not self.is_fitted:
            return False
        law, problem = self.problem.plan.law, best.problem
        assert isinstance(problem, Regression)
        spread = float(np.exp(problem.split(best.vector)[1][law.names.index("spread")]))
        narrow = spread < (1.0 if best.outcome.kind in ("end", "bound") else 10.0 * NARROWEST)
        if not narrow and not self.is_known:
            return False
        return self.found.value >= best.value - (NARROW_GAIN if narrow else 1e-6)


def spread_score(plain: Found, law: Law) -> tuple[float, float]:
    """Twice the slope of the log likelihood in the squared spread, at zero, and the size of what it is made of."""
    problem = plain.problem
    assert isinstance(problem, Regression)
    place = 1 + problem.plan.law.names.index(law.family.nuisance[0]) if isinstance(law, LocalDispersion) else 0
    diagonal = pairs(place + 1).index((place, place))

    def scored(data: Data, weight: np.ndarray, found: tuple[Any, ...]) -> dict[str, Any]:
        slope, bend = found[1], found[2][:, diagonal]
        return {"score": weight @ (slope[:, place] ** 2 + bend), "size": weight @ bend**2}

    found = problem.added_by_row(scored, plain.vector)
    return float(found["score"]), float(found["size"])


class SpreadEdges(Edges):
    """Rows with predictors or dispersions of their own."""

    def is_better(self, tried: Found, best: Found) -> bool:
        # A top stands, even if the likelihood is higher where the spread runs off to a limit.
        return super().is_better(tried, best) and tried.outcome.kind != "end"

    def limits(self, problem: Regression, begin: Found | None) -> Sequence[Limit]:
        return [NoSpread(problem, begin)]

    def watch(self, problem: Regression) -> Watch | None:
        place = problem.plan.law.names.index("spread")

        def watch(vector: np.ndarray, gain: float) -> Outcome | None:
            spread = float(np.exp(problem.split(vector)[1][place]))
            return _end("the spread is running to a limit") if not NARROWEST < spread < WIDEST else None

        return watch

    def at_end(self, problem: Regression, found: Found, climb: Climb) -> Found:
        if found.outcome.kind != "end":
            return found
        u, phi = problem.split(found.vector)
        narrow = float(np.exp(phi[problem.plan.law.names.index("spread")])) < 1.0
        if narrow and any(limit.answers(found) for limit in problem.known_limits):
            return found
        limit, way = (NARROWEST, "as the spread falls") if narrow else (WIDEST, "with the spread")
        nodes = 81 if problem.plan.nodes is None else problem.plan.nodes
        held = regression(
            problem.design, replace(problem.plan, nodes=nodes, held={**problem.plan.held, "spread": limit})
        )
        return climb(held, held.joined(u, phi)).with_outcome(
            "bound",
            f"the likelihood keeps rising {way}, which was stopped at {limit:g}. Responses like these say "
            "little about it: give a hyperprior, or another local.",
        )

    def starts(self, problem: Regression, begin: Found | None) -> Sequence[np.ndarray]:
        """The classical fit with a spread by moments, or the rows' own rough predictors, whichever has more evidence."""
        plan, law = problem.plan, problem.plan.law
        if begun_with(begin, law):
            assert begin is not None
            return [begin.vector]
        limit = problem.known_limits[0] if problem.known_limits else NoSpread(problem, begin)
        assert isinstance(limit, NoSpread)
        u, shared = limit.parts
        phi = problem.linear.held.copy()
        for name, value in zip(plan_of(limit.found).law.names, shared):
            if name in law.names:
                phi[law.names.index(name)] = value
        for name, value in plan.held.items():
            phi[law.names.index(name)] = law.free(name, value)
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
            return [problem.joined(u, phi), problem.joined(2.5 * u, wide)] if several else [problem.joined(u, phi)]
        rough, rest, _, _ = least_squares(problem)
        if fitted:
            wide[place] = np.log(np.clip(np.sqrt(np.mean(rest**2)), 0.1, 5.0))
        starts = [problem.joined(u, phi), problem.joined(rough, wide)]
        values = [problem.fresh().look(start, problem.cheaper).value for start in starts]
        return starts[1:] if values[1] > values[0] or not np.isfinite(values[0]) else starts[:1]


# ---------------------------------------------------------------------- a normal response


class NoNoise(Limit):
    """Rows' own predictors take up all noise."""

    def __init__(self, problem: Regression, plain: ClassicalLimit) -> None:
        self.problem, self.plain = problem, plain

    @cached_property
    def found(self) -> Found:  # type: ignore[override]
        u, phi = self.plain.parts
        return noiseless(self.problem.design, self.problem.plan, u, phi[0] - 0.7)

    def answers(self, best: Found) -> bool:
        return self.found.outcome.converged and _beaten(best, self.found.value)

    def answer(self, best: Found | None) -> Found:
        return self.found


class NoSpreadOfNormal(ClassicalLimit):
    """No spread of a normal response's own predictors."""

    def answers(self, best: Found) -> bool:
        return self.is_fitted and _beaten(best, self.found.value)


def _beaten(best: Found, value: float) -> bool:
    return best.outcome.kind in ("end", "bad_start") or value >= best.value - 1e-8


class NoiseEdges(Edges):
    """A normal response with predictors of its rows' own: between no spread and no noise, either of which may be best."""

    small = NEGLIGIBLE[0]

    def limits(self, problem: Regression, begin: Found | None) -> Sequence[Limit]:
        plain = NoSpreadOfNormal(problem, None)
        if not plain.found.outcome.converged:
            return [plain]
        both = [NoNoise(problem, plain), plain]
        return sorted(both, key=lambda limit: -limit.found.value if _stands(limit) else np.inf)

    def starts(self, problem: Regression, begin: Found | None) -> Sequence[np.ndarray]:
        if begun_with(begin, problem.plan.law):
            assert begin is not None
            return [begin.vector]
        law = problem.plan.law
        plain = next(limit for limit in problem.known_limits if isinstance(limit, ClassicalLimit))
        phi = np.full(len(law.names), np.log(4.0))
        phi[[law.names.index("spread"), law.names.index("scale")]] = plain.parts[1][0] - 0.7
        for name, value in problem.plan.held.items():
            phi[law.names.index(name)] = law.free(name, value)
        return [problem.joined(plain.parts[0], phi)]

    def watch(self, problem: Regression) -> Watch | None:
        law = problem.plan.law
        spread, scale = law.names.index("spread"), law.names.index("scale")
        low, high = self.small * len(problem.design) ** (-1.0 / 3.0), 1.0 / self.small

        def watch(vector: np.ndarray, gain: float) -> Outcome | None:
            phi = problem.split(vector)[1]
            return (
                None if low < float(np.exp(phi[scale] - phi[spread])) < high else _end("spread or scale runs to zero")
            )

        return watch

    def at_end(self, problem: Regression, found: Found, climb: Climb) -> Found:
        best = max((limit.found.value for limit in problem.known_limits if _stands(limit)), default=-np.inf)
        if found.outcome.kind != "end" or self.small == NEGLIGIBLE[1] or best >= found.value - 1e-6:
            return found
        closer = NoiseEdges()
        closer.small = NEGLIGIBLE[1]
        patient = Regression(problem.design, problem.plan, closer, problem.kernel.approx)
        patient.known_limits = problem.known_limits
        return climb(patient, found.vector)


def _stands(limit: Limit) -> bool:
    """Whether a limit of a normal response can be the answer."""
    return limit.found.outcome.converged and (not isinstance(limit, ClassicalLimit) or limit.is_fitted)


# ---------------------------------------------------------------------- precisions of the rows' own: Student's t


class NormalLimit(ClassicalLimit):
    """Infinitely many degrees of freedom."""

    def answers(self, best: Found) -> bool:
        if best.outcome.kind == "end":
            return True
        worse = self.is_known and best.value < self.found.value - 1e-7
        return worse and "dof" not in self.problem.plan.held


class PrecisionEdges(Edges):
    """Student's t: between the normal law and fits through as many rows as there are coefficients."""

    def limits(self, problem: Regression, begin: Found | None) -> Sequence[Limit]:
        return [NormalLimit(problem, begin)]

    @staticmethod
    def _floor(problem: Regression) -> float:
        """Below this many degrees of freedom a fit through as many rows as coefficients has an infinite likelihood."""
        size = problem.design.size
        return max(0.1, 1.5 * size / max(problem.design.rows.total_weight - size, 1.0))

    def starts(self, problem: Regression, begin: Found | None) -> Sequence[np.ndarray]:
        law, design = problem.plan.law, problem.design
        if begun_with(begin, law):
            assert begin is not None
            starts = [problem.split(begin.vector)]
            self.common = float(np.exp(starts[0][1][0]))
        else:
            limit = problem.known_limits[0] if problem.known_limits else NormalLimit(problem, None)
            assert isinstance(limit, NormalLimit)
            self.common = float(np.exp(limit.parts[1][0]))
            starts = student_t_starts(design, limit.parts[0], self.common)
        floor, free = self._floor(problem), "dof" not in problem.plan.held
        dof = lambda phi: np.log(max(np.exp(phi[1]), 1.2 * floor)) if free else problem.linear.held[1]
        return [problem.joined(u, np.array([phi[0], dof(phi)])) for u, phi in starts]

    common: float = 1.0
    """A scale of the residuals."""

    def watch(self, problem: Regression) -> Watch | None:
        floor, free = self._floor(problem), "dof" not in problem.plan.held

        def watch(vector: np.ndarray, gain: float) -> Outcome | None:
            scale, dof = np.exp(problem.split(vector)[1])
            if scale < PERFECT * self.common:
                return _end("scale")
            return _end("dof") if free and not floor < dof < NEARLY_NORMAL else None

        return watch

    def at_end(self, problem: Regression, found: Found, climb: Climb) -> Found:
        if found.outcome.kind != "end":
            return found
        u, phi = problem.split(found.vector)
        scale, dof = np.exp(phi)
        if scale < PERFECT * self.common:
            text = (
                "so many rows lie on one line to rounding that the scale runs to zero; look at those rows, or fix dof."
            )
            return found.with_outcome("perfect_fit", text)
        if dof >= NEARLY_NORMAL:
            return found
        floor = self._floor(problem)
        held = Regression(problem.design, replace(problem.plan, held={**problem.plan.held, "dof": floor}))
        return climb(held, held.joined(u, phi)).with_outcome(
            "bound",
            f"the degrees of freedom stopped at {floor:.3g}: below, a fit through {problem.design.size} rows has infinite "
            "likelihood. Use fewer columns, or fix dof.",
        )


def student_t_starts(design: Design, u: np.ndarray, scale: float) -> list[tuple[np.ndarray, np.ndarray]]:
    """From the classical fit, and from a few reweighted fits with the tails of a t with one degree of freedom."""
    if len(design) > START_ROWS or design.rows.here is None:
        design = design.with_rows(design.rows.sample(START_ROWS, 0))
    weight = design.rows.weight
    starts = [(u, np.log([0.8 * scale, 8.0]))]
    for _ in range(15):
        rest = design.y - design.predictor(u)
        middle = np.median(np.abs(rest[weight > 0]))
        scale = max(1.48 * float(middle), 1e-6 * scale)
        believed = 2.0 / (1.0 + (rest / scale) ** 2)
        u = design.with_rows(design.rows.weighed(weight * believed)).project(lambda data: data[2] - data[1])
    starts.append((u, np.log([scale, 1.5])))
    return starts


# ---------------------------------------------------------------------- labels of the rows' own


class NoFlips(ClassicalLimit):
    """No wrong labels."""

    def answers(self, best: Found) -> bool:
        return best.outcome.kind == "end" or (self.is_known and best.value <= self.found.value + 1e-9)


class LabelEdges(Edges):
    """Every label may be wrong, with a probability that may be none."""

    def limits(self, problem: Regression, begin: Found | None) -> Sequence[Limit]:
        return [NoFlips(problem, begin)]

    def starts(self, problem: Regression, begin: Found | None) -> Sequence[np.ndarray]:
        law = problem.plan.law
        if begun_with(begin, law):
            assert begin is not None
            return [begin.vector]
        limit = problem.known_limits[0] if problem.known_limits else NoFlips(problem, None)
        assert isinstance(limit, NoFlips)
        u = limit.parts[0]
        return [problem.joined(s * u, np.array([law.free("flip", e)])) for e in (0.02, 0.2) for s in (1.0, 3.0)]

    def watch(self, problem: Regression) -> Watch | None:
        return lambda vector, gain: _end("no flips") if problem.split(vector)[1][0] < -14.0 else None
