"""What do the data say about the spread alone? The best log likelihood at each of several spreads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pandas as pd

from robustly.errors import ModelError
from robustly.glm.climb import Plan
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
        lines.append([value, float(design.rows.weight @ found.evidence), *coefficients])
    return pd.DataFrame(lines, columns=["spread", "log likelihood", *design.terms])
