"""Logistic regression with log odds of its own for every row, or labels that may be wrong."""

from __future__ import annotations

from typing import Any, Self

import numpy as np

from robustly._runtime.estimator import as_before_if_stopped, with_parameters
from robustly._runtime.late_bases import Classifier
from robustly.errors import DataError, names
from robustly.glm.base import (
    GLMEstimator,
    OwnPredictors,
    given_by_row,
    keep_fit,
)
from robustly.glm.families import Bernoulli, Binomial, Family
from robustly.glm.fit import fit_glm
from robustly.glm.predictive import of_kind
from robustly.glm.read_arrays import check_fitted, one_column, refuse_measurements, refuse_no_response
from robustly.glm.result import regression_of
from robustly.model.linear import Design
from robustly.model.read_design import Given
from robustly.rows.anywhere import as_stored
from robustly.rows.labels import as_numbers


@with_parameters
class RobustLogisticRegression(Classifier, GLMEstimator, OwnPredictors):
    r"""Logistic regression in which every row has its own log odds, or may carry a wrong label.

    ``local="logit"`` is Wang & Blei's: :math:`\eta_i \sim N(b + x_i w, \mathrm{spread}^2)`. With 0/1 responses the
    spread and the size of `coef_` cannot be told apart, so a weak hyperprior holds the spread, a warning says so, and
    `attenuated_coef_` is the scale both agree on; it does *not* resist wrong labels. ``local="label"`` does: each label
    is wrong with a fitted probability `flip_`. Counts of successes (`trials`) identify the spread.

    Args:
        local: ``"logit"``, ``"label"``, or None for the classical model.
        hyperprior: ``"auto"`` (Gamma(2, 1) for 0/1 rows), None for maximum likelihood, or a NumPyro distribution.
        prior, approx, solver, dof, spread, fit_intercept, alpha, tol, max_iter, na_action: as in :class:`RobustPoissonRegression`.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> X = rng.normal(size=(300, 2)) * 2
        >>> y = np.where(X[:, 0] + 0.3 * rng.logistic(size=300) > 0, "yes", "no")
        >>> far = np.argsort(-np.abs(X[:, 0]))[:20]
        >>> y[far] = np.where(y[far] == "yes", "no", "yes")
        >>> model = RobustLogisticRegression(local="label").fit(X, y)
        >>> bool(0.03 < model.flip_ < 0.12), len(set(model.outliers()) & set(far)) > 15
        (True, True)
    """

    local: str | None = "logit"
    hyperprior: Any = "auto"

    def _family(self) -> Family:
        return Bernoulli() if self._single else Binomial()

    _single = True

    def _options(self) -> dict[str, Any]:
        return {**super()._options(), "local": "predictor" if self.local == "logit" else self.local}

    @as_before_if_stopped
    def fit(
        self,
        X: Any,
        y: Any,
        sample_weight: Given = None,
        *,
        offset: Given = None,
        trials: Given = None,
        checkpoint: Any = None,
    ) -> Self:
        """Fit to rows `X` (n, d) and two classes `y`, or counts of successes with `trials`; others as in other regressions."""
        refuse_no_response(y)
        stored = as_stored(X)
        if stored is not None:
            from robustly.glm.stored import classes_in

            self._single = trials is None
            self.classes_ = classes_in(stored, y) if self._single else np.array([0, 1])
            classes = tuple(self.classes_.tolist()) if self._single else ()
            there = self._stored_design(stored, y, sample_weight, offset, None, trials, classes)
            return self._keep(there, needs=given_by_row(offset=offset), checkpoint=checkpoint)
        X, beside, labels = self._rows(X, as_numbers(y, "y"), sample_weight, offset, None, trials)
        y, sample_weight, offset, _, trials = beside.values()
        y = np.asarray(y)
        counted = trials is not None or (y.ndim == 2 and y.shape[1] == 2)
        self._single = not counted
        if counted:
            self.classes_ = np.array([0, 1])
            response: Any = np.asarray(y, dtype=float)
        else:
            response = self._classes(X, y)
        design = self._read(X, response, sample_weight, offset, None, trials)
        return self._keep(design, needs=given_by_row(offset=offset), labels=labels, checkpoint=checkpoint)

    def _keep(self, design: Design, **told: Any) -> Any:
        keep_fit(self, fit_glm(design, self._family(), **told, **self._options()))
        self.coef_ = self.coef_[None]
        self.attenuated_coef_ = self.coef_ / self.result_.attenuated_by
        self.intercept_ = np.array([self.intercept_])
        return self

    def _classes(self, X: Any, y: Any) -> np.ndarray:
        y = one_column(X, y)
        if y.dtype.kind == "f" and not np.all(np.isfinite(y)):
            row = int(np.flatnonzero(~np.isfinite(y))[0])
            raise DataError(f"y holds {'NaN' if np.isnan(y[row]) else 'inf'} in row {row}. Drop or fill these rows.")
        refuse_measurements(y)
        classes, index = np.unique(y, return_inverse=True)
        if len(classes) > 2:
            from sklearn.utils.multiclass import type_of_target

            raise DataError(
                f"Only binary classification is supported. The type of the target is {type_of_target(y)}: y holds "
                f"{names(map(str, classes[:6]))}."
            )
        if len(classes) < 2:
            raise DataError(f"y holds one class only, {classes[0]!r}; two are needed to tell them apart (1 class).")
        self.classes_ = classes
        return index.astype(float)

    def _response(self, y: Any) -> np.ndarray:
        return (
            np.asarray(y, dtype=float)
            if not self._single
            else np.searchsorted(self.classes_, np.asarray(y)).astype(float)
        )

    def decision_function(self, X: Any, *, offset: Given = None) -> np.ndarray:
        """Log odds of a typical row."""
        check_fitted(self)
        regression_of(self.result_).refuse_forgotten({"offset": offset})
        return self._predictor(X, offset)

    def predict_proba(self, X: Any, kind: str = "mean", *, offset: Given = None) -> np.ndarray:
        """Probabilities of both classes, over all rows (``"mean"``) or of a ``"typical"`` row.

        With ``local="label"`` the means are of the label as recorded, the typical ones of the truth.
        """
        share = of_kind(kind, self.predict_dist(X, offset=offset))
        return np.column_stack([1.0 - share, share])

    def predict(self, X: Any, *, offset: Given = None) -> np.ndarray:
        """The more probable class."""
        check_fitted(self)
        return self.classes_[(self.decision_function(X, offset=offset) > 0).astype(int)]

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        return tags
