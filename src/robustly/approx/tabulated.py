r"""How are a million counts as cheap as a few thousand? Rows of one response share one function, read off a table.

The evidence of a row is a smooth function of its predictor, the same for all rows with the same response (and trials) and
of numbers that all rows share. A few points for each of the different responses are integrated, and rows lie between
them: a polynomial through six points gives values, slopes and curvatures to about 1e-9. Tables are checked in the
middle between points against the integral itself, and made finer until they hold.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from robustly._runtime.numba_loops import compiled
from robustly.model.responses import Responses

# Steps between points, in units of the width over which a row's evidence changes its shape.
STEP = 0.1
# Points to the left of a row's cell, and in all.
LEFT, POINTS = 2, 6
# So many entries of a point are read at once by loops, and so many rows by products.
LANES = 8
AT_ONCE = 4096
# Dividing by a whole number may be multiplying with its inverse; what is not a number stays so.
BETWEEN = {"contract", "arcp"}
# Points are integrated in blocks of one size, so that they are compiled once. Most tables take a few hundred to a few thousand.
BLOCK = 1024
CHECKED = 256
# What a table may be off in the middle between points, on average: values, in parts of a nat and of the value, and a hundred times
# as much for slopes and curvatures; and how many times as much at the worst.
OFF, WORST = 2e-9, 100.0

# (predictors, responses, trials) -> value, slopes, curvatures by row; the shared numbers are known
Curves = Callable[[np.ndarray, np.ndarray, np.ndarray], tuple[Any, Any, Any]]


class Tables(NamedTuple):
    """Values, slopes and curvatures at equally spaced predictors, for each of the different responses."""

    entries: np.ndarray
    """(point, entry), filled up to whole lanes unless there is but one; the points of one response after those of another."""
    begin: np.ndarray
    """By response, its first point,"""
    size: np.ndarray
    """how many it has,"""
    first: np.ndarray
    """the predictor at the first,"""
    per_unit: np.ndarray
    """and points in a unit of the predictor."""


def make_tables(
    curves: Curves,
    responses: Responses,
    low: np.ndarray,
    high: np.ndarray,
    width: np.ndarray,
    most: int,
    coarsest: float = STEP,
    may_be_off: float = OFF,
) -> tuple[Tables, float] | None:
    """Tables for predictors between `low` and `high` of each response, or None where that takes more than `most` points.

    `width` says over what distance the evidence of each response changes its shape. Steps are `coarsest` of it, or as much
    smaller as they have to be; what they came to is returned too.
    """
    if not (np.all(np.isfinite(low)) and np.all(np.isfinite(high))):
        return None
    for share in (coarsest, coarsest / 2.0, coarsest / 4.0):
        step = share * width
        cells = np.ceil((high - low) / step).astype(np.int64) + 1
        size = cells + POINTS - 1
        if not size.sum() <= most:
            return None
        begin = np.cumsum(size) - size
        first = 0.5 * (low + high - cells * step) - LEFT * step
        which = np.repeat(np.arange(len(responses)), size)
        predictor = first[which] + (np.arange(len(which)) - begin[which]) * step[which]
        # Of the blocks that are integrated anyway, what is left over checks the table; if little is, one block more.
        spare = -len(which) % BLOCK
        checks = spare if spare >= CHECKED else spare + BLOCK
        cell = np.random.default_rng(0).integers(0, int(cells.sum()), checks)
        ends = np.cumsum(cells)
        of = np.searchsorted(ends, cell, side="right")
        middle = first[of] + (cell - (ends - cells)[of] + LEFT + 0.5) * step[of]
        which, predictor = np.concatenate([which, of]), np.concatenate([predictor, middle])
        blocks = [slice(i, i + BLOCK) for i in range(0, len(which), BLOCK)]
        found = [curves(predictor[b], responses.y[which[b]], responses.trials[which[b]])[:3] for b in blocks]
        entries = np.concatenate([_table_entries(*part) for part in found])
        if not np.all(np.isfinite(entries)):
            return None
        tables = Tables(_in_lanes(entries[:-checks]), begin, size, first, 1.0 / step)
        read = _table_entries(*read_tables(tables, middle, of.astype(np.int32), np.shape(found[0][1])[1]))
        off = np.abs(read - entries[-checks:])
        off = off / (1.0 + np.abs(entries[-checks:])) / np.where(np.arange(off.shape[1]) == 0, 1.0, 100.0)
        if np.all(off.mean(axis=0) <= may_be_off) and np.all(off <= WORST * may_be_off):
            return tables, share
    return None


def _table_entries(value: Any, slope: Any, curve: Any) -> np.ndarray:
    return np.concatenate([np.asarray(value)[:, None], np.asarray(slope), np.asarray(curve)], axis=1)


def _in_lanes(entries: np.ndarray) -> np.ndarray:
    if entries.shape[1] == 1:  # read one by one: side by side, few points are far apart in memory
        return entries
    return np.pad(entries, ((0, 0), (0, -entries.shape[1] % LANES)))


def read_tables(
    tables: Tables, predictor: np.ndarray, which: np.ndarray, size: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Value, slopes in so many numbers and curvatures of rows with these predictors and responses.

    Beyond the tables they are not a number. Rows of each number lie side by side in memory.
    """
    from scipy import sparse

    count = 1 + size + size * (size + 1) // 2
    found = np.empty((count, len(predictor)))
    entries = np.ascontiguousarray(tables.entries[:, :count])
    for start in range(0, len(predictor), AT_ONCE):
        rows = slice(start, start + AT_ONCE)
        of = which[rows]
        place = (predictor[rows] - tables.first[of]) * tables.per_unit[of]
        inside = (place >= LEFT) & (place < tables.size[of] - (POINTS - 1 - LEFT))
        cell = np.where(inside, place, LEFT).astype(np.int32)
        weight = np.empty((POINTS, len(of)))
        weights_of_places(np.where(inside, place - cell, np.nan), weight)
        # Rows times points, with six entries a row: this product is as quick as a compiled loop, and nothing is compiled.
        points = (tables.begin[of].astype(np.int32) + (cell - LEFT))[:, None] + np.arange(POINTS, dtype=np.int32)
        ends = np.arange(0, points.size + 1, POINTS, dtype=np.int32)
        rule = sparse.csr_array((weight.T.ravel(), points.ravel(), ends), shape=(len(of), len(entries)))
        found[:, rows] = (rule @ entries).T
    return found[0], found[1 : 1 + size].T, found[1 + size :].T


