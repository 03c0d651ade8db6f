r"""Robust mixtures that find their own number of clusters: priors on all components, and those not needed vanish."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from sklearn.utils import check_random_state

from robustly._runtime.estimator import as_before_if_stopped, with_parameters
from robustly._runtime.threads import on_one_thread
from robustly.errors import ConvergenceWarning, DataError
from robustly.fit.t_components import Rules
from robustly.fit.t_rows import collect
from robustly.fit.t_settings import floor_of
from robustly.fit.t_start import body, make_start
from robustly.mixture.fitted import FittedMixture
from robustly.mixture.settings import check_mixture_settings, read_prior
from robustly.mixture.variational import Belief, ParameterBelief, covariances, expected_weights, raise_bound
from robustly.model import scale_matrices
from robustly.rows.store import Rows

START_DOF = 5.0


@with_parameters
class BayesianRobustGaussianMixture(FittedMixture):
    r"""A mixture of t laws with priors on weights, means and shapes, fitted by variational Bayes.

    Ask for more components than you expect: those the rows do not need end up with hardly any weight. The rows' own
    scales are integrated out given their component, each :math:`\nu_k` maximises the evidence lower bound, and the
    bound is computed in full, so bounds of different fits compare. With ``dof=np.inf`` and full matrices it is
    scikit-learn's ``BayesianGaussianMixture``.

    The posterior is a product of laws, so it is too narrow, and which components vanish depends on the start: compare
    a few `random_state`s. Where K is small and known, :class:`RobustGaussianMixture` is the simpler model.

    Parameters
    ----------
    n_components : most components, K
    covariance_type : "full", "tied", "diag" or "spherical"
    dof : as in :class:`RobustGaussianMixture`
    tied_dof : one ν for all components (default). With components to spare and a ν each, outliers are given wide normal
        components of their own instead of tails
    weight_concentration_prior_type : "dirichlet_process" (sticks, cut at K) or "dirichlet_distribution"
    weight_concentration_prior : small values use few components; None takes 1/K
    mean_prior, mean_precision_prior : (d,) centre of the means, and how many rows it counts as (None: 1)
    degrees_of_freedom_prior : of the Wishart law of the precisions (None: d), at least d − 1 for matrices
    covariance_prior : what is added to a component's sum of squares: (d, d) for matrices, (d,) for "diag", a number for
        "spherical". None takes the shape of the body of all rows, a t law's, so that outliers do not widen it
    tol, max_iter, n_init, init_params, random_state, verbose, verbose_interval : as in :class:`RobustGaussianMixture`;
        `tol` is for the bound per row
    reg_covar : floor of the start's covariances only; the prior does the rest

    Attributes
    ----------
    weights_, means_, dofs_ : expected weights, expected means, degrees of freedom
    covariances_ : inverses of the expected precisions: scale matrices, as in :class:`RobustGaussianMixture`
    masses_ : (K,) expected number of rows of each component
    n_active_ : components with more than one row
    lower_bound_, history_ : evidence lower bound per row, which never falls
    weight_concentration_ : (K,), or (2, K) for sticks: the numbers of their beta laws
    mean_precision_, degrees_of_freedom_ : of the posteriors of means and precisions

    Predictions and densities are those of the mixture at the expected values.

    Example
    -------
    >>> import numpy as np, robustly as rb
    >>> rng = np.random.default_rng(0)
    >>> X = np.concatenate([rng.normal(size=(100, 2)), rng.normal(size=(100, 2)) + [8, 0], rng.uniform(-30, 30, (10, 2))])
    >>> model = rb.BayesianRobustGaussianMixture(6, random_state=0).fit(X)
    >>> int((model.weights_ > 0.05).sum())
    2

    References
    ----------
    Svensén & Bishop 2005, Robust Bayesian mixture modelling. Archambeau & Verleysen 2007, Robust Bayesian clustering. Blei
    & Jordan 2006, Variational inference for Dirichlet process mixtures.
    """

    tied_dof: bool = True
    max_iter: int = 2000
    weight_concentration_prior_type: str = "dirichlet_process"
    weight_concentration_prior: float | None = None
    mean_precision_prior: float | None = None
    mean_prior: Any = None
    degrees_of_freedom_prior: float | None = None
    covariance_prior: Any = None

    @as_before_if_stopped
    @on_one_thread
    def fit(self, X: Any, y: Any = None) -> Any:
        """Fit to rows `X` (n, d); `y` is not looked at."""
        check_mixture_settings(self)
        rows = self._read(X, reset=True)
        if len(rows) < self.n_components:
            raise DataError(
                f"{len(rows)} rows came for n_components={self.n_components}; each component needs at least one row to "
                "start from. Lower n_components."
            )
        rules = Rules(
            kind=self.covariance_type,
            floor=floor_of(rows, self.n_features_in_, self.covariance_type, self.reg_covar),
            fit_dof=self.dof == "fit",
            tied_dof=self.tied_dof,
        )
        whole = body(rows, rules)
        prior = read_prior(self, whole)
        random = check_random_state(self.random_state)
        dof = START_DOF if rules.fit_dof else float(self.dof)
        best: Belief | None = None
        for _ in range(self.n_init):
            start = make_start(rows, self.n_components, self.init_params, rules, random, {}, dof)
            first = collect(rows, start.kernel, fit_dof=False)
            size = self.n_components
            held = ParameterBelief(
                np.ones((2 if prior.process else 1, size)),
                start.means,
                np.ones(size),
                np.ones(1),
                prior.shape,
                start.dofs,
            )
            found = raise_bound(rows, prior, first, held, self.tol, self.max_iter, self._report)
            if best is None or found.bound > best.bound:
                best = found
        assert best is not None
        self._keep(rows, prior, best)
        return self

    def _keep(self, rows: np.ndarray | Rows, prior: Any, best: Belief) -> None:
        held = best.posterior
        self.weights_, self.means_, self.dofs_ = expected_weights(prior, held), held.means, held.dofs
        self.covariances_ = covariances(prior, held)
        self.precisions_cholesky_ = scale_matrices.factor(self.covariance_type, self.covariances_)
        self.masses_, self.n_active_ = best.mass, int((best.mass > 1.0).sum())
        self.weight_concentration_ = held.concentration if prior.process else held.concentration[0]
        self.mean_precision_, self.degrees_of_freedom_ = held.mean_precision, held.shape_dof
        self.lower_bound_, self.history_ = best.bound, best.history
        self.converged_, self.n_iter_ = best.converged, len(best.history)
        self._leave_unjudged(rows)
        if not best.converged and self.tol > 0 and self.max_iter > 0:
            warnings.warn(
                f"max_iter: {self.max_iter} steps were not enough; the bound per row still moved by more than "
                f"{self.tol:g} in the last one. Raise max_iter or tol.",
                ConvergenceWarning,
                stacklevel=4,
            )

    def _report(self, step: int, change: float) -> None:
        if self.verbose and step % self.verbose_interval == 0:
            print(f"{type(self).__name__}: step {step}, bound per row moved by {change:.2e}")
