r"""Which rows of a regression do not belong? Its cores, each by itself and with a wide part.

The laws that judge are fitted beside the law the user chose, which keeps its estimates, from starts that outliers do not move
(:mod:`robustly.glm.contaminated_starts`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from robustly._runtime.threads import on_one_thread
from robustly.fit.newton import Hopeless, Watch
from robustly.fit.outcome import Outcome
from robustly.fit.problem import Found
from robustly.glm.classical import fit_classical
from robustly.glm.contaminated import Contaminated, believed_of_core, cores_of
from robustly.glm.contaminated_starts import (
    MANY_ROWS,
    NOT_A_CORE,
    STOP,
    best_of_starts,
    far_out,
    grown_starts,
    on_all_rows,
    sample_to_judge,
    spread_starts,
    trimmed_start,
    wide_starts,
)
from robustly.glm.core_scores import OddsOf, asked_of_rows, normal_scores, score_slopes, scores_in_core
from robustly.glm.families import Normal
from robustly.glm.local import Classical, Law, LocalPredictor
from robustly.glm.predictive import Fitted
from robustly.glm.regression import Plan, Regression, plan_of
from robustly.model.linear import Design
from robustly.result.outliers import (
    BEHIND,
    HEAVY_MARGIN,
    Candidate,
    Judgement,
    behind,
    finite_curve,
    heavy_tails_doubt,
    judge,
    vectors_along,
)
from robustly.result.two_part import LOG_2PI
from robustly.rows.store import Data

# How many normal rows lie more than a deviation out; and by how many standard errors more show that a core is too narrow.
OUT_BY_CHANCE, SURE = 0.3173, 3.0
# A share of strayed rows above this is a core that may not fit; above that, one that does not, and is not climbed to its end.
MOST_STRAYED, TOO_MANY = 0.15, 0.3

# From this share of strayed rows on, users are told what frees the estimates of them.
MANY_STRAYED = 0.05
ADVICE = (
    "About {share:.0%} of the rows do not belong, and the estimates of this fit still feel them: "
    'local="contaminated" fits a law in which they have a part of their own.'
)

WeighedLaw = tuple[Found, Law, float]
"""A law that is weighed: fitted, its core, and by how much it must do better."""


def judge_regression(design: Design, plan: Plan, known: Found | None = None) -> Judgement:
    """Weigh the cores of a regression, each by itself and with a wide part; `known` is the user's own fit."""
    some = sample_to_judge(design)
    laws = [
        (on_all_rows(found, design), core, margin)
        for found, core, margin in _laws(some, plan, lambda wide, core: [_spread_itself(some, plan, wide, core, known)])
    ]
    candidates = [_candidate(*one) for one in laws]
    if len(candidates) == 1:
        return judge(candidates, "The classical model has no finite estimates.")
    found = judge(candidates, heavy_tails_doubt(candidates) if isinstance(plan.law.family, Normal) else "")
    if found.share < MANY_STRAYED or isinstance(plan.law, Contaminated):
        return found
    return replace(found, advice=ADVICE.format(share=found.share))


def fit_contaminated(design: Design, plan: Plan) -> Found:
    """The law with a wide part that the evidence prefers, as the answer; the classical model where it does as well."""
    classical = fit_classical(design, replace(plan, held={}))
    if _has_none_far_out(classical):
        return classical.with_outcome("boundary", plan.law.boundary_text)
    weighed = lambda found, margin=0.0: Candidate("", found.value, found.optimum.curve, margin=margin)
    hopeless = behind(weighed(classical)) if classical.outcome.converged else None
    laws = _laws(design, replace(plan, known=classical), lambda wide, core: [], hopeless)
    found, _, _ = max(laws, key=lambda one: weighed(one[0], one[2]).log_evidence)
    if isinstance(plan_of(found).law, Contaminated) or not found.outcome.converged:
        return found
    return found.with_outcome("boundary", plan.law.boundary_text)


