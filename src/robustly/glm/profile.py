"""What do the data say about the spread alone? The best log likelihood at each of several spreads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from robustly.errors import ModelError
from robustly.fit.newton import ascent
from robustly.glm.climb import Climb, Found, Plan, attenuation
from robustly.glm.local import Classical
from robustly.glm.search import search
from robustly.rows.frames import Design


def profile_spread(design: Design, plan: Plan, values: Sequence[float]) -> pd.DataFrame:
    """A row for each spread: the log likelihood, maximised over all else and without hyperprior, and the coefficients."""
    if "spread" not in plan.law.names:
        raise ModelError("this model has no spread to profile.")
    lines = []
    for value in values:
        held = replace(plan, held={**plan.held, "spread": value}, hyperprior=None)
        found = search(design, held if value > 0 else Plan(Classical(plan.law.family), stop=plan.stop))
        coefficients = design.to_coefficients @ found.u
        lines.append([value, found.log_likelihood, *coefficients])
    return pd.DataFrame(lines, columns=["spread", "log likelihood", *design.terms])


def near_profile(found: Found, spread: float) -> float:
    """The profile of a fit to 0/1 rows at another spread, by one pass: a Newton step from coefficients as attenuated."""
    plan = replace(found.plan, held={**found.plan.held, "spread": spread}, hyperprior=None)
    climb = Climb(found.design, plan, found.nodes)
    here = float(np.exp(found.phi[plan.law.names.index("spread")]))
    u = found.u * attenuation(np.log(spread))[0] / attenuation(np.log(here))[0]
    value, slope, curve = climb.curves(climb.joined(u, climb.phi))
    base = found.plan.law.family.log_base(found.design.y, found.design.trials)
    return value + 0.5 * float(slope @ ascent(slope, curve, None)) + float(found.design.rows.weight @ base)
