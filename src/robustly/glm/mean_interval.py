"""How sure is the expected value of a row? The uncertainty of coefficients and shared numbers, carried to the mean."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from robustly.errors import FitError
from robustly.glm.families import Binomial, Exponential, Gamma, NegativeBinomial, Normal, Poisson
from robustly.glm.local import Classical
from robustly.glm.zeros import Tweedie, ZeroInflatedPoisson
from robustly.result.estimates import written_out

if TYPE_CHECKING:
    from robustly.glm.predictive import GLMPredictive

STEP = 1e-5
ON_LOG_SCALE = (Poisson, Gamma, Exponential, NegativeBinomial, ZeroInflatedPoisson, Tweedie)


def mean_interval(predictive: GLMPredictive, level: float, kind: str, groups: Any) -> tuple[np.ndarray, np.ndarray]:
    """The mean on the scale of its predictor, plus and minus its standard error there (the delta method), brought back."""
    from scipy.stats import t

    fit, matrix = predictive.fit, predictive.matrix
    if fit is None or matrix is None:
        raise FitError(
            "an interval of the mean needs the fit: ask fit.predictive(rows) or model.predict_dist(X) for it."
        )
    middle = _on_scale(predictive, predictive.mean)
    error = np.sqrt(np.maximum(_variance_of_mean(predictive, fit, matrix, kind, groups), 0.0))
    dof = fit.reference_dof(kind, groups)[: len(fit.terms)].min()
    wider = max((fit.widening(term, kind) for term in fit.terms), default=1.0)
    if np.isinf(dof) and _has_spread(fit):
        rows, left = float(fit.weight.sum()), float(fit.weight.sum()) - len(fit.vector)
        if left > 0:
            dof, wider = rows - len(fit.terms), float(np.sqrt(rows / left))
    half = float(t.ppf(0.5 + level / 2, dof)) * wider * error
    return _back(predictive, middle - half), _back(predictive, middle + half)


def _has_spread(fit: Any) -> bool:
    """Whether a scale of the rows' own is fitted. Maximum likelihood makes it too small in few rows, as it does that of measurements:
    rows less all fitted numbers go instead of rows, and Student's t with rows less coefficients instead of a normal."""
    return any(label.removesuffix(" (shared)") == "spread" for label in fit.labels[len(fit.terms) :])


def _variance_of_mean(predictive: GLMPredictive, fit: Any, matrix: Any, kind: str, groups: Any) -> np.ndarray:
    size, fitted = len(fit.terms), predictive.fitted
    free = fit.free_covariance(kind, groups)
    shared = fit.labels[size:]
    turn = np.vstack([written_out(fit.jacobian)[:size], np.eye(free.shape[0])[free.shape[0] - len(shared) :]])
    covariance = turn @ free @ turn.T
    covariance[:size, :size] = np.nan_to_num(fit.covariance(kind, groups)[:size, :size])
    x = written_out(matrix).astype(float, copy=False)
    x = np.column_stack([np.ones(len(x)), x]) if fitted.intercept else x
    by_predictor = np.einsum("ni,ij,nj->n", x, covariance[:size, :size], x, optimize=True)
    by_predictor_only = (*ON_LOG_SCALE[:4], Binomial, Normal, Tweedie)
    if predictive.errors is not None or (
        isinstance(fitted.law, Classical) and isinstance(fitted.family, by_predictor_only)
    ):
        return by_predictor  # The mean is a function of the predictor alone.
    slope = _slope(predictive, lambda step: (predictive.m + step, fitted))
    more = []
    for name in shared:
        place = fitted.law.names.index(name.removesuffix(" (shared)"))
        move = lambda step, place=place: np.where(np.arange(len(fitted.phi)) == place, step, 0.0)
        more.append(
            _slope(predictive, lambda step, move=move: (predictive.m, replace(fitted, phi=fitted.phi + move(step))))
        )
    others = np.stack(more, axis=1) if more else np.zeros((len(x), 0))
    mixed = np.einsum("ni,ij,nj->n", x, covariance[:size, size:], others)
    inner = np.einsum("ni,ij,nj->n", others, covariance[size:, size:], others)
    return slope**2 * by_predictor + 2.0 * slope * mixed + inner


def _slope(predictive: GLMPredictive, moved: Any) -> np.ndarray:
    """How fast the mean, on the scale of its predictor, goes along with one number."""

    def at(step: float) -> np.ndarray:
        m, fitted = moved(step)
        there = type(predictive)(fitted, m, predictive.trials)
        return _on_scale(there, there.mean)

    return (at(STEP) - at(-STEP)) / (2.0 * STEP)


def _on_scale(predictive: GLMPredictive, mean: np.ndarray) -> np.ndarray:
    with np.errstate(divide="ignore"):
        if isinstance(predictive.family, ON_LOG_SCALE):
            return np.log(mean)
        if isinstance(predictive.family, Binomial):
            share = mean / predictive.trials
            return np.log(share) - np.log1p(-share)
    return mean


def _back(predictive: GLMPredictive, value: np.ndarray) -> np.ndarray:
    if isinstance(predictive.family, ON_LOG_SCALE):
        return np.exp(np.minimum(value, 709.0))
    if isinstance(predictive.family, Binomial):
        from scipy.special import expit

        return predictive.trials * expit(value)
    return value