def _laws(
    design: Design,
    plan: Plan,
    by_itself: Callable[[Found, Law], list[WeighedLaw]],
    hopeless: Hopeless | None = None,
) -> list[WeighedLaw]:
    """Every law that is weighed; `by_itself` gives a core with a spread by itself, from where it stands beside a wide part.

    A climb that is `hopeless` ends on the way, and its law is not weighed, unless richer cores go on from there.
    """
    family = plan.law.family
    plain = Plan(Classical(family), nodes=plan.nodes, stop=STOP, extra_ridge=plan.extra_ridge)
    plainest, *richer = cores_of(plan.law)
    trimmed = trimmed_start(design, family)
    spread = next((core for core in richer if isinstance(core, LocalPredictor)), None)
    if trimmed and spread is not None and _is_wider(design, plainest, *trimmed[0]):
        # The plainest core is out of the question.
        found = _highest(design, replace(plain, law=Contaminated(family, spread)), spread_starts(trimmed))
        if found.outcome.converged:
            return [*by_itself(found, spread), (found, spread, 0.0)]
    # The classical model may have been fitted on the way to the law that was asked for.
    classical = fit_classical(design, replace(plan, held={}))
    laws = [(classical, plainest, 0.0)]
    if not classical.outcome.converged:
        return laws
    starts = wide_starts(design, plainest, classical, trimmed)
    found = _highest(design, replace(plain, law=Contaminated(family, plainest)), starts, None if richer else hopeless)
    if found.outcome.kind not in (NOT_A_CORE, BEHIND):
        laws.append((found, plainest, 0.0))
    for core in richer:
        if _overdispersed(core, found):
            starts = spread_starts(trimmed) if core is spread and trimmed else grown_starts(core, found)
            margin = HEAVY_MARGIN if isinstance(family, Normal) else 0.0
            wider = _highest(design, replace(plain, law=Contaminated(family, core)), starts)
            laws += [*(by_itself(wider, core) if core is spread else []), (wider, core, margin)]
    return laws


def _spread_itself(design: Design, plan: Plan, wide: Found, core: Law, known: Found | None) -> WeighedLaw:
    """A core with predictors of its own by itself, as it is `known` or climbed to from where it stands beside a wide part."""
    assert isinstance(wide.problem, Regression)
    if known is not None and known.outcome.kind == "converged" and _is_fit_of(known, design, core):
        found = known
    else:
        u, phi = wide.problem.split(wide.vector)
        start = np.concatenate([u, phi[: len(core.names)]])
        found = best_of_starts(design, Plan(core, nodes=plan.nodes, stop=STOP, extra_ridge=plan.extra_ridge), [start])
    # The same weak prior of the spread as beside a wide part: next to the curvature of the rows it moves nothing.
    assert isinstance(found.problem, Regression)
    place = found.problem.design.size + core.names.index("spread")
    centre, width = believed_of_core(core)["spread"]
    away = (found.vector[place] - centre) / width
    curve = found.optimum.curve.copy()
    curve[place, place] -= width**-2.0
    value = found.value - 0.5 * away**2 - float(np.log(width)) - 0.5 * LOG_2PI
    return replace(found, optimum=replace(found.optimum, value=value, bent=curve)), core, 0.0


def _is_fit_of(known: Found, design: Design, core: Law) -> bool:
    """Whether a fit is one of this core to these rows, with nothing held or believed besides."""
    problem = known.problem
    if not isinstance(problem, Regression) or problem.attenuated:
        return False
    plan = problem.plan
    return problem.design is design and plan.law == core and not plan.held and plan.hyperprior is None


def _is_wider(design: Design, plainest: Law, u: np.ndarray, left: np.ndarray) -> bool:
    """Whether many more rows lie a deviation out of the plainest core than do by chance, rows far out left aside."""
    if design.rows.here is None or len(left) != len(design):
        return False
    out = normal_scores(plainest, design.predictor(u), np.zeros(0), design.y, design.trials) > 1.0
    inside = ~far_out(left)
    return float(out[inside].mean()) > OUT_BY_CHANCE + SURE * np.sqrt(OUT_BY_CHANCE / inside.sum())


