"""Which rows do not belong? Tail probabilities turned into a list with a stated share of false alarms."""

from __future__ import annotations

import numpy as np

from robustly.errors import ModelError
from robustly.result.levels import check_level

# How a model's `tail_probabilities` are read: as tails of a distribution, or as the probability that the row does belong.
TAILS, POSTERIOR = "tails", "posterior"


def stand_out(
    tail: np.ndarray, surprise: np.ndarray, fdr: float | None, level: float | None, rule: str = TAILS
) -> np.ndarray:
    """Rows that do not belong, the least probable first; among equals the more surprising.

    With `level` each row is judged alone. Otherwise tails are compared with each other for a share `fdr` (0.05 unless told)
    of false alarms, and probabilities of belonging (the rule ``"posterior"``) with `fdr` itself.

    Of arrays that are not in memory only the rows come here whose tail probability is small enough to count at all.
    """
    n, place = len(tail), None
    if not isinstance(tail, np.ndarray):
        small = tail <= (level if level is not None else 0.05 if fdr is None else fdr)
        place = np.asarray(small.nonzero()[0])
        tail, surprise = np.asarray(tail[small]), np.asarray(surprise[small])
    if level is not None:
        check_level(level)
        chosen = np.flatnonzero(tail < level)
    elif rule == POSTERIOR:
        chosen = np.flatnonzero(tail <= (0.05 if fdr is None else fdr))
    else:
        chosen = benjamini_hochberg(tail, 0.05 if fdr is None else fdr, n)
    found = chosen[np.lexsort((-surprise[chosen], tail[chosen]))]
    return found if place is None else place[found]


def benjamini_hochberg(tail: np.ndarray, fdr: float, n: int | None = None) -> np.ndarray:
    """Indices of the rows whose tail probabilities stand out, with an expected share `fdr` of false ones.

    The step-up rule of Benjamini & Hochberg (1995); rows are taken as independent, and discrete tail probabilities,
    which are conservative, keep the promise. Of `n` rows in all, those left out have tail probabilities above `fdr`.
    """
    if not 0 < fdr < 1:
        raise ModelError(f"fdr is a share between 0 and 1; got {fdr}. 0.05 is usual.")
    n = len(tail) if n is None else n
    order = np.argsort(tail)
    below = tail[order] <= fdr * np.arange(1, len(tail) + 1) / n
    if not below.any():
        return np.zeros(0, dtype=int)
    return order[: np.flatnonzero(below)[-1] + 1]
