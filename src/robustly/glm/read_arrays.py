"""How are columns and responses read that came in scikit-learn's manner? Plain arrays here, everything else by scikit-learn."""

from __future__ import annotations

from typing import Any

import numpy as np

from robustly.errors import DataError, names
from robustly.glm.families import Binomial, Family
from robustly.model.read_design import refuse_missing_columns
from robustly.rows.labels import as_floats, as_numbers


def check_fitted(estimator: Any) -> None:
    """An estimator without a result is refused in scikit-learn's words."""
    if "result_" not in vars(estimator):
        from sklearn.utils.validation import check_is_fitted

        check_is_fitted(estimator)


def read_columns(estimator: Any, X: Any) -> Any:
    """A matrix of floats to fit, which may hold NaN; the estimator is told how many columns there are and their names."""
    if type(X) is np.ndarray and X.ndim == 2 and X.size and X.dtype.kind in "fiub":
        estimator.n_features_in_ = X.shape[1]
        vars(estimator).pop("feature_names_in_", None)
        return np.asarray(X, dtype=np.float64)
    from sklearn.utils.validation import validate_data

    return validate_data(estimator, X, accept_sparse="csr", dtype=np.float64, ensure_all_finite=False)


def read_new_columns(estimator: Any, X: Any) -> Any:
    """The same columns of other rows."""
    from sklearn.utils.validation import validate_data

    check_fitted(estimator)
    refuse_text_columns(X)
    found = validate_data(estimator, X, accept_sparse="csr", dtype=np.float64, ensure_all_finite=False, reset=False)
    terms = getattr(estimator, "feature_names_in_", [f"x{column}" for column in range(found.shape[1])])
    refuse_missing_columns(found if isinstance(found, np.ndarray) else found.data, found, terms)
    return found


def one_column(X: Any, y: Any) -> np.ndarray:
    """A response for every row of `X`."""
    if isinstance(X, np.ndarray) and type(y) is np.ndarray and y.ndim == 1 and len(X.shape) and len(X) == len(y):
        return y
    from sklearn.utils.validation import check_consistent_length, column_or_1d

    response = column_or_1d(y, warn=True)
    check_consistent_length(X, response)
    return response


def refuse_measurements(y: np.ndarray) -> None:
    """Classes are whole numbers, truth values or words."""
    if y.dtype.kind in "biuU" or (y.dtype.kind == "f" and bool(np.all(y == np.floor(y)))):
        return
    from sklearn.utils.multiclass import check_classification_targets

    check_classification_targets(y)


def refuse_no_response(y: Any) -> None:
    if y is None:
        raise DataError("y is missing: this estimator requires y to be passed, but the target y is None.")


def response_of(X: Any, y: Any, family: Family) -> np.ndarray:
    """One column, or for a binomial family two: successes and failures."""
    y = np.asarray(as_numbers(y, "y"))
    if y.ndim == 2 and y.shape[1] == 2:
        if isinstance(family, Binomial) and not family.yes_or_no:
            return y
        raise DataError(
            f"y should be a 1d array, got an array of shape {y.shape} instead: {family} has one response a row. Fit one "
            'column at a time; successes and failures side by side are for family="binomial".'
        )
    response = one_column(X, y)
    return as_floats(response, "y") if response.dtype == object else response


def refuse_text_columns(X: Any) -> None:
    """Columns of text or dates, by name: scikit-learn would only say that it cannot convert them."""
    if isinstance(X, np.ndarray) or not hasattr(X, "columns"):
        return
    import narwhals as nw

    there = [str(name) for name in X.columns]
    doubled = next((name for name in there if there.count(name) > 1), None) if len(set(there)) < len(there) else None
    if doubled is not None:
        raise DataError(f'X has {there.count(doubled)} columns called "{doubled}". Rename or drop all but one.')
    frame = nw.from_native(X, eager_only=True, pass_through=True)
    if not isinstance(frame, nw.DataFrame):
        return
    texts = [name for name, kind in frame.schema.items() if not (kind.is_numeric() or kind in (nw.Boolean, nw.Object))]
    if texts:
        raise DataError(
            f"the columns {names(map(str, texts))} of X are not numbers. Encode them, or write a formula: "
            'rb.glm("y ~ C(column)", data).'
        )
