"""Robust regressions with scikit-learn's manners: read, fit, unpack."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import check_consistent_length, check_is_fitted, column_or_1d, validate_data

from robustly import persist
from robustly.errors import DataError, PersistError, names
from robustly.glm.families import FAMILIES, Bernoulli, Binomial, Exponential, Family, Gamma, Normal, Poisson, as_family
from robustly.glm.fit import fit_glm
from robustly.glm.predictive import GLMPredictive
from robustly.glm.result import GLMFit, from_saved
from robustly.rows.frames import Design, read_design, read_offset


class _GLMEstimator(BaseEstimator):
    """What all regressions share."""

    result_: GLMFit
    coef_: Any
    intercept_: Any

    def _family(self) -> Family:
        raise NotImplementedError

    def _options(self) -> dict[str, Any]:
        """What is passed on to the fit."""
        own = self.get_params(deep=False)
        passed = ("local", "prior", "approx", "solver", "hyperprior", "dof", "tol", "max_iter")
        return {name: own[name] for name in passed if name in own}

    def _design(self, X: Any, y: Any, sample_weight: Any, offset: Any, exposure: Any, trials: Any = None) -> Design:
        _refuse_texts(X)
        matrix = validate_data(self, X, accept_sparse="csr", dtype=np.float64, ensure_all_finite=False)
        return self._read(matrix, y, sample_weight, offset, exposure, trials)

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

    def _keep(self, result: GLMFit) -> None:
        self.result_ = result
        self.n_iter_ = max(1, len(result.history))
        first = int(result.fitted.intercept)
        self.coef_ = result.fitted.coefficients[first:]
        self.intercept_ = float(result.fitted.coefficients[0]) if first else 0.0
        for name in ("spread", "dof", "scale", "flip"):
            value = getattr(result, name)
            if value is not None:
                setattr(self, f"{name}_", float(value))
            elif hasattr(self, f"{name}_"):
                delattr(self, f"{name}_")

    def _matrix(self, X: Any) -> Any:
        check_is_fitted(self)
        _refuse_texts(X)
        return validate_data(self, X, accept_sparse="csr", dtype=np.float64, ensure_all_finite=True, reset=False)

    def _predictor(self, X: Any, offset: Any = None, exposure: Any = None) -> np.ndarray:
        matrix = self._matrix(X)
        return self.result_.fitted.predictor(matrix, read_offset(offset, exposure, matrix.shape[0]))

    def predict_dist(self, X: Any, *, offset: Any = None, exposure: Any = None, trials: Any = None) -> GLMPredictive:
        """The predictive distribution of every row, averaged over rows' own values: mean, sd, quantile …"""
        m = self._predictor(X, offset, exposure)
        counted = None if trials is None else np.broadcast_to(np.asarray(trials, dtype=float), m.shape)
        return GLMPredictive(self.result_.fitted, m, counted)

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
        """Rows of the fitted data that do not belong, most surprising first; see :meth:`GLMFit.outliers`."""
        check_is_fitted(self)
        return self.result_.outliers(fdr=fdr, level=level)

    def summary(self) -> Any:
        """The table of estimates; see :meth:`GLMFit.summary`."""
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
        meta, arrays = self.result_.to_saved()
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


class _RowRegressor(RegressorMixin, _GLMEstimator):
    """Regressions with one numeric response."""

    def fit(
        self,
        X: Any,
        y: Any,
        sample_weight: Any = None,
        *,
        offset: Any = None,
        exposure: Any = None,
    ) -> Any:
        """Fit to rows `X` (n, d), dense, sparse or a frame, and responses `y` (n,).

        `sample_weight` says how often each row counts, `offset` is added to the predictor, the log of `exposure` too.
        """
        if y is None:
            raise DataError("y is missing: this estimator requires y to be passed, but the target y is None.")
        design = self._design(X, _response_of(X, y), sample_weight, offset, exposure)
        self._keep(fit_glm(design, self._family(), **self._options()))
        return self

    def predict(self, X: Any, kind: str = "typical", *, offset: Any = None, exposure: Any = None) -> np.ndarray:
        """The expected response: of a ``"typical"`` row (own value at the centre), or ``"marginal"``, over all rows."""
        predictive = self.predict_dist(X, offset=offset, exposure=exposure)
        return _of_kind(kind, predictive)