def _has_none_far_out(classical: Found) -> bool:
    """Whether no row lies far out of a classical model that says how much rows vary: strayed rows cannot have widened it."""
    problem = classical.problem
    assert isinstance(problem, Regression)
    design, law = problem.design, problem.plan.law
    if law.names or design.rows.here is None or not classical.outcome.converged:
        return False
    m = design.predictor(problem.split(classical.vector)[0])
    return bool(normal_scores(law, m, np.zeros(0), design.y, design.trials).max() < SURE)


def _highest(design: Design, plan: Plan, starts: list[np.ndarray], hopeless: Hopeless | None = None) -> Found:
    return best_of_starts(design, plan, starts, _too_many_strayed(plan.law), hopeless)


def _too_many_strayed(law: Law) -> Watch | None:
    """Ends the climb of a law whose core describes too few rows, where a richer core may describe them."""
    if not isinstance(law, Contaminated) or not isinstance(law.core, Classical):
        return None
    if not any(isinstance(core, LocalPredictor) for core in cores_of(law)):
        return None
    most = law.free("share", TOO_MANY)
    reason = Outcome(NOT_A_CORE, "too many rows would not belong to this core.")
    return lambda vector, gain: reason if vector[-1] > most else None


def _candidate(found: Found, core: Law, margin: float) -> Candidate:
    problem = found.problem
    assert isinstance(problem, Regression)
    law, (u, phi) = problem.plan.law, problem.split(found.vector)
    score = lambda: _scores(found, core)
    name = CORES[type(core).__name__].format(family=_word(core))
    if not isinstance(law, Contaminated):
        return Candidate(f"{name} alone", found.value, found.optimum.curve, score=score, margin=margin)
    # Estimates that coefficients made too narrow would make rows of the core look strayed.
    known = unbiased(core, phi[: len(core.names)], found)
    vector = problem.joined(u, np.concatenate([known, phi[len(known) :]]))
    variance = nodes = None
    odds: np.ndarray | Callable[[], np.ndarray]
    if len(problem.design) < MANY_ROWS:
        place = len(u) + law.names.index("variation")
        vectors, nodes, left = vectors_along(vector, _covariance(found), place)
        asked = [problem.by_row(OddsOf(problem.kernel, law), one) for one in vectors]
        odds = np.stack([one for one, _ in asked])
        variance = np.stack([_variance(found, slope, left) for _, slope in asked])
    else:
        # Of a law that is ruled out nobody asks for them.
        odds = lambda: problem.value_by_row(OddsOf(problem.kernel, law, slopes=False), vector)
    share, name = float(law.natural("share", phi[-1])), f"{name} and a wide part"
    return Candidate(name, found.value, found.optimum.curve, odds, variance, share, score, margin, nodes)


CORES = {
    "Classical": "a core of {family}",
    "LocalPrecision": "a core with heavy tails (Student t)",
    "LocalPredictor": "a core of {family} with predictors of their own",
}


def _word(core: Law) -> str:
    return f"{type(core.family).__name__} rows"


@on_one_thread
def _covariance(found: Found) -> np.ndarray:
    values, vectors = np.linalg.eigh(-finite_curve(found.optimum.curve))
    kept = values > 1e-10 * max(float(values.max(initial=0.0)), 1e-300)
    return (vectors[:, kept] / values[kept]) @ vectors[:, kept].T


def _variance(found: Found, slope: np.ndarray, covariance: np.ndarray | None = None) -> np.ndarray:
    """Of a number by row with these slopes in the row's predictor and shared numbers: the estimates' uncertainty, carried over."""
    problem = found.problem
    assert isinstance(problem, Regression)
    directions = problem.design.directions() * slope[:, :1]
    whole = np.concatenate([directions, slope[:, 1 + problem.linear.free]], axis=1)
    return np.einsum("ni,ij,nj->n", whole, _covariance(found) if covariance is None else covariance, whole)


