"""Robust regressions with scikit-learn's manners: read, fit, unpack."""

from __future__ import annotations

from dataclasses import field
from typing import Any, Self

import numpy as np

from robustly._runtime.estimator import with_parameters
from robustly.errors import PersistError
from robustly.glm.asked import LocalChoice
from robustly.glm.base import OwnPredictors, RowRegressor, keep_fit
from robustly.glm.families import Binomial, Exponential, Family, Gamma, Normal, Poisson
from robustly.glm.logistic import RobustLogisticRegression
from robustly.glm.named import as_family
from robustly.model.read_design import Given


@with_parameters
class RobustLinearRegression(RowRegressor):
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
        predict_kind: what :meth:`predict` gives, ``"mean"`` or ``"typical"``; here they are the same.
        na_action: ``"drop"`` leaves out rows with missing values when fitting, and the summary names them; ``"raise"`` refuses
            them.
        x_weights: ``"mcd"`` weights rows by the robust distance of their columns from the others', against leverage; or a number
            a row; see :mod:`robustly.glm.leverage`.

    Example:
        >>> X = np.arange(40.0)[:, None]
        >>> y = X[:, 0] + np.random.default_rng(0).standard_t(4, size=40)
        >>> y[6] = 90.0
        >>> model = RobustLinearRegression().fit(X, y)
        >>> bool(abs(model.coef_[0] - 1) < 0.05), int(model.outliers()[0])
        (True, 6)

    Lange, Little & Taylor (1989).
    """

    dof: float | None = None
    x_weights: Any = None

    def _family(self) -> Family:
        return Normal()

    def _options(self) -> dict[str, Any]:
        return {**super()._options(), "local": "dispersion"}


@with_parameters
class RobustPoissonRegression(RowRegressor, OwnPredictors):
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
        spread: hold the spread at this value; None fits it.
        predict_kind: what :meth:`predict` gives: ``"mean"``, over all rows, which is what scores compare with responses, or
            ``"typical"``, exp(x·w), a row in the middle. The mean is larger by exp(spread²/2) under a normal prior.
        fit_intercept, alpha, tol, max_iter, na_action: as in :class:`RobustLinearRegression`.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> X = rng.normal(size=(200, 2))
        >>> y = rng.poisson(np.exp(1 + X @ [0.5, 0.0] + 0.7 * rng.normal(size=200)))
        >>> model = RobustPoissonRegression().fit(X, y)
        >>> bool(0.4 < model.spread_ < 1)
        True
    """

    def _family(self) -> Family:
        return Poisson()

    def _options(self) -> dict[str, Any]:
        return {**super()._options(), "local": "predictor"}

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.positive_only = True
        return tags


@with_parameters
class RobustGLM(RowRegressor, OwnPredictors):
    """Any family, anything local.

    Args:
        family: a name (``"normal"``, ``"poisson"``, ``"bernoulli"``, ``"binomial"``, ``"gamma"``, ``"exponential"``,
            ``"negative_binomial"``, ``"zero_inflated_poisson"``, ``"hurdle_poisson"``, ``"tweedie"`` …) or a
            :class:`~robustly.glm.families.Family`, your own included.
        local: ``"predictor"``, ``"dispersion"``, ``"label"`` (0/1 responses), None for the classical model, a class
            of your own (:class:`~robustly.glm.law.Law`), or ``"auto"``: the dispersion of a normal, the predictor of anything
            else.
        prior: law of rows' own predictors: ``"normal"``, ``"laplace"``, ``"student_t"``.
        dof: degrees of freedom of a Student-t law; None fits them. ``"auto"`` takes 4 for a ``"student_t"`` prior of the
            predictor and fits those of a normal's Student-t errors.
        approx, solver, spread, fit_intercept, alpha, tol, max_iter, predict_kind, na_action: as in :class:`RobustPoissonRegression`.
        hyperprior: as there; ``"auto"`` holds the spread of 0/1 rows by a weak Gamma(2, 1).

    Example:
        >>> X = np.linspace(0, 1, 30)[:, None]
        >>> y = np.exp(X[:, 0]) * np.random.default_rng(1).gamma(2.0, 0.5, 30)
        >>> classical = RobustGLM(family="gamma", local=None).fit(X, y)
        >>> classical.result_.outcome.kind
        'converged'
    """

    family: Any = field(default="poisson", kw_only=False)
    local: LocalChoice = "auto"
    hyperprior: Any = "auto"
    dof: float | str | None = "auto"

    def _family(self) -> Family:
        return as_family(self.family)

    def fit(
        self,
        X: Any,
        y: Any,
        sample_weight: Given = None,
        *,
        offset: Given = None,
        exposure: Given = None,
        trials: Given = None,
        groups: Any = None,
        checkpoint: Any = None,
    ) -> Self:
        """Fit to rows `X` (n, d) and responses `y`; `trials` for counts of successes, or `y` of two columns.

        `groups` as in the other regressions: the rows of a group share an effect.
        """
        return self._fit(X, y, sample_weight, offset, exposure, trials, groups, checkpoint)

    def predict(
        self,
        X: Any,
        kind: str | None = None,
        *,
        offset: Given = None,
        exposure: Given = None,
        trials: Given = None,
        groups: Any = None,
    ) -> np.ndarray:
        """The expected response of every row; as in the other regressions, with `trials` for counts of successes."""
        predictive = self.predict_dist(X, offset=offset, exposure=exposure, trials=trials, groups=groups)
        return self._expected(kind, predictive)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        family = self._family()
        tags.target_tags.positive_only = not isinstance(family, Normal) and isinstance(
            family, Poisson | Gamma | Exponential | Binomial
        )
        return tags


def load_estimator(meta: dict[str, Any], arrays: dict[str, np.ndarray], family: Family | None = None) -> Any:
    """An estimator as ``save`` wrote it."""
    from robustly.glm.grouped.saved import from_saved as mixed_from_saved
    from robustly.glm.saved_fits import from_saved

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
    keep_fit(model, (mixed_from_saved if "effects" in meta["fit"] else from_saved)(meta["fit"], arrays, family))
    if "classes" in meta:
        model.classes_ = np.array(meta["classes"])
        model._single = meta["fit"]["family"] == "bernoulli"
        model.coef_, model.intercept_ = model.coef_[None], np.array([model.intercept_])
        model.attenuated_coef_ = model.coef_ / model.result_.attenuated_by
    return model
