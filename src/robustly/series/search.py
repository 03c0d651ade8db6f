r"""Where are the parameters best? The Gaussian fit, then the leave-one-out evidence, then the sampled one.

The vector that is searched has statsmodels' own unconstrained parameters (a variance is a square), each in units of its start,
and log ν for every site whose degrees of freedom are fitted. The mean-field bound is too loose a guide to the tails (on UK gas
it is highest at ν = 5.5, where the evidence is four nats below its maximum), so by default its place in the search is taken by
the leave-one-out evidence; ``method="bound"`` and ``method="em"`` maximise the bound.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from scipy.optimize import minimize

from robustly.errors import FitError
from robustly.fit.outcome import Outcome
from robustly.series import meanfield
from robustly.series.disturbances import Disturbances, clone, free_steps
from robustly.series.leaveout import LeftOut, leave_out
from robustly.series.meanfield import LARGEST_DOF, LEAST_DOF
from robustly.series.sampled import LEAST_EFFECTIVE, Estimate, PrecisionDraws, draw_precisions, estimate, worth_keeping

START_DOFS = (4.0, 30.0)
# Longer series are searched on a stretch of this many steps first.
STRETCH = 5000
MOST_CHORDS = 5
NEARBY_ROUNDS = 3
FIRST_STEPS = 8
FINAL_DRAWS = 1000
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


def gaussian(model: Disturbances, params: np.ndarray, max_steps: int = 200) -> tuple[np.ndarray, float]:
    """Maximum-likelihood parameters of the plain model, and its log likelihood."""
    space = Space(model, dict.fromkeys(range(len(model.sites)), np.inf))
    ones = model.ones()
    vector = space.join(params, np.full(len(model.sites), np.inf))
    value = lambda at: model.log_likelihood(space.split(at)[0], ones)
    best = climb_series(value, vector, space.bounds, max_steps)
    again = climb_series(value, best.x, space.bounds, max_steps)
    best = min(best, again, key=lambda one: one.fun)
    if not np.isfinite(best.fun) or best.fun >= -VERY_LOW:
        raise FitError(
            "the plain model has no finite likelihood at its start values. Give start= values that it can take."
        )
    return space.split(best.x)[0], -float(best.fun)


def at_gaussian(space: Space, params: np.ndarray, likelihood: float) -> Best:
    """The plain model as a result: every disturbance is normal."""
    model = space.model
    dofs = np.full(len(model.sites), np.inf)
    vector = space.join(params, dofs)
    ones = model.ones()
    curve = curvature(
        lambda at: model.log_likelihood(space.split(at)[0], ones), vector, likelihood, np.full(len(vector), 1e-2)
    )
    left = leave_out(model, params, dofs, max_rounds=1)
    left = replace(left, factors=ones, evidence=likelihood, tilted=replace(left.tilted, mean=ones))
    return Best(vector, likelihood, curve, Outcome("converged", "the plain model.", 0), "gaussian", left)


def by_leaving_out(
    space: Space, params: np.ndarray, max_steps: int, start_dofs: tuple[float, ...] = START_DOFS
) -> Best:
    """Maximise the leave-one-out evidence from the Gaussian estimates, with the tails that suit these best to begin with."""
    model = space.model
    factors = {"here": model.ones()}

    def value(vector: np.ndarray) -> float:
        found = leave_out(model, *space.split(vector), factors["here"], tol=1e-9)
        factors["here"] = found.factors
        return found.evidence

    def nearby(vector: np.ndarray) -> float:
        # The evidence hardly depends on its variances at their fixed point, so a few rounds from there are enough.
        return leave_out(model, *space.split(vector), factors["here"], max_rounds=NEARBY_ROUNDS).evidence

    begin = space.lifted(params)
    starts = [space.join(begin, np.full(len(model.sites), dof)) for dof in (start_dofs if space.fitted else (1.0,))]
    first = []
    for start in starts:
        factors["here"] = model.ones()
        found = climb_series(value, start, space.bounds, FIRST_STEPS, step=2e-3, nearby=nearby, rtol=1e-6)
        first.append((found, factors["here"]))
    # Light and heavy tails each have their maximum, of the one and of the other parameters; a few steps tell which is higher.
    ahead, factors["here"] = min(first, key=lambda run: run[0].fun)
    best = climb_series(value, ahead.x, space.bounds, max_steps, step=2e-3, nearby=nearby, rtol=1e-7)
    best.nit += ahead.nit
    if best.fun >= -VERY_LOW:
        raise FitError("the evidence is not finite at the Gaussian estimates. Look at the series for extreme values.")
    vector = best.x
    top = value(vector)
    curve = curvature(nearby, vector, top, np.full(len(vector), 2e-2))
    left = best_left_out(model, *space.split(vector), factors["here"])
    # Status 2 is a line search that found nothing higher to the last digits.
    outcome = _outcome(bool(best.success) or best.status == 2, int(best.nit), max_steps)
    return Best(vector, left.evidence, curve, outcome, "leave-one-out", left)


def by_stretch(space: Space, params: np.ndarray, max_steps: int) -> Best:
    """For a long series: climb on a stretch of it, then take Newton steps on the whole with the stretch's curvature."""
    model = space.model
    length = model.steps
    endog = np.array(model.model.endog, dtype=float).reshape(length, -1)
    exog = getattr(model.model, "exog", None)
    low = (length - STRETCH) // 2
    part = slice(low, low + STRETCH)
    piece = clone(model.model, endog[part], None if exog is None else np.asarray(exog)[part])
    small = Space(Disturbances(piece, [site.name for site in model.sites]), space.held)
    start = by_leaving_out(small, params, max_steps)
    vector = space.join(*small.split(start.vector))
    factors = {"here": model.ones()}
    low_end, high_end = _ends(space)
    small_unit = small.unit / space.unit
    stretch = np.concatenate([small_unit, np.ones(len(space.fitted))])
    size = _newton_matrix(start.curve / stretch[:, None] / stretch) * (length / STRETCH)

    def value(at: np.ndarray) -> float:
        found = leave_out(model, *space.split(at), factors["here"], tol=1e-9)
        factors["here"] = found.factors
        return found.evidence

    nearby = lambda at: leave_out(model, *space.split(at), factors["here"], max_rounds=NEARBY_ROUNDS).evidence
    unit = 1.0 / np.sqrt(np.maximum(np.diag(size), 1e-12))
    top, converged, steps = value(vector), False, 0
    while steps < 2 * MOST_CHORDS and not converged:
        steps += 1
        slope = np.array([(nearby(vector + 0.2 * h) - nearby(vector - 0.2 * h)) / 0.4 for h in np.diag(unit)])
        move = unit * np.linalg.solve(size * unit[:, None] * unit, slope)
        gain, shrink, before = 0.5 * float(slope @ (move / unit)), 1.0, top
        while shrink > 0.05:
            ahead = np.clip(vector + shrink * move, low_end, high_end)
            there = value(ahead)
            if there > before:
                vector, top = ahead, there
                break
            shrink *= 0.4
        converged = gain < 0.01 or top - before < 0.01
    curve = curvature(nearby, vector, top, unit)
    left = best_left_out(model, *space.split(vector), factors["here"])
    outcome = _outcome(converged, start.outcome.steps + steps, max_steps)
    return Best(vector, left.evidence, curve, outcome, "leave-one-out", left)


