"""What can be asked of a fitted mixture? Labels, densities, draws, rows that do not belong, and a file to keep it in."""

from __future__ import annotations

import os
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.base import BaseEstimator, DensityMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from robustly._runtime.estimator import with_parameters
from robustly._runtime.threads import on_one_thread
from robustly.errors import DataError, ModelError, PersistError
from robustly.fit.t_rows import (
    BlockPass,
    Densities,
    Pass,
    as_rows,
    in_blocks,
    log_densities,
    log_tails,
    see,
    shares,
)
from robustly.fit.t_settings import LARGEST_VALUE
from robustly.mixture.settings import check_mixture_settings
from robustly.model import scale_matrices
from robustly.model.read_design import refuse_missing_columns
from robustly.result import persist
from robustly.result.component_rows import MOST_ROWS, WIDTH, ComponentLaw, fit_component_law
from robustly.result.outliers import by_tails
from robustly.rows.anywhere import as_stored, rows_from
from robustly.rows.labels import as_numbers
from robustly.rows.store import Data, Rows
from robustly.rows.stored import Layout, Stored

# What is known of the fitted rows. It takes a third of a fit of twenty steps, so it is found when first asked for.
OF_FITTED_ROWS = ("core_spread_", "wide_", "surprise_", "tail_probabilities_", "outlier_probabilities_")


