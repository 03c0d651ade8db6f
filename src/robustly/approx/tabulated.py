r"""How are a million 0/1 rows as cheap as a few thousand? One function of one number, read off a table.

With :math:`z = (2y - 1) m` the evidence of every 0/1 row is the same function of :math:`z` and of numbers that all rows
share. A cubic spline through steps of 0.04 gives it and its derivatives to 1e-9.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array
from scipy.interpolate import CubicSpline

from robustly._runtime.compiled import one_thread
from robustly.rows.store import Data

STEP = 0.04
USUAL, LARGEST = 1024, 4096
# How far from zero a predictor may lie to be found in a table.
FURTHEST = STEP * (LARGEST - 8) / 2.0


class BinarySpline(NamedTuple):
    """Pieces of a spline for all entries: value, slopes, curvatures (on and below the diagonal, line by line)."""

    pieces: np.ndarray
    first: float
    step: float
    turned: np.ndarray
    """Which entries change their sign for a 0: it is a 1 seen from the other side, so derivatives once in m do."""


def binary_spline(curves: Callable[..., Any], shared: tuple[float, ...], furthest: float) -> BinarySpline | None:
    """A table of what ``curves(numbers, (y, trials), …)`` gives for a 1, or None when predictors lie too far from zero.

    `furthest` is the largest absolute predictor.
    """
    if not furthest <= FURTHEST:
        return None
    z = np.linspace(-furthest - 0.1, furthest + 0.1, max(int(2.0 * furthest / STEP) + 8, 64))
    size = USUAL if len(z) <= USUAL else LARGEST  # few sizes, as each is compiled
    ones = np.ones(size)
    grid = np.concatenate([z, np.full(size - len(z), z[-1])])
    value, slope, curve, _ = curves((grid, *shared), (ones, ones))
    entries = np.concatenate([np.asarray(value)[:, None], slope, curve], axis=1)[: len(z)]
    pieces = CubicSpline(z, entries, axis=0).c.transpose(1, 0, 2)
    # As many pieces as fit the size, so that reading is compiled for few sizes; the last ones are never asked for.
    pieces = np.concatenate([pieces, np.broadcast_to(np.nan, (size - len(pieces), *pieces.shape[1:]))])
    k = 1 + len(shared)
    below = [(i, j) for i in range(k) for j in range(i + 1)]
    turned = np.array([False, True, *[False] * (k - 1), *[(i == 0) != (j == 0) for i, j in below]])
    return BinarySpline(pieces, float(z[0]), float(z[1] - z[0]), turned)


def read_binary(numbers: tuple[Any, ...], row: Data, state: Array, table: BinarySpline) -> tuple[Any, Any, Any, Any]:
    """Values, slopes and curvatures of 0/1 rows by interpolation."""
    found = np.asarray(_read(numbers[0], row[0], *table))
    k = len(numbers)
    return found[:, 0], found[:, 1 : k + 1], found[:, k + 1 :], None


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
