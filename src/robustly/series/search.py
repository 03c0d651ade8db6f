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
from robustly.series.leaveout import LeftOut, leave_out, with_plateaus
from robustly.series.sampled import LEAST_EFFECTIVE, draw_precisions, estimate, log_weights, slopes_of, worth_keeping
from robustly.series.space import VERY_LOW, Best, Space, climb_series, curvature, ended, ends_of, newton_matrix

START_DOFS = (4.0, 30.0)
# Longer series are searched on a stretch of this many steps first.
STRETCH = 5000
MOST_CHORDS = 4
NEARBY_ROUNDS = 3
FIRST_STEPS = 8
# How often a search begins anew where the same steps are explained better in another way, and by how many nats.
MOST_EXPLANATIONS, BETTER = 3, 0.5
FINAL_DRAWS = 1000
# Extrapolations of EM that are longer are not tried.
LONGEST = 100.0
# A step of EM that gains less than this share of what the normal would is slow.
SLOW = 0.05
# What the noise of the draws may cost the maximum, in nats, before more are drawn; and most draws.
MOST_LOST, MOST_DRAWS, CURVATURE_DRAWS = 0.03, 1600, 400
# Most sets of draws, how far a search goes with one (in standard errors), the step of its slopes, and the largest unit.
MOST_SETS, FARTHEST, DIFFERENCE, MOST_UNIT = 8, 1.0, 0.05, 1.0


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


class SeenEvidence:
    """The leave-one-out evidence as a search sees it, each look beginning at the variances of the best point so far.

    A trial far off may explain the same steps in another way, an up and down of the level by outliers; a search that took its
    variances along would not come back.
    """

    def __init__(self, space: Space) -> None:
        self.space = space
        self.begin(space.model.ones())

    def begin(self, factors: np.ndarray) -> None:
        """Forget what was best."""
        self.factors, self.top = factors, -np.inf

    def value(self, vector: np.ndarray) -> float:
        found = leave_out(self.space.model, *self.space.split(vector), self.factors, tol=1e-9)
        if found.evidence >= self.top:
            self.factors, self.top = found.factors, found.evidence
        return found.evidence

    def nearby(self, vector: np.ndarray) -> float:
        # The evidence hardly depends on its variances at their fixed point, so a few rounds from there are enough.
        return leave_out(self.space.model, *self.space.split(vector), self.factors, max_rounds=NEARBY_ROUNDS).evidence


def by_leaving_out(
    space: Space, params: np.ndarray, max_steps: int, start_dofs: tuple[float, ...] = START_DOFS
) -> Best:
    """Maximise the leave-one-out evidence from the Gaussian estimates, with the tails that suit these best to begin with."""
    model, seen = space.model, SeenEvidence(space)
    begin = space.lifted(params)
    starts = [space.join(begin, np.full(len(model.sites), dof)) for dof in (start_dofs if space.fitted else (1.0,))]
    first = []
    for start in starts:
        seen.begin(model.ones())
        found = climb_series(seen.value, start, space.bounds, FIRST_STEPS, step=2e-3, nearby=seen.nearby, rtol=1e-6)
        first.append((found, seen.factors))
    # Light and heavy tails each have their maximum, of the one and of the other parameters; a few steps tell which is higher.
    ahead, factors = min(first, key=lambda run: run[0].fun)
    steps = ahead.nit
    for _ in range(MOST_EXPLANATIONS):
        seen.begin(factors)
        best = climb_series(seen.value, ahead.x, space.bounds, max_steps, step=2e-3, nearby=seen.nearby, rtol=1e-7)
        steps += best.nit
        if best.fun >= -VERY_LOW:
            raise FitError(
                "the evidence is not finite at the Gaussian estimates. Look at the series for extreme values."
            )
        vector, ahead = best.x, best
        top = seen.value(vector)
        left = best_left_out(model, *space.split(vector), seen.factors)
        factors = left.factors
        if left.evidence < top + BETTER:
            break
        # Another explanation of the same steps is the likelier one; its parameters are others, too.
    curve = curvature(seen.nearby, vector, top, np.full(len(vector), 2e-2))
    # Status 2 is a line search that found nothing higher to the last digits.
    outcome = ended(bool(best.success) or best.status == 2, int(steps), max_steps)
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
    seen = SeenEvidence(space)
    low_end, high_end = ends_of(space)
    small_unit = small.unit / space.unit
    stretch = np.concatenate([small_unit, np.ones(len(space.fitted))])
    size = newton_matrix(start.curve / stretch[:, None] / stretch) * (length / STRETCH)

    value, nearby = seen.value, seen.nearby
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
    left = best_left_out(model, *space.split(vector), seen.factors)
    outcome = ended(converged, start.outcome.steps + steps, max_steps)
    return Best(vector, left.evidence, curve, outcome, "leave-one-out", left)


