"""How sure are the standard deviations of effects? Intervals by profile likelihood, and tests at the boundary.

A standard deviation is the first entry of the factor L when its term comes first, so it is held by holding that entry. Where
none at all is as likely as the cut, the interval begins at 0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pandas as pd

from robustly.fit.newton import maximize
from robustly.fit.objective import Optimum
from robustly.fit.outcome import Stop
from robustly.fit.problem import Found
from robustly.fit.search import search
from robustly.glm.grouped.moments import Entered
from robustly.glm.grouped.plan import GroupDesign
from robustly.glm.grouped.problem import GroupedRegression, grouped_regression

RESIDUAL = "Residual"
PROFILE_STOP = Stop(1e-7, 60)
# A root of the deviance this close to the cut is on it.
CLOSE = 1e-3
MOST_TRIES = 25


def variance_components(found: Found, level: float = 0.95, restricted: bool = True) -> pd.DataFrame:
    """Standard deviations of effects and noise, with profile intervals, correlations, and likelihood-ratio tests.

    `restricted` takes what coefficients leave open into the profile: minus half the log determinant of their information, which
    of normal responses is restricted likelihood (Cox & Reid 1987). Without it the profile is that of the likelihood, as lme4's.
    Of effects that are not normal the interval is that of the scale, `scale low` to `scale high`.
    """
    problem = found.problem
    assert isinstance(problem, GroupedRegression)
    given, at = problem.given, problem.at(found.vector)
    factor = at.factor / given.sizes[:, None]
    square = factor @ factor.T
    scale = np.sqrt(np.diag(square))
    widened = problem.plan.effects.sd_factor(at.psi)
    lines: list[tuple[tuple[str, str], dict[str, float]]] = []
    if not problem.plan.effects.has_scale:
        return _of_law(found, level)
    for term, name in enumerate(given.terms):
        low, high = profile_of_term(found, term, level, restricted)
        wide = widened if term < given.outer else 1.0
        line = {"sd": scale[term] * wide if scale[term] > 0 else 0.0, "scale": scale[term], "low": low, "high": high}
        line["p"] = ratio_test(found, term)
        for other in range(given.level_of(term).start, term):
            with np.errstate(invalid="ignore", divide="ignore"):
                line[f"corr {given.terms[other]}"] = square[term, other] / (scale[term] * scale[other])
        lines.append(((given.names[term], name), line))
    if "scale" in problem.plan.law.names:
        value = float(np.exp(at.phi[problem.plan.law.names.index("scale")]))
        low, high = profile_of_scale(found, level, restricted) if "scale" not in problem.plan.held else (value, value)
        lines.append(((RESIDUAL, ""), {"sd": value, "scale": value, "low": low, "high": high, "p": np.nan}))
    index = pd.MultiIndex.from_tuples([key for key, _ in lines], names=["group", "term"])
    frame = pd.DataFrame([line for _, line in lines], index=index)
    if widened == 1.0:
        return frame.drop(columns="scale")
    # The standard deviation of effects with heavy tails rests on their tails as well; the profile is that of the scale.
    return frame.rename(columns={"low": "scale low", "high": "scale high"})


def _of_law(found: Found, level: float) -> pd.DataFrame:
    """Of effects whose law has no scale but numbers that say how far they are spread: an interval from the information."""
    from scipy.stats import chi2, norm

    problem = found.problem
    assert isinstance(problem, GroupedRegression)
    psi, law = problem.at(found.vector).psi, problem.plan.effects
    half = float(norm.ppf(0.5 + level / 2)) * float(np.sqrt(np.linalg.pinv(-found.optimum.curve)[-1, -1]))
    low, sd, high = (law.sd_factor(psi + away) for away in (half, 0.0, -half))
    ratio = max(2.0 * (found.value - problem.no_effects.value), 0.0)
    line = {
        "sd": sd,
        law.names[0]: float(np.exp(psi[0])),
        "low": low,
        "high": high,
        "p": 0.5 * float(chi2.sf(ratio, 1)),
    }
    index = pd.MultiIndex.from_tuples([(problem.given.grouping.name, problem.given.terms[0])], names=["group", "term"])
    return pd.DataFrame([line], index=index)


def profile_of_term(found: Found, term: int, level: float, restricted: bool = True) -> tuple[float, float]:
    """The scales of an effect that the likelihood does not rule out."""
    problem = found.problem
    assert isinstance(problem, GroupedRegression)
    given, at = problem.given, problem.at(found.vector)
    # First among the effects of its groups, an effect has one entry of the factor to itself.
    first = given.level_of(term).start
    order = sorted(range(len(given.terms)), key=lambda i: (i >= given.outer, i != term))
    turned = _reordered(given, order)
    square = (at.factor @ at.factor.T)[np.ix_(order, order)]
    best = float(np.sqrt(square[first, first]))
    last: list[Entered] = [at._replace(factor=_root(square))]

    def value_at(scale: float) -> float:
        fixed = {(first, first): scale}
        if scale == 0.0:
            fixed |= {entry: 0.0 for entry in turned.entries if entry[1] == first}
        held = grouped_regression(turned, problem.plan, rows=turned.rows, fixed=fixed)
        optimum = maximize(held, held.joined(last[0]), PROFILE_STOP)
        if scale > 0:
            last[0] = held.at(optimum.vector)
        return adjusted(optimum, held, restricted)

    unit = given.sizes[term]
    error = _standard_error(found, term)
    best, top = _top(value_at, best, error) if restricted else (best, found.value)
    low, high = interval_of_scale(value_at, top, best, error, level)
    return low / unit, high / unit


def adjusted(optimum: Optimum, problem: GroupedRegression, restricted: bool) -> float:
    """The profile at an optimum; restricted, less half the log determinant of the coefficients' information."""
    if not restricted:
        return optimum.value
    size = problem.design.size
    sign, log_det = np.linalg.slogdet(-optimum.curve[:size, :size])
    return optimum.value - 0.5 * log_det if sign > 0 else -np.inf


