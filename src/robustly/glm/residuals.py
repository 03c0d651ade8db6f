"""How far is each row from what was expected of it? Residuals of several kinds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from robustly.errors import ModelError
from robustly.glm.families import Binomial, Exponential, Family, Gamma, NegativeBinomial, Normal, Poisson

if TYPE_CHECKING:
    from robustly.glm.predictive import GLMPredictive

KINDS = ("quantile", "response", "pearson", "deviance")
# Normal quantiles beyond this are those of probabilities that doubles cannot tell from 0 or 1.
FARTHEST = 8.2


def residuals_of(
    predictive: GLMPredictive, y: np.ndarray, kind: str, seed: int, below: np.ndarray, upto: np.ndarray
) -> np.ndarray:
    """Residuals of one kind; `below` and `upto` are P(Y < y) and P(Y ≤ y), for quantile residuals."""
    if kind == "quantile":
        from scipy.special import ndtri

        share = np.random.default_rng(seed).random(len(y)) if predictive.family.discrete else 1.0
        return np.clip(ndtri(below + share * (upto - below)), -FARTHEST, FARTHEST)
    if kind == "response":
        return y - predictive.mean
    if kind == "pearson":
        return (y - predictive.mean) / predictive.sd
    if kind == "deviance":
        mean = predictive.mean
        twice = unit_deviance(predictive.family, y, mean, predictive.nuisance, predictive.trials)
        return np.sign(y - mean) * np.sqrt(np.maximum(twice, 0.0))
    raise ModelError(f"residuals take {', '.join(KINDS)}; got {kind!r}.")


def unit_deviance(
    family: Family, y: np.ndarray, mean: np.ndarray, nuisance: tuple[float, ...], trials: np.ndarray
) -> np.ndarray:
    """Twice the log likelihood that a mean of its own would gain each row, in units of the dispersion."""
    from scipy.special import xlogy

    with np.errstate(divide="ignore", invalid="ignore"):
        if isinstance(family, Normal):
            return (y - mean) ** 2
        if isinstance(family, NegativeBinomial):
            size = nuisance[0]
            return 2.0 * (xlogy(y, y / mean) - (y + size) * np.log((y + size) / (mean + size)))
        if isinstance(family, Poisson):
            return 2.0 * (xlogy(y, y / mean) - (y - mean))
        if isinstance(family, Binomial):
            return 2.0 * (xlogy(y, y / mean) + xlogy(trials - y, (trials - y) / (trials - mean)))
        if isinstance(family, Gamma | Exponential):
            return 2.0 * ((y - mean) / mean - np.log(y / mean))
    raise ModelError(f"the deviance of {family} is not known; take quantile or pearson residuals.")
