r"""How are rows judged that are a place and an error? By a normal core, and one with heavy tails, with and without a wide part.

A row is seen through its squared error alone, a function of the place's parameters; everything beyond it is the same for every
model. So a model gives squared errors with their derivatives, in one pass, and three laws are fitted to them by NumPy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from scipy.special import expit, ndtr, ndtri, stdtr

from robustly.fit.newton import Function, Optimum, maximize
from robustly.fit.outcome import Stop
from robustly.result.jets import Jet, chosen, exp, log, log1p, log_add_exp, log_cosh_root, log_gamma, numbers, softplus
from robustly.result.outliers import (
    ENOUGH_ROWS,
    HEAVY_MARGIN,
    Candidate,
    Judgement,
    finite_curve,
    heavy_tails_doubt,
    judge,
    vectors_along,
)
from robustly.result.two_part import DOF, SHARE, STEP, VARIATION, WIDTHS_OF_MEASUREMENTS
from robustly.rows.store import ByUnit, Data, Rows, Sums

STOP = Stop(1e-10, 80)
START_WIDTH, START_VARIATION, START_DOF, START_SHARE = 7.0, 0.2, 4.0, 0.05
BELIEVED = {"width": WIDTHS_OF_MEASUREMENTS, "variation": VARIATION, "dof": DOF, "share": SHARE}
# Of more rows, as many are fitted first, and all from where these ended.
MANY = 1 << 14
# Below this, a heavy-tailed row in the middle between two shifts is written as a series.
SERIES = 1e-4
LOG_2 = float(np.log(2.0))
# Among what a law has beside its scale, in the order of their names.
VARIATION_PLACE = 1


Sum = tuple[float, np.ndarray, np.ndarray]
"""A number with its slope and curvature in the vector."""
NOTHING: Sum = (0.0, np.zeros(()), np.zeros(()))


class Seen(NamedTuple):
    """What a model says of some rows at one vector of the place's parameters."""

    square: np.ndarray
    """Squared errors, by row."""
    slope: np.ndarray
    """Their slopes in the vector: (rows, parameters)."""
    curve: np.ndarray
    """The sum over rows of `pull` times the curvature of the squared error."""
    level: Sum = NOTHING
    """What their log densities have besides that of the error, such as the logarithm of a scale by row: the weighted sum."""


Squares = Callable[[np.ndarray, Data, np.ndarray, np.ndarray], Seen]
"""(vector, data, weight and pull of some rows) -> what is seen there."""


@dataclass(frozen=True, eq=False)
class Measurements:
    """Rows as errors about a place, wherever they are: they are only ever seen chunk by chunk."""

    squares: Squares
    rows: Rows
    constrained: np.ndarray
    """Which parameters of the place are on a log-like scale."""
    starts: Sequence[tuple[np.ndarray, float]]
    """Vectors of the place with the scale to begin with, the narrowest first."""
    scale: float | None = None
    """The scale, where it is known."""
    prior: Callable[[np.ndarray], Sum] = lambda place: NOTHING
    """What is believed of the place."""

    def laws(self) -> list[ErrorLaw]:
        """A normal core by itself and with a wide part, and one with heavy tails."""
        return [
            ErrorLaw(self, "a core of Normal rows", (), self.starts[-1:]),
            ErrorLaw(self, "a core of Normal rows", ("width", "variation", "share"), self.starts),
            ErrorLaw(
                self,
                "a core with heavy tails (Student t)",
                ("width", "variation", "dof", "share"),
                self.starts[:1],
                HEAVY_MARGIN,
            ),
        ]

    def judge(self) -> Judgement:
        """The three laws, weighed."""
        found = [law.candidate() for law in self.laws()]
        return judge(found, heavy_tails_doubt(found))


