"""How probable is a count of at most so much, in a million rows? Rows with one response share one function of their predictor."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from robustly.approx.tabulated import make_tables, predictor_ends, read_tables
from robustly.model.responses import Responses, responses_among

# Fewer rows are integrated one by one.
MANY_ROWS = 20_000
# Normal deviates are tabulated, for they are nearly straight lines; further out a probability near one has too few digits.
FARTHEST = 5.0
# Predictors at which is asked how far a table can go, and the widest steps of one (see `approx.tabulated`).
SCAN, COARSEST = 25, 0.2
# A table has at most one point for so many rows.
ROWS_A_POINT = 4

Cdf = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]
"""(predictors, counts, trials) -> P(Y ≤ count), by row."""
Width = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""(counts, trials) -> over what distance of the predictor the probability of a response changes its shape."""


def tabulated_cdf(direct: Cdf, m: np.ndarray, y: np.ndarray, trials: np.ndarray, width: Width) -> np.ndarray:
    """P(Y ≤ y) of counts at or above 0, as `direct` gives it; of many rows to about 1e-8."""
    from scipy.special import ndtr

    responses = responses_among(y, trials) if len(m) > MANY_ROWS else None
    if responses is None:
        return direct(m, y, trials)
    which = responses.of((None, None, y, trials))
    low, high = _where_told(direct, responses, m, which)
    far = np.isnan(low)[which]
    if far.any():
        found = np.empty(len(m))
        found[far] = direct(m[far], y[far], trials[far])
        found[~far] = tabulated_cdf(direct, m[~far], y[~far], trials[~far], width)
        return found
    made = make_tables(
        lambda m, y, trials: (_deviate(direct(m, y, trials)), np.empty((len(m), 0)), np.empty((len(m), 0))),
        responses,
        low,
        high,
        width(responses.y, responses.trials),
        len(m) // ROWS_A_POINT,
        COARSEST,
    )
    if made is None:
        return direct(m, y, trials)
    found = ndtr(read_tables(made[0], m, which, 0)[0])
    beyond = np.flatnonzero(np.isnan(found))
    if len(beyond):
        found[beyond] = direct(m[beyond], y[beyond], trials[beyond])
    return found


def _deviate(probability: np.ndarray) -> np.ndarray:
    from scipy.special import ndtri

    return ndtri(np.clip(probability, 1e-300, 1.0 - 1e-16))


def _where_told(direct: Cdf, responses: Responses, m: np.ndarray, which: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The least and the greatest predictor of each response, as far as its probability is neither 0 nor 1 to most digits.

    Neither is a number where it is so at all predictors.
    """
    under, over = predictor_ends(m, which, len(responses))
    low, high = -under, over
    grid = low[:, None] + (high - low)[:, None] * np.linspace(0.0, 1.0, SCAN)
    wide = lambda numbers: np.repeat(numbers, SCAN)
    away = _deviate(direct(grid.ravel(), wide(responses.y), wide(responses.trials))).reshape(grid.shape)
    inside = np.abs(away) <= FARTHEST
    # The cdf falls in the predictor, so that the inner points follow one another.
    first, last = inside.argmax(axis=1), SCAN - 1 - inside[:, ::-1].argmax(axis=1)
    at = np.arange(len(responses))
    none = ~inside.any(axis=1)
    return np.where(none, np.nan, grid[at, first]), np.where(none, np.nan, grid[at, last])
