r"""How good is a fit? The paper's measures, on clean test rows and against the true coefficients.

pL1 and pR2 are printed in the paper without centring, and so are they here: 1 is perfect and 0 is what predicting zero
gets. Its figures show their negatives; ours show 1 − pL1 and 1 − pR2, the same curves on a scale that can be a
logarithm.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from robustly.glm.families import Family
from robustly.glm.local import Classical
from robustly.glm.predictive import Fitted, GLMPredictive


def predictive_l1(y: np.ndarray, predicted: np.ndarray) -> float:
    r""":math:`1 - \sum |y - \hat y| / \sum |y|`."""
    return float(1.0 - np.abs(y - predicted).sum() / np.abs(y).sum())


def predictive_r2(y: np.ndarray, predicted: np.ndarray) -> float:
    r""":math:`1 - \sum (y - \hat y)^2 / \sum y^2`."""
    return float(1.0 - ((y - predicted) ** 2).sum() / (y**2).sum())


def mean_squared_error(found: np.ndarray, truth: np.ndarray) -> float:
    r""":math:`\frac1d \sum_j (\hat w_j - w_j)^2`, the intercept left out."""
    return float(np.mean((found - truth) ** 2))


def misdirection(found: np.ndarray, truth: np.ndarray) -> float:
    """One minus the cosine of the angle between two coefficient vectors: what is left of an error when size is free."""
    a, b = found / np.linalg.norm(found), truth / np.linalg.norm(truth)
    return float(0.5 * ((a - b) ** 2).sum())


def class_error(y: np.ndarray, linear: np.ndarray) -> float:
    """The share of test labels on the wrong side."""
    return float(np.mean((linear > 0) != (y > 0.5)))


def plug_in_nll(family: Family, y: np.ndarray, linear: np.ndarray) -> float:
    """Minus the mean log density of test rows with the fitted predictor put into the classical model."""
    classical = Fitted(Classical(family), np.zeros(0), np.zeros(0), False)
    return float(-np.mean(GLMPredictive(classical, linear).log_prob(y)))


def integrated_nll(predictive: Any, y: np.ndarray) -> float:
    """Minus the mean log density of test rows under a model's own predictive distribution."""
    return float(-np.mean(predictive.log_prob(y)))