def _ends(space: Space) -> tuple[np.ndarray, np.ndarray]:
    low = np.array([-np.inf if one is None else one for one, _ in space.bounds])
    high = np.array([np.inf if one is None else one for _, one in space.bounds])
    return low, high


def best_left_out(model: Disturbances, params: np.ndarray, dofs: np.ndarray, factors: np.ndarray) -> LeftOut:
    """From `factors` and from scratch, the higher: neighbouring steps can be explained in more than one way."""
    found = [leave_out(model, params, dofs, start, tol=1e-9, keep=True) for start in (factors, None)]
    return max(found, key=lambda one: one.evidence)


def by_sampling(space: Space, best: Best, number: int, seed: int) -> Best:
    """Maximise the sampled evidence from the leave-one-out estimate on, by Newton steps with that one's curvature."""
    model = space.model
    assert best.left is not None
    random = np.random.default_rng(seed)
    vector, steps = best.vector, 0
    size = _newton_matrix(best.curve)
    unit = 1.0 / np.sqrt(np.maximum(np.diag(size), 1e-12))
    low, high = _ends(space)
    converged = False
    for turn in range(2):
        natural, dofs = space.split(vector)
        left = best_left_out(model, natural, dofs, best.left.factors)
        draws = draw_precisions(left, free_steps(model, dofs), number, random)
        here = estimate(model, natural, dofs, draws)
        if here.effective < LEAST_EFFECTIVE:
            return replace(best, tried_sampling=True, effective=here.effective)
        only = worth_keeping(here)
        value = lambda at: estimate(model, *space.split(at), draws, only).value  # noqa: B023
        for _ in range(MOST_CHORDS):
            slope = np.array([
                (value(np.clip(vector + 0.05 * h, low, high)) - value(np.clip(vector - 0.05 * h, low, high))) / 0.1
                for h in np.diag(unit)
            ])  # fmt: skip
            move = unit * np.linalg.solve(size * unit[:, None] * unit, slope)
            gain = 0.5 * float(slope @ (move / unit))
            moved, before = vector, here.value
            shrink = 1.0
            while shrink > 0.05:
                moved = np.clip(vector + shrink * move, low, high)
                there = estimate(model, *space.split(moved), draws, only)
                if there.value > before:
                    vector, here = moved, there
                    break
                shrink *= 0.4
            steps += 1
            # What is left to gain is far below the error of the estimate and of any standard error.
            converged = gain < max(0.01, 0.2 * here.error) or here.value - before < 0.1 * here.error
            if gain < 1e-3 or here.value - before < 1e-4:
                break
        if turn == 0 and np.abs((vector - best.vector) / unit).max() < 0.5:
            break
    natural, dofs = space.split(vector)
    curve = curvature(lambda at: estimate(model, *space.split(at), draws, only).value, vector, here.value, 0.3 * unit)
    outcome = _outcome(converged, best.outcome.steps + steps, MOST_CHORDS)
    # At its own maximum an estimate flatters itself; fresh draws do not.
    left = best_left_out(model, natural, dofs, left.factors)
    draws = draw_precisions(left, free_steps(model, dofs), max(number, FINAL_DRAWS), random)
    here = estimate(model, natural, dofs, draws)
    if here.effective < LEAST_EFFECTIVE:
        return replace(best, tried_sampling=True, effective=here.effective)
    return Best(vector, here.value, curve, outcome, "sampled", left, draws, here)


