r"""Which rows of a regression do not belong? Its cores, each by itself and with a wide part.

The laws that judge are fitted beside the law the user chose, which keeps its estimates. A start comes from least trimmed
squares on small subsets of the rows (Rousseeuw & Van Driessen 2006), so that a tenth of the rows on one side neither hide each
other nor make good rows look bad.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from robustly.fit.newton import maximize
from robustly.fit.outcome import Stop
from robustly.fit.problem import Found
from robustly.glm.classical import fit_classical
from robustly.glm.contaminated import Contaminated, MarginLabel, cores_of
from robustly.glm.edges import regression
from robustly.glm.families import Normal
from robustly.glm.local import Classical, Law, LocalLabel, LocalPrecision, LocalPredictor
from robustly.glm.predictive import Fitted, GLMPredictive
from robustly.glm.regression import Plan, Regression, plan_of
from robustly.model.linear import Design
from robustly.result.outliers import HEAVY_MARGIN, Candidate, Judgement, heavy_tails_doubt, judge
from robustly.rows.store import Data

STOP = Stop(1e-9, 60)
# Small subsets, and how often each is fitted again to its closest half.
SUBSETS, CONCENTRATIONS = 40, 3
KEPT_SUBSETS = 3
# Subsets are weighed by so many rows, the best of them by all.
FEW_ROWS = 300
# Beyond these a start is made from so many rows or columns.
START_ROWS, START_COLUMNS = 2000, 60
# From so many rows on, what the estimates leave open no longer shows in a row's score.
MANY_ROWS = 20_000
STEP = 1e-3
DEEPEST = 1e-11
# A share of strayed rows above this is a core that does not fit.
MOST_STRAYED = 0.15
CONSISTENT = 1.4826  # A normal's standard deviation over its median absolute deviation.


def judge_regression(design: Design, plan: Plan) -> Judgement:
    """Weigh the cores of a regression, each by itself and with a wide part."""
    candidates = [_candidate(*one) for one in _laws(design, plan)]
    if len(candidates) == 1:
        return judge(candidates, "The classical model has no finite estimates.")
    return judge(candidates, heavy_tails_doubt(candidates) if isinstance(plan.law.family, Normal) else "")


def fit_contaminated(design: Design, plan: Plan) -> Found:
    """The law with a wide part that the evidence prefers, as the answer; the classical model where it does as well."""
    laws = _laws(design, plan)
    found, _, _ = max(laws, key=lambda one: _candidate(*one).log_evidence)
    if isinstance(plan_of(found).law, Contaminated) or not found.outcome.converged:
        return found
    return found.with_outcome("boundary", plan.law.boundary_text)


def _laws(design: Design, plan: Plan) -> list[tuple[Found, Law, float]]:
    """Every law that is weighed: fitted, its core, and by how much it must do better."""
    family = plan.law.family
    plain = Plan(Classical(family), nodes=plan.nodes, stop=STOP, extra_ridge=plan.extra_ridge)
    plainest, *richer = cores_of(plan.law)
    # The classical model may have been fitted on the way to the law that was asked for.
    classical = fit_classical(design, replace(plan, held={}))
    laws = [(classical, plainest, 0.0)]
    if not classical.outcome.converged:
        return laws
    trimmed = trimmed_start(design, family)
    found = _fit(
        design, replace(plain, law=Contaminated(family, plainest)), _starts(design, plainest, classical, trimmed)
    )
    laws.append((found, plainest, 0.0))
    for core in richer:
        if _overdispersed(core, found):
            starts = _spread_starts(core, found, trimmed) or _grown(core, found)
            margin = HEAVY_MARGIN if isinstance(family, Normal) else 0.0
            laws.append((_fit(design, replace(plain, law=Contaminated(family, core)), starts), core, margin))
    return laws


STEEPEST = 5.0
"""Standard deviation of a weak prior on the coefficients of standardised columns, where labels may be wrong."""


def label_plan(family: Any) -> Plan:
    """What to fit to 0/1 rows whose labels may be wrong."""
    # Without the prior a steep enough slope explains every row on the wrong side as a wrong label.
    return Plan(LocalLabel(family), stop=STOP, extra_ridge=STEEPEST**-2)


def judge_labels(found: Found) -> Judgement:
    """0/1 rows have no tails: they are judged by the probability that their label is wrong, at a rate that may grow with the margin."""
    problem = found.problem
    assert isinstance(problem, Regression)
    law, design = problem.plan.law, problem.design
    if not isinstance(law, LocalLabel):
        return Judgement(np.zeros(len(design)), None, 0.0, "a law of right labels", {})
    u, phi = problem.split(found.vector)
    plan = replace(problem.plan, law=MarginLabel(law.family), stop=STOP, held={})
    # Far wrong labels taken for a rate common to all make coefficients too steep: climb from less steep ones as well.
    starts = [np.concatenate([factor * u, phi, [np.log(margin)]]) for factor, margin in ((1.0, 1.0), (0.4, 2.0))]
    far = _fit(design, plan, starts)
    constant = lambda m, phi: 0.0 * m + law.natural("flip", phi[0])
    growing = lambda m, phi: plan.law.rate(m, *phi, np)  # type: ignore[attr-defined]
    return judge(
        [
            _label_candidate("a law of labels that may be wrong", found, constant),
            _label_candidate("a law of labels that may be wrong, far from the boundary more often", far, growing),
        ],
        cautious=True,
    )


def _label_candidate(name: str, found: Found, rate: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> Candidate:
    problem = found.problem
    assert isinstance(problem, Regression)
    u, phi = problem.split(found.vector)
    m, sign = problem.design.predictor(u), 2.0 * problem.design.y - 1.0

    def odds(m: np.ndarray, phi: np.ndarray) -> np.ndarray:
        wrong = np.maximum(rate(m, phi), 1e-300)
        return np.log(wrong) - np.log1p(-wrong) - sign * m

    variance = _variance(found, _slopes(odds, m, phi, STEP)) if len(m) < MANY_ROWS else None
    share = float(rate(m, phi).mean())
    return Candidate(name, found.value, found.optimum.curve, odds(m, phi), variance, share)


def _slopes(
    of: Callable[[np.ndarray, np.ndarray], np.ndarray], m: np.ndarray, phi: np.ndarray, step: float
) -> np.ndarray:
    """Differences of a number by row in the row's predictor, by `step`, and in the shared numbers."""
    here = of(m, phi)
    found = [(of(m + step, phi) - here) / step]
    found += [(of(m, phi + STEP * (np.arange(len(phi)) == k)) - here) / STEP for k in range(len(phi))]
    return np.stack(found, axis=1)


