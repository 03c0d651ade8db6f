"""What do the data say about the spread alone? The best log likelihood at each of several spreads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from robustly.errors import ModelError
from robustly.fit.newton import ascent
from robustly.fit.problem import Found
from robustly.glm.edges import fit_law
from robustly.glm.local import Classical
from robustly.glm.regression import Plan, Regression, attenuation
from robustly.model.linear import Design


def profile_spread(design: Design, plan: Plan, values: Sequence[float]) -> pd.DataFrame:
    """A row for each spread: the log likelihood, maximised over all else and without hyperprior, and the coefficients."""
    if "spread" not in plan.law.names:
        raise ModelError("this model has no spread to profile.")
    lines = []
    for value in values:
        held = replace(plan, held={**plan.held, "spread": value}, hyperprior=None)
        found = fit_law(design, held if value > 0 else Plan(Classical(plan.law.family), stop=plan.stop))
        coefficients = design.to_coefficients @ found.vector[: design.size]
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
