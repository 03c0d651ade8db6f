r"""How does the paper fit the prior? Variational EM, with an acceleration that may be refused.

E-step: each row's posterior at the current parameters, as the approximation gives it. M-step: parameters that maximise
the expected log density :math:`\sum_i \mathrm E_{q_i} \log p(x_i, \beta_i \mid \theta)`. With ``Exact`` or
``GaussianVI`` the objective is a bound and never falls; Laplace's is neither, as in the paper's Algorithm 1.
SQUAREM (Varadhan & Roland 2008) extrapolates two EM steps; its point is taken only if the objective agrees.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

from robustly.approx import Approximation, default_approximation
from robustly.fit.maximize import Found
from robustly.fit.newton import Optimum, newton
from robustly.fit.outcome import Outcome, Stop
from robustly.fit.passes import Passes, passes, with_prior
from robustly.fit.start import first_start
from robustly.model.row import RowModel
from robustly.rows.arrays import Rows
from robustly.rows.store import over_rows


class _Steps:
    """EM steps over fixed rows, counting passes and keeping the rows' states."""

    def __init__(self, compiled: Passes, rows: Rows, report: Callable[[dict[str, Any]], None] | None) -> None:
        self.compiled, self.rows, self.report = compiled, rows, report
        self.state = compiled.begin(rows)
        self.history: list[dict[str, Any]] = []
        self.began = time.perf_counter()

    def expect(self, vector: np.ndarray) -> float:
        """E-step: settle every row's posterior; the objective there."""
        sums, by_row = over_rows(self.compiled.values, self.rows, self.state, jnp.asarray(vector))
        value = float(sums["value"]) + float(self.compiled.log_hyperprior(jnp.asarray(vector)))
        if np.isfinite(value):
            self.state, self.evidence = by_row["state"], by_row["evidence"]
        entry = {"pass": len(self.history) + 1, "value": value, "seconds": time.perf_counter() - self.began}
        self.history.append(entry)
        if self.report is not None:
            self.report(entry)
        return value

    def maximize(self, at: np.ndarray) -> np.ndarray:
        """M-step, from the posteriors held at `at`."""
        held = jnp.asarray(at)

        def expected(vector: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
            sums, _ = over_rows(self.compiled.expected_curves, self.rows, self.state, jnp.asarray(vector), held)
            return with_prior(sums, self.rows)

        return newton(expected, at, Stop(1e-12, 30), walled=self.compiled.model.parameters.walled).vector


def em(
    model: RowModel,
    rows: Rows,
    approx: Approximation | None = None,
    *,
    stop: Stop = Stop(1e-8, 2000),  # noqa: B008
    start: np.ndarray | None = None,
    accelerate: bool = True,
    report: Callable[[dict[str, Any]], None] | None = None,
) -> Found:
    """Fit by EM. Converged when a step moves no entry of the parameter vector by more than ``stop.rtol``."""
    compiled = passes(model, default_approximation(model) if approx is None else approx)
    steps = _Steps(compiled, rows, report)
    x = first_start(compiled, rows, start)
    value = steps.expect(x)
    moved, outcome = np.inf, None
    while outcome is None:
        first = steps.maximize(x)
        moved = float(np.max(np.abs(first - x), initial=0.0))
        value_first = steps.expect(first)
        if moved <= stop.rtol:
            x, outcome = (
                first,
                Outcome("converged", f"EM is at rest after {len(steps.history)} passes.", len(steps.history)),
            )
            break
        if len(steps.history) >= stop.max_steps:
            text = (
                f"{stop.max_steps} passes of EM were not enough; the last step still moved the parameters by {moved:.1e}. "
                'Raise max_steps, or fit directly (method="direct"), which needs about ten.'
            )
            x, outcome = first, Outcome("max_steps", text, len(steps.history))
            break
        second = steps.maximize(first)
        ahead = _extrapolate(x, first, second) if accelerate else None
        if ahead is not None:
            kept = steps.state
            value = steps.expect(ahead)
            slack = 0.0 if compiled.approx.is_bound else 1.0
            if np.isfinite(value) and value >= value_first - slack:
                x = ahead
                continue
            steps.state = kept
            steps.history.pop()
        x, value = second, steps.expect(second)
    (top, slope, curve), by_row = compiled.objective(x, rows, steps.state)
    optimum = Optimum(x, top, slope, curve, steps.history, outcome)
    return Found(optimum, compiled, rows, by_row)


def _extrapolate(x: np.ndarray, first: np.ndarray, second: np.ndarray) -> np.ndarray | None:
    change, bend = first - x, second - 2.0 * first + x
    size = float(np.linalg.norm(bend))
    if size < 1e-14:
        return None
    length = float(np.clip(np.linalg.norm(change) / size, 1.0, 256.0))
    if length == 1.0:
        return None
    return x + 2.0 * length * change + length**2 * bend
