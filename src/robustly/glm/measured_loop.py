r"""What do many measurements in two parts add up to? Evidence, slopes and curvatures in closed form, in one loop.

The mathematics is that of :mod:`robustly.glm.measured_parts`, written out: each of the three parts is a density of an error and a
log scale (and of log degrees of freedom) that move with a row's numbers at rates that all rows share. A block of rows goes through
one part after the other. Compiled from there row by row, the same sums take two to three times as long.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from robustly._runtime.numba_loops import compiled
from robustly.glm.student_loop import log_one_and, student_numbers
from robustly.model.column_sums import BLOCK, IN_ANY_ORDER, add_block, add_values, enter_block

# Core, shifted above it, shifted below it.
PARTS = 3
# A row that one part makes impossible must not stop the search.
IMPOSSIBLE = -1e300


def measured_numbers(phi: Sequence[float]) -> tuple[float, ...]:
    """What :func:`measured_sums` takes of the numbers that all rows share; degrees of freedom of a normal core are none."""
    scale, *dof, variation, width, share = (float(one) for one in phi)
    tails = student_numbers(scale, dof[0])[1:] if dof else (math.inf, 0.0, 0.0, 0.0)
    return scale, *tails, variation, width, share


@compiled(fastmath=IN_ANY_ORDER)
def error_densities(
    off: np.ndarray,
    count: int,
    log_scale: float,
    dof: float,
    constant: float,
    rise: float,
    bend: float,
    height: np.ndarray,
    found: np.ndarray,
) -> None:
    """Log densities of errors, and in `found` (derivative, row) their slopes and curvatures in error, log scale and log dof.

    These come in the order e, s, ee, es, ss, d, ed, sd, dd; the last four of a heavy-tailed core alone.
    """
    inverse = math.exp(-log_scale)
    if dof == math.inf:
        for i in range(count):
            z = off[i] * inverse
            height[i] = -0.5 * z * z - log_scale
            found[0, i] = -z * inverse
            found[1, i] = z * z - 1.0
            found[2, i] = -inverse * inverse
            found[3, i] = 2.0 * z * inverse
            found[4, i] = -2.0 * z * z
        return
    more = dof + 1.0
    for i in range(count):
        z = off[i] * inverse
        height[i] = log_one_and(z * z / dof)
    for i in range(count):
        z, grown = off[i] * inverse, height[i]
        share = 1.0 / (dof + z * z)
        out, inside, pull = z * z * share, dof * share, z * inverse * share
        height[i] = constant - log_scale - 0.5 * more * grown
        found[0, i] = -more * pull
        found[1, i] = more * out - 1.0
        found[2, i] = -more * inverse * inverse * (inside - out) * share
        found[3, i] = 2.0 * more * pull * inside
        found[4, i] = -2.0 * more * out * inside
        found[5, i] = rise - 0.5 * dof * grown + 0.5 * more * out
        found[6, i] = -dof * pull * (1.0 - more * share)
        found[7, i] = dof * out - more * out * inside
        found[8, i] = bend - 0.5 * dof * grown + dof * out - 0.5 * more * out * inside


@compiled(fastmath=IN_ANY_ORDER)
def add_slopes(
    found: np.ndarray,
    chance: np.ndarray,
    count: int,
    shift: float,
    grown: float,
    tilt: float,
    is_heavy: bool,
    slope: np.ndarray,
) -> None:
    """Add a part's slopes in shares of `chance`.

    Its error falls with the predictor and by `shift` with log scale and log width, its log scale grows with the core's, and by
    `grown` with log variation and log width; `tilt` is the slope of its log share.
    """
    v = 3 if is_heavy else 2
    for i in range(count):
        p, e, s = chance[i], found[0, i], found[1, i]
        slope[0, i] -= p * e
        slope[1, i] += p * (s - shift * e)
        slope[v, i] += p * grown * s
        slope[v + 1, i] += p * (grown * s - shift * e)
        slope[v + 2, i] += p * tilt
    if is_heavy:
        for i in range(count):
            slope[2, i] += chance[i] * found[5, i]


@compiled(fastmath=IN_ANY_ORDER)
def add_curves(
    found: np.ndarray,
    chance: np.ndarray,
    count: int,
    shift: float,
    grown: float,
    bent: float,
    tilt: float,
    is_heavy: bool,
    slope: np.ndarray,
    curve: np.ndarray,
) -> None:
    """Add a part's curvatures with the squares of its slopes beyond those of all parts (`slope`), in shares of `chance`.

    As in :func:`add_slopes`; log variation and log width bend the log scale by `bent`. Squares are of differences: of a row far out
    they are small beside the squares themselves, and nothing would be left of them.
    """
    v = 3 if is_heavy else 2
    w, h = v + 1, v + 2
    # Where the entries of a line of the curvature begin.
    s_, d_, v_, w_, h_ = 1, 3, v * (v + 1) // 2, w * (w + 1) // 2, h * (h + 1) // 2
    for i in range(count):
        p = chance[i]
        e, s, ee, es, ss = found[0, i], found[1, i], found[2, i], found[3, i], found[4, i]
        a_m, a_s = -e - slope[0, i], s - shift * e - slope[1, i]
        a_v, a_w, a_h = grown * s - slope[v, i], grown * s - shift * e - slope[w, i], tilt - slope[h, i]
        away, across = shift * shift * ee - shift * e, ss - shift * es
        curve[0, i] += p * (ee + a_m * a_m)
        curve[s_, i] += p * (shift * ee - es + a_m * a_s)
        curve[s_ + 1, i] += p * (away - 2.0 * shift * es + ss + a_s * a_s)
        curve[v_, i] += p * (-grown * es + a_m * a_v)
        curve[v_ + 1, i] += p * (grown * across + a_s * a_v)
        curve[v_ + v, i] += p * (grown * grown * ss + bent * s + a_v * a_v)
        curve[w_, i] += p * (shift * ee - grown * es + a_m * a_w)
        curve[w_ + 1, i] += p * (away - shift * es + grown * across + a_s * a_w)
        curve[w_ + v, i] += p * (grown * (grown * ss - shift * es) + bent * s + a_v * a_w)
        curve[w_ + w, i] += p * (away + grown * (grown * ss - 2.0 * shift * es) + bent * s + a_w * a_w)
        curve[h_, i] += p * a_m * a_h
        curve[h_ + 1, i] += p * a_s * a_h
        curve[h_ + v, i] += p * a_v * a_h
        curve[h_ + w, i] += p * a_w * a_h
        curve[h_ + h, i] += p * a_h * a_h
    if is_heavy:
        for i in range(count):
            p = chance[i]
            e, s, ed, sd = found[0, i], found[1, i], found[6, i], found[7, i]
            a_d, a_m, a_s = found[5, i] - slope[2, i], -e - slope[0, i], s - shift * e - slope[1, i]
            a_v, a_w = grown * s - slope[v, i], grown * s - shift * e - slope[w, i]
            curve[d_, i] += p * (-ed + a_m * a_d)
            curve[d_ + 1, i] += p * (sd - shift * ed + a_s * a_d)
            curve[d_ + 2, i] += p * (found[8, i] + a_d * a_d)
            curve[v_ + 2, i] += p * (grown * sd + a_v * a_d)
            curve[w_ + 2, i] += p * (grown * sd - shift * ed + a_w * a_d)
            curve[h_ + 2, i] += p * a_d * (tilt - slope[h, i])


@compiled(fastmath=IN_ANY_ORDER)
def measured_sums(
    matrix: np.ndarray,
    centre: np.ndarray,
    beta: np.ndarray,
    offset: np.ndarray,
    weight: np.ndarray,
    y: np.ndarray,
    trials: np.ndarray,
    scale: float,
    log_dof: float,
    constant: float,
    rise: float,
    bend: float,
    variation: float,
    width: float,
    share: float,
    gram: np.ndarray,
    cross: np.ndarray,
    slopes: np.ndarray,
    curves: np.ndarray,
    value: np.ndarray,
) -> None:
    """Sums of measurements in two parts (the loop of a :class:`~robustly.fit.table_pass.LoopPass`)."""
    x, left, off = np.ones((len(centre) + 1, BLOCK)), np.empty(BLOCK), np.empty(BLOCK)
    slope, curve = np.empty((len(slopes), BLOCK)), np.empty((len(curves), BLOCK))
    height, found = np.empty((PARTS, BLOCK)), np.empty((PARTS, 9, BLOCK))
    total = np.empty(BLOCK)
    dof, is_heavy = math.exp(log_dof), log_dof < math.inf
    out = math.exp(2.0 * (width + variation))
    grown, wider, shift = out / (1.0 + out), 0.5 * log_one_and(out), math.exp(width + scale)
    strayed = 1.0 / (1.0 + math.exp(-share))
    log_core, log_strayed = -log_one_and(math.exp(share)), -log_one_and(math.exp(-share)) - math.log(2.0)
    for start in range(0, len(matrix), BLOCK):
        count = min(BLOCK, len(matrix) - start)
        enter_block(matrix, centre, beta, offset, start, count, x, left)
        for i in range(count):
            left[i] = y[start + i] - left[i]
        for part in range(PARTS):
            away = 0.0 if part == 0 else shift if part == 1 else -shift
            log_share = log_core if part == 0 else log_strayed
            for i in range(count):
                off[i] = left[i] - away
            wide = scale if part == 0 else scale + wider
            error_densities(off, count, wide, dof, constant, rise, bend, height[part], found[part])
            for i in range(count):
                height[part, i] = max(height[part, i] + log_share, IMPOSSIBLE)
        for i in range(count):
            top = max(height[0, i], height[1, i], height[2, i])
            a, b, c = math.exp(height[0, i] - top), math.exp(height[1, i] - top), math.exp(height[2, i] - top)
            all_three = a + b + c
            total[i] = top + math.log(all_three)
            height[0, i], height[1, i], height[2, i] = a / all_three, b / all_three, c / all_three
        slope[:], curve[:] = 0.0, 0.0
        for part in range(PARTS):
            for i in range(count):
                # What is impossible may be no number, and counts for nothing.
                if height[part, i] == 0.0:
                    for k in range(9 if is_heavy else 5):
                        found[part, k, i] = 0.0
            away, by = (0.0, 0.0) if part == 0 else (shift if part == 1 else -shift, grown)
            tilt = -strayed if part == 0 else 1.0 - strayed
            add_slopes(found[part], height[part], count, away, by, tilt, is_heavy, slope)
        for part in range(PARTS):
            away, by = (0.0, 0.0) if part == 0 else (shift if part == 1 else -shift, grown)
            tilt = -strayed if part == 0 else 1.0 - strayed
            add_curves(found[part], height[part], count, away, by, 2.0 * by * (1.0 - by), tilt, is_heavy, slope, curve)
        for i in range(count):
            curve[len(curve) - 1, i] -= strayed * (1.0 - strayed)
        add_values(total, weight, start, count, value)
        add_block(x, weight, start, count, slope, curve, gram, cross, slopes, curves)
