"""How probable is a count of at most so much, in a million rows, and how far out is it? Rows with one response share one function of
their predictor."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from robustly._runtime.numba_loops import compiled
from robustly.approx.tabulated import (
    BETWEEN,
    LEFT,
    POINTS,
    make_tables,
    predictor_ends,
    read_tables,
    weights_between,
)
from robustly.model.column_sums import loop_arrays
from robustly.model.responses import Responses, responses_among

# Fewer rows are integrated one by one.
MANY_ROWS = 20_000
# Normal deviates are tabulated, for they are nearly straight lines; further out a probability near one has too few digits.
FARTHEST = 5.0
# Predictors at which is asked how far a table can go, and the widest steps of one (see `approx.tabulated`).
SCAN, COARSEST = 25, 0.2
# A table has at most one point for so many rows.
ROWS_A_POINT = 4
# Where tables of scores end: between these. Halvings by which such an end is found.
NEARLY_FARTHEST, HALVINGS = 4.0, 40
# Responses of fewer rows are integrated row by row.
FEW_ROWS = 32

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


def count_scores(
    direct: Cdf, m: np.ndarray, y: np.ndarray, trials: np.ndarray, width: Width, deepest: float
) -> np.ndarray:
    """The normal deviate, above 0, that is as far out as each count is, for tails of at least `deepest`; of many rows to about 1e-8.

    With :math:`a` and :math:`b` the deviates of P(Y ≤ y) and P(Y < y) it is the larger of :math:`-a` and :math:`b`: a deviate far out
    on the other side says nothing, so that only rows far out are integrated one by one.
    """
    from scipy.special import ndtri

    responses = responses_among(y, trials) if len(m) > MANY_ROWS else None
    found = None if responses is None else _tabulated_scores(direct, responses, m, y, trials, width)
    if found is None:
        return _direct_scores(direct, m, y, trials, deepest)
    far = np.flatnonzero(np.isnan(found))
    if len(far):
        found[far] = _direct_scores(direct, m[far], y[far], trials[far], deepest)
    return np.minimum(found, -ndtri(0.5 * deepest), out=found)


def _direct_scores(direct: Cdf, m: np.ndarray, y: np.ndarray, trials: np.ndarray, deepest: float) -> np.ndarray:
    from scipy.special import ndtri

    below, strictly = direct(m, y, trials), direct(m, np.ceil(y) - 1.0, trials)
    tail = np.clip(2.0 * np.minimum(below, 1.0 - strictly), 0.0, 1.0)
    # One less a probability has no digits left further out.
    return -ndtri(0.5 * np.maximum(tail, deepest))


def _tabulated_scores(
    direct: Cdf, responses: Responses, m: np.ndarray, y: np.ndarray, trials: np.ndarray, width: Width
) -> np.ndarray | None:
    """Scores that can be read off tables, and not a number for the rest; None where there can be no tables."""
    m, y, trials = loop_arrays(m, y, trials)
    which, rows = np.empty(len(m), dtype=np.int32), np.zeros(len(responses), dtype=np.int64)
    over, under = np.full((2, len(responses)), -np.inf)
    _find_responses(m, y, trials, *responses.places, which, rows, over, under)
    common = np.flatnonzero(rows >= FEW_ROWS)
    if not len(common) or not np.isfinite(over[common] + under[common]).all():
        return None
    # P(Y ≤ y) of one count is P(Y < y) of the next: both are of a threshold.
    pairs = np.stack([responses.trials[common], responses.y[common]], axis=1)
    pairs, of = np.unique(np.concatenate([pairs, pairs - [0.0, 1.0]]), axis=0, return_inverse=True)
    below, strictly = np.full((2, len(responses)), -1)
    below[common], strictly[common] = np.split(of.reshape(-1), 2)
    high, low = np.full((2, len(pairs)), -np.inf)
    np.maximum.at(high, of.reshape(-1), np.tile(over[common], 2))
    np.maximum.at(low, of.reshape(-1), np.tile(under[common], 2))
    deviate = lambda m, y, trials: _deviate(direct(m, y, trials))
    low, high, before, after = _deviates_told(lambda m, some: deviate(m, *pairs[some, ::-1].T), -low, high)
    told = np.flatnonzero(~np.isnan(low))
    if not len(told):
        return None
    thresholds = Responses(pairs[told, 1], pairs[told, 0], np.zeros(0), np.zeros(0))
    made = make_tables(
        lambda m, y, trials: (deviate(m, y, trials), np.empty((len(m), 0)), np.empty((len(m), 0))),
        thresholds,
        low[told],
        high[told],
        width(np.maximum(thresholds.y, 0.0), thresholds.trials),
        len(m) // ROWS_A_POINT,
        COARSEST,
    )
    if made is None:
        return None
    table = np.full(len(pairs), -1)
    table[told] = np.arange(len(told))
    found = np.empty(len(m))
    _read_scores(*made[0], m, which, below, strictly, table, before, after, found)
    return found


def _deviates_told(
    deviate: Callable[[np.ndarray, np.ndarray], np.ndarray], low: np.ndarray, high: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Between which predictors the deviate of each threshold is not far out, and its sign before and after.

    ``deviate(m, some)`` gives those of some thresholds, which rise or fall all the way. Where one is far out throughout, or has no
    place in between, both ends are not a number; a sign of 0 says that it is not known.
    """
    at, every = np.stack([low, high]), np.arange(len(low))
    seen = np.stack([deviate(end, every) for end in at])
    sign = np.where(np.abs(seen) > FARTHEST, np.sign(seen), 0.0)
    none = (sign[0] != 0.0) & (sign[0] == sign[1])
    for end in range(2):
        some = np.flatnonzero((sign[end] != 0.0) & ~none)
        outer, inner, best = at[end, some], at[1 - end, some], np.full(len(some), np.nan)
        for _ in range(HALVINGS):
            looked = np.flatnonzero(np.isnan(best))
            if not len(looked):
                break
            middle = 0.5 * (outer[looked] + inner[looked])
            there = deviate(middle, some[looked]) * sign[end, some[looked]]
            fits = (there <= FARTHEST) & (there >= NEARLY_FARTHEST)
            best[looked[fits]] = middle[fits]
            outer[looked] = np.where(there > FARTHEST, middle, outer[looked])
            inner[looked] = np.where(there < NEARLY_FARTHEST, middle, inner[looked])
        at[end, some] = best
    unknown = np.isnan(at).any(axis=0) | ~(at[0] < at[1])
    sign[:, unknown & ~none] = 0.0
    at[:, none | unknown] = np.nan
    return at[0], at[1], sign[0], sign[1]