@with_parameters
class FittedMixture(DensityMixin, BaseEstimator):
    """The part of a mixture that uses its components; fitting is in the subclasses."""

    n_components: int = field(default=1, kw_only=False)
    covariance_type: str = "full"
    dof: str | float = "fit"
    tied_dof: bool = False
    tol: float = 1e-6
    reg_covar: float | None = None
    max_iter: int = 1000
    n_init: int = 1
    init_params: str = "robust"
    random_state: Any = None
    verbose: int = 0
    verbose_interval: int = 10

    if TYPE_CHECKING:  # there after fitting
        weights_: np.ndarray
        means_: np.ndarray
        covariances_: np.ndarray
        precisions_cholesky_: np.ndarray
        dofs_: np.ndarray
        core_spread_: np.ndarray
        wide_: dict[str, float]
        outlier_probabilities_: np.ndarray
        surprise_: np.ndarray
        tail_probabilities_: np.ndarray
        converged_: bool
        n_iter_: int
        lower_bound_: float
        history_: list[float]

    @property
    def precisions_(self) -> np.ndarray:
        """Inverses of `covariances_`."""
        self._check_fitted()
        return scale_matrices.precisions_of(self.covariance_type, self.precisions_cholesky_)

    def predict(self, X: Any) -> np.ndarray:
        """The most probable component of every row."""
        return see(read_new_rows(self, X), self._kernel()).label

    def predict_proba(self, X: Any) -> np.ndarray:
        """The probability of every component for every row, (n, K)."""
        return shares(log_densities(read_new_rows(self, X), self._kernel()).T)[1].T

    def score_samples(self, X: Any) -> np.ndarray:
        """Log density of every row."""
        return see(read_new_rows(self, X), self._kernel()).evidence

    def score(self, X: Any, y: Any = None) -> float:
        """Mean log density of the rows."""
        return float(self.score_samples(X).mean())

    def surprise(self, X: Any) -> np.ndarray:
        """Minus the log density of every row: large for rows that do not belong."""
        return -self.score_samples(X)

    def tail_probabilities(self, X: Any) -> np.ndarray:
        r"""How probable a row at least as far from its component is, if all rows came from the components' cores.

        A core is a normal with the component's mean and its scale matrix times `core_spread_`, in which rows of a wide part have no
        say (:mod:`robustly.result.component_rows`).
        """
        return self._judged(read_new_rows(self, X))["tail"]

    def outlier_probability(self, X: Any) -> np.ndarray:
        """For every row, the probability that it belongs to no component; of the fitted rows, `outlier_probabilities_`."""
        return self._judged(read_new_rows(self, X))["probability"]

    def outliers(self, fdr: float | None = None, level: float | None = None, *, X: Any = None) -> np.ndarray:
        """Rows that do not belong, farthest first: of the fitted data, or of `X`.

        Beside the heavy-tailed components, under which hardly anything is surprising, a law with normal cores and a wide part of
        noise is fitted, and the two are weighed by their evidence (`wide_`; see :mod:`robustly.result.outliers` for the rule). With
        `fdr` (0.05 if nothing is given), the list holds an expected share of at most `fdr` rows that do belong. With `level`, all
        rows with a smaller tail probability.
        """
        self._check_fitted()
        if X is None:
            tail, surprise = self.tail_probabilities_, self.surprise_
        else:
            judged = self._judged(read_new_rows(self, X))
            tail, surprise = judged["tail"], -judged["evidence"]
        return by_tails(tail).listed(surprise, fdr, level)

    def sample(self, n_samples: int = 1) -> tuple[np.ndarray, np.ndarray]:
        """New rows and the components they came from, component by component."""
        self._check_fitted()
        if n_samples < 1:
            raise ModelError(f"sample() needs n_samples of 1 or more; got {n_samples}.")
        random = check_random_state(self.random_state)
        counts = random.multinomial(n_samples, self.weights_)
        size, dim = self.means_.shape
        shape = scale_matrices.matrices(self.covariance_type, self.covariances_, size, dim)
        rows = []
        for mean, matrix, dof, count in zip(self.means_, shape, self.dofs_, counts):
            normal = random.standard_normal((count, dim)) @ np.linalg.cholesky(matrix).T
            pull = random.chisquare(dof, count) / dof if np.isfinite(dof) else np.ones(count)
            rows.append(mean + normal / np.sqrt(pull)[:, None])
        return np.concatenate(rows), np.repeat(np.arange(size), counts)

    def fit_predict(self, X: Any, y: Any = None) -> np.ndarray:
        """Fit, and give the most probable component of every row."""
        return self.fit(X).predict(X)  # type: ignore[attr-defined]

    # ------------------------------------------------------------------ reading and keeping

    def _kernel(self) -> Densities:
        """The predictive density of the fitted components."""
        size, dim = self.means_.shape
        white = scale_matrices.whitener(self.covariance_type, self.precisions_cholesky_, size, dim)
        with np.errstate(divide="ignore"):
            return Densities(np.log(self.weights_), self.means_, white, self.dofs_)

    def _read(self, X: Any, *, reset: bool) -> np.ndarray | Rows:
        stored = as_stored(X)
        if stored is not None:
            return self._stored_rows(stored, reset)
        numbers = as_numbers(X, "X")
        matrix = validate_data(self, numbers, dtype=np.float64, reset=reset, order="C", ensure_all_finite=False)
        terms = getattr(self, "feature_names_in_", [f"x{column}" for column in range(matrix.shape[1])])
        refuse_missing_columns(matrix, matrix, terms)
        refuse_huge(matrix)
        return matrix

    def _stored_rows(self, X: Stored, reset: bool) -> Rows:
        """Columns that are not in memory, as rows; they are named as those that were fitted."""
        matrix = X.matrix_beside([])
        if reset:
            self.n_features_in_ = len(matrix.listed)
            self.feature_names_in_ = np.array(matrix.listed, dtype=object)
        elif X.columns is None and hasattr(self, "feature_names_in_"):
            matrix = X.pick(tuple(self.feature_names_in_))
        if len(matrix.listed) != self.n_features_in_:
            raise DataError(
                f"the mixture was fitted to {self.n_features_in_} columns; {X.where} gives {len(matrix.listed)}."
            )
        return rows_from([matrix], Layout(_matrix_only, ("X",), padded=False, many_passes=reset))

    def _check_fitted(self) -> None:
        check_is_fitted(self, "weights_")

    def __getattr__(self, name: str) -> Any:
        if name in OF_FITTED_ROWS and "_fitted_rows" in vars(self):
            self._judge_fitted_rows()
            return vars(self)[name]
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)

    def __getstate__(self) -> Any:
        self._judge_fitted_rows()  # what goes elsewhere holds the answers, not the rows
        return super().__getstate__()

    def _leave_unjudged(self, rows: np.ndarray | Rows) -> None:
        """Forget what was known of the rows of an earlier fit; these are judged when somebody asks."""
        for name in OF_FITTED_ROWS:
            self.__dict__.pop(name, None)
        self._fitted_rows = rows

    @on_one_thread
    def _judge_fitted_rows(self) -> None:
        """Set what is known of the fitted rows, unless it is: their surprise, the cores, the probabilities of not belonging."""
        if "_fitted_rows" not in vars(self):
            return
        X, kernel = self._fitted_rows, self._kernel()
        some = (X if isinstance(X, Rows) else as_rows(X)).sample(MOST_ROWS, 0)
        seen = in_blocks(some, kernel).map(BlockPass(_block_distances), (kernel, None)).by_unit
        distance, known = seen["distance"], np.full(len(some), kernel.means.shape[1])
        found = fit_component_law(distance, known, seen["share"], log_tails(distance, known, kernel.dofs))
        self.core_spread_ = found.core
        self.wide_ = {"share": found.share, "width": found.width, "weight": found.weight}
        judged = self._judged(X)
        self.surprise_ = -judged["evidence"]
        self.tail_probabilities_, self.outlier_probabilities_ = judged["tail"], judged["probability"]
        del self._fitted_rows

    def _judged(self, X: np.ndarray | Rows) -> Any:
        """Evidence, tail probability and probability of not belonging, by row."""
        kernel = self._kernel()
        # Files of 0.1 have cores and no wide part.
        law = ComponentLaw(self.core_spread_, **getattr(self, "wide_", {"share": 0.0, "width": WIDTH, "weight": 1.0}))
        return in_blocks(X, kernel).map(BlockPass(_block_judged), (kernel, law)).by_unit

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Keep the fitted mixture in one file without code in it; ``rb.load(path)`` gives it back."""
        self._check_fitted()
        self._judge_fitted_rows()
        parameters = {}
        for name, value in self.get_params(deep=False).items():
            if name == "random_state" and not isinstance(value, int | None):
                value = None  # a generator's state is not part of the result
            if isinstance(value, np.ndarray | np.generic):
                value = value.tolist()
            parameters[name] = value
        fitted = {name: value for name, value in vars(self).items() if name.endswith("_") and not name.startswith("_")}
        arrays = {name: value for name, value in fitted.items() if isinstance(value, np.ndarray)}
        names = arrays.pop("feature_names_in_", None)
        plain = {n: v for n, v in fitted.items() if not isinstance(v, np.ndarray)}
        meta = {
            "class": type(self).__name__,
            "parameters": parameters,
            "values": plain,
            "names": None if names is None else [str(name) for name in names],
        }
        return persist.write(path, "mixture", meta, arrays)


def _matrix_only(matrix: np.ndarray) -> tuple[Data, None]:
    refuse_huge(matrix)
    return (matrix,), None


def refuse_huge(matrix: np.ndarray) -> None:
    """Numbers whose squares overflow, by row and column."""
    largest = max(float(matrix.max()), -float(matrix.min()))
    if largest > LARGEST_VALUE:
        row, column = np.unravel_index(int(np.argmax(np.abs(matrix))), matrix.shape)
        raise DataError(
            f"X holds {matrix[row, column]:.3g} in row {row}, column {column}, whose square is out of range. Divide "
            "the columns by a common scale first."
        )


def read_new_rows(model: FittedMixture, X: Any) -> np.ndarray | Rows:
    """New rows of a fitted mixture, checked against the columns it was fitted to."""
    model._check_fitted()
    return model._read(X, reset=False)


def _block_distances(over: Pass, columns: np.ndarray, asked: None) -> tuple[dict[str, Any], dict[str, Any]]:
    density, distance, _ = over.look(columns)
    return {}, {"distance": distance.T.copy(), "share": shares(density)[1].T.copy()}


def _block_judged(over: Pass, columns: np.ndarray, law: ComponentLaw) -> tuple[dict[str, Any], dict[str, Any]]:
    density, distance, _ = over.look(columns)
    evidence, share = shares(density)
    found = law.judge(distance.T, np.full(columns.shape[1], over.dim), share.T, over.kernel.dofs)
    return {}, {"evidence": evidence, "tail": found.tail, "probability": found.probability}


def from_saved(meta: dict[str, Any], arrays: dict[str, np.ndarray]) -> FittedMixture:
    """Rebuild a saved mixture."""
    home = __name__.rpartition(".")[0]
    known = {made.__name__: made for made in FittedMixture.__subclasses__() if made.__module__.startswith(f"{home}.")}
    if meta["class"] not in known:
        raise PersistError(f"the file holds a {meta['class']}, which this robustly does not know. Upgrade robustly.")
    model = known[meta["class"]](**meta["parameters"])
    check_mixture_settings(model)
    for name, value in {**meta["values"], **arrays}.items():
        if hasattr(type(model), name):
            raise PersistError(f"the file holds a value called {name}, which is no fitted value of a mixture.")
        setattr(model, name, value)
    if meta["names"] is not None:
        model.feature_names_in_ = np.array(meta["names"], dtype=object)
    return model
