r"""How is a smooth objective climbed? Newton steps with a curvature that is made safe, one pass a step.

The objective is whatever adds up over rows; it is asked only for its value, slope and curvature at a point, so the same
climb serves rows in memory, on disk or on a cluster, and every model in the package.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.linalg import lapack

from robustly._runtime.threads import on_one_thread
from robustly.fit.objective import Effort, Look, Optimum, Problem
from robustly.fit.outcome import Outcome, Stop
from robustly.model.wide_curvature import Curve, WideCurvature

# (vector, expected gain) -> why to stop, or None to go on
Watch = Callable[[np.ndarray, float], Outcome | None]
Report = Callable[[dict[str, Any]], None]
# (value, curvature, expected gain) -> why to stop, or None to go on
Hopeless = Callable[[float, Curve, float], Outcome | None]

# A step on a log scale at most doubles or halves a parameter; beyond that the quadratic picture is not to be trusted.
LEAP = 0.7
SHY = 0.6  # where it has no top at all

# Once this share of the gain that ends a climb is left, a last step would move no estimate by as much as 1e-4 of its
# standard error, and for most problems by far less.
NEGLIGIBLE = 1e-5

# The final Newton step is accepted without re-evaluating when it is this small (in shares of the gain that ends a climb)
# and, at the pace of the steps before, the gain remaining after it is below the tolerance.
ACCEPTED = 10.0
# Of an objective as large as this, passes are long and rows many: a final step of some tenth of a standard error changes curvatures by
# less than 1e-4 of themselves, and as Newton's steps go, what remains after it is the square of what it is of the one before.
LARGE, ACCEPTED_OF_LARGE = 1e5, 300.0

# With more than this to gain, in units of the square root of the objective, the next look is far from the last: of n rows,
# a step that promises much less than √n nats leaves less than one.
FAR_OFF = 0.3

# A step after which less than this share of the expected gain is left makes the next one without a new curvature.
FAST = 0.5

# How often a step is cut to a third before the climb counts as stalled.
SHORTENINGS = 12
SHORTEST = 1e-12
CLIFF = 100.0

# What the shortest of these steps changes is the objective's rounding: a small gain of no more than so many times that is
# not there to be had.
ROUNDED = 30.0
SMALL_GAIN = 1e-3

# A place without slope is a saddle if some direction curves upwards by this share of what its entries do alone. Less than
# half a nat within FAR of it is not worth leaving for.
RISING = 1e-3
FAR = 10.0


class Function(Problem):
    """A function of a vector that gives its value, slope and curvature, as a problem."""

    def __init__(
        self,
        function: Callable[[np.ndarray], tuple[float, np.ndarray, np.ndarray]],
        constrained: np.ndarray | None = None,
    ) -> None:
        self.function, self.constrained = function, constrained  # type: ignore[assignment]

    def look(self, vector: np.ndarray, effort: Effort = Effort.FULL) -> Look:
        return Look(*self.function(vector))


def maximize(
    problem: Problem,
    start: np.ndarray,
    stop: Stop = Stop(),  # noqa: B008
    *,
    watch: Watch | None = None,
    report: Report | None = None,
    hopeless: Hopeless | None = None,
) -> Optimum:
    """Maximise a problem's objective from `start`.

    Non-finite values mark places to keep away from. Where the problem has a coarser rule to offer it is used while the top
    is far off; where slopes alone are cheaper, the curvature is carried along by secant updates while steps converge fast.
    Where the climb ends all is looked at in full.

    Args:
        watch: called after every step with the vector and the gain still expected; an outcome ends the climb.
        report: called with every history entry, for progress bars.
        hopeless: called after every step that was looked at in full, of climbs that matter only if their top is high enough.
    """
    with np.errstate(over="ignore", invalid="ignore"):  # rows beyond floating point: told by how the climb ends
        newton = Newton(problem, start, stop, watch, report, hopeless)
        while newton.optimum is None:
            newton.step()
    return newton.optimum


class Newton:
    """A climb under way: :meth:`step` until there is an `optimum`."""

    def __init__(
        self,
        problem: Problem,
        start: np.ndarray,
        stop: Stop,
        watch: Watch | None = None,
        report: Report | None = None,
        hopeless: Hopeless | None = None,
    ) -> None:
        self.problem, self.stop, self.watch, self.report, self.hopeless = problem, stop, watch, report, hopeless
        self.began = time.perf_counter()
        self.history: list[dict[str, Any]] = []
        self.optimum: Optimum | None = None
        self.steps = 0
        self.x = np.array(start, dtype=float)
        # Whether looks are rough, the value is one of those made in full, the curvature is the objective's own, and the
        # last step went as well as Newton's should.
        self.far = problem.cheaper is Effort.ROUGH
        self.measured = self.exact = True
        self.fast = False
        self.rounding = 0.0
        self._here(self._look(self.x, problem.cheaper if self.far else Effort.FULL))
        if not np.isfinite(self.value) or not np.all(np.isfinite(self.slope)):
            self._note(self.value, np.nan, 0.0)
            self._end(Outcome("bad_start", "the start has no finite evidence."), looked=True)
            return
        self._aim()
        self._note(self.value, self.gain, 0.0)

    @property
    def _target(self) -> float:
        """The gain below which a climb ends."""
        return self.stop.rtol * max(1.0, 1e-3 * abs(self.value))

    def _look(self, x: np.ndarray, effort: Effort) -> Look:
        return self.problem.look(x, effort)

    def _here(self, look: Look) -> None:
        self.value, self.slope = look.value, look.slope
        if look.curve is not None:
            self.curve = look.curve

    def _aim(self) -> None:
        self.ahead = ascent(self.slope, self.curve, self.problem.constrained)
        self.gain = 0.5 * float(self.slope @ self.ahead)

    def _note(self, value: float, gain: float, size: float) -> None:
        entry = {
            "pass": len(self.history) + 1,
            "value": value,
            "expected_gain": gain,
            "step": size,
            "seconds": time.perf_counter() - self.began,
        }
        self.history.append(entry)
        if self.report is not None:
            self.report(entry)

    def _end(self, outcome: Outcome, looked: bool = False) -> None:
        if not looked and (self.far or not self.exact):
            look = self._look(self.x, Effort.FULL)
            self.curve = look.curve  # type: ignore[assignment]
            if self.far:
                self._here(look)
        self.optimum = Optimum(self.x, self.value, self.slope, self.curve, self.history, outcome)

    def _converged(self) -> Outcome:
        passes = len(self.history)
        return Outcome("converged", f"the evidence is at its top after {passes} passes.", passes)

    def step(self) -> None:
        """Look one step ahead, and go there if it is higher."""
        if self.steps >= self.stop.max_steps:
            text = (
                f"{self.stop.max_steps} steps were not enough; the last one moved the parameters by "
                f"{self.history[-1]['step']:.1e} and a gain of {self.gain:.1e} was still expected. Raise max_steps, or fix "
                "a parameter."
            )
            self._end(Outcome("max_steps", text, len(self.history)))
            return
        self.steps += 1
        if self.far and self.gain <= FAR_OFF * np.sqrt(max(1.0, abs(self.value))):
            # What was seen roughly is a rough measure of what is seen well.
            self.far, self.measured, self.value = False, False, self.value - self.gain - 1.0
        target, last = self._target, self.gain <= self._target
        effort = Effort.ROUGH if self.far else Effort.FULL
        if self.problem.cheaper is Effort.SLOPE and self.fast and not last:
            effort = Effort.SLOPE
        tried = self._advance(self.ahead, effort, final=last)
        if tried is None:
            self._no_way_up(last)
            return
        x, look, length = tried
        self.measured, self.exact = True, look.curve is not None
        if not self.exact:
            self.curve = secant(np.asarray(self.curve), x - self.x, look.slope - self.slope)
        self.x = x
        self._here(look)
        before = self.gain
        self._aim()
        gain = self.history[-1]["expected_gain"] = self.gain
        # Accept the final Newton step without re-evaluating when the predicted remaining gain is below the tolerance.
        large = abs(self.value) >= LARGE
        remaining = gain * (gain / before) ** (2 if large else 1) if before > 0 else gain
        accepted = gain <= (ACCEPTED_OF_LARGE if large else ACCEPTED) * target and remaining <= NEGLIGIBLE * target
        begun = not self.far and gain < FAST * before and gain * (gain / before) ** 2 <= self.stop.remaining
        sure = self.exact and length == 1.0 and (accepted or begun)
        if sure or (last and gain <= max(target, 1e-3 * before)) or gain <= NEGLIGIBLE * target:
            if self._leaves_saddle():
                return
            if not sure:
                self._end(self._converged())
                return
            slope = self.slope + self.curve @ self.ahead
            self.optimum = Optimum(
                x + self.ahead, self.value + gain, slope, self.curve, self.history, self._converged(), before=x
            )
            return
        self.fast = length == 1.0 and gain < FAST * before
        ended = None if self.watch is None else self.watch(x, gain)
        if ended is None and self.hopeless is not None and self.exact and not self.far:
            ended = self.hopeless(self.value, self.curve, gain)
        if ended is not None:
            self._end(ended)

    def _no_way_up(self, last: bool) -> None:
        """No shorter step helped: look again in full where that was not done, else this is the top, or a stall."""
        if self.far or not self.measured or not (self.exact or last):
            self.far, self.measured, self.exact, self.fast = False, True, True, False
            self._here(self._look(self.x, Effort.FULL))
            self._aim()
            return
        noise = max(1e-6, 1e-11 * abs(self.value), min(SMALL_GAIN, ROUNDED * self.rounding))
        if last or self.gain < noise:
            if not self._leaves_saddle():
                self._end(self._converged())
            return
        text = (
            f"no step from here raises the objective, though a gain of {self.gain:.1e} is expected. "
            "Look at the data for extreme values, or give other start values."
        )
        self._end(Outcome("stalled", text, len(self.history)))

    def _leaves_saddle(self) -> bool:
        """Step off a place that has no slope but curves upwards; False at a top."""
        if not self.exact:
            self.curve, self.exact = self._look(self.x, Effort.FULL).curve, True  # type: ignore[assignment]
        rise = upward(self.curve, self.problem.constrained)
        if rise is None:
            return False
        tried = self._advance(rise, Effort.FULL, final=False)
        if tried is None or tried[1].value <= self.value + self._target:
            self._look(self.x, Effort.FULL)  # problems carry along what they last looked at
            return False
        self.x = tried[0]
        self._here(tried[1])
        self.fast = False
        self._aim()
        return True

    def _advance(self, step: np.ndarray, effort: Effort, *, final: bool) -> tuple[np.ndarray, Look, float] | None:
        """Try a step, then shorter ones; None when none helps."""
        noise = 1e-13 * max(1.0, abs(self.value))
        expected = float(self.slope @ step)
        length, tries = 1.0, 1 if final else SHORTENINGS
        # A cut step that promises no more than rounding could not be told from standing still, and would be taken for ever.
        while tries > 0 and length > SHORTEST and (length == 1.0 or length * expected > noise):
            ahead = self.x + length * step
            look = self._look(ahead, effort)
            self._note(look.value, np.nan, float(np.max(np.abs(length * step), initial=0.0)))
            finite = np.isfinite(look.value) and np.all(np.isfinite(look.slope))
            finite = finite and (look.curve is None or _is_finite(look.curve))
            if finite and look.value >= self.value + 1e-4 * length * expected - noise:
                return ahead, look, length
            if finite:
                self.rounding = abs(look.value - self.value)
            length *= 0.3
            # A step that fell off a cliff is no try: counts of e³⁵ beside zeros make first steps of 1e9 where 1 would do.
            if final or (finite and look.value > self.value - CLIFF * expected):
                tries -= 1
        return None


def secant(curve: np.ndarray, moved: np.ndarray, change: np.ndarray) -> np.ndarray:
    """The curvature after a step, corrected so that it explains the change of slope (the BFGS update)."""
    bent, along = -change, -curve @ moved
    fits, was = float(bent @ moved), float(along @ moved)
    if fits <= 1e-8 * abs(was) or was <= 0:
        return curve
    return curve - np.outer(bent, bent) / fits + np.outer(along, along) / was


def ascent(slope: np.ndarray, curve: Curve, constrained: np.ndarray | None) -> np.ndarray:
    """A Newton step; directions of wrong or no curvature are climbed as if they had it, steps on log scales are capped."""
    if slope.size == 0:
        return slope
    if isinstance(curve, WideCurvature):
        size = curve.size
        held = curve.eliminated(slope[:size])
        if held is not None:
            first, across = held
            rest, leap = _newton(-curve.of_shared(across), slope[size:] + curve.mixed.T @ first)
            return _capped(np.concatenate([first + across @ rest, rest]), constrained, leap)
    step, leap = _newton(np.asarray(curve), slope)
    return _capped(step, constrained, leap)


def _newton(curve: np.ndarray, slope: np.ndarray) -> tuple[np.ndarray, float]:
    """A step to the top, and how far it is trusted."""
    if slope.size == 0:
        return slope, LEAP
    unit, matrix = _in_units(curve)
    step, leap = _solve(matrix, unit * slope)
    return unit * step, leap


@on_one_thread
def upward(curve: Curve, constrained: np.ndarray | None) -> np.ndarray | None:
    """A step of half a nat along the direction that curves upwards most; None where none does, or only from afar."""
    if len(curve) == 0 or (isinstance(curve, WideCurvature) and curve.has_top(RISING)):
        return None
    unit, matrix = _in_units(np.asarray(curve))
    shifted = matrix.copy()
    shifted[np.diag_indices_from(shifted)] += RISING
    if not lapack.dpotrf(shifted.T, overwrite_a=True)[1]:
        return None
    values, vectors = np.linalg.eigh(matrix)
    step = unit * vectors[:, 0] / np.sqrt(-values[0])
    return _capped(step, constrained, LEAP) if np.max(np.abs(step)) <= FAR else None


def _is_finite(curve: Curve) -> bool:
    return curve.is_finite if isinstance(curve, WideCurvature) else bool(np.isfinite(curve).all())


def _in_units(curve: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Units of the entries, and minus the curvature in these units."""
    # Scaling by the diagonal first keeps the floor on eigenvalues meaningful when units differ by many magnitudes.
    size = np.abs(curve.diagonal())
    if not (size.min() > 1e-200 and size.max() < np.inf):
        size = np.where(np.isfinite(size) & (size > 1e-200), size, 1.0)
    unit = 1.0 / np.sqrt(size)
    matrix = curve * -unit[:, None]
    matrix *= unit
    return unit, matrix if np.isfinite(matrix.sum()) else np.where(np.isfinite(matrix), matrix, 0.0)


@on_one_thread
def _solve(matrix: np.ndarray, slope: np.ndarray) -> tuple[np.ndarray, float]:
    """The step to the top of a quadratic picture, and how far it is trusted: less where the picture has no top."""
    # What LAPACK reads down columns lies along rows here: its upper half of the transpose is our lower half, in place.
    factor, step, failed = lapack.dposv(matrix.T, slope, lower=0)
    if not failed and factor.diagonal().min() > 1e-6:
        return step, LEAP
    values, vectors = np.linalg.eigh(matrix)
    return vectors @ ((vectors.T @ slope) / np.maximum(np.abs(values), 1e-12)), SHY


def _capped(step: np.ndarray, constrained: np.ndarray | None, leap: float) -> np.ndarray:
    longest = float(np.max(np.abs(step[constrained]), initial=0.0)) if constrained is not None else 0.0
    return step * (leap / longest) if longest > leap else step
