r"""How is a smooth objective climbed? Newton steps with a curvature that is made safe, one pass a step.

The objective is whatever adds up over rows; it is asked only for its value, slope and curvature at a point, so the same
climb serves rows in memory, on disk or on a cluster, and every model in the package.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy.linalg import lapack

from robustly.fit.outcome import Outcome, Stop

# vector -> (value, slope, curvature)
Objective = Callable[[np.ndarray], tuple[float, np.ndarray, np.ndarray]]
# vector -> (value, slope)
# (vector, expected gain) -> why to stop, or None to go on
Slopes = Callable[[np.ndarray], tuple[float, np.ndarray]]
Watch = Callable[[np.ndarray, float], Outcome | None]

# A step on a log scale at most doubles or halves a parameter; beyond that the quadratic picture is not to be trusted.
LEAP = 0.7
SHY = 0.6  # where it has no top at all

# Once this share of the gain that ends a climb is left, a last step would move no estimate by as much as 1e-4 of its
# standard error, and for most problems by far less.
SETTLED = 1e-5

# A last step this small (in shares of the gain that ends a climb) is taken unseen if, at the pace of the steps before, it
# leaves nothing: a pass that would tell what is known.
UNSEEN = 10.0

# With more than this to gain, in units of the square root of the objective, the next look is far from the last: of n rows,
# a step that promises much less than √n nats leaves less than one.
FAR_OFF = 0.3

# A step after which less than this share of the expected gain is left makes the next one without a new curvature.
FAST = 0.5

# How often a step is cut to a third before the climb counts as stalled.
SHORTENINGS = 12
SHORTEST = 1e-12
CLIFF = 100.0

# A place without slope is a saddle if some direction curves upwards by this share of what its entries do alone. Less than
# half a nat within FAR of it is not worth leaving for.
RISING = 1e-3
FAR = 10.0


@dataclass(frozen=True)
class Optimum:
    """Where a climb ended."""

    vector: np.ndarray
    value: float
    slope: np.ndarray
    curve: np.ndarray
    history: list[dict[str, Any]] = field(repr=False)
    outcome: Outcome
    before: np.ndarray | None = None
    """Where the objective was last looked at, if that was not here but one negligible step before."""

    @property
    def seen(self) -> np.ndarray:
        return self.vector if self.before is None else self.before


def newton(
    objective: Objective,
    start: np.ndarray,
    stop: Stop = Stop(),  # noqa: B008
    *,
    rough: Objective | None = None,
    slopes: Slopes | None = None,
    walled: np.ndarray | None = None,
    watch: Watch | None = None,
    report: Callable[[dict[str, Any]], None] | None = None,
) -> Optimum:
    """Maximise `objective` from `start`.

    Args:
        objective: gives value, slope and curvature; non-finite values mark places to keep away from.
        stop: tolerance and step limit.
        rough: gives the same less exactly, where that is cheaper; looked at while the top is far off.
        slopes: gives value and slope alone, where that is cheaper. While steps converge fast the curvature is then carried
            along by secant updates instead of computed anew; where the climb ends it is always computed.
        walled: entries on a log-like scale, whose steps are capped.
        watch: called after every step with the vector and the gain still expected; an outcome ends the climb.
        report: called with every history entry, for progress bars.
    """
    began = time.perf_counter()
    history: list[dict[str, Any]] = []

    def note(value: float, gain: float, size: float) -> None:
        entry = {
            "pass": len(history) + 1,
            "value": value,
            "expected_gain": gain,
            "step": size,
            "seconds": time.perf_counter() - began,
        }
        history.append(entry)
        if report is not None:
            report(entry)

    x = np.array(start, dtype=float)
    far = rough is not None
    at_first = objective if rough is None else rough
    value, slope, curve = at_first(x)
    if not np.isfinite(value) or not np.all(np.isfinite(slope)):
        note(value, np.nan, 0.0)
        return Optimum(x, value, slope, curve, history, Outcome("bad_start", "the start has no finite evidence."))
    step = ascent(slope, curve, walled)
    gain = 0.5 * float(slope @ step)
    note(value, gain, 0.0)
    fast = False
    exact = measured = True

    def end(outcome: Outcome) -> Optimum:
        at = objective(x) if far else (value, slope, curve if exact else objective(x)[2])
        return Optimum(x, *at, history, outcome)

    def leaves_saddle() -> bool:
        """Step off a place that has no slope but curves upwards; False at a top."""
        nonlocal x, value, slope, curve, exact, fast, step, gain
        if not exact:
            curve, exact = objective(x)[2], True
        rise = upward(curve, walled)
        if rise is None:
            return False
        tried = _advance(objective, x, value, slope, rise, note, final=False)
        if tried is None or tried[1] <= value + target:
            objective(x)  # objectives carry along what they last looked at
            return False
        x, value, slope, curve, _ = tried
        step, fast = ascent(slope, curve, walled), False
        gain = 0.5 * float(slope @ step)
        return True

    for _ in range(stop.max_steps):
        target = stop.rtol * max(1.0, 1e-3 * abs(value))
        if far and gain <= FAR_OFF * np.sqrt(max(1.0, abs(value))):
            # What was seen roughly is a rough measure of what is seen well.
            far, value = False, value - gain - 1.0
            measured = False
        last = gain <= target
        look = objective if slopes is None or last or not fast else _without_curvature(slopes)
        tried = _advance(rough if far else look, x, value, slope, step, note, final=last)
        if tried is None:
            if far or not measured or not (exact or last):
                far, measured, exact, fast = False, True, True, False
                value, slope, curve = objective(x)
                step = ascent(slope, curve, walled)
                gain = 0.5 * float(slope @ step)
                continue
            noise = 1e-11 * max(1.0, abs(value))
            if last or gain < max(1e-6, noise):
                if leaves_saddle():
                    continue
                return end(_converged(history))
            text = (
                f"no step from here raises the objective, though a gain of {gain:.1e} is expected. "
                "Look at the data for extreme values, or give other start values."
            )
            return end(Outcome("stalled", text, len(history)))
        ahead, value, slope_ahead, curve_ahead, length = tried
        measured = True
        exact = curve_ahead is not None
        curve = curve_ahead if exact else secant(curve, ahead - x, slope_ahead - slope)
        x, slope = ahead, slope_ahead
        step = ascent(slope, curve, walled)
        before, gain = gain, 0.5 * float(slope @ step)
        history[-1]["expected_gain"] = gain
        sure = exact and length == 1.0 and gain <= UNSEEN * target and gain * gain <= SETTLED * target * before
        if sure or (last and gain <= max(target, 1e-3 * before)) or gain <= SETTLED * target:
            if leaves_saddle():
                continue
            if not sure:
                return end(_converged(history))
            top = _converged(history)
            return Optimum(x + step, value + gain, slope + curve @ step, curve, history, top, before=x)
        fast = length == 1.0 and gain < FAST * before
        ended = watch(x, gain) if watch is not None else None
        if ended is not None:
            return end(ended)
    text = (
        f"{stop.max_steps} steps were not enough; the last one moved the parameters by {history[-1]['step']:.1e} and a "
        f"gain of {gain:.1e} was still expected. Raise max_steps, or fix a parameter."
    )
    return end(Outcome("max_steps", text, len(history)))


def _without_curvature(slopes: Slopes) -> Callable[[np.ndarray], tuple[float, np.ndarray, None]]:
    return lambda x: (*slopes(x), None)


def secant(curve: np.ndarray, moved: np.ndarray, change: np.ndarray) -> np.ndarray:
    """The curvature after a step, corrected so that it explains the change of slope (the BFGS update)."""
    bent, along = -change, -curve @ moved
    fits, was = float(bent @ moved), float(along @ moved)
    if fits <= 1e-8 * abs(was) or was <= 0:
        return curve
    return curve - np.outer(bent, bent) / fits + np.outer(along, along) / was


def ascent(slope: np.ndarray, curve: np.ndarray, walled: np.ndarray | None) -> np.ndarray:
    """A Newton step; directions of wrong or no curvature are climbed as if they had it, steps on log scales are capped."""
    if slope.size == 0:
        return slope
    unit, matrix = _in_units(curve)
    step, leap = _solve(matrix, unit * slope)
    return _capped(unit * step, walled, leap)


def upward(curve: np.ndarray, walled: np.ndarray | None) -> np.ndarray | None:
    """A step of half a nat along the direction that curves upwards most; None where none does, or only from afar."""
    if curve.size == 0:
        return None
    unit, matrix = _in_units(curve)
    values, vectors = np.linalg.eigh(matrix)
    if values[0] > -RISING:
        return None
    step = unit * vectors[:, 0] / np.sqrt(-values[0])
    return _capped(step, walled, LEAP) if np.max(np.abs(step)) <= FAR else None


def _in_units(curve: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Units of the entries, and minus the curvature in these units."""
    # Scaling by the diagonal first keeps the floor on eigenvalues meaningful when units differ by many magnitudes.
    size = np.abs(curve.diagonal())
    if not (size.min() > 1e-200 and size.max() < np.inf):
        size = np.where(np.isfinite(size) & (size > 1e-200), size, 1.0)
    unit = 1.0 / np.sqrt(size)
    matrix = -0.5 * (curve + curve.T) * unit[:, None] * unit
    return unit, matrix if np.isfinite(matrix.sum()) else np.where(np.isfinite(matrix), matrix, 0.0)


