r"""Mixtures of multivariate t laws as an estimator: scikit-learn's `GaussianMixture`, with tails that are fitted."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from sklearn.utils import check_random_state

from robustly._runtime.estimator import as_before_if_stopped, with_parameters
from robustly._runtime.threads import on_one_thread
from robustly.errors import ConvergenceWarning, DataError
from robustly.fit.checkpoint import checkpointed
from robustly.fit.t_components import Components, ComponentsRun, Rules, run_ecm
from robustly.fit.t_rows import as_rows
from robustly.fit.t_settings import floor_of
from robustly.fit.t_start import body, is_sound, make_start
from robustly.mixture.fitted import FittedMixture
from robustly.mixture.settings import check_given, check_mixture_settings
from robustly.model import scale_matrices
from robustly.rows.store import Rows

START_DOF = 5.0


@with_parameters
class RobustGaussianMixture(FittedMixture):
    r"""Clusters that outliers do not pull apart: a mixture of multivariate t laws with fitted degrees of freedom.

    Each row has a precision scale of its own, :math:`u_i \sim \mathrm{Gamma}(\nu_k/2, \nu_k/2)`,
    :math:`x_i \sim N(\mu_k, \Sigma_k/u_i)` in component k. With :math:`u_i` integrated out,

    .. math:: p(x_i) = \sum_k \pi_k\, t_{\nu_k}(x_i; \mu_k, \Sigma_k),

    whose exact log-likelihood is maximised. A row far from all components has a small :math:`u_i` and little say. The
    surface is that of scikit-learn's ``GaussianMixture``, and ``dof=np.inf`` is that model. If there are no outliers
    the fitted :math:`\nu_k` is large or infinite, and the Gaussian mixture comes back.

    When another model is better: if outliers form a tight group of their own, they are a component, and need one more;
    for non-elliptic clusters use HDBSCAN; a uniform noise component (R's mclust) when noise fills a known box.

    Parameters
    ----------
    n_components : number of components, K
    covariance_type : "full", "tied", "diag" or "spherical"
    dof : "fit", or a number that is held, the same for all components; ``np.inf`` gives a Gaussian mixture
    tied_dof : fit one ν for all components instead of one for each
    tol : the fit ends when the mean log-likelihood moves by less than this; 0 makes `max_iter` steps
    reg_covar : added to the diagonal of covariances. None takes a millionth of each column's variance, measured by its
        quartiles; a number is scikit-learn's, the same for all columns whatever their units
    max_iter : most steps, one pass over the rows each
    n_init : starts, of which the best is kept
    init_params : "robust" (trimmed k-means with short climbs), or scikit-learn's "kmeans", "k-means++", "random",
        "random_from_data"
    weights_init, means_init, precisions_init : start values (K,), (K, d) and the shape of `covariances_`
    random_state : seed
    warm_start : start from the last fit
    verbose : 1 prints every `verbose_interval` steps

    Attributes
    ----------
    weights_, means_ : (K,), (K, d)
    covariances_ : scale matrices :math:`\Sigma_k` in scikit-learn's shapes: the covariances of the rows' cores. The
        covariance of all rows of a component is ν/(ν − 2) times as large, and does not exist for ν ≤ 2
    precisions_, precisions_cholesky_ : their inverses and upper factors of these
    dofs_ : (K,) degrees of freedom; infinite for a component that is normal
    lower_bound_ : exact log-likelihood per row, not merely a bound; scikit-learn's name
    history_ : log-likelihood per row after each step, which never falls (up to the floor on covariances)
    converged_, n_iter_, n_features_in_, feature_names_in_ : as usual
    surprise_, tail_probabilities_, core_spread_ : of the fitted rows and components, see :meth:`outliers`

    Example
    -------
    >>> import numpy as np, robustly as rb
    >>> rng = np.random.default_rng(0)
    >>> X = np.concatenate([rng.normal(size=(100, 2)), rng.normal(size=(100, 2)) + [8, 0], rng.uniform(-30, 30, (20, 2))])
    >>> model = rb.RobustGaussianMixture(2, random_state=0).fit(X)
    >>> np.sort(model.means_[:, 0]).round().astype(int).tolist(), bool(len(model.outliers(fdr=0.05)) > 10)
    ([0, 8], True)

    References
    ----------
    Peel & McLachlan 2000, Robust mixture modelling using the t distribution. Liu, Rubin & Wu 1998, Parameter expansion to
    accelerate EM. Wang & Blei 2018, A general method for robust Bayesian modeling.
    """

    weights_init: Any = None
    means_init: Any = None
    precisions_init: Any = None
    warm_start: bool = False

    @as_before_if_stopped
    @on_one_thread
    def fit(self, X: Any, y: Any = None, *, checkpoint: Any = None) -> Any:
        """Fit to rows `X` (n, d), or to ``rb.parquet(path, columns=[…])``; `y` is not looked at.

        `checkpoint` names a folder from which the same call, with a seed in `random_state`, goes on after its process was
        killed.
        """
        check_mixture_settings(self)
        rows = self._read(X, reset=True)
        if checkpoint is None:
            return self._fit(rows)
        anywhere = rows if isinstance(rows, Rows) else as_rows(rows)
        with checkpointed(anywhere, checkpoint, f"{type(self).__name__}: {self.get_params()}") as kept:
            self._fit(kept)
        self._leave_unjudged(anywhere)
        return self

    def _fit(self, rows: np.ndarray | Rows) -> Any:
        if len(rows) < self.n_components:
            raise DataError(
                f"{len(rows)} rows came for n_components={self.n_components}; each component needs at least one row. "
                "Lower n_components."
            )
        rules = Rules(
            kind=self.covariance_type,
            floor=floor_of(rows, self.n_features_in_, self.covariance_type, self.reg_covar),
            fit_dof=self.dof == "fit",
            tied_dof=self.tied_dof,
            tol=self.tol,
            max_iter=self.max_iter,
        )
        runs = [run_ecm(rows, start, rules, self._report) for start in self._starts(rows, rules)]
        everyone = body(rows, rules) if self.init_params == "robust" and len(runs) > 1 else None
        sound = [everyone is None or is_sound(found.components, everyone, len(rows)) for found in runs]
        self._keep(rows, max(zip(sound, runs), key=lambda pair: (pair[0], pair[1].log_likelihood))[1])
        return self

    def _starts(self, rows: np.ndarray | Rows, rules: Rules) -> Any:
        if self.warm_start and hasattr(self, "converged_"):
            yield Components(
                rules.kind, self.weights_, self.means_, self.covariances_, self.precisions_cholesky_, self.dofs_
            )
            return
        random = check_random_state(self.random_state)
        given = check_given(self, self.n_features_in_)
        dof = START_DOF if rules.fit_dof else float(self.dof)
        for _ in range(self.n_init):
            yield make_start(rows, self.n_components, self.init_params, rules, random, given, dof)

    def _keep(self, rows: np.ndarray | Rows, best: ComponentsRun) -> None:
        found = best.components
        self.weights_, self.means_, self.dofs_ = found.weights, found.means, found.dofs
        self.covariances_, self.precisions_cholesky_ = found.covariances, found.factors
        self.lower_bound_, self.history_ = best.log_likelihood, best.history
        self.converged_, self.n_iter_ = best.converged, best.steps
        self._leave_unjudged(rows)
        if not best.converged and self.tol > 0 and self.max_iter > 0:
            moved = abs(best.history[-1] - best.history[-2]) if best.steps > 1 else np.inf
            warnings.warn(
                f"max_iter: {self.max_iter} steps were not enough; the log-likelihood per row still moved by {moved:.1e} in "
                f"the last one (tol is {self.tol:g}). Raise max_iter or tol, or try fewer components.",
                ConvergenceWarning,
                stacklevel=4,
            )

    def _report(self, step: int, change: float) -> None:
        if self.verbose and step % self.verbose_interval == 0:
            print(f"{type(self).__name__}: step {step}, log-likelihood per row moved by {change:.2e}")

    def _n_parameters(self) -> int:
        size, dim = self.means_.shape
        dofs = 0 if self.dof != "fit" else 1 if self.tied_dof else size
        return scale_matrices.free_numbers(self.covariance_type, size, dim) + size * dim + size - 1 + dofs

    def bic(self, X: Any) -> float:
        """Bayesian information criterion on `X`: lower is better. Fitted degrees of freedom count as parameters."""
        evidence = self.score_samples(X)
        return float(-2.0 * evidence.sum() + self._n_parameters() * np.log(len(evidence)))

    def aic(self, X: Any) -> float:
        """Akaike's information criterion on `X`: lower is better."""
        return float(-2.0 * self.score_samples(X).sum() + 2.0 * self._n_parameters())
