"""What all regressions share with scikit-learn: reading, keeping, predicting, saving."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils.validation import check_consistent_length, check_is_fitted, column_or_1d, validate_data

from robustly.errors import DataError, PersistError, names
from robustly.glm.families import FAMILIES, Family
from robustly.glm.fit import fit_glm
from robustly.glm.predictive import GLMPredictive
from robustly.glm.result import regression_of
from robustly.glm.stored import stored_design, stored_predictor
from robustly.model.linear import Design, read_design, read_offset
from robustly.result import persist
from robustly.result.fit import Fit
from robustly.result.saved import to_saved
from robustly.rows.anywhere import as_stored
from robustly.rows.stored import Stored


class GLMEstimator(BaseEstimator):
    """What all regressions share."""

    result_: Fit
    coef_: Any
    intercept_: Any
    n_iter_: int

    def _family(self) -> Family:
        raise NotImplementedError

    def _options(self) -> dict[str, Any]:
        """What is passed on to the fit."""
        own = self.get_params(deep=False)
        passed = ("local", "prior", "approx", "solver", "hyperprior", "dof", "spread", "tol", "max_iter")
        return {name: own[name] for name in passed if name in own}

    def _design(self, X: Any, y: Any, sample_weight: Any, offset: Any, exposure: Any, trials: Any = None) -> Design:
        stored = as_stored(X)
        if stored is not None:
            return self._stored_design(stored, y, sample_weight, offset, exposure, trials)
        response = response_of(X, y)
        refuse_text_columns(X)
        matrix = validate_data(self, X, accept_sparse="csr", dtype=np.float64, ensure_all_finite=False)
        return self._read(matrix, response, sample_weight, offset, exposure, trials)

    def _stored_design(
        self,
        X: Stored,
        y: Any,
        sample_weight: Any,
        offset: Any,
        exposure: Any,
        trials: Any,
        classes: tuple[Any, ...] = (),
    ) -> Design:
        """Columns that are not in memory: what goes along with them are names of columns, or columns of the same rows."""
        given = {"weight": sample_weight, "offset": offset, "exposure": exposure, "trials": trials}
        design = stored_design(X, y, given, intercept=self.fit_intercept, ridge=self.alpha, classes=classes)  # type: ignore[attr-defined]
        self.n_features_in_ = design.width
        self.feature_names_in_ = np.array(design.terms[int(design.intercept) :], dtype=object)
        return design

    def _read(self, matrix: Any, y: Any, sample_weight: Any, offset: Any, exposure: Any, trials: Any) -> Design:
        terms = (
            [str(name) for name in self.feature_names_in_]
            if hasattr(self, "feature_names_in_")
            else [f"x{j}" for j in range(matrix.shape[1])]
        )
        return read_design(
            matrix,
            y,
            terms,
            intercept=self.fit_intercept,
            weight=sample_weight,
            offset=offset,  # type: ignore[attr-defined]
            exposure=exposure,
            trials=trials,
            ridge=self.alpha,  # type: ignore[attr-defined]
        )

    def _matrix(self, X: Any) -> Any:
        check_is_fitted(self)
        refuse_text_columns(X)
        return validate_data(self, X, accept_sparse="csr", dtype=np.float64, ensure_all_finite=True, reset=False)

    def _predictor(self, X: Any, offset: Any = None, exposure: Any = None) -> np.ndarray:
        stored = as_stored(X)
        if stored is not None:
            check_is_fitted(self)
            return stored_predictor(stored, self._names_in(), regression_of(self.result_).fitted, offset, exposure)
        matrix = self._matrix(X)
        return regression_of(self.result_).fitted.predictor(matrix, read_offset(offset, exposure, matrix.shape[0]))

    def _names_in(self) -> list[str]:
        return [str(name) for name in getattr(self, "feature_names_in_", ())]

    def predict_dist(self, X: Any, *, offset: Any = None, exposure: Any = None, trials: Any = None) -> GLMPredictive:
        """The predictive distribution of every row, averaged over rows' own values: mean, sd, quantile …"""
        m = self._predictor(X, offset, exposure)
        counted = None if trials is None else np.broadcast_to(np.asarray(trials, dtype=float), m.shape)
        return GLMPredictive(regression_of(self.result_).fitted, m, counted)

    def surprise(self, X: Any, y: Any, *, offset: Any = None, exposure: Any = None, trials: Any = None) -> np.ndarray:
        """Minus the log predictive density of every row: large for rows that do not belong."""
        predictive = self.predict_dist(X, offset=offset, exposure=exposure, trials=trials)
        return -predictive.log_prob(self._response(y))

    def _response(self, y: Any) -> np.ndarray:
        return np.asarray(y, dtype=float)

    @property
    def surprise_(self) -> np.ndarray:
        """The surprise of every row the model was fitted to."""
        check_is_fitted(self)
        return self.result_.surprise

    def outliers(self, fdr: float | None = None, level: float | None = None) -> np.ndarray:
        """Rows of the fitted data that do not belong, most surprising first; see :meth:`Fit.outliers`."""
        check_is_fitted(self)
        return self.result_.outliers(fdr=fdr, level=level)

    def summary(self) -> Any:
        """The table of estimates; see :meth:`Fit.summary`."""
        check_is_fitted(self)
        return self.result_.summary()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted model to one file; read it with ``rb.load``."""
        check_is_fitted(self)
        params = {}
        for name, value in self.get_params(deep=False).items():
            if isinstance(value, Family):
                known = {made: text for text, made in FAMILIES.items()}
                value = known.get(type(value))
            if not isinstance(value, str | int | float | bool | None):
                raise PersistError(f"{name}={value!r} cannot be kept in a file. Keep model.result_.save(path) instead.")
            params[name] = value
        meta, arrays = to_saved(self.result_)
        more: dict[str, Any] = {
            "class": type(self).__name__,
            "params": params,
            "fit": meta,
            "features": self.n_features_in_,
        }
        if hasattr(self, "feature_names_in_"):
            more["feature_names"] = [str(name) for name in self.feature_names_in_]
        if hasattr(self, "classes_"):
            more["classes"] = self.classes_.tolist()
        persist.write(path, "glm_estimator", more, arrays)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags


class RowRegressor(RegressorMixin, GLMEstimator):
    """Regressions with one numeric response."""

    def fit(
        self,
        X: Any,
        y: Any,
        sample_weight: Any = None,
        *,
        offset: Any = None,
        exposure: Any = None,
        checkpoint: Any = None,
    ) -> Any:
        """Fit to rows `X` (n, d), dense, sparse or a frame, and responses `y` (n,).

        Of rows in Parquet files, `X` is ``rb.parquet(path, columns=[…])`` and `y` the name of a column; so are the others.
        `sample_weight` says how often each row counts, `offset` is added to the predictor, the log of `exposure` too.
        `checkpoint` names a folder from which the same call goes on after its process was killed.
        """
        return self._fit(X, y, sample_weight, offset, exposure, checkpoint=checkpoint)

    def _fit(
        self,
        X: Any,
        y: Any,
        sample_weight: Any,
        offset: Any,
        exposure: Any,
        trials: Any = None,
        checkpoint: Any = None,
    ) -> Any:
        refuse_no_response(y)
        design = self._design(X, y, sample_weight, offset, exposure, trials)
        keep_fit(self, fit_glm(design, self._family(), checkpoint=checkpoint, **self._options()))
        return self

    def predict(self, X: Any, kind: str = "typical", *, offset: Any = None, exposure: Any = None) -> np.ndarray:
        """The expected response: of a ``"typical"`` row (own value at the centre), or ``"marginal"``, over all rows."""
        stored = as_stored(X)
        if stored is not None:
            check_is_fitted(self)
            fitted = regression_of(self.result_).fitted
            return stored_predictor(stored, self._names_in(), fitted, offset, exposure, kind)
        return self.predict_dist(X, offset=offset, exposure=exposure).of_kind(kind)


def refuse_no_response(y: Any) -> None:
    if y is None:
        raise DataError("y is missing: this estimator requires y to be passed, but the target y is None.")


def response_of(X: Any, y: Any) -> np.ndarray:
    y = np.asarray(y)
    if y.ndim == 2 and y.shape[1] == 2:
        return y
    response = column_or_1d(y, warn=True)
    check_consistent_length(X, response)
    if response.dtype == object:
        try:
            response = response.astype(np.float64)
        except (TypeError, ValueError) as error:
            raise DataError(f"y holds something that is not a number: {error}.") from None
    return response


def refuse_text_columns(X: Any) -> None:
    """Columns of text or dates, by name: scikit-learn would only say that it cannot convert them."""
    if isinstance(X, np.ndarray) or not hasattr(X, "columns"):
        return
    import narwhals as nw

    frame = nw.from_native(X, eager_only=True, pass_through=True)
    if not isinstance(frame, nw.DataFrame):
        return
    texts = [name for name, kind in frame.schema.items() if not (kind.is_numeric() or kind in (nw.Boolean, nw.Object))]
    if texts:
        raise DataError(
            f"the columns {names(map(str, texts))} of X are not numbers. Encode them, or write a formula: "
            'rb.glm("y ~ C(column)", data).'
        )


def keep_fit(model: GLMEstimator, result: Fit) -> None:
    """Give an estimator its result, and the fitted numbers under scikit-learn's names."""
    model.result_ = result
    model.n_iter_ = max(1, len(result.history))
    fitted = regression_of(result).fitted
    first = int(fitted.intercept)
    model.coef_ = fitted.coefficients[first:]
    model.intercept_ = float(fitted.coefficients[0]) if first else 0.0
    for name in ("spread", "dof", "scale", "flip"):
        value = getattr(result, name)
        if value is not None:
            setattr(model, f"{name}_", float(value))
        elif hasattr(model, f"{name}_"):
            delattr(model, f"{name}_")
