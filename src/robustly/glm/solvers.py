r"""Other ways to the hyperparameters: the paper's variational EM, and sparse shifts by penalised likelihood."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import numpy as np

from robustly._runtime.precision import double_precision
from robustly.errors import ModelError
from robustly.fit.newton import Optimum
from robustly.fit.outcome import Outcome
from robustly.glm.climb import Climb, Found, Plan
from robustly.glm.evidence import kernel, start_state
from robustly.glm.families import Bernoulli, Binomial
from robustly.glm.local import LocalPredictor, Shifted
from robustly.glm.search import at_boundary, classical, search, spread_score
from robustly.rows.frames import Design, DesignRows
from robustly.rows.store import over_rows

SLOWEST = 5000


def by_em(design: Design, plan: Plan) -> Found:
    r"""Algorithm 1 of Wang & Blei: a Laplace posterior for every row, then least squares on the modes.

    E-step: the mode :math:`\hat\eta_i` and variance :math:`v_i` of each row's predictor. M-step: coefficients by least
    squares of the modes on the columns, spread² the mean of :math:`(\hat\eta_i - m_i)^2 + v_i`. Kept because it is the
    paper's; it is biased, and slow when the spread is small. The evidence reported is Laplace's, not a bound.
    """
    law = plan.law
    if not isinstance(law, LocalPredictor) or law.prior != "normal" or law.names != ("spread",):
        raise ModelError(
            'solver="em" is the paper\'s Algorithm 1: it needs local="predictor", prior="normal" and a family without '
            'further parameters (Poisson, Bernoulli, Binomial, Exponential). Use solver="newton".'
        )
    plain = classical(design, plan)
    if not plain.outcome.converged:
        return plain
    score, size = spread_score(plain, law)
    if score <= 1e-9 * size and not isinstance(law.family, Bernoulli | Binomial) and "spread" not in plan.held:
        return at_boundary(plain, law)
    passes = kernel(law, 0)
    rows = DesignRows(design.rows.data, design.rows.weight, 4096, design.rows.labels)
    weight, total = design.rows.weight, design.rows.total_weight
    u, log_spread = plain.u, float(np.log(plan.held.get("spread", 1.0)))
    state = start_state(law, design.y, design.trials, np.zeros(1))
    history: list[dict[str, Any]] = []
    began = time.perf_counter()
    limit = max(plan.stop.max_steps, SLOWEST if plan.stop.max_steps == 100 else 1)
    outcome = Outcome("max_steps", f'{limit} EM steps were not enough. Raise max_iter, or use solver="newton".', limit)
    for step in range(limit):
        beta, spread = design.to_shifted @ u, log_spread

        def one_chunk(data: Any, _: Any, here: Any, beta: Any = beta, spread: float = spread) -> Any:
            m = data[1] + design.linear(design.shifted(data[0]), beta)
            mode, variance = passes.modes(m, (spread,), (data[2], data[3]), here)
            return {}, {"mode": mode, "variance": variance}

        with np.errstate(all="ignore"), double_precision():
            _, parts = over_rows(one_chunk, rows, state)
        state[:, 0] = parts["mode"]
        new_u = design.project(parts["mode"] - design.offset)
        away = parts["mode"] - design.predictor(new_u)
        new_spread = log_spread
        if "spread" not in plan.held:
            new_spread = 0.5 * np.log(float(weight @ (away**2 + parts["variance"])) / total)
        moved = max(float(np.abs(new_u - u).max()), abs(new_spread - log_spread))
        u, log_spread = new_u, float(new_spread)
        history.append({"pass": step + 1, "value": np.nan, "step": moved, "seconds": time.perf_counter() - began})
        if moved < 10.0 * plan.stop.rtol:
            outcome = Outcome("converged", f"the EM steps came to rest after {step + 1} passes.", step + 1)
            break
    climb = Climb(design, replace(plan, hyperprior=None), 0)
    vector = climb.joined(u, np.array([log_spread]))
    value, slope, curve = climb.curves(vector)
    return climb.found(Optimum(vector, value, slope, curve, history, outcome))


def by_map(design: Design, plan: Plan) -> Found:
    """Sparse shifts: the price of a shift from the exact evidence, then the best coefficients and shifts together."""
    law = plan.law
    if not isinstance(law, LocalPredictor) or law.prior != "laplace":
        raise ModelError('solver="map" finds sparse shifts; it needs local="predictor" and prior="laplace".')
    exact = search(design, plan)
    if not exact.outcome.converged or not isinstance(exact.plan.law, LocalPredictor):
        return exact
    shared = {name: float(np.exp(value)) for name, value in zip(law.names, exact.phi)}
    found = search(design, Plan(Shifted(law.family), held=shared, stop=plan.stop))
    note = 'standard errors take the shifts as known; those of the integrated likelihood (solver="newton") are honest.'
    return replace(found, notes=(note,))
