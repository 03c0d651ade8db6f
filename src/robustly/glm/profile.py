"""What do the data say about the spread alone? The best log likelihood at each of several spreads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from robustly.errors import ModelError
from robustly.fit.newton import ascent
from robustly.fit.problem import Found
from robustly.glm.attenuated import attenuation
from robustly.glm.classical import fit_classical
from robustly.glm.edges import fit_law
from robustly.glm.local import Classical
from robustly.glm.regression import Plan, Regression
from robustly.model.linear import Design

if TYPE_CHECKING:
    import pandas as pd

# Beyond e^300 and e^-300 a number on the log scale is infinite or 0 for all purposes.
FARTHEST = 300.0
# First steps along a profile, on the scale that is searched.
SHORTEST_STEP, LONGEST_STEP = 0.05, 0.5
# Where the model at the limit is so many times the fall of an interval's ends below the top, neither end is near the limit.
FAR_FROM_LIMIT = 8.0


def profile_spread(design: Design, plan: Plan, values: Sequence[float]) -> pd.DataFrame:
    """A row for each spread: the log likelihood, maximised over all else and without hyperprior, and the coefficients."""
    if "spread" not in plan.law.names:
        raise ModelError("this model has no spread to profile.")
    import pandas as pd

    lines = []
    for value in values:
        held = replace(plan, held={**plan.held, "spread": value}, hyperprior=None)
        found = fit_law(design, held if value > 0 else Plan(Classical(plan.law.family), stop=plan.stop))
        coefficients = design.coefficients_of(found.vector[: design.size])
        lines.append([value, found.log_likelihood, *coefficients])
    return pd.DataFrame(lines, columns=["spread", "log likelihood", *design.terms])


def near_profile(found: Found, spread: float) -> float:
    """The profile of a fit to 0/1 rows at another spread, by one pass: a Newton step from coefficients as attenuated."""
    problem = found.problem
    assert isinstance(problem, Regression)
    plan = replace(problem.plan, held={**problem.plan.held, "spread": spread}, hyperprior=None)
    there = Regression(problem.design, plan, approx=problem.kernel.approx)
    u, phi = problem.split(found.vector)
    here = float(np.exp(phi[plan.law.names.index("spread")]))
    u = u * attenuation(np.log(spread))[0] / attenuation(np.log(here))[0]
    look = there.look(there.joined(u, there.linear.held))
    assert look.curve is not None
    return look.value + 0.5 * float(look.slope @ ascent(look.slope, look.curve, None))


def profile_interval(found: Found, plan: Plan, name: str, level: float) -> tuple[float, float]:
    """Values of a coefficient or shared number that a likelihood-ratio test does not refuse.

    Half a chi-squared quantile below the profile's top, less where a limit of the number is near (:func:`critical_root`).
    """
    from scipy.special import ndtri

    problem = found.problem
    assert isinstance(problem, Regression)
    design, law = problem.design, problem.plan.law
    drop = 0.5 * float(ndtri(0.5 + 0.5 * level)) ** 2
    if name in design.terms:
        place = design.terms.index(name)
        if design.aliased[place]:
            return np.nan, np.nan
        error = float(
            np.sqrt(
                (
                    design.to_coefficients
                    @ _free_covariance(found)[: design.size, : design.size]
                    @ design.to_coefficients.T
                )[place, place]
            )
        )
        best = float(design.coefficients_of(found.vector[: design.size])[place])
        held = replace(problem.plan, known=None)
        over = lambda at: fit_held(design, held, place, at).value - (found.value - drop)
        return tuple(_profile_end(over, best, side * error) for side in (-1.0, 1.0))  # type: ignore[return-value]
    if name not in plan.law.names:
        raise ModelError(
            f'there is no estimate "{name}" to profile; there are {", ".join([*design.terms, *plan.law.names])}.'
        )
    if name in plan.held:
        raise ModelError(f"{name} was held at {plan.held[name]:g}, so there is nothing to profile.")
    limit = plan.law.limits.get(name)
    plain = fit_classical(design, Plan(Classical(law.family), stop=plan.stop)).value if limit is not None else -np.inf
    top = max(found.value, plain)

    @cache
    def value(free: float) -> float:
        held = {**plan.held, name: float(plan.law.natural(name, free))}
        return fit_law(design, replace(plan, held=held, hyperprior=None, known=None)).value

    def above(free: float) -> float:
        """The profile over what a test at this level asks of it."""
        if limit is None or 2.0 * (top - plain) > FAR_FROM_LIMIT * drop:
            return value(free) - (top - drop)
        return value(free) - (top - 0.5 * critical_root(level, _apart(free)) ** 2)

    def _apart(free: float) -> float:
        """How many standard errors a value is from the limit: by the curvature of the profile between the two."""
        half = plan.law.free(name, float(_halfway(name, limit, plan.law.natural(name, free))))
        return float(np.sqrt(max(4.0 * (2.0 * value(half) - plain - value(free)), 0.0)))

    at_limit = name not in law.names
    nearly = plan.law.free(name, 0.01 if limit == 0.0 else 1000.0)
    start, step = nearly, LONGEST_STEP
    if not at_limit:
        start = float(problem.split(found.vector)[1][law.names.index(name)])
        # Twice the standard error is about where an interval ends: farther off, spreads take other points than the fit's.
        place = design.size + int(np.flatnonzero(problem.linear.free == law.names.index(name))[0])
        variance = float(_free_covariance(found)[place, place])
        step = float(np.clip(np.sqrt(max(variance, 0.0)), SHORTEST_STEP, LONGEST_STEP))
    ends = []
    for side in (-1.0, 1.0):
        towards_limit = limit is not None and (side < 0) == (limit == 0.0)
        if towards_limit and plain >= top - 0.5 * critical_root(level, 0.0) ** 2:
            ends.append(float(limit))  # type: ignore[arg-type]
        else:
            ends.append(float(plan.law.natural(name, _profile_end(above, start, step * side, FARTHEST))))
    return ends[0], ends[1]


def critical_root(level: float, apart: float) -> float:
    """The root of a likelihood ratio that holds with probability `level` where the truth is `apart` standard errors from its limit.

    An estimate that would lie beyond the limit is the limit, so that the ratio is a mixture: of 0 and a chi-squared at the limit
    (Self & Liang 1987), an ordinary chi-squared from about two standard errors on. With z normal it is z² where z > −c, and −2cz − c²
    otherwise.
    """
    from scipy.optimize import brentq
    from scipy.special import ndtr, ndtri

    least, most = float(ndtri(level)), float(ndtri(0.5 + 0.5 * level))
    if apart >= most:
        return most
    apart = max(apart, 1e-9)
    held = lambda root: float(ndtr(root) - ndtr(-(root**2 + apart**2) / (2.0 * apart))) - level
    return float(brentq(held, least - 1e-9, most + 1e-9, xtol=1e-10))


def _halfway(name: str, limit: float | None, value: float) -> float:
    """Half as far from the limit, where the likelihood is smooth there: in a spread's square, a dof's inverse, a share."""
    if limit == np.inf:
        return 2.0 * value
    return value / np.sqrt(2.0) if name == "spread" else 0.5 * value


def fit_held(design: Design, plan: Plan, place: int, value: float) -> Found:
    """The best fit with one coefficient held at a value: its column becomes part of the offset."""
    intercept = design.intercept and place == 0
    column = place - int(design.intercept)
    here = design.rows.here
    if here is None:
        raise ModelError(
            'an interval by the likelihood\'s profile needs rows in memory. Take kind="information", or fit a sample of the rows.'
        )
    matrix, offset, y, trials = here.data
    along = 1.0 if intercept else matrix[:, [column]].toarray()[:, 0] if design.sparse else matrix[:, column]
    keep = [one for one in range(matrix.shape[1]) if intercept or one != column]
    rest = matrix if intercept else matrix[:, keep]
    terms = [term for one, term in enumerate(design.terms) if one != place]
    rows = replace(here, data=(rest, offset + value * along, y, trials))
    part = Design(rows, terms, design.intercept and not intercept, design.ridge)
    return fit_classical(part, plan) if isinstance(plan.law, Classical) else fit_law(part, plan)


def _free_covariance(found: Found) -> np.ndarray:
    return np.linalg.pinv(-found.optimum.curve)


def _profile_end(above: Callable[[float], float], best: float, step: float, farthest: float = np.inf) -> float:
    """Where a profile falls below what is asked of it, going from its top by steps that grow; infinite beyond `farthest`."""
    from scipy.optimize import brentq

    above = cache(above)

    for _ in range(20):
        if above(best) >= 0:
            break
        best -= 8.0 * step  # The top lies at the limit, and the start is beyond the end already.
    else:
        return best
    inner, outer = best, best + 2.0 * step
    for _ in range(30):
        if abs(outer) > farthest:
            break
        if above(outer) < 0:
            return float(brentq(above, inner, outer, xtol=1e-5 * abs(step), rtol=1e-10))
        inner, outer = outer, outer + 2.0 * (outer - best)
    return float(np.sign(step) * np.inf)