def best_left_out(model: Disturbances, params: np.ndarray, dofs: np.ndarray, factors: np.ndarray) -> LeftOut:
    """From `factors`, from scratch and with breaks for runs of outliers, the highest: steps can be explained in several ways."""
    from_start = lambda start: leave_out(model, params, dofs, start, tol=1e-9, keep=True)
    found = max((from_start(start) for start in (factors, None)), key=lambda one: one.evidence)
    others = [from_start(start) for start in with_plateaus(model, dofs, found)]
    return max([found, *others], key=lambda one: one.evidence)


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
    # Draws say nothing of tails that are several times as heavy, even where nothing else does.
    unit = np.minimum(1.0 / np.sqrt(np.maximum(np.diag(size), 1e-12)), MOST_UNIT)
    inverse = np.linalg.inv(size * unit[:, None] * unit)
    curved, turned = np.linalg.eigh(size * unit[:, None] * unit)
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
        # A direction in which the evidence is flat costs next to nothing, however far the noise leads along it.
        along = np.maximum(np.einsum("ie,ij,je->e", turned, noise, turned), 0.0)
        lost = 0.5 * float(np.sum(np.minimum(along / curved, curved * len(unit) * FARTHEST**2)))
        near = float(np.abs((vector - origin) / unit).max()) < 0.5 * FARTHEST
        if near and (lost <= MOST_LOST or number >= MOST_DRAWS):
            break
        number = min(4 * number, MOST_DRAWS) if near else number
    # Draws left out of a curvature bend it, so few are; where all count nearly alike, a part of them has the same.
    few = only[only < CURVATURE_DRAWS] if here.effective > 0.9 * len(here.log_weights) else only
    value = lambda at: float(logsumexp(log_weights(model, *space.split(np.clip(at, low, high)), draws, few)))
    curve = curvature(value, vector, value(vector), 0.3 * unit)
    # Too few draws can turn a flat direction upwards; the leave-one-out evidence knows it better then.
    curve = curve if np.linalg.eigvalsh(0.5 * (curve + curve.T)).max() < 0 else best.curve
    natural, dofs = space.split(vector)
    outcome = ended(converged, best.outcome.steps + steps, MOST_CHORDS)
    # At its own maximum an estimate flatters itself; fresh draws do not.
    left = best_left_out(model, natural, dofs, left.factors)
    draws = draw_precisions(left, free_steps(model, dofs), max(number, FINAL_DRAWS), random)
    here = estimate(model, natural, dofs, draws)
    if here.effective < LEAST_EFFECTIVE:
        return replace(best, tried_sampling=True, effective=here.effective)
    return Best(vector, here.value, curve, outcome, "sampled", left, draws, here, lost=lost)


