r"""Where is a core with a wide part climbed from? From estimates that outliers do not move.

They come from least trimmed squares on small subsets of the rows (Rousseeuw & Van Driessen 2006), so that a tenth of the rows
on one side neither hide each other nor make good rows look bad.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from robustly.fit.newton import Hopeless, Watch, maximize
from robustly.fit.outcome import Stop
from robustly.fit.problem import Found
from robustly.glm.classical import fit_classical
from robustly.glm.edges import regression
from robustly.glm.families import Normal
from robustly.glm.local import Classical, Law, LocalPrecision
from robustly.glm.regression import Plan, Regression
from robustly.model.linear import Design
from robustly.result.outliers import ENOUGH_ROWS

STOP = Stop(1e-9, 60)
# The top of a sample is a start: closer than this (in nats) to it is far closer than it is to that of all rows.
SAMPLE_STOP = Stop(1e-3, 60)
# The end of a climb whose core describes too few rows.
NOT_A_CORE = "not a core"
# From so many rows on, what the estimates leave open no longer shows in a row's score.
MANY_ROWS = 20_000
# Small subsets, and how often each is fitted again to its closest half.
SUBSETS, CONCENTRATIONS = 40, 3
# The best of them are fitted until nothing moves, or so often.
KEPT_SUBSETS, MOST_CONCENTRATIONS = 3, 10
# Subsets are weighed by so many rows, the best of them by all.
FEW_ROWS = 300
# Beyond these a start is made from so many rows or columns.
START_ROWS, START_COLUMNS = 2000, 60
# Rows as many deviations out have strayed, as far as a start knows; and by how much, unless any are there.
FAR_OUT = 4.0
USUAL_SCALES, USUAL_SHIFT = 7.0, 2.0
CONSISTENT = 1.4826  # A normal's standard deviation over its median absolute deviation.


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
    chosen = np.argpartition(rng.random((SUBSETS, len(some))), size, axis=1)[:, : size + 1]
    u = _least_squares(columns[chosen], target[chosen])
    for _ in range(CONCENTRATIONS):
        u, left = _concentrated(columns[few], target[few], u)
    u = u[np.argsort(left)[:KEPT_SUBSETS]]
    for _ in range(MOST_CONCENTRATIONS):
        before = u
        u, left = _concentrated(columns, target, u)
        if np.array_equal(u, before):
            break
    best = u[int(left.argmin())]
    return [(best, target - columns @ best)]


def _least_squares(columns: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Of several sets of rows, (sets, rows, columns); next to no ridge serves sets that do not tell columns apart."""
    turned = columns.transpose(0, 2, 1)
    gram = turned @ columns
    gram += 1e-10 * (np.trace(gram, axis1=1, axis2=2)[:, None, None] + 1e-300) * np.eye(columns.shape[2])
    return np.linalg.solve(gram, turned @ target[..., None])[..., 0]


