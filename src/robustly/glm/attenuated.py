r"""How are coefficients of 0/1 rows searched for beside a spread? By what the spread leaves of them.

With a larger spread of the log odds and larger coefficients 0/1 rows say nearly the same: they know
:math:`w / \sqrt{1 + (\lambda / 1.7)^2}`. In coefficients and spread the likelihood is a ridge; in what is left of the coefficients, and the
spread, it is a hill.
"""

from __future__ import annotations

import numpy as np

from robustly.fit.objective import Effort, Look, Problem

LOGISTIC = 1.7
"""A logistic curve is close to that of a normal with this standard deviation."""


class Attenuated(Problem):
    """A regression of 0/1 rows as a function of coefficients divided by their attenuation."""

    def __init__(self, inner: Problem, size: int) -> None:
        self.inner, self.size = inner, size
        self.cheaper, self.constrained = inner.cheaper, inner.constrained

    def look(self, vector: np.ndarray, effort: Effort = Effort.FULL) -> Look:
        size = self.size
        factor, first, second = attenuation(vector[size])
        v = vector[:size]
        value, slope, bent = self.inner.look(np.concatenate([factor * v, vector[size:]]), effort)
        curve = np.asarray(bent)
        inner, cross = curve[:size, :size], curve[:size, size]
        new_slope, new_curve = slope.copy(), curve.copy()
        new_slope[:size] = factor * slope[:size]
        new_slope[size] = slope[size] + first * v @ slope[:size]
        new_curve[:size, :size] = factor**2 * inner
        new_curve[:size, size] = factor * cross + factor * first * (inner @ v) + first * slope[:size]
        new_curve[size, :size] = new_curve[:size, size]
        new_curve[size, size] = (
            curve[size, size] + 2.0 * first * (v @ cross) + first**2 * (v @ inner @ v) + second * (v @ slope[:size])
        )
        return Look(value, new_slope, new_curve)


def attenuation(log_spread: float) -> tuple[float, float, float]:
    """By how much a spread of log odds shrinks coefficients, and two derivatives in the log of the spread."""
    square = float(np.exp(2.0 * log_spread)) / LOGISTIC**2
    factor = np.sqrt(1.0 + square)
    return factor, square / factor, square * (2.0 + square) / factor**3


def unattenuated(vector: np.ndarray, size: int) -> np.ndarray:
    """Coefficients as they are, from what is left of them under the spread that comes after them."""
    return np.concatenate([vector[:size] * attenuation(vector[size])[0], vector[size:]])
