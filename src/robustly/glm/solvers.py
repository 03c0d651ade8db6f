r"""Other ways to the hyperparameters: the paper's variational EM, and sparse shifts by penalised likelihood."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from robustly.approx.climb import look
from robustly.errors import ModelError
from robustly.fit.em import em
from robustly.fit.outcome import Stop
from robustly.fit.problem import Found
from robustly.glm.edges import NoSpread, fit_law, regression
from robustly.glm.families import Bernoulli, Binomial
from robustly.glm.local import LocalPredictor, Shifted
from robustly.glm.regression import Plan, Regression, plan_of
from robustly.model.linear import Design

SLOWEST = 5000


class AlgorithmOne(Regression):
    r"""Algorithm 1 of Wang & Blei: a Laplace posterior for every row, then least squares on the modes.

    E-step: the mode :math:`\hat\eta_i` and variance :math:`v_i` of each row's predictor. M-step: coefficients by least
    squares of the modes on the columns, spread² the mean of :math:`(\hat\eta_i - m_i)^2 + v_i`.
    """

    def maximize_expected(self, at: np.ndarray) -> np.ndarray:
        mode, variance = self.by_row(self._modes, at)
        design, weight = self.design, self.rows.weight
        u = design.project_by_row(mode - design.offset)
        away = mode - design.predictor(u)
        if "spread" in self.plan.held:
            return u
        spread = 0.5 * np.log(float(weight @ (away**2 + variance)) / design.rows.total_weight)
        return np.concatenate([u, [spread]])

    def _modes(self, numbers: Any, row: Any, state: Any) -> Any:
        return self.kernel.by_row(_mode_and_variance, numbers)(numbers, row, state)


def _mode_and_variance(kernel: Any, numbers: Any, row: Any, state: Any) -> tuple[Any, Any]:
    theta = kernel.model.parameters.natural(numbers)
    curve = look(lambda own: kernel.model.log_joint(own, theta, row), state[:1].astype(float))[2]
    return state[0].astype(float), -1.0 / curve[0, 0]


def by_em(design: Design, plan: Plan) -> Found:
    """The paper's EM. Kept because it is the paper's; it is biased, and slow when the spread is small.

    The evidence reported is Laplace's, not a bound.
    """
    law = plan.law
    if not isinstance(law, LocalPredictor) or law.prior != "normal" or law.names != ("spread",):
        raise ModelError(
            'solver="em" is the paper\'s Algorithm 1: it needs local="predictor", prior="normal" and a family without '
            'further parameters (Poisson, Bernoulli, Binomial, Exponential). Use solver="newton".'
        )
    limit = NoSpread(regression(design, plan))
    if not limit.found.outcome.converged:
        return limit.found
    score, size = limit.score
    if score <= 1e-9 * size and not isinstance(law.family, Bernoulli | Binomial) and "spread" not in plan.held:
        return limit.answer(None)
    problem = AlgorithmOne(design, replace(plan, nodes=0, hyperprior=None))
    start = problem.joined(limit.parts[0], np.array([np.log(plan.held.get("spread", 1.0))]))
    steps = max(plan.stop.max_steps, SLOWEST if plan.stop.max_steps == 100 else 1)
    found = em(problem, Stop(10.0 * plan.stop.rtol, steps), start=start, accelerate=False)
    if found.outcome.kind == "max_steps":
        text = f'{steps} EM steps were not enough. Raise max_iter, or use solver="newton".'
        found = found.with_outcome("max_steps", text)
    return found


def by_map(design: Design, plan: Plan) -> Found:
    """Sparse shifts: the price of a shift from the exact evidence, then the best coefficients and shifts together."""
    law = plan.law
    if not isinstance(law, LocalPredictor) or law.prior != "laplace":
        raise ModelError('solver="map" finds sparse shifts; it needs local="predictor" and prior="laplace".')
    exact = fit_law(design, plan)
    if not exact.outcome.converged or not isinstance(plan_of(exact).law, LocalPredictor):
        return exact
    assert isinstance(exact.problem, Regression)
    phi = exact.problem.split(exact.vector)[1]
    shared = {name: float(np.exp(value)) for name, value in zip(law.names, phi)}
    found = fit_law(design, Plan(Shifted(law.family), held=shared, stop=plan.stop))
    note = 'standard errors take the shifts as known; those of the integrated likelihood (solver="newton") are honest.'
    return replace(found, notes=(note,))