class RobustLinearRegression(_RowRegressor):
    r"""Linear regression in which every row has its own precision: Student-t errors, all parameters fitted.

    :math:`y_i \sim N(b + x_i w, 1/\tau_i)` with gamma precisions, so the errors are :math:`t_\mathrm{dof}` with the
    given scale. Resists outliers in the response. It does not resist rows with outlying *columns* (leverage points):
    no model of independent errors does; use an MM-estimator there.

    Args:
        fit_intercept: whether to add a constant.
        dof: degrees of freedom; None fits them, and gives least squares back where tails are no heavier than normal.
        alpha: ridge penalty, the precision of a normal prior on every coefficient but the intercept.
        tol: the gain in log likelihood at which the search ends, relative to its size.
        max_iter: most passes over the rows.

    Example:
        >>> X, y = np.arange(8.0)[:, None], np.array([0, 1.1, 1.9, 3, 4.2, 5, 50, 6.9])
        >>> model = RobustLinearRegression().fit(X, y)
        >>> bool(abs(model.coef_[0] - 1) < 0.05), int(model.outliers()[0])
        (True, 6)

    Lange, Little & Taylor (1989).
    """

    def __init__(
        self,
        *,
        fit_intercept: bool = True,
        dof: float | None = None,
        alpha: float = 0.0,
        tol: float = 1e-8,
        max_iter: int = 100,
    ) -> None:
        self.fit_intercept = fit_intercept
        self.dof = dof
        self.alpha = alpha
        self.tol = tol
        self.max_iter = max_iter

    def _family(self) -> Family:
        return Normal()

    def _options(self) -> dict[str, Any]:
        return {**super()._options(), "local": "dispersion"}


class RobustPoissonRegression(_RowRegressor):
    r"""Poisson regression in which every row has its own log rate.

    :math:`\eta_i \sim p(\cdot \mid b + x_i w, \mathrm{spread})`, :math:`y_i \sim \mathrm{Poisson}(e^{\eta_i})`, the
    rows' log rates integrated out and the spread fitted. Where rows show no spread the plain regression is returned,
    with ``spread_ = 0``. If overdispersion comes from gamma-distributed rates, a negative binomial is the better model.

    Args:
        prior: law of the log rates around their centre: ``"normal"``, ``"laplace"`` or ``"student_t"``.
        approx: ``"quadrature"`` (exact to many digits) or ``"laplace"``.
        solver: ``"newton"``; ``"em"`` with ``approx="laplace"`` is Wang & Blei's Algorithm 1; ``"map"`` with
            ``prior="laplace"`` gives sparse shifts.
        hyperprior: a NumPyro distribution of the spread; None for maximum likelihood.
        dof: degrees of freedom of a ``"student_t"`` prior; None fits them.
        fit_intercept, alpha, tol, max_iter: as in :class:`RobustLinearRegression`.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> X = rng.normal(size=(200, 2))
        >>> y = rng.poisson(np.exp(1 + X @ [0.5, 0.0] + 0.7 * rng.normal(size=200)))
        >>> model = RobustPoissonRegression().fit(X, y)
        >>> bool(0.4 < model.spread_ < 1)
        True
    """

    def __init__(
        self,
        *,
        prior: str = "normal",
        approx: Any = "quadrature",
        solver: str = "newton",
        hyperprior: Any = None,
        dof: float | None = 4.0,
        fit_intercept: bool = True,
        alpha: float = 0.0,
        tol: float = 1e-8,
        max_iter: int = 100,
    ) -> None:
        self.prior = prior
        self.approx = approx
        self.solver = solver
        self.hyperprior = hyperprior
        self.dof = dof
        self.fit_intercept = fit_intercept
        self.alpha = alpha
        self.tol = tol
        self.max_iter = max_iter

    def _family(self) -> Family:
        return Poisson()

    def _options(self) -> dict[str, Any]:
        return {**super()._options(), "local": "predictor"}

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.positive_only = True
        return tags


