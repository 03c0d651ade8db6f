"""How does a fit pass through marginaleffects? By that package's adapter class: estimates, covariance, predictions.

``marginaleffects`` moves every number of a model a little and predicts again, so what it is given are *all* estimates: the
coefficients, and the spread, shape or degrees of freedom beside them, on which the mean of a robust model depends too.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from robustly.errors import DataError, ModelError, RobustlyError
from robustly.glm.formula_frames import as_pandas
from robustly.glm.predictive import GLMPredictive
from robustly.model.read_design import read_offset
from robustly.result.fit import Fit


def for_marginaleffects(fit: Fit, data: Any) -> Any:
    """The fit as marginaleffects takes models; `data` are the rows it was fitted to."""
    try:
        import marginaleffects  # noqa: F401
        import polars as pl
    except ImportError as error:
        raise RobustlyError(
            "to_marginaleffects() needs the package marginaleffects: pip install marginaleffects."
        ) from error
    formula = fit.model.formula  # type: ignore[attr-defined]
    if formula is None:
        raise ModelError("marginaleffects asks for variables by name: fit by formula, rb.glm(formula, data).")
    frame = as_pandas(data)
    used = len(fit.weight)
    if len(frame) not in (used, used + len(fit.row_labels.dropped)):
        raise DataError(f"the fit was made from {used} rows; got {len(frame)}. Give the data it was fitted to.")
    if len(frame) != used:
        frame = frame.iloc[fit.row_labels.places(np.arange(used))]
    columns = {}
    for name in frame.columns:
        column = frame[name]
        if column.dtype == object or str(column.dtype) in ("str", "string", "category"):
            words = column.astype(str).tolist()
            columns[str(name)] = pl.Series(words, dtype=pl.Enum(sorted(set(words))))
        else:
            columns[str(name)] = pl.Series(column.to_numpy())
    return _adapter_class()(fit, pl.DataFrame(columns))


def _kind_of(column: Any) -> str:
    """A variable as marginaleffects sorts them: its own look at columns of numbers fails from polars 2 on."""
    kind = column.dtype
    if kind.is_numeric():
        two = set(column.unique().to_list()) <= {0, 1}
        return "binary" if two else "integer" if kind.is_integer() else "numeric"
    return "boolean" if str(kind) == "Boolean" else "character"


@cache
def _adapter_class() -> Any:
    """Made when the package is there; what it inherits from belongs to it."""
    import polars as pl
    from marginaleffects.classes import ModelAbstract, ModelVault

    class ModelRobustly(ModelAbstract):  # type: ignore[misc]
        """A fitted regression for marginaleffects' predictions, comparisons, slopes and hypotheses."""

        def __init__(self, fit: Fit, frame: Any) -> None:
            formula = fit.model.formula  # type: ignore[attr-defined]
            response = formula.text.split("~")[0].strip()
            beside = [name for name in formula.given.values() if name not in formula.variables]
            names = [response if response in frame.columns else "response", *formula.variables]
            plain = " + ".join(f"`{name}`" if not name.isidentifier() else name for name in names[1:]) or "1"
            vault = ModelVault(
                coef=np.array(fit.estimates),
                coefnames=np.array(fit.labels),
                formula=f"{names[0]} ~ {plain}",
                modeldata=frame,
                package="robustly",
                variable_names=[*names, *beside],
            )
            super().__init__(fit, vault)

        def validation(self) -> None:
            """What the package checks of a model, and which kind each variable is of."""
            self.coef, self.formula = self.vault.coef, self.vault.formula
            self.response_name = self.vault.variable_names[0]
            self.vault.variables_type = {
                name: _kind_of(self.vault.modeldata[name]) for name in self.vault.modeldata.columns
            }

        def get_vcov(self, vcov: Any = True) -> Any:
            if vcov is False or vcov is None:
                return None
            kinds = {True: "information", "information": "information", "sandwich": "sandwich", "HC0": "sandwich"}
            if isinstance(vcov, bool | str) and vcov in kinds:
                return np.asarray(self.model.covariance(kinds[vcov]))
            raise ModelError(
                f'vcov takes True, False, "HC0" or a matrix such as fit.covariance("cluster", groups); got {vcov!r}.'
            )

        def get_exog(self, newdata: Any) -> Any:
            """Columns of the design, then the offset and the trials of each row."""
            formula = self.model.model.formula
            given = {label: formula.given_of(newdata, label) for label in ("offset", "exposure", "trials")}
            self.model.model.refuse_forgotten(given)
            matrix, within = formula.matrix_of(newdata)
            offset = within + read_offset(given["offset"], given["exposure"], len(within))
            trials = np.ones(len(within)) if given["trials"] is None else np.asarray(given["trials"], dtype=float)
            return np.column_stack([matrix, offset, trials])

        def get_predict(self, params: Any, newdata: Any) -> Any:
            exog = newdata if isinstance(newdata, np.ndarray) else self.get_exog(newdata)
            values, size = np.asarray(params, dtype=float).ravel(), len(self.model.terms)
            fitted = self.model.model.fitted
            phi = np.array(fitted.phi)
            for label, value in zip(self.model.labels[size:], values[size:]):
                name = label.removesuffix(" (shared)")
                phi[fitted.law.names.index(name)] = fitted.law.free(name, float(value))
            moved = replace(fitted, coefficients=values[:size], phi=phi)
            m = moved.predictor(exog[:, :-2], exog[:, -2])
            mean = GLMPredictive(moved, m, exog[:, -1]).mean
            return pl.DataFrame({"rowid": np.arange(len(mean), dtype=np.int32), "estimate": mean})

        def get_df(self) -> float:
            dof = self.model.residual_dof
            return float("inf") if dof is None else float(dof)

    return ModelRobustly
