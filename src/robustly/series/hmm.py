r"""Hidden Markov models whose states have heavy tails: hmmlearn's surface, Student-t emissions, missing values."""

from __future__ import annotations

import os
import warnings
from dataclasses import field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state

from robustly._runtime.estimator import as_before_if_stopped, with_parameters
from robustly._runtime.threads import on_one_thread
from robustly.errors import ConvergenceWarning, ModelError, NotFittedError, PersistError
from robustly.fit.t_components import Components
from robustly.fit.t_rows import log_tails
from robustly.model import scale_matrices
from robustly.result import persist
from robustly.result.component_rows import ComponentLaw, fit_component_law
from robustly.result.outliers import Judgement
from robustly.series import emissions, recursions
from robustly.series.baumwelch import HMMRun, run_baum_welch
from robustly.series.hmm_settings import check_hmm_settings, read_rows, start_chain

# How often the law of outliers and the states' probabilities are found from each other.
ROUNDS = 2
FITTED = ("startprob_", "transmat_", "means_", "covariances_", "dofs_")


@with_parameters
class RobustGaussianHMM(BaseEstimator):
    r"""A hidden Markov model that outliers do not pull apart: every state has a multivariate t law.

    Each row has a precision scale of its own, :math:`x_t \mid z_t = k \sim N(\mu_k, \Sigma_k/u_t)`,
    :math:`u_t \sim \mathrm{Gamma}(\nu_k/2, \nu_k/2)`, and :math:`z_t` is a Markov chain. With the scales integrated out row by
    row, forward and backward recursions give the exact likelihood, which EM maximises. The surface is that of hmmlearn's
    ``GaussianHMM`` (several sequences end to end, with their `lengths`), and ``dof=np.inf`` is that model, without its priors.

    NaN is a missing value, of a whole row or of single columns, and is integrated out.

    When another model is better: outliers that come in runs are a state, and need one more; for semi-Markov durations, or
    autoregression within states, use ssm or dynamax.

    Parameters
    ----------
    n_components : number of states, K
    covariance_type : "full", "tied", "diag" or "spherical"
    dof : "fit", or a number that is held; ``np.inf`` gives normal states
    tied_dof : fit one ν for all states (default) instead of one for each
    tol : the fit ends when the log-likelihood per row moves by less than this
    reg_covar : added to the diagonal of covariances; None takes a millionth of each column's variance by its quartiles
    max_iter : most steps
    n_init : starts, of which the best is kept
    init_params, params : letters of what is initialised, and of what is fitted: s(tart), t(ransitions), m(eans),
        c(ovariances), as hmmlearn has them; set ``startprob_``, … beforehand for what is not initialised
    random_state : seed

    Attributes
    ----------
    startprob_, transmat_ : (K,), (K, K)
    means_, dofs_ : (K, d), (K,); infinite ν for a normal state
    covariances_ : scale matrices in scikit-learn's shapes; `covars_` has them as (K, d, d)
    log_likelihood_, history_, n_iter_, converged_ : of the fit
    outlier_probabilities_, tail_probabilities_ : of the fitted rows, see :meth:`outliers`
    core_spread_, wide_ : the two-part law that outliers are judged by

    Example
    -------
    >>> import numpy as np, robustly as rb
    >>> rng = np.random.default_rng(0)
    >>> states = np.repeat([0, 1, 0, 1], 50)
    >>> X = rng.normal(size=(200, 1)) + 8.0 * states[:, None]
    >>> X[::25] = 60.0
    >>> model = rb.RobustGaussianHMM(2, random_state=0).fit(X)
    >>> np.sort(model.means_[:, 0]).round().astype(int).tolist()
    [0, 8]

    References
    ----------
    Chatzis, Kosmopoulos & Varvarigou 2009, Robust sequential data modeling using an outlier tolerant hidden Markov model.
    Wang & Blei 2018, A general method for robust Bayesian modeling.
    """

    n_components: int = field(default=1, kw_only=False)
    covariance_type: str = field(default="full", kw_only=False)
    dof: str | float = "fit"
    tied_dof: bool = True
    tol: float = 1e-6
    reg_covar: float | None = None
    max_iter: int = 500
    n_init: int = 1
    init_params: str = "stmc"
    params: str = "stmc"
    random_state: Any = None

    @as_before_if_stopped
    @on_one_thread
    def fit(self, X: ArrayLike, lengths: ArrayLike | None = None) -> RobustGaussianHMM:
        """Fit to rows `X` (T, d), sequences of the given `lengths` end to end; NaN is missing."""
        check_hmm_settings(self)
        rows, ends = read_rows(X, lengths)
        random = check_random_state(self.random_state)
        patterns = emissions.sort_rows(rows)
        runs = []
        for _ in range(self.n_init):
            chain, rules = start_chain(self, rows, random)
            runs.append(run_baum_welch(patterns, ends, chain, rules))
        best = max(runs, key=lambda run: run.log_likelihood)
        self._keep(best, rows.shape[1])
        judged = self._judge_rows(rows, ends)
        self.tail_probabilities_, self.outlier_probabilities_ = judged.tail, judged.probability
        if not best.converged and self.max_iter > 0 and self.tol > 0:
            warnings.warn(
                f"max_iter: {self.max_iter} steps were not enough; the log-likelihood per row still moved by more than tol="
                f"{self.tol:g}. Raise max_iter or tol, or try fewer states.",
                ConvergenceWarning,
                stacklevel=2,
            )
        return self

    def _keep(self, best: HMMRun, dim: int) -> None:
        found = best.chain
        self.startprob_, self.transmat_ = found.start, found.transition
        self.means_, self.covariances_, self.dofs_ = found.states.means, found.states.covariances, found.states.dofs
        self.log_likelihood_, self.history_ = best.log_likelihood, best.history
        self.n_iter_, self.converged_, self.n_features_in_ = len(best.history), best.converged, dim

    # ------------------------------------------------------------------ rows

    @on_one_thread
    def score_samples(self, X: ArrayLike, lengths: ArrayLike | None = None) -> tuple[float, np.ndarray]:
        """The log likelihood of all rows, and the probabilities of the states at each, (T, K)."""
        _, ends, density = self._seen(X, lengths)
        return self._smooth(density, ends)

    @on_one_thread
    def score(self, X: ArrayLike, lengths: ArrayLike | None = None) -> float:
        """The log likelihood of all rows."""
        _, ends, density = self._seen(X, lengths)
        return float(recursions.forward(density, self.startprob_, self.transmat_, ends, np.empty_like(density)))

    def predict_proba(self, X: ArrayLike, lengths: ArrayLike | None = None) -> np.ndarray:
        """The probability of every state at every row, (T, K)."""
        return self.score_samples(X, lengths)[1]

    @on_one_thread
    def decode(
        self, X: ArrayLike, lengths: ArrayLike | None = None, algorithm: str = "viterbi"
    ) -> tuple[float, np.ndarray]:
        """Log probability and states of the most probable path, or, with ``"map"``, of the most probable state at each row."""
        if algorithm not in ("viterbi", "map"):
            raise ModelError(f'algorithm is "viterbi" or "map"; got {algorithm!r}.')
        if algorithm == "map":
            share = self.predict_proba(X, lengths)
            return float(share.max(axis=1).sum()), share.argmax(axis=1)
        _, ends, density = self._seen(X, lengths)
        path = np.empty(len(density), dtype=np.int64)
        with np.errstate(divide="ignore"):
            start, moves = np.log(self.startprob_), np.log(self.transmat_)
        return float(recursions.best_path(density, start, moves, ends, path)), path

    def predict(self, X: ArrayLike, lengths: ArrayLike | None = None) -> np.ndarray:
        """The states of the most probable path."""
        return self.decode(X, lengths)[1]

    def outliers(
        self,
        fdr: float | None = None,
        level: float | None = None,
        *,
        X: ArrayLike | None = None,
        lengths: ArrayLike | None = None,
    ) -> np.ndarray:
        """Rows that do not belong to their state, surest first: of the fitted rows, or of `X`.

        The states' laws are given a second, *two-part* form, a normal core and a rare wide part, and the probability that a row
        does not belong is that of the wide part (`outlier_probabilities_`; see :mod:`robustly.result.component_rows`). The list
        holds an expected share of at most `fdr` (0.05 unless told) rows of the core, as tail probabilities under the core tell;
        with `level`, all rows with a smaller tail probability. Where t laws describe the rows better than two parts do, the states
        have heavy tails, and tails are those of the t laws. Rows without any value are never listed.
        """
        self._check_fitted()
        law = ComponentLaw(self.core_spread_, **self.wide_)
        if X is None:
            found = Judgement(self.outlier_probabilities_, self.tail_probabilities_, law.share, "", {})
        else:
            found = self._judge_rows(*read_rows(X, lengths, self.n_features_in_), law)
        assert found.probability is not None
        return found.listed(found.probability, fdr, level)

    @on_one_thread
    def _judge_rows(self, rows: np.ndarray, ends: np.ndarray, law: ComponentLaw | None = None) -> Judgement:
        """Tail probability, and the probability of not belonging, by row.

        Without a `law`, it is fitted to these rows and kept in `core_spread_` and `wide_`.
        """
        patterns, states = emissions.sort_rows(rows), self._states()
        density = emissions.densities(patterns, states, len(rows))
        distance, known = emissions.distances(patterns, states, len(rows))
        heavy = log_tails(distance, known, self.dofs_)
        base = density - heavy
        share = self._smooth(density, ends)[1]
        for _ in range(ROUNDS if law is None else 0):
            found = fit_component_law(distance, known, share, heavy)
            if not found.is_better:
                break
            # A row far from its neighbours' state is an outlier, or a visit of another state: the two-part law weighs them.
            share = self._smooth(base + found.log_density(distance, known[:, None]), ends)[1]
        if law is None:
            law = found
            self.core_spread_ = law.core
            self.wide_ = {"share": law.share, "width": law.width, "weight": law.weight}
        elif law.is_better:
            share = self._smooth(base + law.log_density(distance, known[:, None]), ends)[1]
        return law.judge(distance, known, share, self.dofs_)

    def _smooth(self, density: np.ndarray, ends: np.ndarray) -> tuple[float, np.ndarray]:
        """Log likelihood and the states' probabilities at every row, from log densities (T, K)."""
        share = np.empty_like(density)
        likelihood = recursions.forward(density, self.startprob_, self.transmat_, ends, share)
        recursions.backward(self.transmat_, ends, share, np.zeros_like(self.transmat_))
        return float(likelihood), share

    # ------------------------------------------------------------------ the model

    @property
    def covars_(self) -> np.ndarray:
        """Scale matrices (K, d, d), whatever the covariance type."""
        self._check_fitted()
        return np.array(scale_matrices.matrices(self.covariance_type, self.covariances_, *self.means_.shape))

    def get_stationary_distribution(self) -> np.ndarray:
        """How often the chain is in each state in the long run."""
        self._check_fitted()
        size = len(self.transmat_)
        wanted = np.concatenate([self.transmat_.T - np.eye(size), np.ones((1, size))])
        return np.linalg.lstsq(wanted, np.append(np.zeros(size), 1.0), rcond=None)[0]

    def sample(
        self, n_samples: int = 1, random_state: Any = None, currstate: int | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """A new sequence and its states, starting from `currstate` if given."""
        self._check_fitted()
        if n_samples < 1:
            raise ModelError(f"sample() needs n_samples of 1 or more; got {n_samples}.")
        random = check_random_state(self.random_state if random_state is None else random_state)
        size, dim = self.means_.shape
        states = np.empty(n_samples, dtype=np.int64)
        edges = np.cumsum(self.transmat_, axis=1)
        states[0] = random.choice(size, p=self.startprob_) if currstate is None else currstate
        for t in range(1, n_samples):
            states[t] = min(np.searchsorted(edges[states[t - 1]], random.random_sample()), size - 1)
        roots = np.linalg.cholesky(self.covars_)
        normal = np.einsum("tij,tj->ti", roots[states], random.standard_normal((n_samples, dim)))
        nu = self.dofs_[states]
        finite = np.isfinite(nu)
        pull = np.ones(n_samples)
        pull[finite] = random.chisquare(nu[finite]) / nu[finite]
        return self.means_[states] + normal / np.sqrt(pull)[:, None], states

    def _n_parameters(self) -> int:
        size, dim = self.means_.shape
        dofs = 0 if self.dof != "fit" else 1 if self.tied_dof else size
        return (
            scale_matrices.free_numbers(self.covariance_type, size, dim) + size * dim + (size - 1) * (size + 1) + dofs
        )

    def bic(self, X: ArrayLike, lengths: ArrayLike | None = None) -> float:
        """Bayesian information criterion: lower is better. Rows without any value do not count."""
        rows, _ = read_rows(X, lengths, self.n_features_in_)
        known = int((~np.isnan(rows)).any(axis=1).sum())
        return -2.0 * self.score(X, lengths) + self._n_parameters() * float(np.log(known))

    def aic(self, X: ArrayLike, lengths: ArrayLike | None = None) -> float:
        """Akaike's information criterion: lower is better."""
        return -2.0 * self.score(X, lengths) + 2.0 * self._n_parameters()

    def _states(self) -> Components:
        factors = scale_matrices.factor(self.covariance_type, self.covariances_)
        size = len(self.means_)
        return Components(
            self.covariance_type, np.full(size, 1.0 / size), self.means_, self.covariances_, factors, self.dofs_
        )

    def _seen(self, X: ArrayLike, lengths: ArrayLike | None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        self._check_fitted()
        rows, ends = read_rows(X, lengths, self.means_.shape[1])
        return rows, ends, emissions.densities(emissions.sort_rows(rows), self._states(), len(rows))

    def _check_fitted(self) -> None:
        missing = [name for name in FITTED if not hasattr(self, name)]
        if missing:
            raise NotFittedError(f"this RobustGaussianHMM is not fitted: it has no {missing[0]}. Call fit(X) first.")

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Keep the fitted model in one file without code in it; ``rb.load(path)`` gives it back."""
        self._check_fitted()
        parameters = self.get_params(deep=False)
        if not isinstance(parameters["random_state"], int | None):
            parameters["random_state"] = None  # a generator's state is not part of the result
        fitted = {name: value for name, value in vars(self).items() if name.endswith("_") and not name.startswith("_")}
        arrays = {name: value for name, value in fitted.items() if isinstance(value, np.ndarray)}
        plain = {name: value for name, value in fitted.items() if not isinstance(value, np.ndarray)}
        meta = {"class": type(self).__name__, "parameters": parameters, "values": plain}
        return persist.write(path, "hmm", meta, arrays)


def from_saved(meta: dict[str, Any], arrays: dict[str, np.ndarray]) -> RobustGaussianHMM:
    """Rebuild a saved model."""
    if meta["class"] != "RobustGaussianHMM":
        raise PersistError(f"the file holds a {meta['class']}, which this robustly does not know. Upgrade robustly.")
    model = RobustGaussianHMM(**meta["parameters"])
    for name, value in {**meta["values"], **arrays}.items():
        if hasattr(type(model), name):
            raise PersistError(f"the file holds a value called {name}, which is no fitted value of a model.")
        setattr(model, name, value)
    return model
