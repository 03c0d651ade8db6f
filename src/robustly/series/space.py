"""In which numbers are a series' parameters searched, and how does a search climb? Free values in units of their own, by differences.

The vector has statsmodels' own unconstrained parameters (a variance is a square), each in units of its start, and log ν for every
site whose degrees of freedom are fitted.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from scipy.optimize import minimize

from robustly.fit.outcome import Outcome
from robustly.series.disturbances import Disturbances
from robustly.series.leaveout import LeftOut
from robustly.series.meanfield import LARGEST_DOF, LEAST_DOF
from robustly.series.sampled import Estimate, PrecisionDraws

VERY_LOW = -1e12


@dataclass
class Space:
    """Between the vector that is searched and natural values."""

    model: Disturbances
    held: dict[int, float]
    """Degrees of freedom that are not fitted, by site."""
    unit: np.ndarray = field(default_factory=lambda: np.ones(0))

    @property
    def fitted(self) -> list[int]:
        return [s for s in range(len(self.model.sites)) if s not in self.held]

    def split(self, vector: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Natural parameters and degrees of freedom."""
        count = len(self.model.parameter_names)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            params = np.array(self.model.model.transform_params(vector[:count] * self.unit), dtype=float)
        dofs = np.empty(len(self.model.sites))
        for s, value in self.held.items():
            dofs[s] = value
        dofs[self.fitted] = np.exp(vector[count:])
        return params, dofs

    def join(self, params: np.ndarray, dofs: np.ndarray) -> np.ndarray:
        """The vector of natural values; sets the units."""
        free = np.array(self.model.model.untransform_params(params), dtype=float)
        if not len(self.unit):
            # In units of their own start; where that is next to zero, of statsmodels' start values.
            size, usual = np.abs(free), self.usual
            self.unit = np.where(
                size > 0.05 * usual, size, np.where(usual > 0, usual, max(size.max(initial=0.0), 1e-8))
            )
        return np.concatenate([free / self.unit, np.log(np.clip(dofs[self.fitted], LEAST_DOF, LARGEST_DOF))])

    @cached_property
    def usual(self) -> np.ndarray:
        """Sizes of statsmodels' own start values, unconstrained."""
        return np.abs(np.array(self.model.model.untransform_params(self.model.model.start_params), dtype=float))

    def lifted(self, params: np.ndarray) -> np.ndarray:
        """Variances away from zero, where the evidence has no slope in their roots, to a hundredth of their usual size."""
        free = np.array(self.model.model.untransform_params(params), dtype=float)
        squares = np.isclose(free**2, params, rtol=1e-6, atol=0.0)
        low = squares & (np.abs(free) < 0.1 * self.usual)
        return np.where(low, (0.1 * self.usual) ** 2, params)

    @property
    def bounds(self) -> list[tuple[float | None, float | None]]:
        ends = (float(np.log(LEAST_DOF)), float(np.log(LARGEST_DOF)))
        return [(None, None)] * len(self.model.parameter_names) + [ends] * len(self.fitted)


@dataclass(frozen=True)
class Best:
    """Where a search ended and what it knows there."""

    vector: np.ndarray
    value: float
    curve: np.ndarray
    """Second derivatives of the objective in the vector."""
    outcome: Outcome
    kind: str
    """``gaussian``, ``bound``, ``leave-one-out`` or ``sampled``."""
    left: LeftOut | None = None
    draws: PrecisionDraws | None = None
    sampled: Estimate | None = None
    history: tuple[dict[str, Any], ...] = ()
    tried_sampling: bool = False
    effective: float = 0.0
    """Effective draws where too few counted."""
    lost: float = 0.0
    """How many nats the maximum may be off by the noise of the draws, on average."""


def climb_series(
    value: Callable[[np.ndarray], float],
    start: np.ndarray,
    bounds: Any,
    max_steps: int,
    step: float = 1e-4,
    nearby: Callable[[np.ndarray], float] | None = None,
    rtol: float = 1e-10,
) -> Any:
    """L-BFGS with central differences, or forward ones of `nearby`; a point that the model does not take is very low."""

    def safe(vector: np.ndarray, look: Callable[[np.ndarray], float] = value) -> float:
        try:
            found = look(vector)
        except (np.linalg.LinAlgError, ValueError):
            return -VERY_LOW
        return -found if np.isfinite(found) else -VERY_LOW

    def slope(vector: np.ndarray) -> np.ndarray:
        shifts = step * np.eye(len(vector))
        if nearby is None:
            return np.array([(safe(vector + one) - safe(vector - one)) / (2 * step) for one in shifts])
        here = safe(vector, nearby)
        found = np.array([(safe(vector + one, nearby) - here) / step for one in shifts])
        for i in np.flatnonzero(np.abs(vector) < 5 * step):
            # The evidence is even in the root of a variance: near zero only differences to both sides have the right sign.
            found[i] = (safe(vector + shifts[i], nearby) - safe(vector - shifts[i], nearby)) / (2 * step)
        return found

    options = {"maxiter": max_steps, "ftol": rtol, "gtol": 1e-4}
    return minimize(safe, start, jac=slope, method="L-BFGS-B", bounds=bounds, options=options)


def curvature(value: Callable[[np.ndarray], float], at: np.ndarray, top: float, step: np.ndarray) -> np.ndarray:
    """Second derivatives by differences."""
    k = len(at)
    shift = np.diag(step)
    ahead = [value(at + shift[i]) for i in range(k)]
    back = [value(at - shift[i]) for i in range(k)]
    found = np.empty((k, k))
    for i in range(k):
        found[i, i] = (ahead[i] - 2 * top + back[i]) / step[i] ** 2
        for j in range(i):
            both = value(at + shift[i] + shift[j]) - ahead[i] - ahead[j] + top
            none = value(at - shift[i] - shift[j]) - back[i] - back[j] + top
            found[i, j] = found[j, i] = 0.5 * (both + none) / (step[i] * step[j])
    return found


def newton_matrix(curve: np.ndarray) -> np.ndarray:
    """Minus the curvature, made positive definite."""
    values, vectors = np.linalg.eigh(-0.5 * (curve + curve.T))
    values = np.maximum(np.abs(values), 1e-6 * max(np.abs(values).max(initial=0.0), 1e-12))
    return (vectors * values) @ vectors.T


def ends_of(space: Space) -> tuple[np.ndarray, np.ndarray]:
    low = np.array([-np.inf if one is None else one for one, _ in space.bounds])
    high = np.array([np.inf if one is None else one for _, one in space.bounds])
    return low, high


def ended(converged: bool, steps: int, max_steps: int) -> Outcome:
    if converged:
        return Outcome("converged", "the evidence moves no more.", steps)
    return Outcome(
        "max_steps", f"{max_steps} steps were not enough. Raise max_steps, or hold a variance or dof.", steps
    )