class RobustGLM(_RowRegressor):
    """Any family, anything local.

    Args:
        family: a name (``"normal"``, ``"poisson"``, ``"bernoulli"``, ``"binomial"``, ``"gamma"``, ``"exponential"``,
            ``"negative_binomial"``) or a :class:`~robustly.glm.families.Family`, your own included.
        local: ``"predictor"``, ``"dispersion"``, ``"label"`` (0/1 responses), None for the classical model, or
            ``"auto"``: the dispersion of a normal, the predictor of anything else.
        prior: law of rows' own predictors: ``"normal"``, ``"laplace"``, ``"student_t"``.
        approx, solver, dof, fit_intercept, alpha, tol, max_iter: as in :class:`RobustPoissonRegression`.
        hyperprior: as there; ``"auto"`` holds the spread of 0/1 rows by a weak Gamma(2, 1).

    Example:
        >>> X = np.linspace(0, 1, 30)[:, None]
        >>> y = np.exp(X[:, 0]) * np.random.default_rng(1).gamma(2.0, 0.5, 30)
        >>> classical = RobustGLM(family="gamma", local=None).fit(X, y)
        >>> classical.result_.outcome.kind
        'converged'
    """

    def __init__(
        self,
        family: Any = "poisson",
        *,
        local: str | None = "auto",
        prior: str = "normal",
        approx: Any = "quadrature",
        solver: str = "newton",
        hyperprior: Any = "auto",
        dof: float | None = 4.0,
        fit_intercept: bool = True,
        alpha: float = 0.0,
        tol: float = 1e-8,
        max_iter: int = 100,
    ) -> None:
        self.family = family
        self.local = local
        self.prior = prior
        self.approx = approx
        self.solver = solver
        self.hyperprior = hyperprior
        self.dof = dof
        self.fit_intercept = fit_intercept
        self.alpha = alpha
        self.tol = tol
        self.max_iter = max_iter

    def _family(self) -> Family:
        return as_family(self.family)

    def _options(self) -> dict[str, Any]:
        options = super()._options()
        if isinstance(self._family(), Normal) and self.local in ("auto", "dispersion") and self.dof == 4.0:
            # Four degrees of freedom are for priors of the predictor; Student-t errors have theirs fitted.
            options["dof"] = None
        return options

    def fit(
        self,
        X: Any,
        y: Any,
        sample_weight: Any = None,
        *,
        offset: Any = None,
        exposure: Any = None,
        trials: Any = None,
    ) -> Any:
        """Fit to rows `X` (n, d) and responses `y`; `trials` for counts of successes, or `y` of two columns."""
        if y is None:
            raise DataError("y is missing: this estimator requires y to be passed, but the target y is None.")
        design = self._design(X, _response_of(X, y), sample_weight, offset, exposure, trials)
        self._keep(fit_glm(design, self._family(), **self._options()))
        return self

    def predict(
        self,
        X: Any,
        kind: str = "typical",
        *,
        offset: Any = None,
        exposure: Any = None,
        trials: Any = None,
    ) -> np.ndarray:
        """The expected response: of a ``"typical"`` row (own value at the centre), or ``"marginal"``, over all rows."""
        return _of_kind(kind, self.predict_dist(X, offset=offset, exposure=exposure, trials=trials))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        family = self._family()
        tags.target_tags.positive_only = not isinstance(family, Normal) and isinstance(
            family, Poisson | Gamma | Exponential | Binomial
        )
        return tags


