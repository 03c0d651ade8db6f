"""A regression in words and numbers, laid out as statisticians expect it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from robustly.glm.local import law_asked
from robustly.report.summary import Summary


def summarize_glm(fit: Any, kind: str = "information") -> Summary:
    """Estimates, standard errors, z, p and 95 % intervals of a regression, and how the fit ended."""
    from scipy.stats import norm

    error = np.sqrt(np.maximum(np.diag(fit.covariance(kind)), 0.0))
    interval = fit.confint(0.95, kind)
    estimate = fit._values
    with np.errstate(divide="ignore", invalid="ignore"):
        z = np.where(np.arange(len(estimate)) < len(fit.terms), estimate / error, np.nan)
    frame = pd.DataFrame(
        {
            "estimate": estimate,
            "std. error": error,
            "z": z,
            "p": 2.0 * norm.sf(np.abs(z)),
            "2.5 %": [interval[label][0] for label in fit.labels],
            "97.5 %": [interval[label][1] for label in fit.labels],
        },
        index=pd.Index(fit.labels, name="term"),
    )
    heading = {
        "family": repr(fit.fitted.family),
        "local": law_asked(fit.fitted.family, fit.asked).describe().local,
        "rows": f"{len(fit.weight)}",
        "log likelihood": f"{fit.log_likelihood:.4f}",
        "AIC, BIC": f"{fit.aic:.2f}, {fit.bic:.2f}",
        "evidence by": fit.approximation,
        "standard errors by": ("expected" if fit.fitted.law.kinked else "observed") + " information"
        if kind == "information"
        else "sandwich",
        "outcome": str(fit.outcome),
    }
    return Summary(heading, frame, list(fit.notes))
