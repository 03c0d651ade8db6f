r"""How are a million 0/1 rows as cheap as a few thousand? One function of one number, read off a table.

With :math:`z = (2y - 1) m` the evidence of every 0/1 row is the same function of :math:`z`. A cubic spline through steps of
0.04 gives it and its derivatives to 1e-9.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from scipy.interpolate import CubicSpline

from robustly.fit.passes import one_thread
from robustly.glm.evidence import Kernel, pairs, start_state

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
    pieces = CubicSpline(z, entries, axis=0).c.transpose(1, 0, 2)
    # As many pieces as fit the size, so that reading is compiled for few sizes; the last ones are never asked for.
    pieces = np.concatenate([pieces, np.broadcast_to(np.nan, (size - len(pieces), *pieces.shape[1:]))])
    k = kernel.size
    # A 0 is a 1 seen from the other side: derivatives once in m change their sign.
    turned = np.array([False, True, *[False] * (k - 1), *[(i == 0) != (j == 0) for i, j in pairs(k)]])

    def curves(m: np.ndarray, phi: Any, row: Any, state: Any) -> tuple[Any, Any, Any, Any]:
        found = np.asarray(_read(m, row[0], pieces, z[0], z[1] - z[0], turned))
        return found[:, 0], found[:, 1 : k + 1], found[:, k + 1 :], state

    return curves


@one_thread
def _read(m: Any, y: Any, pieces: Any, first: Any, step: Any, turned: Any) -> Any:
    """Values of all entries by row; not a number beyond the table, where the caller sees that there is no value."""
    side = 2.0 * y - 1.0
    place = (side * m - first) / step
    piece = jnp.floor(jnp.clip(jnp.nan_to_num(place), 0.0, len(pieces) - 1.0))
    t = ((place - piece) * step)[:, None]
    c = pieces[piece.astype(jnp.int32)]
    found = ((c[:, 0] * t + c[:, 1]) * t + c[:, 2]) * t + c[:, 3]
    found = jnp.where(turned, side[:, None] * found, found)
    return jnp.where(((place >= 0.0) & (place < len(pieces)))[:, None], found, jnp.nan)
