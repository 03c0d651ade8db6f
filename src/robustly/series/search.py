r"""Where are the parameters best? The Gaussian fit, then the leave-one-out evidence, then the sampled one.

The mean-field bound is too loose a guide to the tails (on UK gas
it is highest at ν = 5.5, where the evidence is four nats below its maximum), so by default its place in the search is taken by
the leave-one-out evidence; ``method="bound"`` and ``method="em"`` maximise the bound.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from scipy.special import logsumexp

from robustly.errors import FitError
from robustly.fit.outcome import Outcome
from robustly.series import meanfield
from robustly.series.disturbances import Disturbances, clone, free_steps
from robustly.series.leaveout import LeftOut, leave_out
from robustly.series.sampled import LEAST_EFFECTIVE, draw_precisions, estimate, log_weights, slopes_of, worth_keeping
from robustly.series.space import VERY_LOW, Best, Space, climb_series, curvature, ended, ends_of, newton_matrix

START_DOFS = (4.0, 30.0)
# Longer series are searched on a stretch of this many steps first.
STRETCH = 5000
MOST_CHORDS = 4
NEARBY_ROUNDS = 3
FIRST_STEPS = 8
FINAL_DRAWS = 1000
# What the noise of the draws may cost the maximum, in nats, before more are drawn; and most draws.
MOST_LOST, MOST_DRAWS, CURVATURE_DRAWS = 0.03, 1600, 400
# Most sets of draws, how far a search goes with one (in standard errors), and the step of its slopes.
MOST_SETS, FARTHEST, DIFFERENCE = 8, 1.0, 0.05


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
    outcome = ended(bool(best.success) or best.status == 2, int(best.nit), max_steps)
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
    low_end, high_end = ends_of(space)
    small_unit = small.unit / space.unit
    stretch = np.concatenate([small_unit, np.ones(len(space.fitted))])
    size = newton_matrix(start.curve / stretch[:, None] / stretch) * (length / STRETCH)

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
    outcome = ended(converged, start.outcome.steps + steps, max_steps)
    return Best(vector, left.evidence, curve, outcome, "leave-one-out", left)


def best_left_out(model: Disturbances, params: np.ndarray, dofs: np.ndarray, factors: np.ndarray) -> LeftOut:
    """From `factors` and from scratch, the higher: neighbouring steps can be explained in more than one way."""
    found = [leave_out(model, params, dofs, start, tol=1e-9, keep=True) for start in (factors, None)]
    return max(found, key=lambda one: one.evidence)


def by_sampling(space: Space, best: Best, number: int, seed: int) -> Best:
    """Maximise the sampled evidence from the leave-one-out estimate on, by Newton steps.

    With the draws held the estimate is smooth, but its maximum is off by their noise. How many nats that costs is known from
    the draws' own slopes: half the variance of the slope in units of the curvature. While it is more than `MOST_LOST`, the search
    goes on with four times the draws.
    """
    model = space.model
    assert best.left is not None
    random = np.random.default_rng(seed)
    vector, steps = best.vector, 0
    size = newton_matrix(best.curve)
    unit = 1.0 / np.sqrt(np.maximum(np.diag(size), 1e-12))
    inverse = np.linalg.inv(size * unit[:, None] * unit)
    low, high = ends_of(space)
    for _ in range(MOST_SETS):
        natural, dofs = space.split(vector)
        left = best_left_out(model, natural, dofs, best.left.factors)
        draws = draw_precisions(left, free_steps(model, dofs), number, random)
        here = estimate(model, natural, dofs, draws)
        if here.effective < LEAST_EFFECTIVE:
            return replace(best, tried_sampling=True, effective=here.effective)
        only = worth_keeping(here)
        logs = lambda at: log_weights(model, *space.split(np.clip(at, low, high)), draws, only)  # noqa: B023
        origin, seen = vector, logs(vector)
        for _ in range(MOST_CHORDS):
            slope, noise = slopes_of([logs(vector + DIFFERENCE * h) for h in np.diag(unit)], seen)
            slope, noise = slope / DIFFERENCE, noise / DIFFERENCE**2
            gain, lost = 0.5 * float(slope @ inverse @ slope), 0.5 * float(np.sum(inverse * noise))
            before, shrink = float(logsumexp(seen)), 1.0
            while shrink > 0.05:
                # Farther than a standard error or so from where they were made, draws say little.
                off = np.clip((vector - origin) / unit + shrink * (inverse @ slope), -FARTHEST, FARTHEST)
                moved = np.clip(origin + unit * off, low, high)
                there = logs(moved)
                if logsumexp(there) > before:
                    vector, seen = moved, there
                    break
                shrink *= 0.4
            steps += 1
            risen = float(logsumexp(seen)) - before
            # What is left to gain is below the noise.
            converged = gain < max(0.01, 0.5 * lost) or risen < 0.1 * lost
            if converged:
                break
        near = float(np.abs((vector - origin) / unit).max()) < 0.5 * FARTHEST
        if near and (lost <= MOST_LOST or number >= MOST_DRAWS):
            break
        number = min(4 * number, MOST_DRAWS) if near else number
    # Standard errors need neither the last twentieth of the weight nor more draws than a first search has.
    few = worth_keeping(here, 0.05)
    few = few[few < CURVATURE_DRAWS] if len(few) > CURVATURE_DRAWS else few
    value = lambda at: float(logsumexp(log_weights(model, *space.split(np.clip(at, low, high)), draws, few)))
    curve = curvature(value, vector, value(vector), 0.3 * unit)
    natural, dofs = space.split(vector)
    outcome = ended(converged, best.outcome.steps + steps, MOST_CHORDS)
    # At its own maximum an estimate flatters itself; fresh draws do not.
    left = best_left_out(model, natural, dofs, left.factors)
    draws = draw_precisions(left, free_steps(model, dofs), max(number, FINAL_DRAWS), random)
    here = estimate(model, natural, dofs, draws)
    if here.effective < LEAST_EFFECTIVE:
        return replace(best, tried_sampling=True, effective=here.effective)
    return Best(vector, here.value, curve, outcome, "sampled", left, draws, here, lost=lost)


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
    outcome = ended(converged, len(history), max_steps)
    return Best(vector, found.bound, curve, outcome, "bound", left, history=tuple(history))
