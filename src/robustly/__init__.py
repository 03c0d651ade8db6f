"""Robust Bayesian modelling: localize a parameter of the model you have, and fit its prior.

Names are imported when they are first used; importing the package computes nothing and changes no JAX setting.
"""

from __future__ import annotations

import importlib
from typing import Any

from robustly._runtime.undisturbed import undisturbed
from robustly.result import views

__version__ = "0.1.0"

_HOMES = {
    "RobustlyError": "errors",
    "DataError": "errors",
    "SupportError": "errors",
    "LocalizeError": "errors",
    "ModelError": "errors",
    "FitError": "errors",
    "NotFittedError": "errors",
    "PersistError": "errors",
    "ConvergenceWarning": "errors",
    "HeavyTailsWarning": "errors",
    "IdentifiabilityWarning": "errors",
    "ManyLevelsWarning": "errors",
    "load": "result.persist",
    "localize": "localized",
    "classical": "localized",
    "integrate": "localized",
    "Localized": "localized",
    "fit_rows": "localized",
    "RowModel": "model.row",
    "Fit": "result.fit",
    "Outcome": "fit.outcome",
    "Approximation": "approx",
    "Exact": "approx",
    "Laplace": "approx",
    "Quadrature": "approx",
    "QMC": "approx",
    "GaussianVI": "approx",
    "MeanField": "approx",
    "LDA": "topics",
    "Family": "glm.families",
    "RobustGLM": "glm.estimators",
    "RobustLinearRegression": "glm.estimators",
    "RobustLogisticRegression": "glm.estimators",
    "RobustMultinomialRegression": "glm.multinomial",
    "RobustPoissonRegression": "glm.estimators",
    "compare": "comparison",
    "parquet": "rows.parquet",
    "anova": "comparison",
    "RobustLDA": "topics",
    "RobustGaussianMixture": "mixture",
    "BayesianRobustGaussianMixture": "mixture",
    "RobustGaussianHMM": "series",
}
_MODULES = {
    **{
        name: name
        for name in (
            "approx",
            "conjugate",
            "errors",
            "fit",
            "glm",
            "localized",
            "mixture",
            "model",
            "report",
            "result",
            "rows",
            "series",
            "testing",
            "topics",
        )
    },
    # Names of 0.1 whose modules have moved.
    "persist": "result.persist",
    "predict": "localized.predictor",
}

# Figures and pages of a fit, which stand further down the line of imports than the fit.
views.register(
    {
        "plot_coefficients": "robustly.report.plots:plot_coefficients",
        "plot_rows": "robustly.report.plots:plot_rows",
        "plot_prior": "robustly.report.plots:plot_prior",
        "plot_pit": "robustly.report.plots:plot_pit",
        "plot_effects": "robustly.report.groups:plot_effects",
        "group_report": "robustly.report.groups:write_group_page",
        "report": "robustly.report.regression:write_report",
        "localized_series": "robustly.series.model:LocalizedSeries",
        "series_report": "robustly.report.series:write_series_page",
    }
)

__all__ = sorted([*_HOMES, *_MODULES, "__version__"])


def __getattr__(name: str) -> Any:
    with undisturbed():
        if name in _HOMES:
            return getattr(importlib.import_module(f"robustly.{_HOMES[name]}"), name)
        if name in _MODULES:
            return importlib.import_module(f"robustly.{_MODULES[name]}")
    raise AttributeError(f"module 'robustly' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