def _solve(matrix: np.ndarray, slope: np.ndarray) -> tuple[np.ndarray, float]:
    """The step to the top of a quadratic picture, and how far it is trusted: less where the picture has no top."""
    lower, step, failed = lapack.dposv(matrix, slope, lower=1)
    if not failed and lower.diagonal().min() > 1e-6:
        return step, LEAP
    values, vectors = np.linalg.eigh(matrix)
    return vectors @ ((vectors.T @ slope) / np.maximum(np.abs(values), 1e-12)), SHY


def _capped(step: np.ndarray, walled: np.ndarray | None, leap: float) -> np.ndarray:
    longest = float(np.max(np.abs(step[walled]), initial=0.0)) if walled is not None else 0.0
    return step * (leap / longest) if longest > leap else step


def _advance(look, x, value, slope, step, note, *, final):  # type: ignore[no-untyped-def]
    """Try the step, then shorter ones; None when none helps."""
    noise = 1e-13 * max(1.0, abs(value))
    expected = float(slope @ step)
    length, tries = 1.0, 1 if final else SHORTENINGS
    while tries > 0 and length > SHORTEST:
        ahead = x + length * step
        there, slope_there, curve_there = look(ahead)
        note(there, np.nan, float(np.max(np.abs(length * step), initial=0.0)))
        finite = np.isfinite(there) and np.all(np.isfinite(slope_there))
        finite = finite and (curve_there is None or np.all(np.isfinite(curve_there)))
        if finite and there >= value + 1e-4 * length * expected - noise:
            return ahead, there, slope_there, curve_there, length
        length *= 0.3
        # A step that fell off a cliff is no try: counts of e³⁵ beside zeros make first steps of 1e9 where 1 would do.
        if final or (finite and there > value - CLIFF * expected):
            tries -= 1
    return None


def _converged(history: list[dict[str, Any]]) -> Outcome:
    return Outcome("converged", f"the evidence is at its top after {len(history)} passes.", len(history))
