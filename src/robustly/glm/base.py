"""What all regressions share with scikit-learn: reading, keeping, predicting, saving."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from robustly._runtime.estimator import as_before_if_stopped, parameters_of, with_parameters
from robustly._runtime.late_bases import Estimator, Regressor
from robustly._runtime.settings import check_yes_or_no
from robustly.errors import DataError, ModelError, PersistError
from robustly.glm.families import Family, Normal
from robustly.glm.fit import fit_glm
from robustly.glm.named import FAMILIES
from robustly.glm.predictive import Expecting, GLMPredictive, of_kind
from robustly.glm.read_arrays import (
    check_fitted,
    read_columns,
    read_new_columns,
    refuse_no_response,
    refuse_text_columns,
    response_of,
)
from robustly.glm.result import regression_of
from robustly.model.linear import Design
from robustly.model.read_design import Given, read_design, read_offset
from robustly.result import persist
from robustly.result.fit import Fit
from robustly.result.saved import to_saved
from robustly.rows.anywhere import as_stored
from robustly.rows.groups import group_rows
from robustly.rows.labels import (
    RowLabels,
    as_numbers,
    check_na_action,
    labels_of_rows,
    missing_by_row,
    refuse_other_length,
    taken,
    used_rows,
)
from robustly.rows.stored import Stored

if TYPE_CHECKING:
    from robustly.glm.grouped.plan import GroupDesign


@with_parameters
class GLMEstimator(Estimator):
    """What all regressions share."""

    fit_intercept: bool = True
    alpha: float = 0.0
    tol: float = 1e-8
    max_iter: int = 100
    na_action: str = "raise"

    if TYPE_CHECKING:  # there after fitting
        result_: Fit
        coef_: Any
        intercept_: Any
        n_iter_: int

    def _family(self) -> Family:
        raise NotImplementedError

    def _options(self) -> dict[str, Any]:
        """What is passed on to the fit."""
        own = parameters_of(self)
        passed = ("local", "prior", "approx", "solver", "hyperprior", "dof", "spread", "tol", "max_iter", "x_weights")
        return {name: own[name] for name in passed if name in own}

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
        from robustly.glm.stored import stored_design

        given = {"weight": sample_weight, "offset": offset, "exposure": exposure, "trials": trials}
        design = stored_design(
            X,
            y,
            given,
            intercept=check_yes_or_no("fit_intercept", self.fit_intercept),
            ridge=self.alpha,
            classes=classes,
        )
        self._take_names(design)
        return design

    def _take_names(self, design: Design) -> None:
        self.n_features_in_ = design.width
        self.feature_names_in_ = np.array(design.terms[int(design.intercept) :], dtype=object)

    def _names_in(self) -> list[str]:
        return [str(name) for name in getattr(self, "feature_names_in_", ())]

    def _design(
        self, X: Any, y: Any, sample_weight: Given, offset: Given, exposure: Given, trials: Given = None
    ) -> tuple[Design, RowLabels]:
        matrix, beside, labels = self._rows(X, y, sample_weight, offset, exposure, trials)
        return self._read(matrix, *beside.values()), labels

    def _rows(
        self, X: Any, y: Any, sample_weight: Given, offset: Given, exposure: Given, trials: Given
    ) -> tuple[Any, dict[str, Any], RowLabels]:
        """The columns, what stands beside them, and what the rows are called; rows with missing values dropped if asked."""
        refuse_text_columns(X)
        action = self.na_action
        check_na_action(action)
        matrix = read_columns(self, as_numbers(X, "X"))
        given = {"y": y, "sample_weight": sample_weight, "offset": offset, "exposure": exposure, "trials": trials}
        called = {"sample_weight": "weights"}
        beside = {name: as_numbers(one, called.get(name, name)) for name, one in given.items()}
        labels = labels_of_rows(X)
        if action == "raise":
            return matrix, beside, labels
        gone = missing_by_row({"X": matrix, **beside}, matrix.shape[0])
        used = used_rows(gone, matrix.shape[0])
        if used.all():
            return matrix, beside, labels
        return matrix[used], {label: taken(given, used) for label, given in beside.items()}, labels.only(used, gone)

    def _read(self, matrix: Any, y: Any, sample_weight: Given, offset: Given, exposure: Given, trials: Given) -> Design:
        terms = (
            [str(name) for name in self.feature_names_in_]
            if hasattr(self, "feature_names_in_")
            else [f"x{j}" for j in range(matrix.shape[1])]
        )
        return read_design(
            matrix,
            y,
            terms,
            intercept=check_yes_or_no("fit_intercept", self.fit_intercept),
            weight=sample_weight,
            offset=offset,
            exposure=exposure,
            trials=trials,
            ridge=self.alpha,
        )

    def _matrix(self, X: Any) -> Any:
        return read_new_columns(self, X)

    def _predictor(self, X: Any, offset: Given = None, exposure: Given = None) -> np.ndarray:
        stored = as_stored(X)
        if stored is not None:
            from robustly.glm.stored import stored_predictor

            check_fitted(self)
            return stored_predictor(stored, self._names_in(), regression_of(self.result_).fitted, offset, exposure)
        matrix = self._matrix(X)
        return regression_of(self.result_).fitted.predictor(matrix, read_offset(offset, exposure, matrix.shape[0]))

    def predict_dist(
        self, X: Any, *, offset: Given = None, exposure: Given = None, trials: Given = None, groups: Any = None
    ) -> Any:
        """The predictive distribution of every row, averaged over rows' or groups' own values: mean, sd, quantile …"""
        check_fitted(self)
        if self.result_.unit:
            from robustly.glm.grouped.result import mixed_of

            matrix = self._matrix(X)
            return mixed_of(self.result_).with_intercepts(
                matrix, read_offset(offset, exposure, matrix.shape[0]), groups, trials
            )
        if groups is not None:
            raise DataError("groups= came, but the model was fitted without groups. Leave it out, or fit with groups=.")
        regression_of(self.result_).refuse_forgotten({"offset": offset, "exposure": exposure, "trials": trials})
        if as_stored(X) is not None:
            raise DataError("predictions of rows that are not in memory are means: predict(X) gives them.")
        fitted, matrix = regression_of(self.result_).fitted, self._matrix(X)
        m = fitted.predictor(matrix, read_offset(offset, exposure, matrix.shape[0]))
        counted = None if trials is None else np.broadcast_to(np.asarray(trials, dtype=float), m.shape)
        return GLMPredictive(fitted, m, counted, matrix).of_fit(self.result_)

    def surprise(
        self, X: Any, y: Any, *, offset: Given = None, exposure: Given = None, trials: Given = None
    ) -> np.ndarray:
        """Minus the log predictive density of every row: large for rows that do not belong."""
        predictive = self.predict_dist(X, offset=offset, exposure=exposure, trials=trials)
        return -predictive.log_prob(self._response(y))

    def _response(self, y: Any) -> np.ndarray:
        return np.asarray(y, dtype=float)

    @property
    def surprise_(self) -> np.ndarray:
        """The surprise of every row the model was fitted to."""
        check_fitted(self)
        return self.result_.surprise

    def outliers(self, fdr: float | None = None, level: float | None = None) -> np.ndarray:
        """Rows of the fitted data that do not belong, most surprising first, by label where `X` was a frame with an index.

        Args:
            fdr, level: the share that may be there by chance, or a bound of tail probabilities; see :meth:`Fit.outliers`.
        """
        check_fitted(self)
        return self.result_.outliers(fdr=fdr, level=level)

    def summary(self) -> Any:
        """The table of estimates; see :meth:`Fit.summary`."""
        check_fitted(self)
        return self.result_.summary()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted model to one file; read it with ``rb.load``."""
        check_fitted(self)
        params = {}
        for name, value in parameters_of(self).items():
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
        tags.input_tags.allow_nan = self.na_action == "drop"
        return tags


