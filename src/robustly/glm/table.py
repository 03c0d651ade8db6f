r"""How are a million 0/1 rows as cheap as a few thousand? One function of one number, read off a table.

With :math:`z = (2y - 1) m` the evidence of every 0/1 row is the same function of :math:`z`. A cubic spline through steps of
0.04 gives it and its derivatives to 1e-9.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.interpolate import CubicSpline

from robustly.glm.evidence import Kernel, pairs, start_state
from robustly.native import compiled

STEP = 0.04
USUAL, LARGEST = 1024, 4096


def reach_of_table() -> float:
    """How far from zero a predictor may lie to be found in a table."""
    return STEP * (LARGEST - 8) / 2.0


def table_of(kernel: Kernel, phi: tuple[float, ...], reach: float) -> Any:
    """Curves of 0/1 rows by interpolation, or None when predictors lie too far from zero."""
    if not reach <= reach_of_table():
        return None
    z = np.linspace(-reach - 0.1, reach + 0.1, max(int(2.0 * reach / STEP) + 8, 64))
    size = USUAL if len(z) <= USUAL else LARGEST  # few sizes, as each is compiled
    grid = np.concatenate([z, np.full(size - len(z), z[-1])])
    ones = np.ones(size)
    state = start_state(kernel.law, ones, ones, np.asarray(phi))
    value, slope, curve, _ = kernel.curves(grid, phi, (ones, ones), state)
    entries = np.concatenate([np.asarray(value)[:, None], slope, curve], axis=1)[: len(z)]
    # A piece's entries together, so that a row touches one stretch of memory.
    pieces = np.ascontiguousarray(CubicSpline(z, entries, axis=0).c.transpose(1, 2, 0))
    k = kernel.size
    # A 0 is a 1 seen from the other side: derivatives once in m change their sign.
    turned = np.array([False, True, *[False] * (k - 1), *[(i == 0) != (j == 0) for i, j in pairs(k)]])

    def curves(m: np.ndarray, phi: Any, row: Any, state: Any) -> tuple[Any, Any, Any, Any]:
        found = _read(np.asarray(m), np.asarray(row[0]), pieces, z[0], z[1] - z[0], turned)
        return found[:, 0], found[:, 1 : k + 1], found[:, k + 1 :], state

    return curves


@compiled()
def _read(m, y, pieces, first, step, turned):  # type: ignore[no-untyped-def]
    count, width = len(m), pieces.shape[1]
    found = np.empty((count, width))
    for row in range(count):
        side = 2.0 * y[row] - 1.0
        place = (side * m[row] - first) / step
        if not (place >= 0.0 and place < len(pieces)):
            # Not a number, or beyond the table: the caller sees that there is no value here.
            found[row] = np.nan
            continue
        piece = int(place)
        t = (place - piece) * step
        for entry in range(width):
            c = pieces[piece, entry]
            read = ((c[0] * t + c[1]) * t + c[2]) * t + c[3]
            found[row, entry] = side * read if turned[entry] else read
    return found