def _top(value_at: Callable[[float], float], best: float, error: float) -> tuple[float, float]:
    """Where a restricted profile is highest, not far above the best scale of the likelihood."""
    from scipy.optimize import minimize_scalar

    ends = max(best - error, 0.0), best + 2.0 * error
    found = minimize_scalar(lambda s: -value_at(s), bounds=ends, method="bounded", options={"xatol": 0.02 * error})
    at_zero = value_at(0.0) if ends[0] == 0.0 else -np.inf
    return (0.0, at_zero) if at_zero >= -found.fun else (float(found.x), -float(found.fun))


def profile_of_scale(found: Found, level: float, restricted: bool = True) -> tuple[float, float]:
    """The same of the noise."""
    problem = found.problem
    assert isinstance(problem, GroupedRegression)
    at = problem.at(found.vector)
    place = problem.plan.law.names.index("scale")
    best = float(np.exp(at.phi[place]))

    def value_at(scale: float) -> float:
        if scale == 0.0:
            return -np.inf
        plan = replace(problem.plan, held={**problem.plan.held, "scale": scale})
        held = problem.sibling(plan)
        return adjusted(maximize(held, held.joined(at), PROFILE_STOP), held, restricted)

    entry = problem.design.size + problem.free.index(place)
    error = best * float(np.sqrt(np.linalg.pinv(-found.optimum.curve)[entry, entry]))
    best, top = _top(value_at, best, error) if restricted else (best, found.value)
    return interval_of_scale(value_at, top, best, error, level)


def interval_of_scale(
    value_at: Callable[[float], float], top: float, best: float, error: float, level: float
) -> tuple[float, float]:
    """Where twice the loss of log likelihood reaches the chi-square's quantile, on either side of the best scale."""
    from scipy.stats import norm

    cut = float(norm.ppf(0.5 + level / 2))
    root = lambda scale: float(np.sqrt(max(2.0 * (top - value_at(scale)), 0.0)))
    low = 0.0
    at_zero = root(0.0) if best > 0 else 0.0
    if best > 0 and at_zero > cut:
        guess = best / np.exp(cut * error / best)
        low = _crossing(root, cut, (0.0, min(at_zero, 1e3)), (best, 0.0), guess)
    step = error if best == 0.0 or not error < 3.0 * best else best * (np.exp(cut * error / best) - 1.0)
    outer = best + step
    for _ in range(MOST_TRIES):
        there = root(outer)
        if there >= cut:
            break
        outer = best + (outer - best) * max(1.3, min(3.0, cut / max(there, 0.1)))
    return low, _crossing(root, cut, (outer, there), (best, 0.0), None)