@dataclass(frozen=True, eq=False)
class ErrorLaw:
    """A law of errors: its numbers are the log scale, unless it is known, and what `beside` names, on log or logit scales."""

    rows: Measurements
    name: str
    beside: tuple[str, ...]
    starts: Sequence[tuple[np.ndarray, float]]
    margin: float = 0.0

    def parts(self, square: np.ndarray, own: np.ndarray) -> tuple[Jet, Jet | None, Jet | None]:
        """Log densities in the core and in the wide part, and the log odds of the latter's share, without constants."""
        known = self.rows.scale
        q, *rest = numbers(1 + len(own), square, *own)
        scale = rest.pop(0) if known is None else numbers(1 + len(own), 0.0)[0] * 0.0 + float(np.log(known))
        if not self.beside:
            return _normal(q, scale), None, None
        width, variation, share = rest[0], rest[1], rest[-1]
        # Rows shifted to either side: see robustly.result.two_part.shifted_parts, of which this is a function of squares.
        wider, shift = scale + 0.5 * softplus(2.0 * (width + variation)), 2.0 * (width + scale)
        if "dof" in self.beside:
            return _student(q, scale, rest[2]), _student_either(q, wider, shift, rest[2]), share
        either = log_cosh_root(q * exp(shift - 4.0 * wider))
        return _normal(q, scale), _normal(q + exp(shift), wider) + either, share

    def density(self, square: np.ndarray, own: np.ndarray) -> Jet:
        core, wide, share = self.parts(square, own)
        if wide is None or share is None:
            return core
        return log_add_exp(core - softplus(share), wide - softplus(-share))

    def look(self, vector: np.ndarray) -> Sum:
        """The log posterior density at a vector, with derivatives."""
        size = len(self.rows.constrained)
        sums = self.rows.rows.map(_LookPass(self), vector).sums
        value, slope, curve = float(sums["value"]), np.array(sums["slope"]), np.array(sums["curve"])
        there, tilted, bent = self.rows.prior(vector[:size])
        value, slope[:size], curve[:size, :size] = value + there, slope[:size] + tilted, curve[:size, :size] + bent
        for place_of, (centre, width) in self._believed(size):
            away = (vector[place_of] - centre) / width
            value -= 0.5 * away**2 + float(np.log(width)) + 0.5 * float(np.log(2.0 * np.pi))
            slope[place_of] -= away / width
            curve[place_of, place_of] -= width**-2
        return float(value), slope, curve

    def of_rows(self, vector: np.ndarray, data: Data, weight: np.ndarray) -> Sum:
        """The log likelihood of some rows, with derivatives."""
        size = len(self.rows.constrained)
        place, own = vector[:size], vector[size:]
        with np.errstate(all="ignore"):  # Places too far out are told by values that are not finite.
            here = self.rows.squares(place, data, weight, np.zeros(len(weight)))
            law = self.density(here.square, own)
            pull = weight * law.slope[:, 0]
            there = self.rows.squares(place, data, weight, pull)
            value, slope, bent = there.level
            value = value + float(weight @ law.value)
            slope = np.concatenate([slope + here.slope.T @ pull, weight @ law.slope[:, 1:]])
            inner = here.slope.T @ (here.slope * (weight * law.curve[:, 0, 0])[:, None])
            cross = here.slope.T @ (weight[:, None] * law.curve[:, 0, 1:])
            curve = np.zeros((len(vector), len(vector)))
            curve[:size, :size] = inner + bent + there.curve
            curve[:size, size:], curve[size:, :size] = cross, cross.T
            curve[size:, size:] = np.einsum("n,nij->ij", weight, law.curve[:, 1:, 1:])
        return value, slope, curve

    def _believed(self, size: int) -> list[tuple[int, tuple[float, float]]]:
        first = size + (self.rows.scale is None)
        return [(first + k, BELIEVED[name]) for k, name in enumerate(self.beside)]

    def start(self, place: np.ndarray, scale: float) -> np.ndarray:
        begin = {
            "width": np.log(START_WIDTH),
            "variation": np.log(START_VARIATION),
            "dof": np.log(START_DOF),
            "share": np.log(START_SHARE / (1.0 - START_SHARE)),
        }
        own = [] if self.rows.scale is not None else [np.log(scale)]
        return np.concatenate([place, own, [begin[name] for name in self.beside]])

    def candidate(self) -> Candidate:
        """The law fitted from its starts, and the odds of every row."""
        rows = self.rows.rows
        begin = [self.start(*start) for start in self.starts]
        if len(rows) > MANY:
            begin = [self._sampled(MANY).highest(begin).vector]
        fitted = self._sampled(ENOUGH_ROWS) if len(rows) > 2 * ENOUGH_ROWS else self
        best = fitted.highest(begin)
        vector, (value, _, curve) = best.vector, fitted.look(best.vector)
        covariance, vector = np.linalg.pinv(-finite_curve(curve)), self._unbiased(vector)
        score = lambda: self._scores(vector, covariance)
        if not self.beside:
            return Candidate(f"{self.name} alone", value, curve, score=score, margin=self.margin)
        vectors, nodes, left = vectors_along(vector, covariance, len(vector) - len(self.beside) + VARIATION_PLACE)
        asked = [rows.map(_OddsPass(self, left), one).by_unit for one in vectors]
        odds, variance = (np.stack([one[name] for one in asked]) for name in ("odds", "variance"))
        share_there, name = float(expit(vector[-1])), f"{self.name} and a wide part"
        return Candidate(name, value, curve, odds, variance, share_there, score, self.margin, nodes)

    def _sampled(self, count: int) -> ErrorLaw:
        return replace(self, rows=replace(self.rows, rows=self.rows.rows.sample(count, 0)))

    def highest(self, starts: Sequence[np.ndarray]) -> Optimum:
        """The highest top that is climbed to."""
        own = len(starts[0]) - len(self.rows.constrained)
        problem = Function(self.look, np.concatenate([self.rows.constrained, np.ones(own, dtype=bool)]))
        tops = [maximize(problem, start, STOP) for start in starts]
        best = tops[0]
        for other in tops[1:]:
            if np.isfinite(other.value) and not other.value <= best.value + 1e-8:
                best = other
        return best

    def odds_of(
        self, vector: np.ndarray, covariance: np.ndarray, data: Data, weight: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Log odds of the wide part, of some rows, and their variance from the estimates."""
        size = len(self.rows.constrained)
        here = self.rows.squares(vector[:size], data, weight, np.zeros(len(weight)))
        core, wide, share = self.parts(here.square, vector[size:])
        assert wide is not None
        assert share is not None
        odds = wide - core + share
        slope = np.concatenate([odds.slope[:, :1] * here.slope, odds.slope[:, 1:]], axis=1)
        return odds.value, np.einsum("ni,ij,nj->n", slope, covariance, slope)

    def _unbiased(self, vector: np.ndarray) -> np.ndarray:
        """The vector as if the parameters of the place had cost no degrees of freedom: where rows are judged."""
        size = len(self.rows.constrained)
        count = (1.0 - (float(expit(vector[-1])) if self.beside else 0.0)) * self.rows.rows.total_weight
        if self.rows.scale is not None or count <= 2 * size:
            return vector
        return vector + np.where(np.arange(len(vector)) == size, 0.5 * np.log(count / (count - size)), 0.0)

    def _scores(self, vector: np.ndarray, covariance: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Two-sided normal scores of rows in the core, and their variance from the estimates."""
        found = self.rows.rows.map(_ScorePass(self, covariance), vector).by_unit
        return found["score"], found["variance"]

    def scores_of(
        self, vector: np.ndarray, covariance: np.ndarray, data: Data, weight: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """The scores of some rows, and their variance by differences in the vector."""
        size, known = len(self.rows.constrained), self.rows.scale

        def score(at: np.ndarray) -> np.ndarray:
            scale = float(np.exp(at[size])) if known is None else known
            away = np.sqrt(self.rows.squares(at[:size], data, weight, np.zeros(len(weight))).square) / scale
            tail = stdtr(np.exp(at[-2]), -away) if "dof" in self.beside else ndtr(-away)
            return -ndtri(np.maximum(tail, 1e-300))

        here = score(vector)
        slope = np.stack([(score(vector + step) - here) / STEP for step in STEP * np.eye(len(vector))], axis=1)
        return here, np.einsum("ni,ij,nj->n", slope, covariance, slope)


@dataclass(frozen=True, eq=False)
class _LookPass:
    """The log likelihood of a law over a chunk."""

    law: ErrorLaw

    def __call__(self, vector: np.ndarray, data: Data, weight: Any, state: Any) -> tuple[Sums, ByUnit, None]:
        value, slope, curve = self.law.of_rows(vector, data, weight)
        return {"value": value, "slope": slope, "curve": curve}, {}, None


@dataclass(frozen=True, eq=False)
class _OddsPass:
    """The odds of a chunk's rows."""

    law: ErrorLaw
    covariance: np.ndarray

    def __call__(self, vector: np.ndarray, data: Data, weight: Any, state: Any) -> tuple[Sums, ByUnit, None]:
        odds, variance = self.law.odds_of(vector, self.covariance, data, weight)
        return {}, {"odds": odds, "variance": variance}, None


@dataclass(frozen=True, eq=False)
class _ScorePass:
    """The scores of a chunk's rows."""

    law: ErrorLaw
    covariance: np.ndarray

    def __call__(self, vector: np.ndarray, data: Data, weight: Any, state: Any) -> tuple[Sums, ByUnit, None]:
        score, variance = self.law.scores_of(vector, self.covariance, data, weight)
        return {}, {"score": score, "variance": variance}, None


def _normal(q: Jet, scale: Jet) -> Jet:
    return q * exp(-2.0 * scale) * -0.5 - scale


def _student(q: Jet, scale: Jet, dof: Jet) -> Jet:
    half = 0.5 * exp(dof)
    constant = log_gamma(half + 0.5) - log_gamma(half) - 0.5 * log(half) - scale
    return constant - (half + 0.5) * log1p(q * exp(-2.0 * scale - log(2.0 * half)))


def _student_either(q: Jet, scale: Jet, shift: Jet, dof: Jet) -> Jet:
    r"""Half of a Student t shifted to one side and half to the other; `shift` is the log of its square.

    With :math:`A = \nu s^2 + q + u^2` and :math:`r = 2 u \sqrt q / A` it is :math:`A^{-h} [(1 - r)^{-h} + (1 + r)^{-h}]`, which is smooth
    in :math:`r^2`: where that is small, by its series.
    """
    half = 0.5 * exp(dof)
    power = half + 0.5
    base = log(2.0 * half) + 2.0 * scale
    total = log(exp(base) + q + exp(shift))
    constant = log_gamma(power) - log_gamma(half) - 0.5 * log(half) - scale + power * base - power * total
    z = 4.0 * q * exp(shift - 2.0 * total)
    small = power.value**2 * z.value < SERIES
    first = 0.5 * power * (power + 1.0) * z
    second = first * z * ((power + 2.0) * (power + 3.0)) * (1.0 / 12.0)
    third = second * z * ((power + 4.0) * (power + 5.0)) * (1.0 / 30.0)
    root = exp(0.5 * log(chosen(small, z * 0.0 + 0.25, z)))
    apart = log_add_exp(-power * log1p(-root), -power * log1p(root)) - LOG_2
    return constant + chosen(small, log1p(first + second + third), apart)
