r"""What do many rows with Student-t errors add up to? Evidence, slopes and curvatures in closed form, in one loop.

With :math:`z = (y - m)/s` and :math:`\ell = c_\nu - \log s - \tfrac{\nu+1}{2}\log(1 + z^2/\nu)`, all derivatives in the predictor,
:math:`\log s` and :math:`\log \nu` are made of :math:`1/(\nu + z^2)` and one logarithm. Differentiating row by row and multiplying
with the columns afterwards takes five times as long.
"""

from __future__ import annotations

import math

import numpy as np

from robustly._runtime.numba_loops import compiled
from robustly.model.column_sums import BLOCK, IN_ANY_ORDER, add_block, add_values, enter_block

# Halves of degrees of freedom from which gamma functions cancel, and a series has all digits.
NEARLY_NORMAL = 60.0


def student_numbers(log_scale: float, log_dof: float) -> tuple[float, ...]:
    """Log scale, log degrees of freedom, and the constant of Student's t, less the normal's, with two derivatives in the latter."""
    from scipy.special import digamma, gammaln, polygamma

    half = 0.5 * float(np.exp(log_dof))
    if half < NEARLY_NORMAL:
        value = gammaln(half + 0.5) - gammaln(half) - 0.5 * np.log(half)
        first = half * (digamma(half + 0.5) - digamma(half)) - 0.5
        second = half**2 * (polygamma(1, half + 0.5) - polygamma(1, half)) + 0.5
    else:
        terms = np.array([-1.0 / 8.0, 1.0 / 192.0, -1.0 / 640.0]) * half ** -np.array([1.0, 3.0, 5.0])
        value, first, second = (float(terms @ by) for by in ([1.0, 1.0, 1.0], [-1.0, -3.0, -5.0], [2.0, 12.0, 30.0]))
    return float(log_scale), float(log_dof), float(value), float(first), float(first + second)


@compiled()
def log_one_and(u: float) -> float:
    """``log1p`` for numbers above zero: a logarithm, and what rounding took from its argument. Half as long as the library's."""
    v = 1.0 + u
    return math.log(v) - ((v - 1.0) - u) / v


@compiled(fastmath=IN_ANY_ORDER)
def student_sums(
    matrix: np.ndarray,
    centre: np.ndarray,
    beta: np.ndarray,
    offset: np.ndarray,
    weight: np.ndarray,
    y: np.ndarray,
    trials: np.ndarray,
    log_scale: float,
    log_dof: float,
    constant: float,
    rise: float,
    bend: float,
    gram: np.ndarray,
    cross: np.ndarray,
    slopes: np.ndarray,
    curves: np.ndarray,
    value: np.ndarray,
) -> None:
    """Sums of rows with Student-t errors (the loop of a :class:`~robustly.fit.table_pass.LoopPass`)."""
    x, z, grown = np.ones((len(centre) + 1, BLOCK)), np.empty(BLOCK), np.empty(BLOCK)
    slope, curve = np.empty((3, BLOCK)), np.empty((6, BLOCK))
    dof, inverse = math.exp(log_dof), math.exp(-log_scale)
    more, level = dof + 1.0, constant - log_scale
    for start in range(0, len(matrix), BLOCK):
        count = min(BLOCK, len(matrix) - start)
        enter_block(matrix, centre, beta, offset, start, count, x, z)
        for i in range(count):
            z[i] = (y[start + i] - z[i]) * inverse
            grown[i] = log_one_and(z[i] * z[i] / dof)
        for i in range(count):
            share = 1.0 / (dof + z[i] * z[i])
            out, inside, pull = z[i] * z[i] * share, dof * share, z[i] * inverse * share
            slope[0, i] = more * pull
            slope[1, i] = more * out - 1.0
            slope[2, i] = rise - 0.5 * dof * grown[i] + 0.5 * more * out
            curve[0, i] = -more * inverse * inverse * (inside - out) * share
            curve[1, i] = -2.0 * more * pull * inside
            curve[2, i] = -2.0 * more * out * inside
            curve[3, i] = dof * pull * (1.0 - more * share)
            curve[4, i] = dof * out - more * out * inside
            curve[5, i] = bend - 0.5 * dof * grown[i] + dof * out - 0.5 * more * out * inside
        for i in range(count):
            grown[i] = level - 0.5 * more * grown[i]
        add_values(grown, weight, start, count, value)
        add_block(x, weight, start, count, slope, curve, gram, cross, slopes, curves)