def _scores(found: Found, core: Law) -> tuple[np.ndarray, np.ndarray]:
    """How far out rows lie in the core as two-sided normal scores, and the variance of that from the estimates."""
    problem = found.problem
    assert isinstance(problem, Regression)
    design = problem.design
    u, phi = problem.split(found.vector)
    phi = unbiased(core, phi[: len(core.names)], found)
    if design.rows.here is None:
        return asked_of_rows(design, u, Fitted(core, phi, np.zeros(0), False), scores_in_core), np.zeros(())
    m = design.predictor(u)
    if len(design) >= MANY_ROWS:
        return normal_scores(core, m, phi, design.y, design.trials), np.zeros(())
    # Steps in the predictor are in units of a row's own deviation there.
    unit = float(np.exp(phi[core.names.index("scale")])) if "scale" in core.names else 1.0
    here, slope = score_slopes(core, m, phi, design.y, design.trials, unit)
    slopes = np.zeros((len(here), 1 + len(problem.linear.held)))
    slopes[:, : slope.shape[1]] = slope
    return here, _variance(found, slopes)


def unbiased(core: Law, phi: np.ndarray, found: Found) -> np.ndarray:
    """A core's numbers with its scale or dispersion as if coefficients had cost no degrees of freedom."""
    problem = found.problem
    assert isinstance(problem, Regression)
    law, (_, whole) = problem.plan.law, problem.split(found.vector)
    strayed = float(law.natural("share", whole[-1])) if isinstance(law, Contaminated) else 0.0
    rows, size = (1.0 - strayed) * problem.design.rows.total_weight, problem.design.size
    if rows <= 2 * size:
        return phi
    found_here = phi.copy()
    grown = np.log(rows / (rows - size))
    for name, power in (("scale", 0.5), ("spread", 0.5), ("shape", -1.0), ("size", -1.0)):
        if name in core.names:
            found_here[core.names.index(name)] += power * grown
    return found_here


def _overdispersed(core: Law, previous: Found) -> bool:
    """Whether rows of the plainer core vary more than it says, as far as one with predictors of its own could tell."""
    if not isinstance(core, LocalPredictor):
        return True
    problem = previous.problem
    assert isinstance(problem, Regression)
    law = problem.plan.law
    assert isinstance(law, Contaminated)
    u, phi = problem.split(previous.vector)
    is_sure = previous.outcome.kind == NOT_A_CORE or law.natural("share", phi[-1]) > MOST_STRAYED
    if is_sure and len(problem.design) > MANY_ROWS:
        return True
    more = MoreThanSaid(problem.design, law, law.core.nuisance(phi), problem.design.shifted_of(u))
    # Asked of few rows in any case: others of the same kind would else compile what these did not need.
    sums = problem.added_by_row(more, previous.vector, OddsOf(problem.kernel, law))
    # Within its own error a spread gains nothing.
    return is_sure or float(sums["more"]) > float(np.sqrt(sums["squares"]))


@dataclass(frozen=True, eq=False)
class MoreThanSaid:
    """How much more the rows of a core vary than it says: twice the slope of its log likelihood in the squared spread, at none."""

    design: Design
    law: Contaminated
    nuisance: Any
    direction: np.ndarray

    def __call__(self, data: Data, weight: np.ndarray, found: tuple[Any, ...]) -> dict[str, Any]:
        m = data[1] + self.design.linear(self.design.shifted(data[0]), self.direction)
        family, trials = self.law.family, data[3]
        away = data[2] - family.mean(m, self.nuisance, trials)
        inside = weight / (1.0 + np.exp(np.minimum(found[0], 700.0)))
        each = inside * (away**2 - family.variance(m, self.nuisance, trials))
        return {"more": each.sum(), "squares": each @ each}