def _crossing(
    root: Callable[[float], float],
    cut: float,
    outside: tuple[float, float],
    inside: tuple[float, float],
    guess: float | None,
) -> float:
    """The scale between two at which the root of the deviance is the cut: secants, halvings where they leave the bracket."""
    (a, at_a), (b, at_b) = outside, inside
    at = guess
    for _ in range(MOST_TRIES):
        if at is None or not min(a, b) < at < max(a, b):
            share = np.clip((cut - at_b) / (at_a - at_b), 0.05, 0.95) if np.isfinite(at_a) else 0.5
            at = b + share * (a - b)
        here = root(at)
        if abs(here - cut) < CLOSE:
            return float(at)
        a, at_a, b, at_b = (at, here, b, at_b) if here > cut else (a, at_a, at, here)
        at = None
    return float(0.5 * (a + b))


def ratio_test(found: Found, term: int) -> float:
    """P of a likelihood ratio at least as large if the effect had no variance: a mixture of chi-squares (Stram & Lee 1994)."""
    from scipy.stats import chi2

    problem = found.problem
    assert isinstance(problem, GroupedRegression)
    given = problem.given
    if np.all(problem.at(found.vector).factor[term] == 0.0):
        return 1.0
    if len(given.level_of(term)) == 1:
        bare = problem.without([term])
        at = problem.at(found.vector)
        without = maximize(bare, bare.joined(at), problem.plan.stop).value
    else:
        order = [i for i in range(len(given.terms)) if i != term]
        plan = problem.plan
        without = search(grouped_regression(_reordered(given, order), plan), plan.stop).value
    ratio = max(2.0 * (found.value - without), 0.0)
    correlations = sum(1 for a, b in given.entries if a != b and term in (a, b))
    upper = chi2.sf(ratio, correlations + 1)
    lower = chi2.sf(ratio, correlations) if correlations else float(ratio <= 0.0)
    return float(0.5 * (upper + lower))


def _standard_error(found: Found, term: int) -> float:
    """Of an effect's scale in units of its column; a rough one where the effect is not there."""
    problem = found.problem
    assert isinstance(problem, GroupedRegression)
    at = problem.at(found.vector)
    scale = float(np.sqrt(np.square(at.factor[term]).sum()))
    unit = float(np.exp(at.phi[problem.plan.law.names.index("scale")])) if "scale" in problem.plan.law.names else 1.0
    if scale == 0.0:
        return 0.3 * unit
    slope = np.zeros(len(found.vector))
    first = problem.design.size + len(problem.free)
    for place, (a, b) in enumerate(problem.entries):
        slope[first + place] = at.factor[a, b] / scale if a == term else 0.0
    error = float(np.sqrt(max(float(slope @ np.linalg.pinv(-found.optimum.curve) @ slope), 0.0)))
    return error if 0.0 < error < 3.0 * scale else 0.5 * scale


def _reordered(given: GroupDesign, order: list[int]) -> GroupDesign:
    """The same groups with some of their effects, in another order."""
    together = {frozenset(entry) for entry in given.entries}
    entries = tuple(
        (i, j) for i in range(len(order)) for j in range(i + 1) if i == j or frozenset((order[i], order[j])) in together
    )
    outer = sum(i < given.outer for i in order)
    return replace(
        given,
        inner=None if given.inner is None else replace(given.inner, first=outer),
        order=tuple(given.order[i] for i in order),
        sizes=given.sizes[order],
        terms=tuple(given.terms[i] for i in order),
        entries=entries,
    )


def _root(square: np.ndarray) -> np.ndarray:
    """A lower triangular factor, also of a singular matrix."""
    return np.linalg.cholesky(square + 1e-8 * max(float(np.trace(square)), 1e-8) * np.eye(len(square)))
