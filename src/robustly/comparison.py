"""Which model, and which rows made the difference? Fits of the same rows side by side."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from robustly.errors import DataError, ModelError

MOST = 10


@dataclass(frozen=True, eq=False)
class Comparison:
    """Fits side by side: `coefficients`, `scores`, and the `rows` that moved the classical fit most."""

    coefficients: pd.DataFrame
    scores: pd.DataFrame
    rows: pd.DataFrame

    def __str__(self) -> str:
        parts = [
            "coefficients",
            self.coefficients.to_string(float_format="{:.4g}".format),
            "",
            "fit",
            self.scores.to_string(float_format="{:.2f}".format),
        ]
        if len(self.rows):
            moved = self.rows.to_string(float_format="{:.4g}".format, index=False)
            parts += ["", "rows that moved the classical fit most", moved]
        return "\n".join(parts)

    __repr__ = __str__

    def to_html(self) -> str:
        """The same as an HTML fragment."""
        scores = self.scores.to_html(border=0, float_format="{:.4g}".format)
        return self.coefficients.to_html(border=0) + scores + self.rows.to_html(border=0, index=False)

    _repr_html_ = to_html


def compare(*models: Any, **named: Any) -> Comparison:
    """Put regressions fitted to the same rows side by side.

    Args:
        models: two or more fitted estimators or fits, at best one of them classical (``local=None``).
        named: more of them, with the names they are to be shown under.

    LOO is the log predictive density of each row given all others, by the integrated likelihood, summed over rows that
    the others can predict in all fits (rows of leverage one, ``fit.leverage_one``, are left out); its difference from the
    best is shown with the standard error of that difference. A row's influence is how far the classical fit's coefficients
    move, in units of their covariance, when the row is left out.

    Example:
        >>> import numpy as np, robustly.glm as rg
        >>> X, y = np.arange(9.0)[:, None], np.array([1, 1, 2, 4, 40, 6, 9, 10, 19])
        >>> both = compare(classical=rg.RobustGLM(local=None).fit(X, y), robust=rg.RobustGLM().fit(X, y))
        >>> int(both.rows["row"].iloc[0])
        4
    """
    fits = [_fit_of(model) for model in (*models, *named.values())]
    if len(fits) < 2:
        raise ModelError(f"compare takes two or more fitted models; got {len(fits)}.")
    sizes = {len(fit.weight) for fit in fits}
    if len(sizes) > 1:
        raise DataError(
            f"the models were fitted to different numbers of rows ({sorted(sizes)}), so they cannot be compared."
        )
    _refuse_other_rows(fits)
    labels = _labels(fits[: len(models)]) + list(named)
    coefficients = pd.concat(
        {
            label: pd.DataFrame({"estimate": fit.coefficients, "std. error": fit.standard_errors})
            for label, fit in zip(labels, fits)
        },
        axis=1,
        sort=False,
    )
    loo = np.stack([fit.loo_by_row for fit in fits])
    weight = fits[0].weight.copy()
    weight[np.concatenate([fit.leverage_one for fit in fits])] = 0.0
    if not weight.any():
        raise DataError("every row has leverage one (as many columns as rows), so no row predicts another.")
    best = int(np.argmax(loo @ weight))
    away = loo - loo[best]
    scores = pd.DataFrame(
        {
            "log likelihood": [fit.log_likelihood for fit in fits],
            "parameters": [len(fit.vector) for fit in fits],
            "AIC": [fit.aic for fit in fits],
            "LOO": loo @ weight,
            "LOO difference": away @ weight,
            "its std. error": np.sqrt(weight.sum())
            * np.sqrt(
                np.average((away - np.average(away, axis=1, weights=weight)[:, None]) ** 2, axis=1, weights=weight)
            ),
            "spread": [np.nan if fit.spread is None else fit.spread for fit in fits],
            "outcome": [fit.outcome.kind for fit in fits],
        },
        index=labels,
    )
    return Comparison(coefficients, scores, _moved(labels, fits))


def _refuse_other_rows(fits: list[Any]) -> None:
    """Log densities are compared row by row: the responses have to be the same, and so have the weights."""
    keys = [fit.model.response_key() for fit in fits]
    known = [key for key in keys if key is not None]
    if any(key != known[0] for key in known):
        raise DataError(
            "the models were fitted to different responses, so their log likelihoods and LOO cannot be compared. Fit all of "
            "them to the same response, in the same units and the same order of rows."
        )
    if any(not np.array_equal(fit.weight, fits[0].weight) for fit in fits):
        raise DataError("the models were fitted with different weights of rows, so they cannot be compared.")
    kinds = {bool(fit.fitted.family.discrete) for fit in fits}
    if len(kinds) > 1:
        raise ModelError(
            "some of the models give counts probabilities, the others give measurements densities, and the two cannot be "
            "compared: densities change with the units. Compare models of counts, or models of measurements."
        )


def _moved(labels: list[str], fits: list[Any]) -> pd.DataFrame:
    """The rows of greatest influence on the classical fit, and how surprising every model finds them."""
    plain = [fit for fit in fits if fit.asked.get("local") is None and fit.source is not None]
    if not plain:
        return pd.DataFrame()
    influence = plain[0].influence
    top = np.argsort(-influence, kind="stable")[:MOST]
    return pd.DataFrame(
        {
            "row": plain[0].row_labels.of(top),
            "influence": influence[top],
            **{f"surprise, {n}": fit.surprise[top] for n, fit in zip(labels, fits)},
        }
    )


def _fit_of(model: Any) -> Any:
    fit = getattr(model, "result_", model)
    if not getattr(fit, "terms", ()):
        raise ModelError(f"compare takes fitted regressions; got {type(model).__name__}. Call fit first.")
    return fit


def _labels(fits: list[Any]) -> list[str]:
    found: list[str] = []
    for fit in fits:
        local = fit.asked.get("local")
        name = "classical" if local is None else f"robust ({local})"
        found.append(name if name not in found else f"{name} {len(found) + 1}")
    return found
