"""Which rows do not belong? Tail probabilities turned into a list with a stated share of false alarms."""

from __future__ import annotations

import numpy as np

from robustly.errors import ModelError
from robustly.result.levels import check_level

# How a model's `tail_probabilities` are read: as tails of a distribution, or as the probability that the row does belong.
# The last two are probabilities; a list is of rows that are each sure enough, or of rows that are so on average.
TAILS, POSTERIOR, MEAN = "tails", "posterior", "mean"


def stand_out(
    tail: np.ndarray, surprise: np.ndarray, fdr: float | None, level: float | None, rule: str = TAILS
) -> np.ndarray:
    """Rows that do not belong, the least probable first; among equals the more surprising.

    With `level` each row is judged alone. Otherwise tails are compared with each other for a share `fdr` (0.05 unless told)
    of false alarms, and probabilities of belonging (the rule ``"posterior"``) with `fdr` itself, or their mean over the list
    (the rule ``"mean"``).
    """
    if level is not None:
        check_level(level)
        chosen = np.flatnonzero(tail < level)
    elif rule == MEAN:
        chosen = by_local_fdr(1.0 - tail, 0.05 if fdr is None else fdr)
    elif rule == POSTERIOR:
        chosen = np.flatnonzero(tail <= (0.05 if fdr is None else fdr))
    else:
        chosen = benjamini_hochberg(tail, 0.05 if fdr is None else fdr)
    return chosen[np.lexsort((-surprise[chosen], tail[chosen]))]


def benjamini_hochberg(tail: np.ndarray, fdr: float) -> np.ndarray:
    """Indices of the rows whose tail probabilities stand out, with an expected share `fdr` of false ones.

    The step-up rule of Benjamini & Hochberg (1995); rows are taken as independent, and discrete tail probabilities,
    which are conservative, keep the promise.
    """
    check_rate(fdr)
    n = len(tail)
    order = np.argsort(tail)
    below = tail[order] <= fdr * np.arange(1, n + 1) / n
    if not below.any():
        return np.zeros(0, dtype=int)
    return order[: np.flatnonzero(below)[-1] + 1]


def by_local_fdr(probability: np.ndarray, fdr: float) -> np.ndarray:
    """Rows in order of their probability of not belonging, while the mean of one minus it stays below `fdr`."""
    check_rate(fdr)
    order = np.argsort(-probability, kind="stable")
    false = np.cumsum(1.0 - probability[order]) / np.arange(1, len(order) + 1)
    return order[false <= fdr]


def check_rate(fdr: float | None) -> float:
    """A share of false alarms, 0.05 unless told."""
    if fdr is not None and not 0 < fdr < 1:
        raise ModelError(f"fdr is a share between 0 and 1; got {fdr}. 0.05 is usual.")
    return 0.05 if fdr is None else float(fdr)