class RobustLogisticRegression(ClassifierMixin, _GLMEstimator):
    r"""Logistic regression in which every row has its own log odds, or may carry a wrong label.

    ``local="logit"`` is Wang & Blei's: :math:`\eta_i \sim N(b + x_i w, \mathrm{spread}^2)`. With 0/1 responses the
    spread and the size of `coef_` cannot be told apart, so a weak hyperprior holds the spread, a warning says so, and
    `attenuated_coef_` is the scale both agree on; it does *not* resist wrong labels. ``local="label"`` does: each label
    is wrong with a fitted probability `flip_`. Counts of successes (`trials`) identify the spread.

    Args:
        local: ``"logit"``, ``"label"``, or None for the classical model.
        hyperprior: ``"auto"`` (Gamma(2, 1) for 0/1 rows), None for maximum likelihood, or a NumPyro distribution.
        prior, approx, solver, dof, fit_intercept, alpha, tol, max_iter: as in :class:`RobustPoissonRegression`.

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

    def __init__(
        self,
        *,
        local: str | None = "logit",
        prior: str = "normal",
        approx: Any = "quadrature",
        solver: str = "newton",
        hyperprior: Any = "auto",
        dof: float | None = 4.0,
        fit_intercept: bool = True,
        alpha: float = 0.0,
        tol: float = 1e-8,
        max_iter: int = 100,
    ) -> None:
        self.local = local
        self.prior = prior
        self.approx = approx
        self.solver = solver
        self.hyperprior = hyperprior
        self.dof = dof
        self.fit_intercept = fit_intercept
        self.alpha = alpha
        self.tol = tol
        self.max_iter = max_iter

    def _family(self) -> Family:
        return Bernoulli() if self._single else Binomial()

    _single = True

    def _options(self) -> dict[str, Any]:
        return {**super()._options(), "local": "predictor" if self.local == "logit" else self.local}

    def fit(
        self,
        X: Any,
        y: Any,
        sample_weight: Any = None,
        *,
        offset: Any = None,
        trials: Any = None,
    ) -> Any:
        """Fit to rows `X` (n, d) and two classes `y`, or counts of successes with `trials`."""
        if y is None:
            raise DataError("y is missing: this estimator requires y to be passed, but the target y is None.")
        _refuse_texts(X)
        X = validate_data(self, X, accept_sparse="csr", dtype=np.float64, ensure_all_finite=False)
        y = np.asarray(y)
        counted = trials is not None or (y.ndim == 2 and y.shape[1] == 2)
        self._single = not counted
        if counted:
            self.classes_ = np.array([0, 1])
            response: Any = np.asarray(y, dtype=float)
        else:
            response = self._classes(X, y)
        design = self._read(X, response, sample_weight, offset, None, trials)
        self._keep(fit_glm(design, self._family(), **self._options()))
        first = int(self.result_.fitted.intercept)
        self.attenuated_coef_ = self.result_.attenuated_coefficients.to_numpy()[None, first:]
        self.coef_ = self.coef_[None]
        self.intercept_ = np.array([self.intercept_])
        return self

    def _classes(self, X: Any, y: Any) -> np.ndarray:
        y = column_or_1d(y, warn=True)
        check_consistent_length(X, y)
        if y.dtype.kind == "f" and not np.all(np.isfinite(y)):
            row = int(np.flatnonzero(~np.isfinite(y))[0])
            raise DataError(f"y holds {'NaN' if np.isnan(y[row]) else 'inf'} in row {row}. Drop or fill these rows.")
        check_classification_targets(y)
        classes, index = np.unique(y, return_inverse=True)
        if len(classes) > 2:
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

    def decision_function(self, X: Any, *, offset: Any = None) -> np.ndarray:
        """Log odds of a typical row."""
        return self._predictor(X, offset)

    def predict_proba(self, X: Any, kind: str = "marginal", *, offset: Any = None) -> np.ndarray:
        """Probabilities of both classes, over all rows (``"marginal"``) or of a ``"typical"`` row.

        With ``local="label"`` the marginal ones are of the label as recorded, the typical ones of the truth.
        """
        share = _of_kind(kind, self.predict_dist(X, offset=offset))
        return np.column_stack([1.0 - share, share])

    def predict(self, X: Any, *, offset: Any = None) -> np.ndarray:
        """The more probable class."""
        check_is_fitted(self)
        return self.classes_[(self.decision_function(X, offset=offset) > 0).astype(int)]

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        return tags


def load_estimator(meta: dict[str, Any], arrays: dict[str, np.ndarray], family: Family | None = None) -> Any:
    """An estimator as ``save`` wrote it."""
    known = {
        made.__name__: made
        for made in (RobustLinearRegression, RobustPoissonRegression, RobustLogisticRegression, RobustGLM)
    }
    if meta["class"] not in known:
        raise PersistError(f"the file holds a {meta['class']}, which this robustly does not know. Upgrade robustly.")
    params = dict(meta["params"])
    if family is not None:
        params["family"] = family
    model = known[meta["class"]](**params)
    model.n_features_in_ = meta["features"]
    if "feature_names" in meta:
        model.feature_names_in_ = np.array(meta["feature_names"], dtype=object)
    model._keep(from_saved(meta["fit"], arrays, family))
    if "classes" in meta:
        model.classes_ = np.array(meta["classes"])
        model._single = meta["fit"]["family"] == "bernoulli"
        first = int(model.result_.fitted.intercept)
        model.attenuated_coef_ = model.result_.attenuated_coefficients.to_numpy()[None, first:]
        model.coef_, model.intercept_ = model.coef_[None], np.array([model.intercept_])
    return model


def _of_kind(kind: str, predictive: GLMPredictive) -> np.ndarray:
    if kind == "marginal":
        return predictive.mean
    if kind == "typical":
        return predictive.fitted.typical(predictive.m, predictive.trials)
    raise DataError(f'kind takes "typical" or "marginal"; {kind!r} came.')


def _response_of(X: Any, y: Any) -> np.ndarray:
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


def _refuse_texts(X: Any) -> None:
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