def weights_of_places(t: Any, weight: np.ndarray) -> None:
    """What six equally spaced points count for a place `t` of the way from the third to the fourth; or for many places."""
    a, b, c, d, e = t + 2.0, t + 1.0, t - 1.0, t - 2.0, t - 3.0
    ab, de, tc = a * b, d * e, t * c
    weight[0] = -b * tc * de / 120.0
    weight[1] = a * tc * de / 24.0
    weight[2] = -ab * c * de / 12.0
    weight[3] = ab * t * de / 12.0
    weight[4] = -ab * tc * e / 24.0
    weight[5] = ab * tc * d / 120.0


# For one row, within loops.
weights_between = compiled(inline="always")(weights_of_places)


@compiled(fastmath=BETWEEN, forceinline=True)
def read_block(
    entries: np.ndarray,
    begin: np.ndarray,
    size: np.ndarray,
    first: np.ndarray,
    per_unit: np.ndarray,
    which: np.ndarray,
    m: np.ndarray,
    count: int,
    weight: np.ndarray,
    cell: np.ndarray,
    found: np.ndarray,
    value: np.ndarray,
    slope: np.ndarray,
    curve: np.ndarray,
) -> None:
    """As :func:`read_tables`, in a loop for a block of rows, with numbers first: ``slope[k, i]``. The three in the middle are for its use."""
    for i in range(count):
        r = which[i]
        x = (m[i] - first[r]) * per_unit[r]
        if x >= LEFT and x < size[r] - (POINTS - 1 - LEFT):
            whole = int(x)
            cell[i], weight[0, i] = begin[r] + whole - LEFT, x - whole
        else:
            cell[i], weight[0, i] = 0, np.nan
    for i in range(count):
        weights_between(weight[0, i], weight[:, i])
    width = entries.shape[1]
    flat = entries.reshape(-1)
    for i in range(count):
        a, b, c, d, e, f = weight[0, i], weight[1, i], weight[2, i], weight[3, i], weight[4, i], weight[5, i]
        # Numbers without a sign spare a look whether places are counted from the end.
        wide = np.uint64(width)
        for lane in range(0, width, LANES):
            j, to = np.uint64(cell[i] * width + lane), np.uint64(i * width + lane)
            for s in range(LANES):
                p = j + np.uint64(s)
                one = a * flat[p] + b * flat[p + wide] + c * flat[p + wide + wide]
                q = p + wide + wide + wide
                found[to + np.uint64(s)] = one + d * flat[q] + e * flat[q + wide] + f * flat[q + wide + wide]
    for i in range(count):
        value[i] = found[i * width]
    for k in range(len(slope)):
        for i in range(count):
            slope[k, i] = found[i * width + 1 + k]
    for k in range(len(curve)):
        for i in range(count):
            curve[k, i] = found[i * width + 1 + len(slope) + k]


def predictor_ends(predictor: np.ndarray, which: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Minus the least, and the greatest predictor among the rows of each of so many responses; minus infinity where there are none."""
    under, over = np.full((2, count), -np.inf)
    np.maximum.at(under, which, -predictor)
    np.maximum.at(over, which, predictor)
    return under, over