def by_bound(space: Space, params: np.ndarray, max_steps: int) -> Best:
    """Maximise the mean-field bound over the parameters, with the precisions at their best for each."""
    model = space.model
    start = space.join(space.lifted(params), np.full(len(model.sites), START_DOFS[0]))
    held, top = meanfield.start_locals(model, space.split(start)[1]), -np.inf
    history: list[dict[str, Any]] = []

    def value(at: np.ndarray) -> float:
        nonlocal held, top
        found = meanfield.find_locals(model, *space.split(at), held)
        if found.bound >= top:
            held, top = found.locals, found.bound
            history.append({"step": len(history) + 1, "bound": top})
        return found.bound

    # At their best the precisions have no slope, so a few rounds are enough nearby.
    nearby = lambda at: meanfield.find_locals(model, *space.split(at), held, max_rounds=NEARBY_ROUNDS).bound
    best = climb_series(value, start, space.bounds, max_steps, step=2e-3, nearby=nearby, rtol=1e-8)
    converged = bool(best.success) or best.status == 2
    return _at_bound(space, best.x, held, ended(converged, int(best.nit), max_steps), history)


def em_of_bound(space: Space, params: np.ndarray, plain: float, max_steps: int, rtol: float) -> Best:
    """Climb the mean-field bound by variational EM as the paper has it: a round of the precisions, then the parameters.

    After every second step the two are extrapolated (Varadhan & Roland 2008), and what does not raise the bound is not taken. Tails on
    their way to the normal arrive there once a step gains little of what is missing to `plain`, the bound with normal tails.
    """
    model = space.model
    low, high = ends_of(space)

    def turn(vector: np.ndarray, held: meanfield.Locals) -> tuple[np.ndarray, meanfield.Locals, float]:
        dofs = space.split(vector)[1]
        found = meanfield.find_locals(model, *space.split(vector), held, max_rounds=1)
        laws = found.locals if found.converged else meanfield.update_precisions(model, dofs, found.smoothed)
        ahead = climb_series(lambda at: meanfield.bound_at(model, *space.split(at), laws), vector, space.bounds, 4)
        return ahead.x, laws, -float(ahead.fun)

    vector = space.join(space.lifted(params), np.full(len(model.sites), START_DOFS[0]))
    held, bound = meanfield.start_locals(model, space.split(vector)[1]), -np.inf
    history: list[dict[str, Any]] = []
    path, converged = [vector], False
    while len(history) < max_steps and not converged:
        before = bound
        if len(path) < 3:
            vector, held, bound = turn(vector, held)
            path.append(vector)
            converged = bound - before <= rtol * max(1.0, abs(bound))
            if not space.held and bound - before < SLOW * (plain - bound):
                vector = space.join(params, np.full(len(model.sites), meanfield.LARGEST_DOF))
                return _at_bound(space, vector, held, ended(True, len(history) + 1, max_steps), history)
        else:
            first = path[1] - path[0]
            second = path[2] - path[1] - first
            length = float(np.linalg.norm(first)) / max(float(np.linalg.norm(second)), 1e-300)
            far = path[0] + 2.0 * length * first + length**2 * second
            tried = turn(np.clip(far, low, high), held) if 1.0 < length < LONGEST else (vector, held, -np.inf)
            if tried[2] > bound:
                vector, held, bound = tried
            path = [vector]
        history.append({"step": len(history) + 1, "bound": bound})
    return _at_bound(space, vector, held, ended(converged, len(history), max_steps), history)


def _at_bound(
    space: Space, vector: np.ndarray, held: meanfield.Locals, outcome: Outcome, history: list[dict[str, Any]]
) -> Best:
    model = space.model
    natural, dofs = space.split(vector)
    found = meanfield.find_locals(model, natural, dofs, held)

    def profile(at: np.ndarray) -> float:
        return meanfield.find_locals(model, *space.split(at), found.locals, tol=1e-11).bound

    curve = curvature(profile, vector, profile(vector), np.full(len(vector), 1e-2))
    left = leave_out(model, natural, dofs, keep=True)
    return Best(vector, found.bound, curve, outcome, "bound", left, history=tuple(history))
