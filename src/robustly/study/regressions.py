"""Which regressions are compared, and what is noted of each? One training set, all methods, one line a method.

All are this package's own estimators, the rivals too: the classical model is ``local=None``, the negative binomial a
family like another. A method that raises, or whose figures are not finite, is kept as a failed line.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from robustly.errors import RobustlyError
from robustly.glm.estimators import RobustGLM, RobustLinearRegression, RobustPoissonRegression
from robustly.glm.families import Bernoulli, Poisson
from robustly.glm.logistic import RobustLogisticRegression
from robustly.study import metrics
from robustly.study.simulate import Task, Trial, draw

FIXED = (0.1, 0.5, 1.0)
"""Spreads at which the paper's separate study (its values are not printed) is run again."""
PATIENCE = 300
"""Passes of Algorithm 1, which on 0/1 rows creeps along a ridge and would not come to rest in thousands."""
SETTLED = ("converged", "boundary")


@dataclass(frozen=True)
class Method:
    """An estimator in the comparison, and what it is called in CSV files and in words."""

    name: str
    words: str
    make: Callable[[bool], Any]
    intercepts: tuple[bool, ...] = (True,)
    variants: tuple[str, ...] | None = None
    """Where it is tried; None for everywhere."""


def _logistic_estimator(intercept: bool, **options: Any) -> RobustLogisticRegression:
    return RobustLogisticRegression(fit_intercept=intercept, **options)


def _poisson_estimator(intercept: bool, **options: Any) -> RobustPoissonRegression:
    return RobustPoissonRegression(fit_intercept=intercept, **options)


BOTH = (True, False)
EM = {"approx": "laplace", "solver": "em", "max_iter": PATIENCE}
# A few in a hundred of these fits wander; thirty passes are twice what the others need.
CAUCHY = {"prior": "student_t", "dof": 1.0, "max_iter": 30}
METHODS: dict[str, tuple[Method, ...]] = {
    "linear": (
        Method("classical", "classical (least squares)", lambda b: RobustGLM("normal", local=None, fit_intercept=b)),
        Method("robust", "robust (own precisions)", lambda b: RobustLinearRegression(fit_intercept=b)),
    ),
    # The true model has no intercept and the paper's equations have none.
    "logistic": (
        Method("classical", "classical", lambda b: _logistic_estimator(b, local=None), (False,)),
        Method("robust", "robust (own log odds, normal)", lambda b: _logistic_estimator(b), (False,)),
        Method("algorithm1", "the same by the paper's Algorithm 1", lambda b: _logistic_estimator(b, **EM), (False,), ("near",)),
        Method("laplace", "own log odds, Laplace", lambda b: _logistic_estimator(b, prior="laplace"), (False,)),
        Method("t4", "own log odds, Student-t with 4 dof", lambda b: _logistic_estimator(b, prior="student_t", dof=4.0), (False,)),
        Method("cauchy", "own log odds, Student-t with 1 dof", lambda b: _logistic_estimator(b, **CAUCHY), (False,)),
        Method("label", "own label (may be wrong)", lambda b: _logistic_estimator(b, local="label"), (False,)),
    ),
    "poisson": (
        Method("classical", "classical", lambda b: RobustGLM("poisson", local=None, fit_intercept=b), BOTH),
        Method("nb", "negative binomial", lambda b: RobustGLM("negative_binomial", local=None, fit_intercept=b), BOTH),
        Method("robust", "robust (own log rates, normal)", lambda b: _poisson_estimator(b), BOTH),
        Method("algorithm1", "the same by the paper's Algorithm 1", lambda b: _poisson_estimator(b, **EM), BOTH, ("lognormal",)),
        *(Method(f"fixed{at:g}", f"spread held at {at:g}", partial(_poisson_estimator, spread=at), BOTH) for at in FIXED),
        Method("t4", "own log rates, Student-t with 4 dof", lambda b: _poisson_estimator(b, prior="student_t"), (True,), ("gross",)),
    ),
}  # fmt: skip


def methods_of(experiment: str, variant: str) -> tuple[Method, ...]:
    """The methods tried on a variant."""
    return tuple(m for m in METHODS[experiment] if m.variants is None or variant in m.variants)