@compiled(fastmath=BETWEEN, forceinline=True)
def _told_deviate(
    entries: np.ndarray,
    begin: np.ndarray,
    size: np.ndarray,
    first: np.ndarray,
    per_unit: np.ndarray,
    predictor: float,
    table: int,
    before: float,
    after: float,
    weight: np.ndarray,
) -> float:
    """A threshold's deviate at a predictor: read off its table, or infinite with the sign it has there; not a number if not known."""
    beyond = before
    if table >= 0:
        x = (predictor - first[table]) * per_unit[table]
        if x >= LEFT and x < size[table] - (POINTS - 1 - LEFT):
            cell = int(x)
            weights_between(x - cell, weight)
            j = begin[table] + cell - LEFT
            one = weight[0] * entries[j, 0] + weight[1] * entries[j + 1, 0] + weight[2] * entries[j + 2, 0]
            return one + weight[3] * entries[j + 3, 0] + weight[4] * entries[j + 4, 0] + weight[5] * entries[j + 5, 0]
        beyond = before if x < LEFT else after
    return beyond * np.inf


@compiled()
def _find_responses(
    predictor: np.ndarray,
    y: np.ndarray,
    trials: np.ndarray,
    of_trials: np.ndarray,
    place: np.ndarray,
    which: np.ndarray,
    rows: np.ndarray,
    over: np.ndarray,
    under: np.ndarray,
) -> None:
    """The place of every row's response; of each response how many rows there are, and ``[-under, over]`` of their predictors."""
    for i in range(len(predictor)):
        k = place[of_trials[int(trials[i])] + int(y[i])]
        which[i] = k
        rows[k] += 1
        over[k] = max(over[k], predictor[i])
        under[k] = max(under[k], -predictor[i])


@compiled(fastmath=BETWEEN)
def _read_scores(
    entries: np.ndarray,
    begin: np.ndarray,
    size: np.ndarray,
    first: np.ndarray,
    per_unit: np.ndarray,
    predictor: np.ndarray,
    which: np.ndarray,
    below: np.ndarray,
    strictly: np.ndarray,
    table: np.ndarray,
    before: np.ndarray,
    after: np.ndarray,
    found: np.ndarray,
) -> None:
    weight = np.empty(POINTS)
    for i in range(len(predictor)):
        found[i] = np.nan
        k, j = below[which[i]], strictly[which[i]]
        if k < 0:
            continue
        m = predictor[i]
        a = _told_deviate(entries, begin, size, first, per_unit, m, table[k], before[k], after[k], weight)
        if a < 0.0:  # more than half lies above: the other side is nearer
            if a > -np.inf:
                found[i] = -a
            continue
        b = _told_deviate(entries, begin, size, first, per_unit, m, table[j], before[j], after[j], weight)
        # Far out to the side that counts: asked by itself.
        if a >= 0.0 and b < np.inf:
            found[i] = max(b, 0.0)
