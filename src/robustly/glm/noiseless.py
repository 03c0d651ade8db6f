r"""What if rows' own predictors leave nothing for a common noise? Regression with the prior's law as the errors'.

A normal response with a scale that runs to zero *is* its row's own predictor, so its evidence is the prior's density: of
Student's t, smooth, or of Laplace's law, with a kink at zero (least absolute deviations). Newton steps need a curvature,
so kinks are rounded, less and less; where they end, as many rows as there are coefficients lie on the fit, and the
information is the expected one, since the observed one is zero or infinite.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from robustly.errors import ModelError
from robustly.fit.newton import Function, maximize
from robustly.fit.objective import Optimum
from robustly.fit.problem import Found
from robustly.glm.local import Noiseless
from robustly.glm.regression import Plan, Regression
from robustly.model.linear import Design

# Widths of rounded kinks, in spreads, and what is left of one in the next.
WIDEST_KINK, NARROWEST_KINK, SHARPER = 0.3, 1e-9, 0.2


def noiseless(design: Design, plan: Plan, u: np.ndarray, log_spread: float) -> Found:
    """The best fit of a law without noise, from coordinates of the coefficients and a spread."""
    law = Noiseless(plan.law.family, plan.law.prior)  # type: ignore[attr-defined]
    held = {name: value for name, value in plan.held.items() if name in law.names}
    problem = Regression(design, replace(plan, law=law, held=held, nodes=None))
    phi = np.array([log_spread, np.log(4.0)])[: len(law.names)]
    start = problem.joined(u, phi)
    found = Found(problem, _by_kinks(problem, start) if law.kinked else maximize(problem, start, plan.stop))
    if not found.outcome.converged:
        return found
    text = (
        f"the rows' own predictors take up all noise: the likelihood is highest at scale = 0, where errors follow the "
        f"{law.prior} prior itself."
    )
    note = "rows have a kinked likelihood at scale = 0: standard errors are from the expected information."
    return replace(found.with_outcome("limit", text), notes=(note,) if law.kinked else ())


def _by_kinks(problem: Regression, vector: np.ndarray) -> Optimum:
    """Least absolute deviations and their spread, through kinks that are rounded less and less."""
    if problem.design.rows.here is None:
        raise ModelError('prior="laplace" of a normal response needs rows in memory. Choose prior="normal".')
    matrix = problem.design.shifted(problem.design.matrix)
    history: list[dict[str, Any]] = []
    towards = np.zeros_like(vector)
    width = WIDEST_KINK
    while True:
        spread = float(np.exp(problem.split(vector)[1][0]))
        rounded = Function(
            lambda at, width=width * spread: _rounded(problem, matrix, at, width),  # type: ignore[misc]
            problem.constrained,
        )
        optimum = maximize(rounded, vector + towards, problem.plan.stop)
        history += optimum.history
        if not optimum.outcome.converged or width <= NARROWEST_KINK:
            break
        # Rows on the fit come closer in proportion to the width, so that two fits point to the next.
        towards = SHARPER * (optimum.vector - vector) if width < WIDEST_KINK else towards
        vector = optimum.vector
        width *= SHARPER
    look = problem.look(optimum.vector)
    curve = _expected(problem, matrix, optimum.vector)
    return Optimum(optimum.vector, look.value, look.slope, curve, history, optimum.outcome)


def _rounded(
    problem: Regression, matrix: Any, vector: np.ndarray, width: float
) -> tuple[float, np.ndarray, np.ndarray]:
    r"""Value, slope and curvature of the objective with :math:`|r|` as :math:`\sqrt{r^2 + \mathrm{width}^2}`."""
    u, phi = problem.split(vector)
    design, weight = problem.design, problem.design.rows.weight
    away = design.y - design.predictor(u)
    root = np.hypot(away, width)
    price = np.exp(-phi[0])
    pull = weight * price * away / root
    total = float(weight @ root) * price
    sums = {
        "value": -total - weight.sum() * phi[0],
        "slope_w": design.crossed(matrix, pull),
        "curve_w": design.gram(matrix, -weight * price * width**2 / root**3),
        "mixed": -design.crossed(matrix, pull)[:, None],
        "slope": np.array([total - weight.sum()]),
        "curve": np.array([0.0, 0.0, -total]),
    }
    value, slope, curve = problem.gathered(vector, sums)
    return value, slope, np.asarray(curve)


def _expected(problem: Regression, matrix: Any, vector: np.ndarray) -> np.ndarray:
    """The expected curvature of Laplace's law: one over the squared spread a row, and one in its logarithm."""
    phi = problem.split(vector)[1]
    design, weight = problem.design, problem.design.rows.weight
    width = len(design.terms)
    sums = {
        "value": 0.0,
        "slope_w": np.zeros(width),
        "curve_w": design.gram(matrix, -weight * np.exp(-2.0 * phi[0])),
        "mixed": np.zeros((width, 1)),
        "slope": np.zeros(1),
        "curve": np.array([0.0, 0.0, -weight.sum()]),
    }
    return np.asarray(problem.gathered(vector, sums)[2])