def _concentrated(columns: np.ndarray, target: np.ndarray, u: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Least squares of the half of the rows that lie closest to each of several coefficients, and what they leave of it."""
    rows, size = columns.shape
    half = max((rows + size + 1) // 2, size + 1)
    closest = np.argpartition(np.abs(target - u @ columns.T), half - 1, axis=1)[:, :half]
    found = _least_squares(columns[closest], target[closest])
    rest = np.partition((target - found @ columns.T) ** 2, half - 1, axis=1)[:, :half]
    return found, rest.sum(axis=1)


def far_out(left: np.ndarray) -> np.ndarray:
    """Which rows lie far out, among what a trimmed start leaves of them."""
    return np.abs(left) > FAR_OUT * CONSISTENT * float(np.median(np.abs(left)))


def strayed_start(left: np.ndarray, unit: float, usual: float) -> np.ndarray:
    """Where `variation`, `width` and `share` are climbed from: the rows far out among what a trimmed start leaves, in units."""
    away, far = np.abs(left) / unit, far_out(left)
    width = float(np.median(away[far])) if far.any() and np.isfinite(away[far]).all() else usual
    return np.log([0.2, np.clip(width, 0.5 * usual, 4.0 * usual), np.clip(far.mean(), 0.02, 0.15)])


def sample_to_judge(design: Design) -> Design:
    """The rows by which laws that judge are fitted: of many a sample, which says as much of a core as a row's tail can show."""
    return design.with_rows(design.rows.sample(ENOUGH_ROWS, 0)) if len(design) > 2 * ENOUGH_ROWS else design


def on_all_rows(found: Found, design: Design) -> Found:
    """What was found on a sample, as said of all rows."""
    assert isinstance(found.problem, Regression)
    return found if found.problem.design is design else replace(found, problem=found.problem.with_design(design))


def best_of_starts(
    design: Design,
    plan: Plan,
    starts: list[np.ndarray],
    watch: Watch | None = None,
    hopeless: Hopeless | None = None,
    stop: Stop = STOP,
) -> Found:
    """The highest top that is climbed to; `hopeless` ends climbs whose top would not matter."""
    best: Found | None = None
    if len(design) > MANY_ROWS:
        # Of many rows a sample says where the top is, and whether it is worth going to.
        sample = design.with_rows(design.rows.sample(MANY_ROWS // 2, 0))
        begin = best_of_starts(sample, replace(plan, rough=True), starts, watch, stop=SAMPLE_STOP)
        if begin.outcome.kind == NOT_A_CORE:
            return replace(begin, problem=regression(design, plan))
        starts = [begin.vector]
    for start in starts:
        problem = regression(design, plan)
        found = Found(problem, maximize(problem, start, stop, watch=watch, hopeless=hopeless))
        if np.isfinite(found.value) and (best is None or found.value > best.value + 1e-6):
            best = found
    assert best is not None
    return best


def contaminated_starts(design: Design, core: Law) -> list[np.ndarray]:
    """Vectors from which a core with a wide part may be climbed: coefficients that outliers do not move, and shared numbers."""
    classical = fit_classical(design, Plan(Classical(core.family), stop=STOP))
    return wide_starts(design, core, classical, trimmed_start(design, core.family))


def wide_starts(
    design: Design, core: Law, classical: Found, trimmed: list[tuple[np.ndarray, np.ndarray]]
) -> list[np.ndarray]:
    """Where the law with a wide part is climbed from: the trimmed start, or else the classical fit."""
    assert isinstance(classical.problem, Regression)
    u, phi = classical.problem.split(classical.vector)
    usual, side = (USUAL_SCALES, []) if isinstance(core.family, Normal) else (USUAL_SHIFT, [0.0])
    found = []
    for start, left in trimmed:
        shared, unit = phi.copy(), 1.0
        if isinstance(core.family, Normal):
            middle = CONSISTENT * float(np.median(np.abs(left)))
            shared[0] = np.log(middle) if middle > 0 else phi[0]
            unit = float(np.exp(shared[0]))
        elif core.family.nuisance:
            few = design if design.rows.here is not None else design.with_rows(design.rows.sample(START_ROWS, 0))
            guess = core.family.nuisance_start(
                few.y, few.trials, np.array([CONSISTENT * np.median(np.abs(left))] * 2) * [1, -1]
            )
            shared[: len(guess)] = np.log(guess) if len(guess) else shared
        found.append(np.concatenate([start, shared, side, strayed_start(left, unit, usual)]))
    return found or [np.concatenate([u, phi, side, np.log([0.2, usual, 0.05])])]


def spread_starts(trimmed: list[tuple[np.ndarray, np.ndarray]]) -> list[np.ndarray]:
    """Starts of a core with predictors of its own and a wide part: a spread as wide as the middle of the rows."""
    spread = lambda left: np.log(np.clip(CONSISTENT * float(np.median(np.abs(left))), 0.05, 2.0))
    return [np.concatenate([u, [spread(left), 0.0], strayed_start(left, 1.0, USUAL_SHIFT)]) for u, left in trimmed]


def grown_starts(core: Law, previous: Found) -> list[np.ndarray]:
    """The start of a richer core from what the plainer one found."""
    problem = previous.problem
    assert isinstance(problem, Regression)
    u, phi = problem.split(previous.vector)
    if isinstance(core, LocalPrecision):
        return [np.concatenate([u, phi[:1] - 0.3, [np.log(4.0)], phi[1:]])]
    return [np.concatenate([u, [np.log(0.3)], phi])]