@with_parameters
class OwnPredictors:
    """Parameters of regressions whose rows have predictors of their own."""

    prior: str = "normal"
    approx: Any = "quadrature"
    solver: str = "newton"
    hyperprior: Any = None
    dof: Any = 4.0
    spread: float | None = None


@with_parameters
class RowRegressor(Regressor, GLMEstimator):
    """Regressions with one numeric response."""

    predict_kind: str = "mean"

    def fit(
        self,
        X: Any,
        y: Any,
        sample_weight: Given = None,
        *,
        offset: Given = None,
        exposure: Given = None,
        groups: Any = None,
        checkpoint: Any = None,
    ) -> Self:
        """Fit to rows `X` (n, d), dense, sparse or a frame, and responses `y` (n,).

        Of rows in Parquet files, `X` is ``rb.parquet(path, columns=[…])`` and `y` the name of a column; so are the others.
        `checkpoint` names a folder from which the same call goes on after its process was killed.

        `sample_weight` says how often each row counts, `offset` is added to the predictor, the log of `exposure` too. With
        `groups`, one label a row, the rows of a group share an effect: it is the group that has a predictor of its own, under
        the law that `prior` names, and rows keep what is left of `local` (Student-t errors, wrong labels).
        """
        return self._fit(X, y, sample_weight, offset, exposure, groups=groups, checkpoint=checkpoint)

    @as_before_if_stopped
    def _fit(
        self,
        X: Any,
        y: Any,
        sample_weight: Given,
        offset: Given,
        exposure: Given,
        trials: Given = None,
        groups: Any = None,
        checkpoint: Any = None,
    ) -> Any:
        refuse_no_response(y)
        family, stored = self._family(), as_stored(X)
        if stored is not None and groups is not None:
            return self._fit_stored_groups(stored, y, groups, sample_weight, offset, exposure, trials, checkpoint)
        if stored is not None:
            there = self._stored_design(stored, y, sample_weight, offset, exposure, trials)
            needs = given_by_row(offset=offset, exposure=exposure, trials=trials)
            keep_fit(self, fit_glm(there, family, needs=needs, checkpoint=checkpoint, **self._options()))
            return self
        design, labels = self._design(X, response_of(X, y, family), sample_weight, offset, exposure, trials)
        given = given_by_row(offset=offset, exposure=exposure, trials=trials)
        if groups is not None:
            from robustly.glm.grouped.design import intercepts_of

            refuse_other_length(len(design), "groups", groups)
            effects = intercepts_of(group_rows(groups))
            grouped = effects.design_of(design, np.ones((len(design), 1)))
            keep_fit(self, self._fit_groups(grouped, family, labels, checkpoint))
            return self
        keep_fit(self, fit_glm(design, family, needs=given, labels=labels, checkpoint=checkpoint, **self._options()))
        return self

    def _fit_stored_groups(
        self,
        X: Stored,
        y: Any,
        groups: Any,
        sample_weight: Any,
        offset: Any,
        exposure: Any,
        trials: Any,
        checkpoint: Any,
    ) -> Any:
        """The same of rows that are not in memory, with the names of columns, or columns of the same rows."""
        from robustly.glm.stored import stored_design_in_groups

        given = {"weight": sample_weight, "offset": offset, "exposure": exposure, "trials": trials}
        there = stored_design_in_groups(
            X,
            y,
            given,
            groups,
            self._family(),
            intercept=check_yes_or_no("fit_intercept", self.fit_intercept),
            ridge=self.alpha,
        )
        self._take_names(there.design)
        keep_fit(self, self._fit_groups(there, self._family(), RowLabels(), checkpoint))
        return self

    def _fit_groups(self, given: GroupDesign, family: Family, labels: RowLabels, checkpoint: Any) -> Fit:
        """Rows whose groups have intercepts of their own."""
        from robustly.glm.grouped.fit import fit_grouped

        asked = self._options()
        local = asked.get("local")
        heavy = asked.get("prior", "normal") == "student_t"
        errors = isinstance(family, Normal) and local in ("auto", "dispersion")
        degrees = asked.get("dof")
        return fit_grouped(
            given,
            family,
            local="dispersion" if errors else "label" if local == "label" else None,
            group_law=asked.get("prior", "normal"),
            group_dof=degrees if heavy and not isinstance(degrees, str) else None,
            dof=degrees if errors else None,
            max_iter=max(asked["max_iter"], 100),
            labels=labels,
            checkpoint=checkpoint,
        )

    def predict(
        self, X: Any, kind: str | None = None, *, offset: Given = None, exposure: Given = None, groups: Any = None
    ) -> np.ndarray:
        """The expected response of every row.

        Args:
            X: new rows, with the columns of the fit.
            kind: ``"mean"`` averages over rows' own values, ``"typical"`` is a row whose own value is the common one
                (``exp(x·w)`` for counts). None is what the estimator was made with, `predict_kind`.
            offset, exposure: those of the new rows; asked for where the model was fitted with them.
            groups: of a model with groups, the label of each row's group; without them, and for labels that were not fitted,
                rows are of new groups.
        """
        stored = as_stored(X)
        if stored is not None:
            from robustly.glm.stored import stored_predictor

            check_fitted(self)
            fitted, asked = regression_of(self.result_).fitted, self.predict_kind if kind is None else kind
            return stored_predictor(stored, self._names_in(), fitted, offset, exposure, asked)
        return self._expected(kind, self.predict_dist(X, offset=offset, exposure=exposure, groups=groups))

    def _expected(self, kind: str | None, predictive: Expecting) -> np.ndarray:
        """Predictions, which scikit-learn's scores have to be able to use."""
        found = of_kind(self.predict_kind if kind is None else kind, predictive)
        if np.isposinf(found).any() and np.isfinite(predictive.typical).all():
            raise ModelError(
                "the fitted law of rows' own values has tails so heavy that the expected response is infinite. Ask for "
                'kind="typical" (predict_kind="typical" in the estimator), or for predict_dist(X).quantile(0.5).'
            )
        return found


def given_by_row(**given: Any) -> tuple[str, ...]:
    """Which of these came: predictions have to be given them again."""
    return tuple(label for label, value in given.items() if value is not None)


def keep_fit(model: GLMEstimator, result: Fit) -> None:
    """Give an estimator its result, and the fitted numbers under scikit-learn's names."""
    model.result_ = result
    model.n_iter_ = max(1, len(result.history))
    if result.unit:
        from robustly.glm.grouped.result import mixed_of

        fitted: Any = mixed_of(result).fitted
    else:
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
