"""Which rows do not belong? Tail probabilities turned into a list with a stated share of false alarms."""

from __future__ import annotations

import numpy as np

from robustly.errors import ModelError


def benjamini_hochberg(tail: np.ndarray, fdr: float) -> np.ndarray:
    """Indices of the rows whose tail probabilities stand out, with an expected share `fdr` of false ones.

    The step-up rule of Benjamini & Hochberg (1995); rows are taken as independent, and discrete tail probabilities,
    which are conservative, keep the promise.
    """
    if not 0 < fdr < 1:
        raise ModelError(f"fdr is a share between 0 and 1; got {fdr}. 0.05 is usual.")
    n = len(tail)
    order = np.argsort(tail)
    below = tail[order] <= fdr * np.arange(1, n + 1) / n
    if not below.any():
        return np.zeros(0, dtype=int)
    return order[: np.flatnonzero(below)[-1] + 1]