def _fit(design: Design, plan: Plan, starts: list[np.ndarray]) -> Found:
    best: Found | None = None
    if len(design) > MANY_ROWS:
        # Of many rows a sample says where the top is.
        sample = design.with_rows(design.rows.sample(MANY_ROWS // 2, 0))
        starts = [_fit(sample, plan, starts).vector]
    for start in starts:
        problem = regression(design, plan)
        found = Found(problem, maximize(problem, start, STOP))
        if np.isfinite(found.value) and (best is None or found.value > best.value + 1e-6):
            best = found
    assert best is not None
    return best


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
    variance = None
    if len(problem.design) < MANY_ROWS:
        odds, slope = problem.by_row(OddsOf(problem.kernel, law), vector)
        variance = _variance(found, slope)
    else:
        odds = problem.by_row(OddsOf(problem.kernel, law, slopes=False), vector)
    share = float(law.natural("share", phi[-1]))
    return Candidate(f"{name} and a wide part", found.value, found.optimum.curve, odds, variance, share, score, margin)


CORES = {
    "Classical": "a core of {family}",
    "LocalPrecision": "a core with heavy tails (Student t)",
    "LocalPredictor": "a core of {family} with predictors of their own",
}


def _word(core: Law) -> str:
    return f"{type(core.family).__name__} rows"


@dataclass(frozen=True, eq=False)
class OddsOf:
    """What the kernel says of rows: the log odds of the wide part, and their slopes in a row's numbers unless told."""

    kernel: Any
    law: Contaminated
    slopes: bool = True

    def __call__(self, numbers: Any, row: Any, state: Any) -> Any:
        found = self.kernel.by_row(_odds_of(self.law), numbers)(numbers, row, state)
        return found if self.slopes else found[0]


@cache
def _odds_of(law: Contaminated) -> Any:
    """Log odds of the wide part, and their slopes in a row's numbers, as the kernel compiles them."""
    import jax
    import jax.numpy as jnp

    def odds(kernel: Any, numbers: Any, row: Any, state: Any) -> tuple[Any, Any]:
        place = law.places(row, numbers, state.astype(float))

        def one(given: Any) -> Any:
            core, wide = law.parts(row, tuple(given), place)
            return wide - core

        return jax.value_and_grad(one)(jnp.stack([jnp.asarray(number, dtype=float) for number in numbers]))

    return odds


def _covariance(found: Found) -> np.ndarray:
    values, vectors = np.linalg.eigh(-found.optimum.curve)
    kept = values > 1e-10 * max(float(values.max(initial=0.0)), 1e-300)
    return (vectors[:, kept] / values[kept]) @ vectors[:, kept].T


def _variance(found: Found, slope: np.ndarray) -> np.ndarray:
    """Of a number by row with these slopes in the row's predictor and shared numbers: the estimates' uncertainty, carried over."""
    problem = found.problem
    assert isinstance(problem, Regression)
    directions = problem.design.directions() * slope[:, :1]
    whole = np.concatenate([directions, slope[:, 1 + problem.linear.free]], axis=1)
    return np.einsum("ni,ij,nj->n", whole, _covariance(found), whole)


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
    score = lambda m, phi: normal_scores(core, m, phi, design.y, design.trials)
    here = score(m, phi)
    if len(design) >= MANY_ROWS:
        return here, np.zeros(len(here))
    # Steps in the predictor are in units of a row's own deviation there.
    unit = float(np.exp(phi[core.names.index("scale")])) if "scale" in core.names else 1.0
    slopes = np.zeros((len(here), 1 + len(problem.linear.held)))
    slopes[:, : 1 + len(phi)] = _slopes(score, m, phi, STEP * unit)
    return here, _variance(found, slopes)


Judge = Callable[[Fitted, np.ndarray, np.ndarray, np.ndarray], Any]


def scores_in_core(fitted: Fitted, y: np.ndarray, predictor: np.ndarray, trials: np.ndarray) -> np.ndarray:
    return normal_scores(fitted.law, predictor, fitted.phi, y, trials)


@dataclass(frozen=True, eq=False)
class JudgePass:
    """A pass that asks a fitted law about rows; theta is what the columns are multiplied with."""

    design: Design
    fitted: Fitted
    judge: Judge

    def __call__(self, theta: Any, data: Data, weight: Any, state: Any) -> tuple[dict[str, Any], dict[str, Any], None]:
        m = data[1] + self.design.linear(self.design.shifted(data[0]), theta)
        found = self.judge(self.fitted, data[2], m, data[3])
        return {}, {str(i): part for i, part in enumerate(found if isinstance(found, tuple) else (found,))}, None


def asked_of_rows(design: Design, u: np.ndarray, fitted: Fitted, judge: Judge) -> Any:
    """What a fitted law says of every row, chunk by chunk where the rows are."""
    found = design.rows.map(JudgePass(design, fitted, judge), design.to_shifted @ u).by_unit
    return found["0"] if len(found) == 1 else tuple(found[str(i)] for i in range(len(found)))


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


def normal_scores(core: Law, m: np.ndarray, phi: np.ndarray, y: np.ndarray, trials: np.ndarray) -> np.ndarray:
    """The normal deviate, above 0, that is as far out as each row is in the core."""
    from scipy.special import ndtri

    if isinstance(core, Classical) and isinstance(core.family, Normal):
        return np.abs(y - m) * np.exp(-phi[0])
    predictive = GLMPredictive(Fitted(core, phi, np.zeros(0), False), m, trials)
    if predictive.errors is not None:
        tail = 2.0 * predictive.errors.sf(np.abs(y - m))
    else:
        below = predictive.cdf(y)
        strictly = predictive.cdf(np.ceil(y) - 1.0) if core.family.discrete else below
        tail = np.clip(2.0 * np.minimum(below, 1.0 - strictly), 0.0, 1.0)
        # One less a probability has no digits left further out.
        tail = np.maximum(tail, DEEPEST)
    return -ndtri(np.maximum(0.5 * tail, 1e-300))


# ---------------------------------------------------------------------- starts


def trimmed_start(design: Design, family: Any) -> list[tuple[np.ndarray, np.ndarray]]:
    """Coordinates by least trimmed squares of rough predictors, the best few, with what they leave of the rows looked at."""
    rng = np.random.default_rng(0)
    counted = np.asarray((design.rows.weight > 0).nonzero()[0])
    some = counted if len(counted) <= START_ROWS else np.sort(rng.choice(counted, START_ROWS, replace=False))
    here = design.with_rows(design.rows.take(some))
    whole = design if design.rows.here is not None else here
    target = np.asarray(family.start(whole.y, whole.trials) - whole.offset)
    target, columns = target[some] if whole is design else target, here.directions()
    size = columns.shape[1]
    if size > START_COLUMNS or len(some) < 2 * size + 2:
        return []
    few = np.sort(rng.choice(len(some), FEW_ROWS, replace=False)) if len(some) > FEW_ROWS else slice(None)
    found = []
    for _ in range(SUBSETS):
        rows = rng.choice(len(some), size + 1, replace=False)
        u = np.linalg.lstsq(columns[rows], target[rows], rcond=None)[0]
        for _ in range(CONCENTRATIONS):
            u, left = _concentrated(columns[few], target[few], u)
        found.append((left, u))
    found.sort(key=lambda pair: pair[0])
    best = []
    for _, u in found[:KEPT_SUBSETS]:
        for _ in range(10):
            u, left = _concentrated(columns, target, u)
        best.append((left, u))
    u = min(best, key=lambda pair: pair[0])[1]
    return [(u, target - columns @ u)]


def _concentrated(columns: np.ndarray, target: np.ndarray, u: np.ndarray) -> tuple[np.ndarray, float]:
    """Least squares of the half of the rows that lie closest."""
    rows, size = columns.shape
    half = max((rows + size + 1) // 2, size + 1)
    closest = np.argpartition(np.abs(target - columns @ u), half - 1)[:half]
    inside = columns[closest]
    gram = inside.T @ inside
    gram[np.diag_indices(size)] += 1e-10 * (np.trace(gram) + 1e-300)
    found = np.linalg.solve(gram, inside.T @ target[closest])
    rest = np.partition((target - columns @ found) ** 2, half - 1)[:half]
    return found, float(rest.sum())


def contaminated_starts(design: Design, core: Law) -> list[np.ndarray]:
    """Vectors from which a core with a wide part may be climbed: coefficients that outliers do not move, and shared numbers."""
    classical = fit_classical(design, Plan(Classical(core.family), stop=STOP))
    return _starts(design, core, classical, trimmed_start(design, core.family))


def _starts(
    design: Design, core: Law, classical: Found, trimmed: list[tuple[np.ndarray, np.ndarray]]
) -> list[np.ndarray]:
    """Where the law with a wide part is climbed from: the trimmed start, or else the classical fit."""
    assert isinstance(classical.problem, Regression)
    u, phi = classical.problem.split(classical.vector)
    wide = np.log([0.2, 7.0, 0.05]) if isinstance(core.family, Normal) else np.array([0.7, np.log(0.05)])
    found = []
    for start, left in trimmed:
        shared = phi.copy()
        if isinstance(core.family, Normal):
            middle = CONSISTENT * float(np.median(np.abs(left)))
            shared[0] = np.log(middle) if middle > 0 else phi[0]
        elif core.family.nuisance:
            few = design if design.rows.here is not None else design.with_rows(design.rows.sample(START_ROWS, 0))
            guess = core.family.nuisance_start(
                few.y, few.trials, np.array([CONSISTENT * np.median(np.abs(left))] * 2) * [1, -1]
            )
            shared[: len(guess)] = np.log(guess) if len(guess) else shared
        found.append(np.concatenate([start, shared, wide]))
    return found or [np.concatenate([u, phi, wide])]


def _spread_starts(core: Law, previous: Found, trimmed: list[tuple[np.ndarray, np.ndarray]]) -> list[np.ndarray]:
    """Starts of a core with predictors of its own: a spread as wide as the middle of the rows, the rest strayed."""
    if not isinstance(core, LocalPredictor):
        return []
    problem = previous.problem
    assert isinstance(problem, Regression)
    _, phi = problem.split(previous.vector)
    spread = lambda left: np.log(np.clip(CONSISTENT * float(np.median(np.abs(left))), 0.05, 2.0))
    return [np.concatenate([u, [spread(left)], phi[:-2], [np.log(3.0), np.log(0.05)]]) for u, left in trimmed]


def _overdispersed(core: Law, previous: Found) -> bool:
    """Whether rows of the plainer core vary more than it says, as far as one with predictors of its own could tell."""
    if not isinstance(core, LocalPredictor):
        return True
    problem = previous.problem
    assert isinstance(problem, Regression)
    law = problem.plan.law
    assert isinstance(law, Contaminated)
    u, phi = problem.split(previous.vector)
    if law.natural("share", phi[-1]) > MOST_STRAYED:
        return True
    more = MoreThanSaid(problem.design, law, law.core.nuisance(phi), problem.design.to_shifted @ u)
    sums = problem.added_by_row(more, previous.vector, OddsOf(problem.kernel, law))
    # Within its own error a spread gains nothing.
    return float(sums["more"]) > float(np.sqrt(sums["squares"]))


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


def _grown(core: Law, previous: Found) -> list[np.ndarray]:
    """The start of a richer core from what the plainer one found."""
    problem = previous.problem
    assert isinstance(problem, Regression)
    u, phi = problem.split(previous.vector)
    if isinstance(core, LocalPrecision):
        return [np.concatenate([u, phi[:1] - 0.3, [np.log(4.0)], phi[1:]])]
    return [np.concatenate([u, [np.log(0.3)], phi])]