def _newton_matrix(curve: np.ndarray) -> np.ndarray:
    """Minus the curvature, made positive definite."""
    values, vectors = np.linalg.eigh(-0.5 * (curve + curve.T))
    values = np.maximum(np.abs(values), 1e-6 * max(np.abs(values).max(initial=0.0), 1e-12))
    return (vectors * values) @ vectors.T


def by_bound(space: Space, params: np.ndarray, max_steps: int, rtol: float, rounds: int) -> Best:
    """Maximise the mean-field bound: `rounds` rounds of the precisions, then the parameters with the precisions held.

    With one round between, this is variational EM as the paper has it; with many, each step sees the bound at its best.
    Neither half lowers the bound.
    """
    model = space.model
    vector = space.join(space.lifted(params), np.full(len(model.sites), START_DOFS[0]))
    natural, dofs = space.split(vector)
    held = meanfield.start_locals(model, dofs)
    history: list[dict[str, Any]] = []
    converged = False
    for step in range(1, max_steps + 1):
        found = meanfield.find_locals(model, natural, dofs, held, max_rounds=rounds)
        held = found.locals if found.converged else meanfield.update_precisions(model, dofs, found.smoothed)
        laws = held
        value = lambda at, laws=laws: meanfield.bound_at(model, *space.split(at), laws)
        ahead = climb_series(value, vector, space.bounds, 15 if rounds > 1 else 4)
        before = history[-1]["bound"] if history else -np.inf
        vector = ahead.x
        history.append({"step": step, "bound": -float(ahead.fun)})
        natural, dofs = space.split(vector)
        if -ahead.fun - before <= rtol * max(1.0, abs(ahead.fun)):
            converged = True
            break
    found = meanfield.find_locals(model, natural, dofs, held)

    def profile(at: np.ndarray) -> float:
        params_at, dofs_at = space.split(at)
        return meanfield.find_locals(model, params_at, dofs_at, found.locals, tol=1e-11).bound

    curve = curvature(profile, vector, profile(vector), np.full(len(vector), 1e-2))
    left = leave_out(model, natural, dofs, keep=True)
    outcome = _outcome(converged, len(history), max_steps)
    return Best(vector, found.bound, curve, outcome, "bound", left, history=tuple(history))


def _outcome(converged: bool, steps: int, max_steps: int) -> Outcome:
    if converged:
        return Outcome("converged", "the evidence moves no more.", steps)
    return Outcome(
        "max_steps", f"{max_steps} steps were not enough. Raise max_steps, or hold a variance or dof.", steps
    )
