"""What are the first and second derivatives of a short formula, without compiling anything? Carried along with its value.

Laws that judge rows are short formulas of a few numbers, the same for every model. A :class:`Jet` holds such a number for every
row with its derivatives in the few, and arithmetic on it keeps all three. Compiling the same by JAX takes longer than a fit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import expit, gammaln, polygamma, psi


@dataclass(frozen=True, eq=False)
class Jet:
    """A number by row, its slope (rows, numbers) and its curvature (rows, numbers, numbers); one row stands for all."""

    value: np.ndarray
    slope: np.ndarray
    curve: np.ndarray

    def of(self, value: np.ndarray, first: np.ndarray, second: np.ndarray) -> Jet:
        """A function of this number, from its value and its first two derivatives here."""
        with np.errstate(over="ignore", invalid="ignore"):  # rows beyond floating point: their curve is refused by name
            outer = self.slope[:, :, None] * self.slope[:, None, :]
            curve = first[:, None, None] * self.curve + second[:, None, None] * outer
            return Jet(value, first[:, None] * self.slope, curve)

    def __add__(self, other: Any) -> Jet:
        if not isinstance(other, Jet):
            return Jet(self.value + other, self.slope, self.curve)
        return Jet(self.value + other.value, self.slope + other.slope, self.curve + other.curve)

    def __mul__(self, other: Any) -> Jet:
        if not isinstance(other, Jet):
            return Jet(self.value * other, self.slope * other, self.curve * other)
        a, b = self.value[:, None], other.value[:, None]
        cross = self.slope[:, :, None] * other.slope[:, None, :]
        curve = a[:, None] * other.curve + b[:, None] * self.curve + cross + np.swapaxes(cross, 1, 2)
        return Jet(self.value * other.value, a * other.slope + b * self.slope, curve)

    __radd__, __rmul__ = __add__, __mul__

    def __neg__(self) -> Jet:
        return self * -1.0

    def __sub__(self, other: Any) -> Jet:
        return self + (-other)


def numbers(count: int, *values: Any) -> list[Jet]:
    """The numbers themselves: arrays by row, or one value for all rows, as the first of `count`."""
    found = []
    for place, value in enumerate(values):
        array = np.atleast_1d(np.asarray(value, dtype=float))
        slope = np.zeros((1, count))
        slope[0, place] = 1.0
        found.append(Jet(array, slope, np.zeros((1, count, count))))
    return found


def exp(x: Jet) -> Jet:
    value = np.exp(x.value)
    return x.of(value, value, value)


def log(x: Jet) -> Jet:
    slope = 1.0 / x.value
    with np.errstate(over="ignore"):  # as in `of`
        return x.of(np.log(x.value), slope, -(slope**2))


def log1p(x: Jet) -> Jet:
    slope = 1.0 / (1.0 + x.value)
    return x.of(np.log1p(x.value), slope, -(slope**2))


def softplus(x: Jet) -> Jet:
    """log(1 + exp(x))."""
    chance = expit(x.value)
    return x.of(np.logaddexp(x.value, 0.0), chance, chance * (1.0 - chance))


def log_cosh_root(x: Jet) -> Jet:
    """log cosh √x, with its slope tanh(√x) / (2√x); near zero by its series."""
    small = x.value < 1e-3
    z, near = np.where(small, 1.0, x.value), np.where(small, x.value, 0.0)
    root = np.sqrt(z)
    tanh, value = np.tanh(root), root + np.log1p(np.exp(-2.0 * root)) - np.log(2.0)
    slope = tanh / (2.0 * root)
    bend = ((1.0 - tanh**2) - tanh / root) / (4.0 * z)
    series = (0.5 - near / 12.0 + near**2 / 45.0 - 17.0 * near**3 / 2520.0) * near
    first = 0.5 - near / 6.0 + near**2 / 15.0 - 17.0 * near**3 / 630.0
    second = -1.0 / 6.0 + 2.0 * near / 15.0 - 17.0 * near**2 / 210.0
    return x.of(np.where(small, series, value), np.where(small, first, slope), np.where(small, second, bend))


def chosen(which: np.ndarray, here: Jet, there: Jet) -> Jet:
    """By row, one number where `which` is true, else the other."""
    rows = max(len(which), len(here.value), len(there.value))
    pick = np.broadcast_to(which, rows)
    return Jet(
        np.where(pick, here.value, there.value),
        np.where(pick[:, None], here.slope, there.slope),
        np.where(pick[:, None, None], here.curve, there.curve),
    )


def log_gamma(x: Jet) -> Jet:
    return x.of(gammaln(x.value), psi(x.value), polygamma(1, x.value))


def log_add_exp(x: Jet, y: Jet) -> Jet:
    """log(exp(x) + exp(y))."""
    return y + softplus(x - y)
