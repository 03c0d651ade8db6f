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

import numpy as np

from robustly.fit.objective import Optimum
from robustly.fit.outcome import Outcome, Stop
from robustly.fit.problem import EvidenceProblem, Found

Report = Callable[[dict[str, Any]], None]


class _Steps:
    """EM steps of a problem, counting passes."""

    def __init__(self, problem: EvidenceProblem, report: Report | None) -> None:
        self.problem, self.report = problem, report
        self.history: list[dict[str, Any]] = []
        self.began = time.perf_counter()

    def expect(self, vector: np.ndarray, least: float = -np.inf) -> float:
        """E-step: every row's posterior; the objective there. Posteriors of an objective below `least` are not kept."""
        value, ahead = self.problem.expect(vector)
        if np.isfinite(value) and value >= least:
            self.problem.slot = ahead
        entry = {"pass": len(self.history) + 1, "value": value, "seconds": time.perf_counter() - self.began}
        self.history.append(entry)
        if self.report is not None:
            self.report(entry)
        return value


def em(
    problem: EvidenceProblem,
    stop: Stop = Stop(1e-8, 5000),  # noqa: B008
    *,
    start: np.ndarray | None = None,
    accelerate: bool = True,
    report: Report | None = None,
) -> Found:
    """Fit by EM. Converged when a step moves no entry of the parameter vector by more than ``stop.rtol``."""
    steps = _Steps(problem, report)
    x = problem.starts(None)[0] if start is None else start
    value = steps.expect(x)
    moved, outcome = np.inf, None
    while outcome is None:
        first = problem.maximize_expected(x)
        moved = float(np.max(np.abs(first - x), initial=0.0))
        value_first = steps.expect(first)
        passes = len(steps.history)
        if moved <= stop.rtol:
            x, outcome = first, Outcome("converged", f"EM is at rest after {passes} passes.", passes)
            break
        if passes >= stop.max_steps:
            text = (
                f"{stop.max_steps} passes of EM were not enough; the last step still moved the parameters by {moved:.1e}. "
                'Raise max_steps, or fit directly (method="direct"), which needs about ten.'
            )
            x, outcome = first, Outcome("max_steps", text, passes)
            break
        if not accelerate:
            x = first
            continue
        second = problem.maximize_expected(first)
        ahead = _extrapolate(x, first, second)
        if ahead is not None:
            least = value_first - (0.0 if problem.parts[1].is_bound else 1.0)
            value = steps.expect(ahead, least)
            if np.isfinite(value) and value >= least:
                x = ahead
                continue
            steps.history.pop()
        x, value = second, steps.expect(second)
    look = problem.look(x)
    assert look.curve is not None
    return Found(problem, Optimum(x, look.value, look.slope, look.curve, steps.history, outcome))


def _extrapolate(x: np.ndarray, first: np.ndarray, second: np.ndarray) -> np.ndarray | None:
    change, bend = first - x, second - 2.0 * first + x
    size = float(np.linalg.norm(bend))
    if size < 1e-14:
        return None
    length = float(np.clip(np.linalg.norm(change) / size, 1.0, 256.0))
    if length == 1.0:
        return None
    return x + 2.0 * length * change + length**2 * bend
