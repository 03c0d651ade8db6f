"""Which model, and which rows made the difference? Fits of the same rows side by side, and tests of nested ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from robustly.errors import DataError, ModelError
from robustly.result.hypotheses import likelihood_ratio

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
    refuse_other_rows(fits)
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


def refuse_other_rows(fits: list[Any]) -> None:
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


def anova(*models: Any, **named: Any) -> pd.DataFrame:
    """Likelihood-ratio tests of regressions fitted to the same rows, each against the one before it.

    Args:
        models: two or more fitted estimators or fits of one family, from the smallest to the largest, each a special case
            of the next: fewer terms, or the classical model (``local=None``) of a robust one.
        named: more of them, with the names they are to be shown under.

    Where the smaller model is the edge of the larger one (no spread of rows' own values, normal tails, no wrong labels), the
    statistic is compared with an even mixture of chi-squared laws (Self & Liang 1987): the usual one would double p. For
    models that are not nested, see :func:`robustly.compare`.

    Example:
        >>> import robustly as rb
        >>> frame = pd.DataFrame({"y": [1, 1, 2, 4, 5, 6, 9, 10], "x": range(8), "z": [1, 0, 0, 1, 0, 1, 0, 1]})
        >>> table = anova(*(rb.glm(f"y ~ {right}", frame, local=None) for right in ("x", "x + z")))
        >>> int(table["df"].iloc[1])
        1
    """
    fits = [getattr(model, "result_", model) for model in (*models, *named.values())]
    if len(fits) < 2 or not all(getattr(fit, "terms", ()) for fit in fits):
        raise ModelError("anova takes two or more fitted regressions, the smallest first.")
    refuse_other_rows(fits)
    labels = [f"model {place + 1}" for place in range(len(models))] + list(named)
    lines: list[list[Any]] = [[fits[0].log_likelihood, _parameters_asked(fits[0]), np.nan, np.nan, np.nan, False]]
    for label, small, large in zip(labels[1:], fits, fits[1:]):
        _refuse_not_nested(small, large, label)
        df = _parameters_asked(large) - _parameters_asked(small)
        edge = small.asked.get("local") is None and large.asked.get("local") is not None
        found = likelihood_ratio(label, large.log_likelihood - small.log_likelihood, df, edge)
        lines.append([large.log_likelihood, _parameters_asked(large), found.statistic, df, found.pvalue, edge])
    columns = ["log likelihood", "parameters", "chi2", "df", "p", "at an edge"]
    table = pd.DataFrame(lines, columns=columns, index=pd.Index(labels, name="model"))
    return table.astype({"df": "Int64"})


def _parameters_asked(fit: Any) -> int:
    """How many numbers the model has, were it not for an edge that the fit ended at."""
    at_edge = [name for name in fit.model.edges if name not in fit.shared]
    return len(fit.vector) + (min(1, len(at_edge)) if fit.outcome.kind == "boundary" else 0)


def _refuse_not_nested(small: Any, large: Any, label: str) -> None:
    families = [repr(fit.fitted.family) for fit in (small, large)]
    if families[0] != families[1]:
        raise ModelError(
            f"{label} has the family {families[1]} and the model before it {families[0]}: not nested. See rb.compare."
        )
    laws = [(fit.asked.get("local"), fit.asked.get("prior")) for fit in (small, large)]
    if laws[0][0] is not None and laws[0] != laws[1]:
        raise ModelError(
            f"{label} has another local or prior than the model before it, so they are not nested. See rb.compare."
        )
    if _parameters_asked(large) <= _parameters_asked(small):
        raise ModelError(
            f"{label} has {_parameters_asked(large)} parameters and the model before it {_parameters_asked(small)}. Give the smallest model first."
        )
    if set(small.terms) <= set(large.terms):
        return
    columns = [fit.need_source("anova").design.directions() for fit in (small, large)]
    left = columns[0] - columns[1] @ np.linalg.lstsq(columns[1], columns[0], rcond=None)[0]
    if np.abs(left).max() > 1e-7 * np.abs(columns[0]).max():
        raise ModelError(
            f"{label} does not have all terms of the model before it, so they are not nested. See rb.compare."
        )