COMMON = ("variant", "level", "repetition", "method", "intercept", "outcome", "failure", "seconds")
COLUMNS: dict[str, tuple[str, ...]] = {
    "linear": (*COMMON, "pL1", "pR2", "mse", "pL1_without_b", "pR2_without_b", "dof", "scale"),
    "logistic": (*COMMON, "error", "nll_plugin", "nll_integrated", "mse", "mse_attenuated", "misdirection", "spread", "flip"),
    "poisson": (*COMMON, "pL1", "nll_plugin", "nll_integrated", "mse", "spread"),
}  # fmt: skip
"""What a line of each CSV file holds."""
MEASURES = ("pL1", "pR2", "error", "nll_plugin", "nll_integrated", "mse", "misdirection")
"""Of these, what a fit must have to be compared."""


def run_regressions(task: Task, seed: int, only: Collection[str] | None = None) -> list[dict[str, Any]]:
    """Fit every method, or `only` some, to the task's training rows; one line a method."""
    trial = draw(task, seed)
    lines = []
    for method in methods_of(task.experiment, task.variant):
        if only is not None and method.name not in only:
            continue
        for intercept in method.intercepts:
            line: dict[str, Any] = dict.fromkeys(COLUMNS[task.experiment], np.nan)
            line |= {"variant": task.variant, "level": task.level, "repetition": task.repetition}
            line |= {"method": method.name, "intercept": intercept, "outcome": "failed", "failure": ""}
            began = time.process_time()
            try:
                with warnings.catch_warnings(), np.errstate(all="ignore"):
                    warnings.simplefilter("ignore")
                    model = method.make(intercept).fit(trial.X, trial.y)
                    line["seconds"] = round(time.process_time() - began, 4)
                    line |= _MEASURES[task.experiment](model, trial)
                line["outcome"] = model.result_.outcome.kind
                lost = [name for name in MEASURES if name in line and not np.isfinite(line[name])]
                if lost:
                    raise RobustlyError(f"not finite: {', '.join(lost)}")
            except (ValueError, ArithmeticError, np.linalg.LinAlgError) as error:
                line["outcome"], line["failure"] = "failed", " ".join(f"{type(error).__name__}: {error}".split())[:200]
            lines.append(line)
    return lines


def _measure_linear(model: Any, trial: Trial) -> dict[str, float]:
    without = trial.X_test @ model.coef_
    linear = without + model.intercept_
    return {
        "pL1": metrics.predictive_l1(trial.y_test, linear),
        "pR2": metrics.predictive_r2(trial.y_test, linear),
        "mse": metrics.mean_squared_error(model.coef_, trial.w),
        "pL1_without_b": metrics.predictive_l1(trial.y_test, without),
        "pR2_without_b": metrics.predictive_r2(trial.y_test, without),
        "dof": getattr(model, "dof_", np.nan),
        "scale": getattr(model, "scale_", np.nan),
    }


def _measure_logistic(model: Any, trial: Trial) -> dict[str, float]:
    w = model.coef_[0]
    linear = trial.X_test @ w + model.intercept_[0]
    return {
        "error": metrics.class_error(trial.y_test, linear),
        "nll_plugin": metrics.plug_in_nll(Bernoulli(), trial.y_test, linear),
        "nll_integrated": metrics.integrated_nll(model.predict_dist(trial.X_test), trial.y_test),
        "mse": metrics.mean_squared_error(w, trial.w),
        "mse_attenuated": metrics.mean_squared_error(model.attenuated_coef_[0], trial.w),
        "misdirection": metrics.misdirection(w, trial.w),
        "spread": getattr(model, "spread_", np.nan),
        "flip": getattr(model, "flip_", np.nan),
    }


def _measure_poisson(model: Any, trial: Trial) -> dict[str, float]:
    linear = trial.X_test @ model.coef_ + model.intercept_
    return {
        "pL1": metrics.predictive_l1(trial.y_test, np.exp(np.minimum(linear, 700.0))),
        "nll_plugin": metrics.plug_in_nll(Poisson(), trial.y_test, linear),
        "nll_integrated": metrics.integrated_nll(model.predict_dist(trial.X_test), trial.y_test),
        "mse": metrics.mean_squared_error(model.coef_, trial.w),
        "spread": getattr(model, "spread_", np.nan),
    }


_MEASURES: dict[str, Callable[[Any, Trial], dict[str, float]]] = {
    "linear": _measure_linear,
    "logistic": _measure_logistic,
    "poisson": _measure_poisson,
}
